//! Notices made by other implementations, as published files: what the service answers to each, and
//! what it stores. `tests/vectors/wechat/README.md` tells who made and checked them.

mod contract;
mod files;

use std::collections::HashSet;
use std::sync::Arc;

use refund_batcher::core::sql::shop::{NewOrder, NewRefund};
use refund_batcher::core::types::UnixMs;

use crate::support::raw::Raw;
use crate::support::{TestApp, TestClock, TestDatabase, books, until};
use crate::wire::{self, Answered, lines};
use contract::{DIFFERS, Kept, contract};
use files::{Keys, Refund, Vector, folder, vector, vectors};

/// A direct merchant, and a partner: all that the notices name. What does not open is stored under
/// the first.
const MCHIDS: [&str; 2] = ["1900000109", "1900000100"];
const PATH: &str = "/notify/wechat/v3";

/// A service that holds the keys of some vectors, with a clock to set.
struct Served {
    keys: Keys,
    url: String,
    database: TestDatabase,
    app: TestApp,
    clock: Arc<TestClock>,
}

impl Served {
    async fn start(database: TestDatabase, keys: &Keys, http: &str) -> Served {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("apiv3"), &keys.apiv3_key).unwrap();
        let mut text = format!(
            "[http]\nlisten = '127.0.0.1:0'\n{http}\n[admin]\nlisten = '127.0.0.1:0'\n\
             [database]\nurl = '{}'\n",
            database.url
        );
        for mchid in MCHIDS {
            text += &format!("[[merchants]]\nmchid = '{mchid}'\napi_v3_key_files = ['apiv3']\n");
            for (at, trusted) in keys.trusted.iter().enumerate() {
                std::fs::write(folder.path().join(format!("{at}.pem")), &trusted.pem).unwrap();
                let serial = &trusted.serial;
                text +=
                    &format!("[[merchants.verify_keys]]\nserial = '{serial}'\nfile = '{at}.pem'\n");
            }
        }
        let clock = TestClock::at(0);
        let app = TestApp::from_text(&text, folder, Arc::clone(&clock) as _).await;
        Served {
            keys: keys.clone(),
            url: database.url.clone(),
            database,
            app,
            clock,
        }
    }

    /// Sends a vector at its time.
    async fn send(&self, vector: &Vector) -> Answered {
        self.clock.set(vector.now_unix * 1000);
        let body = vector.request.body();
        let answered = wire::post(&self.app, PATH, &vector.request.headers, &body).await;
        says_no_secret(vector, &answered);
        answered
    }

    /// The shop's rows of the refund that a vector reports.
    async fn shop_writes(&self, refund: &Refund) {
        let order = NewOrder {
            mchid: refund.owner().to_owned(),
            out_trade_no: refund.out_trade_no.clone(),
            transaction_id: refund.transaction_id.clone(),
            total_fen: refund.amount_total,
        };
        let row = NewRefund {
            mchid: refund.owner().to_owned(),
            out_refund_no: refund.out_refund_no.clone(),
            out_trade_no: refund.out_trade_no.clone(),
            transaction_id: refund.transaction_id.clone(),
            refund_fen: refund.amount_refund,
            total_fen: refund.amount_total,
        };
        let shop = self.database.database.shop();
        shop.insert_orders(&[order], UnixMs(0)).await.unwrap();
        shop.insert_refunds(&[row], UnixMs(0)).await.unwrap();
    }

    /// The states of all notices of a refund, oldest first.
    async fn states(&self, refund: &Refund) -> Vec<String> {
        let number = &refund.out_refund_no;
        lines(
            &self.url,
            &format!(
                "SELECT status, state FROM notice WHERE out_refund_no = '{number}' ORDER BY id"
            ),
        )
        .await
    }

    async fn stop(self) {
        assert!(self.app.app.stop().await, "everything is emptied");
    }
}

/// No answer holds a key, a signature, or a word of what was encrypted.
fn says_no_secret(vector: &Vector, answered: &Answered) {
    let said = format!("{}\n{}", answered.head, answered.body);
    let mut secrets = vec![vector.keys.apiv3_key.clone()];
    let headers = vector.request.headers.iter();
    secrets.extend(
        headers
            .filter(|(name, _)| name.to_ascii_lowercase().starts_with("wechatpay-"))
            .map(|(_, value)| value.clone()),
    );
    if let Some(Ok(plaintext)) = vector.expect.decrypted.as_deref().map(serde_json::from_str) {
        texts_of(&plaintext, &mut secrets);
    }
    for secret in secrets.iter().filter(|secret| secret.len() >= 6) {
        assert!(!said.contains(secret.as_str()), "{}: {said}", vector.name);
    }
}

fn texts_of(value: &serde_json::Value, into: &mut Vec<String>) {
    match value {
        serde_json::Value::String(text) => into.push(text.clone()),
        serde_json::Value::Array(all) => all.iter().for_each(|one| texts_of(one, into)),
        serde_json::Value::Object(all) => all.values().for_each(|one| texts_of(one, into)),
        _ => {}
    }
}

/// How many notices, and how many of them kept raw.
async fn stored(url: &str) -> (i64, i64) {
    let mut raw = Raw::open(url).await;
    (
        raw.int("SELECT COUNT(*) FROM notice").await,
        raw.int("SELECT COUNT(*) FROM notice_raw").await,
    )
}

/// The row of a fact says what the vector says, and comes to stand in `state`.
async fn check_fact(served: &Served, name: &str, refund: &Refund, state: &str) {
    let number = |value: Option<i64>| value.map_or_else(|| "-".to_owned(), |v| v.to_string());
    let expected = [
        "wechat refund notify_v3",
        refund.owner(),
        &refund.out_trade_no,
        refund.refund_id.as_deref().unwrap_or("-"),
        refund.transaction_id.as_deref().unwrap_or("-"),
        &refund.amount_refund.to_string(),
        &number(refund.payer_refund),
        &refund.amount_total.to_string(),
        "CNY",
        &number(refund.success_time_unix.map(|seconds| seconds * 1000)),
        state,
    ]
    .join(" ");
    // the vectors drop the fraction of a second
    let select = format!(
        "SELECT provider, subject, source, mchid, out_trade_no, refund_id, transaction_id, refund_fen, \
         payer_refund_fen, total_fen, currency, success_at_ms - success_at_ms % 1000, state \
         FROM notice WHERE out_refund_no = '{}' AND status = '{}'",
        refund.out_refund_no, refund.status
    );
    until(&format!("{name} is `{expected}`"), || async {
        lines(&served.url, &select).await == [expected.clone()]
    })
    .await;
}

/// The shop's refund row has the reported status, and the ledger has the money of a SUCCESS.
async fn check_applied(served: &Served, refund: &Refund) {
    let number = &refund.out_refund_no;
    let status = format!("SELECT status, mchid FROM refund_order WHERE out_refund_no = '{number}'");
    let expected = format!("{} {}", refund.status, refund.owner());
    assert_eq!(lines(&served.url, &status).await, [expected], "{number}");
    let ledger =
        format!("SELECT refund_fen, mchid FROM refund_ledger WHERE out_refund_no = '{number}'");
    let mut expected = Vec::new();
    if refund.status == "SUCCESS" {
        expected.push(format!("{} {}", refund.amount_refund, refund.owner()));
    }
    assert_eq!(lines(&served.url, &ledger).await, expected, "{number}");
}

/// Sends every vector, each to a service that holds its keys, and checks answer and rows.
async fn check_all(open: impl AsyncFn() -> TestDatabase, shop_knows: bool) {
    let mut services: Vec<Served> = Vec::new();
    let mut facts = HashSet::new();
    let mut refunds = HashSet::new();
    let mut ran = 0;
    for vector in vectors() {
        let at = match services.iter().position(|s| s.keys == vector.keys) {
            Some(at) => at,
            None => {
                services.push(Served::start(open().await, &vector.keys, "").await);
                services.len() - 1
            }
        };
        let (served, name) = (&services[at], &vector.name);
        if let (true, Some(refund)) = (shop_knows, &vector.expect.refund)
            && refunds.insert(refund.out_refund_no.clone())
        {
            served.shop_writes(refund).await;
        }
        let (status, kept) = contract(&vector);
        let before = stored(&served.url).await;
        let answered = served.send(&vector).await;
        assert_eq!(answered.status, status, "{name}: {}", answered.body);
        if status == 204 {
            assert_eq!(answered.body, "", "{name}");
        } else {
            answered.fail_message();
        }
        let is_new = match (kept, &vector.expect.refund) {
            (Kept::Nothing, _) => false,
            (Kept::Fact, Some(fact)) => {
                facts.insert((fact.out_refund_no.clone(), fact.status.clone()))
            }
            _ => true,
        };
        let after = (before.0 + i64::from(is_new), before.1 + i64::from(is_new));
        assert_eq!(stored(&served.url).await, after, "{name}: rows");
        match (kept, &vector.expect.refund) {
            (Kept::Nothing, _) => {}
            (Kept::Fact, Some(refund)) => {
                let state = if shop_knows { "done" } else { "parked" };
                check_fact(served, name, refund, state).await;
                if shop_knows {
                    check_applied(served, refund).await;
                }
            }
            (Kept::Ignored | Kept::Quarantined(_), _) => {
                let id = vector.request.envelope_id();
                let select = format!("SELECT state, reason FROM notice WHERE envelope_id = '{id}'");
                let rows = lines(&served.url, &select).await;
                let expected = match kept {
                    Kept::Quarantined(reason) => format!("quarantined {reason}"),
                    _ => "ignored".to_owned(),
                };
                assert!(
                    rows.len() == 1 && rows[0].starts_with(&expected),
                    "{name}: {rows:?}"
                );
            }
            other => panic!("{name}: {:?} without a refund", other.0),
        }
        ran += 1;
    }
    assert_eq!(ran, 108, "vectors");
    for served in services {
        let books = books(&served.database.database).await;
        if !shop_knows {
            assert_eq!(
                books.ledger_rows, 0,
                "nothing is booked of what the shop does not know"
            );
        }
        served.stop().await;
    }
}

/// Four deliveries of one refund: the same body signed again, encrypted again, under another id.
async fn check_redelivery(open: impl AsyncFn() -> TestDatabase, shop_knows: bool) {
    let all = [
        "v3-redelivery-1",
        "v3-redelivery-2-same-body",
        "v3-redelivery-3-encrypted-again",
        "v3-redelivery-4-new-id",
    ]
    .map(vector);
    let served = Served::start(open().await, &all[0].keys, "").await;
    let refund = all[0].expect.refund.as_ref().unwrap();
    if shop_knows {
        served.shop_writes(refund).await;
    }
    for vector in &all {
        assert_eq!(served.send(vector).await.status, 204, "{}", vector.name);
    }
    until("four deliveries of one row", || async {
        lines(&served.url, "SELECT deliveries FROM notice").await == ["4"]
    })
    .await;
    assert_eq!(stored(&served.url).await, (1, 1));
    let state = if shop_knows { "done" } else { "parked" };
    check_fact(&served, "redelivery", refund, state).await;
    if shop_knows {
        check_applied(&served, refund).await;
    }
    served.stop().await;
}

/// ABNORMAL and SUCCESS of one refund, in the given order of arrival.
async fn check_two_states(open: impl AsyncFn() -> TestDatabase, abnormal_first: bool) {
    let mut both = ["v3-abnormal-then-success-1", "v3-abnormal-then-success-2"].map(vector);
    // both arrive within their window: the later one is held back, not the earlier one sent early
    let expected = if abnormal_first {
        ["ABNORMAL done", "SUCCESS done"]
    } else {
        both.reverse();
        ["SUCCESS done", "ABNORMAL superseded"]
    };
    let served = Served::start(open().await, &both[0].keys, "").await;
    let refund = both[0].expect.refund.as_ref().unwrap();
    served.shop_writes(refund).await;
    for (vector, after) in both.iter().zip(1..) {
        assert_eq!(served.send(vector).await.status, 204, "{}", vector.name);
        until(
            &format!("the states are {:?}", &expected[..after]),
            || async { served.states(refund).await == expected[..after] },
        )
        .await;
    }
    let success = both.iter().find_map(|vector| {
        let refund = vector.expect.refund.as_ref().unwrap();
        (refund.status == "SUCCESS").then_some(refund)
    });
    check_applied(&served, success.unwrap()).await;
    served.stop().await;
}

#[tokio::test]
async fn every_vector_is_answered_and_applied_sqlite() {
    // Aim: notices that others wrote and checked come to what the contract says, in answer and
    // rows. Method: all 108 over the real listener, byte for byte, at their own time; the shop's
    // rows are there.
    check_all(TestDatabase::sqlite, true).await;
}

#[tokio::test]
async fn every_vector_is_answered_and_applied_mariadb() {
    // Aim and method as above, on MariaDB.
    check_all(TestDatabase::mariadb, true).await;
}

#[tokio::test]
async fn every_vector_is_kept_while_the_shop_knows_no_refund_sqlite() {
    // Aim: the answers do not depend on the shop's rows; facts wait in `parked`. Method: as above,
    // without the shop's rows.
    check_all(TestDatabase::sqlite, false).await;
}

#[tokio::test]
async fn every_vector_is_kept_while_the_shop_knows_no_refund_mariadb() {
    // Aim and method as above, on MariaDB.
    check_all(TestDatabase::mariadb, false).await;
}

#[tokio::test]
async fn redeliveries_are_one_row_sqlite() {
    // Aim: one fact is one row and one effect, whatever differs around it. Method: four vectors of
    // one refund, with and without the shop's row; the second way is answered without the cache.
    check_redelivery(TestDatabase::sqlite, true).await;
    check_redelivery(TestDatabase::sqlite, false).await;
}

#[tokio::test]
async fn redeliveries_are_one_row_mariadb() {
    // Aim and method as above, on MariaDB.
    check_redelivery(TestDatabase::mariadb, true).await;
    check_redelivery(TestDatabase::mariadb, false).await;
}

#[tokio::test]
async fn abnormal_and_success_end_in_success_in_either_order_sqlite() {
    // Aim: the order of arrival does not decide. Method: two vectors of one refund, both orders.
    check_two_states(TestDatabase::sqlite, true).await;
    check_two_states(TestDatabase::sqlite, false).await;
}

#[tokio::test]
async fn abnormal_and_success_end_in_success_in_either_order_mariadb() {
    // Aim and method as above, on MariaDB.
    check_two_states(TestDatabase::mariadb, true).await;
    check_two_states(TestDatabase::mariadb, false).await;
}

#[tokio::test]
async fn a_million_brackets_are_not_parsed_before_the_signature_fits() {
    // Aim: nothing unproven reaches the JSON parser. Method: the limit raised over the body's
    // megabyte, so that the signature is what refuses it.
    let vector = vector("v3-deep-json-unsigned");
    let database = TestDatabase::sqlite().await;
    let served = Served::start(database, &vector.keys, "body_bytes_max = 2097152").await;
    let answered = served.send(&vector).await;
    assert_eq!(answered.status, 401);
    assert_eq!(answered.fail_message(), "signature is wrong");
    assert_eq!(stored(&served.url).await, (0, 0));
    served.stop().await;
}

#[test]
fn the_index_names_every_vector_once() {
    // Aim: no file lies there unread. Method: the folder's names beside the index's and beside the
    // list of differences.
    let mut named: Vec<String> = vectors().into_iter().map(|vector| vector.name).collect();
    named.sort();
    let mut there: Vec<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|file| file.strip_suffix(".json").map(str::to_owned))
        .filter(|name| name != "index")
        .collect();
    there.sort();
    assert_eq!(named, there);
    for (name, ..) in DIFFERS {
        assert!(named.iter().any(|known| known == name), "{name}");
    }
}

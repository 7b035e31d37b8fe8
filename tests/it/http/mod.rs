//! The answers over real HTTP, by the field cases that they come from (`A01` and so on: faults that
//! other people met in systems like this one).

mod answers;
mod bodies;
mod connections;
mod facts;
mod headers;
mod keys;
mod never_panics;
mod routes;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use platform::{Delivery, Envelope, Merchant, RefundNotice, Seeded, SigningKey};
use refund_batcher::ports::Clock;

use crate::support::{self, MCHID, TestApp, TestClock, TestDatabase, merchant};
use crate::wire::{self, Answered};

/// The time of these tests, in Unix seconds.
const NOW: i64 = 1_789_000_000;
const PATH: &str = "/notify/wechat/v3";
/// No answer may come later.
const LATEST: Duration = Duration::from_secs(5);

/// A second merchant with keys of its own, configured where a test says so.
const SECOND: &str = "1900000002";
const SECOND_SERIAL: &str = "PUB_KEY_ID_0119000000022026000000000002";
const SECOND_API_V3_KEY: &str = "another-test-apiv3-key-32-bytes!";

/// A service on SQLite whose clock stands at [`NOW`].
struct Site {
    database: TestDatabase,
    app: TestApp,
    clock: Arc<TestClock>,
}

impl Site {
    async fn start() -> Site {
        Site::with("", "", &[]).await
    }

    /// With more in the section `[http]`, more at the end, and more files beside.
    async fn with(http: &str, more: &str, files: &[(&str, &str)]) -> Site {
        let database = TestDatabase::sqlite().await;
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let text = support::configuration(folder.path(), &database.url, more);
        let text = text.replace("[http]\n", &format!("[http]\n{http}\n"));
        let clock = TestClock::at(NOW * 1000);
        let app = TestApp::from_text(&text, folder, Arc::clone(&clock) as Arc<dyn Clock>).await;
        Site {
            database,
            app,
            clock,
        }
    }

    /// The same with the second merchant.
    async fn with_second() -> Site {
        let more = format!(
            "[[merchants]]\nmchid = '{SECOND}'\napi_v3_key_files = ['second.apiv3']\n\
             [[merchants.verify_keys]]\nserial = '{SECOND_SERIAL}'\nfile = 'second.pem'\n"
        );
        let key = second();
        let files = [
            ("second.apiv3", SECOND_API_V3_KEY),
            ("second.pem", key.key.public_key_pem()),
        ];
        Site::with("", &more, &files).await
    }

    async fn post_to(&self, path: &str, delivery: &Delivery) -> Answered {
        wire::post(&self.app, path, &delivery.headers, &delivery.body).await
    }

    async fn post(&self, delivery: &Delivery) -> Answered {
        self.post_to(PATH, delivery).await
    }

    /// Posts, and checks the status and the message: of 204 none, of others exactly this one.
    async fn check(&self, case: &str, delivery: &Delivery, status: u16, message: &str) {
        let answered = self.post(delivery).await;
        check_answer(case, &answered, status, message);
    }

    /// Lines of a select.
    async fn lines(&self, select: &str) -> Vec<String> {
        wire::lines(&self.database.url, select).await
    }

    /// Rows in `notice`, `notice_raw` and `refund_ledger`.
    async fn counts(&self) -> String {
        wire::counts(&self.database.url).await
    }

    /// State and reason of each notice, oldest first.
    async fn states(&self) -> Vec<String> {
        self.lines("SELECT state, reason FROM notice ORDER BY id")
            .await
    }

    async fn stop(self) {
        assert!(self.app.app.stop().await, "everything is emptied");
    }
}

fn check_answer(case: &str, answered: &Answered, status: u16, message: &str) {
    assert_eq!(answered.status, status, "{case}: {answered:?}");
    if status == 204 {
        assert_eq!((message, &*answered.body), ("", ""), "{case}");
    } else {
        assert_eq!(answered.fail_message(), message, "{case}");
    }
    assert!(answered.took < LATEST, "{case}: {:?}", answered.took);
}

fn second() -> Merchant {
    static KEY: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(new_key);
    let key = SigningKey::from_pkcs8(SECOND_SERIAL, &KEY).unwrap();
    Merchant::new(SECOND, SECOND_API_V3_KEY, key).unwrap()
}

/// A private key of nobody's, as PKCS#8 DER.
fn new_key() -> Vec<u8> {
    SigningKey::public_key("any").unwrap().pkcs8_der().to_vec()
}

/// Another nonce, envelope id and so on each time.
fn seeded() -> Seeded {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    Seeded::new(COUNT.fetch_add(1, Ordering::Relaxed))
}

fn sign(body: impl Into<Vec<u8>>) -> Delivery {
    sign_at(body, NOW)
}

fn sign_at(body: impl Into<Vec<u8>>, unix_s: i64) -> Delivery {
    merchant().sign(body.into(), unix_s, &seeded().text(32))
}

/// The body of a notice with this plaintext.
fn seal(event_type: &str, plaintext: &str) -> Vec<u8> {
    let mut seeded = seeded();
    let envelope = Envelope {
        id: seeded.uuid(),
        create_time_ms: NOW * 1000,
        event_type: event_type.to_owned(),
        summary: "退款".to_owned(),
        original_type: "refund".to_owned(),
        associated_data: "refund".to_owned(),
        nonce: seeded.gcm_nonce(),
        plaintext: plaintext.to_owned(),
    };
    envelope.seal(merchant().api_v3_key())
}

/// A notice about a refund of 100 of 300 fen, and its body.
fn refund(out_refund_no: &str, status: &str) -> RefundNotice {
    let mut notice = support::refund_notice(out_refund_no, status, 100, 300);
    notice.success_time_ms = (status == "SUCCESS").then_some((NOW - 60) * 1000);
    notice
}

fn body_of(notice: &RefundNotice) -> Vec<u8> {
    seal(&format!("REFUND.{}", notice.status), &notice.plaintext())
}

/// A genuine SUCCESS of a refund of 100 of 300 fen.
fn genuine(out_refund_no: &str) -> Delivery {
    sign(body_of(&refund(out_refund_no, "SUCCESS")))
}

/// The plaintext of a refund in other words: `status` and `more` are members as JSON writes them.
fn plaintext(out_refund_no: &str, status: &str, more: &str) -> String {
    format!(
        "{{\"mchid\":\"{MCHID}\",\"out_refund_no\":\"{out_refund_no}\",\
         \"out_trade_no\":\"T-{out_refund_no}\",{status}\"amount\":{{\"refund\":100,\"total\":300}}{more}}}"
    )
}

/// The same delivery with header names or values changed; nothing removes the header.
fn altered(
    delivery: &Delivery,
    change: impl Fn(&str, &str) -> Option<(String, String)>,
) -> Delivery {
    let mut altered = delivery.clone();
    altered.headers = delivery
        .headers
        .iter()
        .filter_map(|(name, value)| change(name, value))
        .collect();
    altered
}

/// The same delivery with another value of one header.
fn with_header(delivery: &Delivery, name: &str, value: &str) -> Delivery {
    let value_of = |n: &str, v: &str| if n == name { value } else { v }.to_owned();
    altered(delivery, |n, v| Some((n.to_owned(), value_of(n, v))))
}

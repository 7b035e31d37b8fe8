//! Notices whose resource does not open: kept once, asked for again, and found when the key is right.

use platform::Delivery;
use refund_batcher::adapters::clock::SystemClock;
use refund_batcher::core::fact::{Provider, envelope_digest};
use refund_batcher::core::notice::Content;
use refund_batcher::core::refund::RefundStatus::Success;
use refund_batcher::ports::Clock;

use super::once::decide_together;
use crate::support::raw::Raw;
use crate::support::stage::{Stage, fact, intake};
use crate::support::{TestApp, TestDatabase, books, configuration, refund_notice, shop_writes};

on_each_database!(
    what_does_not_open_is_stored_once,
    a_resend_takes_the_row_over_when_the_key_is_right,
    the_row_is_superseded_when_its_fact_is_stored_elsewhere,
    copies_in_two_envelopes_that_wait_together_leave_no_row_waiting,
    what_opens_to_something_else_leaves_no_row_waiting,
);

const UNOPENED: &str = "quarantined resource does not open";

/// A service on the stage's database that holds a wrong `APIv3` key.
async fn with_wrong_key(stage: &Stage) -> TestApp {
    let folder = tempfile::tempdir().unwrap();
    let text = configuration(folder.path(), &stage.db.url, "");
    std::fs::write(
        folder.path().join("merchant.apiv3"),
        "another-apiv3-key-of-32-bytes!!!",
    )
    .unwrap();
    TestApp::from_text(&text, folder, stage.clock.clone()).await
}

/// Sends a delivery; gives the status of the answer.
async fn send(stage: &Stage, app: &TestApp, delivery: &Delivery) -> u16 {
    stage
        .send(&app.notify_url(), delivery)
        .await
        .status
        .expect("an answer")
}

/// State, reason and digest of every notice, in the order of arrival.
async fn rows(stage: &Stage) -> Vec<String> {
    stage
        .lines("SELECT state, reason FROM notice ORDER BY id")
        .await
}

async fn what_does_not_open_is_stored_once(db: TestDatabase) {
    // Aim: 500, so that WeChat Pay sends again; one row and one raw copy however often it does; and
    // nothing read into it.
    // Method: the same envelope three times, then another one of the same fact.
    let stage = Stage::over(db).await;
    let wrong = with_wrong_key(&stage).await;
    let notice = refund_notice("R1", "SUCCESS", 100, 300);
    let envelope = stage.seal(&notice);
    for _ in 0..3 {
        assert_eq!(send(&stage, &wrong, &envelope).await, 500);
        assert_eq!(rows(&stage).await, [UNOPENED]);
        assert_eq!(stage.int("SELECT COUNT(*) FROM notice_raw").await, 1);
    }
    assert_eq!(
        stage
            .int("SELECT COUNT(*) FROM notice WHERE out_refund_no IS NULL AND refund_fen IS NULL")
            .await,
        1
    );
    crate::support::until("deliveries are counted", || async {
        stage.int("SELECT deliveries FROM notice").await == 3
    })
    .await;
    assert_eq!(send(&stage, &wrong, &stage.seal(&notice)).await, 500);
    assert_eq!(rows(&stage).await, [UNOPENED, UNOPENED]);
}

async fn a_resend_takes_the_row_over_when_the_key_is_right(db: TestDatabase) {
    // Aim: the unopened row becomes the fact's row, and is decided: booked, or parked where the
    // refund is not there yet.
    // Method: stored by a service with a wrong key, resent to one with the right key, twice.
    let stage = Stage::over(db).await;
    let wrong = with_wrong_key(&stage).await;
    shop_writes(&stage.db.database, "R1", 100, 300).await;
    for (number, state) in [
        ("R1", "done -"),
        ("R2", "parked refund is not known here yet"),
    ] {
        let envelope = stage.seal(&refund_notice(number, "SUCCESS", 100, 300));
        assert_eq!(send(&stage, &wrong, &envelope).await, 500);
        let ids = format!(
            "SELECT id FROM notice WHERE state = 'quarantined' OR out_refund_no = '{number}'"
        );
        let id = stage.int(&ids).await;
        for _ in 0..2 {
            assert_eq!(send(&stage, &stage.app, &envelope).await, 204);
            stage.until_notice(number, "SUCCESS", state).await;
        }
        assert_eq!(stage.int(&ids).await, id);
        let digest = format!("SELECT LOWER(HEX(digest)) FROM notice WHERE id = {id}");
        let expected = format!("{:?}", fact(number, Success, 100, 300).digest());
        assert_eq!(stage.lines(&digest).await, [expected]);
    }
    stage.assert_booked_once("R1", 100).await;
    assert_eq!(stage.int("SELECT COUNT(*) FROM notice").await, 2);
}

async fn the_row_is_superseded_when_its_fact_is_stored_elsewhere(db: TestDatabase) {
    // Aim: when another envelope brought the fact meanwhile, the unopened row ends superseded, and
    // the fact stays booked once; whether the service remembers the fact or not.
    // Method: unopened; another envelope of the fact to a service with the right key; then the first
    // envelope again, to a service that has just begun, and to the one that stored the fact.
    let stage = Stage::over(db).await;
    let wrong = with_wrong_key(&stage).await;
    let fresh = stage.another_app("").await;
    for (number, resent_to) in [("R1", &fresh), ("R2", &stage.app)] {
        shop_writes(&stage.db.database, number, 100, 300).await;
        let notice = refund_notice(number, "SUCCESS", 100, 300);
        let first = stage.seal(&notice);
        assert_eq!(send(&stage, &wrong, &first).await, 500);
        assert_eq!(stage.deliver(&notice).await, 204);
        stage.until_notice(number, "SUCCESS", "done -").await;
        for _ in 0..2 {
            assert_eq!(send(&stage, resent_to, &first).await, 204);
        }
        crate::support::until(
            &format!("the unopened row of {number} is superseded"),
            || async {
                rows(&stage)
                    .await
                    .iter()
                    .all(|row| row == "done -" || row == "superseded opened elsewhere")
            },
        )
        .await;
        stage.assert_booked_once(number, 100).await;
    }
    assert_eq!(stage.int("SELECT COUNT(*) FROM notice").await, 4);
}

async fn copies_in_two_envelopes_that_wait_together_leave_no_row_waiting(db: TestDatabase) {
    // Aim: two envelopes of one fact at the same moment: the one that waits unopened is looked up too.
    // Method: store it unopened; then both wait before the committer starts, in both orders.
    for (number, unopened_first) in [("R1", true), ("R2", false)] {
        shop_writes(&db.database, number, 100, 300).await;
        let plain = intake(fact(number, Success, 100, 300), SystemClock.now());
        let mut unopened = plain.clone();
        unopened.content = Content::Unopened;
        unopened.digest = envelope_digest(Provider::Wechat, &plain.mchid, &plain.envelope_id);
        let mut opened = plain.clone();
        opened.unopened_as = vec![(plain.mchid.clone(), unopened.digest)];
        let mut other = plain;
        other.envelope_id = format!("another envelope of {number}");
        other.unopened_as = vec![(
            other.mchid.clone(),
            envelope_digest(Provider::Wechat, &other.mchid, &other.envelope_id),
        )];
        decide_together(&db, vec![unopened]).await;
        let both = if unopened_first {
            vec![opened, other]
        } else {
            vec![other, opened]
        };
        decide_together(&db, both).await;
        let mut raw = Raw::open(&db.url).await;
        let waiting = raw
            .lines("SELECT id FROM notice WHERE state = 'quarantined'")
            .await;
        assert_eq!(waiting, Vec::<String>::new(), "{number}");
    }
    assert_eq!(books(&db.database).await.ledger_rows, 2);
}

async fn what_opens_to_something_else_leaves_no_row_waiting(db: TestDatabase) {
    // Aim: an unopened row whose plaintext has no effect, or cannot be read, does not wait for ever
    // for a key.
    // Method: such envelopes to a service with a wrong key, then to one with the right key, twice.
    let stage = Stage::over(db).await;
    let wrong = with_wrong_key(&stage).await;
    let processing = stage.seal(&refund_notice("R1", "PROCESSING", 100, 300));
    let unreadable = stage.seal(&refund_notice("R 2", "SUCCESS", 100, 300));
    let cases = [
        (processing, "superseded opened, no effect here"),
        (unreadable, "quarantined out_refund_no is garbled"),
    ];
    for (envelope, expected) in cases {
        assert_eq!(send(&stage, &wrong, &envelope).await, 500);
        for _ in 0..2 {
            assert_eq!(send(&stage, &stage.app, &envelope).await, 204);
            let all = rows(&stage).await;
            assert_eq!(all.last().map(String::as_str), Some(expected));
        }
    }
    assert_eq!(stage.int("SELECT COUNT(*) FROM notice").await, 2);
}

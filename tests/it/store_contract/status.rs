//! Statuses in every order, repeats that differ, and a ledger that holds a refund already.

use refund_batcher::adapters::clock::SystemClock;
use refund_batcher::core::decide::Outcome;
use refund_batcher::core::notice::{NoticeKey, State};
use refund_batcher::core::refund::RefundStatus::Success;
use refund_batcher::core::types::RefundId;
use refund_batcher::ports::Clock;

use crate::support::raw::Raw;
use crate::support::stage::{DECIDE, PLAN, Stage, fact, intake};
use crate::support::{TestDatabase, books, refund_notice, shop_writes};

on_each_database!(
    two_statuses_of_one_refund_one_after_the_other,
    a_batch_with_a_fact_that_the_ledger_holds_already,
    a_repeat_that_differs_outside_the_digest,
    a_waiting_fact_takes_the_content_that_agrees,
);

async fn two_statuses_of_one_refund_one_after_the_other(db: TestDatabase) {
    // Aim: allowed transitions alone decide; nothing leaves a final state.
    // Method: each pair of statuses in its order, each notice twice; read rows, refund and ledger.
    let stage = Stage::over(db).await;
    let mut count = 0;
    let mut check =
        async |first: &str, second: &str, expected: &str, refund: &str, booked: usize| {
            count += 1;
            let number = format!("R{count}");
            shop_writes(&stage.db.database, &number, 100, 300).await;
            for (status, state) in [
                (first, "done -"),
                (second, expected),
                (first, "done -"),
                (second, expected),
            ] {
                assert_eq!(
                    stage
                        .deliver(&refund_notice(&number, status, 100, 300))
                        .await,
                    204
                );
                stage.until_notice(&number, status, state).await;
            }
            assert_eq!(
                stage.refund_status(&number).await,
                refund,
                "{first} then {second}"
            );
            assert_eq!(
                stage.ledger(&number).await.len(),
                booked,
                "{first} then {second}"
            );
            stage.until_deliveries(&number, 4).await;
        };
    check("ABNORMAL", "SUCCESS", "done -", "SUCCESS", 1).await;
    check("ABNORMAL", "CLOSED", "done -", "CLOSED", 0).await;
    check(
        "SUCCESS",
        "ABNORMAL",
        "superseded refund is final already",
        "SUCCESS",
        1,
    )
    .await;
    check(
        "CLOSED",
        "ABNORMAL",
        "superseded refund is final already",
        "CLOSED",
        0,
    )
    .await;
    check(
        "SUCCESS",
        "CLOSED",
        "quarantined CLOSED after SUCCESS",
        "SUCCESS",
        1,
    )
    .await;
    check(
        "CLOSED",
        "SUCCESS",
        "quarantined SUCCESS after CLOSED",
        "CLOSED",
        0,
    )
    .await;
    books(&stage.db.database).await;
}

/// Stores three facts of three orders by one group; gives their keys.
async fn three_pending(db: &TestDatabase) -> Vec<NoticeKey> {
    let mut group = Vec::new();
    for number in ["R1", "R2", "R3"] {
        shop_writes(&db.database, number, 100, 300).await;
        group.push(intake(fact(number, Success, 100, 300), SystemClock.now()));
    }
    let verdicts = db
        .database
        .store()
        .commit(&group, SystemClock.now(), DECIDE)
        .await
        .unwrap();
    verdicts
        .into_iter()
        .map(|verdict| verdict.key.unwrap())
        .collect()
}

async fn a_batch_with_a_fact_that_the_ledger_holds_already(db: TestDatabase) {
    // Aim: a fact in the ledger with the same money adds nothing and is done; with other money it is
    // dead; its neighbours are booked either way.
    // Method: R2 stands in the ledger by hand, its order's sum with it; flush three at once, twice.
    let cases = [
        ("CNY", "T-R2", 100, None),
        ("CNY", "T-R2", 99, Some(())),
        ("USD", "T-R2", 100, Some(())),
    ];
    for (currency, order, fen, dead) in cases {
        let keys = three_pending(&db).await;
        let mut raw = Raw::open(&db.url).await;
        raw.run(&format!(
            "INSERT INTO refund_ledger (mchid, out_refund_no, out_trade_no, refund_fen, currency, notice_id, created_at_ms) \
             SELECT mchid, 'R2', '{order}', {fen}, '{currency}', 0, 0 FROM orders WHERE out_trade_no = 'T-R2'"
        ))
        .await;
        raw.run(&format!("UPDATE orders SET refunded_fen = {fen}, refund_status = 'PARTIAL' WHERE out_trade_no = 'T-R2'"))
            .await;
        let store = db.database.store();
        let flushed = store.flush(&keys, SystemClock.now(), PLAN).await.unwrap();
        assert_eq!(
            (flushed.done, flushed.ledger_rows),
            (if dead.is_some() { 2 } else { 3 }, 2)
        );
        let reasons: Vec<&str> = flushed.dead.iter().map(|(_, why)| why.as_ref()).collect();
        let expected: &[&str] = match dead {
            Some(()) => &["refund_ledger holds this refund with other money"],
            None => &[],
        };
        assert_eq!(reasons, expected);
        let again = store.flush(&keys, SystemClock.now(), PLAN).await.unwrap();
        assert_eq!((again.done, again.ledger_rows, again.busy.len()), (0, 0, 0));
        let sums = raw
            .lines("SELECT refunded_fen FROM orders ORDER BY out_trade_no")
            .await;
        assert_eq!(sums, ["100".to_owned(), fen.to_string(), "100".to_owned()]);
        books(&db.database).await;
        for table in [
            "notice_raw",
            "notice",
            "refund_ledger",
            "refund_order",
            "orders",
        ] {
            raw.run(&format!("DELETE FROM {table}")).await;
        }
    }
}

async fn a_repeat_that_differs_outside_the_digest(db: TestDatabase) {
    // Aim: other content of a stored fact is counted, kept raw and alerted, and changes nothing.
    // Method: deliver, then deliver with another refund_id, total or time; once through the service,
    // which must not take it for the repeat it remembers, and once on the store, for the verdict.
    let stage = Stage::over(db).await;
    shop_writes(&stage.db.database, "R1", 100, 300).await;
    let notice = refund_notice("R1", "SUCCESS", 100, 300);
    stage.deliver_together(std::slice::from_ref(&notice)).await;
    stage.until_notice("R1", "SUCCESS", "done -").await;
    let mut others = [notice.clone(), notice.clone(), notice.clone(), notice];
    others[0].refund_id = "50-other".to_owned();
    others[1].total_fen = 299;
    others[2].success_time_ms = Some(1_789_000_000_000);
    others[3].payer_refund_fen = Some(1);
    for (at, other) in others.iter().enumerate() {
        stage.deliver_together(std::slice::from_ref(other)).await;
        assert_eq!(
            stage.int("SELECT COUNT(*) FROM notice_raw").await,
            i64::try_from(at).unwrap() + 2
        );
    }
    // what differed is not remembered: in the same envelope it differs again
    let again = stage.seal(&others[3]);
    for raws in [6, 7] {
        let url = stage.app.notify_url();
        assert_eq!(stage.send_together(vec![(url, again.clone())]).await, [204]);
        assert_eq!(stage.int("SELECT COUNT(*) FROM notice_raw").await, raws);
    }
    stage.until_deliveries("R1", 7).await;
    stage.assert_booked_once("R1", 100).await;
    assert_eq!(
        stage
            .lines("SELECT refund_id, total_fen, success_at_ms FROM notice")
            .await,
        ["50R1 300 -"]
    );
    // the raw rows stand under the one notice
    let apart = "SELECT COUNT(*) FROM notice_raw WHERE notice_id NOT IN (SELECT id FROM notice)";
    assert_eq!(stage.int(apart).await, 0);

    let mut other = fact("R1", Success, 100, 300);
    other.refund_id = Some(RefundId::parse("50-other").unwrap());
    let group = [intake(other, SystemClock.now())];
    let verdicts = stage
        .db
        .database
        .store()
        .commit(&group, SystemClock.now(), DECIDE)
        .await
        .unwrap();
    assert_eq!(
        (verdicts[0].outcome, verdicts[0].state),
        (Outcome::RepeatDiffers, State::Done)
    );
    assert!(verdicts[0].alert && verdicts[0].is_stored_before);
}

async fn a_waiting_fact_takes_the_content_that_agrees(db: TestDatabase) {
    // Aim: a quarantined fact is decided by what the resend says; the row then holds the content
    // that won, and one that loses too leaves it alone.
    // Method: a total that contradicts, another that does too, then the right one.
    let stage = Stage::over(db).await;
    shop_writes(&stage.db.database, "R1", 100, 300).await;
    for total_fen in [299, 298] {
        stage
            .deliver_together(&[refund_notice("R1", "SUCCESS", 100, total_fen)])
            .await;
        stage
            .assert_notice(
                "R1",
                "SUCCESS",
                "quarantined amount.total differs from refund_order",
            )
            .await;
        assert_eq!(stage.int("SELECT total_fen FROM notice").await, 299);
    }
    assert_eq!(stage.refund_status("R1").await, "PROCESSING");
    stage
        .deliver_together(&[refund_notice("R1", "SUCCESS", 100, 300)])
        .await;
    stage.until_notice("R1", "SUCCESS", "done -").await;
    stage.assert_booked_once("R1", 100).await;
    assert_eq!(stage.int("SELECT total_fen FROM notice").await, 300);
    assert_eq!(stage.int("SELECT COUNT(*) FROM notice_raw").await, 3);
    stage.until_deliveries("R1", 3).await;
}

//! The shop is late, or wrong at first: what is stored waits, and is decided again when it agrees.

use crate::support::stage::Stage;
use crate::support::{
    TestDatabase, refund_notice, shop_writes, shop_writes_order, shop_writes_refund,
};

const ABSENT: &str = "parked refund is not known here yet";

on_each_database!(
    a_resend_finds_a_refund_that_appeared_late,
    the_relay_finds_a_refund_that_appeared_late,
    the_relay_and_a_resend_find_it_at_the_same_moment,
    a_wrong_amount_waits_until_the_shop_corrects_its_row,
    a_status_that_the_shop_set_itself_is_booked_once,
    an_order_that_appears_later_is_booked_then,
    an_order_that_never_appears_uses_up_the_attempts,
    a_refund_that_never_appears_becomes_an_orphan,
);

async fn a_resend_finds_a_refund_that_appeared_late(db: TestDatabase) {
    // Aim: a parked fact is applied by the first resend after its row has appeared, once.
    // Method: the clock stands still, so the relay's turn never comes; resend, and resend again.
    let stage = Stage::over(db).await;
    let notice = refund_notice("R1", "SUCCESS", 100, 300);
    assert_eq!(stage.deliver(&notice).await, 204);
    stage.assert_notice("R1", "SUCCESS", ABSENT).await;
    // a resend that still finds nothing changes nothing
    assert_eq!(stage.deliver(&notice).await, 204);
    stage.assert_notice("R1", "SUCCESS", ABSENT).await;
    shop_writes(&stage.db.database, "R1", 100, 300).await;
    for _ in 0..2 {
        assert_eq!(stage.deliver(&notice).await, 204);
        stage.until_notice("R1", "SUCCESS", "done -").await;
        stage.assert_booked_once("R1", 100).await;
    }
    stage.until_deliveries("R1", 4).await;
}

async fn the_relay_finds_a_refund_that_appeared_late(db: TestDatabase) {
    // Aim: a parked fact is applied without a resend, about as late as its row was.
    // Method: the row appears, the clock moves past the second that a fresh fact is parked for.
    let stage = Stage::over(db).await;
    let notice = refund_notice("R1", "SUCCESS", 100, 300);
    assert_eq!(stage.deliver(&notice).await, 204);
    stage.assert_notice("R1", "SUCCESS", ABSENT).await;
    shop_writes(&stage.db.database, "R1", 100, 300).await;
    stage.clock.advance(1_001);
    stage.until_notice("R1", "SUCCESS", "done -").await;
    stage.assert_booked_once("R1", 100).await;
    assert_eq!(stage.deliver(&notice).await, 204);
    stage.assert_booked_once("R1", 100).await;
    stage.until_deliveries("R1", 2).await;
}

async fn the_relay_and_a_resend_find_it_at_the_same_moment(db: TestDatabase) {
    // Aim: whichever of the two comes first, the fact is applied once.
    // Method: many parked facts; rows and due time come, and all are resent at the same moment.
    let stage = Stage::over(db).await;
    let numbers: Vec<String> = (0..24).map(|n| format!("R{n}")).collect();
    let notices: Vec<_> = numbers
        .iter()
        .map(|no| refund_notice(no, "SUCCESS", 100, 300))
        .collect();
    stage.deliver_together(&notices).await;
    for number in &numbers {
        shop_writes(&stage.db.database, number, 100, 300).await;
    }
    stage.clock.advance(1_001);
    stage.deliver_together(&notices).await;
    for number in &numbers {
        stage.until_notice(number, "SUCCESS", "done -").await;
        stage.assert_booked_once(number, 100).await;
    }
}

async fn a_wrong_amount_waits_until_the_shop_corrects_its_row(db: TestDatabase) {
    // Aim: a fact that contradicts our row touches nothing, and a resend applies it once the row agrees.
    // Method: one column of the row is wrong at first; deliver, correct it, deliver twice.
    let stage = Stage::over(db).await;
    let cases = [
        (
            "R1",
            "refund_fen = 200",
            "refund_fen = 100",
            "amount.refund differs from refund_order",
        ),
        (
            "R2",
            "total_fen = 299",
            "total_fen = 300",
            "amount.total differs from refund_order",
        ),
        (
            "R3",
            "currency = 'USD'",
            "currency = 'CNY'",
            "currency differs from refund_order",
        ),
        (
            "R4",
            "out_trade_no = 't-R4'",
            "out_trade_no = 'T-R4'",
            "out_trade_no differs from refund_order",
        ),
        (
            "R5",
            "transaction_id = '7'",
            "transaction_id = NULL",
            "transaction_id differs from refund_order",
        ),
        (
            "R6",
            "refund_id = '7'",
            "refund_id = '50R6'",
            "refund_id differs from refund_order",
        ),
        (
            "R7",
            "status = 'NEW'",
            "status = 'PROCESSING'",
            "refund_order.status is unknown",
        ),
    ];
    for (number, wrong, right, reason) in cases {
        shop_writes(&stage.db.database, number, 100, 300).await;
        let set = async |columns: &str| {
            let text =
                format!("UPDATE refund_order SET {columns} WHERE out_refund_no = '{number}'");
            assert_eq!(stage.run(&text).await, 1);
        };
        set(wrong).await;
        let before = stage.refund_status(number).await;
        let notice = refund_notice(number, "SUCCESS", 100, 300);
        for _ in 0..2 {
            assert_eq!(stage.deliver(&notice).await, 204);
            stage
                .assert_notice(number, "SUCCESS", &format!("quarantined {reason}"))
                .await;
            assert_eq!(stage.refund_status(number).await, before);
        }
        set(right).await;
        for _ in 0..2 {
            assert_eq!(stage.deliver(&notice).await, 204);
            stage.until_notice(number, "SUCCESS", "done -").await;
            stage.assert_booked_once(number, 100).await;
        }
        stage.until_deliveries(number, 4).await;
    }
}

async fn a_status_that_the_shop_set_itself_is_booked_once(db: TestDatabase) {
    // Aim: money follows the fact, not the move of the status: the ledger is written exactly once.
    // Method: the shop sets SUCCESS before the notice, after it, and while it is parked.
    let stage = Stage::over(db).await;
    let set = async |number: &str| {
        stage
            .run(&format!(
                "UPDATE refund_order SET status = 'SUCCESS' WHERE out_refund_no = '{number}'"
            ))
            .await
    };
    for (number, before, after, parked) in [
        ("R1", true, false, false),
        ("R2", false, true, false),
        ("R3", false, false, true),
    ] {
        let notice = refund_notice(number, "SUCCESS", 100, 300);
        if parked {
            assert_eq!(stage.deliver(&notice).await, 204);
        }
        shop_writes(&stage.db.database, number, 100, 300).await;
        if before || parked {
            set(number).await;
        }
        assert_eq!(stage.deliver(&notice).await, 204);
        stage.until_notice(number, "SUCCESS", "done -").await;
        if after {
            set(number).await;
        }
        assert_eq!(stage.deliver(&notice).await, 204);
        stage.assert_booked_once(number, 100).await;
    }
}

async fn an_order_that_appears_later_is_booked_then(db: TestDatabase) {
    // Aim: a refund whose order is not there waits, and its money is booked when the order is.
    // Method: only the refund is written; deliver; write the order; let the clock run.
    let stage = Stage::over(db).await;
    shop_writes_refund(&stage.db.database, "R1", 100, 300).await;
    let notice = refund_notice("R1", "SUCCESS", 100, 300);
    assert_eq!(stage.deliver(&notice).await, 204);
    stage
        .until_notice("R1", "SUCCESS", "pending order is not known here")
        .await;
    assert_eq!(stage.refund_status("R1").await, "SUCCESS");
    assert_eq!(stage.int("SELECT attempts FROM notice").await, 1);
    shop_writes_order(&stage.db.database, "T-R1", 300).await;
    stage.until_notice_in_time("R1", "SUCCESS", "done -").await;
    assert_eq!(stage.deliver(&notice).await, 204);
    stage.assert_booked_once("R1", 100).await;
}

async fn an_order_that_never_appears_uses_up_the_attempts(db: TestDatabase) {
    // Aim: after `flush.attempts_max` attempts the notice is dead, with the reason, and no sooner.
    // Method: no order; let the clock run; read the attempts.
    let stage = Stage::with(db, "[flush]\nattempts_max = 3\n").await;
    shop_writes_refund(&stage.db.database, "R1", 100, 300).await;
    let notice = refund_notice("R1", "SUCCESS", 100, 300);
    assert_eq!(stage.deliver(&notice).await, 204);
    stage
        .until_notice_in_time("R1", "SUCCESS", "dead order is not known here")
        .await;
    assert_eq!(stage.int("SELECT attempts FROM notice").await, 3);
    // a resend leaves a dead notice as it is
    shop_writes_order(&stage.db.database, "T-R1", 300).await;
    assert_eq!(stage.deliver(&notice).await, 204);
    stage.until_deliveries("R1", 2).await;
    stage
        .assert_notice("R1", "SUCCESS", "dead order is not known here")
        .await;
    assert_eq!(stage.order("T-R1").await, "0 NONE");
}

async fn a_refund_that_never_appears_becomes_an_orphan(db: TestDatabase) {
    // Aim: a parked fact is looked at again ever more seldom, then handed to a person; and a refund
    // that appears even then is applied by a resend.
    // Method: advance past the first look, then past `relay.orphan_after_ms`, then write the row.
    let stage = Stage::over(db).await;
    let notice = refund_notice("R1", "SUCCESS", 100, 300);
    assert_eq!(stage.deliver(&notice).await, 204);
    let due = "SELECT due_at_ms - received_at_ms FROM notice";
    assert_eq!(stage.int(due).await, 1_000);
    stage.clock.advance(7_000);
    crate::support::until("it was looked at again", || async {
        stage.int(due).await == 14_000
    })
    .await;
    stage.clock.advance(86_400_000);
    stage
        .until_notice("R1", "SUCCESS", "quarantined orphan")
        .await;
    shop_writes(&stage.db.database, "R1", 100, 300).await;
    assert_eq!(stage.deliver(&notice).await, 204);
    stage.until_notice("R1", "SUCCESS", "done -").await;
    stage.assert_booked_once("R1", 100).await;
}

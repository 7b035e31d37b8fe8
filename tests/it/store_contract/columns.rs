//! What a statement leaves alone: other columns, other rows, and identifiers that only look alike.

use crate::support::stage::Stage;
use crate::support::{MCHID, TestDatabase, refund_notice, shop_writes};

on_each_database!(
    only_the_columns_that_are_ours_change,
    identifiers_that_are_equal_as_numbers_stay_apart,
    identifiers_that_differ_in_case_stay_apart,
    the_same_numbers_of_another_merchant_stay_apart,
);

const REFUNDS: &str = "SELECT id, mchid, out_refund_no, refund_id, out_trade_no, transaction_id, refund_fen, \
                       total_fen, currency, created_at_ms FROM refund_order ORDER BY id";
const ORDERS: &str = "SELECT id, mchid, out_trade_no, transaction_id, total_fen, status, currency, created_at_ms \
                      FROM orders ORDER BY id";

async fn only_the_columns_that_are_ours_change(db: TestDatabase) {
    // Aim: of the shop's rows only status, success_at_ms and the order's refunded money, status of
    // refunding and time of change move; rows beside them do not move at all.
    // Method: every column set to something of its own; deliver for the even ones; compare.
    let stage = Stage::over(db).await;
    let numbers: Vec<String> = (0..10).map(|n| format!("R{n}")).collect();
    for (n, number) in numbers.iter().enumerate() {
        shop_writes(&stage.db.database, number, 100, 300).await;
        stage
            .run(&format!(
                "UPDATE refund_order SET refund_id = '50{number}', transaction_id = '42{number}', created_at_ms = {n}, \
                 updated_at_ms = {n}, success_at_ms = {n} WHERE out_refund_no = '{number}'"
            ))
            .await;
        stage
            .run(&format!(
                "UPDATE orders SET transaction_id = '42{number}', status = 'SHIPPED-{n}', created_at_ms = {n}, \
                 updated_at_ms = {n} WHERE out_trade_no = 'T-{number}'"
            ))
            .await;
    }
    let (refunds, orders) = (stage.lines(REFUNDS).await, stage.lines(ORDERS).await);
    let ours =
        "SELECT out_refund_no, status, success_at_ms, updated_at_ms FROM refund_order ORDER BY id";
    let sums =
        "SELECT out_trade_no, refunded_fen, refund_status, updated_at_ms FROM orders ORDER BY id";
    // a time in the notice is taken over; without one the row keeps what it has
    let notices: Vec<_> = (0..10)
        .step_by(2)
        .map(|n| {
            let mut notice = refund_notice(&numbers[n], "SUCCESS", 100, 300);
            notice.success_time_ms = (n % 4 == 0).then_some(1_789_000_000_000);
            notice
        })
        .collect();
    for _ in 0..2 {
        stage.deliver_together(&notices).await;
        for notice in &notices {
            stage
                .until_notice(&notice.out_refund_no, "SUCCESS", "done -")
                .await;
        }
        assert_eq!(stage.lines(REFUNDS).await, refunds);
        assert_eq!(stage.lines(ORDERS).await, orders);
        let now = stage
            .lines("SELECT DISTINCT updated_at_ms FROM notice")
            .await
            .concat();
        let expected =
            |done: &dyn Fn(usize) -> String, not: &dyn Fn(usize) -> String| -> Vec<String> {
                (0..10)
                    .map(|n| if n % 2 == 0 { done(n) } else { not(n) })
                    .collect()
            };
        let at = |n: usize| {
            if n.is_multiple_of(4) {
                "1789000000000".to_owned()
            } else {
                n.to_string()
            }
        };
        let rows = expected(&|n| format!("R{n} SUCCESS {} {now}", at(n)), &|n| {
            format!("R{n} PROCESSING {n} {n}")
        });
        assert_eq!(stage.lines(ours).await, rows);
        let rows = expected(&|n| format!("T-R{n} 100 PARTIAL {now}"), &|n| {
            format!("T-R{n} 0 NONE {n}")
        });
        assert_eq!(stage.lines(sums).await, rows);
    }
}

/// Delivers for the first of two refunds; the second, and its order, must not be touched. Then for
/// the second, which must be booked for itself.
async fn check_apart(stage: &Stage, first: &str, second: &str) {
    for number in [first, second] {
        shop_writes(&stage.db.database, number, 100, 300).await;
    }
    assert_eq!(
        stage
            .deliver(&refund_notice(first, "SUCCESS", 100, 300))
            .await,
        204
    );
    stage.until_notice(first, "SUCCESS", "done -").await;
    stage.assert_booked_once(first, 100).await;
    assert_eq!(
        stage.refund_status(second).await,
        "PROCESSING",
        "{first} {second}"
    );
    assert_eq!(
        stage.order(&format!("T-{second}")).await,
        "0 NONE",
        "{first} {second}"
    );
    assert_eq!(
        stage
            .deliver(&refund_notice(second, "SUCCESS", 100, 300))
            .await,
        204
    );
    stage.until_notice(second, "SUCCESS", "done -").await;
    stage.assert_booked_once(first, 100).await;
    stage.assert_booked_once(second, 100).await;
}

async fn identifiers_that_are_equal_as_numbers_stay_apart(db: TestDatabase) {
    // Aim: identifiers are texts to every statement; none is compared as a number.
    // Method: pairs that are equal as integers, as floats or after rounding to 53 bits.
    let stage = Stage::over(db).await;
    check_apart(&stage, "0042", "42").await;
    check_apart(&stage, "20260301000000017", "20260301000000018").await;
    check_apart(&stage, "1e3", "1000").await;
    check_apart(&stage, "7.0", "7").await;
    check_apart(&stage, "0x10", "16").await;
    check_apart(&stage, "9223372036854775807", "9223372036854775808").await;
}

async fn identifiers_that_differ_in_case_stay_apart(db: TestDatabase) {
    // Aim: identifiers are byte-exact. Method: pairs that many collations hold for equal.
    let stage = Stage::over(db).await;
    check_apart(&stage, "Ra", "RA").await;
    check_apart(&stage, "R_1", "R-1").await;
    check_apart(&stage, "R%", "Rx").await;
}

async fn the_same_numbers_of_another_merchant_stay_apart(db: TestDatabase) {
    // Aim: one merchant's notice never moves another's rows of the same numbers.
    // Method: the same refund and order under two merchants, a notice of the first, twice.
    let stage = Stage::over(db).await;
    shop_writes(&stage.db.database, "R1", 100, 300).await;
    stage.run("UPDATE orders SET mchid = '1900000002'").await;
    stage
        .run("UPDATE refund_order SET mchid = '1900000002'")
        .await;
    shop_writes(&stage.db.database, "R1", 100, 300).await;
    for _ in 0..2 {
        assert_eq!(
            stage
                .deliver(&refund_notice("R1", "SUCCESS", 100, 300))
                .await,
            204
        );
        stage.until_notice("R1", "SUCCESS", "done -").await;
        let refunds = stage
            .lines("SELECT mchid, status FROM refund_order ORDER BY mchid")
            .await;
        assert_eq!(
            refunds,
            [
                format!("{MCHID} SUCCESS"),
                "1900000002 PROCESSING".to_owned()
            ]
        );
        let orders = stage
            .lines("SELECT mchid, refunded_fen FROM orders ORDER BY mchid")
            .await;
        assert_eq!(orders, [format!("{MCHID} 100"), "1900000002 0".to_owned()]);
    }
}

//! Several refunds of one order: its sum is right at every moment, and bounded by its total.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use platform::RefundNotice;
use refund_batcher::adapters::clock::SystemClock;
use refund_batcher::adapters::sql::Database;
use refund_batcher::core::sql::shop::NewRefund;
use refund_batcher::ports::Clock;
use tokio::task::JoinHandle;

use crate::support::raw::Raw;
use crate::support::stage::Stage;
use crate::support::{MCHID, TestDatabase, books, refund_notice, shop_writes_order};

on_each_database!(
    three_refunds_of_one_order_in_every_order,
    a_thousand_refunds_of_one_order,
    a_refund_beyond_the_total_is_dead,
);

/// Looks at the books again and again while others write; each look must find them balanced.
struct Auditor {
    stop: Arc<AtomicBool>,
    task: JoinHandle<u64>,
}

impl Auditor {
    /// Begins; orders in FULL must have as many ledger rows as `refunds_of_full`.
    async fn begin(db: &TestDatabase, refunds_of_full: i64) -> Auditor {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, database, mut raw) = (
            Arc::clone(&stop),
            db.database.clone(),
            Raw::open(&db.url).await,
        );
        let wrong = format!(
            "SELECT out_trade_no, refunded_fen, refund_status FROM orders WHERE refund_status <> CASE \
             WHEN refunded_fen = 0 THEN 'NONE' WHEN refunded_fen = total_fen THEN 'FULL' ELSE 'PARTIAL' END \
             OR refund_status = 'FULL' AND (SELECT COUNT(*) FROM refund_ledger WHERE \
             refund_ledger.out_trade_no = orders.out_trade_no) <> {refunds_of_full}"
        );
        let task = tokio::spawn(async move {
            let mut looks = 0;
            while !stopped.load(Ordering::SeqCst) {
                books(&database).await;
                assert_eq!(raw.lines(&wrong).await, Vec::<String>::new());
                looks += 1;
                tokio::task::yield_now().await;
            }
            looks
        });
        Auditor { stop, task }
    }

    /// Ends; fails where a look did.
    async fn end(self) {
        self.stop.store(true, Ordering::SeqCst);
        assert!(self.task.await.unwrap() > 0, "nobody looked");
    }
}

/// The shop writes refunds of one order.
async fn write_refunds(
    database: &Database,
    order: &str,
    refunds: &[(String, i64)],
    total_fen: i64,
) {
    let rows: Vec<NewRefund> = refunds
        .iter()
        .map(|(number, refund_fen)| NewRefund {
            mchid: MCHID.to_owned(),
            out_refund_no: number.clone(),
            out_trade_no: order.to_owned(),
            transaction_id: None,
            refund_fen: *refund_fen,
            total_fen,
        })
        .collect();
    database
        .shop()
        .insert_refunds(&rows, SystemClock.now())
        .await
        .unwrap();
}

fn notice_of(order: &str, number: &str, refund_fen: i64, total_fen: i64) -> RefundNotice {
    let mut notice = refund_notice(number, "SUCCESS", refund_fen, total_fen);
    notice.out_trade_no = order.to_owned();
    notice
}

async fn three_refunds_of_one_order_in_every_order(db: TestDatabase) {
    // Aim: 3000, 3000 and 4000 of 10000 add up whatever comes first, and FULL comes last.
    // Method: each of the six orders of arrival on an order of its own, sent at once, the second
    // notice twice, while an auditor looks.
    let stage = Stage::over(db).await;
    let auditor = Auditor::begin(&stage.db, 3).await;
    for permutation in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let order = format!("T{permutation:?}").replace([' ', ','], "");
        let refunds: Vec<(String, i64)> = [3_000, 3_000, 4_000]
            .iter()
            .enumerate()
            .map(|(n, fen)| (format!("R{order}{n}"), *fen))
            .collect();
        shop_writes_order(&stage.db.database, &order, 10_000).await;
        write_refunds(&stage.db.database, &order, &refunds, 10_000).await;
        let notices: Vec<RefundNotice> = permutation
            .iter()
            .flat_map(|n| std::iter::repeat_n(*n, if *n == 1 { 2 } else { 1 }))
            .map(|n| notice_of(&order, &refunds[n].0, refunds[n].1, 10_000))
            .collect();
        stage.deliver_together(&notices).await;
        for (number, fen) in &refunds {
            stage.until_notice(number, "SUCCESS", "done -").await;
            assert_eq!(stage.ledger(number).await, [fen.to_string()]);
        }
        assert_eq!(stage.order(&order).await, "10000 FULL");
    }
    // one after the other, FULL is seen only after the third
    let refunds: Vec<(String, i64)> = vec![
        ("S0".into(), 3_000),
        ("S1".into(), 3_000),
        ("S2".into(), 4_000),
    ];
    shop_writes_order(&stage.db.database, "TS", 10_000).await;
    write_refunds(&stage.db.database, "TS", &refunds, 10_000).await;
    for ((number, fen), expected) in
        refunds
            .iter()
            .zip(["3000 PARTIAL", "6000 PARTIAL", "10000 FULL"])
    {
        stage
            .deliver_together(&[notice_of("TS", number, *fen, 10_000)])
            .await;
        stage.until_notice(number, "SUCCESS", "done -").await;
        assert_eq!(stage.order("TS").await, expected);
    }
    auditor.end().await;
}

async fn a_thousand_refunds_of_one_order(db: TestDatabase) {
    // Aim: one hot order takes all its refunds, over many batches and two services.
    // Method: 1,000 refunds of 7 fen, sent at once to two services, while an auditor looks.
    let stage = Stage::over(db).await;
    let other = stage.another_app("").await;
    let refunds: Vec<(String, i64)> = (0..1_000).map(|n| (format!("R{n:04}"), 7)).collect();
    shop_writes_order(&stage.db.database, "HOT", 7_000).await;
    write_refunds(&stage.db.database, "HOT", &refunds, 7_000).await;
    let auditor = Auditor::begin(&stage.db, 1_000).await;
    let urls = [stage.app.notify_url(), other.notify_url()];
    let deliveries = refunds
        .iter()
        .enumerate()
        .map(|(n, (number, fen))| {
            (
                urls[n % 2].clone(),
                stage.seal(&notice_of("HOT", number, *fen, 7_000)),
            )
        })
        .collect();
    let statuses = stage.send_together(deliveries).await;
    // what a busy machine did not make durable in time is sent again, as WeChat Pay does
    let refused = statuses.iter().filter(|status| **status != 204).count();
    assert!(
        statuses.iter().all(|status| [204, 503].contains(status)),
        "{statuses:?}"
    );
    for number in statuses
        .iter()
        .zip(&refunds)
        .filter(|(status, _)| **status == 503)
        .map(|(_, refund)| &refund.0)
    {
        assert_eq!(
            stage.deliver(&notice_of("HOT", number, 7, 7_000)).await,
            204,
            "of {refused} refused"
        );
    }
    crate::support::until("all is booked", || async {
        // an order that the other service had locked is tried again after a second
        stage.clock.advance(50);
        stage.order("HOT").await == "7000 FULL"
    })
    .await;
    auditor.end().await;
    assert_eq!(
        stage
            .int("SELECT COUNT(*) FROM notice WHERE state = 'done'")
            .await,
        1_000
    );
    assert_eq!(books(&stage.db.database).await.ledger_rows, 1_000);
}

async fn a_refund_beyond_the_total_is_dead(db: TestDatabase) {
    // Aim: the refund's status is set, its notice ends dead, the order and the ledger stay as they are.
    // Method: 200 and then 101 of 300; resend; then 100, which still fits.
    let stage = Stage::over(db).await;
    shop_writes_order(&stage.db.database, "T", 300).await;
    let refunds: Vec<(String, i64)> =
        vec![("R1".into(), 200), ("R2".into(), 101), ("R3".into(), 100)];
    write_refunds(&stage.db.database, "T", &refunds, 300).await;
    let over = "dead refunds would exceed the order's total";
    for ((number, fen), expected) in refunds.iter().zip(["done -", over, "done -"]) {
        for _ in 0..2 {
            stage
                .deliver_together(&[notice_of("T", number, *fen, 300)])
                .await;
            stage.until_notice(number, "SUCCESS", expected).await;
        }
        assert_eq!(stage.refund_status(number).await, "SUCCESS");
    }
    assert_eq!(stage.ledger("R2").await, Vec::<String>::new());
    assert_eq!(stage.order("T").await, "300 FULL");
    assert_eq!(books(&stage.db.database).await.ledger_rows, 2);
}

//! What a genuine notice does to the shop's rows: once, in the allowed direction, only where it
//! agrees with them.

use refund_batcher::core::sql::shop::NewRefund;
use refund_batcher::core::types::UnixMs;
use tokio::task::JoinSet;

use super::*;
use crate::support::{books, shop_writes, shop_writes_order, until, until_booked};

#[tokio::test]
async fn a_repeat_changes_nothing() {
    // Aim (B01): one ledger row, the first success time, the refund row written once. Method: five
    // deliveries at once, one six hours later, one with another success time.
    let site = Site::start().await;
    shop_writes(&site.database.database, "R1", 100, 300).await;
    let first = genuine("R1");
    let mut sent = JoinSet::new();
    for at in 0..5 {
        let signed = first.signed_again(NOW, &format!("nonce-{at}")).unwrap();
        let (address, request) = (
            site.app.app.http_addr,
            wire::request(PATH, &signed.headers, &signed.body),
        );
        sent.spawn(async move { wire::exchange(address, &request).await });
    }
    for answered in sent.join_all().await {
        check_answer("at once", &answered, 204, "");
    }
    until_booked(&site.database.database, 1).await;
    let row = "SELECT status, success_at_ms, updated_at_ms FROM refund_order";
    let written = [format!("SUCCESS {} {}", (NOW - 60) * 1000, NOW * 1000)];
    assert_eq!(site.lines(row).await, written);

    site.clock.advance(6 * 3_600_000);
    let later = first.signed_again(NOW + 6 * 3600, "nonce-6").unwrap();
    site.check("six hours later", &later, 204, "").await;
    let mut other = refund("R1", "SUCCESS");
    other.success_time_ms = Some((NOW + 3600) * 1000);
    let other = sign_at(body_of(&other), NOW + 6 * 3600);
    site.check("another success time", &other, 204, "").await;
    until("seven deliveries are counted", || async {
        site.lines("SELECT deliveries, state FROM notice").await == ["7 done"]
    })
    .await;
    assert_eq!(site.lines(row).await, written);
    assert_eq!(
        site.counts().await,
        "1 2 1",
        "the deviating delivery is kept"
    );
    assert_eq!(books(&site.database.database).await.ledger_total_fen, 100);
    site.stop().await;
}

#[tokio::test]
async fn each_status_has_its_effect() {
    // Aim (A14): all three statuses are accepted, an absent success time stays absent, the ledger
    // takes SUCCESS only. Method: one refund of each; CLOSED in its older spellings too.
    let site = Site::start().await;
    let shop = &site.database.database;
    for (number, event, status, more) in [
        ("R1", "REFUND.SUCCESS", "SUCCESS", ""),
        ("R2", "REFUND.CLOSED", "CLOSED", ""),
        (
            "R3",
            "REFUND.ABNORMAL",
            "ABNORMAL",
            ",\"user_received_account\":null",
        ),
        ("R4", "REFUND.CLOSE", "CLOSE", ""),
        ("R5", "REFUND.CLOSED", "REFUNDCLOSE", ""),
        // the status decides, not the event
        ("R6", "REFUND.CLOSED", "SUCCESS", ""),
    ] {
        shop_writes(shop, number, 100, 300).await;
        let text = plaintext(number, &format!("\"refund_status\":\"{status}\","), more);
        site.check(number, &sign(seal(event, &text)), 204, "").await;
    }
    until_booked(shop, 2).await;
    assert_eq!(
        site.lines("SELECT out_refund_no, status, success_at_ms FROM refund_order ORDER BY id")
            .await,
        [
            "R1 SUCCESS -",
            "R2 CLOSED -",
            "R3 ABNORMAL -",
            "R4 CLOSED -",
            "R5 CLOSED -",
            "R6 SUCCESS -"
        ]
    );
    until("all are done", || async {
        site.states().await == ["done -"; 6]
    })
    .await;
    let ledger = "SELECT out_refund_no, success_at_ms FROM refund_ledger ORDER BY id";
    assert_eq!(site.lines(ledger).await, ["R1 -", "R6 -"]);
    site.stop().await;
}

#[tokio::test]
async fn transitions_decide_and_not_the_order_of_arrival() {
    // Aim (B07): nothing leaves a final state; what comes late is kept beside. Method: SUCCESS, then
    // an older CLOSED, an older ABNORMAL and the payment's notice.
    let site = Site::start().await;
    let shop = &site.database.database;
    shop_writes(shop, "R1", 100, 300).await;
    site.check("SUCCESS", &genuine("R1"), 204, "").await;
    until_booked(shop, 1).await;
    for status in ["CLOSED", "ABNORMAL"] {
        let late = sign(body_of(&refund("R1", status)));
        for time in ["first", "again"] {
            site.check(&format!("{status} {time}"), &late, 204, "")
                .await;
        }
    }
    let payment =
        "{\"mchid\":\"1900000001\",\"out_trade_no\":\"T-R1\",\"trade_state\":\"SUCCESS\"}";
    let payment = sign(seal("TRANSACTION.SUCCESS", payment));
    site.check("payment", &payment, 204, "").await;
    until("all are decided", || async {
        site.states().await
            == [
                "done -",
                "quarantined CLOSED after SUCCESS",
                "superseded refund is final already",
                "ignored event has no effect here",
            ]
    })
    .await;
    let rows = "SELECT refund_order.status, orders.refund_status, refunded_fen, orders.status \
                FROM refund_order JOIN orders ON orders.out_trade_no = refund_order.out_trade_no";
    assert_eq!(site.lines(rows).await, ["SUCCESS PARTIAL 100 PAID"]);
    assert_eq!(books(shop).await.ledger_rows, 1);
    site.stop().await;
}

#[tokio::test]
async fn what_contradicts_our_row_has_no_effect() {
    // Aim (B10): a genuine signature proves the sender, not that the money agrees. Method: one
    // refund each, with one field changed; then the same field as the shop has it.
    let site = Site::with_second().await;
    let shop = &site.database.database;
    type Change = fn(&mut RefundNotice);
    let cases: [(Change, &str); 7] = [
        (
            |n| n.refund_fen = 1,
            "amount.refund differs from refund_order",
        ),
        (
            |n| n.total_fen = 301,
            "amount.total differs from refund_order",
        ),
        (
            |n| n.currency = Some("USD".into()),
            "currency differs from refund_order",
        ),
        (
            |n| n.out_trade_no = "T-other".into(),
            "out_trade_no differs from refund_order",
        ),
        (
            |n| n.transaction_id = "42other".into(),
            "transaction_id differs from refund_order",
        ),
        (
            |n| {
                n.form = platform::Form::Direct {
                    mchid: SECOND.into(),
                }
            },
            "merchant does not belong to this key",
        ),
        (
            |n| {
                n.form = platform::Form::Direct {
                    mchid: "1900000003".into(),
                }
            },
            "merchant does not belong to this key",
        ),
    ];
    for (at, (change, reason)) in cases.into_iter().enumerate() {
        let number = format!("R{at}");
        let good = refund(&number, "SUCCESS");
        shop_writes_order(shop, &good.out_trade_no, 300).await;
        let row = NewRefund {
            mchid: MCHID.to_owned(),
            out_refund_no: number.clone(),
            out_trade_no: good.out_trade_no.clone(),
            transaction_id: Some(good.transaction_id.clone()),
            refund_fen: 100,
            total_fen: 300,
        };
        shop.shop().insert_refunds(&[row], UnixMs(0)).await.unwrap();
        let mut bad = good.clone();
        change(&mut bad);
        for time in ["first", "again"] {
            site.check(&format!("{reason}, {time}"), &sign(body_of(&bad)), 204, "")
                .await;
        }
        let select = format!("SELECT state, reason FROM notice WHERE out_refund_no = '{number}'");
        assert_eq!(site.lines(&select).await, [format!("quarantined {reason}")]);
    }
    let untouched = "SELECT status, updated_at_ms FROM refund_order";
    assert_eq!(site.lines(untouched).await, ["PROCESSING 0"; 7]);
    assert_eq!(site.counts().await, "7 7 0");
    for at in 0..7 {
        site.check("agrees", &genuine(&format!("R{at}")), 204, "")
            .await;
    }
    until_booked(shop, 7).await;
    assert_eq!(books(shop).await.ledger_total_fen, 700);
    site.stop().await;
}

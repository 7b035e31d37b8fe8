//! What a real server does to us: locked rows, a lock that is not given, a server that dies, peers
//! that hang up, a stop under load.

use std::time::{Duration, Instant};

use refund_batcher::adapters::clock::SystemClock;
use refund_batcher::core::notice::NoticeKey;
use refund_batcher::core::refund::RefundStatus::Success;
use refund_batcher::core::sql::shop::{NewOrder, NewRefund};
use refund_batcher::core::types::{Mchid, OutTradeNo};
use refund_batcher::ports::{Clock, StoreError};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::mariadb::PrivateServer;
use crate::support::raw::Raw;
use crate::support::stage::{DECIDE, PLAN, Stage, fact, intake, sealed};
use crate::support::{
    MCHID, TestApp, TestDatabase, books, delivery, refund_notice, send, shop_writes, until,
    until_booked,
};

/// WeChat Pay's time limit.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// What "as fast as before" must stay under on a busy machine: far under a lock's one second.
const FAST: Duration = Duration::from_millis(900);

/// Refunds `{prefix}0` to `{prefix}{count-1}`, each alone on its order.
async fn many_refunds(db: &TestDatabase, prefix: &str, count: usize) {
    let numbers = (0..count).map(|n| format!("{prefix}{n}"));
    let order = |no: &String| NewOrder {
        mchid: MCHID.to_owned(),
        out_trade_no: format!("T-{no}"),
        transaction_id: None,
        total_fen: 300,
    };
    let refund = |no: &String| NewRefund {
        mchid: MCHID.to_owned(),
        out_refund_no: no.clone(),
        out_trade_no: format!("T-{no}"),
        transaction_id: None,
        refund_fen: 100,
        total_fen: 300,
    };
    let numbers: Vec<String> = numbers.collect();
    let (orders, refunds): (Vec<_>, Vec<_>) = (
        numbers.iter().map(order).collect(),
        numbers.iter().map(refund).collect(),
    );
    db.database
        .shop()
        .insert_orders(&orders, SystemClock.now())
        .await
        .unwrap();
    db.database
        .shop()
        .insert_refunds(&refunds, SystemClock.now())
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_refund_row_holds_up_nobody_else() {
    // Aim: one stuck row stalls neither its group nor its own answer, and is applied afterwards.
    // Method: a foreign transaction holds one refund for 10 s of the service's clock; send it among
    // 63 others; time the answers; end the transaction; let the clock run.
    let stage = Stage::over(TestDatabase::mariadb().await).await;
    many_refunds(&stage.db, "L", 64).await;
    let mut shop = Raw::open(&stage.db.url).await;
    shop.begin().await;
    shop.run("UPDATE refund_order SET updated_at_ms = 1 WHERE mchid = '1900000001' AND out_refund_no = 'L7'")
        .await;

    let started = Instant::now();
    let all = (0..64).map(|n| {
        let notice = refund_notice(&format!("L{n}"), "SUCCESS", 100, 300);
        (stage.app.notify_url(), stage.seal(&notice))
    });
    let statuses = stage.send_together(all.collect()).await;
    let took = started.elapsed();
    assert!(statuses.iter().all(|status| *status == 204), "{statuses:?}");
    assert!(took < FAST, "{took:?}");
    stage
        .assert_notice("L7", "SUCCESS", "parked refund row is locked")
        .await;
    assert_eq!(stage.refund_status("L7").await, "PROCESSING");
    until_booked(&stage.db.database, 63).await;

    // looked at while still locked, it stays parked and nobody waits for it
    for _ in 0..10 {
        stage.clock.advance(1_000);
        let other = refund_notice("L8", "SUCCESS", 100, 300);
        assert_eq!(stage.deliver(&other).await, 204);
    }
    assert_eq!(stage.refund_status("L7").await, "PROCESSING");
    shop.run("ROLLBACK").await;
    stage.until_notice_in_time("L7", "SUCCESS", "done -").await;
    stage.assert_booked_once("L7", 100).await;
    assert!(stage.app.app.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_order_holds_up_nobody_else() {
    // Aim: an order that the shop holds uses up no attempt of its refund and stalls no other.
    // Method: lock one order; flush it with another; look; unlock; flush again.
    let db = TestDatabase::mariadb().await;
    many_refunds(&db, "O", 2).await;
    let store = db.database.store();
    let now = SystemClock.now();
    let group: Vec<_> = ["O0", "O1"]
        .map(|no| intake(fact(no, Success, 100, 300), now))
        .into();
    let keys: Vec<NoticeKey> = store
        .commit(&group, now, DECIDE)
        .await
        .unwrap()
        .into_iter()
        .filter_map(|verdict| verdict.key)
        .collect();
    let mut shop = Raw::open(&db.url).await;
    shop.begin().await;
    shop.run(
        "UPDATE orders SET status = 'HELD' WHERE mchid = '1900000001' AND out_trade_no = 'T-O0'",
    )
    .await;
    let flushed = store.flush(&keys, now, PLAN).await.unwrap();
    assert_eq!((flushed.done, flushed.again, flushed.dead.len()), (1, 1, 0));
    let mut raw = Raw::open(&db.url).await;
    let lines = raw
        .lines("SELECT state, reason, attempts FROM notice WHERE out_refund_no = 'O0'")
        .await;
    assert_eq!(lines, ["pending order row is locked 0"]);
    shop.run("ROLLBACK").await;
    assert_eq!(store.flush(&keys, now, PLAN).await.unwrap().done, 1);
    assert_eq!(books(&db.database).await.ledger_rows, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_not_given_leaves_no_half_transaction() {
    // Aim (C12): a lock wait timeout after the status was set rolls the status back too.
    // Method: a foreign transaction has inserted a notice with the same key and not committed, so our
    // insert waits behind it and times out; look at both rows; end it; commit again.
    let db = TestDatabase::mariadb().await;
    many_refunds(&db, "H", 1).await;
    let store = db.database.store();
    let now = SystemClock.now();
    let wanted = intake(fact("H0", Success, 100, 300), now);
    let mut other = Raw::open(&db.url).await;
    other.begin().await;
    let digest = hex::encode(wanted.digest.0);
    other
        .run(&format!(
            "INSERT INTO notice (provider, subject, mchid, digest, envelope_id, source, state, received_at_ms, \
             updated_at_ms) VALUES ('wechat', 'refund', '{MCHID}', X'{digest}', 'e', 'notify_v3', 'ignored', 1, 1)"
        ))
        .await;
    let group = [wanted];
    let error = store.commit(&group, now, DECIDE).await.unwrap_err();
    assert!(matches!(error, StoreError::LockTimeout), "{error:?}");
    let mut raw = Raw::open(&db.url).await;
    assert_eq!(
        raw.text("SELECT status FROM refund_order").await.as_deref(),
        Some("PROCESSING")
    );
    assert_eq!(raw.int("SELECT COUNT(*) FROM notice").await, 0);
    other.run("ROLLBACK").await;
    store.commit(&group, now, DECIDE).await.unwrap();
    assert_eq!(
        raw.lines("SELECT status FROM refund_order").await,
        ["SUCCESS"]
    );
    assert_eq!(raw.lines("SELECT state FROM notice").await, ["pending"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_not_given_parks_the_fact_by_the_slow_lane() {
    // Aim: a fact whose insert waits for a lock is answered in time and holds up nobody.
    // Method: as above through the service, with a neighbour beside it; the neighbour is answered
    // fast, the other within the deadline; afterwards a resend is applied once.
    let stage = Stage::over(TestDatabase::mariadb().await).await;
    many_refunds(&stage.db, "W", 2).await;
    let mut other = Raw::open(&stage.db.url).await;
    let stuck = fact("W0", Success, 100, 300);
    other.begin().await;
    other
        .run(&format!(
            "INSERT INTO notice (provider, subject, mchid, digest, envelope_id, source, state, received_at_ms, \
             updated_at_ms) VALUES ('wechat', 'refund', '{MCHID}', X'{}', 'e', 'notify_v3', 'ignored', 1, 1)",
            hex::encode(stuck.digest().0)
        ))
        .await;
    let notice = refund_notice("W0", "SUCCESS", 100, 300);
    let started = Instant::now();
    assert_eq!(stage.deliver(&notice).await, 503);
    assert!(started.elapsed() < ANSWER_MAX);
    let started = Instant::now();
    assert_eq!(
        stage
            .deliver(&refund_notice("W1", "SUCCESS", 100, 300))
            .await,
        204
    );
    assert!(started.elapsed() < FAST, "{:?}", started.elapsed());
    assert_eq!(stage.refund_status("W0").await, "PROCESSING");
    other.run("ROLLBACK").await;
    assert_eq!(stage.deliver(&notice).await, 204);
    stage.until_notice_in_time("W0", "SUCCESS", "done -").await;
    stage.assert_booked_once("W0", 100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_database_is_answered_in_time_and_the_resend_is_applied_once() {
    // Aim (B11): success is said of nothing that is not stored, and every answer comes in time.
    // Method: kill the server, send; start it again, send once more; look at the books.
    let mut server = PrivateServer::start_new().await;
    let db = TestDatabase::at(server.new_schema().await).await;
    let app = TestApp::start(&db, "[relay]\npoll_ms = 20\n").await;
    shop_writes(&db.database, "D1", 100, 300).await;
    shop_writes(&db.database, "D2", 100, 300).await;
    let before = delivery(&refund_notice("D1", "SUCCESS", 100, 300));
    assert_eq!(send(&app.notify_url(), &before).await.status, Ok(204));

    server.kill();
    let notice = refund_notice("D2", "SUCCESS", 100, 300);
    for _ in 0..3 {
        let reply = send(&app.notify_url(), &delivery(&notice)).await;
        assert_eq!(reply.status, Ok(503));
        assert!(reply.took < ANSWER_MAX, "{:?}", reply.took);
    }
    // a repeat of what was committed is not vouched for any more: another server may come back
    let repeat = send(
        &app.notify_url(),
        &delivery(&refund_notice("D1", "SUCCESS", 100, 300)),
    )
    .await;
    assert_eq!(repeat.status, Ok(503));

    server.start().await;
    // the test's own connections broke with the server
    db.database.close().await;
    until("the service answers again", || async {
        send(&app.notify_url(), &delivery(&notice)).await.status == Ok(204)
    })
    .await;
    assert_eq!(
        send(&app.notify_url(), &delivery(&notice)).await.status,
        Ok(204)
    );
    until_booked(&db.database, 2).await;
    let books = books(&db.database).await;
    assert_eq!((books.ledger_rows, books.ledger_total_fen), (2, 200));
    assert!(app.app.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_database_is_answered_in_time_and_recovers() {
    // Aim: a server that holds its connections open and says nothing delays no answer past the limit.
    // Method: stop its process, send, let it go on, send again.
    let mut server = PrivateServer::start_new().await;
    let db = TestDatabase::at(server.new_schema().await).await;
    let app = TestApp::start(&db, "[relay]\npoll_ms = 20\n").await;
    shop_writes(&db.database, "F1", 100, 300).await;
    let notice = refund_notice("F1", "SUCCESS", 100, 300);
    server.freeze();
    let reply = send(&app.notify_url(), &delivery(&notice)).await;
    server.thaw();
    assert_eq!(reply.status, Ok(503));
    assert!(reply.took < ANSWER_MAX, "{:?}", reply.took);
    until("the service answers again", || async {
        send(&app.notify_url(), &delivery(&notice)).await.status == Ok(204)
    })
    .await;
    until_booked(&db.database, 1).await;
    assert_eq!(books(&db.database).await.ledger_total_fen, 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_hangs_up_leaves_no_half_transaction() {
    // Aim (E01): a client that hangs up at any moment leaves each refund untouched or with status and
    // notice both.
    // Method: send 200 notices over raw connections and close each at once; look; send them again.
    let stage = Stage::over(TestDatabase::mariadb().await).await;
    many_refunds(&stage.db, "C", 200).await;
    let address = stage.app.app.http_addr;
    for n in 0..200 {
        let delivery = stage.seal(&refund_notice(&format!("C{n}"), "SUCCESS", 100, 300));
        let mut head = format!(
            "POST /notify/wechat/v3 HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n",
            delivery.body.len()
        );
        for (name, value) in &delivery.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        let mut peer = TcpStream::connect(address).await.unwrap();
        peer.write_all(head.as_bytes()).await.unwrap();
        peer.write_all(&delivery.body).await.unwrap();
        drop(peer);
    }
    let halves = "SELECT COUNT(*) FROM refund_order LEFT JOIN notice ON notice.mchid = refund_order.mchid \
                  AND notice.out_refund_no = refund_order.out_refund_no \
                  WHERE (refund_order.status = 'SUCCESS') <> (notice.id IS NOT NULL)";
    assert_eq!(stage.int(halves).await, 0);
    let notices: Vec<_> = (0..200)
        .map(|n| refund_notice(&format!("C{n}"), "SUCCESS", 100, 300))
        .collect();
    for some in notices.chunks(50) {
        stage.deliver_together(some).await;
    }
    until_booked(&stage.db.database, 200).await;
    let books = books(&stage.db.database).await;
    assert_eq!((books.ledger_rows, books.ledger_total_fen), (200, 20_000));
    assert_eq!(stage.int("SELECT COUNT(*) FROM notice").await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_under_load_loses_nothing_that_was_acknowledged() {
    // Aim (D08): a drain flushes what waits, or leaves it in the outbox for the next start.
    // Method: acknowledge 500 notices with a flusher that collects for long, stop at once, look; start
    // another service under a clock past the grace; every acknowledged refund is booked once.
    let stage = Stage::with(TestDatabase::mariadb().await, "[flush]\nwait_ms = 10000\n").await;
    many_refunds(&stage.db, "S", 500).await;
    let deliveries: Vec<_> = (0..500)
        .map(|n| {
            let notice = refund_notice(&format!("S{n}"), "SUCCESS", 100, 300);
            (stage.app.notify_url(), sealed(&notice, stage.clock.now().0))
        })
        .collect();
    let statuses = stage.send_together(deliveries).await;
    assert!(statuses.iter().all(|status| *status == 204));
    let Stage { db, app, clock, .. } = stage;
    assert!(app.app.stop().await);
    let after_stop = books(&db.database).await;
    assert_eq!(after_stop.ledger_rows, 500, "the drain flushes what waits");
    clock.advance(60_000);
    let again = TestApp::start_at(&db, "[relay]\npoll_ms = 20\n", clock).await;
    assert!(again.app.stop().await);
    assert_eq!(books(&db.database).await, after_stop);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_flushers_over_the_same_orders_end_with_exact_totals() {
    // Aim (C05): two instances that flush the same orders in different orders, while the shop updates
    // them, end with each refund booked once.
    // Method: 40 orders with 5 refunds each; two tasks flush shuffled batches again and again until
    // nothing is pending; a third updates single orders meanwhile.
    let db = TestDatabase::mariadb().await;
    let now = SystemClock.now();
    let mut refunds = Vec::new();
    let mut facts = Vec::new();
    for order in 0..40 {
        let order_row = NewOrder {
            mchid: MCHID.to_owned(),
            out_trade_no: format!("T-M{order}"),
            transaction_id: None,
            total_fen: 500,
        };
        db.database
            .shop()
            .insert_orders(&[order_row], now)
            .await
            .unwrap();
        for part in 0..5 {
            let mut one = fact(&format!("M{order}-{part}"), Success, 100, 500);
            one.out_trade_no = OutTradeNo::parse(&format!("T-M{order}")).unwrap();
            refunds.push(NewRefund {
                mchid: MCHID.to_owned(),
                out_refund_no: one.out_refund_no.as_str().to_owned(),
                out_trade_no: format!("T-M{order}"),
                transaction_id: None,
                refund_fen: 100,
                total_fen: 500,
            });
            facts.push(intake(one, now));
        }
    }
    db.database
        .shop()
        .insert_refunds(&refunds, now)
        .await
        .unwrap();
    let keys: Vec<NoticeKey> = db
        .database
        .store()
        .commit(&facts, now, DECIDE)
        .await
        .unwrap()
        .into_iter()
        .filter_map(|verdict| verdict.key)
        .collect();
    let flush = |keys: Vec<NoticeKey>| {
        let store = db.database.store();
        tokio::spawn(async move {
            for round in 0..200_usize {
                let from = round * 7 % keys.len();
                let batch: Vec<NoticeKey> =
                    keys.iter().cycle().skip(from).take(20).cloned().collect();
                match store.flush(&batch, SystemClock.now(), PLAN).await {
                    Ok(_) | Err(StoreError::Conflict(_) | StoreError::Raced(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        })
    };
    let backwards: Vec<NoticeKey> = keys.iter().rev().cloned().collect();
    let (one, two) = (flush(keys.clone()), flush(backwards));
    let url = db.url.clone();
    let shop = tokio::spawn(async move {
        let mut raw = Raw::open(&url).await;
        for n in 0..200 {
            raw.run(&format!(
                "UPDATE orders SET status = 'S{n}' WHERE mchid = '{MCHID}' AND out_trade_no = 'T-M{}'",
                n % 40
            ))
            .await;
        }
    });
    for task in [one, two, shop] {
        task.await.unwrap();
    }
    // what was locked then has a later due time, and is pending still
    db.database
        .store()
        .flush(&keys, SystemClock.now(), PLAN)
        .await
        .unwrap();
    let books = books(&db.database).await;
    assert_eq!((books.ledger_rows, books.ledger_total_fen), (200, 20_000));
    let mut raw = Raw::open(&db.url).await;
    assert_eq!(
        raw.lines("SELECT DISTINCT refunded_fen, refund_status FROM orders")
            .await,
        ["500 FULL"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_the_server_closed_cost_no_answer() {
    // Aim: a server that closes idle connections, as it does at night, costs no delivery its answer.
    // Method: use several connections at once, have the server close all of them, send.
    let stage = Stage::over(TestDatabase::mariadb().await).await;
    many_refunds(&stage.db, "K", 80).await;
    let notices: Vec<_> = (0..80)
        .map(|n| refund_notice(&format!("K{n}"), "SUCCESS", 100, 300))
        .collect();
    stage.deliver_together(&notices[..64]).await;
    let schema = stage.db.url.rsplit('/').next().unwrap().to_owned();
    let mut admin = Raw::open(&stage.db.url).await;
    let own = admin.int("SELECT CONNECTION_ID()").await;
    let list = format!(
        "SELECT id FROM information_schema.processlist WHERE db = '{schema}' AND id <> {own}"
    );
    for id in admin.lines(&list).await {
        // one that has gone meanwhile is as good
        drop(admin.try_run(&format!("KILL CONNECTION {id}")).await);
    }
    for notice in &notices[64..] {
        assert_eq!(stage.deliver(notice).await, 204);
    }
    stage.db.database.close().await;
    until_booked(&stage.db.database, 80).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_two_merchants_that_share_an_id_stay_apart() {
    // Aim: ids that a merge of partitions gave twice mix up no money and end no process.
    // Method: two merchants' refunds, and their orders, get one id; commit and flush both together,
    // which is refused, then each alone, as bisecting does.
    let db = TestDatabase::mariadb().await;
    let mut raw = Raw::open(&db.url).await;
    let (now, mut group) = (SystemClock.now(), Vec::new());
    for mchid in ["1900000001", "1900000002"] {
        let mut one = fact("P1", Success, 100, 300);
        one.mchid = Mchid::parse(mchid).unwrap();
        group.push(intake(one, now));
        raw.run(&format!(
            "INSERT INTO orders (id, mchid, out_trade_no, total_fen, created_at_ms, updated_at_ms) \
             VALUES (7, '{mchid}', 'T-P1', 300, 1, 1)"
        ))
        .await;
        raw.run(&format!(
            "INSERT INTO refund_order (id, mchid, out_refund_no, out_trade_no, refund_fen, total_fen, \
             created_at_ms, updated_at_ms) VALUES (9, '{mchid}', 'P1', 'T-P1', 100, 300, 1, 1)"
        ))
        .await;
    }
    let store = db.database.store();
    let together = store.commit(&group, now, DECIDE).await;
    assert!(
        matches!(together, Err(StoreError::Refused(_))),
        "{together:?}"
    );
    let mut keys = Vec::new();
    for alone in group.chunks(1) {
        let verdicts = store.commit(alone, now, DECIDE).await.unwrap();
        keys.extend(verdicts.into_iter().filter_map(|verdict| verdict.key));
    }
    let together = store.flush(&keys, now, PLAN).await;
    assert!(
        matches!(together, Err(StoreError::Refused(_))),
        "{together:?}"
    );
    for alone in keys.chunks(1) {
        assert_eq!(store.flush(alone, now, PLAN).await.unwrap().done, 1);
    }
    assert_eq!(
        raw.lines("SELECT mchid, refunded_fen FROM orders ORDER BY mchid")
            .await,
        ["1900000001 100", "1900000002 100"]
    );
}

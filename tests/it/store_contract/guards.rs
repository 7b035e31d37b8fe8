//! The guards against doubling, each by itself: what one statement refuses without the help of a
//! lock, of what was read before, or of another guard.

use refund_batcher::adapters::clock::SystemClock;
use refund_batcher::core::decide::Cas;
use refund_batcher::core::notice::{Intake, NoticeKey, State};
use refund_batcher::core::plan::LedgerInsert;
use refund_batcher::core::refund::RefundStatus::{Closed, Success};
use refund_batcher::core::sql::commit::{
    NewNotice, NoticeChange, cas, change_notices, insert_notices, take_over,
};
use refund_batcher::core::sql::flush::{finish, insert_ledger};
use refund_batcher::core::sql::{Dialect, Statement};
use refund_batcher::core::types::{Mchid, UnixMs};
use refund_batcher::ports::{Clock, StoreError};

use crate::support::raw::Raw;
use crate::support::stage::{DECIDE, PLAN, fact, intake};
use crate::support::{MCHID, TestDatabase, shop_writes};

on_each_database!(
    a_refund_moves_only_from_an_open_status,
    a_notice_moves_only_from_the_state_it_was_read_in,
    a_digest_and_a_ledger_key_are_taken_once,
    a_row_count_that_differs_rolls_everything_back,
);

const NOW: UnixMs = UnixMs(1_789_000_000_000);

fn dialect(raw: &Raw) -> Dialect {
    if raw.is_mysql() {
        Dialect::Mysql
    } else {
        Dialect::Sqlite
    }
}

async fn a_refund_moves_only_from_an_open_status(db: TestDatabase) {
    // Aim: the compare-and-set matches a row in an open status and no other, so that its row count
    // tells that we did it. Method: the statement alone, for rows in every status.
    let mut raw = Raw::open(&db.url).await;
    let statuses = [
        ("PROCESSING", 1),
        ("ABNORMAL", 1),
        ("SUCCESS", 0),
        ("CLOSED", 0),
        ("NEW", 0),
    ];
    let mut moves = Vec::new();
    for (number, (status, expected)) in statuses.iter().enumerate() {
        let number = format!("R{number}");
        shop_writes(&db.database, &number, 100, 300).await;
        let of = format!("WHERE out_refund_no = '{number}'");
        raw.run(&format!("UPDATE refund_order SET status = '{status}' {of}"))
            .await;
        let a_move = Cas {
            refund_row_id: raw.int(&format!("SELECT id FROM refund_order {of}")).await,
            mchid: Mchid::parse(MCHID).unwrap(),
            to: Closed,
            success_at: None,
        };
        let statement = cas(dialect(&raw), std::slice::from_ref(&a_move), NOW);
        assert_eq!(
            raw.statement(&statement).await.unwrap(),
            *expected,
            "{status}"
        );
        let after = raw
            .text(&format!("SELECT status FROM refund_order {of}"))
            .await;
        let kept = if *expected == 1 { "CLOSED" } else { status };
        assert_eq!(after.as_deref(), Some(kept));
        moves.push(a_move);
    }
    // all of them together, none of which is open any more
    let statement = cas(dialect(&raw), &moves, NOW);
    assert_eq!(raw.statement(&statement).await.unwrap(), 0);
}

/// Stores a fact of a refund that is there; gives its notice.
async fn pending(db: &TestDatabase, number: &str) -> (NoticeKey, Intake) {
    shop_writes(&db.database, number, 100, 300).await;
    let intake = intake(fact(number, Success, 100, 300), SystemClock.now());
    let group = std::slice::from_ref(&intake);
    let verdicts = db
        .database
        .store()
        .commit(group, SystemClock.now(), DECIDE)
        .await
        .unwrap();
    (verdicts[0].key.clone().unwrap(), intake)
}

async fn a_notice_moves_only_from_the_state_it_was_read_in(db: TestDatabase) {
    // Aim: a statement that moves a notice matches nothing once the notice has moved.
    // Method: each statement alone, for a row in the state that it was read in and in another.
    let mut raw = Raw::open(&db.url).await;
    let dialect = dialect(&raw);
    let (key, intake) = pending(&db, "R1").await;
    let keys = std::slice::from_ref(&key);
    let change = |from: State, state: State| NoticeChange {
        key: key.clone(),
        from,
        state,
        reason: None,
        attempts: None,
        due_at: None,
    };
    let read_as_parked = change(State::Parked, State::Quarantined);
    let read_as_pending = change(State::Pending, State::Done);
    let changes = |change: &NoticeChange| {
        let list = std::slice::from_ref(change);
        [
            change_notices(dialect, list, NOW),
            take_over(dialect, change, &intake, NOW, NOW),
        ]
    };
    let mut check = async |statement: &Statement, expected: u64, state: &str| {
        assert_eq!(
            raw.statement(statement).await.unwrap(),
            expected,
            "{}",
            statement.text
        );
        assert_eq!(
            raw.lines("SELECT state, attempts FROM notice").await,
            [format!("{state} 0")]
        );
        raw.run("UPDATE notice SET state = 'pending'").await;
    };
    for statement in changes(&read_as_parked) {
        check(&statement, 0, "pending").await;
    }
    for statement in changes(&read_as_pending) {
        check(&statement, 1, "done").await;
    }
    check(&finish(dialect, keys, NOW), 1, "done").await;
    raw.run("UPDATE notice SET state = 'discarded'").await;
    let statement = finish(dialect, keys, NOW);
    assert_eq!(raw.statement(&statement).await.unwrap(), 0);
    // a flush claims nothing that is not pending
    let store = db.database.store();
    for state in ["parked", "quarantined", "dead", "discarded", "done", "new"] {
        raw.run(&format!("UPDATE notice SET state = '{state}'"))
            .await;
        let flushed = store.flush(keys, SystemClock.now(), PLAN).await.unwrap();
        assert_eq!(flushed, refund_batcher::ports::Flushed::default());
    }
    assert_eq!(raw.int("SELECT COUNT(*) FROM refund_ledger").await, 0);
}

async fn a_digest_and_a_ledger_key_are_taken_once(db: TestDatabase) {
    // Aim: the unique keys alone keep a fact to one notice and a refund to one ledger row.
    // Method: each insert twice, the second with other content; on a table with the first only.
    let mut raw = Raw::open(&db.url).await;
    let stored = intake(fact("R1", Success, 100, 300), NOW);
    let mut other = stored.clone();
    other.envelope_id = "another".to_owned();
    for (intake, is_first) in [(&stored, true), (&other, false)] {
        let row = NewNotice {
            intake,
            state: State::Parked,
            reason: None,
            due_at: None,
        };
        let statement = &insert_notices(&[row], NOW)[0];
        assert_eq!(raw.statement(statement).await.is_ok(), is_first);
    }
    for (refund_fen, is_first) in [(100, true), (99, false)] {
        let row = LedgerInsert {
            mchid: MCHID.to_owned(),
            out_refund_no: "R1".to_owned(),
            out_trade_no: "T-R1".to_owned(),
            refund_id: None,
            transaction_id: None,
            refund_fen,
            payer_refund_fen: None,
            currency: "CNY".to_owned(),
            success_at_ms: None,
            notice_id: 1,
        };
        let statement = &insert_ledger(&[row], NOW)[0];
        assert_eq!(raw.statement(statement).await.is_ok(), is_first);
    }
    assert_eq!(
        raw.lines("SELECT envelope_id FROM notice").await,
        ["envelope of R1"]
    );
    assert_eq!(
        raw.lines("SELECT refund_fen FROM refund_ledger").await,
        ["100"]
    );
}

/// Has every write of this kind (`INSERT ON table` or so) discard the notices of R2 beside it, as if
/// a person came between two of our statements.
async fn come_between(raw: &mut Raw, write: &str) {
    let discard = "UPDATE notice SET state = 'discarded' WHERE out_refund_no = 'R2' AND NEW.out_refund_no = 'R2'";
    let text = if raw.is_mysql() {
        format!("CREATE TRIGGER between_us AFTER {write} FOR EACH ROW {discard}")
    } else {
        format!("CREATE TRIGGER between_us AFTER {write} BEGIN {discard}; END")
    };
    raw.run(&text).await;
}

async fn a_row_count_that_differs_rolls_everything_back(db: TestDatabase) {
    // Aim: a statement that matches fewer rows than were decided undoes the whole transaction: no
    // status without its notice, no money without its notice done; and the next try does it all.
    // Method: a trigger moves one of three notices while they are decided, then while they are booked.
    let store = db.database.store();
    let mut raw = Raw::open(&db.url).await;
    let group: Vec<Intake> = ["R1", "R2", "R3"]
        .iter()
        .map(|number| intake(fact(number, Success, 100, 300), SystemClock.now()))
        .collect();
    let parked = store.commit(&group, NOW, DECIDE).await.unwrap();
    let keys: Vec<NoticeKey> = parked.into_iter().filter_map(|v| v.key).collect();
    for number in ["R1", "R2", "R3"] {
        shop_writes(&db.database, number, 100, 300).await;
    }
    let states = "SELECT DISTINCT state FROM notice";

    come_between(&mut raw, "UPDATE ON refund_order").await;
    let decided = store.commit(&group, NOW, DECIDE).await;
    assert!(matches!(decided, Err(StoreError::Raced(_))), "{decided:?}");
    assert_eq!(raw.lines(states).await, ["parked"]);
    let statuses = raw.lines("SELECT DISTINCT status FROM refund_order").await;
    assert_eq!(statuses, ["PROCESSING"]);
    raw.run("DROP TRIGGER between_us").await;
    store.commit(&group, NOW, DECIDE).await.unwrap();
    assert_eq!(raw.lines(states).await, ["pending"]);

    come_between(&mut raw, "INSERT ON refund_ledger").await;
    let booked = store.flush(&keys, NOW, PLAN).await;
    assert!(matches!(booked, Err(StoreError::Raced(_))), "{booked:?}");
    assert_eq!(raw.lines(states).await, ["pending"]);
    assert_eq!(raw.int("SELECT COUNT(*) FROM refund_ledger").await, 0);
    let money = "SELECT DISTINCT refunded_fen, refund_status FROM orders";
    assert_eq!(raw.lines(money).await, ["0 NONE"]);
    raw.run("DROP TRIGGER between_us").await;
    assert_eq!(store.flush(&keys, NOW, PLAN).await.unwrap().done, 3);
    assert_eq!(raw.lines(money).await, ["100 PARTIAL"]);
}

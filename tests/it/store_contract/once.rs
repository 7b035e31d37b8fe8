//! One fact, however often and by however many ways at once: applied once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use refund_batcher::adapters::clock::{SystemClock, SystemEntropy};
use refund_batcher::adapters::sql::Database;
use refund_batcher::commit::{CommitContext, CommitLimits, Committers};
use refund_batcher::config::DatabaseSettings;
use refund_batcher::core::decide::Outcome;
use refund_batcher::core::notice::{Intake, State};
use refund_batcher::core::refund::RefundStatus::{Abnormal, Closed, Success};
use refund_batcher::flush::{FlushContext, FlushLimits, Flushers};
use refund_batcher::ports::{Advice, Clock, Store, Verdict};
use refund_batcher::repeats::Repeats;

use crate::support::raw::Raw;
use crate::support::stage::{DECIDE, PLAN, Stage, fact, intake};
use crate::support::{TestDatabase, books, refund_notice, shop_writes};

on_each_database!(
    eight_deliveries_over_two_processes_are_one_fact,
    eight_transactions_at_once_store_a_fact_once,
    eight_transactions_at_once_park_a_fact_once,
    flushes_of_one_notice_at_once_book_it_once,
    an_abnormal_and_a_success_that_wait_together_end_in_success,
    a_delivery_and_its_copies_that_wait_together_share_a_verdict,
    a_row_that_moved_since_it_was_decided_is_decided_again,
);

async fn eight_deliveries_over_two_processes_are_one_fact(db: TestDatabase) {
    // Aim: two processes and their committers meet on one fact: one row, one booking, all counted.
    // Method: the same delivery four times to each of two services at once; for several refunds.
    let more = "[commit]\nworkers = 2\n";
    let stage = Stage::with(db, more).await;
    let other = stage.another_app(more).await;
    for number in (0..6).map(|n| format!("R{n}")) {
        shop_writes(&stage.db.database, &number, 100, 300).await;
        let delivery = stage.seal(&refund_notice(&number, "SUCCESS", 100, 300));
        let urls = [stage.app.notify_url(), other.notify_url()];
        let all = (0..8)
            .map(|n| (urls[n % 2].clone(), delivery.clone()))
            .collect();
        assert_eq!(stage.send_together(all).await, [204; 8]);
        stage.until_notice(&number, "SUCCESS", "done -").await;
        stage.until_deliveries(&number, 8).await;
        stage.assert_booked_once(&number, 100).await;
    }
}

/// How long a transaction may be in the way of another one.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// Commits a fact as a committer does: again while another transaction is in the way.
async fn commit(store: &dyn Store, intake: &Intake) -> Verdict {
    let started = Instant::now();
    loop {
        assert!(started.elapsed() < WAIT_MAX, "never committed");
        match store
            .commit(std::slice::from_ref(intake), SystemClock.now(), DECIDE)
            .await
        {
            Ok(verdicts) if verdicts[0].outcome == Outcome::Locked => {}
            Ok(mut verdicts) => return verdicts.remove(0),
            Err(error) => assert!(
                matches!(error.advice(), Advice::Again | Advice::SlowLane),
                "{error}"
            ),
        }
        tokio::task::yield_now().await;
    }
}

/// A second process's view of the same database.
fn another_view(db: &TestDatabase) -> Arc<dyn Store> {
    Database::new(&DatabaseSettings::for_url(&db.url))
        .unwrap()
        .store()
}

async fn eight_transactions_at_once_store_a_fact_once(db: TestDatabase) {
    // Aim: the database alone keeps a fact to one row, without any routing before it.
    // Method: eight transactions through two pools of connections at once; count who was first.
    let stores = [db.database.store(), another_view(&db)];
    for number in (0..12).map(|n| format!("R{n}")) {
        shop_writes(&db.database, &number, 100, 300).await;
        let intake = intake(fact(&number, Success, 100, 300), SystemClock.now());
        let tasks: Vec<_> = (0..8)
            .map(|n| {
                let (store, intake) = (Arc::clone(&stores[n % 2]), intake.clone());
                tokio::spawn(async move { commit(&*store, &intake).await })
            })
            .collect();
        let mut verdicts = Vec::new();
        for task in tasks {
            verdicts.push(task.await.unwrap());
        }
        let count = |outcome: Outcome| verdicts.iter().filter(|v| v.outcome == outcome).count();
        assert_eq!(
            (count(Outcome::Applied), count(Outcome::Repeat)),
            (1, 7),
            "{verdicts:?}"
        );
        assert_eq!(verdicts.iter().filter(|v| !v.is_stored_before).count(), 1);
        assert!(
            verdicts
                .iter()
                .all(|v| v.key == verdicts[0].key && v.state == State::Pending)
        );
    }
    assert_eq!(
        Raw::open(&db.url)
            .await
            .int("SELECT COUNT(*) FROM notice")
            .await,
        12
    );
}

async fn eight_transactions_at_once_park_a_fact_once(db: TestDatabase) {
    // Aim: where there is no refund row whose lock could serialise them, the digest alone keeps a
    // fact to one row.
    // Method: as above, for refunds that are not known here.
    let stores = [db.database.store(), another_view(&db)];
    let mut raw = Raw::open(&db.url).await;
    for (n, number) in (1..=12).map(|n| (n, format!("R{n}"))) {
        let intake = intake(fact(&number, Success, 100, 300), SystemClock.now());
        let tasks: Vec<_> = (0..8)
            .map(|n| {
                let (store, intake) = (Arc::clone(&stores[n % 2]), intake.clone());
                tokio::spawn(async move { commit(&*store, &intake).await })
            })
            .collect();
        let mut first = 0;
        for task in tasks {
            let verdict = task.await.unwrap();
            assert_eq!(verdict.state, State::Parked);
            first += usize::from(!verdict.is_stored_before);
        }
        assert_eq!(first, 1, "{number}");
        assert_eq!(raw.int("SELECT COUNT(*) FROM notice").await, n);
    }
}

async fn flushes_of_one_notice_at_once_book_it_once(db: TestDatabase) {
    // Aim: money is added once however many flushers hold the same notice.
    // Method: eight flushes of the same keys through two pools at once, until none is left to do.
    let stores = [db.database.store(), another_view(&db)];
    let mut keys = Vec::new();
    for number in (0..10).map(|n| format!("R{n}")) {
        shop_writes(&db.database, &number, 100, 300).await;
        let intake = intake(fact(&number, Success, 100, 300), SystemClock.now());
        keys.push(commit(&*stores[0], &intake).await.key.unwrap());
    }
    let tasks: Vec<_> = (0..8)
        .map(|n| {
            let (store, keys) = (Arc::clone(&stores[n % 2]), keys.clone());
            tokio::spawn(async move {
                let started = Instant::now();
                loop {
                    assert!(started.elapsed() < WAIT_MAX, "never booked");
                    match store.flush(&keys, SystemClock.now(), PLAN).await {
                        Ok(flushed) if flushed.busy.is_empty() && flushed.again == 0 => {
                            return flushed.done;
                        }
                        Ok(_) => {}
                        Err(error) => assert_eq!(error.advice(), Advice::Again, "{error}"),
                    }
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let books = books(&db.database).await;
    assert_eq!((books.ledger_rows, books.ledger_total_fen), (10, 1_000));
    assert_eq!(
        Raw::open(&db.url)
            .await
            .int("SELECT COUNT(*) FROM notice WHERE state = 'done'")
            .await,
        10
    );
}

/// Has committers decide intakes that all wait before the first one is taken; gives their verdicts,
/// after everything has been booked.
pub(super) async fn decide_together(db: &TestDatabase, intakes: Vec<Intake>) -> Vec<Verdict> {
    let flush = FlushLimits {
        workers: 2,
        rows_max: 256,
        wait_ms: 1,
        queue_max: 1_000,
        attempts_max: 8,
    };
    let commit = CommitLimits {
        workers: 1,
        group_max: 64,
        group_bytes_max: 1 << 20,
        queue_max: 1_000,
        queue_bytes_max: 1 << 24,
        decide: DECIDE,
    };
    let (flushers, flushing) = Flushers::new(FlushContext {
        store: db.database.store(),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
        tally: Arc::default(),
        limits: flush,
    });
    let (committers, committing) = Committers::new(CommitContext {
        store: db.database.store(),
        clock: Arc::new(SystemClock),
        repeats: Arc::new(Repeats::default()),
        flushers,
        limits: commit,
    });
    let waiting: Vec<_> = intakes
        .into_iter()
        .map(|intake| committers.submit(intake).unwrap())
        .collect();
    let mut tasks: Vec<_> = committing.into_iter().map(tokio::spawn).collect();
    tasks.extend(flushing.into_iter().map(tokio::spawn));
    let mut verdicts = Vec::new();
    for verdict in waiting {
        verdicts.push(verdict.await.unwrap().expect("it is durable"));
    }
    drop(committers);
    for task in tasks {
        task.await.unwrap();
    }
    verdicts
}

async fn an_abnormal_and_a_success_that_wait_together_end_in_success(db: TestDatabase) {
    // Aim: two facts of one refund never share a group, and their order of arrival decides nothing.
    // Method: both wait before the committer starts, in both orders; then the same again.
    let mut raw = Raw::open(&db.url).await;
    let now = SystemClock.now();
    for (number, abnormal_first) in [("R1", true), ("R2", false)] {
        shop_writes(&db.database, number, 100, 300).await;
        let abnormal = intake(fact(number, Abnormal, 100, 300), now);
        let success = intake(fact(number, Success, 100, 300), now);
        let both = if abnormal_first {
            vec![abnormal, success]
        } else {
            vec![success, abnormal]
        };
        let first: Vec<Outcome> = decide_together(&db, both.clone())
            .await
            .iter()
            .map(|v| v.outcome)
            .collect();
        let second = if abnormal_first {
            Outcome::Applied
        } else {
            Outcome::Superseded
        };
        assert_eq!(first, [Outcome::Applied, second]);
        let again: Vec<Outcome> = decide_together(&db, both)
            .await
            .iter()
            .map(|v| v.outcome)
            .collect();
        // a superseded fact is decided again, to the same end
        assert_eq!(again, [Outcome::Repeat; 2]);
        let text = format!("SELECT status FROM refund_order WHERE out_refund_no = '{number}'");
        assert_eq!(raw.text(&text).await.unwrap(), "SUCCESS");
        let text = format!(
            "SELECT status, state FROM notice WHERE out_refund_no = '{number}' ORDER BY status"
        );
        let abnormal = if abnormal_first {
            "ABNORMAL done"
        } else {
            "ABNORMAL superseded"
        };
        assert_eq!(raw.lines(&text).await, [abnormal, "SUCCESS done"]);
    }
    let books = books(&db.database).await;
    assert_eq!((books.ledger_rows, books.ledger_total_fen), (2, 200));
}

async fn a_delivery_and_its_copies_that_wait_together_share_a_verdict(db: TestDatabase) {
    // Aim: copies in one group make one row; a copy with other content waits for the next group.
    // Method: three copies and one with another total wait before the committer starts.
    shop_writes(&db.database, "R1", 100, 300).await;
    let now = SystemClock.now();
    let copy = intake(fact("R1", Success, 100, 300), now);
    let other = intake(fact("R1", Success, 100, 999), now);
    let verdicts = decide_together(&db, vec![copy.clone(), copy.clone(), other, copy]).await;
    let outcomes: Vec<Outcome> = verdicts.iter().map(|v| v.outcome).collect();
    use Outcome::{Applied, RepeatDiffers};
    assert_eq!(outcomes, [Applied, Applied, RepeatDiffers, Applied]);
    assert!(verdicts[2].alert && !verdicts[0].alert);
    let mut raw = Raw::open(&db.url).await;
    assert_eq!(raw.int("SELECT COUNT(*) FROM notice").await, 1);
    // the first as it came, and the one whose content differs
    assert_eq!(raw.int("SELECT COUNT(*) FROM notice_raw").await, 2);
    assert_eq!(
        raw.text("SELECT total_fen FROM notice").await.unwrap(),
        "300"
    );
    assert_eq!(books(&db.database).await.ledger_rows, 1);
}

async fn a_row_that_moved_since_it_was_decided_is_decided_again(db: TestDatabase) {
    // Aim: nothing leaves a final state, whatever the shop does between two of our statements.
    // Method: a SUCCESS and a CLOSED of one refund race against the shop setting the other one by
    // itself; whatever comes out, the row ends where it was first, and money moves only for SUCCESS.
    let store = db.database.store();
    for (n, (ours, theirs)) in [(Success, "CLOSED"), (Closed, "SUCCESS")]
        .into_iter()
        .cycle()
        .take(40)
        .enumerate()
    {
        let number = format!("R{n}");
        shop_writes(&db.database, &number, 100, 300).await;
        let mut shop = Raw::open(&db.url).await;
        let by_shop = tokio::spawn({
            let number = number.clone();
            async move {
                let text = format!(
                    "UPDATE refund_order SET status = '{theirs}' WHERE out_refund_no = '{number}' AND status = 'PROCESSING'"
                );
                shop.run(&text).await
            }
        });
        let intake = intake(fact(&number, ours, 100, 300), SystemClock.now());
        let verdict = commit(&*store, &intake).await;
        let shop_won = by_shop.await.unwrap() == 1;
        let expected = if shop_won {
            Outcome::Quarantined
        } else {
            Outcome::Applied
        };
        assert_eq!(verdict.outcome, expected, "{number}: {verdict:?}");
        let text = format!("SELECT status FROM refund_order WHERE out_refund_no = '{number}'");
        let status = Raw::open(&db.url).await.text(&text).await.unwrap();
        assert_eq!(status, if shop_won { theirs } else { ours.as_str() });
    }
}

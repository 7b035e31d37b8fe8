//! Every statement there is, for a sample of rows.

use std::fmt;

use refund_batcher::adapters::clock::SystemClock;
use refund_batcher::core::decide::Cas;
use refund_batcher::core::fact::{Digest, Fact};
use refund_batcher::core::notice::{Intake, NoticeKey, State};
use refund_batcher::core::plan::{LedgerInsert, OrderUpdate, OwnKey};
use refund_batcher::core::refund::RefundStatus::Success;
use refund_batcher::core::sql::commit::{self, NewNotice, NoticeChange};
use refund_batcher::core::sql::shop::{self, NewOrder, NewRefund};
use refund_batcher::core::sql::{Dialect, LIST_MAX, Statement, flush, relay};
use refund_batcher::core::types::{Mchid, UnixMs};
use refund_batcher::ports::Clock;

use super::TestDatabase;
use super::raw::Raw;
use super::stage::{DECIDE, PLAN, fact, intake};

/// Sizes of groups: small ones, and the most of a commit or a poll of the relay, and of a flush.
pub(crate) const SIZES: [usize; 6] = [1, 2, 8, 64, COMMIT_MAX, LIST_MAX];
/// Notices at most in a commit group.
const COMMIT_MAX: usize = 512;
const NOW: UnixMs = UnixMs(1_789_000_000_000);
const MERCHANTS: usize = 50;

/// A statement's name in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Named(&'static str);

impl Named {
    /// Those that read whole tables by design, for a demo's end, a test or an audit; and the one that
    /// counts up to 10,000 rows of an index.
    pub(crate) fn of_whole_tables() -> [Named; 5] {
        ["books", "count_states", "count_others", "clear", "backlog"].map(Named)
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// One refund with its order and its notice.
#[derive(Clone)]
struct Case {
    fact: Fact,
    refund_id: i64,
    order_id: i64,
    notice: NoticeKey,
}

/// Refunds to build statements for.
#[derive(Clone)]
pub(crate) struct Sample(Vec<Case>);

/// The n-th merchant: half of all refunds are the first one's, a quarter the second one's.
fn mchid_of(n: usize) -> Mchid {
    let at = match n % 4 {
        0 | 1 => 0,
        2 => 1,
        _ => 2 + n / 4 % (MERCHANTS - 2),
    };
    Mchid::parse(&format!("19000000{at:02}")).unwrap()
}

fn fact_of(n: usize) -> Fact {
    Fact {
        mchid: mchid_of(n),
        ..fact(&format!("R{n:06}"), Success, 100, 300)
    }
}

impl Sample {
    /// Rows that no database holds, of the first two merchants.
    pub(crate) fn invented(count: usize) -> Sample {
        let case = |n: usize| {
            let fact = fact_of(n);
            let id = i64::try_from(n).unwrap() + 1;
            Case {
                notice: NoticeKey {
                    id,
                    mchid: fact.mchid.clone(),
                },
                fact,
                refund_id: id,
                order_id: id,
            }
        };
        Sample(
            (0..count * 4 / 3 + 4)
                .filter(|n| n % 4 != 3)
                .map(case)
                .take(count)
                .collect(),
        )
    }

    /// Stores so many orders, refunds and notices; half of the notices are booked.
    pub(crate) async fn stored(db: &TestDatabase, count: usize) -> Sample {
        let (store, now) = (db.database.store(), SystemClock.now());
        let facts: Vec<Fact> = (0..count).map(fact_of).collect();
        let mut cases = Vec::new();
        for some in facts.chunks(COMMIT_MAX) {
            db.database
                .shop()
                .insert_orders(&new_orders(some), now)
                .await
                .unwrap();
            db.database
                .shop()
                .insert_refunds(&new_refunds(some), now)
                .await
                .unwrap();
            let group: Vec<Intake> = some.iter().map(|fact| intake(fact.clone(), now)).collect();
            let verdicts = store.commit(&group, now, DECIDE).await.unwrap();
            let keys: Vec<NoticeKey> = verdicts
                .into_iter()
                .map(|verdict| verdict.key.unwrap())
                .collect();
            let booked: Vec<NoticeKey> = keys.iter().step_by(2).cloned().collect();
            store.flush(&booked, now, PLAN).await.unwrap();
            cases.extend(
                some.iter()
                    .zip(keys)
                    .map(|(fact, notice)| (fact.clone(), notice)),
            );
        }
        let mut raw = Raw::open(&db.url).await;
        let ids = async |raw: &mut Raw, table: &str| -> Vec<i64> {
            let rows = raw
                .lines(&format!("SELECT id FROM {table} ORDER BY id"))
                .await;
            rows.iter().map(|id| id.parse().unwrap()).collect()
        };
        let (refunds, orders) = (
            ids(&mut raw, "refund_order").await,
            ids(&mut raw, "orders").await,
        );
        assert_eq!(
            (refunds.len(), orders.len(), cases.len()),
            (count, count, count)
        );
        let rows = cases.into_iter().zip(refunds).zip(orders);
        let case = |(((fact, notice), refund_id), order_id)| Case {
            fact,
            refund_id,
            order_id,
            notice,
        };
        Sample(rows.map(case).collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The first rows, as many as there are.
    pub(crate) fn first(&self, count: usize) -> Sample {
        Sample(self.0.iter().take(count).cloned().collect())
    }

    /// The rows of the first merchant.
    pub(crate) fn of_one_merchant(&self) -> Sample {
        Sample(
            self.0
                .iter()
                .filter(|case| case.fact.mchid == mchid_of(0))
                .cloned()
                .collect(),
        )
    }

    /// The rows of the first two, spread over the whole table.
    pub(crate) fn of_two_merchants(&self) -> Sample {
        let ours = |case: &&Case| case.fact.mchid == mchid_of(0) || case.fact.mchid == mchid_of(2);
        Sample(self.0.iter().filter(ours).step_by(5).cloned().collect())
    }

    /// Rows of all merchants, spread over the whole table.
    pub(crate) fn spread(&self) -> Sample {
        Sample(self.0.iter().step_by(7).cloned().collect())
    }

    fn keys(&self) -> Vec<NoticeKey> {
        let mut keys: Vec<NoticeKey> = self.0.iter().map(|case| case.notice.clone()).collect();
        keys.sort();
        keys
    }

    fn refunds(&self) -> Vec<(&str, &str)> {
        self.0
            .iter()
            .map(|case| (case.fact.mchid.as_str(), case.fact.out_refund_no.as_str()))
            .collect()
    }

    fn digests(&self) -> Vec<(&str, Digest)> {
        self.0
            .iter()
            .map(|case| (case.fact.mchid.as_str(), case.fact.digest()))
            .collect()
    }

    fn orders(&self) -> Vec<OwnKey> {
        let key = |case: &Case| {
            (
                case.fact.mchid.as_str().to_owned(),
                case.fact.out_trade_no.as_str().to_owned(),
            )
        };
        self.0.iter().map(key).collect()
    }
}

fn new_orders(facts: &[Fact]) -> Vec<NewOrder> {
    let row = |fact: &Fact| NewOrder {
        mchid: fact.mchid.as_str().to_owned(),
        out_trade_no: fact.out_trade_no.as_str().to_owned(),
        transaction_id: None,
        total_fen: 300,
    };
    facts.iter().map(row).collect()
}

fn new_refunds(facts: &[Fact]) -> Vec<NewRefund> {
    let row = |fact: &Fact| NewRefund {
        mchid: fact.mchid.as_str().to_owned(),
        out_refund_no: fact.out_refund_no.as_str().to_owned(),
        out_trade_no: fact.out_trade_no.as_str().to_owned(),
        transaction_id: None,
        refund_fen: 100,
        total_fen: 300,
    };
    facts.iter().map(row).collect()
}

/// Every statement that only reads.
pub(crate) fn reading(dialect: Dialect, sample: &Sample) -> Vec<(Named, Vec<Statement>)> {
    let keys = sample.keys();
    let refund_keys: Vec<OwnKey> = sample
        .refunds()
        .iter()
        .map(|(m, no)| ((*m).into(), (*no).into()))
        .collect();
    let mut all = vec![
        ("claim", vec![flush::claim(dialect, &keys)]),
        ("still_pending", vec![flush::still_pending(dialect, &keys)]),
        ("lock_orders", flush::lock_orders(dialect, &sample.orders())),
        ("find_orders", flush::find_orders(dialect, &sample.orders())),
        ("find_ledger", flush::find_ledger(dialect, &refund_keys)),
    ];
    if sample.len() <= COMMIT_MAX {
        all.extend([
            (
                "lock_refunds",
                commit::lock_refunds(dialect, &sample.refunds()),
            ),
            (
                "find_refunds",
                commit::find_refunds(dialect, &sample.refunds()),
            ),
            (
                "find_notices",
                commit::find_notices(dialect, &sample.digests()),
            ),
            ("find_ids", commit::find_ids(dialect, &sample.digests())),
            (
                "lock_due",
                vec![relay::lock_due(
                    dialect,
                    State::Pending,
                    &keys,
                    UnixMs(i64::MAX),
                )],
            ),
        ]);
        for (name, state) in [
            ("due pending", State::Pending),
            ("due parked", State::Parked),
        ] {
            let due =
                |oldest: bool| relay::due(dialect, state, UnixMs(i64::MAX), sample.len(), oldest);
            all.push((name, vec![due(true)]));
            all.push((name, vec![due(false)]));
        }
    }
    all.extend([
        ("backlog", vec![relay::backlog(dialect, State::Pending)]),
        ("epoch", vec![relay::epoch()]),
        ("books", vec![shop::books()]),
        ("count_states", vec![shop::count_states()]),
        (
            "count_others",
            vec![shop::count_others("orders", &["1900000001"])],
        ),
        ("read_meta", vec![shop::read_meta("epoch")]),
    ]);
    all.into_iter()
        .map(|(name, statements)| (Named(name), statements))
        .collect()
}

/// Every statement that writes. The rows to insert are none of those that are stored.
pub(crate) fn changing(dialect: Dialect, sample: &Sample) -> Vec<(Named, Vec<Statement>)> {
    let keys = sample.keys();
    let renamed: Vec<Fact> = sample.0.iter().map(|case| renamed(&case.fact)).collect();
    let change = |key: &NoticeKey| NoticeChange {
        key: key.clone(),
        from: State::Pending,
        state: State::Dead,
        reason: Some("a reason".to_owned()),
        attempts: Some(3),
        due_at: None,
    };
    let mut changes: Vec<NoticeChange> = keys.iter().map(change).collect();
    changes.sort_by_key(|change| change.key.clone());
    let mut ledger: Vec<LedgerInsert> = renamed.iter().map(ledger_insert).collect();
    ledger.sort_by_key(|row| (row.mchid.clone(), row.out_refund_no.clone()));
    let mut orders: Vec<OrderUpdate> = sample.0.iter().map(order_update).collect();
    orders.sort_by_key(|row| row.id);
    let mut counts: Vec<(NoticeKey, i64)> = keys.iter().map(|key| (key.clone(), 3)).collect();
    counts.sort();
    let mut all = vec![
        (
            "change_notices",
            vec![commit::change_notices(dialect, &changes, NOW)],
        ),
        (
            "count_repeats",
            vec![commit::count_repeats(dialect, &counts)],
        ),
        ("insert_ledger", flush::insert_ledger(&ledger, NOW)),
        (
            "update_orders",
            vec![flush::update_orders(dialect, &orders, NOW)],
        ),
        ("finish", vec![flush::finish(dialect, &keys, NOW)]),
        (
            "insert_orders",
            shop::insert_orders(&new_orders(&renamed), NOW),
        ),
        (
            "insert_refunds",
            shop::insert_refunds(&new_refunds(&renamed), NOW),
        ),
    ];
    if sample.len() <= COMMIT_MAX {
        let mut intakes: Vec<Intake> = renamed.into_iter().map(|fact| intake(fact, NOW)).collect();
        intakes.sort_by_key(|intake| (intake.mchid.clone(), intake.digest));
        let new = |intake| NewNotice {
            intake,
            state: State::Pending,
            reason: None,
            due_at: Some(NOW),
        };
        let notices: Vec<NewNotice<'_>> = intakes.iter().map(new).collect();
        let raws: Vec<_> = keys
            .iter()
            .zip(&intakes)
            .filter_map(|(key, i)| Some((key.clone(), i.raw()?, NOW)))
            .collect();
        let mut moves: Vec<Cas> = sample.0.iter().map(cas).collect();
        moves.sort_by_key(|row| row.refund_row_id);
        all.extend([
            ("cas", vec![commit::cas(dialect, &moves, NOW)]),
            ("insert_notices", commit::insert_notices(&notices, NOW)),
            ("insert_raw", commit::insert_raw(&raws)),
            (
                "take_over",
                vec![commit::take_over(
                    dialect,
                    &changes[0],
                    &intakes[0],
                    NOW,
                    NOW,
                )],
            ),
            ("lease", vec![relay::lease(dialect, &keys, NOW)]),
        ]);
    }
    all.extend([
        ("set_epoch", vec![relay::set_epoch("e")]),
        ("write_meta", vec![shop::write_meta("name", "value")]),
        ("clear", vec![shop::clear("notice_raw")]),
    ]);
    all.into_iter()
        .map(|(name, statements)| (Named(name), statements))
        .collect()
}

fn renamed(old: &Fact) -> Fact {
    let new = fact(&format!("N{}", old.out_refund_no), Success, 100, 300);
    Fact {
        mchid: old.mchid.clone(),
        ..new
    }
}

fn cas(case: &Case) -> Cas {
    Cas {
        refund_row_id: case.refund_id,
        mchid: case.fact.mchid.clone(),
        to: Success,
        success_at: Some(NOW),
    }
}

fn ledger_insert(fact: &Fact) -> LedgerInsert {
    LedgerInsert {
        mchid: fact.mchid.as_str().to_owned(),
        out_refund_no: fact.out_refund_no.as_str().to_owned(),
        out_trade_no: fact.out_trade_no.as_str().to_owned(),
        refund_id: None,
        transaction_id: None,
        refund_fen: 100,
        payer_refund_fen: None,
        currency: "CNY".to_owned(),
        success_at_ms: None,
        notice_id: 1,
    }
}

fn order_update(case: &Case) -> OrderUpdate {
    OrderUpdate {
        id: case.order_id,
        mchid: case.fact.mchid.as_str().to_owned(),
        refunded_fen: 100,
        refund_status: "PARTIAL",
    }
}

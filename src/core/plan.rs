//! Plans a flush: claimed facts, orders and ledger rows in; ledger rows, order updates and the
//! notices' new states out.
//!
//! Money is added to what was read under the order's lock, so the values written are targets, not
//! increments: a plan that runs twice leaves what one run left.

use std::collections::{BTreeMap, HashMap};

use super::notice::{NoticeKey, Reason, State, reason};
use super::types::{Fen, UnixMs};

/// Shortest and longest pause before a fact is flushed again.
const AGAIN_MS: (i64, i64) = (1_000, 3_600_000);
/// Longest pause where the fault was nobody's.
const NEUTRAL_MS_MAX: i64 = 30_000;

/// Merchant and the merchant's own number: the key of an order or of a refund.
pub type OwnKey = (String, String);

/// A claimed notice row. Optional fields are missing only when somebody changed the row by hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedNotice {
    /// Primary key.
    pub key: NoticeKey,
    /// The refund.
    pub out_refund_no: Option<String>,
    /// Its order.
    pub out_trade_no: Option<String>,
    /// WeChat Pay's refund number.
    pub refund_id: Option<String>,
    /// WeChat Pay's payment number.
    pub transaction_id: Option<String>,
    /// Money of the refund.
    pub refund_fen: Option<i64>,
    /// Money that goes back in cash.
    pub payer_refund_fen: Option<i64>,
    /// Its currency.
    pub currency: Option<String>,
    /// When it succeeded.
    pub success_at_ms: Option<i64>,
    /// Attempts counted so far.
    pub attempts: i64,
    /// First arrival.
    pub received_at: UnixMs,
}

/// An order as read under its lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderRow {
    /// Primary key.
    pub id: i64,
    /// Owner.
    pub mchid: String,
    /// The merchant's order number.
    pub out_trade_no: String,
    /// Money of the order.
    pub total_fen: i64,
    /// Money refunded so far.
    pub refunded_fen: i64,
    /// Its currency.
    pub currency: String,
}

/// What the look-up of an order gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OrderLookup {
    /// Locked by this transaction.
    Found(OrderRow),
    /// There, but locked by somebody else.
    Locked,
}

/// A ledger row as far as planning needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerRow {
    /// Money of the refund.
    pub refund_fen: i64,
    /// Its currency.
    pub currency: String,
    /// Its order.
    pub out_trade_no: String,
}

/// A ledger row to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerInsert {
    /// Owner.
    pub mchid: String,
    /// The refund.
    pub out_refund_no: String,
    /// Its order.
    pub out_trade_no: String,
    /// WeChat Pay's refund number.
    pub refund_id: Option<String>,
    /// WeChat Pay's payment number.
    pub transaction_id: Option<String>,
    /// Money of the refund.
    pub refund_fen: i64,
    /// Money that goes back in cash.
    pub payer_refund_fen: Option<i64>,
    /// Its currency.
    pub currency: String,
    /// When it succeeded.
    pub success_at_ms: Option<i64>,
    /// The notice it comes from.
    pub notice_id: i64,
}

/// An order's new values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderUpdate {
    /// Primary key.
    pub id: i64,
    /// Owner.
    pub mchid: String,
    /// Money refunded, the new value.
    pub refunded_fen: i64,
    /// `PARTIAL` or `FULL`.
    pub refund_status: &'static str,
}

/// A notice that is not done: its new state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settle {
    /// Primary key.
    pub key: NoticeKey,
    /// `pending` (again later) or `dead`.
    pub state: State,
    /// Why.
    pub reason: Reason,
    /// Attempts used.
    pub attempts: i64,
    /// When the relay takes it again.
    pub due_at: Option<UnixMs>,
}

/// What one flush writes. Lists are sorted by key, so that all writers lock in one order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlushPlan {
    /// New ledger rows.
    pub ledger: Vec<LedgerInsert>,
    /// Orders with new values.
    pub orders: Vec<OrderUpdate>,
    /// Notices that are done.
    pub done: Vec<NoticeKey>,
    /// Notices that are not.
    pub settled: Vec<Settle>,
}

/// The numbers and the chance that planning needs.
#[derive(Clone, Copy, Debug)]
pub struct PlanLimits {
    /// Attempts at most before a fact is dead.
    pub attempts_max: i64,
    /// Whether the relay took these rows: it has counted this attempt already.
    pub taken: bool,
    /// A number from 0 to 1, drawn for this batch, that spreads the next attempts.
    pub jitter: f64,
}

impl PlanLimits {
    /// The number of the attempt under way for a row that stands at `attempts`.
    fn this_attempt(&self, attempts: i64) -> i64 {
        if self.taken {
            attempts
        } else {
            attempts.saturating_add(1)
        }
    }
}

/// Whose fault it is that a fact was not booked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setback {
    /// The row's own: uses up an attempt.
    Own(Reason),
    /// Nobody's: the attempt is given back.
    Neutral(Reason),
}

/// The new state of a fact that could not be booked now.
pub fn set_back(
    notice: &ClaimedNotice,
    setback: Setback,
    now: UnixMs,
    limits: &PlanLimits,
) -> Settle {
    let attempt = limits.this_attempt(notice.attempts);
    let (reason, attempts, uses_up) = match setback {
        Setback::Own(reason) => (reason, attempt, true),
        Setback::Neutral(reason) => (reason, attempt - 1, false),
    };
    let key = notice.key.clone();
    if uses_up && attempts >= limits.attempts_max {
        return Settle {
            key,
            state: State::Dead,
            reason,
            attempts,
            due_at: None,
        };
    }
    // a used-up attempt doubles the pause; a neutral one waits about as long as it has waited so far
    let pause_ms = if uses_up {
        AGAIN_MS.0.saturating_mul(1_i64 << attempts.clamp(0, 20))
    } else {
        now.since_ms(notice.received_at).min(NEUTRAL_MS_MAX)
    }
    .clamp(AGAIN_MS.0, AGAIN_MS.1);
    Settle {
        key,
        state: State::Pending,
        reason,
        attempts,
        due_at: Some(now.plus_ms(spread(pause_ms, limits.jitter, notice.key.id))),
    }
}

/// Full jitter, different for each row of a batch, and never at once.
fn spread(pause_ms: i64, jitter: f64, id: i64) -> i64 {
    let of_row = f64::from(u32::try_from(id.rem_euclid(997)).unwrap_or(0)) / 997.0;
    let share = (jitter + of_row).fract();
    #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
    let spread_ms = (pause_ms as f64 * share) as i64;
    spread_ms.max(AGAIN_MS.0 / 10)
}

/// Plans one flush.
///
/// Shapes: `claimed`, sorted by id; `orders` and `ledger` by (mchid, number); an order that is not
/// in `orders` is not there.   Units: fen, ms.   Errors: none; what cannot be booked is settled.
pub fn plan(
    claimed: &[ClaimedNotice],
    orders: &HashMap<OwnKey, OrderLookup>,
    ledger: &HashMap<OwnKey, LedgerRow>,
    now: UnixMs,
    limits: &PlanLimits,
) -> FlushPlan {
    let mut plan = FlushPlan::default();
    let mut balance: BTreeMap<i64, OrderUpdate> = BTreeMap::new();
    let mut inserts: BTreeMap<OwnKey, LedgerInsert> = BTreeMap::new();
    for notice in claimed {
        let mut settle = |setback| plan.settled.push(set_back(notice, setback, now, limits));
        let Some(insert) = ledger_row(notice) else {
            plan.settled
                .push(dead(notice, reason::ROW_INCOMPLETE.into(), limits));
            continue;
        };
        let refund: OwnKey = (insert.mchid.clone(), insert.out_refund_no.clone());
        let booked = ledger
            .get(&refund)
            .map(|row| (row.refund_fen, &row.currency, &row.out_trade_no));
        let planned = inserts
            .get(&refund)
            .map(|row| (row.refund_fen, &row.currency, &row.out_trade_no));
        if let Some(there) = booked.or(planned) {
            if there == (insert.refund_fen, &insert.currency, &insert.out_trade_no) {
                plan.done.push(notice.key.clone());
            } else {
                plan.settled
                    .push(dead(notice, reason::LEDGER_DIFFERS.into(), limits));
            }
            continue;
        }
        let order = match orders.get(&(insert.mchid.clone(), insert.out_trade_no.clone())) {
            Some(OrderLookup::Found(order)) => order,
            Some(OrderLookup::Locked) => {
                settle(Setback::Neutral(reason::ORDER_LOCKED.into()));
                continue;
            }
            None => {
                settle(Setback::Own(reason::ORDER_ABSENT.into()));
                continue;
            }
        };
        let before = balance
            .get(&order.id)
            .map_or(order.refunded_fen, |update| update.refunded_fen);
        match refunded_after(order, before, &insert) {
            Ok(update) => {
                balance.insert(order.id, update);
                plan.done.push(notice.key.clone());
                inserts.insert(refund, insert);
            }
            Err(why) => plan.settled.push(dead(notice, why.into(), limits)),
        }
    }
    plan.ledger = inserts.into_values().collect();
    plan.orders = balance.into_values().collect();
    plan
}

/// The ledger row that a notice asks for; nothing where the notice lacks a needed column.
fn ledger_row(notice: &ClaimedNotice) -> Option<LedgerInsert> {
    Some(LedgerInsert {
        mchid: notice.key.mchid.as_str().to_owned(),
        out_refund_no: notice.out_refund_no.clone()?,
        out_trade_no: notice.out_trade_no.clone()?,
        refund_id: notice.refund_id.clone(),
        transaction_id: notice.transaction_id.clone(),
        refund_fen: notice.refund_fen.filter(|fen| *fen > 0)?,
        payer_refund_fen: notice.payer_refund_fen,
        currency: notice.currency.clone()?,
        success_at_ms: notice.success_at_ms,
        notice_id: notice.key.id,
    })
}

/// The order after one more refund, or why it cannot take it.
fn refunded_after(
    order: &OrderRow,
    before: i64,
    insert: &LedgerInsert,
) -> Result<OrderUpdate, &'static str> {
    if order.currency != insert.currency {
        return Err(reason::ORDER_CURRENCY);
    }
    if before < 0 {
        return Err(reason::ORDER_AMOUNTS);
    }
    let after = Fen(before)
        .checked_add(Fen(insert.refund_fen))
        .ok_or(reason::OVER_REFUND)?;
    if after.0 > order.total_fen {
        return Err(reason::OVER_REFUND);
    }
    Ok(OrderUpdate {
        id: order.id,
        mchid: order.mchid.clone(),
        refunded_fen: after.0,
        refund_status: if after.0 == order.total_fen {
            "FULL"
        } else {
            "PARTIAL"
        },
    })
}

fn dead(notice: &ClaimedNotice, reason: Reason, limits: &PlanLimits) -> Settle {
    Settle {
        key: notice.key.clone(),
        state: State::Dead,
        reason,
        attempts: limits.this_attempt(notice.attempts),
        due_at: None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::core::types::Mchid;

    const NOW: UnixMs = UnixMs(1_000_000);
    const LIMITS: PlanLimits = PlanLimits {
        attempts_max: 3,
        taken: false,
        jitter: 0.5,
    };

    fn notice(id: i64, refund: &str, order: &str, fen: i64) -> ClaimedNotice {
        ClaimedNotice {
            key: NoticeKey {
                id,
                mchid: Mchid::parse("m").unwrap(),
            },
            out_refund_no: Some(refund.to_owned()),
            out_trade_no: Some(order.to_owned()),
            refund_id: None,
            transaction_id: None,
            refund_fen: Some(fen),
            payer_refund_fen: None,
            currency: Some("CNY".to_owned()),
            success_at_ms: None,
            attempts: 0,
            received_at: UnixMs(NOW.0 - 500),
        }
    }

    fn orders(rows: &[(i64, &str, i64, i64)]) -> HashMap<OwnKey, OrderLookup> {
        rows.iter()
            .map(|(id, no, total_fen, refunded_fen)| {
                let row = OrderRow {
                    id: *id,
                    mchid: "m".to_owned(),
                    out_trade_no: (*no).to_owned(),
                    total_fen: *total_fen,
                    refunded_fen: *refunded_fen,
                    currency: "CNY".to_owned(),
                };
                (("m".to_owned(), (*no).to_owned()), OrderLookup::Found(row))
            })
            .collect()
    }

    fn run(claimed: &[ClaimedNotice], rows: &[(i64, &str, i64, i64)]) -> FlushPlan {
        plan(claimed, &orders(rows), &HashMap::new(), NOW, &LIMITS)
    }

    #[test]
    fn money_of_one_order_is_added_up_and_bounded_by_its_total() {
        let claimed = [
            notice(1, "a", "T", 3000),
            notice(2, "b", "T", 3000),
            notice(3, "c", "T", 4000),
            notice(4, "d", "T", 1),
        ];
        let plan = run(&claimed, &[(7, "T", 10_000, 0)]);
        assert_eq!(plan.ledger.len(), 3);
        assert_eq!(plan.done.len(), 3);
        assert_eq!(plan.orders.len(), 1);
        assert_eq!(
            (plan.orders[0].refunded_fen, plan.orders[0].refund_status),
            (10_000, "FULL")
        );
        assert_eq!(
            (plan.settled[0].state, plan.settled[0].reason.as_ref()),
            (State::Dead, reason::OVER_REFUND)
        );
        let plan = run(&claimed[..2], &[(7, "T", 10_000, 0)]);
        assert_eq!(plan.orders[0].refund_status, "PARTIAL");
    }

    #[test]
    fn a_refund_in_the_ledger_adds_nothing_and_other_money_is_a_contradiction() {
        let there = |fen: i64| {
            let row = LedgerRow {
                refund_fen: fen,
                currency: "CNY".to_owned(),
                out_trade_no: "T".to_owned(),
            };
            HashMap::from([(("m".to_owned(), "a".to_owned()), row)])
        };
        let claimed = [notice(1, "a", "T", 100)];
        let all = orders(&[(7, "T", 300, 100)]);
        let same = plan(&claimed, &all, &there(100), NOW, &LIMITS);
        assert_eq!(
            (same.done.len(), same.ledger.len(), same.orders.len()),
            (1, 0, 0)
        );
        let other = plan(&claimed, &all, &there(99), NOW, &LIMITS);
        assert_eq!(other.settled[0].reason, reason::LEDGER_DIFFERS);
        // the same refund twice in one batch is booked once
        let twice = plan(
            &[notice(1, "a", "T", 100), notice(2, "a", "T", 100)],
            &all,
            &HashMap::new(),
            NOW,
            &LIMITS,
        );
        assert_eq!(
            (
                twice.done.len(),
                twice.ledger.len(),
                twice.orders[0].refunded_fen
            ),
            (2, 1, 200)
        );
    }

    #[test]
    fn an_absent_order_uses_up_attempts_and_a_locked_one_does_not() {
        let first = notice(1, "a", "T", 100);
        let settle = &run(std::slice::from_ref(&first), &[]).settled[0];
        assert_eq!((settle.state, settle.attempts), (State::Pending, 1));
        let mut last = first.clone();
        last.attempts = 2;
        let settle = &run(std::slice::from_ref(&last), &[]).settled[0];
        assert_eq!(
            (settle.state, settle.attempts, settle.due_at),
            (State::Dead, 3, None)
        );
        let locked = HashMap::from([(("m".to_owned(), "T".to_owned()), OrderLookup::Locked)]);
        let settle = &plan(&[last.clone()], &locked, &HashMap::new(), NOW, &LIMITS).settled[0];
        assert_eq!((settle.state, settle.attempts), (State::Pending, 2));
        // the relay has counted the attempt already: it is given back
        let taken = PlanLimits {
            taken: true,
            ..LIMITS
        };
        let settle = &plan(&[last], &locked, &HashMap::new(), NOW, &taken).settled[0];
        assert_eq!((settle.state, settle.attempts), (State::Pending, 1));
    }

    #[test]
    fn rows_that_make_no_sense_end_dead_and_never_panic() {
        let mut lame = notice(1, "a", "T", 100);
        lame.refund_fen = None;
        assert_eq!(
            run(&[lame], &[(7, "T", 300, 0)]).settled[0].reason,
            reason::ROW_INCOMPLETE
        );
        let negative = run(&[notice(1, "a", "T", 100)], &[(7, "T", 300, -1)]);
        assert_eq!(negative.settled[0].reason, reason::ORDER_AMOUNTS);
        let huge = run(&[notice(1, "a", "T", i64::MAX)], &[(7, "T", i64::MAX, 1)]);
        assert_eq!(huge.settled[0].reason, reason::OVER_REFUND);
    }

    #[test]
    fn pauses_grow_are_spread_and_bounded() {
        let mut row = notice(1, "a", "T", 100);
        let limits = PlanLimits {
            attempts_max: 99,
            taken: false,
            jitter: 0.999,
        };
        for attempts in [0, 5, 40, i64::MAX] {
            row.attempts = attempts;
            let settle = set_back(
                &row,
                Setback::Own("x".into()),
                NOW,
                &PlanLimits {
                    attempts_max: i64::MAX,
                    ..limits
                },
            );
            let pause = settle.due_at.map_or(0, |due| due.0 - NOW.0);
            assert!(pause <= AGAIN_MS.1, "{attempts}: {pause}");
        }
    }
}

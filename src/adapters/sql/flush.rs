//! The transaction of a flush: claim, lock the orders, read the ledger, plan in pure code, write.

use std::collections::{HashMap, HashSet};

use std::time::Instant;

use super::{Session, SessionExt, check_distinct};
use crate::core::notice::{NoticeKey, Reason, State};
use crate::core::plan::{
    ClaimedNotice, OrderLookup, OwnKey, PlanLimits, Setback, Settle, plan, set_back,
};
use crate::core::sql::commit::{NoticeChange, change_notices};
use crate::core::sql::flush as sql;
use crate::core::types::UnixMs;
use crate::ports::{Flushed, StoreError};
use crate::telemetry;

pub(super) async fn flush<S: Session>(
    session: &mut S,
    keys: &[NoticeKey],
    now: UnixMs,
    limits: PlanLimits,
) -> Result<Flushed, StoreError> {
    let dialect = session.dialect();
    let started = Instant::now();
    let claimed = session
        .read_all(&[sql::claim(dialect, keys)], sql::claimed)
        .await?;
    check_distinct(claimed.iter().map(|notice| notice.key.id).collect())?;
    let busy = find_busy(session, keys, &claimed).await?;
    if claimed.is_empty() {
        return Ok(Flushed {
            busy,
            ..Flushed::default()
        });
    }
    let orders = lock_orders(session, &claimed).await?;
    let refunds = own_keys(&claimed, |notice| notice.out_refund_no.as_ref());
    let ledger = match refunds.is_empty() {
        true => HashMap::new(),
        false => session
            .read_all(&sql::find_ledger(dialect, &refunds), sql::ledger_row)
            .await?
            .into_iter()
            .collect(),
    };

    let read = Instant::now();
    telemetry::stage("claim", read - started);
    let plan = plan(&claimed, &orders, &ledger, now, &limits);
    let planned = Instant::now();
    telemetry::stage("plan", planned - read);

    let rows = plan.ledger.len();
    session
        .run_counted(
            &sql::insert_ledger(&plan.ledger, now),
            rows,
            "refund_ledger",
        )
        .await?;
    if !plan.orders.is_empty() {
        let statement = sql::update_orders(dialect, &plan.orders, now);
        session
            .run_counted(&[statement], plan.orders.len(), "orders")
            .await?;
    }
    if !plan.done.is_empty() {
        let statement = sql::finish(dialect, &plan.done, now);
        session
            .run_counted(&[statement], plan.done.len(), "notice")
            .await?;
    }
    let settled = settle(session, plan.settled, now).await?;
    telemetry::stage("write", planned.elapsed());
    Ok(Flushed {
        done: u64::try_from(plan.done.len()).unwrap_or(u64::MAX),
        ledger_rows: u64::try_from(rows).unwrap_or(u64::MAX),
        busy,
        ..settled
    })
}

pub(super) async fn put_back<S: Session>(
    session: &mut S,
    keys: &[NoticeKey],
    own: Option<Reason>,
    now: UnixMs,
    limits: PlanLimits,
) -> Result<Flushed, StoreError> {
    let statement = sql::claim(session.dialect(), keys);
    let claimed = session.read_all(&[statement], sql::claimed).await?;
    let settled = claimed
        .iter()
        .map(|notice| {
            let setback = match &own {
                Some(reason) => Setback::Own(reason.clone()),
                None => Setback::Neutral("database fault".into()),
            };
            set_back(notice, setback, now, &limits)
        })
        .collect();
    settle(session, settled, now).await
}

/// Notices that are pending but were not given to us.
async fn find_busy<S: Session>(
    session: &mut S,
    keys: &[NoticeKey],
    claimed: &[ClaimedNotice],
) -> Result<Vec<NoticeKey>, StoreError> {
    if claimed.len() == keys.len() {
        return Ok(Vec::new());
    }
    let ours: HashSet<&NoticeKey> = claimed.iter().map(|notice| &notice.key).collect();
    let missing: Vec<NoticeKey> = keys
        .iter()
        .filter(|key| !ours.contains(key))
        .cloned()
        .collect();
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    let statement = sql::still_pending(session.dialect(), &missing);
    session
        .read_all(&[statement], |row| row.notice_key(0))
        .await
}

/// The orders of these notices: locked by us, locked by somebody else, or absent from the map.
async fn lock_orders<S: Session>(
    session: &mut S,
    claimed: &[ClaimedNotice],
) -> Result<HashMap<OwnKey, OrderLookup>, StoreError> {
    let dialect = session.dialect();
    let keys = own_keys(claimed, |notice| notice.out_trade_no.as_ref());
    if keys.is_empty() {
        return Ok(HashMap::new());
    }
    let rows = session
        .read_all(&sql::lock_orders(dialect, &keys), sql::order_row)
        .await?;
    check_distinct(rows.iter().map(|row| row.id).collect())?;
    let mut orders: HashMap<OwnKey, OrderLookup> = rows
        .into_iter()
        .map(|row| {
            (
                (row.mchid.clone(), row.out_trade_no.clone()),
                OrderLookup::Found(row),
            )
        })
        .collect();
    let missing: Vec<OwnKey> = keys
        .into_iter()
        .filter(|key| !orders.contains_key(key))
        .collect();
    if !missing.is_empty() {
        let there = session
            .read_all(&sql::find_orders(dialect, &missing), sql::order_key)
            .await?;
        orders.extend(there.into_iter().map(|key| (key, OrderLookup::Locked)));
    }
    Ok(orders)
}

/// Distinct sorted (merchant, own number) of these notices.
fn own_keys(
    claimed: &[ClaimedNotice],
    number: impl Fn(&ClaimedNotice) -> Option<&String>,
) -> Vec<OwnKey> {
    let mut keys: Vec<OwnKey> = claimed
        .iter()
        .filter_map(|notice| {
            Some((
                notice.key.mchid.as_str().to_owned(),
                number(notice)?.clone(),
            ))
        })
        .collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

async fn settle<S: Session>(
    session: &mut S,
    settled: Vec<Settle>,
    now: UnixMs,
) -> Result<Flushed, StoreError> {
    if settled.is_empty() {
        return Ok(Flushed::default());
    }
    let mut flushed = Flushed::default();
    let mut changes = Vec::with_capacity(settled.len());
    for row in settled {
        if row.state == State::Dead {
            flushed.dead.push((row.key.clone(), row.reason.clone()));
        } else {
            flushed.again += 1;
        }
        changes.push(NoticeChange {
            key: row.key,
            from: State::Pending,
            state: row.state,
            reason: Some(row.reason.into_owned()),
            attempts: Some(row.attempts),
            due_at: row.due_at,
        });
    }
    changes.sort_by(|a, b| a.key.cmp(&b.key));
    let statement = change_notices(session.dialect(), &changes, now);
    session
        .run_counted(&[statement], changes.len(), "notice")
        .await?;
    Ok(flushed)
}

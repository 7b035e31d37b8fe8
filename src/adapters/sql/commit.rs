//! The transaction of a commit group: lock the refunds, read what is stored, decide in pure code,
//! move the refunds by compare-and-set, store the notices.

use std::collections::{HashMap, HashSet};

use super::{Session, SessionExt, check_distinct};
use crate::core::decide::{
    Cas, Case, DecideLimits, Decision, Lookup, RefundRow, StoredNotice, Write, decide, is_unopened,
};
use crate::core::fact::Digest;
use crate::core::notice::{Intake, NoticeKey, Raw, State, reason};
use crate::core::sql::commit::{self as sql, NewNotice, NoticeChange};
use crate::core::types::UnixMs;
use crate::ports::{StoreError, Verdict};

pub(super) async fn commit<S: Session>(
    session: &mut S,
    group: &[Intake],
    now: UnixMs,
    limits: DecideLimits,
) -> Result<Vec<Verdict>, StoreError> {
    let mut refunds = lock_refunds(session, group).await?;
    let stored = read_stored(session, group).await?;
    find_the_rest(session, group, &stored, &mut refunds).await?;

    let decisions: Vec<Decision> = group
        .iter()
        .map(|intake| decide(intake, &case(intake, &stored, &refunds), now, &limits))
        .collect();

    move_refunds(session, &decisions, now).await?;
    let inserted = insert_new(session, group, &decisions, now).await?;
    change_stored(session, group, &decisions, now).await?;

    let mut verdicts = Vec::with_capacity(group.len());
    let mut raws: Vec<(NoticeKey, &Raw, UnixMs)> = Vec::new();
    for (intake, decision) in group.iter().zip(decisions) {
        let key = match &decision.write {
            Write::Insert => inserted.get(&intake.digest).cloned(),
            Write::Change { key, .. } => Some(key.clone()),
            // the row went to this intake's owner
            Write::TakeOver { key, .. } => Some(NoticeKey {
                id: key.id,
                mchid: intake.mchid.clone(),
            }),
            Write::None => stored.by_digest(intake).map(|row| row.key.clone()),
        };
        if let (true, Some(key), Some(raw)) = (decision.keep_raw, &key, intake.raw()) {
            raws.push((key.clone(), raw, intake.received_at));
        }
        verdicts.push(Verdict {
            outcome: decision.outcome,
            state: decision.state,
            is_stored_before: decision.write != Write::Insert,
            reason: decision.reason,
            key,
            alert: decision.alert,
        });
    }
    session
        .run_counted(&sql::insert_raw(&raws), raws.len(), "notice_raw")
        .await?;
    Ok(verdicts)
}

pub(super) async fn count_repeats<S: Session>(
    session: &mut S,
    counts: &[(NoticeKey, i64)],
) -> Result<(), StoreError> {
    let statement = sql::count_repeats(session.dialect(), counts);
    // a row that was purged meanwhile is no fault
    session.run(&statement).await.map(|_| ())
}

/// The refund of an intake that has one to decide.
fn refund_of(intake: &Intake) -> Option<(&str, &str)> {
    let fact = intake.fact()?;
    Some((fact.mchid.as_str(), fact.out_refund_no.as_str()))
}

type Refunds = HashMap<(String, String), Lookup>;

/// Step (a): the refund rows that nobody else has locked.
async fn lock_refunds<S: Session>(
    session: &mut S,
    group: &[Intake],
) -> Result<Refunds, StoreError> {
    let mut keys: Vec<(&str, &str)> = group
        .iter()
        .filter(|intake| !intake.skip_refund)
        .filter_map(refund_of)
        .collect();
    keys.sort_unstable();
    if keys.is_empty() {
        return Ok(Refunds::new());
    }
    let statements = sql::lock_refunds(session.dialect(), &keys);
    let rows: Vec<RefundRow> = session.read_all(&statements, sql::refund_row).await?;
    Ok(rows
        .into_iter()
        .map(|row| {
            (
                (row.mchid.clone(), row.out_refund_no.clone()),
                Lookup::Found(row),
            )
        })
        .collect())
}

/// What is stored already, by digest.
struct Stored(HashMap<(String, Digest), StoredNotice>);

impl Stored {
    fn by_digest(&self, intake: &Intake) -> Option<&StoredNotice> {
        self.0
            .get(&(intake.mchid.as_str().to_owned(), intake.digest))
    }

    fn unopened(&self, intake: &Intake) -> Vec<&StoredNotice> {
        intake
            .unopened_as
            .iter()
            .filter_map(|(mchid, digest)| self.0.get(&(mchid.as_str().to_owned(), *digest)))
            .filter(|row| is_unopened(row))
            .collect()
    }
}

/// Step (b): the notices that hold these digests, and the rows where these envelopes wait unopened.
async fn read_stored<S: Session>(session: &mut S, group: &[Intake]) -> Result<Stored, StoreError> {
    let mut keys: Vec<(&str, Digest)> = group
        .iter()
        .flat_map(|intake| {
            let own = (intake.mchid.as_str(), intake.digest);
            let others = intake
                .unopened_as
                .iter()
                .map(|(m, digest)| (m.as_str(), *digest));
            std::iter::once(own).chain(others)
        })
        .collect();
    keys.sort_unstable();
    keys.dedup();
    let statements = sql::find_notices(session.dialect(), &keys);
    let rows = session.read_all(&statements, sql::stored_notice).await?;
    Ok(Stored(
        rows.into_iter()
            .map(|row| ((row.key.mchid.as_str().to_owned(), row.digest), row))
            .collect(),
    ))
}

/// The second look, without a lock, for refunds that were not returned and whose fact is not
/// settled: there but locked, or not there.
async fn find_the_rest<S: Session>(
    session: &mut S,
    group: &[Intake],
    stored: &Stored,
    refunds: &mut Refunds,
) -> Result<(), StoreError> {
    let missing: Vec<(&str, &str)> = group
        .iter()
        .filter(|intake| {
            stored
                .by_digest(intake)
                .is_none_or(|row| row.state.is_decided_again())
        })
        .filter_map(refund_of)
        .filter(|(m, no)| !refunds.contains_key(&((*m).to_owned(), (*no).to_owned())))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let statements = sql::find_refunds(session.dialect(), &missing);
    let there: HashSet<(String, String)> = session
        .read_all(&statements, sql::refund_key)
        .await?
        .into_iter()
        .collect();
    for (mchid, number) in missing {
        let key = (mchid.to_owned(), number.to_owned());
        let lookup = if there.contains(&key) {
            Lookup::Locked
        } else {
            Lookup::Absent
        };
        refunds.insert(key, lookup);
    }
    Ok(())
}

fn case<'a>(intake: &Intake, stored: &'a Stored, refunds: &Refunds) -> Case<'a> {
    let refund = refund_of(intake)
        .and_then(|(m, no)| refunds.get(&(m.to_owned(), no.to_owned())).cloned())
        .unwrap_or(Lookup::Absent);
    Case {
        stored: stored.by_digest(intake),
        unopened: stored.unopened(intake),
        refund,
    }
}

/// Step (d): one update for all refunds that move.
async fn move_refunds<S: Session>(
    session: &mut S,
    decisions: &[Decision],
    now: UnixMs,
) -> Result<(), StoreError> {
    let mut moves: Vec<Cas> = decisions.iter().filter_map(|d| d.cas.clone()).collect();
    if moves.is_empty() {
        return Ok(());
    }
    moves.sort_by_key(|m| m.refund_row_id);
    check_distinct(moves.iter().map(|m| m.refund_row_id).collect())?;
    let statement = sql::cas(session.dialect(), &moves, now);
    session
        .run_counted(&[statement], moves.len(), "refund_order")
        .await
}

/// Step (e): the new notices, and their ids by digest.
async fn insert_new<S: Session>(
    session: &mut S,
    group: &[Intake],
    decisions: &[Decision],
    now: UnixMs,
) -> Result<HashMap<Digest, NoticeKey>, StoreError> {
    let mut new: Vec<NewNotice<'_>> = group
        .iter()
        .zip(decisions)
        .filter(|(_, decision)| decision.write == Write::Insert)
        .map(|(intake, decision)| NewNotice {
            intake,
            state: decision.state,
            reason: decision.reason.as_deref(),
            due_at: decision.due_at,
        })
        .collect();
    if new.is_empty() {
        return Ok(HashMap::new());
    }
    new.sort_by(|a, b| {
        (a.intake.mchid.as_str(), a.intake.digest).cmp(&(b.intake.mchid.as_str(), b.intake.digest))
    });
    session
        .run_counted(&sql::insert_notices(&new, now), new.len(), "notice")
        .await?;
    let keys: Vec<(&str, Digest)> = new
        .iter()
        .map(|row| (row.intake.mchid.as_str(), row.intake.digest))
        .collect();
    let statements = sql::find_ids(session.dialect(), &keys);
    let ids = session.read_all(&statements, sql::notice_id).await?;
    Ok(ids.into_iter().map(|(key, digest)| (digest, key)).collect())
}

/// Step (f): the stored notices whose verdict changed.
async fn change_stored<S: Session>(
    session: &mut S,
    group: &[Intake],
    decisions: &[Decision],
    now: UnixMs,
) -> Result<(), StoreError> {
    let dialect = session.dialect();
    let mut changes = Vec::new();
    let mut take_overs = Vec::new();
    for (intake, decision) in group.iter().zip(decisions) {
        let change = |key: &NoticeKey, from: State| NoticeChange {
            key: key.clone(),
            from,
            state: decision.state,
            reason: decision.reason.as_deref().map(str::to_owned),
            attempts: (decision.state == State::Pending).then_some(0),
            due_at: decision.due_at,
        };
        match &decision.write {
            Write::Change { key, from } => changes.push(change(key, *from)),
            Write::TakeOver {
                key,
                from,
                first_seen,
            } => take_overs.push((change(key, *from), intake, *first_seen)),
            Write::Insert | Write::None => {}
        }
        for key in &decision.opened_elsewhere {
            changes.push(NoticeChange {
                state: State::Superseded,
                reason: Some(reason::OPENED_ELSEWHERE.to_owned()),
                attempts: None,
                due_at: None,
                ..change(key, State::Quarantined)
            });
        }
    }
    changes.sort_by(|a, b| a.key.cmp(&b.key));
    check_distinct(changes.iter().map(|change| change.key.id).collect())?;
    take_overs.sort_by(|a, b| a.0.key.cmp(&b.0.key));
    if !changes.is_empty() {
        let statement = sql::change_notices(dialect, &changes, now);
        session
            .run_counted(&[statement], changes.len(), "notice")
            .await?;
    }
    for (change, intake, first_seen) in take_overs {
        let statement = sql::take_over(dialect, &change, intake, first_seen, now);
        session.run_counted(&[statement], 1, "notice").await?;
    }
    Ok(())
}

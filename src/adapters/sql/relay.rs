//! The relay's reads and its short transaction.

use super::{Session, SessionExt};
use crate::core::notice::{NoticeKey, State};
use crate::core::sql::relay::{self as sql, TakenNotice};
use crate::core::types::UnixMs;
use crate::ports::{Backlog, StoreError};

pub(super) async fn due<S: Session>(
    session: &mut S,
    state: State,
    now: UnixMs,
    rows_max: usize,
    oldest_first: bool,
) -> Result<Vec<NoticeKey>, StoreError> {
    let statement = sql::due(session.dialect(), state, now, rows_max, oldest_first);
    session.read_some(&statement, |row| row.notice_key(0)).await
}

pub(super) async fn take<S: Session>(
    session: &mut S,
    state: State,
    keys: &[NoticeKey],
    now: UnixMs,
    until: UnixMs,
) -> Result<Vec<TakenNotice>, StoreError> {
    let statement = sql::lock_due(session.dialect(), state, keys, now);
    let taken = session.read_some(&statement, sql::taken).await?;
    if !taken.is_empty() {
        let keys: Vec<NoticeKey> = taken.iter().map(|notice| notice.key.clone()).collect();
        let statement = sql::lease(session.dialect(), &keys, until);
        session
            .run_counted(&[statement], keys.len(), "notice")
            .await?;
    }
    Ok(taken)
}

pub(super) async fn backlog<S: Session>(
    session: &mut S,
    state: State,
) -> Result<Backlog, StoreError> {
    let statement = sql::backlog(session.dialect(), state);
    let rows = session
        .read_all(&[statement], |row| {
            Ok(Backlog {
                notices: row.int(0)?,
                oldest_due_at: row.opt_int(1)?.map(UnixMs),
            })
        })
        .await?;
    Ok(rows.into_iter().next().unwrap_or_default())
}

pub(super) async fn epoch<S: Session>(session: &mut S) -> Result<String, StoreError> {
    let rows = session.read_all(&[sql::epoch()], |row| row.text(0)).await?;
    Ok(rows.into_iter().next().unwrap_or_default())
}

/// Does nothing, inside a transaction that may write.
pub(super) async fn touch<S: Session>(session: &mut S) -> Result<(), StoreError> {
    epoch(session).await.map(|_| ())
}

//! The statements of the relay.

use super::commit::{field_columns, fields};
use super::{BadRow, Dialect, Row, Statement};
use crate::core::fact::Digest;
use crate::core::notice::{Fields, NoticeKey, State};
use crate::core::types::UnixMs;

/// Notices of one state whose time has come, without a lock: rows of `id, mchid`. One statement
/// for each state, because a list of states would have to be sorted.
pub fn due(
    dialect: Dialect,
    state: State,
    now: UnixMs,
    rows_max: usize,
    oldest_first: bool,
) -> Statement {
    Statement::new("SELECT id, mchid FROM notice")
        .sql(dialect.force("notice_due"))
        .sql(" WHERE state = ")
        .bind(state.as_str())
        .sql(" AND due_at_ms <= ")
        .bind(now.0)
        .sql(if oldest_first {
            " ORDER BY due_at_ms"
        } else {
            " ORDER BY due_at_ms DESC"
        })
        .sql(" LIMIT ")
        .bind(i64::try_from(rows_max).unwrap_or(i64::MAX))
}

/// Locks those of the due notices that still are due; one that somebody else has locked is not
/// returned.
///
/// Shapes: `keys`, 1 to `LIST_MAX`.
pub fn lock_due(dialect: Dialect, state: State, keys: &[NoticeKey], now: UnixMs) -> Statement {
    Statement::new("SELECT id, mchid, digest, envelope_id, attempts, received_at_ms, ")
        .sql(field_columns())
        .sql(" FROM notice")
        .sql(dialect.by_primary())
        .sql(" WHERE ")
        .keys(keys)
        .sql(" AND state = ")
        .bind(state.as_str())
        .sql(" AND due_at_ms <= ")
        .bind(now.0)
        .sql(" ORDER BY id")
        .sql(dialect.skip_locked())
}

/// A notice that the relay took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenNotice {
    /// The row.
    pub key: NoticeKey,
    /// Its digest.
    pub digest: Digest,
    /// The envelope's `id`.
    pub envelope_id: String,
    /// Attempts, this one counted.
    pub attempts: i64,
    /// First arrival.
    pub received_at: UnixMs,
    /// What it reports.
    pub fields: Fields,
}

/// Reads a row of [`lock_due`], the attempt that begins now counted.
pub fn taken(row: &Row) -> Result<TakenNotice, BadRow> {
    Ok(TakenNotice {
        key: row.notice_key(0)?,
        digest: row.digest(2)?,
        envelope_id: row.text(3)?,
        attempts: row.int(4)?.saturating_add(1),
        received_at: UnixMs(row.int(5)?),
        fields: fields(row, 6)?,
    })
}

/// Counts the attempt and sets the lease; the row count must equal `keys`.
///
/// Shapes: `keys`, 1 to `LIST_MAX`, distinct.
pub fn lease(dialect: Dialect, keys: &[NoticeKey], until: UnixMs) -> Statement {
    Statement::new("UPDATE notice")
        .sql(dialect.by_primary())
        .sql(" SET attempts = attempts + 1, due_at_ms = ")
        .bind(until.0)
        .sql(" WHERE ")
        .keys(keys)
}

/// Notices of one state, counted up to 10,000, and their earliest due time: one row.
pub fn backlog(dialect: Dialect, state: State) -> Statement {
    let hint = dialect.force("notice_due");
    Statement::new("SELECT (SELECT COUNT(*) FROM (SELECT 1 AS one FROM notice")
        .sql(hint)
        .sql(" WHERE state = ")
        .bind(state.as_str())
        .sql(" LIMIT 10000) AS some), (SELECT MIN(due_at_ms) FROM notice")
        .sql(hint)
        .sql(" WHERE state = ")
        .bind(state.as_str())
        .sql(")")
}

/// The store's epoch.
pub fn epoch() -> Statement {
    Statement::new("SELECT value FROM meta WHERE name = 'epoch'")
}

/// Gives the store an epoch where it has none.
pub fn set_epoch(value: &str) -> Statement {
    Statement::new("INSERT INTO meta (name, value) SELECT 'epoch', ")
        .bind(value)
        .sql(" FROM (SELECT 1 AS one) AS one WHERE NOT EXISTS (SELECT 1 FROM meta WHERE name = 'epoch')")
}

//! The statements of a commit group.

use super::{BadRow, Bind, Dialect, Row, Statement, insert, select_by_merchant};
use crate::core::decide::{Cas, RefundRow, StoredNotice};
use crate::core::fact::{Digest, Provider, Subject};
use crate::core::notice::{Fields, Intake, NoticeKey, Raw, State};
use crate::core::types::{Currency, Fen, OutRefundNo, OutTradeNo, RefundId, TransactionId, UnixMs};

/// Rows at most in one insert of notices.
const NOTICE_ROWS_MAX: usize = 64;

/// Locks the refund rows of these (merchant, `out_refund_no`); a row that somebody else has locked
/// is not returned.
pub fn lock_refunds(dialect: Dialect, keys: &[(&str, &str)]) -> Vec<Statement> {
    let head = format!(
        "SELECT id, mchid, out_refund_no, out_trade_no, refund_id, transaction_id, refund_fen, \
         total_fen, currency, status FROM refund_order{}",
        dialect.force("refund_order_no")
    );
    let pairs = keys.iter().map(|(m, no)| (*m, Bind::from(*no))).collect();
    select_by_merchant(&head, "out_refund_no", pairs, dialect.skip_locked())
}

/// Reads a row of [`lock_refunds`].
pub fn refund_row(row: &Row) -> Result<RefundRow, BadRow> {
    Ok(RefundRow {
        id: row.int(0)?,
        mchid: row.text(1)?,
        out_refund_no: row.text(2)?,
        out_trade_no: row.text(3)?,
        refund_id: row.opt_text(4)?,
        transaction_id: row.opt_text(5)?,
        refund_fen: row.int(6)?,
        total_fen: row.int(7)?,
        currency: row.text(8)?,
        status: row.text(9)?,
    })
}

/// Which of these refunds are there, locked or not: rows of `mchid, out_refund_no`.
pub fn find_refunds(dialect: Dialect, keys: &[(&str, &str)]) -> Vec<Statement> {
    let head = format!(
        "SELECT mchid, out_refund_no FROM refund_order{}",
        dialect.force("refund_order_no")
    );
    let pairs = keys.iter().map(|(m, no)| (*m, Bind::from(*no))).collect();
    select_by_merchant(&head, "out_refund_no", pairs, "")
}

const FIELDS: &str = "out_refund_no, out_trade_no, refund_id, transaction_id, status, refund_fen, \
                      payer_refund_fen, total_fen, currency, success_at_ms";

/// The notices that hold these (merchant, digest).
pub fn find_notices(dialect: Dialect, keys: &[(&str, Digest)]) -> Vec<Statement> {
    let head = format!(
        "SELECT id, mchid, digest, state, reason, received_at_ms, {FIELDS} FROM notice{}",
        dialect.force("notice_digest")
    );
    let pairs = keys
        .iter()
        .map(|(m, digest)| (*m, Bind::from(&digest.0[..])))
        .collect();
    select_by_merchant(&head, "digest", pairs, "")
}

/// Reads a row of [`find_notices`].
pub fn stored_notice(row: &Row) -> Result<StoredNotice, BadRow> {
    let key = row.notice_key(0)?;
    let content = fields(row, 6)?
        .to_fact(&key.mchid)
        .map(|fact| fact.content());
    Ok(StoredNotice {
        key,
        digest: row.digest(2)?,
        state: State::from_stored(&row.text(3)?),
        reason: row.opt_text(4)?,
        received_at: UnixMs(row.int(5)?),
        content,
    })
}

/// Reads the columns that came from a plaintext, from column `at` on. A value that could not have
/// come from one is absent.
pub(super) fn fields(row: &Row, at: usize) -> Result<Fields, BadRow> {
    let text = |n: usize| row.opt_text(at + n);
    let fen = |n: usize| row.opt_int(at + n).map(|value| value.map(Fen));
    Ok(Fields {
        out_refund_no: text(0)?.and_then(|t| OutRefundNo::parse(&t).ok()),
        out_trade_no: text(1)?.and_then(|t| OutTradeNo::parse(&t).ok()),
        refund_id: text(2)?.and_then(|t| RefundId::parse(&t).ok()),
        transaction_id: text(3)?.and_then(|t| TransactionId::parse(&t).ok()),
        status: text(4)?.and_then(|t| crate::core::refund::RefundStatus::from_stored(&t)),
        refund_fen: fen(5)?,
        payer_refund_fen: fen(6)?,
        total_fen: fen(7)?,
        currency: text(8)?.and_then(|t| Currency::parse(&t).ok()),
        success_at_ms: row.opt_int(at + 9)?.map(UnixMs),
    })
}

/// The columns named in [`FIELDS`], as text for a select list.
pub(super) fn field_columns() -> &'static str {
    FIELDS
}

/// The compare-and-set of a group: one statement, whose row count must equal `moves`.
///
/// Shapes: `moves`, 1 or more, sorted by id, distinct.
pub fn cas(dialect: Dialect, moves: &[Cas], now: UnixMs) -> Statement {
    assert!(
        moves.is_sorted_by(|a, b| a.refund_row_id < b.refund_row_id),
        "one lock order"
    );
    let to = moves
        .iter()
        .map(|m| (m.refund_row_id, Bind::from(m.to.as_str())))
        .collect();
    let success = moves
        .iter()
        .map(|m| (m.refund_row_id, Bind::from(m.success_at.map(|at| at.0))))
        .collect();
    Statement::new("UPDATE refund_order")
        .sql(dialect.by_primary())
        .sql(" SET ")
        .case("status", "?", to)
        .sql(", ")
        .case("success_at_ms", "COALESCE(?, success_at_ms)", success)
        .sql(", updated_at_ms = ")
        .bind(now.0)
        .sql(" WHERE ")
        .ids(moves.iter().map(|m| (m.refund_row_id, m.mchid.as_str())))
        .sql(" AND status IN ('PROCESSING', 'ABNORMAL')")
}

/// A new notice row.
pub struct NewNotice<'a> {
    /// What arrived.
    pub intake: &'a Intake,
    /// Its first state.
    pub state: State,
    /// Why.
    pub reason: Option<&'a str>,
    /// When the relay looks at it.
    pub due_at: Option<UnixMs>,
}

/// Inserts new notices.
///
/// Shapes: `rows`, 1 or more, sorted by (mchid, digest), the order of the unique key: inserts in
/// any other order deadlock with a neighbour's.
pub fn insert_notices(rows: &[NewNotice<'_>], now: UnixMs) -> Vec<Statement> {
    let key = |row: &NewNotice<'_>| (row.intake.mchid.clone(), row.intake.digest);
    assert!(rows.is_sorted_by_key(key), "one lock order");
    let values = rows
        .iter()
        .map(|row| {
            let intake = row.intake;
            let mut values: Vec<Bind> = vec![
                Provider::Wechat.as_str().into(),
                Subject::Refund.as_str().into(),
                intake.mchid.as_str().into(),
                (&intake.digest.0[..]).into(),
                intake.envelope_id.as_str().into(),
                intake.source.as_str().into(),
            ];
            values.extend(field_binds(&intake.fields()));
            values.extend([
                row.state.as_str().into(),
                row.reason.map(reason_text).into(),
                Bind::Int(1),
                Bind::Int(0),
                row.due_at.map(|at| at.0).into(),
                intake.received_at.0.into(),
                now.0.into(),
            ]);
            values
        })
        .collect();
    let columns = format!(
        "provider, subject, mchid, digest, envelope_id, source, {FIELDS}, state, reason, \
         deliveries, attempts, due_at_ms, received_at_ms, updated_at_ms"
    );
    insert("notice", &columns, values, NOTICE_ROWS_MAX)
}

fn field_binds(fields: &Fields) -> [Bind; 10] {
    [
        fields
            .out_refund_no
            .as_ref()
            .map(OutRefundNo::as_str)
            .into(),
        fields.out_trade_no.as_ref().map(OutTradeNo::as_str).into(),
        fields.refund_id.as_ref().map(RefundId::as_str).into(),
        fields
            .transaction_id
            .as_ref()
            .map(TransactionId::as_str)
            .into(),
        fields
            .status
            .map(crate::core::refund::RefundStatus::as_str)
            .into(),
        fields.refund_fen.map(|fen| fen.0).into(),
        fields.payer_refund_fen.map(|fen| fen.0).into(),
        fields.total_fen.map(|fen| fen.0).into(),
        fields.currency.as_ref().map(Currency::as_str).into(),
        fields.success_at_ms.map(|at| at.0).into(),
    ]
}

/// A reason as the column takes it: 255 characters at most.
fn reason_text(reason: &str) -> String {
    reason.chars().take(255).collect()
}

/// The ids of notices just inserted: rows of `id, mchid, digest`. Read back, because ids have gaps
/// and need not follow each other.
pub fn find_ids(dialect: Dialect, keys: &[(&str, Digest)]) -> Vec<Statement> {
    let head = format!(
        "SELECT id, mchid, digest FROM notice{}",
        dialect.force("notice_digest")
    );
    let pairs = keys
        .iter()
        .map(|(m, digest)| (*m, Bind::from(&digest.0[..])))
        .collect();
    select_by_merchant(&head, "digest", pairs, "")
}

/// Keeps deliveries as received.
pub fn insert_raw(rows: &[(NoticeKey, &Raw, UnixMs)]) -> Vec<Statement> {
    let values = rows
        .iter()
        .map(|(key, raw, at)| {
            vec![
                key.mchid.as_str().into(),
                key.id.into(),
                raw.headers.as_slice().into(),
                raw.body.as_slice().into(),
                at.0.into(),
            ]
        })
        .collect();
    let columns = "mchid, notice_id, headers, body, received_at_ms";
    insert("notice_raw", columns, values, NOTICE_ROWS_MAX)
}

/// A stored notice's new state.
#[derive(Clone, Debug)]
pub struct NoticeChange {
    /// The row.
    pub key: NoticeKey,
    /// The state it was read in.
    pub from: State,
    /// Its new state.
    pub state: State,
    /// Why.
    pub reason: Option<String>,
    /// Attempts; nothing leaves them as they are.
    pub attempts: Option<i64>,
    /// When the relay looks at it.
    pub due_at: Option<UnixMs>,
}

/// Moves stored notices; the row count must equal `changes`.
///
/// Shapes: `changes`, 1 to `LIST_MAX`, sorted by key, distinct.
pub fn change_notices(dialect: Dialect, changes: &[NoticeChange], now: UnixMs) -> Statement {
    assert!(changes.is_sorted_by(|a, b| a.key < b.key), "one lock order");
    let each = |value: &dyn Fn(&NoticeChange) -> Bind| -> Vec<(i64, Bind)> {
        changes.iter().map(|c| (c.key.id, value(c))).collect()
    };
    Statement::new("UPDATE notice")
        .sql(dialect.by_primary())
        .sql(" SET ")
        .case("state", "?", each(&|c| c.state.as_str().into()))
        .sql(", ")
        .case(
            "reason",
            "?",
            each(&|c| c.reason.as_deref().map(reason_text).into()),
        )
        .sql(", ")
        .case(
            "attempts",
            "COALESCE(?, attempts)",
            each(&|c| c.attempts.into()),
        )
        .sql(", ")
        .case("due_at_ms", "?", each(&|c| c.due_at.map(|at| at.0).into()))
        .sql(", updated_at_ms = ")
        .bind(now.0)
        .sql(" WHERE ")
        .keys(changes.iter().map(|c| &c.key))
        .sql(" AND state = ")
        .case_value("?", each(&|c| c.from.as_str().into()))
        .sql(" END")
}

/// Gives a stored notice another delivery's digest, owner and columns; the row count must be 1.
pub fn take_over(
    dialect: Dialect,
    change: &NoticeChange,
    intake: &Intake,
    first_seen: UnixMs,
    now: UnixMs,
) -> Statement {
    let names = FIELDS.split(", ").map(str::trim);
    let mut statement = Statement::new("UPDATE notice")
        .sql(dialect.by_primary())
        .sql(" SET digest = ")
        .bind(&intake.digest.0[..])
        .sql(", mchid = ")
        .bind(intake.mchid.as_str());
    for (name, value) in names.zip(field_binds(&intake.fields())) {
        statement = statement.sql(", ").sql(name).sql(" = ").bind(value);
    }
    statement
        .sql(", state = ")
        .bind(change.state.as_str())
        .sql(", reason = ")
        .bind(change.reason.as_deref().map(reason_text))
        .sql(", attempts = 0, due_at_ms = ")
        .bind(change.due_at.map(|at| at.0))
        .sql(", received_at_ms = ")
        .bind(first_seen.0)
        .sql(", updated_at_ms = ")
        .bind(now.0)
        .sql(" WHERE id = ")
        .bind(change.key.id)
        .sql(" AND mchid = ")
        .bind(change.key.mchid.as_str())
        .sql(" AND state = ")
        .bind(change.from.as_str())
}

/// Counts further deliveries of stored notices. Leaves `updated_at_ms` alone: nothing happened.
///
/// Shapes: `counts`, 1 to `LIST_MAX`, sorted by key, distinct.
pub fn count_repeats(dialect: Dialect, counts: &[(NoticeKey, i64)]) -> Statement {
    assert!(counts.is_sorted_by(|a, b| a.0 < b.0), "one lock order");
    let values = counts
        .iter()
        .map(|(key, n)| (key.id, Bind::Int(*n)))
        .collect();
    Statement::new("UPDATE notice")
        .sql(dialect.by_primary())
        .sql(" SET ")
        .case("deliveries", "deliveries + ?", values)
        .sql(" WHERE ")
        .keys(counts.iter().map(|(key, _)| key))
}

/// Reads a row of [`find_ids`].
pub fn notice_id(row: &Row) -> Result<(NoticeKey, Digest), BadRow> {
    Ok((row.notice_key(0)?, row.digest(2)?))
}

/// Reads a row of [`find_refunds`].
pub fn refund_key(row: &Row) -> Result<(String, String), BadRow> {
    Ok((row.text(0)?, row.text(1)?))
}

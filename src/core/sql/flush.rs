//! The statements of a flush.

use super::{BadRow, Bind, Dialect, Row, Statement, insert, select_by_merchant};
use crate::core::notice::NoticeKey;
use crate::core::plan::{ClaimedNotice, LedgerInsert, LedgerRow, OrderRow, OrderUpdate, OwnKey};
use crate::core::types::UnixMs;

/// Rows at most in one insert of ledger rows.
const LEDGER_ROWS_MAX: usize = 256;

/// Claims pending notices by row lock; a row that somebody else has locked is not returned.
///
/// Shapes: `keys`, 1 to `LIST_MAX`.
pub fn claim(dialect: Dialect, keys: &[NoticeKey]) -> Statement {
    Statement::new(
        "SELECT id, mchid, out_refund_no, out_trade_no, refund_id, transaction_id, refund_fen, \
         payer_refund_fen, currency, success_at_ms, attempts, received_at_ms FROM notice",
    )
    .sql(dialect.by_primary())
    .sql(" WHERE ")
    .keys(keys)
    .sql(" AND state = 'pending' ORDER BY id")
    .sql(dialect.skip_locked())
}

/// Reads a row of [`claim`].
pub fn claimed(row: &Row) -> Result<ClaimedNotice, BadRow> {
    Ok(ClaimedNotice {
        key: row.notice_key(0)?,
        out_refund_no: row.opt_text(2)?,
        out_trade_no: row.opt_text(3)?,
        refund_id: row.opt_text(4)?,
        transaction_id: row.opt_text(5)?,
        refund_fen: row.opt_int(6)?,
        payer_refund_fen: row.opt_int(7)?,
        currency: row.opt_text(8)?,
        success_at_ms: row.opt_int(9)?,
        attempts: row.int(10)?,
        received_at: UnixMs(row.int(11)?),
    })
}

/// Which of these notices are pending, locked or not: rows of `id, mchid`.
pub fn still_pending(dialect: Dialect, keys: &[NoticeKey]) -> Statement {
    Statement::new("SELECT id, mchid FROM notice")
        .sql(dialect.by_primary())
        .sql(" WHERE ")
        .keys(keys)
        .sql(" AND state = 'pending'")
}

/// Locks the orders of these (merchant, `out_trade_no`); one that somebody else has locked is not
/// returned.
pub fn lock_orders(dialect: Dialect, keys: &[OwnKey]) -> Vec<Statement> {
    let head = format!(
        "SELECT id, mchid, out_trade_no, total_fen, refunded_fen, currency FROM orders{}",
        dialect.force("orders_no")
    );
    select_by_merchant(&head, "out_trade_no", pairs(keys), dialect.skip_locked())
}

/// Reads a row of [`lock_orders`].
pub fn order_row(row: &Row) -> Result<OrderRow, BadRow> {
    Ok(OrderRow {
        id: row.int(0)?,
        mchid: row.text(1)?,
        out_trade_no: row.text(2)?,
        total_fen: row.int(3)?,
        refunded_fen: row.int(4)?,
        currency: row.text(5)?,
    })
}

/// Which of these orders are there, locked or not: rows of `mchid, out_trade_no`.
pub fn find_orders(dialect: Dialect, keys: &[OwnKey]) -> Vec<Statement> {
    let head = format!(
        "SELECT mchid, out_trade_no FROM orders{}",
        dialect.force("orders_no")
    );
    select_by_merchant(&head, "out_trade_no", pairs(keys), "")
}

/// The ledger rows of these (merchant, `out_refund_no`).
pub fn find_ledger(dialect: Dialect, keys: &[OwnKey]) -> Vec<Statement> {
    let head = format!(
        "SELECT mchid, out_refund_no, refund_fen, currency, out_trade_no FROM refund_ledger{}",
        dialect.force("refund_ledger_no")
    );
    select_by_merchant(&head, "out_refund_no", pairs(keys), "")
}

/// Reads a row of [`find_ledger`].
pub fn ledger_row(row: &Row) -> Result<(OwnKey, LedgerRow), BadRow> {
    let there = LedgerRow {
        refund_fen: row.int(2)?,
        currency: row.text(3)?,
        out_trade_no: row.text(4)?,
    };
    Ok(((row.text(0)?, row.text(1)?), there))
}

/// Reads a row of [`find_orders`].
pub fn order_key(row: &Row) -> Result<OwnKey, BadRow> {
    Ok((row.text(0)?, row.text(1)?))
}

fn pairs(keys: &[OwnKey]) -> Vec<(&str, Bind)> {
    keys.iter()
        .map(|(m, no)| (m.as_str(), Bind::from(no.as_str())))
        .collect()
}

/// Writes ledger rows.
///
/// Shapes: `rows`, 1 or more, sorted by (mchid, `out_refund_no`), the order of the unique key.
pub fn insert_ledger(rows: &[LedgerInsert], now: UnixMs) -> Vec<Statement> {
    let key = |row: &LedgerInsert| (row.mchid.clone(), row.out_refund_no.clone());
    assert!(rows.is_sorted_by_key(key), "one lock order");
    let values = rows
        .iter()
        .map(|row| {
            vec![
                row.mchid.as_str().into(),
                row.out_refund_no.as_str().into(),
                row.out_trade_no.as_str().into(),
                row.refund_id.clone().into(),
                row.transaction_id.clone().into(),
                row.refund_fen.into(),
                row.payer_refund_fen.into(),
                row.currency.as_str().into(),
                row.success_at_ms.into(),
                row.notice_id.into(),
                now.0.into(),
            ]
        })
        .collect();
    let columns = "mchid, out_refund_no, out_trade_no, refund_id, transaction_id, refund_fen, \
                   payer_refund_fen, currency, success_at_ms, notice_id, created_at_ms";
    insert("refund_ledger", columns, values, LEDGER_ROWS_MAX)
}

/// Brings orders to their new values; the row count must equal `rows`.
///
/// Shapes: `rows`, 1 to `LIST_MAX`, sorted by id, distinct.
pub fn update_orders(dialect: Dialect, rows: &[OrderUpdate], now: UnixMs) -> Statement {
    assert!(rows.is_sorted_by(|a, b| a.id < b.id), "one lock order");
    let money = rows
        .iter()
        .map(|row| (row.id, Bind::Int(row.refunded_fen)))
        .collect();
    let status = rows
        .iter()
        .map(|row| (row.id, Bind::from(row.refund_status)))
        .collect();
    Statement::new("UPDATE orders")
        .sql(dialect.by_primary())
        .sql(" SET ")
        .case("refunded_fen", "?", money)
        .sql(", ")
        .case("refund_status", "?", status)
        .sql(", updated_at_ms = ")
        .bind(now.0)
        .sql(" WHERE ")
        .ids(rows.iter().map(|row| (row.id, row.mchid.as_str())))
}

/// Ends notices whose money is booked; the row count must equal `keys`.
///
/// Shapes: `keys`, 1 to `LIST_MAX`, distinct.
pub fn finish(dialect: Dialect, keys: &[NoticeKey], now: UnixMs) -> Statement {
    Statement::new("UPDATE notice")
        .sql(dialect.by_primary())
        .sql(" SET state = 'done', reason = NULL, due_at_ms = NULL, updated_at_ms = ")
        .bind(now.0)
        .sql(" WHERE ")
        .keys(keys)
        .sql(" AND state = 'pending'")
}

//! What the shop writes, and what the books are checked by. The service itself writes neither
//! table; `demo`, tests and load tools play the shop.

use super::{BadRow, Row, Statement, insert};
use crate::core::types::UnixMs;

/// Rows at most in one insert.
const ROWS_MAX: usize = 256;

/// A paid order.
#[derive(Clone, Debug)]
pub struct NewOrder {
    /// Owner.
    pub mchid: String,
    /// The merchant's order number.
    pub out_trade_no: String,
    /// WeChat Pay's payment number.
    pub transaction_id: Option<String>,
    /// Money of the order.
    pub total_fen: i64,
}

/// A refund that the shop is about to ask WeChat Pay for.
#[derive(Clone, Debug)]
pub struct NewRefund {
    /// Owner.
    pub mchid: String,
    /// The merchant's refund number.
    pub out_refund_no: String,
    /// Its order.
    pub out_trade_no: String,
    /// WeChat Pay's payment number.
    pub transaction_id: Option<String>,
    /// Money of the refund.
    pub refund_fen: i64,
    /// Money of the order.
    pub total_fen: i64,
}

/// Inserts paid orders.
pub fn insert_orders(rows: &[NewOrder], now: UnixMs) -> Vec<Statement> {
    let values = rows
        .iter()
        .map(|row| {
            vec![
                row.mchid.as_str().into(),
                row.out_trade_no.as_str().into(),
                row.transaction_id.clone().into(),
                row.total_fen.into(),
                "PAID".into(),
                now.0.into(),
                now.0.into(),
            ]
        })
        .collect();
    let columns =
        "mchid, out_trade_no, transaction_id, total_fen, status, created_at_ms, updated_at_ms";
    insert("orders", columns, values, ROWS_MAX)
}

/// Inserts refunds in `PROCESSING`.
pub fn insert_refunds(rows: &[NewRefund], now: UnixMs) -> Vec<Statement> {
    let values = rows
        .iter()
        .map(|row| {
            vec![
                row.mchid.as_str().into(),
                row.out_refund_no.as_str().into(),
                row.out_trade_no.as_str().into(),
                row.transaction_id.clone().into(),
                row.refund_fen.into(),
                row.total_fen.into(),
                "PROCESSING".into(),
                now.0.into(),
                now.0.into(),
            ]
        })
        .collect();
    let columns = "mchid, out_refund_no, out_trade_no, transaction_id, refund_fen, total_fen, status, \
                   created_at_ms, updated_at_ms";
    insert("refund_order", columns, values, ROWS_MAX)
}

/// The books as the tables hold them: one row of ledger rows, ledger fen, orders' refunded fen,
/// orders whose refunded money is not the sum of their ledger rows, refunds without a ledger row, and
/// refunds in SUCCESS. Sums are cast, because MySQL gives them as DECIMAL and an empty one as NULL.
pub fn books() -> Statement {
    Statement::new(
        "SELECT (SELECT COUNT(*) FROM refund_ledger), \
         (SELECT CAST(COALESCE(SUM(refund_fen), 0) AS SIGNED) FROM refund_ledger), \
         (SELECT CAST(COALESCE(SUM(refunded_fen), 0) AS SIGNED) FROM orders), \
         (SELECT COUNT(*) FROM orders LEFT JOIN (SELECT mchid, out_trade_no, SUM(refund_fen) AS fen \
         FROM refund_ledger GROUP BY mchid, out_trade_no) AS booked \
         ON booked.mchid = orders.mchid AND booked.out_trade_no = orders.out_trade_no \
         WHERE orders.refunded_fen <> COALESCE(booked.fen, 0)), \
         (SELECT COUNT(*) FROM refund_order LEFT JOIN refund_ledger \
         ON refund_ledger.mchid = refund_order.mchid AND refund_ledger.out_refund_no = refund_order.out_refund_no \
         WHERE refund_ledger.id IS NULL), \
         (SELECT COUNT(*) FROM refund_order WHERE status = 'SUCCESS')",
    )
}

/// What [`books`] gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Books {
    /// Rows in the ledger.
    pub ledger_rows: i64,
    /// Their money.
    pub ledger_total_fen: i64,
    /// Refunded money of all orders.
    pub orders_refunded_total_fen: i64,
    /// Orders whose refunded money differs from their ledger rows.
    pub orders_off: i64,
    /// Refunds of any status that the ledger does not hold.
    pub refunds_without_ledger: i64,
    /// Refunds in SUCCESS.
    pub refunds_in_success: i64,
}

/// Reads the row of [`books`].
pub fn read_books(row: &Row) -> Result<Books, BadRow> {
    Ok(Books {
        ledger_rows: row.int(0)?,
        ledger_total_fen: row.int(1)?,
        orders_refunded_total_fen: row.int(2)?,
        orders_off: row.int(3)?,
        refunds_without_ledger: row.int(4)?,
        refunds_in_success: row.int(5)?,
    })
}

/// How many notices are in each state: rows of `state, count`. Reads the whole index: for the end
/// of a demo or a test, never for a metric.
pub fn count_states() -> Statement {
    Statement::new("SELECT state, COUNT(*) FROM notice GROUP BY state ORDER BY state")
}

/// Rows of a table that belong to other merchants than these.
///
/// Shapes: `table`, one of ours; `mchids`, 1 or more.
pub fn count_others(table: &'static str, mchids: &[&str]) -> Statement {
    Statement::new("SELECT COUNT(*) FROM ")
        .sql(table)
        .sql(" WHERE mchid NOT IN ")
        .list(mchids.iter().map(|mchid| (*mchid).into()))
}

/// Empties a table.
pub fn clear(table: &'static str) -> Statement {
    Statement::new("DELETE FROM ").sql(table)
}

/// Reads one fact about the store.
pub fn read_meta(name: &str) -> Statement {
    Statement::new("SELECT value FROM meta WHERE name = ").bind(name)
}

/// Writes one fact about the store.
pub fn write_meta(name: &str, value: &str) -> Statement {
    Statement::new("INSERT INTO meta (name, value) VALUES (")
        .bind(name)
        .sql(", ")
        .bind(value)
        .sql(")")
}

//! Plays the shop, and checks the books: for `demo`, tests and load tools.

use super::{Connect, Lanes, SILENT_MAX, Session, SessionExt, end, on_lane};
use crate::core::sql::shop::{self as sql, Books, NewOrder, NewRefund};
use crate::core::types::UnixMs;
use crate::ports::{Answer, StoreError};

/// Our tables, in an order in which they can be emptied.
const TABLES: [&str; 5] = [
    "refund_ledger",
    "notice_raw",
    "notice",
    "refund_order",
    "orders",
];

/// What a shop does with its own tables, and what an auditor reads.
pub trait Shop: Send + Sync {
    /// Writes paid orders.
    fn insert_orders<'a>(&'a self, rows: &'a [NewOrder], now: UnixMs) -> Answer<'a, ()>;
    /// Writes refunds in `PROCESSING`, as a shop does before it asks WeChat Pay.
    fn insert_refunds<'a>(&'a self, rows: &'a [NewRefund], now: UnixMs) -> Answer<'a, ()>;
    /// The books as the tables hold them.
    fn books(&self) -> Answer<'_, Books>;
    /// How many notices are in each state.
    fn states(&self) -> Answer<'_, Vec<(String, i64)>>;
    /// Makes the database a playground of these merchants: empties it if an earlier playground left
    /// rows. Gives the name of a table that holds somebody else's rows, and touches nothing then.
    fn make_playground<'a>(&'a self, mchids: &'a [&'a str]) -> Answer<'a, Option<&'static str>>;
}

impl<C: Connect> Shop for Lanes<C> {
    fn insert_orders<'a>(&'a self, rows: &'a [NewOrder], now: UnixMs) -> Answer<'a, ()> {
        let statements = sql::insert_orders(rows, now);
        on_lane!(self, begin, |s| s.run_counted(
            &statements,
            rows.len(),
            "orders"
        ))
    }

    fn insert_refunds<'a>(&'a self, rows: &'a [NewRefund], now: UnixMs) -> Answer<'a, ()> {
        let statements = sql::insert_refunds(rows, now);
        on_lane!(self, begin, |s| s.run_counted(
            &statements,
            rows.len(),
            "refund_order"
        ))
    }

    fn books(&self) -> Answer<'_, Books> {
        on_lane!(self, |s| books(s))
    }

    fn states(&self) -> Answer<'_, Vec<(String, i64)>> {
        on_lane!(self, |s| s.read_all(&[sql::count_states()], |row| Ok((
            row.text(0)?,
            row.int(1)?
        ))))
    }

    fn make_playground<'a>(&'a self, mchids: &'a [&'a str]) -> Answer<'a, Option<&'static str>> {
        on_lane!(self, begin, |s| make_playground(s, mchids))
    }
}

async fn books<S: Session>(session: &mut S) -> Result<Books, StoreError> {
    let rows = session.read_all(&[sql::books()], sql::read_books).await?;
    rows.into_iter()
        .next()
        .ok_or_else(|| StoreError::Refused("no answer".to_owned()))
}

async fn make_playground<S: Session>(
    session: &mut S,
    mchids: &[&str],
) -> Result<Option<&'static str>, StoreError> {
    const MARK: &str = "playground";
    let marked = !session
        .read_all(&[sql::read_meta(MARK)], |row| row.text(0))
        .await?
        .is_empty();
    // without our mark, any row at all is somebody else's
    let ours: &[&str] = if marked { mchids } else { &[""] };
    for table in TABLES {
        let others = session
            .read_all(&[sql::count_others(table, ours)], |row| row.int(0))
            .await?;
        if others.into_iter().any(|count| count > 0) {
            return Ok(Some(table));
        }
    }
    for table in TABLES {
        session.run(&sql::clear(table)).await?;
    }
    if !marked {
        session.run(&sql::write_meta(MARK, "demo")).await?;
    }
    Ok(None)
}

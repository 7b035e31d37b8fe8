//! What the flows need from the outside: a store, a clock, chance.

use std::future::Future;
use std::pin::Pin;

use crate::core::decide::{DecideLimits, Outcome};
use crate::core::notice::{Intake, NoticeKey, Reason, State};
use crate::core::plan::PlanLimits;
use crate::core::sql::relay::TakenNotice;
use crate::core::types::UnixMs;

/// The time of day.
pub trait Clock: Send + Sync + 'static {
    /// Now, in ms since the Unix epoch.
    fn now(&self) -> UnixMs;
}

/// Chance.
pub trait Entropy: Send + Sync + 'static {
    /// A number from 0 to 1, evenly drawn.
    fn unit(&self) -> f64;
}

/// What a store's verb gives.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Why a verb of the store did not take place, or may not have.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another transaction was in the way, such as a deadlock. Rolled back.
    #[error("conflict with another transaction ({0})")]
    Conflict(String),
    /// The rows are not as they were read: a unique key that another instance wrote first, a row
    /// count that differs from the plan. Rolled back. If it stays so, the row itself is at fault.
    #[error("rows changed meanwhile ({0})")]
    Raced(String),
    /// A row lock was not given in time. Rolled back.
    #[error("a row lock was not given in time")]
    LockTimeout,
    /// The database refuses a value or a row. Rolled back; running it again changes nothing.
    #[error("refused by the database: {0}")]
    Refused(String),
    /// The connection broke; whether a commit took place is unknown. Every verb may be run again.
    #[error("connection to the database lost: {0}")]
    Lost(String),
    /// No transaction can be had now.
    #[error("database unavailable: {0}")]
    Unavailable(String),
}

/// What to do after a failed verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Run the whole again, a bounded number of times.
    Again,
    /// Run each fact by itself in the slow lane.
    SlowLane,
    /// Halve until the culprit is alone.
    Bisect,
    /// Nothing will work now.
    GiveUp,
}

impl StoreError {
    /// The one place that answers "try again?".
    pub fn advice(&self) -> Advice {
        match self {
            StoreError::Conflict(_) | StoreError::Raced(_) | StoreError::Lost(_) => Advice::Again,
            StoreError::LockTimeout => Advice::SlowLane,
            StoreError::Refused(_) => Advice::Bisect,
            StoreError::Unavailable(_) => Advice::GiveUp,
        }
    }

    /// The database's own number for it, where it has one; empty otherwise.
    pub fn number(&self) -> String {
        let (StoreError::Conflict(text)
        | StoreError::Raced(text)
        | StoreError::Refused(text)
        | StoreError::Lost(text)
        | StoreError::Unavailable(text)) = self
        else {
            return "1205".to_owned();
        };
        let text = text.strip_prefix("error ").unwrap_or(text);
        text.chars().take_while(char::is_ascii_digit).collect()
    }

    /// The name in metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            StoreError::Conflict(_) => "conflict",
            StoreError::Raced(_) => "raced",
            StoreError::LockTimeout => "lock_timeout",
            StoreError::Refused(_) => "refused",
            StoreError::Lost(_) => "lost",
            StoreError::Unavailable(_) => "unavailable",
        }
    }
}

/// What became of one notice of a committed group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What it became.
    pub outcome: Outcome,
    /// The state of its row.
    pub state: State,
    /// The reason of its row.
    pub reason: Option<Reason>,
    /// Its row; nothing only for [`Outcome::Locked`].
    pub key: Option<NoticeKey>,
    /// Whether its row was there before this delivery.
    pub is_stored_before: bool,
    /// Whether a person must hear of it now.
    pub alert: bool,
}

/// What one flush did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flushed {
    /// Notices that are done.
    pub done: u64,
    /// Ledger rows written.
    pub ledger_rows: u64,
    /// Notices that are dead now, each with its reason.
    pub dead: Vec<(NoticeKey, Reason)>,
    /// Notices that wait for another try in the database.
    pub again: u64,
    /// Notices that are pending but locked by somebody else: to be offered again soon.
    pub busy: Vec<NoticeKey>,
}

/// Notices that wait in one state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Their count, 10,000 at most: counting on would read the whole index.
    pub notices: i64,
    /// The earliest due time among them.
    pub oldest_due_at: Option<UnixMs>,
}

/// The durable truth. Each verb is one transaction, and each may be run again after any error.
pub trait Store: Send + Sync + 'static {
    /// Decides a group and makes it durable; gives one verdict for each, in order.
    ///
    /// Shapes: `group`, 1 or more, at most one notice of each refund and of each digest.
    fn commit<'a>(
        &'a self,
        group: &'a [Intake],
        now: UnixMs,
        limits: DecideLimits,
    ) -> Answer<'a, Vec<Verdict>>;

    /// Books the money of pending notices.
    ///
    /// Shapes: `keys`, 1 to `LIST_MAX`, distinct.
    fn flush<'a>(
        &'a self,
        keys: &'a [NoticeKey],
        now: UnixMs,
        limits: PlanLimits,
    ) -> Answer<'a, Flushed>;

    /// Puts pending notices back after a fault: the row's own (`Some` reason from the database,
    /// which uses up an attempt) or nobody's.
    fn put_back<'a>(
        &'a self,
        keys: &'a [NoticeKey],
        own: Option<Reason>,
        now: UnixMs,
        limits: PlanLimits,
    ) -> Answer<'a, Flushed>;

    /// Due notices of one state, without a lock.
    fn due<'a>(
        &'a self,
        state: State,
        now: UnixMs,
        rows_max: usize,
        oldest_first: bool,
    ) -> Answer<'a, Vec<NoticeKey>>;

    /// Takes due notices until `until`: counts the attempt and sets the lease.
    fn take<'a>(
        &'a self,
        state: State,
        keys: &'a [NoticeKey],
        now: UnixMs,
        until: UnixMs,
    ) -> Answer<'a, Vec<TakenNotice>>;

    /// Adds to the delivery counts of stored notices.
    ///
    /// Shapes: `counts`, 1 to `LIST_MAX`, sorted by key, distinct.
    fn count_repeats<'a>(&'a self, counts: &'a [(NoticeKey, i64)]) -> Answer<'a, ()>;

    /// The store's epoch: another value means that the store was restored from a copy.
    fn epoch(&self) -> Answer<'_, String>;

    /// How many notices are in a state, counted up to 10,000, and since when the oldest is due.
    fn backlog(&self, state: State) -> Answer<'_, Backlog>;

    /// Whether a notice could be made durable now.
    fn ready(&self) -> Answer<'_, ()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_for_each_error() {
        let check = |error: StoreError, advice: Advice| assert_eq!(error.advice(), advice);
        check(StoreError::Conflict(String::new()), Advice::Again);
        check(StoreError::Raced(String::new()), Advice::Again);
        check(StoreError::Lost(String::new()), Advice::Again);
        check(StoreError::LockTimeout, Advice::SlowLane);
        check(StoreError::Refused(String::new()), Advice::Bisect);
        check(StoreError::Unavailable(String::new()), Advice::GiveUp);
    }
}

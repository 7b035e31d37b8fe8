//! The store on SQL: what MySQL/MariaDB and SQLite share.
//!
//! A [`Lanes`] holds a few connections. A verb takes one, runs its transaction, and gives it back
//! only if the verb came to an orderly end; a connection whose future was dropped, that broke, or
//! that has not answered for `SILENT_MAX` is closed instead, so that no later user meets its
//! remains. The transactions are written once, in `commit`, `flush` and `relay`, over the
//! [`Session`] trait; `mysql.rs` and `sqlite.rs` connect, run a statement and name errors.

mod commit;
mod flush;
pub mod migrate;
mod mysql;
mod relay;
pub mod settings;
pub mod shop;
mod sqlite;

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio::time::error::Elapsed;

use crate::core::decide::DecideLimits;
use crate::core::notice::{Intake, NoticeKey, Reason, State};
use crate::core::plan::PlanLimits;
use crate::core::sql::relay::TakenNotice;
use crate::core::sql::{BadRow, Dialect, Row, Statement};
use crate::core::types::UnixMs;
use crate::ports::{Answer, Backlog, Flushed, Store, StoreError, Verdict};

pub use mysql::Mysql;
pub use sqlite::Sqlite;

use crate::config::DatabaseSettings;
use crate::telemetry::{self, names};
use migrate::MigrateError;
use settings::Finding;
use shop::Shop;

/// A connection that has not answered a whole transaction for this long is replaced.
const SILENT_MAX: Duration = Duration::from_secs(8);
/// How long a verb waits for a free connection, less than the reply deadline.
const LANE_WAIT_MAX: Duration = Duration::from_secs(2);

/// A connection that was idle for longer is closed rather than used: the server may have closed its
/// side, and a statement on it would fail.
const IDLE_MAX: Duration = Duration::from_secs(60);

impl From<BadRow> for StoreError {
    fn from(error: BadRow) -> StoreError {
        StoreError::Refused(error.to_string())
    }
}

/// One connection, inside or outside a transaction.
pub trait Session: Send {
    /// Which texts it reads.
    fn dialect(&self) -> Dialect;
    /// Begins a transaction that may write.
    fn begin(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send;
    /// Ends it.
    fn end(&mut self, commit: bool) -> impl Future<Output = Result<(), StoreError>> + Send;
    /// Runs a select.
    fn rows(
        &mut self,
        statement: &Statement,
    ) -> impl Future<Output = Result<Vec<Row>, StoreError>> + Send;
    /// Runs a write; gives the rows that it matched.
    fn run(
        &mut self,
        statement: &Statement,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;
}

/// Helpers over several statements.
pub(crate) trait SessionExt: Session {
    /// All rows of all statements, each read by `read`.
    fn read_all<T: Send>(
        &mut self,
        statements: &[Statement],
        read: impl Fn(&Row) -> Result<T, BadRow> + Send + Sync,
    ) -> impl Future<Output = Result<Vec<T>, StoreError>> + Send {
        async move {
            let mut all = Vec::new();
            for statement in statements {
                for row in self.rows(statement).await? {
                    all.push(read(&row)?);
                }
            }
            Ok(all)
        }
    }

    /// All rows that can be read; one that cannot is left out and reported, so that it does not hold
    /// up the others.
    fn read_some<T: Send>(
        &mut self,
        statement: &Statement,
        read: impl Fn(&Row) -> Result<T, BadRow> + Send + Sync,
    ) -> impl Future<Output = Result<Vec<T>, StoreError>> + Send {
        async move {
            let rows = self.rows(statement).await?;
            let some = rows.iter().filter_map(|row| match read(row) {
                Ok(value) => Some(value),
                Err(error) => {
                    tracing::error!(id = row.int(0).ok(), %error, "a notice row cannot be read");
                    None
                }
            });
            Ok(some.collect())
        }
    }

    /// Runs writes whose rows must add up to `expected`; otherwise somebody came between.
    fn run_counted(
        &mut self,
        statements: &[Statement],
        expected: usize,
        what: &'static str,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        async move {
            let mut count = 0;
            for statement in statements {
                count += self.run(statement).await?;
            }
            if u64::try_from(expected).ok() == Some(count) {
                Ok(())
            } else {
                Err(StoreError::Raced(format!(
                    "{what}: {count} rows instead of {expected}"
                )))
            }
        }
    }
}

impl<S: Session> SessionExt for S {}

/// Refuses rows of several merchants that share an id, as a merge of partitions can leave them: a
/// CASE by id could not tell them apart. Alone, each of them is no problem.
fn check_distinct(mut ids: Vec<i64>) -> Result<(), StoreError> {
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    if ids.len() == count {
        Ok(())
    } else {
        let why = "rows of several merchants share an id".to_owned();
        Err(StoreError::Refused(why))
    }
}

/// Opens connections of one database.
pub trait Connect: Send + Sync + 'static {
    /// What it opens.
    type Session: Session + 'static;
    /// Opens one and sets its session up.
    fn connect(&self) -> impl Future<Output = Result<Self::Session, StoreError>> + Send;
}

/// A few connections of one database, and the store's verbs over them.
pub struct Lanes<C: Connect> {
    connect: C,
    /// The latest used last, each with the moment it came back.
    idle: Mutex<Vec<(Instant, C::Session)>>,
    free: Semaphore,
    connections_max: usize,
}

impl<C: Connect> Lanes<C> {
    /// At most `connections_max` connections, opened when first needed.
    pub fn new(connect: C, connections_max: usize) -> Lanes<C> {
        let connections_max = connections_max.max(1);
        Lanes {
            connections_max,
            connect,
            idle: Mutex::new(Vec::new()),
            free: Semaphore::new(connections_max),
        }
    }

    /// Takes a connection out; dropping the lane closes it.
    pub(crate) async fn lane(&self) -> Result<Lane<'_, C>, StoreError> {
        let asked = Instant::now();
        let permit = tokio::time::timeout(LANE_WAIT_MAX, self.free.acquire())
            .await
            .map_err(|_| StoreError::Unavailable("no free connection".to_owned()))?
            .map_err(|_| StoreError::Unavailable("closed".to_owned()))?;
        metrics::histogram!(names::CONNECTION_WAIT_SECONDS).record(asked.elapsed());
        let idle = {
            let mut idle = self.lock_idle();
            idle.retain(|(since, _)| since.elapsed() < IDLE_MAX);
            idle.pop()
        };
        let session = match idle {
            Some((_, session)) => session,
            None => tokio::time::timeout(LANE_WAIT_MAX, self.connect.connect())
                .await
                .map_err(|_| StoreError::Unavailable("connecting took too long".to_owned()))??,
        };
        Ok(Lane {
            session,
            lanes: self,
            _permit: permit,
        })
    }

    /// Reports how many connections there are.
    fn report(&self) {
        let idle = self.lock_idle().len();
        let used = self
            .connections_max
            .saturating_sub(self.free.available_permits());
        telemetry::gauge(metrics::gauge!(names::CONNECTIONS, "state" => "idle"), idle);
        telemetry::gauge(metrics::gauge!(names::CONNECTIONS, "state" => "used"), used);
        telemetry::gauge(
            metrics::gauge!(names::CONNECTIONS_LIMIT),
            self.connections_max,
        );
    }

    fn take_idle(&self) -> Vec<C::Session> {
        let idle = std::mem::take(&mut *self.lock_idle());
        idle.into_iter().map(|(_, session)| session).collect()
    }

    fn lock_idle(&self) -> std::sync::MutexGuard<'_, Vec<(Instant, C::Session)>> {
        // nothing panics while it is held
        self.idle
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// One connection, taken out of its lanes.
pub(crate) struct Lane<'l, C: Connect> {
    pub(crate) session: C::Session,
    lanes: &'l Lanes<C>,
    _permit: tokio::sync::SemaphorePermit<'l>,
}

impl<C: Connect> Lane<'_, C> {
    /// Gives the connection back after an orderly end, good or bad; otherwise drops it, which closes
    /// it and makes the database roll back.
    pub(crate) fn finish<T>(
        self,
        ended: Result<Result<T, StoreError>, Elapsed>,
    ) -> Result<T, StoreError> {
        let result = ended.unwrap_or_else(|_| Err(StoreError::Lost("no answer".to_owned())));
        match &result {
            Err(StoreError::Unavailable(_)) => {}
            // the others are most likely gone too, and each would cost a try
            Err(StoreError::Lost(_)) => drop(self.lanes.take_idle()),
            _ => self.lanes.lock_idle().push((Instant::now(), self.session)),
        }
        result
    }
}

/// Ends a transaction: commits what went well, rolls back what did not.
async fn end<S: Session, T>(
    session: &mut S,
    result: Result<T, StoreError>,
) -> Result<T, StoreError> {
    match result {
        // whatever a failed COMMIT says, what became of the transaction is unknown
        Ok(value) => match session.end(true).await {
            Ok(()) => Ok(value),
            Err(error) => Err(StoreError::Lost(error.to_string())),
        },
        Err(error @ StoreError::Lost(_)) => Err(error),
        Err(error) => match session.end(false).await {
            Ok(()) => Err(error),
            // a rollback that fails means a connection that is gone
            Err(gone) => Err(StoreError::Lost(gone.to_string())),
        },
    }
}

/// Runs a call on a connection, inside one transaction where `begin` stands before it.
macro_rules! on_lane {
    ($lanes:expr, begin, |$s:ident| $work:expr) => {
        Box::pin(async move {
            let mut lane = $lanes.lane().await?;
            let work = async {
                let $s = &mut lane.session;
                $s.begin().await?;
                let result = $work.await;
                end(&mut lane.session, result).await
            };
            let ended = tokio::time::timeout(SILENT_MAX, work).await;
            lane.finish(ended)
        })
    };
    ($lanes:expr, |$s:ident| $work:expr) => {
        Box::pin(async move {
            let mut lane = $lanes.lane().await?;
            let $s = &mut lane.session;
            let ended = tokio::time::timeout(SILENT_MAX, $work).await;
            lane.finish(ended)
        })
    };
}
pub(crate) use on_lane;

/// A database that the configuration names.
#[derive(Clone)]
pub enum Database {
    /// MySQL or MariaDB.
    Mysql(Arc<Lanes<Mysql>>),
    /// SQLite.
    Sqlite(Arc<Lanes<Sqlite>>),
}

impl Database {
    /// The database at this address; nothing is opened yet.
    ///
    /// Errors: an address that cannot be read.
    pub fn new(settings: &DatabaseSettings) -> Result<Database, StoreError> {
        if settings.url.starts_with("sqlite:") {
            // one writer at a time, so one connection: reads wait for no longer than a flush takes
            Ok(Database::Sqlite(Arc::new(Lanes::new(
                Sqlite::new(&settings.url)?,
                1,
            ))))
        } else {
            let mysql = Mysql::new(&settings.url)?;
            Ok(Database::Mysql(Arc::new(Lanes::new(
                mysql,
                settings.connections_max,
            ))))
        }
    }

    /// The flows' view of it.
    pub fn store(&self) -> Arc<dyn Store> {
        match self {
            Database::Mysql(lanes) => Arc::clone(lanes) as _,
            Database::Sqlite(lanes) => Arc::clone(lanes) as _,
        }
    }

    /// The shop's and the auditor's view of it.
    pub fn shop(&self) -> Arc<dyn Shop> {
        match self {
            Database::Mysql(lanes) => Arc::clone(lanes) as _,
            Database::Sqlite(lanes) => Arc::clone(lanes) as _,
        }
    }

    /// Applies what is missing; says which tables were made.
    pub async fn migrate(&self, epoch: &str) -> Result<Vec<String>, MigrateError> {
        match self {
            Database::Mysql(lanes) => lanes.migrate(epoch).await,
            Database::Sqlite(lanes) => lanes.migrate(epoch).await,
        }
    }

    /// Which tables a migration would make.
    pub async fn pending(&self) -> Result<Vec<String>, MigrateError> {
        match self {
            Database::Mysql(lanes) => lanes.pending().await,
            Database::Sqlite(lanes) => lanes.pending().await,
        }
    }

    /// What its settings mean.
    pub async fn findings(&self, migrates_itself: bool, now: UnixMs) -> Vec<Finding> {
        match self {
            Database::Mysql(lanes) => lanes.findings(migrates_itself, now).await,
            Database::Sqlite(lanes) => lanes.findings(migrates_itself, now).await,
        }
    }

    /// Reports how many connections there are.
    pub fn report(&self) {
        match self {
            Database::Mysql(lanes) => lanes.report(),
            Database::Sqlite(lanes) => lanes.report(),
        }
    }

    /// Closes the idle connections; the last to be called.
    pub async fn close(&self) {
        match self {
            Database::Mysql(lanes) => {
                for session in lanes.take_idle() {
                    session.close().await;
                }
            }
            Database::Sqlite(lanes) => {
                for session in lanes.take_idle() {
                    session.close().await;
                }
            }
        }
    }
}

impl<C: Connect> Store for Lanes<C> {
    fn commit<'a>(
        &'a self,
        group: &'a [Intake],
        now: UnixMs,
        limits: DecideLimits,
    ) -> Answer<'a, Vec<Verdict>> {
        on_lane!(self, begin, |s| commit::commit(s, group, now, limits))
    }

    fn flush<'a>(
        &'a self,
        keys: &'a [NoticeKey],
        now: UnixMs,
        limits: PlanLimits,
    ) -> Answer<'a, Flushed> {
        on_lane!(self, begin, |s| flush::flush(s, keys, now, limits))
    }

    fn put_back<'a>(
        &'a self,
        keys: &'a [NoticeKey],
        own: Option<Reason>,
        now: UnixMs,
        limits: PlanLimits,
    ) -> Answer<'a, Flushed> {
        on_lane!(self, begin, |s| flush::put_back(s, keys, own, now, limits))
    }

    fn due<'a>(
        &'a self,
        state: State,
        now: UnixMs,
        rows_max: usize,
        oldest_first: bool,
    ) -> Answer<'a, Vec<NoticeKey>> {
        on_lane!(self, |s| relay::due(s, state, now, rows_max, oldest_first))
    }

    fn take<'a>(
        &'a self,
        state: State,
        keys: &'a [NoticeKey],
        now: UnixMs,
        until: UnixMs,
    ) -> Answer<'a, Vec<TakenNotice>> {
        on_lane!(self, begin, |s| relay::take(s, state, keys, now, until))
    }

    fn count_repeats<'a>(&'a self, counts: &'a [(NoticeKey, i64)]) -> Answer<'a, ()> {
        on_lane!(self, begin, |s| commit::count_repeats(s, counts))
    }

    fn epoch(&self) -> Answer<'_, String> {
        on_lane!(self, |s| relay::epoch(s))
    }

    fn backlog(&self, state: State) -> Answer<'_, Backlog> {
        on_lane!(self, |s| relay::backlog(s, state))
    }

    fn ready(&self) -> Answer<'_, ()> {
        on_lane!(self, begin, |s| relay::touch(s))
    }
}

//! Migrations: embedded, forward only, never over a table that is not ours.

use std::collections::{HashMap, HashSet};

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{SqlSafeStr, SqlStr};

use super::mysql::MysqlSession;
use super::sqlite::SqliteSession;
use super::{Connect, Lanes, Session};
use crate::core::sql::relay::set_epoch;
use crate::core::sql::{Row, Statement};
use crate::ports::StoreError;

/// Where applied migrations are recorded; its own name, because a shop may use the same library.
const RECORD: &str = "refund_batcher_migrations";

macro_rules! migrations {
    ($database:literal: $(($version:literal, $table:literal)),+ $(,)?) => {
        &[$(($version, $table, include_str!(concat!("../../../migrations/", $database, "/", $version, "_", $table, ".sql")))),+]
    };
}

type Embedded = &'static [(&'static str, &'static str, &'static str)];

const MYSQL: Embedded = migrations!("mysql": ("0001", "orders"), ("0002", "refund_order"), ("0003", "notice"),
    ("0004", "notice_raw"), ("0005", "refund_ledger"), ("0006", "meta"));
const SQLITE: Embedded = migrations!("sqlite": ("0001", "orders"), ("0002", "refund_order"), ("0003", "notice"),
    ("0004", "notice_raw"), ("0005", "refund_ledger"), ("0006", "meta"));

/// Why a schema was not brought up to date.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// A table of one of our names that no migration of ours made.
    #[error(
        "table {0} is there and was not made by refund-batcher; rename it, or give refund-batcher a database of its own (if it was: let this user read refund_batcher_migrations)"
    )]
    NotOurs(String),
    /// A migration of ours that broke off after its table was made.
    #[error(
        "the migration of table {0} was interrupted; if the table is empty, drop it, delete the row of its migration from refund_batcher_migrations, and migrate again"
    )]
    Interrupted(String),
    /// A table that was made and is gone.
    #[error(
        "table {0} is recorded as made and is not there; restore it, or delete the row of its migration from refund_batcher_migrations and migrate again"
    )]
    Gone(String),
    /// Another process migrates and does not end.
    #[error("another process has been migrating this database for 30 s")]
    Locked,
    /// The library's own reasons: a migration that failed half-way, or one that was changed.
    #[error(transparent)]
    Failed(#[from] sqlx::migrate::MigrateError),
    /// The database's.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A connection that can migrate.
pub trait Migratable: Session {
    /// The migrations for this database.
    fn embedded() -> Embedded;
    /// A select of `name` for each table of this database.
    fn table_names() -> Statement;
    /// Takes the lock that keeps other processes from migrating at the same time.
    fn lock(&mut self) -> impl Future<Output = Result<(), MigrateError>> + Send;
    /// Gives it back.
    fn unlock(&mut self) -> impl Future<Output = Result<(), MigrateError>> + Send;
    /// Runs the migrator.
    fn apply(
        &mut self,
        migrator: Migrator,
    ) -> impl Future<Output = Result<(), MigrateError>> + Send;
}

impl<C: Connect> Lanes<C>
where
    C::Session: Migratable,
{
    /// Applies what is missing, under a lock, and gives the store its epoch; says what was applied.
    pub async fn migrate(&self, epoch: &str) -> Result<Vec<String>, MigrateError> {
        // a connection of its own: a migration may take longer than a transaction may
        let mut session = self.connect.connect().await?;
        session.lock().await?;
        let applied = migrate(&mut session, epoch).await;
        session.unlock().await?;
        applied
    }

    /// What a migration would apply.
    pub async fn pending(&self) -> Result<Vec<String>, MigrateError> {
        let mut session = self.connect.connect().await?;
        pending(&mut session).await
    }
}

async fn migrate<S: Migratable>(session: &mut S, epoch: &str) -> Result<Vec<String>, MigrateError> {
    let applied = pending(session).await?;
    let migrations = S::embedded()
        .iter()
        .filter_map(|(version, table, text)| {
            let version = version.parse().ok()?;
            let text: SqlStr = (*text).into_sql_str();
            Some(Migration::new(
                version,
                (*table).into(),
                MigrationType::Simple,
                text,
                false,
            ))
        })
        .collect();
    let mut migrator = Migrator::with_migrations(migrations);
    migrator.set_locking(false);
    migrator.dangerous_set_table_name(RECORD);
    session.apply(migrator).await?;
    session.run(&set_epoch(epoch)).await?;
    Ok(applied)
}

/// Tables whose migration is not recorded.
///
/// Errors: one of them is there all the same, so somebody else made it.
async fn pending<S: Migratable>(session: &mut S) -> Result<Vec<String>, MigrateError> {
    let name = |row: &Row| row.text(0);
    let there: HashSet<String> = session
        .rows(&S::table_names())
        .await?
        .iter()
        .map(name)
        .collect::<Result<_, _>>()
        .map_err(StoreError::from)?;
    let recorded: HashMap<i64, bool> = if there.contains(RECORD) {
        let rows = session.rows(&recorded()).await?;
        let read = |row: &Row| -> Result<_, StoreError> { Ok((row.int(0)?, row.int(1)? != 0)) };
        rows.iter().map(read).collect::<Result<_, _>>()?
    } else {
        HashMap::new()
    };
    let mut tables = Vec::new();
    for (version, table, _) in S::embedded() {
        let record = version
            .parse::<i64>()
            .ok()
            .and_then(|version| recorded.get(&version));
        match (record, there.contains(*table)) {
            (Some(true), true) => {}
            (Some(true), false) => return Err(MigrateError::Gone((*table).to_owned())),
            (Some(false), true) => return Err(MigrateError::Interrupted((*table).to_owned())),
            (None, true) => return Err(MigrateError::NotOurs((*table).to_owned())),
            (Some(false) | None, false) => tables.push((*table).to_owned()),
        }
    }
    Ok(tables)
}

/// Recorded migrations, and whether each was carried through.
fn recorded() -> Statement {
    Statement::new(
        "SELECT version, CASE WHEN success THEN 1 ELSE 0 END FROM refund_batcher_migrations",
    )
}

impl Migratable for MysqlSession {
    fn embedded() -> Embedded {
        MYSQL
    }

    fn table_names() -> Statement {
        Statement::new(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()",
        )
    }

    async fn lock(&mut self) -> Result<(), MigrateError> {
        // the library's own lock waits without end, which MariaDB answers with NULL: no lock at all
        let got: Option<i64> = sqlx::query_scalar(
            "SELECT CAST(GET_LOCK(CONCAT('refund-batcher ', DATABASE()), 30) AS SIGNED)",
        )
        .fetch_one(&mut self.connection)
        .await
        .map_err(|error| StoreError::Unavailable(error.to_string()))?;
        if got == Some(1) {
            Ok(())
        } else {
            Err(MigrateError::Locked)
        }
    }

    async fn unlock(&mut self) -> Result<(), MigrateError> {
        sqlx::query("DO RELEASE_LOCK(CONCAT('refund-batcher ', DATABASE()))")
            .execute(&mut self.connection)
            .await
            .map_err(|error| StoreError::Unavailable(error.to_string()))?;
        Ok(())
    }

    async fn apply(&mut self, migrator: Migrator) -> Result<(), MigrateError> {
        Ok(migrator
            .run_direct(None, &mut self.connection, false)
            .await?)
    }
}

impl Migratable for SqliteSession {
    fn embedded() -> Embedded {
        SQLITE
    }

    fn table_names() -> Statement {
        Statement::new("SELECT name FROM sqlite_schema WHERE type = 'table'")
    }

    async fn lock(&mut self) -> Result<(), MigrateError> {
        Ok(())
    }

    async fn unlock(&mut self) -> Result<(), MigrateError> {
        Ok(())
    }

    async fn apply(&mut self, migrator: Migrator) -> Result<(), MigrateError> {
        Ok(migrator
            .run_direct(None, &mut self.connection, false)
            .await?)
    }
}

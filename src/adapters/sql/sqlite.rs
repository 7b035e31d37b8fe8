//! SQLite: one file, one writer at a time, every commit synced to disk.

use std::time::Duration;

use sqlx::sqlite::{
    SqliteArguments, SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteRow,
    SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, Row as _, TypeInfo, ValueRef};

use super::{Connect, Session};
use crate::core::sql::{Bind, Dialect, Row, Statement, Value};
use crate::ports::StoreError;

/// How long a transaction waits for another process's; less than the reply deadline.
const BUSY_MAX: Duration = Duration::from_millis(1_000);
/// Texts that a connection keeps prepared.
const STATEMENTS_MAX: usize = 512;

/// A SQLite database.
pub struct Sqlite {
    options: SqliteConnectOptions,
}

impl Sqlite {
    /// The database at this address (`sqlite://FILE`), made when it is not there.
    ///
    /// Errors: an address that cannot be read.
    pub fn new(url: &str) -> Result<Sqlite, StoreError> {
        let options: SqliteConnectOptions = url
            .parse()
            .map_err(|error: sqlx::Error| StoreError::Unavailable(error.to_string()))?;
        Ok(Sqlite {
            options: options
                .create_if_missing(true)
                .journal_mode(SqliteJournalMode::Wal)
                .synchronous(SqliteSynchronous::Full)
                .busy_timeout(BUSY_MAX)
                .statement_cache_capacity(STATEMENTS_MAX)
                .disable_statement_logging(),
        })
    }
}

/// One connection to SQLite.
pub struct SqliteSession {
    pub(super) connection: SqliteConnection,
}

impl Connect for Sqlite {
    type Session = SqliteSession;

    async fn connect(&self) -> Result<SqliteSession, StoreError> {
        let connection = self
            .options
            .connect()
            .await
            .map_err(|error| StoreError::Unavailable(error.to_string()))?;
        Ok(SqliteSession { connection })
    }
}

impl Session for SqliteSession {
    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    async fn begin(&mut self) -> Result<(), StoreError> {
        // immediate: a transaction that reads first could otherwise not become a writer
        self.connection
            .execute("BEGIN IMMEDIATE")
            .await
            .map(|_| ())
            .map_err(store_error)
    }

    async fn end(&mut self, commit: bool) -> Result<(), StoreError> {
        let text = if commit { "COMMIT" } else { "ROLLBACK" };
        self.connection
            .execute(text)
            .await
            .map(|_| ())
            .map_err(store_error)
    }

    async fn rows(&mut self, statement: &Statement) -> Result<Vec<Row>, StoreError> {
        let rows = prepared(statement)
            .fetch_all(&mut self.connection)
            .await
            .map_err(store_error)?;
        rows.iter().map(read_row).collect()
    }

    async fn run(&mut self, statement: &Statement) -> Result<u64, StoreError> {
        let done = prepared(statement)
            .execute(&mut self.connection)
            .await
            .map_err(store_error)?;
        Ok(done.rows_affected())
    }
}

impl SqliteSession {
    /// Ends the connection in good order, which folds the write-ahead log into the file.
    pub(super) async fn close(self) {
        // the file is whole without it
        drop(self.connection.close().await);
    }
}

/// The one place on SQLite where a text that is no literal runs: it comes from `core::sql`, which
/// binds every value.
fn prepared(statement: &Statement) -> sqlx::query::Query<'_, sqlx::Sqlite, SqliteArguments> {
    let mut query = sqlx::query(AssertSqlSafe(statement.text.as_str()));
    for bind in &statement.binds {
        query = match bind {
            Bind::Null => query.bind(None::<i64>),
            Bind::Int(value) => query.bind(*value),
            Bind::Text(value) => query.bind(value.as_str()),
            Bind::Bytes(value) => query.bind(value.as_slice()),
        };
    }
    query
}

fn read_row(row: &SqliteRow) -> Result<Row, StoreError> {
    let mut values = Vec::with_capacity(row.len());
    for at in 0..row.len() {
        let raw = row.try_get_raw(at).map_err(store_error)?;
        let kind = raw.type_info().name().to_owned();
        let value = match kind.as_str() {
            _ if raw.is_null() => Value::Null,
            "INTEGER" => Value::Int(row.try_get_unchecked(at).map_err(store_error)?),
            "TEXT" => Value::Text(row.try_get_unchecked(at).map_err(store_error)?),
            _ => Value::Bytes(row.try_get_unchecked(at).map_err(store_error)?),
        };
        values.push(value);
    }
    Ok(Row(values))
}

fn store_error(error: sqlx::Error) -> StoreError {
    match &error {
        sqlx::Error::Database(database) => {
            let code = database
                .code()
                .and_then(|code| code.parse::<u32>().ok())
                .unwrap_or(0);
            by_code(code, database.message())
        }
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::Encode(_) => {
            StoreError::Refused("a value cannot be read".to_owned())
        }
        _ => StoreError::Lost(error.to_string()),
    }
}

/// What an extended result code means for the transaction that met it.
fn by_code(code: u32, message: &str) -> StoreError {
    match (code, code & 0xFF) {
        // a unique or primary key that another process wrote first
        (2067 | 1555, _) => StoreError::Raced(code.to_string()),
        // busy and locked: another process writes
        (_, 5 | 6) => StoreError::Conflict(code.to_string()),
        // constraint, too big, mismatch, a trigger's RAISE
        (_, 18..=20) => StoreError::Refused(format!("{code} {message}")),
        _ => StoreError::Unavailable(format!("code {code}: {message}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::Advice;

    #[test]
    fn every_result_code_has_its_advice() {
        let check =
            |code: u32, advice: Advice| assert_eq!(by_code(code, "x").advice(), advice, "{code}");
        check(5, Advice::Again);
        check(517, Advice::Again);
        check(2067, Advice::Again);
        check(275, Advice::Bisect);
        check(1299, Advice::Bisect);
        check(1811, Advice::Bisect);
        check(13, Advice::GiveUp);
        check(11, Advice::GiveUp);
    }
}

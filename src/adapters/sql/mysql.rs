//! MySQL and MariaDB: connect, set the session up, run a statement, name errors.

use sqlx::mysql::{
    MySqlArguments, MySqlConnectOptions, MySqlConnection, MySqlDatabaseError, MySqlRow,
};
use sqlx::{
    AssertSqlSafe, Column, ConnectOptions, Connection, Executor, Row as _, TypeInfo, ValueRef,
};

use super::{Connect, Session};
use crate::core::sql::{Bind, Dialect, Row, Statement, Value};
use crate::ports::StoreError;

/// Texts that a connection keeps prepared: more than there are. Two instances of 16 connections stay
/// under the server's default limit.
pub(super) const STATEMENTS_MAX: usize = 448;

/// A MySQL or MariaDB database.
pub struct Mysql {
    options: MySqlConnectOptions,
}

impl Mysql {
    /// The database at this address; `?socket=PATH` names a Unix socket.
    ///
    /// Errors: an address that cannot be read.
    pub fn new(url: &str) -> Result<Mysql, StoreError> {
        let options: MySqlConnectOptions = url
            .parse()
            .map_err(|error: sqlx::Error| StoreError::Unavailable(error.to_string()))?;
        Ok(Mysql {
            options: options
                .statement_cache_capacity(STATEMENTS_MAX)
                .disable_statement_logging(),
        })
    }
}

/// One connection to MySQL or MariaDB.
pub struct MysqlSession {
    pub(super) connection: MySqlConnection,
    /// Whether the server is MariaDB.
    pub(super) is_mariadb: bool,
}

impl Connect for Mysql {
    type Session = MysqlSession;

    async fn connect(&self) -> Result<MysqlSession, StoreError> {
        let unavailable = |error: sqlx::Error| StoreError::Unavailable(error.to_string());
        let mut connection = self.options.connect().await.map_err(unavailable)?;
        let version: String = sqlx::query_scalar("SELECT VERSION()")
            .fetch_one(&mut connection)
            .await
            .map_err(unavailable)?;
        let is_mariadb = version.contains("MariaDB");
        // short waits, so that one stuck row costs a second and not the deadline; strict, so that
        // nothing is cut silently; a session that lost its client gives its locks back
        let mut texts = vec![
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
            "SET SESSION innodb_lock_wait_timeout = 1, lock_wait_timeout = 2, wait_timeout = 600, \
             sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO'",
        ];
        if is_mariadb {
            texts.push(
                "SET SESSION in_predicate_conversion_threshold = 0, idle_transaction_timeout = 10",
            );
        }
        for text in texts {
            connection.execute(text).await.map_err(unavailable)?;
        }
        Ok(MysqlSession {
            connection,
            is_mariadb,
        })
    }
}

impl Session for MysqlSession {
    fn dialect(&self) -> Dialect {
        Dialect::Mysql
    }

    async fn begin(&mut self) -> Result<(), StoreError> {
        self.connection
            .execute("START TRANSACTION")
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

impl MysqlSession {
    /// Ends the connection in good order.
    pub(super) async fn close(self) {
        // the server notices a broken one by itself
        drop(self.connection.close().await);
    }
}

/// The one place on MySQL where a text that is no literal runs: it comes from `core::sql`, which
/// binds every value.
fn prepared(statement: &Statement) -> sqlx::query::Query<'_, sqlx::MySql, MySqlArguments> {
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

fn read_row(row: &MySqlRow) -> Result<Row, StoreError> {
    let mut values = Vec::with_capacity(row.len());
    for (at, column) in row.columns().iter().enumerate() {
        let raw = row.try_get_raw(at).map_err(store_error)?;
        let kind = column.type_info().name();
        let value = if raw.is_null() {
            Value::Null
        } else if kind.ends_with("UNSIGNED") {
            let value: u64 = row.try_get_unchecked(at).map_err(store_error)?;
            Value::Int(i64::try_from(value).unwrap_or(i64::MAX))
        } else if kind.contains("INT") {
            Value::Int(row.try_get_unchecked(at).map_err(store_error)?)
        } else {
            Value::Bytes(row.try_get_unchecked(at).map_err(store_error)?)
        };
        values.push(value);
    }
    Ok(Row(values))
}

fn store_error(error: sqlx::Error) -> StoreError {
    match &error {
        sqlx::Error::Database(database) => {
            match database.try_downcast_ref::<MySqlDatabaseError>() {
                Some(error) => {
                    by_number(error.number(), error.code().unwrap_or(""), error.message())
                }
                None => StoreError::Unavailable(error.to_string()),
            }
        }
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::Encode(_) => {
            StoreError::Refused("a value cannot be read".to_owned())
        }
        _ => StoreError::Lost(error.to_string()),
    }
}

/// What a server error means for the transaction that met it.
fn by_number(number: u16, state: &str, message: &str) -> StoreError {
    match number {
        // deadlock, snapshot conflict, error at commit, query killed or timed out
        1213 | 1020 | 1180 | 1317 | 1969 | 3024 => StoreError::Conflict(number.to_string()),
        // duplicate key
        1062 => StoreError::Raced(number.to_string()),
        1205 => StoreError::LockTimeout,
        // node not ready, connection killed or idle too long, shutdown; read-only: another server is
        // the writer now
        1047 | 1927 | 1053 | 4031 | 1290 | 1792 | 1836 => {
            StoreError::Lost(format!("error {number}"))
        }
        // larger than a packet
        1153 => StoreError::Refused(format!("{number} {message}")),
        _ if state.starts_with("08") => StoreError::Lost(format!("error {number}")),
        _ if state.starts_with("40") => StoreError::Conflict(number.to_string()),
        // these two quote the value itself
        1366 | 1292 => StoreError::Refused(format!("{number} a value does not fit its column")),
        // no partition, no default, check constraints, a trigger's SIGNAL
        1526 | 1364 | 4025 | 3819 | 1644 => StoreError::Refused(format!("{number} {message}")),
        _ if state.starts_with("22") || state.starts_with("23") || state.starts_with("45") => {
            StoreError::Refused(format!("{number} {message}"))
        }
        _ => StoreError::Unavailable(format!("error {number}: {message}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::Advice;

    #[test]
    fn every_server_error_has_its_advice() {
        let check = |number: u16, state: &str, advice: Advice| {
            assert_eq!(by_number(number, state, "x").advice(), advice, "{number}");
        };
        for number in [1213, 1020, 1062, 1180, 1047, 1927, 1053, 1290, 1792, 1836] {
            check(number, "HY000", Advice::Again);
        }
        check(4031, "HY000", Advice::Again);
        check(1159, "08S01", Advice::Again);
        check(3101, "40000", Advice::Again);
        check(1205, "HY000", Advice::SlowLane);
        check(1153, "08S01", Advice::Bisect);
        check(1406, "22001", Advice::Bisect);
        check(1264, "22003", Advice::Bisect);
        check(1048, "23000", Advice::Bisect);
        check(4025, "23000", Advice::Bisect);
        check(1644, "45000", Advice::Bisect);
        check(1146, "42S02", Advice::GiveUp);
        check(1021, "HY000", Advice::GiveUp);
    }
}

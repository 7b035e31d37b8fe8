//! SQL as a shop or a database administrator writes it, on a connection of the test's own.

use refund_batcher::core::sql::{Bind, Statement};
use sqlx::mysql::MySqlConnection;
use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Connection, Executor, Row as _};

/// One connection, without any of the service's session settings.
pub(crate) enum Raw {
    Mysql(MySqlConnection),
    Sqlite(SqliteConnection),
}

impl Raw {
    pub(crate) async fn open(url: &str) -> Raw {
        Raw::try_open(url)
            .await
            .unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    pub(crate) async fn try_open(url: &str) -> Result<Raw, sqlx::Error> {
        Ok(if url.starts_with("sqlite:") {
            Raw::Sqlite(SqliteConnection::connect(url).await?)
        } else {
            Raw::Mysql(MySqlConnection::connect(url).await?)
        })
    }

    pub(crate) fn is_mysql(&self) -> bool {
        matches!(self, Raw::Mysql(_))
    }

    /// Runs one or more statements; gives the rows that they changed.
    pub(crate) async fn run(&mut self, text: &str) -> u64 {
        self.try_run(text)
            .await
            .unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    pub(crate) async fn try_run(&mut self, text: &str) -> Result<u64, sqlx::Error> {
        let query = sqlx::raw_sql(AssertSqlSafe(text));
        Ok(match self {
            Raw::Mysql(connection) => connection.execute(query).await?.rows_affected(),
            Raw::Sqlite(connection) => connection.execute(query).await?.rows_affected(),
        })
    }

    /// Runs one of the service's own statements; gives the rows that it matched.
    pub(crate) async fn statement(&mut self, statement: &Statement) -> Result<u64, sqlx::Error> {
        macro_rules! run {
            ($connection:expr) => {{
                let mut query = sqlx::query(AssertSqlSafe(statement.text.as_str()));
                for bind in &statement.binds {
                    query = match bind {
                        Bind::Null => query.bind(None::<i64>),
                        Bind::Int(value) => query.bind(*value),
                        Bind::Text(value) => query.bind(value.as_str()),
                        Bind::Bytes(value) => query.bind(value.as_slice()),
                    };
                }
                query.execute($connection).await?.rows_affected()
            }};
        }
        Ok(match self {
            Raw::Mysql(connection) => run!(connection),
            Raw::Sqlite(connection) => run!(connection),
        })
    }

    /// All rows, every value as text.
    pub(crate) async fn rows(&mut self, text: &str) -> Vec<Vec<Option<String>>> {
        let query = sqlx::raw_sql(AssertSqlSafe(text));
        let read = match self {
            Raw::Mysql(connection) => connection.fetch_all(query).await.map(|rows| {
                rows.iter()
                    .map(|row| {
                        (0..row.len())
                            .map(|at| row.try_get_unchecked(at).unwrap())
                            .collect()
                    })
                    .collect()
            }),
            Raw::Sqlite(connection) => connection.fetch_all(query).await.map(|rows| {
                rows.iter()
                    .map(|row| {
                        (0..row.len())
                            .map(|at| row.try_get_unchecked(at).unwrap())
                            .collect()
                    })
                    .collect()
            }),
        };
        read.unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    /// All rows, the values of each joined by blanks; NULL is `-`.
    pub(crate) async fn lines(&mut self, text: &str) -> Vec<String> {
        let line = |row: Vec<Option<String>>| {
            let values: Vec<String> = row
                .into_iter()
                .map(|value| value.unwrap_or_else(|| "-".to_owned()))
                .collect();
            values.join(" ")
        };
        self.rows(text).await.into_iter().map(line).collect()
    }

    /// The one value of the one row, where there is one.
    pub(crate) async fn text(&mut self, text: &str) -> Option<String> {
        self.rows(text)
            .await
            .into_iter()
            .next()
            .and_then(|row| row.into_iter().next())
            .flatten()
    }

    /// The one value, a whole number.
    pub(crate) async fn int(&mut self, text: &str) -> i64 {
        let value = self.text(text).await;
        value
            .as_deref()
            .and_then(|value| value.parse().ok())
            .unwrap_or_else(|| panic!("{text}: {value:?}"))
    }

    /// Begins a transaction, which on SQLite keeps everybody else from writing.
    pub(crate) async fn begin(&mut self) {
        let text = if self.is_mysql() {
            "START TRANSACTION"
        } else {
            "BEGIN IMMEDIATE"
        };
        self.run(text).await;
    }
}

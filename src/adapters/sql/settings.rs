//! What a database's settings mean for money: durability, isolation, packet size, missing tables.

use super::migrate::Migratable;
use super::mysql::{MysqlSession, STATEMENTS_MAX};
use super::sqlite::SqliteSession;
use super::{Connect, Lanes, Session, SessionExt};
use crate::core::sql::{Row, Statement, schema};
use crate::core::types::UnixMs;
use crate::ports::StoreError;

/// How far our clock and the database's may lie apart.
const CLOCKS_APART_MS_MAX: i64 = 1_000;
/// Connections that a server should have left beside one instance's.
const CONNECTIONS_BESIDE: usize = 16;

/// How grave a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grade {
    /// As it should be.
    Good,
    /// The service starts, but somebody should know.
    Warning,
    /// The service could not start, or would not keep its word.
    Fault,
}

/// One line of `check`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How grave.
    pub grade: Grade,
    /// What was looked at.
    pub what: String,
    /// What was found, and the remedy where there is one to take.
    pub found: String,
}

impl Finding {
    /// A finding.
    pub fn new(grade: Grade, what: &str, found: impl Into<String>) -> Finding {
        Finding {
            grade,
            what: what.to_owned(),
            found: found.into(),
        }
    }
}

/// A connection that knows what to ask its server.
pub trait Inspect: Session {
    /// What was found.
    ///
    /// Shapes: `now`, to compare the server's clock with; `connections_max` of one instance.
    fn inspect(
        &mut self,
        now: UnixMs,
        connections_max: usize,
    ) -> impl Future<Output = Result<Vec<Finding>, StoreError>> + Send;
}

impl<C: Connect> Lanes<C>
where
    C::Session: Inspect + Migratable,
{
    /// Looks at the settings of the database and at its tables.
    ///
    /// Errors: none; what cannot be reached is a finding.
    pub async fn findings(&self, migrates_itself: bool, now: UnixMs) -> Vec<Finding> {
        let mut session = match self.connect.connect().await {
            Ok(session) => session,
            Err(error) => {
                let found = format!("{error}; start it, or correct database.url");
                return vec![Finding::new(Grade::Fault, "database", found)];
            }
        };
        let mut findings = match session.inspect(now, self.connections_max).await {
            Ok(findings) => findings,
            Err(error) => vec![Finding::new(Grade::Fault, "database", error.to_string())],
        };
        drop(session);
        findings.push(match self.pending().await {
            Ok(tables) if tables.is_empty() => Finding::new(Grade::Good, "tables", "up to date"),
            Ok(tables) if migrates_itself => Finding::new(
                Grade::Good,
                "tables",
                format!("{} to be made at the start", tables.join(", ")),
            ),
            Ok(tables) => {
                let found = format!(
                    "{} missing; run `refund-batcher migrate`",
                    tables.join(", ")
                );
                Finding::new(Grade::Fault, "tables", found)
            }
            Err(error) => Finding::new(Grade::Fault, "tables", error.to_string()),
        });
        findings
    }
}

impl Inspect for SqliteSession {
    async fn inspect(
        &mut self,
        _now: UnixMs,
        _connections_max: usize,
    ) -> Result<Vec<Finding>, StoreError> {
        let version = self
            .read_all(&[Statement::new("SELECT sqlite_version()")], |row| {
                row.text(0)
            })
            .await?;
        let version = version.first().cloned().unwrap_or_default();
        Ok(vec![Finding::new(
            Grade::Good,
            "database",
            format!("SQLite {version}, every commit synced"),
        )])
    }
}

impl Inspect for MysqlSession {
    async fn inspect(
        &mut self,
        now: UnixMs,
        connections_max: usize,
    ) -> Result<Vec<Finding>, StoreError> {
        let mut findings = self.server_settings(now, connections_max).await?;
        findings.extend(self.table_faults().await?);
        Ok(findings)
    }
}

/// A finding that is good, or else of this grade with a remedy.
fn judged(good: bool, grade: Grade, what: &str, is: String, remedy: &str) -> Finding {
    if good {
        Finding::new(Grade::Good, what, is)
    } else {
        Finding::new(grade, what, format!("{is}; {remedy}"))
    }
}

fn as_i64(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

impl MysqlSession {
    async fn server_settings(
        &mut self,
        now: UnixMs,
        connections_max: usize,
    ) -> Result<Vec<Finding>, StoreError> {
        let read = Statement::new(
            "SELECT VERSION(), CAST(@@innodb_flush_log_at_trx_commit AS SIGNED), CAST(@@log_bin AS SIGNED), \
             CAST(@@sync_binlog AS SIGNED), @@binlog_format, CAST(@@max_allowed_packet AS SIGNED), \
             CAST(ROUND(UNIX_TIMESTAMP(NOW(3)) * 1000) AS SIGNED), CAST(@@max_prepared_stmt_count AS SIGNED), \
             CAST(@@max_connections AS SIGNED)",
        );
        let isolation = Statement::new(if self.is_mariadb {
            "SELECT @@tx_isolation"
        } else {
            "SELECT @@transaction_isolation"
        });
        let isolation = self
            .read_all(&[isolation], |row| row.text(0))
            .await?
            .concat();
        let rows = self.rows(&read).await?;
        let Some(row) = rows.first() else {
            return Err(StoreError::Refused("no answer".to_owned()));
        };
        let (version, format) = (row.text(0)?, row.text(4)?);
        let (redo, binlog, sync, packet) = (row.int(1)?, row.int(2)?, row.int(3)?, row.int(5)?);
        let (apart_ms, prepared) = ((row.int(6)? - now.0).abs(), row.int(7)?);
        let kind = if self.is_mariadb { "MariaDB" } else { "MySQL" };
        Ok(vec![
            judged(
                is_supported(&version, self.is_mariadb),
                Grade::Fault,
                "database",
                format!("{kind} {version}"),
                "MariaDB 10.6 or MySQL 8.0 is needed, for SKIP LOCKED",
            ),
            judged(
                redo == 1,
                Grade::Warning,
                "innodb_flush_log_at_trx_commit",
                redo.to_string(),
                "SET GLOBAL innodb_flush_log_at_trx_commit = 1; an acknowledged notice is otherwise lost when the server dies",
            ),
            judged(
                binlog == 0 || sync == 1,
                Grade::Warning,
                "sync_binlog",
                sync.to_string(),
                "SET GLOBAL sync_binlog = 1; a replica otherwise misses acknowledged notices after a crash",
            ),
            judged(
                binlog == 0 || format != "STATEMENT",
                Grade::Fault,
                "binlog_format",
                format.clone(),
                "SET GLOBAL binlog_format = 'ROW'; READ COMMITTED cannot be logged as statements",
            ),
            judged(
                isolation == "READ-COMMITTED",
                Grade::Fault,
                "isolation of our sessions",
                isolation,
                "something between us and the server overrides SET SESSION TRANSACTION ISOLATION LEVEL",
            ),
            judged(
                packet >= 16 << 20,
                Grade::Warning,
                "max_allowed_packet",
                packet.to_string(),
                "SET GLOBAL max_allowed_packet = 16777216",
            ),
            judged(
                prepared >= as_i64(connections_max * STATEMENTS_MAX),
                Grade::Warning,
                "max_prepared_stmt_count",
                prepared.to_string(),
                "raise it: each connection of each instance keeps up to 448 statements prepared",
            ),
            judged(
                row.int(8)? >= as_i64(connections_max + CONNECTIONS_BESIDE),
                Grade::Warning,
                "max_connections",
                row.int(8)?.to_string(),
                "raise it: each instance takes database.connections_max of them",
            ),
            judged(
                apart_ms <= CLOCKS_APART_MS_MAX,
                Grade::Warning,
                "clock",
                format!("{apart_ms} ms apart from the database's"),
                "synchronise both clocks: notices are refused when ours is five minutes off",
            ),
        ])
    }

    /// Columns and keys that are not as the migrations made them; tables that are not there are
    /// somebody else's finding.
    async fn table_faults(&mut self) -> Result<Vec<Finding>, StoreError> {
        let mut faults = Vec::new();
        for (_, table, migration) in MysqlSession::embedded() {
            let pair = |row: &Row| Ok((row.text(0)?, row.text(1)?));
            let collations = self.read_all(&[schema::collations_of(table)], pair).await?;
            for text in schema::wanted_texts(migration) {
                let is = collations.iter().find(|(name, _)| *name == text.name);
                if let Some((_, collation)) = is.filter(|(_, collation)| collation != "utf8mb4_bin")
                {
                    let what = format!("{table}.{}", text.name);
                    let found = format!(
                        "compares by {collation}, so different numbers can look alike; {}",
                        text.remedy(table)
                    );
                    faults.push(Finding::new(Grade::Fault, &what, found));
                }
            }
            if collations.is_empty() {
                continue;
            }
            let indexes = self.read_all(&[schema::indexes_of(table)], pair).await?;
            for wanted in schema::wanted_indexes(migration) {
                let is = indexes.iter().find(|(name, _)| *name == wanted.name);
                if is.is_none_or(|(_, columns)| *columns != wanted.columns) {
                    let what = format!("{table} key {}", wanted.name);
                    let found = format!(
                        "missing or over other columns; {}",
                        wanted.remedy(table, is.is_some())
                    );
                    faults.push(Finding::new(Grade::Fault, &what, found));
                }
            }
        }
        Ok(faults)
    }
}

/// MariaDB 10.6 and MySQL 8.0 brought `SKIP LOCKED`.
fn is_supported(version: &str, is_mariadb: bool) -> bool {
    let mut numbers = version
        .split(['.', '-'])
        .map_while(|part| part.parse::<u32>().ok());
    let (major, minor) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if is_mariadb {
        (major, minor) >= (10, 6)
    } else {
        major >= 8
    }
}

#[cfg(test)]
mod tests {
    use super::is_supported;

    #[test]
    fn versions_that_know_skip_locked() {
        assert!(is_supported("10.11.19-MariaDB-0+deb12u1-log", true));
        assert!(is_supported("11.4.2-MariaDB", true));
        assert!(!is_supported("10.5.20-MariaDB", true));
        assert!(is_supported("8.0.36", false));
        assert!(!is_supported("5.7.44-log", false));
        assert!(!is_supported("", false));
    }
}

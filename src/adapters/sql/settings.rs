//! What a database's settings mean for money: durability, isolation, packet size, missing tables.

use super::migrate::Migratable;
use super::mysql::MysqlSession;
use super::sqlite::SqliteSession;
use super::{Connect, Lanes, Session, SessionExt};
use crate::core::sql::Statement;
use crate::ports::StoreError;

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
    fn inspect(&mut self) -> impl Future<Output = Result<Vec<Finding>, StoreError>> + Send;
}

impl<C: Connect> Lanes<C>
where
    C::Session: Inspect + Migratable,
{
    /// Looks at the settings of the database and at its tables.
    ///
    /// Errors: none; what cannot be reached is a finding.
    pub async fn findings(&self, migrates_itself: bool) -> Vec<Finding> {
        let mut session = match self.connect.connect().await {
            Ok(session) => session,
            Err(error) => {
                let found = format!("{error}; start it, or correct database.url");
                return vec![Finding::new(Grade::Fault, "database", found)];
            }
        };
        let mut findings = match session.inspect().await {
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
    async fn inspect(&mut self) -> Result<Vec<Finding>, StoreError> {
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
    async fn inspect(&mut self) -> Result<Vec<Finding>, StoreError> {
        let read = Statement::new(
            "SELECT VERSION(), CAST(@@innodb_flush_log_at_trx_commit AS SIGNED), CAST(@@log_bin AS SIGNED), \
             CAST(@@sync_binlog AS SIGNED), @@binlog_format, CAST(@@max_allowed_packet AS SIGNED)",
        );
        let rows = self
            .read_all(&[read], |row| {
                Ok((
                    row.text(0)?,
                    row.int(1)?,
                    row.int(2)?,
                    row.int(3)?,
                    row.text(4)?,
                    row.int(5)?,
                ))
            })
            .await?;
        let Some((version, redo, binlog, sync, format, packet)) = rows.into_iter().next() else {
            return Err(StoreError::Refused("no answer".to_owned()));
        };
        let check = |good: bool, grade: Grade, what: &str, is: String, remedy: &str| {
            if good {
                Finding::new(Grade::Good, what, is)
            } else {
                Finding::new(grade, what, format!("{is}; {remedy}"))
            }
        };
        let kind = if self.is_mariadb { "MariaDB" } else { "MySQL" };
        Ok(vec![
            check(
                is_supported(&version, self.is_mariadb),
                Grade::Fault,
                "database",
                format!("{kind} {version}"),
                "MariaDB 10.6 or MySQL 8.0 is needed, for SKIP LOCKED",
            ),
            check(
                redo == 1,
                Grade::Warning,
                "innodb_flush_log_at_trx_commit",
                redo.to_string(),
                "set it to 1: an acknowledged notice is otherwise lost when the server dies",
            ),
            check(
                binlog == 0 || sync == 1,
                Grade::Warning,
                "sync_binlog",
                sync.to_string(),
                "set it to 1: a replica otherwise misses acknowledged notices after a crash",
            ),
            check(
                binlog == 0 || format != "STATEMENT",
                Grade::Fault,
                "binlog_format",
                format.clone(),
                "set it to ROW: READ COMMITTED cannot be logged as statements",
            ),
            check(
                packet >= 16 << 20,
                Grade::Warning,
                "max_allowed_packet",
                packet.to_string(),
                "set it to 16 MiB or more",
            ),
        ])
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

//! What every store must do, whatever database it is on: the same cases against SQLite and MariaDB,
//! partly on the store's verbs, partly through the running service.

/// Makes each case a test on SQLite and one on MariaDB; a case is handed a database of its own.
macro_rules! on_each_database {
    ($($case:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(crate::support::TestDatabase::sqlite().await).await;
            })+
        }

        mod mariadb {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(crate::support::TestDatabase::mariadb().await).await;
            })+
        }
    };
}

mod columns;
mod guards;
mod late;
mod migrate;
mod once;
mod partial;
mod refused;
mod status;
mod unopened;

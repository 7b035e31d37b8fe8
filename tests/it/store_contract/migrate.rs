//! Migrations: forward only, once, and never over a table that is somebody else's.

use refund_batcher::adapters::sql::Database;
use refund_batcher::adapters::sql::migrate::MigrateError;
use refund_batcher::config::DatabaseSettings;

use crate::support::TestDatabase;
use crate::support::mariadb::new_schema;
use crate::support::raw::Raw;

const TABLES: [&str; 6] = [
    "orders",
    "refund_order",
    "notice",
    "notice_raw",
    "refund_ledger",
    "meta",
];

on_each_database!(a_second_migration_does_nothing);

async fn a_second_migration_does_nothing(db: TestDatabase) {
    // Aim: migrating what is up to date changes neither tables, nor rows, nor the store's epoch.
    // Method: the tables are there already; migrate again with another epoch; compare.
    let mut raw = Raw::open(&db.url).await;
    raw.run("INSERT INTO meta (name, value) VALUES ('kept', 'yes')")
        .await;
    for _ in 0..2 {
        assert_eq!(db.database.pending().await.unwrap(), Vec::<String>::new());
        assert_eq!(
            db.database.migrate("another-epoch").await.unwrap(),
            Vec::<String>::new()
        );
        let meta = raw
            .lines("SELECT name, value FROM meta ORDER BY name")
            .await;
        assert_eq!(meta, ["epoch test-epoch", "kept yes"]);
        assert_eq!(db.database.store().epoch().await.unwrap(), "test-epoch");
    }
}

/// A database over this address, nothing in it yet.
fn open(url: &str) -> Database {
    Database::new(&DatabaseSettings::for_url(url)).unwrap()
}

/// Each of our names taken by somebody else's table: named, and nothing made.
async fn check_foreign_tables(url: &str) {
    let database = open(url);
    assert_eq!(database.pending().await.unwrap(), TABLES);
    let mut raw = Raw::open(url).await;
    for table in TABLES {
        raw.run(&format!(
            "CREATE TABLE {table} (theirs INT); INSERT INTO {table} VALUES (7)"
        ))
        .await;
        for refused in [
            database.migrate("e").await.map(drop),
            database.pending().await.map(drop),
        ] {
            let Err(error) = refused else {
                panic!("{table}: migrated over somebody else's table")
            };
            assert!(
                matches!(&error, MigrateError::NotOurs(name) if name == table),
                "{error}"
            );
            assert!(
                error.to_string().contains(&format!("table {table} ")),
                "{error}"
            );
        }
        assert_eq!(raw.lines(&format!("SELECT * FROM {table}")).await, ["7"]);
        raw.run(&format!("DROP TABLE {table}")).await;
        assert_eq!(
            database.pending().await.unwrap(),
            TABLES,
            "something was made beside {table}"
        );
    }
    assert_eq!(database.migrate("e").await.unwrap(), TABLES);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_somebody_else_is_named_and_left_alone_on_sqlite() {
    // Aim: no migration alters or creates over a table that no migration of ours made.
    // Method: each of our names taken in turn on an empty database.
    let folder = tempfile::tempdir().unwrap();
    let url = format!(
        "sqlite://{}?mode=rwc",
        folder.path().join("shop.db").display()
    );
    check_foreign_tables(&url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_somebody_else_is_named_and_left_alone_on_mariadb() {
    // Aim and method: as on SQLite.
    check_foreign_tables(&new_schema().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_migrations_at_once_on_mariadb() {
    // Aim: two instances that start together make the tables once, and neither fails.
    // Method: eight migrations of an empty schema at the same moment; one finds something to do.
    let url = new_schema().await;
    let tasks: Vec<_> = (0..8)
        .map(|n| {
            let database = open(&url);
            tokio::spawn(async move { database.migrate(&format!("epoch {n}")).await })
        })
        .collect();
    let mut made = Vec::new();
    for task in tasks {
        made.push(task.await.unwrap().unwrap().len());
    }
    made.sort_unstable();
    assert_eq!(made, [0, 0, 0, 0, 0, 0, 0, 6]);
    let mut raw = Raw::open(&url).await;
    assert_eq!(
        raw.int("SELECT COUNT(*) FROM meta WHERE name = 'epoch'")
            .await,
        1
    );
    assert_eq!(
        raw.int("SELECT COUNT(*) FROM refund_batcher_migrations WHERE success")
            .await,
        6
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_broke_off_is_named() {
    // Aim: a table whose migration was recorded and not carried through is never taken for ready,
    // nor is one that was made and is gone.
    // Method: mark one migration as broken off; look; put it right; drop a table; look.
    let url = new_schema().await;
    let database = open(&url);
    database.migrate("e").await.unwrap();
    let mut raw = Raw::open(&url).await;
    raw.run("UPDATE refund_batcher_migrations SET success = FALSE WHERE version = 4")
        .await;
    let error = database.pending().await.unwrap_err();
    assert!(
        matches!(&error, MigrateError::Interrupted(table) if table == "notice_raw"),
        "{error}"
    );
    raw.run("UPDATE refund_batcher_migrations SET success = TRUE")
        .await;
    raw.run("DROP TABLE notice_raw").await;
    let error = database.pending().await.unwrap_err();
    assert!(
        matches!(&error, MigrateError::Gone(table) if table == "notice_raw"),
        "{error}"
    );
}

//! Every statement on a real database: it prepares, it reads about as many rows as it is asked for,
//! and its texts are few.

use std::collections::{BTreeMap, BTreeSet};

use refund_batcher::core::sql::{Bind, Dialect, LIST_MAX, Statement};
use sqlx::mysql::{MySqlArguments, MySqlConnection};
use sqlx::{AssertSqlSafe, Connection, Executor, Row as _, SqlSafeStr};

use crate::support::TestDatabase;
use crate::support::catalogue::{Named, SIZES, Sample, changing, reading};
use crate::support::raw::Raw;

/// Binds at most in one statement: SQLite's limit.
const BINDS_MAX: usize = 32_766;
/// Rows read at most for each element asked for, and beside it. An update finds a row, reads it
/// again and may look for it under each of two merchants.
const ROWS_EACH: i64 = 6;
const ROWS_BESIDE: i64 = 24;

#[tokio::test(flavor = "multi_thread")]
async fn every_statement_prepares_on_sqlite() {
    // Aim: no text is wrong for SQLite. Method: prepare each, for groups of several sizes.
    let db = TestDatabase::sqlite().await;
    check_prepares(&db, Dialect::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_statement_prepares_on_mariadb() {
    // Aim: no text is wrong for MariaDB. Method: prepare each, for groups of several sizes.
    let db = TestDatabase::mariadb().await;
    check_prepares(&db, Dialect::Mysql).await;
}

async fn check_prepares(db: &TestDatabase, dialect: Dialect) {
    let sample = Sample::invented(LIST_MAX);
    let mut raw = Raw::open(&db.url).await;
    for size in SIZES {
        let some = sample.first(size);
        for (name, statements) in reading(dialect, &some)
            .into_iter()
            .chain(changing(dialect, &some))
        {
            for statement in statements {
                let text = AssertSqlSafe(statement.text.clone()).into_sql_str();
                let prepared = match &mut raw {
                    Raw::Mysql(connection) => connection.prepare(text).await.map(drop),
                    Raw::Sqlite(connection) => connection.prepare(text).await.map(drop),
                };
                assert!(
                    prepared.is_ok(),
                    "{name} of {size}: {prepared:?}: {}",
                    statement.text
                );
            }
        }
    }
}

#[test]
fn texts_are_few_and_their_binds_within_the_limit() {
    // Aim: a connection keeps every text prepared that it ever meets, and no statement meets a
    // database's limit on placeholders.
    // Method: build everything for every size of a group, with one merchant and with two; count.
    for dialect in [Dialect::Mysql, Dialect::Sqlite] {
        let mut texts: BTreeMap<Named, BTreeSet<String>> = BTreeMap::new();
        for sample in [
            Sample::invented(LIST_MAX),
            Sample::invented(LIST_MAX).of_one_merchant(),
        ] {
            for size in 1..=sample.len() {
                let some = sample.first(size);
                for (name, statements) in reading(dialect, &some)
                    .into_iter()
                    .chain(changing(dialect, &some))
                {
                    for Statement { text, binds } in statements {
                        assert_eq!(text.matches('?').count(), binds.len(), "{name} of {size}");
                        assert!(
                            binds.len() < BINDS_MAX,
                            "{name} of {size}: {} binds",
                            binds.len()
                        );
                        texts.entry(name).or_default().insert(text);
                    }
                }
            }
        }
        for (name, texts) in &texts {
            assert!(
                texts.len() <= 24,
                "{dialect:?} {name}: {} texts",
                texts.len()
            );
        }
        let all: usize = texts.values().map(BTreeSet::len).sum();
        assert!(
            all <= 400,
            "{dialect:?}: {all} texts in all, beside 448 that a connection keeps"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_statement_scans_on_sqlite() {
    // Aim: every statement finds its rows by an index. Method: ask for the plan of each.
    let db = TestDatabase::sqlite().await;
    let sample = Sample::stored(&db, 10_000).await;
    let mut raw = Raw::open(&db.url).await;
    raw.run("ANALYZE").await;
    let Raw::Sqlite(connection) = &mut raw else {
        panic!("not SQLite")
    };
    let mut read = 0;
    for size in SIZES {
        let some = sample.first(size);
        for (name, statements) in reading(Dialect::Sqlite, &some)
            .into_iter()
            .chain(changing(Dialect::Sqlite, &some))
        {
            for statement in statements
                .iter()
                .filter(|_| !Named::of_whole_tables().contains(&name))
            {
                let text = format!("EXPLAIN QUERY PLAN {}", statement.text);
                let mut query = sqlx::query(AssertSqlSafe(text));
                for bind in &statement.binds {
                    query = match bind {
                        Bind::Null => query.bind(None::<i64>),
                        Bind::Int(value) => query.bind(*value),
                        Bind::Text(value) => query.bind(value.as_str()),
                        Bind::Bytes(value) => query.bind(value.as_slice()),
                    };
                }
                for row in query.fetch_all(&mut *connection).await.unwrap() {
                    let plan: String = row.get("detail");
                    let scans = [
                        "orders",
                        "refund_order",
                        "notice",
                        "refund_ledger",
                        "notice_raw",
                    ]
                    .iter()
                    .any(|table| {
                        plan == format!("SCAN {table}")
                            || plan.starts_with(&format!("SCAN {table} "))
                    });
                    assert!(!scans, "{name} of {size}: {plan}");
                    read += 1;
                }
            }
        }
    }
    assert!(read > 50, "only {read} lines of plans");
}

fn bound<'q>(
    text: String,
    binds: &'q [Bind],
) -> sqlx::query::Query<'q, sqlx::MySql, MySqlArguments> {
    let mut query = sqlx::query(AssertSqlSafe(text));
    for bind in binds {
        query = match bind {
            Bind::Null => query.bind(None::<i64>),
            Bind::Int(value) => query.bind(*value),
            Bind::Text(value) => query.bind(value.as_str()),
            Bind::Bytes(value) => query.bind(value.as_slice()),
        };
    }
    query
}

/// Rows that this session has read so far: all, and by scanning. Asking reads some itself.
async fn rows_read(connection: &mut MySqlConnection) -> (i64, i64) {
    let rows = sqlx::raw_sql("SHOW SESSION STATUS LIKE 'Handler_read%'")
        .fetch_all(connection)
        .await
        .unwrap();
    let (mut all, mut scanned) = (0, 0);
    for row in rows {
        let (name, count): (String, String) = (row.get_unchecked(0), row.get_unchecked(1));
        let count: i64 = count.parse().unwrap();
        all += count;
        if name == "Handler_read_rnd_next" {
            scanned += count;
        }
    }
    (all, scanned)
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_read_what_they_are_asked_for_on_mariadb() {
    // Aim: no statement scans, whatever the size of the group: what is read grows with the group and
    // not with the table.
    // Method: 10,000 rows in each table, statistics made; each statement for groups of 1 to the
    // most, explained and run in a transaction that is rolled back; count the rows that were read.
    let db = TestDatabase::mariadb().await;
    let stored = Sample::stored(&db, 10_000).await;
    let mut raw = Raw::open(&db.url).await;
    raw.run("ANALYZE TABLE orders, refund_order, notice, notice_raw, refund_ledger")
        .await;
    let Raw::Mysql(mut connection) = raw else {
        panic!("not MariaDB")
    };
    // as the service sets its sessions up
    for text in [
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        "SET SESSION in_predicate_conversion_threshold = 0",
    ] {
        connection.execute(text).await.unwrap();
    }
    let mut faults = Vec::new();
    let spread = stored.spread();
    let samples = [
        ("two merchants", stored.of_two_merchants()),
        ("many merchants", spread),
    ];
    for (mix, sample) in samples {
        for size in SIZES {
            let some = sample.first(size);
            let all = reading(Dialect::Mysql, &some)
                .into_iter()
                .map(|s| (s, true));
            let all = all.chain(
                changing(Dialect::Mysql, &some)
                    .into_iter()
                    .map(|s| (s, false)),
            );
            for ((name, statements), reads) in all {
                if Named::of_whole_tables().contains(&name) {
                    continue;
                }
                connection.execute("START TRANSACTION").await.unwrap();
                let (first, second) = (
                    rows_read(&mut connection).await,
                    rows_read(&mut connection).await,
                );
                let asking = (second.0 - first.0, second.1 - first.1);
                let (mut all, mut scanned) = (0, 0);
                for Statement { text, binds } in &statements {
                    if !text.starts_with("INSERT") {
                        for row in bound(format!("EXPLAIN {text}"), binds)
                            .fetch_all(&mut connection)
                            .await
                            .unwrap()
                        {
                            let (table, kind): (Option<String>, Option<String>) =
                                (row.get_unchecked("table"), row.get_unchecked("type"));
                            if kind.as_deref() == Some("ALL") {
                                faults.push(format!("{name} of {size}, {mix}: scans {table:?}"));
                            }
                        }
                    }
                    let before = rows_read(&mut connection).await;
                    if reads {
                        bound(text.clone(), binds)
                            .fetch_all(&mut connection)
                            .await
                            .unwrap();
                    } else {
                        bound(text.clone(), binds)
                            .execute(&mut connection)
                            .await
                            .unwrap();
                    }
                    let after = rows_read(&mut connection).await;
                    all += after.0 - before.0 - asking.0;
                    scanned += after.1 - before.1 - asking.1;
                }
                connection.execute("ROLLBACK").await.unwrap();
                let most = ROWS_EACH * i64::try_from(size).unwrap() + ROWS_BESIDE;
                if all > most || scanned > 2 {
                    faults.push(format!("{name} of {size}, {mix}: {all} rows read, {scanned} of them scanned; at most {most}"));
                }
            }
        }
    }
    connection.close().await.unwrap();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

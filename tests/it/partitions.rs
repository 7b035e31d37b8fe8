//! `docs/dba.md` as a DBA uses it: its statements are read from the document and run, so that what it
//! says of partitions and privileges is what a database does.

use std::collections::BTreeMap;
use std::path::Path;

use refund_batcher::adapters::clock::SystemClock;
use refund_batcher::adapters::sql::Database;
use refund_batcher::adapters::sql::settings::Grade;
use refund_batcher::config::DatabaseSettings;
use refund_batcher::core::sql::{Bind, Dialect, Statement};
use refund_batcher::ports::Clock;
use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Connection, Row as _};

use crate::support::catalogue::{Sample, changing, reading};
use crate::support::mariadb::{PrivateServer, new_schema};
use crate::support::raw::Raw;
use crate::support::stage::Stage;
use crate::support::{
    MCHID, TestApp, TestClock, TestDatabase, books, configuration, delivery, refund_notice, send,
    shop_writes, until,
};

/// The tables that the document partitions.
const TABLES: [&str; 5] = [
    "notice",
    "notice_raw",
    "refund_order",
    "orders",
    "refund_ledger",
];
/// Rows in each of them; the ledger has half of them, because half of the notices are booked.
const ROWS: usize = 10_000;
/// Statements that name no merchant, and so look into every partition.
const READ_ALL: [&str; 2] = ["due pending", "due parked"];
/// Statements of a demo, a test or an audit, of gauges, and of tables that are not partitioned.
const APART: [&str; 10] = [
    "backlog",
    "books",
    "clear",
    "count_others",
    "count_states",
    "epoch",
    "insert_orders",
    "insert_refunds",
    "read_meta",
    "write_meta",
];

/// The SQL of the document's block that begins with this comment.
fn block(name: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/dba.md");
    let text = std::fs::read_to_string(file).unwrap();
    let head = format!("-- {name}\n");
    let blocks: Vec<&str> = text
        .split("```sql\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next()?.strip_prefix(head.as_str()))
        .collect();
    assert_eq!(blocks.len(), 1, "docs/dba.md has one block `-- {name}`");
    blocks[0].to_owned()
}

/// Looks into the plan of this statement: the partitions of each table that it may touch.
async fn touched(connection: &mut MySqlConnection, statement: &Statement) -> Vec<(String, String)> {
    let text = format!("EXPLAIN PARTITIONS {}", statement.text);
    let mut query = sqlx::query(AssertSqlSafe(text));
    for bind in &statement.binds {
        query = match bind {
            Bind::Null => query.bind(None::<i64>),
            Bind::Int(value) => query.bind(*value),
            Bind::Text(value) => query.bind(value.as_str()),
            Bind::Bytes(value) => query.bind(value.as_slice()),
        };
    }
    let rows = query.fetch_all(connection).await.unwrap();
    let read = |row: &sqlx::mysql::MySqlRow| {
        let table: Option<String> = row.get_unchecked("table");
        let partitions: Option<String> = row.get_unchecked("partitions");
        table.zip(partitions)
    };
    rows.iter().filter_map(read).collect()
}

/// The partitions of a table, joined as a plan joins them.
async fn all_partitions(raw: &mut Raw, table: &str) -> String {
    let text = format!(
        "SELECT partition_name FROM information_schema.partitions WHERE table_schema = DATABASE() \
         AND table_name = '{table}' ORDER BY partition_ordinal_position"
    );
    raw.lines(&text).await.join(",")
}

/// Fills the tables, partitions them as the block says, and checks every plan and a whole round.
async fn check_partitioned(name: &str) -> Stage {
    let db = TestDatabase::mariadb().await;
    let sample = Sample::stored(&db, ROWS).await.of_one_merchant();
    let mut raw = Raw::open(&db.url).await;
    raw.run(&block(name)).await;
    raw.run("ANALYZE TABLE orders, refund_order, notice, notice_raw, refund_ledger")
        .await;
    let mut partitions = BTreeMap::new();
    for table in TABLES {
        let all = all_partitions(&mut raw, table).await;
        assert!(all.contains(','), "{table} has partitions: {all}");
        assert_eq!(
            raw.int(&format!("SELECT COUNT(*) FROM {table}")).await,
            i64::try_from(if table == "refund_ledger" {
                ROWS / 2
            } else {
                ROWS
            })
            .unwrap()
        );
        partitions.insert(table, all);
    }
    check_plans(&db, &sample, &partitions).await;
    check_round(db).await
}

async fn check_plans(db: &TestDatabase, sample: &Sample, all: &BTreeMap<&str, String>) {
    let mut connection = MySqlConnection::connect(&db.url).await.unwrap();
    let mut faults = Vec::new();
    let mut looked = 0;
    for size in [1, 8, 64, 512] {
        let some = sample.first(size);
        let statements = reading(Dialect::Mysql, &some)
            .into_iter()
            .chain(changing(Dialect::Mysql, &some));
        for (name, statements) in statements {
            let name = name.to_string();
            if APART.contains(&name.as_str()) {
                continue;
            }
            for statement in statements.iter().filter(|s| !s.text.starts_with("INSERT")) {
                for (table, touched) in touched(&mut connection, statement).await {
                    let all = &all[table.as_str()];
                    let is_right = if READ_ALL.contains(&name.as_str()) {
                        touched == *all
                    } else {
                        !touched.contains(',') && all.split(',').any(|one| one == touched)
                    };
                    if !is_right {
                        faults.push(format!("{name} of {size}: {table}: {touched}"));
                    }
                    looked += 1;
                }
            }
        }
    }
    connection.close().await.unwrap();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(looked > 50, "only {looked} plans");
}

/// New notices are committed and flushed, a parked one and all left-over ones come by the relay.
async fn check_round(db: TestDatabase) -> Stage {
    let stage = Stage::over(db).await;
    let mut notices = Vec::new();
    for number in 0..20 {
        let out_refund_no = format!("P{number}");
        shop_writes(&stage.db.database, &out_refund_no, 100, 300).await;
        notices.push(refund_notice(&out_refund_no, "SUCCESS", 100, 300));
    }
    stage.deliver_together(&notices).await;
    for number in 0..20 {
        let out_refund_no = format!("P{number}");
        stage
            .until_notice(&out_refund_no, "SUCCESS", "done -")
            .await;
        stage.assert_booked_once(&out_refund_no, 100).await;
    }
    let late = refund_notice("L1", "SUCCESS", 100, 300);
    assert_eq!(stage.deliver(&late).await, 204);
    shop_writes(&stage.db.database, "L1", 100, 300).await;
    stage.until_notice_in_time("L1", "SUCCESS", "done -").await;
    let all = i64::try_from(ROWS).unwrap() + 21;
    until("what was left over is booked", || async {
        stage.clock.advance(1_000);
        stage.int("SELECT COUNT(*) FROM refund_ledger").await == all
    })
    .await;
    let books = books(&stage.db.database).await;
    assert_eq!(
        (
            books.ledger_rows,
            books.ledger_total_fen,
            books.refunds_without_ledger,
            books.refunds_in_success
        ),
        (all, all * 100, 0, all)
    );
    assert_eq!(
        stage
            .lines("SELECT state, COUNT(*) FROM notice GROUP BY state")
            .await,
        [format!("done {all}")]
    );
    stage
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_partitioned_by_a_list_of_merchants_serve_as_before() {
    // Aim: the document's LIST COLUMNS partitions take the rows that are there, one merchant's
    // statements touch one partition, only the look for what is due touches all, and the service works
    // on them.
    // Method: 10,000 rows of 50 merchants; the document's statements; the plan of every statement of
    // the service for one merchant; then notices to a running service, one of them parked at first, and
    // time until the relay has booked what was left over; count everything. A merchant of the rest gets
    // a partition of its own, and no row is misplaced.
    let stage = check_partitioned("partition by list").await;
    let mut before = Vec::new();
    for table in TABLES {
        let there =
            format!("SELECT COUNT(*) FROM {table} PARTITION (rest) WHERE mchid = '1900000002'");
        before.push(stage.int(&there).await);
    }
    assert!(before.iter().all(|rows| *rows > 0), "{before:?}");
    stage
        .run(&block("give a merchant of the rest its own partition"))
        .await;
    for (table, rows) in TABLES.into_iter().zip(before) {
        for from in ["PARTITION (m1900000002)", "WHERE mchid = '1900000002'"] {
            let text = format!("SELECT COUNT(*) FROM {table} {from}");
            assert_eq!(stage.int(&text).await, rows, "{text}");
        }
        let checked = stage.lines(&format!("CHECK TABLE {table}")).await;
        assert!(
            checked.iter().all(|line| line.ends_with(" status OK")),
            "{checked:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_partitioned_by_key_serve_as_before() {
    // Aim and method: the same for the document's KEY partitions.
    check_partitioned("partition by key").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merchant_in_no_partition_is_refused_until_it_has_one() {
    // Aim: where the list has no default, a notice of a merchant outside it is not acknowledged and
    // nothing of it is kept; the document's ADD PARTITION lets it in while the service runs.
    // Method: partition empty tables with the document's closed list; send a notice of a merchant that
    // is not in it; add the partition; send again.
    let db = TestDatabase::at(new_schema().await).await;
    let stage = Stage::over(db).await;
    stage.run(&block("partition by closed list")).await;
    let notice = refund_notice("R1", "SUCCESS", 100, 300);
    assert_eq!(stage.deliver(&notice).await, 503);
    assert_eq!(stage.int("SELECT COUNT(*) FROM notice").await, 0);
    stage.run(&block("add a merchant to a closed list")).await;
    shop_writes(&stage.db.database, "R1", 100, 300).await;
    assert_eq!(stage.deliver(&notice).await, 204);
    stage.until_notice("R1", "SUCCESS", "done -").await;
    stage.assert_booked_once("R1", 100).await;
    for table in TABLES {
        let rows = format!("SELECT COUNT(*) FROM {table} PARTITION (m{MCHID})");
        assert_eq!(stage.int(&rows).await, 1, "{table}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documents_users_may_what_they_need_and_no_more() {
    // Aim: the document's GRANTs are enough for `migrate` and for the service, and the service's user
    // can neither delete, nor change what is booked, nor make tables.
    // Method: a server of the test's own; make the users; migrate as one; run the service as the other;
    // a notice that is applied, one that repeats, one that is parked until the relay takes it, and one
    // whose order is missing; then try what must be refused.
    let server = PrivateServer::start_new().await;
    let mut root = Raw::open(&server.url()).await;
    root.run("CREATE DATABASE shop CHARACTER SET utf8mb4").await;
    root.run(&block("users")).await;
    root.run(&block("grants of migrate")).await;
    let url = |user: &str| server.url().replace("root@", &format!("{user}:secret@")) + "shop";
    let open = |url: &str| Database::new(&DatabaseSettings::for_url(url)).unwrap();
    let made = open(&url("refunds_migrate"))
        .migrate("epoch")
        .await
        .unwrap();
    assert_eq!(made.len(), 6, "{made:?}");
    root.run(&block("grants of serve")).await;

    let serve_url = url("refunds");
    let findings = open(&serve_url).findings(false, SystemClock.now()).await;
    let faulty = |grade| findings.iter().any(|finding| finding.grade == grade);
    assert!(!faulty(Grade::Fault), "{findings:?}");

    let shop = open(&(server.url() + "shop"));
    let mut look = Raw::open(&(server.url() + "shop")).await;
    let folder = tempfile::tempdir().unwrap();
    let text = configuration(
        folder.path(),
        &serve_url,
        "[relay]\npoll_ms = 20\n[flush]\nattempts_max = 1\n",
    );
    let clock = TestClock::at(SystemClock.now().0);
    let app = TestApp::from_text(&text, folder, clock.clone()).await;
    shop_writes(&shop, "R1", 100, 300).await;
    shop_writes(&shop, "R3", 100, 300).await;
    look.run("DELETE FROM orders WHERE out_trade_no = 'T-R3'")
        .await;
    for out_refund_no in ["R1", "R1", "R2", "R3"] {
        let notice = refund_notice(out_refund_no, "SUCCESS", 100, 300);
        let reply = send(&app.notify_url(), &delivery(&notice)).await;
        assert_eq!(reply.status, Ok(204), "{out_refund_no}");
    }
    shop_writes(&shop, "R2", 100, 300).await;
    let look = tokio::sync::Mutex::new(look);
    let is_dealt_with = "SELECT state, deliveries, attempts > 0 FROM notice ORDER BY out_refund_no";
    let expected = ["done 2 0", "done 1 0", "dead 1 1"];
    until("all notices are dealt with", || async {
        clock.advance(200);
        look.lock().await.lines(is_dealt_with).await == expected
    })
    .await;
    assert_eq!(books(&shop).await.ledger_rows, 2);

    let mut serve = Raw::open(&serve_url).await;
    for text in [
        "DELETE FROM refund_ledger",
        "UPDATE refund_ledger SET refund_fen = 1",
        "UPDATE refund_order SET refund_fen = 1",
        "UPDATE orders SET total_fen = 1",
        "INSERT INTO refund_order (mchid) VALUES ('1')",
        "SELECT COUNT(*) FROM notice_raw",
        "CREATE TABLE more (id INT)",
        "DROP TABLE notice",
    ] {
        assert!(serve.try_run(text).await.is_err(), "{text}");
    }
}

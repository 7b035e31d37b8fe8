//! The program as a user runs it: its commands, their output and exit codes.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::support::mariadb::new_schema;
use crate::support::raw::Raw;
use crate::support::{configuration, delivery, refund_notice, send, until};

/// Every field that the contract promises of `demo --json`.
const DEMO_FIELDS: [&str; 19] = [
    "refunds",
    "deliveries",
    "acknowledged",
    "rejected",
    "applied",
    "duplicates",
    "ledger_rows",
    "ledger_total_fen",
    "orders_refunded_total_fen",
    "expected_total_fen",
    "lost",
    "doubled",
    "flushes",
    "rows_per_flush",
    "reply_p50_ms",
    "reply_p99_ms",
    "reply_max_ms",
    "deliveries_per_s",
    "database",
];

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refund-batcher"));
    command.stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    program().args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Plays a small concert and checks what it says of itself.
fn play(more: &[&str]) -> Value {
    let mut arguments = vec!["demo", "--refunds", "150", "--duplicates", "3", "--json"];
    arguments.extend(more);
    let output = run(&arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    for field in DEMO_FIELDS {
        assert!(said.get(field).is_some(), "{field} is missing: {said}");
    }
    let number = |field: &str| said[field].as_i64().unwrap();
    assert_eq!(
        (number("refunds"), number("lost"), number("doubled")),
        (150, 0, 0)
    );
    assert_eq!(
        number("deliveries"),
        number("acknowledged") + number("rejected")
    );
    assert_eq!((number("applied"), number("ledger_rows")), (150, 150));
    assert_eq!(number("ledger_total_fen"), number("expected_total_fen"));
    assert_eq!(
        number("orders_refunded_total_fen"),
        number("expected_total_fen")
    );
    assert!(said["reply_max_ms"].as_f64().unwrap() < 5000.0);
    said
}

#[test]
fn a_demo_needs_nothing_and_ends_with_exact_books() {
    // Aim: a newcomer sees the whole job in one command; the same seed plays the same concert.
    // Method: play twice, and once for a person.
    let (first, second) = (play(&[]), play(&[]));
    assert_eq!(first["expected_total_fen"], second["expected_total_fen"]);
    let output = run(&["demo", "--refunds", "20", "--duplicates", "2"]);
    assert!(output.status.success());
    let said = text(&output.stdout);
    assert!(said.contains("the books are exact"), "{said}");
    assert_eq!(text(&output.stderr), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_demo_plays_on_its_own_tables_only() {
    // Aim: `--database` plays on MariaDB, again and again, and never touches somebody else's rows.
    // Method: play twice on one schema; put one row of another merchant in; try once more.
    let url = new_schema().await;
    for _ in 0..2 {
        play(&["--database", &url]);
    }
    let mut raw = Raw::open(&url).await;
    raw.run(
        "INSERT INTO orders (mchid, out_trade_no, total_fen, created_at_ms, updated_at_ms) \
         VALUES ('1900000001', 'T1', 300, 1, 1)",
    )
    .await;
    let before = raw.int("SELECT COUNT(*) FROM refund_ledger").await;
    let output = run(&["demo", "--refunds", "5", "--database", &url]);
    assert!(!output.status.success());
    let said = text(&output.stderr);
    assert!(
        said.contains("--database") && said.contains("table orders"),
        "{said}"
    );
    assert_eq!(raw.int("SELECT COUNT(*) FROM refund_ledger").await, before);
}

/// Writes a configuration; gives its path as text.
fn written(folder: &Path, database_url: &str, more: &str) -> String {
    let file = folder.join("refund-batcher.toml");
    std::fs::write(&file, configuration(folder, database_url, more)).unwrap();
    file.display().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn check_says_what_it_found_and_whether_the_service_could_start() {
    // Aim: one line for each finding, each fault with its key and remedy; exit 0 only when the service
    // could start.
    // Method: a healthy configuration on SQLite; on MariaDB before and after `migrate`; a faulty one.
    let folder = tempfile::tempdir().unwrap();
    let sqlite = format!("sqlite://{}", folder.path().join("c.db").display());
    let file = written(folder.path(), &sqlite, "");
    let output = run(&["check", "--config", &file]);
    assert!(output.status.success(), "{}", text(&output.stdout));

    let file = written(folder.path(), &new_schema().await, "");
    let output = run(&["check", "--config", &file]);
    assert!(!output.status.success());
    assert!(
        text(&output.stdout).contains("run `refund-batcher migrate`"),
        "{}",
        text(&output.stdout)
    );
    for made in ["made orders", "all tables are up to date"] {
        let output = run(&["migrate", "--config", &file]);
        assert!(output.status.success());
        assert!(
            text(&output.stderr).contains(made),
            "{}",
            text(&output.stderr)
        );
    }
    let output = run(&["check", "--config", &file]);
    assert!(output.status.success(), "{}", text(&output.stdout));

    let file = written(folder.path(), &sqlite, "[flush]\nrows_max = 0\nrows = 1\n");
    let output = run(&["check", "--config", &file]);
    assert!(!output.status.success());
    let said = text(&output.stdout);
    assert!(
        said.contains("fault flush.rows_max: 0 is out of range; write 1 to"),
        "{said}"
    );
    assert!(said.contains("fault flush.rows: is no key"), "{said}");
}

/// What the admin listener gives.
async fn scrape(admin: &str) -> String {
    let mut peer = TcpStream::connect(admin).await.unwrap();
    peer.write_all(b"GET /metrics HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut metrics = String::new();
    peer.read_to_string(&mut metrics).await.unwrap();
    metrics.split_once("\r\n\r\n").unwrap().1.to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn serve_wants_its_tables_tells_its_figures_and_ends_in_good_order() {
    // Aim: `serve` refuses a schema that is behind; after `migrate` it serves, counts what it does, and
    // ends with SIGTERM.
    // Method: run it on an empty MariaDB schema; migrate; run it, wait for its line, send notices of
    // refunds that are not there, repeats and forgeries; read the metrics; end it.
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path(), &new_schema().await, "");
    let output = run(&["serve", "--config", &file]);
    assert!(!output.status.success());
    assert!(
        text(&output.stderr).contains("run `refund-batcher migrate`"),
        "{}",
        text(&output.stderr)
    );
    assert!(run(&["migrate", "--config", &file]).status.success());

    let mut serving = tokio::process::Command::from(program())
        .args(["serve", "--config", &file])
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(serving.stderr.take().unwrap()).lines();
    let wait = Duration::from_secs(20);
    let line = tokio::time::timeout(wait, lines.next_line())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["fields"]["message"], "taking notices");
    let admin = line["fields"]["admin"].as_str().unwrap().to_owned();
    let address = line["fields"]["http"].as_str().unwrap();
    let url = format!("http://{address}/notify/wechat/v3");
    for number in 0..20 {
        let notice = refund_notice(&format!("U{number}"), "SUCCESS", 100, 300);
        for _ in 0..2 {
            assert_eq!(send(&url, &delivery(&notice)).await.status, Ok(204));
        }
        assert_eq!(
            send(&url, &delivery(&notice).tampered()).await.status,
            Ok(401)
        );
    }
    // gauges are set once a second
    until("the backlog is told", || async {
        scrape(&admin)
            .await
            .contains("refund_batcher_backlog_notices{state=\"parked\"} 20")
    })
    .await;
    let metrics = scrape(&admin).await;
    std::fs::write(
        Path::new(env!("CARGO_TARGET_TMPDIR")).join("metrics.txt"),
        &metrics,
    )
    .unwrap();
    for line in [
        "refund_batcher_notices_total{outcome=\"parked\"} 20",
        "refund_batcher_unfinished_total{state=\"parked\"} 20",
        "refund_batcher_repeats_total{by=\"database\"} 20",
        "refund_batcher_refusals_total{reason=\"signature\"} 20",
        "refund_batcher_queue_limit{queue=\"flush\"} 10000",
        "refund_batcher_connections_limit 16",
        "refund_batcher_timestamp_skew_seconds_count 40",
        "refund_batcher_stage_seconds_count{stage=\"verify\"} 40",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    let id = serving.id().unwrap().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &id])
            .status()
            .unwrap()
            .success()
    );
    let ended = tokio::time::timeout(wait, serving.wait())
        .await
        .unwrap()
        .unwrap();
    assert!(ended.success());
}

#[test]
fn the_documents_list_every_metric() {
    // Aim: the list in the documents is the program's own. Method: compare; the message shows what to
    // put there.
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
    let documented = std::fs::read_to_string(file).unwrap();
    let table = refund_batcher::telemetry::metrics_table();
    assert!(
        documented.ends_with(&table),
        "docs/metrics.md ends with this table:\n{table}"
    );
}

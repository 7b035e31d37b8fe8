//! `refund-batcher check` as a user runs it before the service goes live.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::configuration;
use crate::support::mariadb::new_schema;
use crate::support::raw::Raw;

/// Runs `check`; gives whether the service could start, and the findings.
fn check(file: &Path) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_refund-batcher"))
        .args(["check", "--config"])
        .arg(file)
        .output()
        .unwrap();
    (
        output.status.success(),
        String::from_utf8(output.stdout).unwrap(),
    )
}

#[test]
fn each_fault_is_named_with_its_remedy() {
    // Aim: whoever reads a finding knows which setting is wrong, how, and what to do.
    // Method: one healthy configuration, broken in one place at a time.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("refund-batcher.toml");
    let url = format!("sqlite://{}", folder.path().join("c.db").display());
    let healthy = configuration(folder.path(), &url, "");
    std::fs::write(
        folder.path().join("short.apiv3"),
        "31 bytes are too few for a key!",
    )
    .unwrap();
    std::fs::write(folder.path().join("empty.pem"), "").unwrap();
    let own_key = "merchant_serial = 'PUB_KEY_ID_0119000000012026000000000001'\n[[merchants.verify_keys]]\nserial = 'PUB";
    let broken = [
        (
            "[admin]",
            "[admin]\nport = 1",
            "admin.port: is no key; remove it",
        ),
        (
            "[admin]\nlisten = '127.0.0.1:0'",
            "[admin]\nlisten = 'here'",
            "admin.listen: `here` is no address and port; write one",
        ),
        (
            "[admin]",
            "[relay]\nlease_ms = 1\n[admin]",
            "relay.lease_ms: 1 is out of range; write 10000 to",
        ),
        (
            "[admin]",
            "[commit]\nqueue_max = 8\n[admin]",
            "commit.queue_max: is smaller than commit.group_max; raise it",
        ),
        (
            "sqlite://",
            "postgres://",
            "database.url: is neither sqlite:// nor mysql://; write",
        ),
        (
            "url = 'sqlite://",
            "url = sqlite://",
            "file: TOML parse error at line",
        ),
        (
            "mchid = '1900000001'",
            "",
            "merchants[0].mchid: is missing; write the merchant number",
        ),
        (
            "'merchant.apiv3'",
            "'short.apiv3'",
            "merchants[0].api_v3_key_files: short.apiv3 holds 31 bytes; an APIv3 key has exactly 32",
        ),
        (
            "'merchant.apiv3'",
            "'none.apiv3'",
            "none.apiv3: No such file or directory (os error 2); name a readable file",
        ),
        (
            "'wechat.pem'",
            "'empty.pem'",
            "merchants[0].verify_keys[0]: empty.pem: no PEM block",
        ),
        (
            "serial = 'PUB_KEY_ID_0119000000012026000000000001'\n",
            "",
            "a public key needs `serial`",
        ),
        (
            "[[merchants.verify_keys]]\nserial = 'PUB",
            own_key,
            "merchants[0].verify_keys[0].file: is the merchant's own certificate or key; use WeChat Pay's",
        ),
    ];
    for (from, to, expected) in broken {
        assert!(healthy.contains(from), "{from}");
        std::fs::write(&file, healthy.replacen(from, to, 1)).unwrap();
        let (could_start, said) = check(&file);
        assert!(!could_start && said.contains(expected), "{to}:\n{said}");
        assert!(
            said.lines()
                .any(|line| line.starts_with("fault ") && line.contains(expected)),
            "{said}"
        );
    }
    std::fs::write(&file, healthy).unwrap();
    let started = Instant::now();
    let (could_start, said) = check(&file);
    assert!(could_start && !said.contains("fault "), "{said}");
    assert!(
        started.elapsed() < Duration::from_secs(2),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_that_were_changed_are_named_with_statements_that_put_them_right() {
    // Aim: a column that compares loosely and a key that is gone are found, and the remedy is ready
    // to run.
    // Method: change both on MariaDB; check; run the statements that the findings end with; check.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("refund-batcher.toml");
    let url = new_schema().await;
    std::fs::write(&file, configuration(folder.path(), &url, "")).unwrap();
    let migrated = Command::new(env!("CARGO_BIN_EXE_refund-batcher"))
        .args(["migrate", "--config"])
        .arg(&file)
        .status()
        .unwrap();
    assert!(migrated.success());
    let (could_start, said) = check(&file);
    assert!(could_start, "{said}");
    for what in [
        "innodb_flush_log_at_trx_commit",
        "sync_binlog",
        "isolation of our sessions: READ-COMMITTED",
        "clock",
    ] {
        assert!(
            said.lines()
                .any(|line| line.starts_with(&format!("ok    {what}"))),
            "{what}:\n{said}"
        );
    }

    let mut raw = Raw::open(&url).await;
    raw.run("ALTER TABLE refund_order MODIFY out_refund_no VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL").await;
    raw.run("ALTER TABLE orders DROP KEY orders_no").await;
    raw.run("ALTER TABLE notice DROP KEY notice_due, ADD KEY notice_due (state)")
        .await;
    let (could_start, said) = check(&file);
    assert!(!could_start, "{said}");
    let remedies: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with("fault "))
        .map(|line| line.rsplit("; ").next().unwrap())
        .collect();
    assert_eq!(remedies.len(), 3, "{said}");
    for remedy in remedies {
        assert!(remedy.starts_with("ALTER TABLE"), "{remedy}");
        raw.run(remedy).await;
    }
    let (could_start, said) = check(&file);
    assert!(could_start && !said.contains("fault "), "{said}");
}

//! Logs and metrics: every metric's name in one list, and the one way to raise an alert.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;

use crate::core::notice::NoticeKey;

/// Names of the metrics.
pub mod names {
    /// Notices by `outcome`, as decided and committed.
    pub const NOTICES: &str = "refund_batcher_notices_total";
    /// Deliveries that were not stored, by `reason`.
    pub const REFUSALS: &str = "refund_batcher_refusals_total";
    /// Signature probes of WeChat Pay, refused as they want to be.
    pub const PROBES: &str = "refund_batcher_probes_total";
    /// Repeats answered, by `by`: `cache` or `database`.
    pub const REPEATS: &str = "refund_batcher_repeats_total";
    /// Events whose type says other than the status.
    pub const EVENT_DIFFERS: &str = "refund_batcher_event_differs_total";
    /// Alerts, by `reason`.
    pub const ALERTS: &str = "refund_batcher_alerts_total";
    /// From the request head to the answer.
    pub const REPLY_SECONDS: &str = "refund_batcher_reply_seconds";
    /// Notices in one commit group.
    pub const GROUP_NOTICES: &str = "refund_batcher_commit_group_notices";
    /// One commit group's transaction.
    pub const COMMIT_SECONDS: &str = "refund_batcher_commit_seconds";
    /// Rows in one flush.
    pub const FLUSH_ROWS: &str = "refund_batcher_flush_rows";
    /// One flush's transaction.
    pub const FLUSH_SECONDS: &str = "refund_batcher_flush_seconds";
    /// Notices whose money is booked.
    pub const BOOKED: &str = "refund_batcher_booked_total";
    /// Pending notices that found the flush queue full; the relay takes them.
    pub const FLUSH_QUEUE_FULL: &str = "refund_batcher_flush_queue_full_total";
    /// Failed verbs of the store, by `verb` and `kind`.
    pub const STORE_ERRORS: &str = "refund_batcher_store_errors_total";
    /// Notices that the relay took, by `state`.
    pub const RELAYED: &str = "refund_batcher_relayed_total";
}

const SECONDS: [f64; 14] = [
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0,
];
const ROWS: [f64; 11] = [
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0,
];

/// Installs the recorder of metrics; gives what renders them.
///
/// Errors: a recorder is installed already.
pub fn install_metrics() -> anyhow::Result<PrometheusHandle> {
    let mut builder = PrometheusBuilder::new();
    for name in [
        names::REPLY_SECONDS,
        names::COMMIT_SECONDS,
        names::FLUSH_SECONDS,
    ] {
        builder = builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), &SECONDS)?;
    }
    for name in [names::GROUP_NOTICES, names::FLUSH_ROWS] {
        builder = builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), &ROWS)?;
    }
    let handle = builder.install_recorder()?;
    describe_counter!(names::NOTICES, "Notices by outcome");
    describe_counter!(
        names::REFUSALS,
        "Deliveries that were not stored, by reason"
    );
    describe_counter!(names::PROBES, "Signature probes, refused");
    describe_counter!(names::REPEATS, "Repeats answered, by cache or database");
    describe_counter!(
        names::EVENT_DIFFERS,
        "Events whose type differs from the status"
    );
    describe_counter!(names::ALERTS, "Alerts by reason");
    describe_histogram!(
        names::REPLY_SECONDS,
        Unit::Seconds,
        "From request head to answer"
    );
    describe_histogram!(names::GROUP_NOTICES, "Notices in one commit group");
    describe_histogram!(
        names::COMMIT_SECONDS,
        Unit::Seconds,
        "One commit group's transaction"
    );
    describe_histogram!(names::FLUSH_ROWS, "Rows in one flush");
    describe_histogram!(
        names::FLUSH_SECONDS,
        Unit::Seconds,
        "One flush's transaction"
    );
    describe_counter!(names::BOOKED, "Notices whose money is booked");
    describe_counter!(
        names::FLUSH_QUEUE_FULL,
        "Pending notices left to the relay by a full queue"
    );
    describe_counter!(
        names::STORE_ERRORS,
        "Failed verbs of the store, by verb and kind"
    );
    describe_counter!(names::RELAYED, "Notices that the relay took, by state");
    describe_gauge!("refund_batcher_info", "1, with the version");
    metrics::gauge!("refund_batcher_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    Ok(handle)
}

/// Sends logs to standard error: JSON lines for machines, short lines for a terminal.
/// `REFUND_BATCHER_LOG` chooses the level, `default` where it is not set.
pub fn install_logs(default: &str) {
    use std::io::IsTerminal;
    let filter =
        EnvFilter::try_from_env("REFUND_BATCHER_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    // a second installation, as in tests, changes nothing
    let installed = if std::io::stderr().is_terminal() {
        logs.compact().try_init()
    } else {
        logs.json().try_init()
    };
    drop(installed);
}

/// A person must look: one error line and a counter. Names ids, never money or plaintext.
pub fn alert(reason: &str, key: Option<&NoticeKey>) {
    // what the database said has no end of forms; the label has few
    let label = if reason.starts_with(crate::core::notice::reason::DATABASE) {
        "database".to_owned()
    } else {
        reason.to_owned()
    };
    metrics::counter!(names::ALERTS, "reason" => label).increment(1);
    tracing::error!(
        notice_id = key.map(|key| key.id),
        mchid = key.map(|key| key.mchid.as_str()),
        reason,
        "notice needs a person"
    );
}

/// Counts a failed verb of the store.
pub fn store_error(verb: &'static str, error: &crate::ports::StoreError) {
    metrics::counter!(names::STORE_ERRORS, "verb" => verb, "kind" => error.kind()).increment(1);
    tracing::warn!(verb, kind = error.kind(), %error, "store verb failed");
}

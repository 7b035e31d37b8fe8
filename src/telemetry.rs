//! Logs and metrics: every metric in one list, and the one way to raise an alert.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;

use crate::core::notice::NoticeKey;

/// Names of the metrics; [`METRICS`] says what each means.
pub mod names {
    macro_rules! names {
        ($($constant:ident = $name:literal;)+) => {
            $(#[doc = concat!("`refund_batcher_", $name, "`")]
            pub const $constant: &str = concat!("refund_batcher_", $name);)+
        };
    }
    names! {
        NOTICES = "notices_total";
        UNFINISHED = "unfinished_total";
        REFUSALS = "refusals_total";
        PROBES = "probes_total";
        REPEATS = "repeats_total";
        EVENT_DIFFERS = "event_differs_total";
        ALERTS = "alerts_total";
        REPLY_SECONDS = "reply_seconds";
        STAGE_SECONDS = "stage_seconds";
        SKEW_SECONDS = "timestamp_skew_seconds";
        GROUP_NOTICES = "commit_group_notices";
        FLUSH_ROWS = "flush_rows";
        BOOKED = "booked_total";
        FLUSH_QUEUE_FULL = "flush_queue_full_total";
        QUEUE_WAITING = "queue_waiting";
        QUEUE_LIMIT = "queue_limit";
        CONNECTIONS = "connections";
        CONNECTIONS_LIMIT = "connections_limit";
        CONNECTION_WAIT_SECONDS = "connection_wait_seconds";
        STORE_ERRORS = "store_errors_total";
        RELAYED = "relayed_total";
        BACKLOG = "backlog_notices";
        OLDEST_DUE_SECONDS = "oldest_due_seconds";
        CERTIFICATE_DAYS = "certificate_days_left";
        INFO = "info";
    }
}

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Values in buckets with these upper bounds.
    Histogram(&'static [f64]),
}

/// A metric that there is.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Its labels and their values.
    pub labels: &'static str,
    /// What it means, in one sentence.
    pub help: &'static str,
}

const SECONDS: &[f64] = &[
    0.00005, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0,
    5.0,
];
const ROWS: &[f64] = &[
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0,
];
const SKEW: &[f64] = &[
    -60.0, -10.0, -5.0, -2.0, -1.0, 0.0, 1.0, 2.0, 5.0, 10.0, 60.0,
];

macro_rules! metrics_list {
    ($($name:ident, $kind:expr, $labels:literal, $help:literal;)+) => {
        &[$(Metric { name: names::$name, kind: $kind, labels: $labels, help: $help }),+]
    };
}

/// Every metric that there is.
pub const METRICS: &[Metric] = metrics_list! {
    NOTICES, Kind::Counter, "`outcome`: applied, already_applied, parked, superseded, quarantined, ignored, repeat, repeat_differs", "Notices that a commit group decided, by what became of them";
    UNFINISHED, Kind::Counter, "`state`: parked, quarantined, dead", "Notices that came into a state from which only a look back, a resend or a person takes them";
    REFUSALS, Kind::Counter, "`reason`", "Deliveries that were not stored, by reason; probes apart";
    PROBES, Kind::Counter, "", "Deliberately wrong signatures by which WeChat Pay tests us, refused as they should be";
    REPEATS, Kind::Counter, "`by`: cache, database", "Deliveries of stored notices, by what recognised them";
    EVENT_DIFFERS, Kind::Counter, "", "Notices whose event type says other than their status, which alone decides";
    ALERTS, Kind::Counter, "`reason`", "Notices that need a person, by reason; each is one error line in the log too";
    REPLY_SECONDS, Kind::Histogram(SECONDS), "", "From the request head to the answer";
    STAGE_SECONDS, Kind::Histogram(SECONDS), "`stage`: read, verify, decrypt, commit_wait, commit, flush_wait, claim, plan, write", "Time in one stage of a notice's life: of one delivery, one group or one batch";
    SKEW_SECONDS, Kind::Histogram(SKEW), "", "Our clock minus the timestamp of accepted deliveries; drifts before it refuses everything";
    GROUP_NOTICES, Kind::Histogram(ROWS), "", "Notices in one commit group";
    FLUSH_ROWS, Kind::Histogram(ROWS), "", "Notices in one flush";
    BOOKED, Kind::Counter, "", "Notices whose money is booked";
    FLUSH_QUEUE_FULL, Kind::Counter, "", "Pending notices that found the flush queue full and were left to the relay";
    QUEUE_WAITING, Kind::Gauge, "`queue`: commit, flush", "Notices that wait in memory";
    QUEUE_LIMIT, Kind::Gauge, "`queue`: commit, flush", "Notices that may wait in memory";
    CONNECTIONS, Kind::Gauge, "`state`: used, idle", "Connections to the database";
    CONNECTIONS_LIMIT, Kind::Gauge, "", "Connections to the database at most";
    CONNECTION_WAIT_SECONDS, Kind::Histogram(SECONDS), "", "How long a verb of the store waited for a connection";
    STORE_ERRORS, Kind::Counter, "`verb`, `kind`: conflict, raced, lock_timeout, refused, lost, unavailable, `error`: the database's number", "Failed tries of the store's verbs";
    RELAYED, Kind::Counter, "`state`: pending, parked", "Left-over notices that the relay took";
    BACKLOG, Kind::Gauge, "`state`: pending, parked, quarantined, dead", "Notices in this state, counted up to 10,000";
    OLDEST_DUE_SECONDS, Kind::Gauge, "`state`: pending, parked", "How long the oldest due notice has been due; 0 when none is";
    CERTIFICATE_DAYS, Kind::Gauge, "`serial`", "Days until a platform certificate ends";
    INFO, Kind::Gauge, "`version`", "1";
};

/// Installs the recorder of metrics; gives what renders them.
///
/// Errors: a recorder is installed already.
pub fn install_metrics() -> anyhow::Result<PrometheusHandle> {
    let mut builder = PrometheusBuilder::new();
    for metric in METRICS {
        if let Kind::Histogram(buckets) = metric.kind {
            let name = Matcher::Full(metric.name.to_owned());
            builder = builder.set_buckets_for_metric(name, buckets)?;
        }
    }
    let handle = builder.install_recorder()?;
    for metric in METRICS {
        match metric.kind {
            Kind::Counter => describe_counter!(metric.name, metric.help),
            Kind::Gauge => describe_gauge!(metric.name, metric.help),
            Kind::Histogram(_) => describe_histogram!(metric.name, Unit::Count, metric.help),
        }
    }
    metrics::gauge!(names::INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    Ok(handle)
}

/// The list of metrics as the documentation has it.
pub fn metrics_table() -> String {
    let mut table = String::from("| metric | kind | labels | means |\n|---|---|---|---|\n");
    for metric in METRICS {
        let kind = match metric.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
        };
        table.push_str(&format!(
            "| `{}` | {kind} | {} | {} |\n",
            metric.name, metric.labels, metric.help
        ));
    }
    table
}

/// Records how long a stage took that ends now.
pub fn stage(name: &'static str, took: std::time::Duration) {
    metrics::histogram!(names::STAGE_SECONDS, "stage" => name).record(took);
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

/// Sets a gauge to a count.
pub fn gauge(gauge: metrics::Gauge, count: usize) {
    gauge.set(f64::from(u32::try_from(count).unwrap_or(u32::MAX)));
}

/// Counts a failed verb of the store.
pub fn store_error(verb: &'static str, error: &crate::ports::StoreError) {
    metrics::counter!(
        names::STORE_ERRORS, "verb" => verb, "kind" => error.kind(), "error" => error.number()
    )
    .increment(1);
    tracing::warn!(verb, kind = error.kind(), %error, "store verb failed");
}

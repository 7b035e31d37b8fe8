//! `refund-batcher serve`.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{ConfigOption, new_epoch};
use crate::adapters::clock::{SystemClock, SystemEntropy};
use crate::adapters::sql::Database;
use crate::app::{App, Parts};
use crate::telemetry;

/// Runs the service until SIGTERM or SIGINT; a second signal ends it at once.
pub async fn run(option: &ConfigOption) -> anyhow::Result<ExitCode> {
    telemetry::install_logs("info");
    let settings = option.load()?;
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    let database = Database::new(&settings.database)?;
    if settings.database.migrate {
        database
            .migrate(&new_epoch()?)
            .await
            .context("database.url")?;
    } else {
        let missing = database
            .pending()
            .await
            .context("start the database, or correct database.url")?;
        anyhow::ensure!(
            missing.is_empty(),
            "the tables {} are missing, or this user may not read them; run `refund-batcher migrate`, or set database.migrate = true",
            missing.join(", ")
        );
    }
    let mut signals = Signals::new()?;
    let parts = Parts {
        database,
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
        metrics: Some(telemetry::install_metrics()?),
    };
    let app = App::start(settings, parts).await?;
    tracing::info!(http = %app.http_addr, admin = %app.admin_addr, "taking notices");
    let broken = app.broken.clone();
    let was_broken = tokio::select! {
        () = signals.next() => false,
        () = broken.cancelled() => true,
    };
    tracing::info!("draining");
    let clean = tokio::select! {
        clean = app.stop() => clean,
        () = signals.next() => false,
    };
    if !clean {
        tracing::warn!(
            "ended before all queues were empty; the next start goes on from the database"
        );
    }
    Ok(if was_broken {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// SIGTERM and SIGINT.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

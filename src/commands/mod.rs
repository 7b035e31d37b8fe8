//! The commands, and what they share: reading the configuration, opening the database.

pub mod check;
pub mod demo;
pub mod migrate;
pub mod serve;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::adapters::clock::SystemClock;
use crate::config::{ConfigError, Settings};
use crate::ports::Clock;

/// Takes WeChat Pay refund notices, stores each fact once, answers in time, and keeps orders and
/// ledger exact, in batches.
///
/// Start with `refund-batcher demo`: it plays a cancelled concert on a throw-away database.
/// To run it for real: write refund-batcher.toml, then `check`, `migrate`, `serve`.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Play a cancelled concert: refunds, repeats, forgeries, over real HTTP; then check the books.
    Demo(demo::Options),
    /// Run the service until SIGTERM or Ctrl-C.
    Serve(ConfigOption),
    /// Make the tables that are missing, and stop.
    Migrate(ConfigOption),
    /// Look at configuration, keys, certificates and database; exit 0 when the service could start.
    Check(ConfigOption),
}

/// Where the configuration is.
#[derive(Debug, clap::Args)]
pub struct ConfigOption {
    /// Configuration file in TOML. Default: refund-batcher.toml, where it exists. Every key can also
    /// be given as environment variable `REFUND_BATCHER__SECTION__KEY`, which wins.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

impl ConfigOption {
    fn load(&self) -> Result<Settings, ConfigError> {
        // a variable that is not UTF-8 cannot be one of ours
        let environment = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        Settings::load(self.config.as_deref(), environment, SystemClock.now())
    }
}

/// Runs a command on a runtime of its own; says on standard error what went wrong.
pub fn main(cli: Cli) -> ExitCode {
    // a second installation changes nothing: the first is the same
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(async {
        match cli.command {
            Command::Demo(options) => demo::run(options).await,
            Command::Serve(option) => serve::run(&option).await,
            Command::Migrate(option) => migrate::run(&option).await,
            Command::Check(option) => check::run(&option).await,
        }
    });
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A random text for the store's epoch.
fn new_epoch() -> anyhow::Result<String> {
    let mut bytes = [0_u8; 16];
    aws_lc_rs::rand::fill(&mut bytes)
        .map_err(|_| anyhow::anyhow!("the operating system gives no random bytes"))?;
    Ok(hex::encode(bytes))
}

//! demo
use std::process::ExitCode;
/// Options.
#[derive(Debug, clap::Args)]
pub struct Options {}
/// Runs.
pub async fn run(_options: Options) -> anyhow::Result<ExitCode> {
    Ok(ExitCode::SUCCESS)
}

//! `refund-batcher migrate`.

use std::process::ExitCode;

use super::{ConfigOption, new_epoch};
use crate::adapters::sql::Database;

/// Makes the tables that are missing.
pub async fn run(option: &ConfigOption) -> anyhow::Result<ExitCode> {
    let settings = option.load()?;
    let made = Database::new(&settings.database)?
        .migrate(&new_epoch()?)
        .await?;
    if made.is_empty() {
        eprintln!("all tables are up to date");
    } else {
        eprintln!("made {}", made.join(", "));
    }
    Ok(ExitCode::SUCCESS)
}

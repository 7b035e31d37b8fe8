//! `refund-batcher check`.

use std::process::ExitCode;

use super::ConfigOption;
use crate::adapters::sql::Database;
use crate::adapters::sql::settings::{Finding, Grade};

/// Prints one line for each finding; exit 0 when the service could start.
pub async fn run(option: &ConfigOption) -> anyhow::Result<ExitCode> {
    let findings = match option.load() {
        Err(error) => error
            .0
            .into_iter()
            .map(|fault| {
                Finding::new(
                    Grade::Fault,
                    &fault.key,
                    format!("{}; {}", fault.fault, fault.remedy),
                )
            })
            .collect(),
        Ok(settings) => {
            let mut findings = vec![Finding::new(Grade::Good, "configuration", "no faults")];
            let warned = settings
                .warnings
                .iter()
                .map(|text| Finding::new(Grade::Warning, "keys", text.clone()));
            findings.extend(warned);
            match Database::new(&settings.database) {
                Ok(database) => findings.extend(database.findings(settings.database.migrate).await),
                Err(error) => findings.push(Finding::new(
                    Grade::Fault,
                    "database.url",
                    error.to_string(),
                )),
            }
            findings
        }
    };
    for finding in &findings {
        let grade = match finding.grade {
            Grade::Good => "ok   ",
            Grade::Warning => "warn ",
            Grade::Fault => "fault",
        };
        println!("{grade} {}: {}", finding.what, finding.found);
    }
    let faulty = findings.iter().any(|finding| finding.grade == Grade::Fault);
    Ok(if faulty {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

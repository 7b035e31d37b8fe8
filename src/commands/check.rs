//! `refund-batcher check`.

use std::process::ExitCode;

use std::net::{SocketAddr, TcpListener};

use super::ConfigOption;
use crate::adapters::clock::SystemClock;
use crate::adapters::sql::Database;
use crate::adapters::sql::settings::{Finding, Grade};
use crate::config::Settings;
use crate::core::types::UnixMs;
use crate::ports::Clock;

/// Days before its end from which a certificate is a warning.
const CERTIFICATE_DAYS_MIN: i64 = 30;

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
            findings.extend(certificates(&settings, SystemClock.now()));
            for (key, address) in [
                ("http.listen", settings.http_listen),
                ("admin.listen", settings.admin_listen),
            ] {
                findings.push(listener(key, address));
            }
            match Database::new(&settings.database) {
                Ok(database) => findings.extend(
                    database
                        .findings(settings.database.migrate, SystemClock.now())
                        .await,
                ),
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

/// One line for each platform certificate that has not ended; those that have are warnings already.
fn certificates(settings: &Settings, now: UnixMs) -> Vec<Finding> {
    let mut certificates = settings.ring.certificates();
    certificates.sort();
    certificates
        .into_iter()
        .filter(|(_, ends)| *ends >= now)
        .map(|(serial, ends)| {
            let days = (ends.0 - now.0) / 86_400_000;
            let what = format!("certificate {serial}");
            if days < CERTIFICATE_DAYS_MIN {
                let found = format!("ends in {days} days; add its successor, or WeChat Pay's public key, to verify_keys");
                Finding::new(Grade::Warning, &what, found)
            } else {
                Finding::new(Grade::Good, &what, format!("good for {days} days"))
            }
        })
        .collect()
}

/// Whether the service could listen there.
fn listener(key: &str, address: SocketAddr) -> Finding {
    match TcpListener::bind(address) {
        Ok(_) => Finding::new(Grade::Good, key, format!("{address} is free")),
        Err(error) => {
            let found = format!(
                "{address}: {error}; is the service running already? otherwise choose another"
            );
            Finding::new(Grade::Warning, key, found)
        }
    }
}

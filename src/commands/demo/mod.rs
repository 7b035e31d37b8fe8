//! `refund-batcher demo`: the whole job in one process. WeChat Pay is played over real HTTP by the
//! `platform` library, which knows nothing of this crate; the books are checked from the tables.

mod concert;
mod report;

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use platform::{Attempt, Campaign, Delivery, Merchant, Progress, Report, Sender};
use tokio::time::Instant;

use super::new_epoch;
use crate::adapters::clock::{SystemClock, SystemEntropy};
use crate::adapters::sql::Database;
use crate::adapters::sql::shop::Shop;
use crate::app::{App, Parts};
use crate::config::{DatabaseSettings, Settings};
use crate::ports::Clock;
use crate::telemetry;
use concert::{Cast, Concert, Event};
use report::Outcome;

/// Deliveries that are under way at one time.
const CONCURRENCY: usize = 64;
/// Deliveries signed in one go: a signature is good for five minutes, and memory stays flat.
const BLOCK: usize = 20_000;
/// WeChat Pay's resend ladder runs so many times faster.
const CLOCK_DIVISOR: u32 = 100;
/// When the shop writes the refunds that it registers late.
const LATE: Duration = Duration::from_secs(2);
/// How long the books may stand still before the demo gives up waiting for them.
const STALLED: Duration = Duration::from_secs(30);
/// Rows in one of the shop's transactions.
const SHOP_ROWS: usize = 5_000;

/// Options of `demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Refunds that the cancelled concert brings
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    refunds: u32,
    /// Times that each notice is delivered
    #[arg(long, value_name = "D", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=16))]
    duplicates: u32,
    /// The same seed makes the same orders, refunds and shuffling
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// A database to play on, such as `mysql://user:password@127.0.0.1:3306/name`, instead of a
    /// throw-away SQLite file; its tables must be empty or an earlier demo's
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// Print one JSON object on standard output, and nothing else there
    #[arg(long)]
    json: bool,
}

/// Plays the concert; exit 0 only when the books are exact.
pub async fn run(options: Options) -> anyhow::Result<ExitCode> {
    // the contradictions that are played would fill the screen with alerts
    telemetry::install_logs("off");
    let folder = tempfile::tempdir()?;
    let url = match &options.database {
        Some(url) => url.clone(),
        None => format!("sqlite://{}", folder.path().join("demo.db").display()),
    };
    let database = Database::new(&DatabaseSettings::for_url(&url)).context("--database")?;
    database
        .migrate(&new_epoch()?)
        .await
        .context("--database")?;
    let shop = database.shop();
    if let Some(table) = shop.make_playground(&concert::MCHIDS).await? {
        anyhow::bail!(
            "--database: table {table} holds rows that are not the demo's; give it an empty database"
        );
    }

    let concert = Concert::new(options.refunds, options.duplicates, options.seed);
    let cast = concert::cast()?;
    shop_writes(&*shop, &concert).await?;
    let settings = settings(folder.path(), &url, &cast.merchants)?;
    let parts = Parts {
        database: database.clone(),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
        metrics: None,
    };
    let app = App::start(settings, parts).await?;

    let events = concert.first_wave.len() + concert.second_wave.len();
    let stage = Stage {
        url: format!("http://{}/notify/wechat/v3", app.http_addr),
        sender: Sender::new(CONCURRENCY),
        cast,
        bar: progress_bar(events, options.json),
    };
    let late = tokio::spawn(register_late(Arc::clone(&shop), concert.late_refunds()));
    let mut sent = Sent::default();
    sent.wave(&stage, &concert, &concert.first_wave).await?;
    late.await??;
    stage.bar.set_message("booking");
    wait_for_books(&*shop, options.refunds).await?;
    // what contradicts comes late, as it does in life
    sent.wave(&stage, &concert, &concert.second_wave).await?;
    stage.bar.finish_and_clear();

    let flushes = app.tally.flushes.load(Ordering::Relaxed);
    let flushed_rows = app.tally.rows.load(Ordering::Relaxed);
    anyhow::ensure!(app.stop().await, "the service did not drain in time");
    let outcome = Outcome {
        refunds: options.refunds,
        expected_total_fen: concert.total_fen(),
        meant_to_be_refused: concert.meant_to_be_refused(),
        books: shop.books().await?,
        states: shop.states().await?,
        flushes,
        flushed_rows,
        database: if url.starts_with("sqlite:") {
            "SQLite"
        } else {
            "MySQL/MariaDB"
        },
        sent,
    };
    if options.json {
        println!("{}", outcome.json());
    } else {
        println!("{}", outcome.text(options.duplicates));
    }
    Ok(if outcome.is_exact() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Orders, and the refunds that are registered before WeChat Pay is asked.
async fn shop_writes(shop: &dyn Shop, concert: &Concert) -> anyhow::Result<()> {
    for rows in concert.orders().chunks(SHOP_ROWS) {
        shop.insert_orders(rows, SystemClock.now()).await?;
    }
    for rows in concert.early_refunds().chunks(SHOP_ROWS) {
        shop.insert_refunds(rows, SystemClock.now()).await?;
    }
    Ok(())
}

async fn register_late(
    shop: Arc<dyn Shop>,
    refunds: Vec<crate::core::sql::shop::NewRefund>,
) -> anyhow::Result<()> {
    tokio::time::sleep(LATE).await;
    for rows in refunds.chunks(SHOP_ROWS) {
        shop.insert_refunds(rows, SystemClock.now()).await?;
    }
    Ok(())
}

/// The service's configuration, as a file would hold it.
fn settings(folder: &Path, url: &str, merchants: &[Merchant]) -> anyhow::Result<Settings> {
    use std::fmt::Write;
    let mut text = format!("[http]\nlisten = '127.0.0.1:0'\n[database]\nurl = '{url}'\n");
    for merchant in merchants {
        let mchid = &merchant.mchid;
        std::fs::write(folder.join(format!("{mchid}.apiv3")), merchant.api_v3_key())?;
        let key = &merchant.key;
        let (pem, serial) = match key.certificate_pem() {
            Some(pem) => (pem, String::new()),
            None => (
                key.public_key_pem(),
                format!("serial = '{}'\n", key.serial()),
            ),
        };
        std::fs::write(folder.join(format!("{mchid}.pem")), pem)?;
        write!(
            text,
            "[[merchants]]\nmchid = '{mchid}'\napi_v3_key_files = ['{mchid}.apiv3']\n\
             [[merchants.verify_keys]]\n{serial}file = '{mchid}.pem'\n"
        )?;
    }
    Ok(Settings::from_text(
        &text,
        folder,
        std::iter::empty(),
        SystemClock.now(),
    )?)
}

fn progress_bar(events: usize, json: bool) -> ProgressBar {
    let target = if json || !std::io::stderr().is_terminal() {
        ProgressDrawTarget::hidden()
    } else {
        ProgressDrawTarget::stderr()
    };
    let bar = ProgressBar::with_draw_target(u64::try_from(events).ok(), target);
    let style = ProgressStyle::with_template(
        "{msg:9} [{bar:40}] {human_pos} of {human_len} deliveries, {eta} left",
    );
    if let Ok(style) = style {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

/// Where the concert is played.
struct Stage {
    url: String,
    sender: Sender,
    cast: Cast,
    bar: ProgressBar,
}

/// What WeChat Pay saw.
#[derive(Default)]
struct Sent {
    attempts: Vec<Attempt>,
    /// Acknowledged although meant to be refused, or never acknowledged at all.
    wrong: usize,
    /// Time spent sending, signing left out.
    took: Duration,
}

impl Sent {
    /// Signs and sends block by block.
    async fn wave(
        &mut self,
        stage: &Stage,
        concert: &Concert,
        events: &[Event],
    ) -> anyhow::Result<()> {
        for (number, block) in events.chunks(BLOCK).enumerate() {
            stage.bar.set_message("signing");
            let seed = concert.seed.wrapping_add(u64::try_from(number)?);
            let deliveries = concert.deliveries(block, &stage.cast, SystemClock.now().0, seed);
            stage.bar.set_message("sending");
            let report = send(stage, deliveries).await?;
            self.took += report.took;
            self.wrong += report.unacknowledged.len() + report.wrongly_acknowledged.len();
            self.attempts.extend(report.attempts);
        }
        Ok(())
    }
}

async fn send(stage: &Stage, deliveries: Vec<Delivery>) -> anyhow::Result<Report> {
    let mut campaign = Campaign::new(&stage.url, CONCURRENCY);
    campaign.clock_divisor = CLOCK_DIVISOR;
    let progress = Arc::new(Progress::default());
    let sending = {
        let (sender, progress) = (stage.sender.clone(), Arc::clone(&progress));
        tokio::spawn(async move {
            campaign
                .run(
                    &sender,
                    deliveries,
                    || SystemClock.now().0 / 1000,
                    &progress,
                )
                .await
        })
    };
    let before = stage.bar.position();
    let mut looks = tokio::time::interval(Duration::from_millis(50));
    while !sending.is_finished() {
        looks.tick().await;
        stage
            .bar
            .set_position(before + progress.finished.load(Ordering::Relaxed));
    }
    Ok(sending.await?)
}

/// Waits until every refund is booked, or until nothing moves any more; the books say which.
async fn wait_for_books(shop: &dyn Shop, refunds: u32) -> anyhow::Result<()> {
    let (mut booked, mut moved_at) = (-1, Instant::now());
    let mut looks = tokio::time::interval(Duration::from_millis(100));
    while booked < i64::from(refunds) && moved_at.elapsed() < STALLED {
        looks.tick().await;
        let now_booked = shop.books().await?.ledger_rows;
        if now_booked != booked {
            (booked, moved_at) = (now_booked, Instant::now());
        }
    }
    Ok(())
}

//! FLOW: the life of what was left over: due, take, hand on.
//!
//! The only recovery path, for all causes alike: a start after a crash, a full queue, another
//! instance that died, a parked fact whose refund has come. It selects by state and due time, never
//! by a last seen id, so a row that became visible late is found.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::commit::Committers;
use crate::core::fact::Source;
use crate::core::notice::{Content, Intake, NoticeKey, Origin, State};
use crate::core::sql::relay::TakenNotice;
use crate::flush::{FlushItem, Flushers};
use crate::ports::{Clock, Store, StoreError};
use crate::repeats::Repeats;
use crate::telemetry::{self, names};

/// The pause is at least this many times the last poll's duration.
const PAUSE_FACTOR: u32 = 20;
/// The pause after a poll that failed, however long it took to fail.
const FAULT_PAUSE: Duration = Duration::from_secs(1);
/// Facts with so many attempts are flushed alone.
const ALONE_FROM_ATTEMPTS: i64 = 3;
/// The backlog is reported with one poll in so many.
const BACKLOG_EVERY: u64 = 10;
/// One batch in so many goes to the oldest due; the others to the latest, so that a heap of old
/// failures does not hold up what is fresh, and nothing starves.
const OLDEST_EVERY: u64 = 4;

/// The numbers of the relay, from the configuration.
#[derive(Clone, Copy, Debug)]
pub struct RelayLimits {
    /// The pause between two polls.
    pub poll_ms: u64,
    /// Notices taken in one poll at most, for each state.
    pub rows_max: usize,
    /// How long a taken notice is left alone.
    pub lease_ms: i64,
}

/// The relay.
pub struct Relay {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The time of day.
    pub clock: Arc<dyn Clock>,
    /// Where parked facts are decided again.
    pub committers: Committers,
    /// Where pending facts are booked.
    pub flushers: Flushers,
    /// Forgets when the store's epoch changes.
    pub repeats: Arc<Repeats>,
    /// The numbers.
    pub limits: RelayLimits,
}

impl Relay {
    /// Polls until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let mut epoch: Option<String> = None;
        for round in 0_u64.. {
            let started = Instant::now();
            let polled = self.poll(round, &mut epoch).await;
            let mut pause = Duration::from_millis(self.limits.poll_ms);
            match polled {
                Ok(()) => pause = pause.max(started.elapsed() * PAUSE_FACTOR),
                Err(error) => {
                    telemetry::store_error("relay", &error);
                    // whoever answers next may lack the last writes
                    self.repeats.forget();
                    pause = pause.max(FAULT_PAUSE);
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn poll(&self, round: u64, epoch: &mut Option<String>) -> Result<(), StoreError> {
        let now_epoch = self.store.epoch().await?;
        if epoch.as_ref().is_some_and(|known| *known != now_epoch) {
            self.repeats.forget();
        }
        *epoch = Some(now_epoch);
        let oldest_first = round.is_multiple_of(OLDEST_EVERY);
        for notice in self
            .take(State::Pending, self.flushers.room(), oldest_first)
            .await?
        {
            let order = notice
                .fields
                .out_trade_no
                .as_ref()
                .map_or("", |no| no.as_str());
            let item = FlushItem {
                since: Instant::now(),
                alone: notice.attempts > ALONE_FROM_ATTEMPTS,
                key: notice.key,
                taken: true,
            };
            self.flushers.offer(order, item);
        }
        for notice in self
            .take(State::Parked, self.limits.rows_max, oldest_first)
            .await?
        {
            if let Some(intake) = intake(notice)
                && self.committers.relay(intake).is_err()
            {
                // deliveries come first; the lease ends and it is taken again
                break;
            }
        }
        // last, so that a figure that cannot be had holds up no recovery
        if round.is_multiple_of(BACKLOG_EVERY) {
            self.report_backlog().await?;
        }
        Ok(())
    }

    /// Reports how much waits, in an index and within bounds.
    async fn report_backlog(&self) -> Result<(), StoreError> {
        for state in [
            State::Pending,
            State::Parked,
            State::Quarantined,
            State::Dead,
        ] {
            let backlog = self.store.backlog(state).await?;
            let notices = usize::try_from(backlog.notices).unwrap_or(0);
            telemetry::gauge(
                metrics::gauge!(names::BACKLOG, "state" => state.as_str()),
                notices,
            );
            if matches!(state, State::Pending | State::Parked) {
                let due_ms = backlog
                    .oldest_due_at
                    .map_or(0, |due| self.clock.now().since_ms(due));
                let seconds = usize::try_from(due_ms / 1000).unwrap_or(0);
                let gauge = metrics::gauge!(names::OLDEST_DUE_SECONDS, "state" => state.as_str());
                telemetry::gauge(gauge, seconds);
            }
        }
        Ok(())
    }

    async fn take(
        &self,
        state: State,
        room: usize,
        oldest_first: bool,
    ) -> Result<Vec<TakenNotice>, StoreError> {
        let rows_max = self.limits.rows_max.min(room);
        if rows_max == 0 {
            return Ok(Vec::new());
        }
        let now = self.clock.now();
        let due: Vec<NoticeKey> = self.store.due(state, now, rows_max, oldest_first).await?;
        if due.is_empty() {
            return Ok(Vec::new());
        }
        let taken = self
            .store
            .take(state, &due, now, now.plus_ms(self.limits.lease_ms))
            .await?;
        metrics::counter!(names::RELAYED, "state" => state.as_str())
            .increment(u64::try_from(taken.len()).unwrap_or(0));
        Ok(taken)
    }
}

/// A parked row as the committer takes it; nothing for a row that holds no fact.
fn intake(notice: TakenNotice) -> Option<Intake> {
    let fact = notice.fields.to_fact(&notice.key.mchid)?;
    Some(Intake {
        digest: notice.digest,
        mchid: notice.key.mchid,
        unopened_as: Vec::new(),
        envelope_id: notice.envelope_id,
        source: Source::NotifyV3,
        content: Content::Fact(fact),
        origin: Origin::Relay,
        received_at: notice.received_at,
        event_differs: false,
        park_if_locked: false,
        skip_refund: false,
    })
}

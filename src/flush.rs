//! FLOW: the life of one batch: collect, one transaction that claims, plans, writes and settles.
//!
//! A notice goes to the flusher that owns its order, so two flushers of a process never meet on an
//! order. The queue holds ids only and is a hint: the facts are read from their rows, and what the
//! queue loses is found again by its due time.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::core::batch::Batcher;
use crate::core::notice::{NoticeKey, Reason, reason};
use crate::core::plan::PlanLimits;
use crate::ports::{Advice, Clock, Entropy, Flushed, Store, StoreError};
use crate::telemetry::{self, names};

/// Times that a batch is run again before its notices are put back.
const TRIES_MAX: u32 = 4;
/// The pause before a notice is offered again that somebody else had locked.
const BUSY_PAUSE: Duration = Duration::from_millis(50);
/// Busy notices remembered at most; the relay finds the others.
const BUSY_MAX: usize = 4096;
/// Shortest and longest pause of a flusher while the database is away.
const FAULT_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The numbers of the flush, from the configuration.
#[derive(Clone, Copy, Debug)]
pub struct FlushLimits {
    /// Flushers.
    pub workers: usize,
    /// Rows in one batch at most.
    pub rows_max: usize,
    /// How long the first row of a batch waits for others.
    pub wait_ms: i64,
    /// Notices that wait at most.
    pub queue_max: usize,
    /// Attempts before a notice is dead.
    pub attempts_max: i64,
}

/// A pending notice on its way to a flusher.
#[derive(Clone, Debug)]
pub struct FlushItem {
    /// When it was offered.
    pub since: Instant,
    /// The row.
    pub key: NoticeKey,
    /// Whether the relay took it, and so counted this attempt.
    pub taken: bool,
    /// Whether it is flushed alone, because it failed before.
    pub alone: bool,
}

/// What flushing has done since the start.
#[derive(Debug, Default)]
pub struct FlushTally {
    /// Transactions that booked something.
    pub flushes: AtomicU64,
    /// Ledger rows that they wrote.
    pub rows: AtomicU64,
}

/// The queues of the flushers.
#[derive(Clone)]
pub struct Flushers {
    queues: Vec<mpsc::Sender<FlushItem>>,
}

/// What all flushers share.
pub struct FlushContext {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The time of day.
    pub clock: Arc<dyn Clock>,
    /// Chance, to spread retries.
    pub entropy: Arc<dyn Entropy>,
    /// What was done.
    pub tally: Arc<FlushTally>,
    /// The numbers.
    pub limits: FlushLimits,
}

impl Flushers {
    /// The queues, and the loops that empty them.
    pub fn new(
        context: FlushContext,
    ) -> (Flushers, Vec<impl Future<Output = ()> + Send + 'static>) {
        let context = Arc::new(context);
        let workers = context.limits.workers.max(1);
        let (mut queues, mut loops) = (Vec::new(), Vec::new());
        for _ in 0..workers {
            let (sender, queue) = mpsc::channel((context.limits.queue_max / workers).max(1));
            queues.push(sender);
            loops.push(run(Arc::clone(&context), queue));
        }
        (Flushers { queues }, loops)
    }

    /// Offers a pending notice without waiting; a full queue leaves it to the relay.
    pub fn offer(&self, out_trade_no: &str, item: FlushItem) {
        let mut hasher = DefaultHasher::new();
        (item.key.mchid.as_str(), out_trade_no).hash(&mut hasher);
        let owner = usize::try_from(hasher.finish() % self.queues.len() as u64).unwrap_or(0);
        if self.queues[owner].try_send(item).is_err() {
            metrics::counter!(names::FLUSH_QUEUE_FULL).increment(1);
        }
    }

    /// Notices that wait in the queues, and that may.
    pub fn waiting(&self) -> (usize, usize) {
        let limit: usize = self.queues.iter().map(mpsc::Sender::max_capacity).sum();
        let free: usize = self.queues.iter().map(mpsc::Sender::capacity).sum();
        (limit - free, limit)
    }

    /// Notices that every queue still takes.
    pub fn room(&self) -> usize {
        self.queues
            .iter()
            .map(mpsc::Sender::capacity)
            .min()
            .unwrap_or(0)
    }
}

/// Runs until its queue is closed and empty.
async fn run(context: Arc<FlushContext>, mut queue: mpsc::Receiver<FlushItem>) {
    let start = Instant::now();
    let now_ms = || i64::try_from(start.elapsed().as_millis()).unwrap_or(i64::MAX);
    let at = |ms: i64| start + Duration::from_millis(u64::try_from(ms).unwrap_or(0));
    let mut batcher = Batcher::new(context.limits.rows_max, context.limits.wait_ms);
    let mut busy: VecDeque<(Instant, FlushItem)> = VecDeque::new();
    let mut pause = FAULT_PAUSE.0;
    let mut open = true;
    while open || !busy.is_empty() {
        let batch_due = batcher.due_at_ms().map(at);
        let wake = batch_due
            .into_iter()
            .chain(busy.front().map(|(due, _)| *due))
            .min();
        let batch = tokio::select! {
            item = queue.recv(), if open => match item {
                Some(item) if item.alone => Some(vec![item]),
                Some(item) => batcher.push(item, now_ms()),
                None => {
                    open = false;
                    Some(batcher.take())
                }
            },
            () = tokio::time::sleep_until(wake.unwrap_or(start)), if wake.is_some() => {
                batcher.tick(now_ms())
            }
        };
        let mut batch = batch.unwrap_or_default();
        while batch.len() < context.limits.rows_max
            && busy.front().is_some_and(|(due, _)| *due <= Instant::now())
            && let Some((_, item)) = busy.pop_front()
        {
            batch.push(item);
        }
        // the relay has counted the attempt of those that it took, so the two kinds go apart
        let (taken, fresh): (Vec<_>, Vec<_>) = batch.into_iter().partition(|item| item.taken);
        for items in [fresh, taken] {
            for item in flush(&context, items, &mut pause).await {
                // while closing down, what is busy is left to the next start
                if open && busy.len() < BUSY_MAX {
                    busy.push_back((Instant::now() + BUSY_PAUSE, item));
                }
            }
        }
    }
}

/// One batch, all fresh or all taken; gives the items that somebody else has locked.
///
/// Shapes: `pause`, the next one if the database is away; grows from batch to batch.
async fn flush(
    context: &FlushContext,
    items: Vec<FlushItem>,
    pause: &mut Duration,
) -> Vec<FlushItem> {
    let taken = items.first().is_some_and(|item| item.taken);
    for item in &items {
        telemetry::stage("flush_wait", item.since.elapsed());
    }
    let mut keys: Vec<NoticeKey> = items.into_iter().map(|item| item.key).collect();
    keys.sort_unstable();
    keys.dedup();
    let mut busy = Vec::new();
    let mut todo = vec![keys];
    while let Some(keys) = todo.pop() {
        if keys.is_empty() {
            continue;
        }
        let limits = PlanLimits {
            attempts_max: context.limits.attempts_max,
            taken,
            jitter: context.entropy.unit(),
        };
        let error = match transact(context, &keys, limits).await {
            Ok(flushed) => {
                let again = |key| FlushItem {
                    since: Instant::now(),
                    key,
                    taken,
                    alone: false,
                };
                busy.extend(flushed.busy.into_iter().map(again));
                *pause = FAULT_PAUSE.0;
                continue;
            }
            Err(error) => error,
        };
        match error {
            StoreError::Refused(_) | StoreError::Raced(_) if keys.len() > 1 => {
                let (left, right) = keys.split_at(keys.len() / 2);
                todo.extend([right.to_vec(), left.to_vec()]);
            }
            StoreError::Refused(_) | StoreError::Raced(_) => {
                let why = format!("{}{error}", reason::DATABASE);
                put_back(context, &keys, Some(why.into()), limits).await;
            }
            StoreError::Conflict(_) | StoreError::LockTimeout => {
                put_back(context, &keys, None, limits).await;
            }
            StoreError::Lost(_) | StoreError::Unavailable(_) => {
                put_back(context, &keys, None, limits).await;
                tokio::time::sleep(*pause).await;
                *pause = (*pause * 2).min(FAULT_PAUSE.1);
            }
        }
    }
    busy
}

/// The transaction, run again while another one was in the way.
async fn transact(
    context: &FlushContext,
    keys: &[NoticeKey],
    limits: PlanLimits,
) -> Result<Flushed, StoreError> {
    let mut tries = 0;
    loop {
        let started = Instant::now();
        let error = match context.store.flush(keys, context.clock.now(), limits).await {
            Ok(flushed) => {
                record(context, keys, &flushed, started);
                return Ok(flushed);
            }
            Err(error) => error,
        };
        telemetry::store_error("flush", &error);
        tries += 1;
        if error.advice() != Advice::Again || tries >= TRIES_MAX {
            return Err(error);
        }
        tokio::time::sleep(Duration::from_millis(u64::from(tries) * 5)).await;
    }
}

/// Puts notices back for a later attempt; if even that fails, their due time brings them back.
async fn put_back(
    context: &FlushContext,
    keys: &[NoticeKey],
    own: Option<Reason>,
    limits: PlanLimits,
) {
    match context
        .store
        .put_back(keys, own, context.clock.now(), limits)
        .await
    {
        Ok(flushed) => alert_dead(&flushed),
        Err(error) => telemetry::store_error("put_back", &error),
    }
}

fn record(context: &FlushContext, keys: &[NoticeKey], flushed: &Flushed, started: Instant) {
    #[allow(clippy::cast_precision_loss)]
    metrics::histogram!(names::FLUSH_ROWS).record(keys.len() as f64);
    metrics::counter!(names::BOOKED).increment(flushed.done);
    if flushed.done > 0 {
        context.tally.flushes.fetch_add(1, Ordering::Relaxed);
        context
            .tally
            .rows
            .fetch_add(flushed.ledger_rows, Ordering::Relaxed);
    }
    alert_dead(flushed);
    tracing::debug!(
        notices = keys.len(),
        first_notice_id = keys.first().map(|key| key.id),
        last_notice_id = keys.last().map(|key| key.id),
        done = flushed.done,
        again = flushed.again,
        dead = flushed.dead.len(),
        busy = flushed.busy.len(),
        took_ms = started.elapsed().as_millis(),
        "batch flushed"
    );
}

fn alert_dead(flushed: &Flushed) {
    for (key, why) in &flushed.dead {
        metrics::counter!(names::UNFINISHED, "state" => "dead").increment(1);
        telemetry::alert(why, Some(key));
    }
}

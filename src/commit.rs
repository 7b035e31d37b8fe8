//! FLOW: the life of one commit group: take what waits, one transaction, a verdict for each.
//!
//! A notice goes to the committer that owns its refund, so two committers of a process never meet
//! on a refund. A committer takes whatever waits the moment it is free; there is no timer. It runs
//! its transactions in its own task: a handler that gives up leaves them whole.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::Instant;

use crate::core::decide::{DecideLimits, Outcome};
use crate::core::fact::Digest;
use crate::core::notice::{Intake, Origin, State, reason};
use crate::flush::{FlushItem, Flushers};
use crate::ports::{Advice, Clock, Store, StoreError, Verdict};
use crate::repeats::Repeats;
use crate::telemetry::{self, names};

/// Pauses before a fact whose refund row is locked is tried again; then it is parked.
const LOCKED_PAUSES_MS: [u64; 4] = [4, 8, 16, 32];
/// Times that a whole group is run again before it is halved.
const TRIES_MAX: u32 = 4;
/// Facts that wait in the slow lane at most.
const SLOW_LANE_MAX: usize = 256;

/// The numbers of the commit path, from the configuration.
#[derive(Clone, Copy, Debug)]
pub struct CommitLimits {
    /// Committers.
    pub workers: usize,
    /// Notices in one group at most.
    pub group_max: usize,
    /// Bytes in one group at most.
    pub group_bytes_max: usize,
    /// Notices that wait at most.
    pub queue_max: usize,
    /// Bytes that wait at most.
    pub queue_bytes_max: usize,
    /// The numbers of deciding.
    pub decide: DecideLimits,
}

/// What a handler waits for; `None` when the notice could not be made durable.
pub type Answered = oneshot::Receiver<Option<Verdict>>;

/// A notice that waits for its group.
struct Waiting {
    intake: Intake,
    /// Who waits; the relay waits for nothing.
    handler: Option<oneshot::Sender<Option<Verdict>>>,
    /// Times that its refund row was found locked.
    locked: usize,
    /// When it came in.
    since: Instant,
    /// Gives its share of the queue's bytes back when dropped.
    bytes: OwnedSemaphorePermit,
}

impl Waiting {
    /// Whether nobody waits any more for a delivery that nobody has begun to store.
    fn is_abandoned(&self) -> bool {
        self.handler
            .as_ref()
            .is_some_and(oneshot::Sender::is_closed)
    }
}

/// The queues of the committers.
#[derive(Clone)]
pub struct Committers {
    queues: Vec<mpsc::Sender<Waiting>>,
    bytes: Arc<Semaphore>,
}

/// The intake queue takes no more.
#[derive(Debug)]
pub struct Full;

/// What all committers share.
pub struct CommitContext {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The time of day.
    pub clock: Arc<dyn Clock>,
    /// What is known to be committed.
    pub repeats: Arc<Repeats>,
    /// Where committed facts go next.
    pub flushers: Flushers,
    /// The numbers.
    pub limits: CommitLimits,
}

impl Committers {
    /// The queues, and the loops that empty them: one for each committer and one slow lane.
    pub fn new(
        context: CommitContext,
    ) -> (Committers, Vec<impl Future<Output = ()> + Send + 'static>) {
        let context = Arc::new(context);
        let limits = context.limits;
        let workers = limits.workers.max(1);
        let (slow, slow_queue) = mpsc::channel(SLOW_LANE_MAX);
        let mut queues = Vec::new();
        let mut loops = Vec::new();
        for _ in 0..workers {
            let (sender, queue) = mpsc::channel((limits.queue_max / workers).max(1));
            queues.push(sender);
            loops.push(Committer::new(Arc::clone(&context), queue, Some(slow.clone())).run());
        }
        loops.push(Committer::new(context, slow_queue, None).run());
        let bytes = Arc::new(Semaphore::new(
            limits.queue_bytes_max.min(Semaphore::MAX_PERMITS),
        ));
        (Committers { queues, bytes }, loops)
    }

    /// Hands a delivery to the committer that owns its refund.
    ///
    /// Errors: [`Full`], by notices or by bytes; nothing was taken.
    pub fn submit(&self, intake: Intake) -> Result<Answered, Full> {
        let (sender, receiver) = oneshot::channel();
        self.push(intake, Some(sender)).map(|()| receiver)
    }

    /// Hands a stored notice back to be decided again; nobody waits for the verdict.
    pub fn relay(&self, intake: Intake) -> Result<(), Full> {
        self.push(intake, None)
    }

    /// Notices that wait in the queues, and that may.
    pub fn waiting(&self) -> (usize, usize) {
        let limit: usize = self.queues.iter().map(mpsc::Sender::max_capacity).sum();
        let free: usize = self.queues.iter().map(mpsc::Sender::capacity).sum();
        (limit - free, limit)
    }

    fn push(
        &self,
        intake: Intake,
        handler: Option<oneshot::Sender<Option<Verdict>>>,
    ) -> Result<(), Full> {
        let bytes = u32::try_from(intake.bytes()).map_err(|_| Full)?;
        let bytes = Arc::clone(&self.bytes)
            .try_acquire_many_owned(bytes)
            .map_err(|_| Full)?;
        let queue = &self.queues[owner_of(&intake, self.queues.len())];
        queue
            .try_send(Waiting {
                intake,
                handler,
                locked: 0,
                since: Instant::now(),
                bytes,
            })
            .map_err(|_| Full)
    }
}

/// The committer that owns this notice's refund; a notice without one goes by its digest.
fn owner_of(intake: &Intake, committers: usize) -> usize {
    let mut hasher = DefaultHasher::new();
    match intake.fact() {
        Some(fact) => (fact.mchid.as_str(), fact.out_refund_no.as_str()).hash(&mut hasher),
        None => intake.digest.hash(&mut hasher),
    }
    usize::try_from(hasher.finish() % committers as u64).unwrap_or(0)
}

/// A group: the notices, and for each of them who waits.
#[derive(Default)]
struct Group {
    intakes: Vec<Intake>,
    waiting: Vec<Vec<Waiter>>,
}

/// Who waits for a notice of a running group.
struct Waiter {
    handler: Option<oneshot::Sender<Option<Verdict>>>,
    locked: usize,
    since: Instant,
    bytes: OwnedSemaphorePermit,
}

impl Group {
    /// Lets go of deliveries that nobody waits for any more; WeChat Pay sends them again.
    fn drop_abandoned(&mut self) {
        let handler_waits = |waiter: &Waiter| {
            waiter
                .handler
                .as_ref()
                .is_none_or(|handler| !handler.is_closed())
        };
        let waits: Vec<bool> = self
            .waiting
            .iter()
            .map(|waiters| waiters.iter().any(handler_waits))
            .collect();
        let mut keep = waits.iter();
        self.intakes
            .retain(|_| keep.next().is_none_or(|keep| *keep));
        let mut keep = waits.iter();
        self.waiting
            .retain(|_| keep.next().is_none_or(|keep| *keep));
    }

    fn split(mut self) -> (Group, Group) {
        let at = self.intakes.len() / 2;
        let right = Group {
            intakes: self.intakes.split_off(at),
            waiting: self.waiting.split_off(at),
        };
        (self, right)
    }
}

struct Committer {
    context: Arc<CommitContext>,
    queue: mpsc::Receiver<Waiting>,
    /// Where facts go that met a lock timeout; the slow lane itself has none.
    slow: Option<mpsc::Sender<Waiting>>,
    /// Taken from the queue, waiting for a group.
    held: VecDeque<Waiting>,
    /// Waiting for a locked refund row.
    delayed: Vec<(Instant, Waiting)>,
}

impl Committer {
    fn new(
        context: Arc<CommitContext>,
        queue: mpsc::Receiver<Waiting>,
        slow: Option<mpsc::Sender<Waiting>>,
    ) -> Committer {
        Committer {
            context,
            queue,
            slow,
            held: VecDeque::new(),
            delayed: Vec::new(),
        }
    }

    /// Runs until its queue is closed and empty.
    async fn run(mut self) {
        while let Some(group) = self.next_group().await {
            self.commit(group).await;
        }
    }

    /// Waits for something to do, then takes all that waits and fits in one group.
    async fn next_group(&mut self) -> Option<Group> {
        loop {
            let now = Instant::now();
            while let Some(at) = self.delayed.iter().position(|(due, _)| *due <= now) {
                self.held.push_front(self.delayed.swap_remove(at).1);
            }
            while self.held.len() < 2 * self.context.limits.group_max
                && let Ok(waiting) = self.queue.try_recv()
            {
                self.held.push_back(waiting);
            }
            self.held.retain(|waiting| !waiting.is_abandoned());
            if !self.held.is_empty() {
                return Some(self.form_group());
            }
            let due = self.delayed.iter().map(|(due, _)| *due).min();
            tokio::select! {
                waiting = self.queue.recv() => match (waiting, due) {
                    (Some(waiting), _) => self.held.push_back(waiting),
                    (None, Some(due)) => tokio::time::sleep_until(due).await,
                    (None, None) => return None,
                },
                () = tokio::time::sleep_until(due.unwrap_or(now)), if due.is_some() => {}
            }
        }
    }

    /// Takes from `held` what one group may hold: each refund and each digest once. Deliveries of
    /// the same fact in the same envelope share its place; another one of the same refund waits for
    /// the next group.
    fn form_group(&mut self) -> Group {
        let limits = self.context.limits;
        let group_max = if self.slow.is_some() {
            limits.group_max
        } else {
            1
        };
        let mut group = Group::default();
        let mut places: HashMap<Digest, usize> = HashMap::new();
        let mut taken: std::collections::HashSet<Vec<u8>> = std::collections::HashSet::new();
        let mut bytes = 0;
        let mut left = VecDeque::new();
        while let Some(waiting) = self.held.pop_front() {
            let (mut intake, waiter) = waiting.split();
            let since = waiter.since;
            if let Some(place) = places.get(&intake.digest)
                && group.intakes[*place].content == intake.content
                && group.intakes[*place].unopened_as == intake.unopened_as
                && ![&group.intakes[*place].origin, &intake.origin].contains(&&Origin::Relay)
            {
                telemetry::stage("commit_wait", since.elapsed());
                group.waiting[*place].push(waiter);
                continue;
            }
            let keys = exclusive_keys(&intake);
            let size = intake.bytes();
            let fits = group.intakes.is_empty() || bytes + size <= limits.group_bytes_max;
            if group.intakes.len() >= group_max
                || !fits
                || keys.iter().any(|key| taken.contains(key))
            {
                left.push_back(waiter.join(intake));
                continue;
            }
            telemetry::stage("commit_wait", since.elapsed());
            bytes += size;
            taken.extend(keys);
            places.insert(intake.digest, group.intakes.len());
            intake.park_if_locked = waiter.locked >= LOCKED_PAUSES_MS.len();
            group.intakes.push(intake);
            group.waiting.push(vec![waiter]);
        }
        self.held = left;
        group
    }

    /// One transaction for the group; whatever fails is run again, halved, or handed on, so that no
    /// notice fails its neighbours.
    async fn commit(&mut self, group: Group) {
        let mut todo = vec![group];
        while let Some(mut group) = todo.pop() {
            let (mut tries, mut was_lost) = (0, false);
            loop {
                let generation = self.context.repeats.generation();
                let error = match self.transact(&group.intakes).await {
                    Ok(verdicts) => {
                        self.settle(group, verdicts, generation, was_lost);
                        break;
                    }
                    Err(error) => error,
                };
                telemetry::store_error("commit", &error);
                if matches!(error, StoreError::Lost(_) | StoreError::Unavailable(_)) {
                    self.context.repeats.forget();
                    was_lost = true;
                }
                tries += 1;
                match error.advice() {
                    Advice::Again if tries < TRIES_MAX => {
                        tokio::time::sleep(Duration::from_millis(u64::from(tries) * 2)).await;
                        group.drop_abandoned();
                        if group.intakes.is_empty() {
                            break;
                        }
                    }
                    Advice::SlowLane if self.slow.is_some() => {
                        self.hand_to_slow_lane(group);
                        break;
                    }
                    Advice::SlowLane if !group.intakes.iter().all(|intake| intake.skip_refund) => {
                        for intake in &mut group.intakes {
                            intake.skip_refund = true;
                            intake.park_if_locked = true;
                        }
                    }
                    Advice::Again | Advice::Bisect if group.intakes.len() > 1 => {
                        let (left, right) = group.split();
                        todo.extend([right, left]);
                        break;
                    }
                    Advice::Again | Advice::Bisect
                        if is_its_own(&error) && group.intakes[0].fact().is_some() =>
                    {
                        // the database refuses this one: kept for a person, without its refund
                        let why = format!("{}{error}", reason::DATABASE);
                        group.intakes[0] = group.intakes[0].refused(why.into());
                    }
                    Advice::Again | Advice::SlowLane | Advice::Bisect | Advice::GiveUp => {
                        fail(group);
                        break;
                    }
                }
            }
        }
    }

    async fn transact(&self, intakes: &[Intake]) -> Result<Vec<Verdict>, StoreError> {
        let started = Instant::now();
        let context = &self.context;
        let verdicts = context
            .store
            .commit(intakes, context.clock.now(), context.limits.decide)
            .await?;
        telemetry::stage("commit", started.elapsed());
        #[allow(clippy::cast_precision_loss)]
        metrics::histogram!(names::GROUP_NOTICES).record(intakes.len() as f64);
        Ok(verdicts)
    }

    /// After the commit: remember, hand on, count, answer.
    ///
    /// Shapes: `was_lost`, whether an earlier try may have committed this group unseen, so that what
    /// looks stored before is of this very delivery.
    fn settle(&mut self, group: Group, verdicts: Vec<Verdict>, generation: u64, was_lost: bool) {
        for ((intake, waiters), verdict) in
            group.intakes.into_iter().zip(group.waiting).zip(verdicts)
        {
            if verdict.outcome == Outcome::Locked {
                self.try_later(intake, waiters);
                continue;
            }
            let state = verdict.state.as_str();
            // a parked fact that is parked again is no news
            if verdict.outcome != Outcome::Parked || intake.origin != Origin::Relay {
                metrics::counter!(names::NOTICES, "outcome" => verdict.outcome.as_str())
                    .increment(1);
                if matches!(verdict.outcome, Outcome::Parked | Outcome::Quarantined) {
                    metrics::counter!(names::UNFINISHED, "state" => state).increment(1);
                }
            }
            tracing::debug!(
                digest = ?intake.digest,
                notice_id = verdict.key.as_ref().map(|key| key.id),
                mchid = intake.mchid.as_str(),
                envelope_id = intake.envelope_id,
                out_refund_no = intake.fact().map(|fact| fact.out_refund_no.as_str()),
                outcome = verdict.outcome.as_str(),
                state,
                reason = verdict.reason.as_deref(),
                deliveries = waiters.len(),
                "notice decided"
            );
            if let (Some(fact), Some(key)) = (intake.fact(), &verdict.key) {
                // of a repeat that differs, the row holds other content
                if verdict.state.is_accepted() && verdict.outcome != Outcome::RepeatDiffers {
                    self.context.repeats.remember(
                        intake.digest,
                        fact.content(),
                        &intake.envelope_id,
                        key.clone(),
                        generation,
                    );
                }
                let moved = matches!(verdict.outcome, Outcome::Applied | Outcome::AlreadyApplied);
                if (moved || was_lost) && verdict.state == State::Pending {
                    let item = FlushItem {
                        since: Instant::now(),
                        key: key.clone(),
                        taken: false,
                        alone: false,
                    };
                    self.context
                        .flushers
                        .offer(fact.out_trade_no.as_str(), item);
                }
            }
            if verdict.alert {
                let why = verdict
                    .reason
                    .as_deref()
                    .unwrap_or("repeat differs from what is stored");
                telemetry::alert(why, verdict.key.as_ref());
            }
            self.count(&intake, &verdict, waiters.len());
            for waiter in waiters {
                if let Some(handler) = waiter.handler {
                    // a handler that gave up finds the notice stored at the next delivery
                    drop(handler.send(Some(verdict.clone())));
                }
            }
        }
    }

    /// Counts the deliveries that made no row of their own.
    fn count(&self, intake: &Intake, verdict: &Verdict, deliveries: usize) {
        let (Origin::Delivery(_), Some(key)) = (&intake.origin, &verdict.key) else {
            return;
        };
        let first_made_the_row = !verdict.is_stored_before;
        for _ in usize::from(first_made_the_row)..deliveries {
            metrics::counter!(names::REPEATS, "by" => "database").increment(1);
            self.context.repeats.count(key);
        }
    }

    /// The refund row is locked by somebody else: the fact goes back for a moment.
    fn try_later(&mut self, intake: Intake, waiters: Vec<Waiter>) {
        for waiter in waiters {
            let pause = LOCKED_PAUSES_MS.get(waiter.locked).copied().unwrap_or(0);
            let mut waiting = waiter.join(intake.clone());
            waiting.locked += 1;
            self.delayed
                .push((Instant::now() + Duration::from_millis(pause), waiting));
        }
    }

    fn hand_to_slow_lane(&self, group: Group) {
        let Some(slow) = &self.slow else {
            return fail(group);
        };
        for (intake, waiters) in group.intakes.into_iter().zip(group.waiting) {
            for waiter in waiters {
                if let Err(refused) = slow.try_send(waiter.join(intake.clone())) {
                    let (mpsc::error::TrySendError::Full(waiting)
                    | mpsc::error::TrySendError::Closed(waiting)) = refused;
                    answer_failure(waiting.handler);
                }
            }
        }
    }
}

impl Waiting {
    fn split(self) -> (Intake, Waiter) {
        let waiter = Waiter {
            handler: self.handler,
            locked: self.locked,
            since: self.since,
            bytes: self.bytes,
        };
        (self.intake, waiter)
    }
}

impl Waiter {
    fn join(self, intake: Intake) -> Waiting {
        Waiting {
            intake,
            handler: self.handler,
            locked: self.locked,
            since: self.since,
            bytes: self.bytes,
        }
    }
}

/// Whether a fault that outlasted its tries is the row's own rather than the moment's.
fn is_its_own(error: &StoreError) -> bool {
    match error {
        StoreError::Raced(_) | StoreError::Refused(_) => true,
        StoreError::Conflict(_)
        | StoreError::LockTimeout
        | StoreError::Lost(_)
        | StoreError::Unavailable(_) => false,
    }
}

/// What no second notice of a group may share: the refund, the digest, the unopened rows.
fn exclusive_keys(intake: &Intake) -> Vec<Vec<u8>> {
    let mut keys = vec![intake.digest.0.to_vec()];
    keys.extend(
        intake
            .unopened_as
            .iter()
            .map(|(_, digest)| digest.0.to_vec()),
    );
    if let Some(fact) = intake.fact() {
        keys.push(format!("{} {}", fact.mchid, fact.out_refund_no).into_bytes());
    }
    keys
}

/// Nothing was stored: the handlers answer so, and WeChat Pay sends again.
fn fail(group: Group) {
    for waiter in group.waiting.into_iter().flatten() {
        answer_failure(waiter.handler);
    }
}

fn answer_failure(handler: Option<oneshot::Sender<Option<Verdict>>>) {
    if let Some(handler) = handler {
        drop(handler.send(None));
    }
}

//! Judges a commit group: facts, refund rows and stored notices in; verdicts and writes out.
//!
//! The state machine of a notice lives here, once, for every store. A store reads the rows, calls
//! [`decide`] for each notice inside its transaction, and carries out the [`Decision`].

use super::fact::{Digest, Fact};
use super::notice::{Content, Intake, NoticeKey, Origin, Reason, State, reason};
use super::refund::{RefundStatus, Transition};
use super::types::{Mchid, UnixMs};

/// Shortest and longest pause before a parked fact is looked at again.
const PARKED_MS: (i64, i64) = (1_000, 3_600_000);
/// Longest pause where the refund is known and was only locked.
const LOCKED_MS_MAX: i64 = 30_000;

/// The shop's row of a refund, as read under its lock. Texts are the shop's own: nothing here may
/// trust them to be well formed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefundRow {
    /// Primary key.
    pub id: i64,
    /// Owner.
    pub mchid: String,
    /// The merchant's refund number.
    pub out_refund_no: String,
    /// The order it belongs to.
    pub out_trade_no: String,
    /// Filled by the shop or not.
    pub refund_id: Option<String>,
    /// Filled by the shop or not.
    pub transaction_id: Option<String>,
    /// Money of the refund.
    pub refund_fen: i64,
    /// Money of the order.
    pub total_fen: i64,
    /// Its currency.
    pub currency: String,
    /// One of the four, unless somebody wrote another.
    pub status: String,
}

/// What the look-up of the refund row gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// Locked by this transaction.
    Found(RefundRow),
    /// There, but locked by somebody else.
    Locked,
    /// Not there.
    Absent,
}

/// A stored notice, as far as deciding needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredNotice {
    /// Primary key.
    pub key: NoticeKey,
    /// Its digest.
    pub digest: Digest,
    /// Its state.
    pub state: State,
    /// Its reason.
    pub reason: Option<String>,
    /// Hash of the stored fields outside the digest; nothing where the row holds no fact.
    pub content: Option<Digest>,
    /// First arrival.
    pub received_at: UnixMs,
}

/// One notice of a group, with all that is known of it.
#[derive(Clone, Debug)]
pub struct Case<'a> {
    /// The row with this digest.
    pub stored: Option<&'a StoredNotice>,
    /// The rows where this envelope waits unopened.
    pub unopened: Vec<&'a StoredNotice>,
    /// The refund row; not looked at where nothing is to decide.
    pub refund: Lookup,
}

/// The numbers that deciding needs.
#[derive(Clone, Copy, Debug)]
pub struct DecideLimits {
    /// First due time of a pending fact after now, in ms: after that the relay takes it.
    pub grace_ms: i64,
    /// A parked fact older than this becomes an orphan.
    pub orphan_after_ms: i64,
}

/// What became of a notice in its group. All of these but `Locked` are durable once it commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The refund moved to the reported status.
    Applied,
    /// The refund stood there already, without this fact.
    AlreadyApplied,
    /// Stored to be looked at again.
    Parked,
    /// Stored; the refund is past it.
    Superseded,
    /// Stored for a person.
    Quarantined,
    /// Stored without effect.
    Ignored,
    /// Stored before; counted.
    Repeat,
    /// Stored before with other content; counted, kept raw.
    RepeatDiffers,
    /// The refund row is locked: no verdict yet, nothing written.
    Locked,
}

impl Outcome {
    /// The name in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Applied => "applied",
            Outcome::AlreadyApplied => "already_applied",
            Outcome::Parked => "parked",
            Outcome::Superseded => "superseded",
            Outcome::Quarantined => "quarantined",
            Outcome::Ignored => "ignored",
            Outcome::Repeat => "repeat",
            Outcome::RepeatDiffers => "repeat_differs",
            Outcome::Locked => "locked",
        }
    }
}

/// The compare-and-set of one refund row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cas {
    /// The refund row.
    pub refund_row_id: i64,
    /// Its owner.
    pub mchid: Mchid,
    /// Where it goes.
    pub to: RefundStatus,
    /// When it succeeded; absent leaves the column as it is.
    pub success_at: Option<UnixMs>,
}

/// What to write of the notice itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Nothing.
    None,
    /// A new row.
    Insert,
    /// New state, reason and due time of a stored row that stands at `from`.
    Change {
        /// The row.
        key: NoticeKey,
        /// The state it was read in.
        from: State,
    },
    /// As `Change`, and the row takes this notice's digest, owner and columns.
    TakeOver {
        /// The row.
        key: NoticeKey,
        /// The state it was read in.
        from: State,
        /// First arrival of what the row holds from now on.
        first_seen: UnixMs,
    },
}

/// What to do with one notice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What it became.
    pub outcome: Outcome,
    /// The state of its row afterwards.
    pub state: State,
    /// The reason of its row afterwards.
    pub reason: Option<Reason>,
    /// When the relay looks at it.
    pub due_at: Option<UnixMs>,
    /// The refund's move.
    pub cas: Option<Cas>,
    /// The notice's row.
    pub write: Write,
    /// Unopened rows that another row has overtaken.
    pub opened_elsewhere: Vec<NoticeKey>,
    /// Whether the delivery's raw form is kept.
    pub keep_raw: bool,
    /// Whether a person must hear of it now.
    pub alert: bool,
}

/// Judges one notice.
///
/// Shapes: `case.refund` counts only for a fact whose stored row, if any, is decided again.
/// Units: times in ms since the Unix epoch.   Errors: none; each contradiction is an outcome.
pub fn decide(intake: &Intake, case: &Case<'_>, now: UnixMs, limits: &DecideLimits) -> Decision {
    let mut decision = match &intake.content {
        Content::Fact(fact) => decide_fact(intake, fact, case, now, limits),
        Content::Ignored { reason, .. } => {
            let why = Some(Reason::Borrowed(reason));
            let ignored = Decision::of(Outcome::Ignored, State::Ignored, why);
            let opened = Decision {
                state: State::Superseded,
                reason: Some(reason::OPENED_NO_EFFECT.into()),
                ..ignored.clone()
            };
            place(ignored, opened, intake, case)
        }
        Content::Quarantined { reason, .. } => {
            let why = Some(reason.clone());
            let quarantined = Decision::of(Outcome::Quarantined, State::Quarantined, why);
            match case.stored {
                // what the database refused to decide goes to a person, whoever brought it
                Some(row)
                    if reason.starts_with(reason::DATABASE)
                        && row.state.is_decided_again()
                        && (row.state, row.reason.as_deref())
                            != (State::Quarantined, Some(reason.as_ref())) =>
                {
                    quarantined.change(row)
                }
                _ => place(quarantined.clone(), quarantined, intake, case),
            }
        }
        Content::Unopened => match case.stored {
            None => quarantined(reason::UNOPENED).insert(),
            Some(row) => repeat(row, false),
        },
    };
    if decision.outcome != Outcome::Locked {
        let taken = match &decision.write {
            Write::TakeOver { key, .. } => Some(key),
            Write::None | Write::Insert | Write::Change { .. } => None,
        };
        decision.opened_elsewhere = case
            .unopened
            .iter()
            .map(|row| row.key.clone())
            .filter(|key| Some(key) != taken && Some(key) != case.stored.map(|row| &row.key))
            .collect();
    }
    decision
}

/// Where a notice goes that no refund row has a say in: a new row, the row where its envelope waits
/// unopened (which then ends as `opened` says), or nowhere, because it is stored.
fn place(new: Decision, opened: Decision, intake: &Intake, case: &Case<'_>) -> Decision {
    match (case.stored, case.unopened.first()) {
        (None, None) => new.insert(),
        (None, Some(row)) => opened.take_over(row, intake.received_at),
        (Some(row), _) if is_unopened(row) => opened.take_over(row, intake.received_at),
        (Some(row), _) => repeat(row, false),
    }
}

/// Whether this row waits for its resource to be opened.
pub fn is_unopened(row: &StoredNotice) -> bool {
    row.state == State::Quarantined && row.reason.as_deref() == Some(reason::UNOPENED)
}

fn decide_fact(
    intake: &Intake,
    fact: &Fact,
    case: &Case<'_>,
    now: UnixMs,
    limits: &DecideLimits,
) -> Decision {
    let relayed = intake.origin == Origin::Relay;
    let differs = case
        .stored
        .is_some_and(|row| row.content != Some(fact.content()));
    if let Some(row) = case.stored
        && (!row.state.is_decided_again() || (relayed && row.state != State::Parked))
    {
        return repeat(row, differs);
    }
    let first_seen = case
        .stored
        .map_or(intake.received_at, |row| row.received_at);
    let judged = judge(intake, fact, &case.refund, first_seen, now, limits);
    if judged.outcome == Outcome::Locked {
        return judged;
    }
    let Some(row) = case.stored else {
        return match case.unopened.first() {
            Some(row) => judged.take_over(row, intake.received_at),
            None => judged.insert(),
        };
    };
    if judged.state.is_accepted() {
        // the fact wins: its row takes this content, whatever it was before
        return if differs {
            judged.take_over(row, row.received_at)
        } else {
            judged.change(row)
        };
    }
    if differs {
        let told = repeat(row, true);
        // a relayed row tells nothing new
        let alert = told.alert && !relayed;
        return Decision { alert, ..told };
    }
    if row.state == judged.state
        && row.reason == judged.reason.as_deref().map(str::to_owned)
        && !relayed
    {
        return repeat(row, false);
    }
    if row.state == State::Parked && judged.state == State::Parked && !relayed {
        // it has its time to be looked at already
        return repeat(row, false);
    }
    Decision {
        keep_raw: false,
        ..judged
    }
    .change(row)
}

/// What the refund row says to a fact that is not settled yet.
fn judge(
    intake: &Intake,
    fact: &Fact,
    refund: &Lookup,
    first_seen: UnixMs,
    now: UnixMs,
    limits: &DecideLimits,
) -> Decision {
    let age_ms = now.since_ms(first_seen);
    let parked = |why: &'static str, longest_ms: i64| Decision {
        due_at: Some(now.plus_ms(age_ms.clamp(PARKED_MS.0, longest_ms))),
        ..Decision::of(Outcome::Parked, State::Parked, Some(why.into()))
    };
    let row = match refund {
        Lookup::Found(row) => row,
        Lookup::Locked if intake.park_if_locked => {
            return parked(reason::REFUND_LOCKED, LOCKED_MS_MAX);
        }
        Lookup::Locked => return Decision::of(Outcome::Locked, State::Parked, None),
        Lookup::Absent if intake.origin == Origin::Relay && age_ms >= limits.orphan_after_ms => {
            return quarantined(reason::ORPHAN);
        }
        Lookup::Absent => return parked(reason::REFUND_ABSENT, PARKED_MS.1),
    };
    if let Some(why) = contradiction(fact, row) {
        return quarantined(why);
    }
    let Some(status) = RefundStatus::from_stored(&row.status) else {
        return quarantined(reason::ROW_STATUS);
    };
    let accepted = |outcome: Outcome| match fact.status {
        RefundStatus::Success => Decision {
            due_at: Some(now.plus_ms(limits.grace_ms)),
            ..Decision::of(outcome, State::Pending, None)
        },
        RefundStatus::Processing | RefundStatus::Abnormal | RefundStatus::Closed => {
            Decision::of(outcome, State::Done, None)
        }
    };
    match status.on_report(fact.status) {
        Transition::Move => Decision {
            cas: Some(Cas {
                refund_row_id: row.id,
                mchid: fact.mchid.clone(),
                to: fact.status,
                success_at: fact
                    .success_at_ms
                    .filter(|_| fact.status == RefundStatus::Success),
            }),
            ..accepted(Outcome::Applied)
        },
        Transition::Already => accepted(Outcome::AlreadyApplied),
        Transition::Superseded => Decision::of(
            Outcome::Superseded,
            State::Superseded,
            Some(reason::OVERTAKEN.into()),
        ),
        Transition::Contradiction if fact.status == RefundStatus::Success => {
            quarantined(reason::SUCCESS_AFTER_CLOSED)
        }
        Transition::Contradiction => quarantined(reason::CLOSED_AFTER_SUCCESS),
        // reading made this an ignored notice; a relayed row of that kind is left alone
        Transition::NoEffect => Decision::of(
            Outcome::Superseded,
            State::Superseded,
            Some(reason::STATUS_NO_EFFECT.into()),
        ),
    }
}

/// The first field in which a fact contradicts our row; where ours is empty, it agrees.
fn contradiction(fact: &Fact, row: &RefundRow) -> Option<&'static str> {
    let differs = |ours: &Option<String>, theirs: Option<&str>| match (ours, theirs) {
        (Some(ours), Some(theirs)) => ours != theirs,
        (None, _) | (_, None) => false,
    };
    if row.refund_fen != fact.refund_fen.0 {
        Some(reason::REFUND_FEN)
    } else if row.total_fen != fact.total_fen.0 {
        Some(reason::TOTAL_FEN)
    } else if row.currency != fact.currency.as_str() {
        Some(reason::CURRENCY)
    } else if row.out_trade_no != fact.out_trade_no.as_str() {
        Some(reason::OUT_TRADE_NO)
    } else if differs(
        &row.transaction_id,
        fact.transaction_id.as_ref().map(|id| id.as_str()),
    ) {
        Some(reason::TRANSACTION_ID)
    } else if differs(
        &row.refund_id,
        fact.refund_id.as_ref().map(|id| id.as_str()),
    ) {
        Some(reason::REFUND_ID)
    } else {
        None
    }
}

fn quarantined(why: &'static str) -> Decision {
    Decision::of(Outcome::Quarantined, State::Quarantined, Some(why.into()))
}

/// A fact that is stored already and stays as it is.
fn repeat(row: &StoredNotice, differs: bool) -> Decision {
    let outcome = if differs {
        Outcome::RepeatDiffers
    } else {
        Outcome::Repeat
    };
    Decision {
        keep_raw: differs,
        alert: differs,
        ..Decision::of(outcome, row.state, row.reason.clone().map(Reason::Owned))
    }
}

impl Decision {
    fn of(outcome: Outcome, state: State, reason: Option<Reason>) -> Decision {
        Decision {
            outcome,
            state,
            reason,
            due_at: None,
            cas: None,
            write: Write::None,
            opened_elsewhere: Vec::new(),
            keep_raw: false,
            alert: state == State::Quarantined && outcome == Outcome::Quarantined,
        }
    }

    fn insert(self) -> Decision {
        Decision {
            write: Write::Insert,
            keep_raw: true,
            ..self
        }
    }

    fn change(self, row: &StoredNotice) -> Decision {
        let (key, from) = (row.key.clone(), row.state);
        Decision {
            write: Write::Change { key, from },
            ..self
        }
    }

    fn take_over(self, row: &StoredNotice, first_seen: UnixMs) -> Decision {
        let (key, from) = (row.key.clone(), row.state);
        Decision {
            write: Write::TakeOver {
                key,
                from,
                first_seen,
            },
            keep_raw: true,
            ..self
        }
    }
}

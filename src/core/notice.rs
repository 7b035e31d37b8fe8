//! A notice: what one delivery asks to be stored, the states of its row, and the reasons for them.

use std::borrow::Cow;
use std::sync::Arc;

use super::fact::{Digest, Fact, Provider, Source, Subject};
use super::refund::RefundStatus;
use super::types::{
    Currency, Fen, Mchid, OutRefundNo, OutTradeNo, RefundId, TransactionId, UnixMs,
};

/// The state of a notice row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Committed, its follow-up work still to do: the outbox.
    Pending,
    /// Nothing left to do.
    Done,
    /// Its refund is not known here yet, or was locked; looked at again by itself.
    Parked,
    /// Contradicts our row, or cannot be read; needs a person or a resend that agrees.
    Quarantined,
    /// Overtaken by a later status, or by the same fact in another row.
    Superseded,
    /// Has no effect here.
    Ignored,
    /// Its follow-up work failed for good.
    Dead,
    /// Given up by a person.
    Discarded,
    /// None of ours: written by a newer version or by hand.
    Unknown,
}

impl State {
    /// As stored.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Pending => "pending",
            State::Done => "done",
            State::Parked => "parked",
            State::Quarantined => "quarantined",
            State::Superseded => "superseded",
            State::Ignored => "ignored",
            State::Dead => "dead",
            State::Discarded => "discarded",
            State::Unknown => "unknown",
        }
    }

    /// From the column; what is none of ours becomes [`State::Unknown`], which nothing touches.
    pub fn from_stored(text: &str) -> State {
        match text {
            "pending" => State::Pending,
            "done" => State::Done,
            "parked" => State::Parked,
            "quarantined" => State::Quarantined,
            "superseded" => State::Superseded,
            "ignored" => State::Ignored,
            "dead" => State::Dead,
            "discarded" => State::Discarded,
            _ => State::Unknown,
        }
    }

    /// Whether a delivery decides such a row again. The other states stay as they are.
    pub fn is_decided_again(self) -> bool {
        match self {
            State::Parked | State::Quarantined | State::Superseded => true,
            State::Pending
            | State::Done
            | State::Ignored
            | State::Dead
            | State::Discarded
            | State::Unknown => false,
        }
    }

    /// Whether the fact of such a row was accepted, so that a repeat of it has nothing to decide.
    pub fn is_accepted(self) -> bool {
        match self {
            State::Pending | State::Done | State::Dead => true,
            State::Parked
            | State::Quarantined
            | State::Superseded
            | State::Ignored
            | State::Discarded
            | State::Unknown => false,
        }
    }
}

/// Why a notice is where it is: a short stable phrase, or one with the database's own words.
pub type Reason = Cow<'static, str>;

/// The stable reasons, in one place.
pub mod reason {
    /// The resource opens with no key we hold.
    pub const UNOPENED: &str = "resource does not open";
    /// A fact whose unopened row another row overtook.
    pub const OPENED_ELSEWHERE: &str = "opened elsewhere";
    /// An unopened row whose resource opened to something without effect.
    pub const OPENED_NO_EFFECT: &str = "opened, no effect here";
    /// An event that nothing here acts on.
    pub const EVENT_NO_EFFECT: &str = "event has no effect here";
    /// A status that nothing here acts on.
    pub const STATUS_NO_EFFECT: &str = "status has no effect here";
    /// A status we do not know.
    pub const STATUS_UNKNOWN: &str = "refund_status is unknown";
    /// A member occurs twice, or the plaintext is no object we can read.
    pub const PLAINTEXT: &str = "plaintext is ambiguous";
    /// The plaintext names a merchant that this serial, key or route does not belong to.
    pub const MERCHANT: &str = "merchant does not belong to this key";
    /// Our refund row is not there yet.
    pub const REFUND_ABSENT: &str = "refund is not known here yet";
    /// Our refund row was locked by somebody else.
    pub const REFUND_LOCKED: &str = "refund row is locked";
    /// Parked for too long.
    pub const ORPHAN: &str = "orphan";
    /// Our row's status is none of the four.
    pub const ROW_STATUS: &str = "refund_order.status is unknown";
    /// Money contradicts our row.
    pub const REFUND_FEN: &str = "amount.refund differs from refund_order";
    /// Money contradicts our row.
    pub const TOTAL_FEN: &str = "amount.total differs from refund_order";
    /// Money contradicts our row.
    pub const CURRENCY: &str = "currency differs from refund_order";
    /// An identifier contradicts our row.
    pub const OUT_TRADE_NO: &str = "out_trade_no differs from refund_order";
    /// An identifier contradicts our row.
    pub const TRANSACTION_ID: &str = "transaction_id differs from refund_order";
    /// An identifier contradicts our row.
    pub const REFUND_ID: &str = "refund_id differs from refund_order";
    /// ABNORMAL after a final state.
    pub const OVERTAKEN: &str = "refund is final already";
    /// SUCCESS after CLOSED.
    pub const SUCCESS_AFTER_CLOSED: &str = "SUCCESS after CLOSED";
    /// CLOSED after SUCCESS.
    pub const CLOSED_AFTER_SUCCESS: &str = "CLOSED after SUCCESS";
    /// The order is not there.
    pub const ORDER_ABSENT: &str = "order is not known here";
    /// The order is locked by somebody else.
    pub const ORDER_LOCKED: &str = "order row is locked";
    /// The refund would lift the order's refunded money over its total.
    pub const OVER_REFUND: &str = "refunds would exceed the order's total";
    /// The ledger holds this refund with other money.
    pub const LEDGER_DIFFERS: &str = "refund_ledger holds this refund with other money";
    /// The order is in another currency.
    pub const ORDER_CURRENCY: &str = "currency differs from orders";
    /// The order's numbers make no sense.
    pub const ORDER_AMOUNTS: &str = "amounts in orders make no sense";
    /// How a reason begins that carries the database's own words.
    pub const DATABASE: &str = "database: ";
    /// A pending row that lacks what its ledger row needs.
    pub const ROW_INCOMPLETE: &str = "notice row is incomplete";
}

/// The columns of a notice that come from the plaintext; what could not be read is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    /// The merchant's refund number.
    pub out_refund_no: Option<OutRefundNo>,
    /// The merchant's order number.
    pub out_trade_no: Option<OutTradeNo>,
    /// WeChat Pay's refund number.
    pub refund_id: Option<RefundId>,
    /// WeChat Pay's payment number.
    pub transaction_id: Option<TransactionId>,
    /// The reported status.
    pub status: Option<RefundStatus>,
    /// Money of the refund.
    pub refund_fen: Option<Fen>,
    /// Money that goes back in cash.
    pub payer_refund_fen: Option<Fen>,
    /// Money of the order.
    pub total_fen: Option<Fen>,
    /// Its currency.
    pub currency: Option<Currency>,
    /// When it succeeded.
    pub success_at_ms: Option<UnixMs>,
}

impl From<&Fact> for Fields {
    fn from(fact: &Fact) -> Fields {
        Fields {
            out_refund_no: Some(fact.out_refund_no.clone()),
            out_trade_no: Some(fact.out_trade_no.clone()),
            refund_id: fact.refund_id.clone(),
            transaction_id: fact.transaction_id.clone(),
            status: Some(fact.status),
            refund_fen: Some(fact.refund_fen),
            payer_refund_fen: fact.payer_refund_fen,
            total_fen: Some(fact.total_fen),
            currency: Some(fact.currency.clone()),
            success_at_ms: fact.success_at_ms,
        }
    }
}

impl Fields {
    /// The fact that these columns hold for `mchid`, where all that a fact needs is there.
    pub fn to_fact(&self, mchid: &Mchid) -> Option<Fact> {
        Some(Fact {
            provider: Provider::Wechat,
            subject: Subject::Refund,
            mchid: mchid.clone(),
            out_refund_no: self.out_refund_no.clone()?,
            out_trade_no: self.out_trade_no.clone()?,
            refund_id: self.refund_id.clone(),
            transaction_id: self.transaction_id.clone(),
            status: self.status?,
            refund_fen: self.refund_fen?,
            payer_refund_fen: self.payer_refund_fen,
            total_fen: self.total_fen?,
            currency: self.currency.clone()?,
            success_at_ms: self.success_at_ms,
        })
    }
}

/// A notice row by its primary key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NoticeKey {
    /// Assigned by the database.
    pub id: i64,
    /// Owner of the notice.
    pub mchid: Mchid,
}

/// What a delivery turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A fact to decide by our refund row.
    Fact(Fact),
    /// Verified, but nothing here acts on it.
    Ignored {
        /// Which of the two it is.
        reason: &'static str,
        /// What could be read.
        fields: Fields,
    },
    /// A person must look; decided before any look-up.
    Quarantined {
        /// What is wrong.
        reason: Reason,
        /// What could be read.
        fields: Fields,
    },
    /// The resource opens with no key we hold: kept, and asked for again.
    Unopened,
}

/// The delivery as it came, for `notice_raw`.
#[derive(Clone, PartialEq, Eq)]
pub struct Raw {
    /// Header lines, `name: value`, as received.
    pub headers: Vec<u8>,
    /// The body's exact bytes.
    pub body: Vec<u8>,
}

/// Who brings a notice to the committer.
#[derive(Clone, PartialEq, Eq)]
pub enum Origin {
    /// A delivery, with what it looked like.
    Delivery(Arc<Raw>),
    /// The relay, which looks again at a stored row.
    Relay,
}

/// One notice on its way to a commit group.
#[derive(Clone)]
pub struct Intake {
    /// The notice's identity.
    pub digest: Digest,
    /// Owner of the row.
    pub mchid: Mchid,
    /// Digests under which this same envelope may wait unopened.
    pub unopened_as: Vec<(Mchid, Digest)>,
    /// The envelope's `id`.
    pub envelope_id: String,
    /// The way it came.
    pub source: Source,
    /// What it is.
    pub content: Content,
    /// Who brings it.
    pub origin: Origin,
    /// When it arrived.
    pub received_at: UnixMs,
    /// Whether the event type says other than the status, which alone decides.
    pub event_differs: bool,
    /// Whether a locked refund row parks the fact now, instead of asking for another try.
    pub park_if_locked: bool,
    /// Whether to leave the refund row alone and park the fact: its lock timed out twice.
    pub skip_refund: bool,
}

impl Intake {
    /// The columns to store.
    pub fn fields(&self) -> Fields {
        match &self.content {
            Content::Fact(fact) => Fields::from(fact),
            Content::Ignored { fields, .. } | Content::Quarantined { fields, .. } => fields.clone(),
            Content::Unopened => Fields::default(),
        }
    }

    /// The fact, where there is one to decide.
    pub fn fact(&self) -> Option<&Fact> {
        match &self.content {
            Content::Fact(fact) => Some(fact),
            Content::Ignored { .. } | Content::Quarantined { .. } | Content::Unopened => None,
        }
    }

    /// The raw delivery, where one came.
    pub fn raw(&self) -> Option<&Raw> {
        match &self.origin {
            Origin::Delivery(raw) => Some(raw),
            Origin::Relay => None,
        }
    }

    /// Bytes that this intake holds while it waits, about.
    pub fn bytes(&self) -> usize {
        512 + self
            .raw()
            .map_or(0, |raw| raw.body.len() + raw.headers.len())
    }

    /// The same notice, quarantined for a reason that only the database knew.
    pub fn refused(&self, reason: Reason) -> Intake {
        let mut refused = self.clone();
        refused.content = Content::Quarantined {
            reason,
            fields: self.fields(),
        };
        refused
    }
}

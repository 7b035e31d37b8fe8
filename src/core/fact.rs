//! What a notice reports, once it is proven and parsed; and the digest that names it.
//!
//! Provider and subject are fields of a fact: a subject brings its own status words, transition
//! table and follow-up work, and the flows carry a fact without asking which it is.

use aws_lc_rs::digest;

use super::refund::RefundStatus;
use super::types::{
    Currency, Fen, Mchid, OutRefundNo, OutTradeNo, RefundId, TransactionId, UnixMs,
};

/// Who reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// WeChat Pay.
    Wechat,
}

impl Provider {
    /// As stored and digested.
    pub fn as_str(self) -> &'static str {
        match self {
            Provider::Wechat => "wechat",
        }
    }
}

/// What the report is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A refund.
    Refund,
}

impl Subject {
    /// As stored and digested.
    pub fn as_str(self) -> &'static str {
        match self {
            Subject::Refund => "refund",
        }
    }
}

/// By which way a fact came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A signed APIv3 notice.
    NotifyV3,
}

impl Source {
    /// As stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Source::NotifyV3 => "notify_v3",
        }
    }
}

/// The identity of a notice: two deliveries with one digest are one fact.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// One reported fact about one refund.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Who reported.
    pub provider: Provider,
    /// About what.
    pub subject: Subject,
    /// Owner of the refund: `sub_mchid`, else `mchid`, else `sp_mchid`.
    pub mchid: Mchid,
    /// The merchant's refund number.
    pub out_refund_no: OutRefundNo,
    /// The merchant's order number.
    pub out_trade_no: OutTradeNo,
    /// WeChat Pay's refund number, where the notice names it.
    pub refund_id: Option<RefundId>,
    /// WeChat Pay's payment number, where the notice names it.
    pub transaction_id: Option<TransactionId>,
    /// The reported status.
    pub status: RefundStatus,
    /// Money of this refund.
    pub refund_fen: Fen,
    /// Money that goes back in cash, where the notice names it.
    pub payer_refund_fen: Option<Fen>,
    /// Money of the order.
    pub total_fen: Fen,
    /// `CNY` where the notice names none.
    pub currency: Currency,
    /// When WeChat Pay says it succeeded; absent stays absent.
    pub success_at_ms: Option<UnixMs>,
}

impl Fact {
    /// The digest, version 1: what makes two reports the same fact. Other identifiers, totals,
    /// payer amounts and times are not in it (they may differ between repeats, and are compared).
    pub fn digest(&self) -> Digest {
        digest_fields(&[
            self.provider.as_str(),
            self.subject.as_str(),
            self.mchid.as_str(),
            self.out_refund_no.as_str(),
            self.status.as_str(),
            &self.refund_fen.to_string(),
            self.currency.as_str(),
        ])
    }

    /// A hash of the stored fields outside the digest, so that a repeat with other content is
    /// told apart from a plain repeat.
    pub fn content(&self) -> Digest {
        let number = |value: Option<i64>| value.map_or(String::new(), |v| v.to_string());
        digest_fields(&[
            self.out_trade_no.as_str(),
            self.refund_id.as_ref().map_or("", RefundId::as_str),
            self.transaction_id
                .as_ref()
                .map_or("", TransactionId::as_str),
            &number(self.payer_refund_fen.map(|fen| fen.0)),
            &self.total_fen.to_string(),
            &number(self.success_at_ms.map(|at| at.0)),
        ])
    }
}

/// The digest of a notice whose fact cannot be read: provider, merchant, `envelope_id`.
pub fn envelope_digest(provider: Provider, mchid: &Mchid, envelope_id: &str) -> Digest {
    digest_fields(&[provider.as_str(), mchid.as_str(), envelope_id])
}

/// SHA-256 over each field as 4-byte big-endian length and bytes.
fn digest_fields(fields: &[&str]) -> Digest {
    let mut context = digest::Context::new(&digest::SHA256);
    for field in fields {
        // a body is at most some MiB, so a field's length always fits
        let length = u32::try_from(field.len()).unwrap_or(u32::MAX);
        context.update(&length.to_be_bytes());
        context.update(field.as_bytes());
    }
    let mut out = [0_u8; 32];
    out.copy_from_slice(context.finish().as_ref());
    Digest(out)
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A direct merchant's successful refund, for tests to vary.
    pub(crate) fn fact(out_refund_no: &str) -> Fact {
        Fact {
            provider: Provider::Wechat,
            subject: Subject::Refund,
            mchid: Mchid::parse("1900000001").unwrap(),
            out_refund_no: OutRefundNo::parse(out_refund_no).unwrap(),
            out_trade_no: OutTradeNo::parse("T1").unwrap(),
            refund_id: Some(RefundId::parse("5030000001").unwrap()),
            transaction_id: Some(TransactionId::parse("4200000001").unwrap()),
            status: RefundStatus::Success,
            refund_fen: Fen(100),
            payer_refund_fen: Some(Fen(100)),
            total_fen: Fen(300),
            currency: Currency::cny(),
            success_at_ms: Some(UnixMs(1_789_000_000_000)),
        }
    }

    /// Computed once from the rule by another SHA-256.
    #[test]
    fn digest_version_1_is_fixed() {
        assert_eq!(
            hex::encode(fact("R1").digest().0),
            "b8e76ac7f50c555ae96b99bf27402bf7eb26d2b5bed7efee82496cc18e9d38b8"
        );
    }

    #[test]
    fn what_the_digest_covers_and_what_it_does_not() {
        let base = fact("R1");
        let mut other = base.clone();
        other.refund_fen = Fen(101);
        assert_ne!(other.digest(), base.digest());
        let mut other = base.clone();
        other.status = RefundStatus::Closed;
        assert_ne!(other.digest(), base.digest());
        let mut other = base.clone();
        other.total_fen = Fen(301);
        other.refund_id = None;
        other.success_at_ms = None;
        assert_eq!(other.digest(), base.digest());
        assert_ne!(other.content(), base.content());
    }
}

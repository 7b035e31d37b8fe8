//! From a proven body to a notice: the envelope, its encrypted resource, the refund object in it.
//!
//! Called only after the signature fits. Unknown members are ignored everywhere; a member we act on
//! is either well formed or the notice is quarantined, never guessed.

use std::borrow::Cow;
use std::sync::Arc;

use aes_gcm::aead::{Aead, Payload};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::fact::{Digest, Fact, Provider, Source, envelope_digest};
use super::keyring::{KeyRing, Merchant, VerifyKey};
use super::notice::{Content, Fields, Intake, Origin, Raw, reason};
use super::refund::RefundStatus;
use super::types::{
    Currency, Fen, IdError, Mchid, OutRefundNo, OutTradeNo, RefundId, TransactionId, UnixMs,
};

const ALGORITHM: &str = "AEAD_AES_256_GCM";
const RESOURCE_TYPE: &str = "encrypt-resource";
/// Characters at most in an envelope's `id`; WeChat Pay says 36.
const ENVELOPE_ID_CHARS_MAX: usize = 128;

/// Why a well-signed body is no notice. Nothing of it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// Not one JSON object of the envelope's shape, in UTF-8.
    #[error("body is not an envelope in JSON")]
    Json,
    /// No `id`, or none that could be one.
    #[error("envelope has no usable id")]
    Id,
    /// No encrypted resource.
    #[error("envelope has no encrypted resource")]
    Resource,
    /// Another algorithm than `AEAD_AES_256_GCM`.
    #[error("resource.algorithm is unknown")]
    Algorithm,
    /// Not standard base64 with padding.
    #[error("resource.ciphertext is not base64")]
    Base64,
    /// Not 12 bytes.
    #[error("resource.nonce is not 12 bytes")]
    Nonce,
}

#[derive(Deserialize)]
struct WireEnvelope<'a> {
    #[serde(borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    event_type: Option<Cow<'a, str>>,
    #[serde(borrow)]
    resource_type: Option<Cow<'a, str>>,
    #[serde(borrow)]
    resource: Option<WireResource<'a>>,
}

#[derive(Deserialize)]
struct WireResource<'a> {
    #[serde(borrow)]
    algorithm: Option<Cow<'a, str>>,
    #[serde(borrow)]
    ciphertext: Option<Cow<'a, str>>,
    #[serde(borrow)]
    nonce: Option<Cow<'a, str>>,
    #[serde(borrow)]
    associated_data: Option<Cow<'a, str>>,
}

/// The refund object; every member raw, so that one garbled member is told from one absent.
#[derive(Default, Deserialize)]
struct WireRefund<'a> {
    #[serde(borrow)]
    mchid: Option<&'a RawValue>,
    #[serde(borrow)]
    sp_mchid: Option<&'a RawValue>,
    #[serde(borrow)]
    sub_mchid: Option<&'a RawValue>,
    #[serde(borrow)]
    out_trade_no: Option<&'a RawValue>,
    #[serde(borrow)]
    transaction_id: Option<&'a RawValue>,
    #[serde(borrow)]
    out_refund_no: Option<&'a RawValue>,
    #[serde(borrow)]
    refund_id: Option<&'a RawValue>,
    #[serde(borrow)]
    refund_status: Option<&'a RawValue>,
    #[serde(borrow)]
    success_time: Option<&'a RawValue>,
    #[serde(borrow)]
    amount: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct WireAmount<'a> {
    #[serde(borrow)]
    refund: Option<&'a RawValue>,
    #[serde(borrow)]
    total: Option<&'a RawValue>,
    #[serde(borrow)]
    payer_refund: Option<&'a RawValue>,
    #[serde(borrow)]
    currency: Option<&'a RawValue>,
}

/// The envelope, taken apart as far as it goes without a key.
#[derive(Debug)]
pub struct Envelope {
    id: String,
    event_type: String,
    ciphertext: Vec<u8>,
    nonce: [u8; 12],
    associated_data: Vec<u8>,
}

impl Envelope {
    /// Parses the body of a delivery whose signature fits.
    ///
    /// Errors: [`Unusable`], the first that fits.
    pub fn parse(body: &[u8]) -> Result<Envelope, Unusable> {
        // as a whole: the parser does not look at the bytes of members it skips
        let text = std::str::from_utf8(body).map_err(|_| Unusable::Json)?;
        let wire: WireEnvelope<'_> = serde_json::from_str(text).map_err(|_| Unusable::Json)?;
        let id = wire.id.ok_or(Unusable::Id)?;
        if id.is_empty()
            || id.chars().count() > ENVELOPE_ID_CHARS_MAX
            || id.chars().any(char::is_control)
        {
            return Err(Unusable::Id);
        }
        if wire.resource_type.is_some_and(|kind| kind != RESOURCE_TYPE) {
            return Err(Unusable::Resource);
        }
        let resource = wire.resource.ok_or(Unusable::Resource)?;
        if resource.algorithm.as_deref() != Some(ALGORITHM) {
            return Err(Unusable::Algorithm);
        }
        let ciphertext = resource.ciphertext.ok_or(Unusable::Resource)?;
        if ciphertext.is_empty() {
            return Err(Unusable::Resource);
        }
        let nonce = resource.nonce.ok_or(Unusable::Nonce)?;
        Ok(Envelope {
            id: id.into_owned(),
            event_type: wire.event_type.unwrap_or_default().into_owned(),
            ciphertext: STANDARD
                .decode(ciphertext.as_bytes())
                .map_err(|_| Unusable::Base64)?,
            nonce: nonce.as_bytes().try_into().map_err(|_| Unusable::Nonce)?,
            associated_data: resource
                .associated_data
                .unwrap_or_default()
                .into_owned()
                .into_bytes(),
        })
    }

    /// Opens the resource with the keys of the merchants that hold `key`, and reads what is in it.
    ///
    /// Shapes: `bound`, the merchant that the route names; `raw`, the delivery as it came.
    /// Errors: none; what does not open or cannot be read becomes a notice that says so.
    pub fn into_intake(
        self,
        ring: &KeyRing,
        key: &VerifyKey,
        bound: Option<&str>,
        raw: Arc<Raw>,
        received_at: UnixMs,
    ) -> Intake {
        let candidates = ring.merchants_of(key, bound);
        let first = candidates.first().copied().unwrap_or(ring.first_of(key));
        let opened = self.open(ring, &candidates);
        let reading = match &opened {
            Some((place, plaintext)) => {
                let holders: Vec<&Merchant> = candidates
                    .iter()
                    .filter(|m| m.holds(*place))
                    .copied()
                    .collect();
                Reading::of(plaintext, &self.event_type, &holders)
            }
            None => None,
        };
        let reading = reading.unwrap_or_else(|| Reading {
            content: Content::Unopened,
            mchid: first.mchid.clone(),
            digest: None,
            event_differs: false,
        });
        let by_envelope = |mchid: &Mchid| envelope_digest(Provider::Wechat, mchid, &self.id);
        let digest = reading
            .digest
            .unwrap_or_else(|| by_envelope(&reading.mchid));
        let mut unopened_as: Vec<(Mchid, Digest)> = Vec::new();
        if reading.content != Content::Unopened {
            for merchant in [first, ring.first_of(key)] {
                let place = (merchant.mchid.clone(), by_envelope(&merchant.mchid));
                if place.1 != digest && !unopened_as.contains(&place) {
                    unopened_as.push(place);
                }
            }
        }
        Intake {
            digest,
            mchid: reading.mchid,
            unopened_as,
            envelope_id: self.id,
            source: Source::NotifyV3,
            content: reading.content,
            origin: Origin::Delivery(raw),
            received_at,
            event_differs: reading.event_differs,
            park_if_locked: false,
            skip_refund: false,
        }
    }

    /// The plaintext, and the place of the APIv3 key that opened it.
    fn open(&self, ring: &KeyRing, candidates: &[&Merchant]) -> Option<(usize, Vec<u8>)> {
        ring.ciphers_of(candidates).find_map(|(place, cipher)| {
            let payload = Payload {
                msg: &self.ciphertext,
                aad: &self.associated_data,
            };
            let plaintext = cipher.decrypt((&self.nonce).into(), payload).ok()?;
            Some((place, plaintext))
        })
    }
}

/// What a plaintext turned out to be.
struct Reading {
    content: Content,
    mchid: Mchid,
    /// Absent where a digest field is: the envelope names the notice then.
    digest: Option<Digest>,
    event_differs: bool,
}

impl Reading {
    /// Reads a plaintext; nothing when it is no JSON object, which counts as not opened.
    ///
    /// Shapes: `holders`, the merchants of this serial and of the key that opened it.
    fn of(plaintext: &[u8], event_type: &str, holders: &[&Merchant]) -> Option<Reading> {
        let object: &RawValue = serde_json::from_slice(plaintext).ok()?;
        if !object.get().starts_with('{') {
            return None;
        }
        let opener = holders.first()?.mchid.clone();
        let without_fact = |content: Content| Reading {
            content,
            mchid: opener.clone(),
            digest: None,
            event_differs: false,
        };
        let quarantined = |reason: String, fields: Fields| {
            without_fact(Content::Quarantined {
                reason: reason.into(),
                fields,
            })
        };
        let Ok(wire) = serde_json::from_str::<WireRefund<'_>>(object.get()) else {
            // an object, but a member occurs twice
            return Some(quarantined(reason::PLAINTEXT.to_owned(), Fields::default()));
        };
        let Some(status) = wire.refund_status else {
            // an event of ours lacks what it must have; an event we do not know has no effect
            return Some(if event_status(event_type).is_some() {
                quarantined("refund_status is missing".to_owned(), Fields::default())
            } else {
                without_fact(Content::Ignored {
                    reason: reason::EVENT_NO_EFFECT,
                    fields: Fields::default(),
                })
            });
        };
        let status = serde_json::from_str::<Cow<'_, str>>(status.get())
            .ok()
            .and_then(|text| RefundStatus::from_wire(&text));
        let (fields, owner, named, fault) = read_fields(&wire, status);
        let fact = match (&fault, &owner) {
            (None, Some(owner)) => fields.to_fact(owner),
            _ => None,
        };
        let event_differs = status.is_some() && status != event_status(event_type);
        let mut reading = match (status, fact) {
            (Some(RefundStatus::Processing), fact) => Reading {
                digest: fact.as_ref().map(Fact::digest),
                mchid: fact.map_or(opener.clone(), |fact| fact.mchid),
                content: Content::Ignored {
                    reason: reason::STATUS_NO_EFFECT,
                    fields,
                },
                event_differs,
            },
            (None, _) => quarantined(reason::STATUS_UNKNOWN.to_owned(), fields),
            (Some(_), None) => quarantined(
                fault.unwrap_or_else(|| reason::PLAINTEXT.to_owned()),
                fields,
            ),
            (Some(_), Some(fact)) => Reading {
                digest: Some(fact.digest()),
                mchid: fact.mchid.clone(),
                content: if holders.iter().any(|m| named.contains(&m.mchid)) {
                    Content::Fact(fact)
                } else {
                    Content::Quarantined {
                        reason: reason::MERCHANT.into(),
                        fields,
                    }
                },
                event_differs,
            },
        };
        reading.event_differs = event_differs;
        Some(reading)
    }
}

/// The status that the event type names, `REFUND.<…>`.
fn event_status(event_type: &str) -> Option<RefundStatus> {
    event_type
        .strip_prefix("REFUND.")
        .and_then(RefundStatus::from_wire)
}

/// Reads each member that we act on: the columns, the owner, the merchants named, and the first
/// fault, which names the member and how it is wrong, never its value.
fn read_fields(
    wire: &WireRefund<'_>,
    status: Option<RefundStatus>,
) -> (Fields, Option<Mchid>, Vec<Mchid>, Option<String>) {
    let mut faults = Faults(None);
    let mchid = faults.id("mchid", wire.mchid, Mchid::parse);
    let sp_mchid = faults.id("sp_mchid", wire.sp_mchid, Mchid::parse);
    let sub_mchid = faults.id("sub_mchid", wire.sub_mchid, Mchid::parse);
    let out_refund_no = faults.id("out_refund_no", wire.out_refund_no, OutRefundNo::parse);
    let out_trade_no = faults.id("out_trade_no", wire.out_trade_no, OutTradeNo::parse);
    let amount = match wire.amount.map(|raw| serde_json::from_str(raw.get())) {
        Some(Ok(amount)) => amount,
        Some(Err(_)) => {
            faults.add("amount", "garbled");
            WireAmount::default()
        }
        None => WireAmount::default(),
    };
    let refund_fen = faults.fen("amount.refund", amount.refund, 1);
    let total_fen = faults.fen("amount.total", amount.total, 1);
    let fields = Fields {
        refund_id: faults.id("refund_id", wire.refund_id, RefundId::parse),
        transaction_id: faults.id("transaction_id", wire.transaction_id, TransactionId::parse),
        status,
        payer_refund_fen: faults.fen("amount.payer_refund", amount.payer_refund, 0),
        currency: match amount.currency {
            None => Some(Currency::cny()),
            some => faults.id("amount.currency", some, Currency::parse),
        },
        success_at_ms: faults.time("success_time", wire.success_time),
        out_refund_no,
        out_trade_no,
        refund_fen,
        total_fen,
    };
    let named: Vec<Mchid> = [&mchid, &sp_mchid].into_iter().flatten().cloned().collect();
    faults.need("mchid or sp_mchid", !named.is_empty());
    faults.need("out_refund_no", fields.out_refund_no.is_some());
    faults.need("out_trade_no", fields.out_trade_no.is_some());
    faults.need("amount.refund", fields.refund_fen.is_some());
    faults.need("amount.total", fields.total_fen.is_some());
    let owner = sub_mchid.or(mchid).or(sp_mchid);
    (fields, owner, named, faults.0)
}

/// The first fault met.
struct Faults(Option<String>);

impl Faults {
    fn add(&mut self, member: &str, how: &str) {
        if self.0.is_none() {
            self.0 = Some(format!("{member} is {how}"));
        }
    }

    fn need(&mut self, member: &str, there: bool) {
        if !there {
            self.add(member, "missing");
        }
    }

    fn id<T>(
        &mut self,
        member: &str,
        raw: Option<&RawValue>,
        parse: impl Fn(&str) -> Result<T, IdError>,
    ) -> Option<T> {
        let text = serde_json::from_str::<Cow<'_, str>>(raw?.get()).ok();
        let parsed = text.and_then(|text| parse(&text).ok());
        if parsed.is_none() {
            self.add(member, "garbled");
        }
        parsed
    }

    /// A whole number of fen as JSON writes it: no fraction, no exponent, no text.
    fn fen(&mut self, member: &str, raw: Option<&RawValue>, least: i64) -> Option<Fen> {
        let parsed = raw?.get().parse::<i64>().ok().filter(|fen| *fen >= least);
        if parsed.is_none() {
            self.add(member, "garbled");
        }
        parsed.map(Fen)
    }

    /// RFC 3339 with any offset; a fraction of a second below a millisecond is dropped.
    fn time(&mut self, member: &str, raw: Option<&RawValue>) -> Option<UnixMs> {
        let text = serde_json::from_str::<Cow<'_, str>>(raw?.get()).ok();
        let parsed = text.and_then(|text| text.parse::<jiff::Timestamp>().ok());
        if parsed.is_none() {
            self.add(member, "garbled");
        }
        parsed.map(|at| UnixMs(at.as_millisecond()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn fields(text: &str) -> (Fields, Option<Mchid>, Vec<Mchid>, Option<String>) {
        let wire: WireRefund<'_> = serde_json::from_str(text).unwrap();
        read_fields(&wire, Some(RefundStatus::Success))
    }

    #[test]
    fn the_first_fault_names_its_member() {
        let good = r#"{"mchid":"1900000001","out_refund_no":"R1","out_trade_no":"T1","amount":{"refund":100,"total":300}}"#;
        let check = |from: &str, to: &str, expected: Option<&str>| {
            assert_eq!(
                fields(&good.replace(from, to)).3.as_deref(),
                expected,
                "{to}"
            );
        };
        check("", "", None);
        check("\"R1\"", "17", Some("out_refund_no is garbled"));
        check("\"R1\"", "\"R 1\"", Some("out_refund_no is garbled"));
        check("\"R1\"", "null", Some("out_refund_no is missing"));
        check(
            "\"mchid\":\"1900000001\",",
            "",
            Some("mchid or sp_mchid is missing"),
        );
        check("100", "100.0", Some("amount.refund is garbled"));
        check("100", "1e2", Some("amount.refund is garbled"));
        check("100", "\"100\"", Some("amount.refund is garbled"));
        check("100", "0", Some("amount.refund is garbled"));
        check(
            "100",
            "9223372036854775808",
            Some("amount.refund is garbled"),
        );
        check("300", "300,\"currency\":null", None);
        check(
            "300",
            "300,\"currency\":\"\"",
            Some("amount.currency is garbled"),
        );
        check(
            "300",
            "300,\"payer_refund\":-1",
            Some("amount.payer_refund is garbled"),
        );
        check(
            "300}",
            "300},\"success_time\":\"\"",
            Some("success_time is garbled"),
        );
        check("300}", "300},\"success_time\":null", None);
    }

    #[test]
    fn the_owner_is_the_sub_merchant_where_there_is_one() {
        let text = r#"{"sp_mchid":"1900000001","sub_mchid":"1900000002"}"#;
        let (_, owner, named, _) = fields(text);
        assert_eq!(owner, Mchid::parse("1900000002").ok());
        assert_eq!(named, vec![Mchid::parse("1900000001").unwrap()]);
    }

    #[test]
    fn times_keep_their_moment_whatever_the_offset() {
        let time = |text: &str| {
            let object = format!("{{\"success_time\":{text}}}");
            fields(&object).0.success_at_ms.map(|at| at.0)
        };
        assert_eq!(
            time(r#""2026-09-10T08:26:40+08:00""#),
            Some(1_789_000_000_000)
        );
        assert_eq!(
            time(r#""2026-09-10T08:26:40.120+08:00""#),
            Some(1_789_000_000_120)
        );
        assert_eq!(time(r#""2026-09-10T00:26:40Z""#), Some(1_789_000_000_000));
        assert!(time(r#""2026-09-10T08:26:60+08:00""#).is_none_or(|at| at > 0));
        assert_eq!(time("1789000000"), None);
        assert_eq!(time(r#""yesterday""#), None);
    }
}

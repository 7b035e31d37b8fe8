//! The `Wechatpay-*` headers and the raw body: who sent this, and when.
//!
//! The signature covers the exact bytes received, so nothing here looks into the body. Cheap checks
//! come first; a refusal costs no RSA and touches nothing else.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::keyring::{KeyRing, VerifyKey};
use super::types::UnixMs;

/// How far a delivery's timestamp may lie from now, either way.
pub const WINDOW_MS: i64 = 300_000;
/// The one signature type we verify; an absent header means it.
const RSA: &str = "WECHATPAY2-SHA256-RSA2048";
/// How WeChat Pay marks a signature that is wrong on purpose.
const PROBE: &[u8] = b"WECHATPAY/SIGNTEST/";
/// Bytes at most in the nonce and serial headers; real ones have 32 and 40.
const HEADER_BYTES_MAX: usize = 256;

/// Why a delivery is not believed. Nothing of it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// One of the four headers is absent or empty.
    #[error("header {0} is missing")]
    HeaderMissing(&'static str),
    /// A signature header stands there twice.
    #[error("header {0} occurs twice")]
    HeaderDoubled(&'static str),
    /// A signature header that cannot be one.
    #[error("header {0} is malformed")]
    HeaderMalformed(&'static str),
    /// Signed with something other than RSA.
    #[error("signature type is not supported")]
    SignatureType,
    /// More than five minutes off.
    #[error("timestamp is more than five minutes off")]
    Timestamp,
    /// A deliberately wrong signature, by which WeChat Pay tests us.
    #[error("signature is wrong")]
    Probe,
    /// No key of ours has this serial.
    #[error("serial is unknown")]
    SerialUnknown,
    /// The certificate with this serial has ended.
    #[error("certificate with this serial has expired")]
    SerialExpired,
    /// The serial is another merchant's than the route's.
    #[error("serial belongs to another merchant")]
    SerialOfOther,
    /// The signature does not fit.
    #[error("signature is wrong")]
    Signature,
}

impl Refusal {
    /// Every kind, for metrics.
    pub fn kind(self) -> &'static str {
        match self {
            Refusal::HeaderMissing(_) => "header_missing",
            Refusal::HeaderDoubled(_) => "header_doubled",
            Refusal::HeaderMalformed(_) => "header_malformed",
            Refusal::SignatureType => "signature_type",
            Refusal::Timestamp => "timestamp",
            Refusal::Probe => "probe",
            Refusal::SerialUnknown => "serial_unknown",
            Refusal::SerialExpired => "serial_expired",
            Refusal::SerialOfOther => "serial_of_other",
            Refusal::Signature => "signature",
        }
    }
}

/// The signature headers of one delivery, each there once.
#[derive(Debug, PartialEq, Eq)]
pub struct SignedHeaders<'a> {
    timestamp: &'a [u8],
    signed_at: UnixMs,
    nonce: &'a [u8],
    serial: &'a str,
    signature: &'a [u8],
}

impl<'a> SignedHeaders<'a> {
    /// Picks the signature headers out of all headers; names count in any case.
    ///
    /// Errors: [`Refusal`] for what is missing, empty, doubled, malformed or of another type.
    pub fn parse(
        headers: impl Iterator<Item = (&'a str, &'a [u8])>,
    ) -> Result<SignedHeaders<'a>, Refusal> {
        const NAMES: [&str; 5] = [
            "Wechatpay-Timestamp",
            "Wechatpay-Nonce",
            "Wechatpay-Serial",
            "Wechatpay-Signature",
            "Wechatpay-Signature-Type",
        ];
        let mut found: [Option<&[u8]>; 5] = [None; 5];
        for (name, value) in headers {
            if let Some(at) = NAMES.iter().position(|n| n.eq_ignore_ascii_case(name))
                && found[at].replace(value).is_some()
            {
                return Err(Refusal::HeaderDoubled(NAMES[at]));
            }
        }
        let needed = |at: usize| match found[at] {
            None | Some([]) => Err(Refusal::HeaderMissing(NAMES[at])),
            Some(value) => Ok(value),
        };
        let (timestamp, nonce, serial, signature) =
            (needed(0)?, needed(1)?, needed(2)?, needed(3)?);
        if found[4].is_some_and(|value| value != RSA.as_bytes()) {
            return Err(Refusal::SignatureType);
        }
        let malformed = |at: usize| Refusal::HeaderMalformed(NAMES[at]);
        if timestamp.len() > 12 || !timestamp.iter().all(u8::is_ascii_digit) {
            return Err(malformed(0));
        }
        // twelve digits always fit
        let seconds = timestamp
            .iter()
            .fold(0_i64, |sum, digit| sum * 10 + i64::from(digit - b'0'));
        if nonce.len() > HEADER_BYTES_MAX {
            return Err(malformed(1));
        }
        let serial = std::str::from_utf8(serial).map_err(|_| malformed(2))?;
        if serial.len() > HEADER_BYTES_MAX {
            return Err(malformed(2));
        }
        Ok(SignedHeaders {
            timestamp,
            signed_at: UnixMs(seconds * 1000),
            nonce,
            serial,
            signature,
        })
    }

    /// When this delivery was signed, in whole seconds.
    pub fn signed_at(&self) -> UnixMs {
        self.signed_at
    }

    /// Whether the signature is WeChat Pay's over `body`, now; and by which key.
    ///
    /// Shapes: `body`, the exact bytes received; `bound`, the merchant that the route names.
    /// Errors: [`Refusal`].   Source: WeChat Pay, signature of notices (APIv3).
    pub fn verify<'k>(
        &self,
        body: &[u8],
        now: UnixMs,
        ring: &'k KeyRing,
        bound: Option<&str>,
    ) -> Result<&'k VerifyKey, Refusal> {
        if self.signature.starts_with(PROBE) {
            return Err(Refusal::Probe);
        }
        if (now.0 - self.signed_at.0).abs() > WINDOW_MS {
            return Err(Refusal::Timestamp);
        }
        let key = ring.by_serial(self.serial).ok_or(Refusal::SerialUnknown)?;
        if key.not_after.is_some_and(|end| now > end) {
            return Err(Refusal::SerialExpired);
        }
        if ring.merchants_of(key, bound).is_empty() {
            return Err(Refusal::SerialOfOther);
        }
        let signature = STANDARD
            .decode(self.signature)
            .map_err(|_| Refusal::Signature)?;
        if key.verifies(&self.message(body), &signature) {
            Ok(key)
        } else {
            Err(Refusal::Signature)
        }
    }

    /// The signed text: timestamp, nonce and body as received, each followed by one newline.
    fn message(&self, body: &[u8]) -> Vec<u8> {
        let parts = [self.timestamp, self.nonce, body];
        let mut message = Vec::with_capacity(parts.iter().map(|p| p.len() + 1).sum());
        for part in parts {
            message.extend_from_slice(part);
            message.push(b'\n');
        }
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: [(&str, &[u8]); 4] = [
        ("Wechatpay-Timestamp", b"1789000000"),
        ("WECHATPAY-NONCE", b"abc"),
        ("wechatpay-serial", b"S1"),
        ("Wechatpay-Signature", b"c2ln"),
    ];

    fn parse(headers: &[(&'static str, &'static [u8])]) -> Result<UnixMs, Refusal> {
        SignedHeaders::parse(headers.iter().copied()).map(|headers| headers.signed_at())
    }

    #[test]
    fn headers_are_there_once_each_and_well_formed() {
        assert_eq!(parse(&GOOD), Ok(UnixMs(1_789_000_000_000)));
        for (at, kind) in [
            (0, "Timestamp"),
            (1, "Nonce"),
            (2, "Serial"),
            (3, "Signature"),
        ] {
            let mut without = GOOD.to_vec();
            without.remove(at);
            let mut empty = GOOD.to_vec();
            empty[at].1 = b"";
            let mut doubled = GOOD.to_vec();
            doubled.push(GOOD[at]);
            for headers in [without, empty] {
                assert!(
                    matches!(parse(&headers), Err(Refusal::HeaderMissing(name)) if name.ends_with(kind))
                );
            }
            assert!(
                matches!(parse(&doubled), Err(Refusal::HeaderDoubled(name)) if name.ends_with(kind))
            );
        }
    }

    #[test]
    fn a_timestamp_is_one_to_twelve_digits() {
        for text in [
            &b"abc"[..],
            b"-5",
            b"+1789000000",
            b"0x6aa1",
            b"1789000000123",
            b"123456789012345678901234567890",
        ] {
            let mut headers = GOOD.to_vec();
            headers[0].1 = text;
            assert_eq!(
                parse(&headers),
                Err(Refusal::HeaderMalformed("Wechatpay-Timestamp"))
            );
        }
    }

    #[test]
    fn only_rsa_is_a_signature_type() {
        let with = |value: &'static [u8]| {
            let mut headers = GOOD.to_vec();
            headers.push(("wechatpay-signature-type", value));
            parse(&headers)
        };
        assert!(with(b"WECHATPAY2-SHA256-RSA2048").is_ok());
        assert_eq!(
            with(b"WECHATPAY2-SM2-WITH-SM3"),
            Err(Refusal::SignatureType)
        );
        assert_eq!(with(b""), Err(Refusal::SignatureType));
    }
}

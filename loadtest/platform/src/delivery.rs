//! Deliveries: a body under its `Wechatpay-*` headers, genuine or not.
//!
//! A [`Delivery`] is one POST without its address. Genuine ones remember the key that signs them again; forgeries,
//! probes and tampered ones do not, because they are sent once. Sending is left to [`crate::sender`].

use std::sync::Arc;
use std::{fmt, panic, thread};

use hyper::body::Bytes;

use crate::keys::{Merchant, SigningKey};
use crate::seeded::Seeded;

/// What the signature of a probe starts with.
const PROBE_PREFIX: &str = "WECHATPAY/SIGNTEST/";
/// How much signature text follows the prefix in a logged probe. With the prefix that makes 355 characters, which is no
/// length base64 can have.
const PROBE_REST_LEN: usize = 336;
/// The length of every signature nonce seen.
const NONCE_LEN: usize = 32;

/// One POST: headers in sending order, and the exact bytes of the body.
#[derive(Clone)]
pub struct Delivery {
    /// Names and values; free to be changed before sending.
    pub headers: Vec<(String, String)>,
    /// The bytes the signature covers.
    pub body: Bytes,
    /// What signs a resend; none when it is sent once and meant to be refused.
    signed_again_by: Option<Arc<SigningKey>>,
}

impl Delivery {
    /// Whether the platform insists on an acknowledgement, and sends it again without one.
    pub fn is_resent(&self) -> bool {
        self.signed_again_by.is_some()
    }

    /// The same delivery, but sent once and meant to be refused. For well-signed messages that no receiver may accept.
    pub fn once(mut self) -> Self {
        self.signed_again_by = None;
        self
    }

    /// The body under a new signature of the same key; none when it is sent once. Changes to the headers are lost.
    ///
    /// Units: Unix seconds.
    pub fn signed_again(&self, timestamp_unix: i64, nonce: &str) -> Option<Self> {
        let key = self.signed_again_by.as_ref()?;
        Some(signed(key, self.body.clone(), timestamp_unix, nonce))
    }

    /// The same delivery with its body changed after signing, sent once.
    ///
    /// The first digit becomes another one, which in a notice belongs to the envelope's `id`: the body is still good
    /// JSON and still decrypts, so only the signature can tell. A body without digits gets one more byte.
    pub fn tampered(self) -> Self {
        let mut body = self.body.to_vec();
        match body.iter_mut().find(|byte| byte.is_ascii_digit()) {
            Some(digit) => *digit = b'0' + (*digit - b'0' + 1) % 10,
            None => body.push(b' '),
        }
        Self {
            body: body.into(),
            ..self
        }
        .once()
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("headers", &self.headers)
            .field("body", &self.body)
            .field("is_resent", &self.is_resent())
            .finish()
    }
}

impl Merchant {
    /// Signs `body` with this merchant's key.
    ///
    /// Shapes: `nonce`, 32 letters and digits in live messages, not checked.   Units: Unix seconds.
    pub fn sign(&self, body: impl Into<Bytes>, timestamp_unix: i64, nonce: &str) -> Delivery {
        signed(&self.key, body.into(), timestamp_unix, nonce)
    }

    /// Signs `body` with a key that is not ours, but names our serial.
    pub fn forged(
        &self,
        impostor: &SigningKey,
        body: impl Into<Bytes>,
        timestamp_unix: i64,
        nonce: &str,
    ) -> Delivery {
        let body = body.into();
        let signature = impostor.sign(&signed_text(&body, timestamp_unix, nonce));
        assemble(self.key.serial(), signature, body, timestamp_unix, nonce)
    }

    /// Wraps a real notice in a deliberately wrong signature that is not even base64, as the platform does now and then
    /// to find merchants who do not verify.
    pub fn probe(&self, body: impl Into<Bytes>, timestamp_unix: i64, nonce: &str) -> Delivery {
        let body = body.into();
        let mut signature = self.key.sign(&signed_text(&body, timestamp_unix, nonce));
        signature.truncate(PROBE_REST_LEN);
        signature.insert_str(0, PROBE_PREFIX);
        assemble(self.key.serial(), signature, body, timestamp_unix, nonce)
    }
}

/// Signs many bodies, on all cores, in the order given. The nonces follow from `seed`, whatever the number of cores.
///
/// Units: Unix seconds. Receivers refuse signatures older than five minutes, so send the last one before that.
pub fn sign_all(
    merchant: &Merchant,
    bodies: Vec<Bytes>,
    timestamp_unix: i64,
    seed: u64,
) -> Vec<Delivery> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let share = bodies.len().div_ceil(cores).max(1);
    let sign_share = |(turn, part): (usize, &[Bytes])| -> Vec<Delivery> {
        part.iter()
            .zip(turn * share..)
            .map(|(body, index)| {
                let nonce = Seeded::stream(seed, index as u64).text(NONCE_LEN);
                merchant.sign(body.clone(), timestamp_unix, &nonce)
            })
            .collect()
    };
    thread::scope(|scope| {
        let workers: Vec<_> = bodies
            .chunks(share)
            .enumerate()
            .map(|part| scope.spawn(move || sign_share(part)))
            .collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap_or_else(|e| panic::resume_unwind(e)))
            .collect()
    })
}

/// A genuine delivery.
fn signed(key: &Arc<SigningKey>, body: Bytes, timestamp_unix: i64, nonce: &str) -> Delivery {
    let signature = key.sign(&signed_text(&body, timestamp_unix, nonce));
    Delivery {
        signed_again_by: Some(Arc::clone(key)),
        ..assemble(key.serial(), signature, body, timestamp_unix, nonce)
    }
}

/// What the signature covers: three lines, each ended by one line feed.
fn signed_text(body: &[u8], timestamp_unix: i64, nonce: &str) -> Vec<u8> {
    let mut text = format!("{timestamp_unix}\n{nonce}\n").into_bytes();
    text.extend_from_slice(body);
    text.push(b'\n');
    text
}

fn assemble(
    serial: &str,
    signature: String,
    body: Bytes,
    timestamp_unix: i64,
    nonce: &str,
) -> Delivery {
    let headers = [
        ("Content-Type", "application/json".to_owned()),
        ("User-Agent", "Mozilla/4.0".to_owned()),
        ("Accept", "*/*".to_owned()),
        ("Wechatpay-Nonce", nonce.to_owned()),
        ("Wechatpay-Serial", serial.to_owned()),
        ("Wechatpay-Signature", signature),
        (
            "Wechatpay-Signature-Type",
            "WECHATPAY2-SHA256-RSA2048".to_owned(),
        ),
        ("Wechatpay-Timestamp", timestamp_unix.to_string()),
    ];
    Delivery {
        headers: headers.map(|(name, value)| (name.to_owned(), value)).into(),
        body,
        signed_again_by: None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::*;
    use crate::vector::{self, BODY, NONCE, TIMESTAMP_UNIX, signing_key};

    fn merchant() -> Merchant {
        Merchant::new("1900000109", vector::API_V3_KEY, signing_key()).unwrap()
    }

    fn header<'a>(delivery: &'a Delivery, name: &str) -> &'a str {
        let mut values = delivery.headers.iter().filter(|(n, _)| n == name);
        let (_, value) = values.next().unwrap();
        assert!(values.next().is_none(), "{name} occurs twice");
        value
    }

    /// Whether the delivery verifies, from nothing but what is sent.
    fn verifies(delivery: &Delivery, public_key_pem: &str) -> bool {
        let mut text = Vec::new();
        for line in [
            header(delivery, "Wechatpay-Timestamp").as_bytes(),
            header(delivery, "Wechatpay-Nonce").as_bytes(),
            &delivery.body,
        ] {
            text.extend_from_slice(line);
            text.push(b'\n');
        }
        let signature = header(delivery, "Wechatpay-Signature");
        vector::verify(public_key_pem, &text, signature)
    }

    #[test]
    fn the_published_signature_covers_the_text_we_sign() {
        let text = signed_text(BODY.as_bytes(), TIMESTAMP_UNIX, NONCE);
        assert!(vector::verify(
            vector::PUBLIC_KEY_PEM,
            &text,
            vector::SIGNATURE
        ));
    }

    #[test]
    fn a_signed_delivery_verifies_and_an_empty_one_too() {
        let merchant = merchant();
        for body in [BODY, ""] {
            let delivery = merchant.sign(body, TIMESTAMP_UNIX, NONCE);
            assert!(verifies(&delivery, merchant.key.public_key_pem()));
            assert_eq!(header(&delivery, "Wechatpay-Serial"), merchant.key.serial());
            let again = delivery.signed_again(TIMESTAMP_UNIX + 15, "other").unwrap();
            assert!(verifies(&again, merchant.key.public_key_pem()));
            assert_eq!(header(&again, "Wechatpay-Timestamp"), "1789000013");
            assert!(again.is_resent() && !again.once().is_resent());
        }
    }

    #[test]
    fn a_forgery_names_our_serial_under_another_key() {
        let merchant = merchant();
        let impostor = SigningKey::public_key("PUB_KEY_ID_2").unwrap();
        let delivery = merchant.forged(&impostor, BODY, TIMESTAMP_UNIX, NONCE);
        assert_eq!(header(&delivery, "Wechatpay-Serial"), merchant.key.serial());
        assert!(!verifies(&delivery, merchant.key.public_key_pem()));
        assert!(verifies(&delivery, impostor.public_key_pem()));
        assert!(!delivery.is_resent());
    }

    #[test]
    fn a_probe_is_not_base64() {
        let delivery = merchant().probe(BODY, TIMESTAMP_UNIX, NONCE);
        let signature = header(&delivery, "Wechatpay-Signature");
        assert!(signature.starts_with(PROBE_PREFIX));
        assert_eq!(signature.len(), 355);
        assert!(STANDARD.decode(signature).is_err());
        assert!(!delivery.is_resent());
    }

    #[test]
    fn a_tampered_body_differs_in_one_digit() {
        let merchant = merchant();
        for (body, changed) in [
            ("{\"id\":\"a9-9\"}", "{\"id\":\"a0-9\"}"),
            ("a41", "a51"),
            ("", " "),
        ] {
            let delivery = merchant.sign(body, TIMESTAMP_UNIX, NONCE).tampered();
            assert_eq!(delivery.body, changed);
            assert!(!verifies(&delivery, merchant.key.public_key_pem()));
            assert!(!delivery.is_resent());
        }
    }

    #[test]
    fn signing_in_bulk_keeps_the_order_and_the_nonces() {
        let merchant = merchant();
        let bodies: Vec<Bytes> = (0..7).map(|n| Bytes::from(format!("body {n}"))).collect();
        let deliveries = sign_all(&merchant, bodies.clone(), TIMESTAMP_UNIX, 5);
        assert_eq!(deliveries.len(), bodies.len());
        for (index, delivery) in deliveries.iter().enumerate() {
            assert_eq!(delivery.body, bodies[index]);
            assert!(verifies(delivery, merchant.key.public_key_pem()));
            let nonce = Seeded::stream(5, index as u64).text(32);
            assert_eq!(header(delivery, "Wechatpay-Nonce"), nonce);
        }
        assert!(sign_all(&merchant, Vec::new(), TIMESTAMP_UNIX, 5).is_empty());
    }
}

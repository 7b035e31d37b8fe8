//! Whatever bytes come, the pure code gives a verdict.

use std::path::Path;
use std::sync::LazyLock;

use platform::encrypt;
use proptest::prelude::*;
use refund_batcher::config::Settings;
use refund_batcher::core::envelope::{self, Unusable};
use refund_batcher::core::keyring::KeyRing;
use refund_batcher::core::notice::{Content, Intake, Raw};
use refund_batcher::core::signature::SignedHeaders;
use refund_batcher::core::types::UnixMs;

use super::*;
use crate::support::{API_V3_KEY, SERIAL};

/// The ring of the one merchant, read from its configuration.
static RING: LazyLock<KeyRing> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let text = support::configuration(folder.path(), "sqlite://never-opened.db", "");
    read(&text, folder.path())
});

fn read(text: &str, folder: &Path) -> KeyRing {
    let settings = Settings::from_text(text, folder, std::iter::empty(), UnixMs(0));
    settings.ok().unwrap().ring
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        // a failure prints its case; no file is written beside the sources
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// One change of a text: some bytes at a place taken away and others put there.
fn edits() -> impl Strategy<Value = Vec<(prop::sample::Index, usize, Vec<u8>)>> {
    let token = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..4),
        prop::sample::select(vec![
            "\"",
            "{",
            "}",
            "[",
            "]",
            ",",
            ":",
            "null",
            "1e999",
            "-",
            "0",
            "9223372036854775808",
            "\\u0000",
            "\\ud800",
            "\"amount\":",
            "\"refund_status\":",
            "true",
            "\u{FEFF}",
            "退",
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
    ];
    prop::collection::vec((any::<prop::sample::Index>(), 0..6_usize, token), 0..5)
}

fn edited(text: &[u8], edits: &[(prop::sample::Index, usize, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = text.to_vec();
    for (place, taken, put) in edits {
        let from = place.index(bytes.len() + 1);
        let to = (from + taken).min(bytes.len());
        bytes.splice(from..to, put.iter().copied());
    }
    bytes
}

/// A body whose resource opens to these bytes.
fn body(event_type: &str, plaintext: &[u8]) -> Vec<u8> {
    let key: &[u8; 32] = API_V3_KEY.as_bytes().try_into().unwrap();
    let ciphertext = encrypt(key, b"0123456789ab", b"refund", plaintext);
    let body = serde_json::json!({
        "id": "n-1",
        "event_type": event_type,
        "resource_type": "encrypt-resource",
        "resource": {
            "algorithm": "AEAD_AES_256_GCM",
            "nonce": "0123456789ab",
            "associated_data": "refund",
            "ciphertext": ciphertext,
        },
    });
    body.to_string().into_bytes()
}

fn take(body: &[u8]) -> Result<Intake, Unusable> {
    let envelope = envelope::Envelope::parse(body)?;
    let key = RING.by_serial(SERIAL).unwrap();
    let raw = Arc::new(Raw {
        headers: Vec::new(),
        body: body.to_vec(),
    });
    Ok(envelope.into_intake(&RING, key, None, raw, UnixMs(NOW * 1000)))
}

/// What a plaintext turns into; the same each time.
fn opened(event_type: &str, plaintext: &[u8]) -> Intake {
    let body = body(event_type, plaintext);
    let intake = take(&body).expect("an envelope");
    let again = take(&body).expect("an envelope");
    assert_eq!(intake.digest, again.digest);
    assert_eq!(intake.content, again.content);
    intake
}

#[test]
fn the_unchanged_texts_are_a_fact() {
    // Aim: the properties below start from what is accepted, not from what is refused anyway.
    // Method: the same functions without any edit.
    let text = refund("R1", "SUCCESS").plaintext();
    let intake = opened("REFUND.SUCCESS", text.as_bytes());
    assert!(
        matches!(intake.content, Content::Fact(_)),
        "{:?}",
        intake.content
    );
    let good = genuine("R1");
    let headers = good.headers.iter();
    let headers = SignedHeaders::parse(headers.map(|(n, v)| (n.as_str(), v.as_bytes())));
    let verified = headers
        .unwrap()
        .verify(&good.body, UnixMs(NOW * 1000), &RING, None);
    assert!(verified.is_ok());
}

proptest! {
    #![proptest_config(config(2000))]

    #[test]
    fn any_headers_have_a_verdict(
        edits in prop::collection::vec(edits(), 5),
        order in Just((0..5_usize).collect::<Vec<_>>()).prop_shuffle(),
        left_out in 0..8_usize,
        now in any::<i64>(),
    ) {
        // Aim: no header text panics, and no changed one is believed. Method: a genuine delivery's
        // headers, edited, shuffled, left out, at any time of day.
        static GOOD: LazyLock<Delivery> = LazyLock::new(|| genuine("R1"));
        let signed: Vec<&(String, String)> =
            GOOD.headers.iter().filter(|(name, _)| name.starts_with("Wechatpay-")).collect();
        prop_assert_eq!(signed.len(), 5);
        let values: Vec<Vec<u8>> =
            signed.iter().zip(&edits).map(|((_, value), edits)| edited(value.as_bytes(), edits)).collect();
        let lines = order.iter().filter(|at| **at != left_out).map(|at| (signed[*at].0.as_str(), &*values[*at]));
        let near = UnixMs(NOW * 1000 + now % 300_000);
        if let Ok(headers) = SignedHeaders::parse(lines) {
            let believed = headers.verify(&GOOD.body, near, &RING, None).is_ok();
            let same = |at: usize| signed[at].1.as_bytes() == values[at];
            // the order in which the headers of a delivery stand
            let unchanged = (0..5).all(|at| same(at) || signed[at].0 == "Wechatpay-Signature-Type");
            prop_assert!(!believed || unchanged);
        }
    }

    #[test]
    fn any_body_has_a_verdict(bytes in prop::collection::vec(any::<u8>(), 0..300), edits in edits()) {
        // Aim: no body panics. Method: random bytes, and an envelope edited.
        static GOOD: LazyLock<Vec<u8>> =
            LazyLock::new(|| body("REFUND.SUCCESS", refund("R1", "SUCCESS").plaintext().as_bytes()));
        prop_assert!(take(&bytes).is_err());
        if let Ok(intake) = take(&edited(&GOOD, &edits)) {
            prop_assert!(!intake.envelope_id.is_empty());
        }
    }

    #[test]
    fn any_plaintext_has_a_verdict(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        edits in edits(),
        event in prop::sample::select(vec!["REFUND.SUCCESS", "REFUND.", "TRANSACTION.SUCCESS", ""]),
    ) {
        // Aim: no plaintext panics, and none but a whole one is a fact. Method: properly encrypted
        // random bytes, and a refund edited.
        prop_assert_eq!(opened(event, &bytes).content, Content::Unopened);
        let text = edited(refund("R1", "SUCCESS").plaintext().as_bytes(), &edits);
        let intake = opened(event, &text);
        match &intake.content {
            Content::Fact(fact) => {
                prop_assert!(fact.refund_fen.0 > 0 && fact.total_fen.0 > 0);
                prop_assert_eq!(intake.digest, fact.digest());
            }
            Content::Unopened => {
                let object = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(&text);
                prop_assert!(object.is_err());
            }
            Content::Ignored { .. } | Content::Quarantined { .. } => {}
        }
    }
}

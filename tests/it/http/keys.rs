//! Keys side by side, keys that expire, and key files that are wrong.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use refund_batcher::config::Settings;
use refund_batcher::core::types::UnixMs;

use super::*;
use crate::support::{API_V3_KEY, SERIAL};

const DAY: i64 = 86_400;

/// What a configuration comes to: its warnings, or its faults.
fn settings(folder: &Path, text: &str) -> Result<Vec<String>, Vec<String>> {
    match Settings::from_text(text, folder, std::iter::empty(), UnixMs(NOW * 1000)) {
        Ok(settings) => Ok(settings.warnings),
        Err(error) => Err(error.0.iter().map(ToString::to_string).collect()),
    }
}

/// One merchant with these verify keys, written as `serial`, then file name.
fn one_merchant(keys: &[(Option<&str>, &str)], more: &str) -> String {
    let mut text =
        format!("[[merchants]]\nmchid = '{MCHID}'\napi_v3_key_files = ['merchant.apiv3']\n{more}");
    for (serial, file) in keys {
        text += &format!("[[merchants.verify_keys]]\nfile = '{file}'\n");
        if let Some(serial) = serial {
            text += &format!("serial = '{serial}'\n");
        }
    }
    text
}

fn write(folder: &Path, files: &[(&str, &str)]) {
    for (name, text) in files {
        std::fs::write(folder.join(name), text).unwrap();
    }
}

#[tokio::test]
async fn a_public_key_and_a_certificate_stand_side_by_side() {
    // Aim (A05): both kinds are held at once and the serial alone chooses. Method: one merchant with
    // both; notices under either serial in turn; then each serial over the other's signature.
    let certified = SigningKey::certificate(NOW - DAY, NOW + DAY).unwrap();
    let more = "[[merchants.verify_keys]]\nfile = 'certificate.pem'\n";
    let files = [("certificate.pem", certified.certificate_pem().unwrap())];
    let site = Site::with("", more, &files).await;
    let by_certificate = merchant().with_key(certified);
    for (number, signer) in [
        ("R1", &merchant()),
        ("R2", &by_certificate),
        ("R3", &merchant()),
    ] {
        let delivery = signer.sign(genuine(number).body, NOW, "nonce");
        site.check(number, &delivery, 204, "").await;
    }
    assert_eq!(site.counts().await, "3 3 0");
    let body = genuine("R4").body;
    let swapped = [
        merchant().forged(&by_certificate.key, body.clone(), NOW, "nonce"),
        by_certificate.forged(&merchant().key, body, NOW, "nonce"),
    ];
    for delivery in swapped {
        site.check("swapped", &delivery, 401, "signature is wrong")
            .await;
    }
    assert_eq!(site.counts().await, "3 3 0");
    site.stop().await;
}

#[tokio::test]
async fn an_expired_certificate_is_a_warning_at_start_and_refused_at_run_time() {
    // Aim: a certificate's end hinders no start, and ends its notices to the millisecond. Method: a
    // certificate that ends now; the clock moved past it; the same as a configuration read later.
    let certified = SigningKey::certificate(NOW - DAY, NOW).unwrap();
    let pem = certified.certificate_pem().unwrap().to_owned();
    let more = "[[merchants.verify_keys]]\nfile = 'certificate.pem'\n";
    let site = Site::with("", more, &[("certificate.pem", &pem)]).await;
    let signer = merchant().with_key(certified);
    let in_time = signer.sign(genuine("R1").body, NOW, "nonce");
    site.check("in time", &in_time, 204, "").await;
    site.clock.advance(1);
    let late = signer.sign(genuine("R2").body, NOW, "nonce");
    let message = "certificate with this serial has expired";
    site.check("expired", &late, 401, message).await;
    site.check("the same again", &in_time, 401, message).await;
    site.check("by the other key", &genuine("R3"), 204, "")
        .await;
    assert_eq!(site.counts().await, "2 2 0");
    site.stop().await;

    let folder = tempfile::tempdir().unwrap();
    write(
        folder.path(),
        &[("certificate.pem", &pem), ("merchant.apiv3", API_V3_KEY)],
    );
    let text = one_merchant(&[(None, "certificate.pem")], "");
    assert_eq!(settings(folder.path(), &text), Ok(vec![]));
    let later = UnixMs(NOW * 1000 + 1);
    let later = Settings::from_text(&text, folder.path(), std::iter::empty(), later);
    let warnings = later.ok().unwrap().warnings;
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].contains("has expired"), "{warnings:?}");
}

#[test]
fn the_merchants_own_key_is_no_key_to_verify_with() {
    // Aim (A08): the usual mix-up is told at start, by the setting's name. Method: the merchant's own
    // certificate or public key among the verify keys, known by its serial or by its private key.
    let der = new_key();
    let own = SigningKey::certificate_from_pkcs8(&der, NOW - DAY, NOW + DAY).unwrap();
    let base64 = STANDARD.encode(&der);
    let private = format!("-----BEGIN PRIVATE KEY-----\n{base64}\n-----END PRIVATE KEY-----\n");
    let folder = tempfile::tempdir().unwrap();
    write(
        folder.path(),
        &[
            ("merchant.apiv3", API_V3_KEY),
            ("own-cert.pem", own.certificate_pem().unwrap()),
            ("own-public.pem", own.public_key_pem()),
            ("own-key.pem", &private),
            ("wechat.pem", merchant().key.public_key_pem()),
        ],
    );
    let fault = |at: usize| {
        format!(
            "merchants[0].verify_keys[{at}].file: is the merchant's own certificate or key; use WeChat \
             Pay's public key or platform certificate: notices are signed by WeChat Pay"
        )
    };
    let good = (Some(SERIAL), "wechat.pem");
    let by_serial = format!("merchant_serial = '{}'\n", own.serial());
    let by_lower = by_serial.to_ascii_lowercase();
    let by_key = "merchant_key_file = 'own-key.pem'\n";
    let check = |keys: &[(Option<&str>, &str)], more: &str, faults: &[String]| {
        let text = one_merchant(keys, more);
        let found = settings(folder.path(), &text).err().unwrap_or_default();
        assert_eq!(found, faults, "{text}");
    };
    check(&[(None, "own-cert.pem")], &by_serial, &[fault(0)]);
    check(&[(None, "own-cert.pem")], &by_lower, &[fault(0)]);
    check(&[(None, "own-cert.pem")], by_key, &[fault(0)]);
    check(&[good, (None, "own-cert.pem")], &by_serial, &[fault(1)]);
    check(&[good, (Some("P"), "own-public.pem")], by_key, &[fault(1)]);
    check(
        &[(Some(own.serial()), "wechat.pem")],
        &by_serial,
        &[fault(0)],
    );
    check(&[good], &by_serial, &[]);
    check(&[good], by_key, &[]);
    let key_instead = "merchants[0].merchant_key_file: own-cert.pem holds no RSA private key in PKCS#8; \
                       use apiclient_key.pem of the merchant";
    check(
        &[good],
        "merchant_key_file = 'own-cert.pem'\n",
        &[key_instead.to_owned()],
    );
    // a private key among the keys to verify with is no public key at all
    let text = one_merchant(&[(Some("P"), "own-key.pem")], "");
    let found = settings(folder.path(), &text).err().unwrap();
    assert!(
        found[0].starts_with("merchants[0].verify_keys[0]: own-key.pem: no PEM block"),
        "{found:?}"
    );
    assert!(
        !found.concat().contains(base64.split_at(20).0),
        "a key is never shown"
    );
}

#[test]
fn an_api_v3_key_has_32_bytes() {
    // Aim (A10): a key of any other length is told at start, and never shown. Method: key files of
    // several lengths; one line end behind the key is taken for the file's.
    let folder = tempfile::tempdir().unwrap();
    write(
        folder.path(),
        &[("wechat.pem", merchant().key.public_key_pem())],
    );
    let text = one_merchant(&[(Some(SERIAL), "wechat.pem")], "");
    let check = |content: &str, expected: Result<usize, usize>| {
        write(folder.path(), &[("merchant.apiv3", content)]);
        let found = settings(folder.path(), &text);
        match (&found, expected) {
            (Ok(warnings), Ok(count)) => {
                assert_eq!(warnings.len(), count, "{content:?}: {warnings:?}");
                assert!(warnings.iter().all(|w| w.contains("ends with a line end")));
            }
            (Err(faults), Err(bytes)) => {
                let fault = format!(
                    "merchants[0].api_v3_key_files: merchant.apiv3 holds {bytes} bytes; an APIv3 key has \
                     exactly 32 bytes: copy it again from the merchant platform"
                );
                assert_eq!(faults, &[fault], "{content:?}");
            }
            _ => panic!("{content:?}: {found:?}"),
        }
        let said = format!("{found:?}");
        assert!(
            content.len() < 20 || !said.contains(content.split_at(20).0),
            "{said}"
        );
    };
    check(API_V3_KEY, Ok(0));
    check(&format!("{API_V3_KEY}\n"), Ok(1));
    check(&format!("{API_V3_KEY}\r\n"), Ok(1));
    check("", Err(0));
    check("\n", Err(0));
    check(API_V3_KEY.split_at(31).0, Err(31));
    check(&format!("{API_V3_KEY}x"), Err(33));
    check(&format!("{API_V3_KEY} "), Err(33));
    check(&format!("{API_V3_KEY}\n\n"), Err(33));
    check(&format!("{}密", API_V3_KEY.split_at(31).0), Err(34));
    check(&format!("\u{FEFF}{API_V3_KEY}"), Err(35));
    std::fs::remove_file(folder.path().join("merchant.apiv3")).unwrap();
    let faults = settings(folder.path(), &text).err().unwrap();
    assert!(
        faults[0].starts_with("merchants[0].api_v3_key_files: "),
        "{faults:?}"
    );
}

#[test]
fn a_serial_names_one_key() {
    // Aim: no serial is ambiguous. Method: one serial with one key twice, with two keys, within a
    // merchant and across two; a certificate under a serial that is not its own.
    let folder = tempfile::tempdir().unwrap();
    let certified = SigningKey::certificate_from_pkcs8(&new_key(), NOW - DAY, NOW + DAY).unwrap();
    write(
        folder.path(),
        &[
            ("merchant.apiv3", API_V3_KEY),
            ("wechat.pem", merchant().key.public_key_pem()),
            ("other.pem", second().key.public_key_pem()),
            ("certificate.pem", certified.certificate_pem().unwrap()),
        ],
    );
    let twice = format!(
        "merchants: serial {SERIAL} stands under several merchants with different keys; give each merchant \
         one entry and each serial one key"
    );
    let check = |text: &str, fault: Option<&str>| {
        let found = settings(folder.path(), text).err().unwrap_or_default();
        assert_eq!(found, fault.into_iter().collect::<Vec<_>>(), "{text}");
    };
    let first = one_merchant(&[(Some(SERIAL), "wechat.pem")], "");
    let of = |mchid: &str| format!("mchid = '{mchid}'");
    let second_with = |file: &str| {
        first.clone() + &one_merchant(&[(Some(SERIAL), file)], "").replace(&of(MCHID), &of(SECOND))
    };
    check(&one_merchant(&[(Some(SERIAL), "wechat.pem"); 2], ""), None);
    check(&second_with("wechat.pem"), None);
    check(&second_with("other.pem"), Some(&twice));
    check(
        &(first.clone() + &first),
        Some(
            "merchants: merchant 1900000001 is configured twice; give each merchant one entry and each serial \
         one key",
        ),
    );
    check(
        &one_merchant(
            &[(Some(SERIAL), "wechat.pem"), (Some(SERIAL), "other.pem")],
            "",
        ),
        Some(&twice),
    );
    let differs = format!(
        "merchants[0].verify_keys[0]: certificate.pem: `serial` is not the certificate's own, {}; use the \
         PEM file that the merchant platform gives",
        certified.serial()
    );
    check(
        &one_merchant(&[(Some(SERIAL), "certificate.pem")], ""),
        Some(&differs),
    );
    check(
        &one_merchant(&[(Some(certified.serial()), "certificate.pem")], ""),
        None,
    );
    let without = "merchants[0].verify_keys[0]: wechat.pem: a public key needs `serial`, the PUB_KEY_ID that \
                   the merchant platform shows; use the PEM file that the merchant platform gives";
    check(&one_merchant(&[(None, "wechat.pem")], ""), Some(without));
}

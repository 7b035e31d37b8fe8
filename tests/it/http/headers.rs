//! The signature headers: names in any case, each once, well formed, in time.

use super::*;

const SIGNATURE_HEADERS: [&str; 4] = [
    "Wechatpay-Timestamp",
    "Wechatpay-Nonce",
    "Wechatpay-Serial",
    "Wechatpay-Signature",
];
const TYPE: &str = "Wechatpay-Signature-Type";

#[tokio::test]
async fn header_names_count_in_any_case_and_only_once() {
    // Aim (A03): names are found in every spelling; a header that occurs twice is refused, never
    // joined or chosen from. Method: one genuine notice in several spellings, then each header
    // doubled in another spelling, with the same value and with another, before and behind.
    let site = Site::start().await;
    let good = genuine("R1");
    let spelt = |spell: fn(&str) -> String| altered(&good, |n, v| Some((spell(n), v.to_owned())));
    for (case, delivery) in [
        ("as documented", good.clone()),
        ("lower", spelt(str::to_ascii_lowercase)),
        ("upper", spelt(str::to_ascii_uppercase)),
        (
            "TimeStamp",
            spelt(|name| name.replace("Timestamp", "TimeStamp")),
        ),
    ] {
        site.check(case, &delivery, 204, "").await;
    }
    assert_eq!(site.counts().await, "1 1 0");
    for name in SIGNATURE_HEADERS.into_iter().chain([TYPE]) {
        let message = format!("header {name} occurs twice");
        let (_, value) = good.headers.iter().find(|(n, _)| n == name).unwrap();
        for second in [name.to_ascii_uppercase(), name.to_ascii_lowercase()] {
            for other in [value.as_str(), "other", ""] {
                let (mut behind, mut before) = (genuine("R2"), genuine("R2"));
                behind.headers.push((second.clone(), other.to_owned()));
                before.headers.insert(0, (second.clone(), other.to_owned()));
                for delivery in [behind, before] {
                    site.check(name, &delivery, 401, &message).await;
                }
            }
        }
    }
    assert_eq!(site.counts().await, "1 1 0");
    site.stop().await;
}

#[tokio::test]
async fn nothing_is_believed_for_what_is_missing() {
    // Aim (A12): a missing, empty or unsupported field never weakens a check. Method: well-encrypted
    // notices, each with one thing missing or changed.
    let site = Site::start().await;
    let good = genuine("R1");
    for name in SIGNATURE_HEADERS {
        let message = format!("header {name} is missing");
        let without = altered(&good, |n, v| {
            (n != name).then(|| (n.to_owned(), v.to_owned()))
        });
        site.check(name, &without, 401, &message).await;
        let empty = with_header(&good, name, "");
        site.check(name, &empty, 401, &message).await;
    }
    let bare = altered(&good, |n, v| {
        (!n.starts_with("Wechatpay-")).then(|| (n.to_owned(), v.to_owned()))
    });
    let message = "header Wechatpay-Timestamp is missing";
    site.check("no header at all", &bare, 401, message).await;
    for serial in ["PUB_KEY_ID_0", "1900000001", "x", &"9".repeat(40)] {
        let unknown = with_header(&good, "Wechatpay-Serial", serial);
        site.check(serial, &unknown, 401, "serial is unknown").await;
    }
    for kind in [
        "WECHATPAY2-SM2-WITH-SM3",
        "none",
        "",
        "wechatpay2-sha256-rsa2048",
    ] {
        let other = with_header(&good, TYPE, kind);
        site.check(kind, &other, 401, "signature type is not supported")
            .await;
    }
    assert_eq!(site.counts().await, "0 0 0");
    let without_type = altered(&good, |n, v| {
        (n != TYPE).then(|| (n.to_owned(), v.to_owned()))
    });
    site.check("absent means RSA", &without_type, 204, "").await;
    site.stop().await;
}

#[tokio::test]
async fn overlong_headers_are_malformed() {
    // Aim: what cannot be a header of WeChat Pay's costs nothing further. Method: values over the
    // limits, correctly signed where the signature covers them.
    let site = Site::start().await;
    let body = genuine("R1").body;
    let nonce = |bytes: usize| merchant().sign(body.clone(), NOW, &"n".repeat(bytes));
    let message = "header Wechatpay-Nonce is malformed";
    site.check("nonce", &nonce(257), 401, message).await;
    let serial = with_header(&genuine("R1"), "Wechatpay-Serial", &"S".repeat(257));
    let message = "header Wechatpay-Serial is malformed";
    site.check("serial", &serial, 401, message).await;
    assert_eq!(site.counts().await, "0 0 0");
    site.check("nonce of 256", &nonce(256), 204, "").await;
    site.stop().await;
}

#[tokio::test]
async fn a_timestamp_counts_within_five_minutes_either_way() {
    // Aim (A09): old and future signatures are refused, odd ones without overflow. Method: genuine
    // signatures at the edges of the window by the service's clock; odd texts, genuinely signed.
    let site = Site::start().await;
    let off = "timestamp is more than five minutes off";
    for (seconds, status, message) in [
        (-301, 401, off),
        (-300, 204, ""),
        (-299, 204, ""),
        (299, 204, ""),
        (300, 204, ""),
        (301, 401, off),
        (-86_400, 401, off),
        (998_999_999_999 - NOW, 401, off),
    ] {
        let number = format!("R{}", seconds + 86_400);
        let delivery = sign_at(body_of(&refund(&number, "SUCCESS")), NOW + seconds);
        site.check(&seconds.to_string(), &delivery, status, message)
            .await;
    }
    assert_eq!(site.counts().await, "4 4 0");
    let body = genuine("R1").body;
    for text in [
        "abc",
        "-5",
        "+1789000000",
        "1789000000.0",
        "0x6aa1",
        "1 789000000",
        "1789000000000",
        "123456789012345678901234567890",
        "１７８９０００００",
    ] {
        let mut message = format!("{text}\nnonce\n").into_bytes();
        message.extend_from_slice(&body);
        message.push(b'\n');
        let signed = merchant().sign(body.clone(), NOW, "nonce");
        let signed = with_header(&signed, "Wechatpay-Timestamp", text);
        let signature = merchant().key.sign(&message);
        let signed = with_header(&signed, "Wechatpay-Signature", &signature);
        let message = "header Wechatpay-Timestamp is malformed";
        site.check(text, &signed, 401, message).await;
    }
    assert_eq!(site.counts().await, "4 4 0");
    site.stop().await;
}

#[tokio::test]
async fn the_window_is_by_the_clock_at_arrival() {
    // Aim (A09): the same bytes are genuine for five minutes and a replay afterwards, also of a
    // notice that is stored. Method: one delivery, the clock moved between.
    let site = Site::start().await;
    let delivery = genuine("R1");
    site.check("now", &delivery, 204, "").await;
    site.clock.advance(300_000);
    site.check("at the edge", &delivery, 204, "").await;
    site.clock.advance(1);
    let message = "timestamp is more than five minutes off";
    site.check("too late", &delivery, 401, message).await;
    let again = delivery.signed_again(NOW + 301, "nonce-2").unwrap();
    site.check("signed again", &again, 204, "").await;
    assert_eq!(site.counts().await, "1 1 0");
    site.stop().await;
}

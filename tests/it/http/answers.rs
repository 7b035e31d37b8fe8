//! Status and body of each class of answer.

use platform::SigningKey;

use super::*;
use crate::support::raw::Raw;
use crate::support::{shop_writes, until, until_booked};

#[tokio::test]
async fn each_class_has_its_status_and_its_body() {
    // Aim (B13): success is 204 without a body and only of what is stored; all else is FAIL in
    // JSON. Method: one delivery of each class, status, body and header compared whole.
    let site = Site::start().await;
    shop_writes(&site.database.database, "R1", 100, 300).await;
    let first = genuine("R1");
    site.check("first", &first, 204, "").await;
    site.check("duplicate", &first, 204, "").await;
    until_booked(&site.database.database, 1).await;
    let again = first.signed_again(NOW + 15, "another-nonce").unwrap();
    site.check("signed again", &again, 204, "").await;
    site.check("not known to the shop", &genuine("R2"), 204, "")
        .await;
    let stored = site.counts().await;
    assert_eq!(stored, "2 2 1");

    let tampered = genuine("R3").tampered();
    site.check("tampered", &tampered, 401, "signature is wrong")
        .await;
    let impostor = SigningKey::from_pkcs8("any", &new_key()).unwrap();
    let forged = merchant().forged(&impostor, genuine("R3").body, NOW, "nonce");
    site.check("forged", &forged, 401, "signature is wrong")
        .await;
    for (body, message) in [
        ("", "body is not an envelope in JSON"),
        ("[]", "body is not an envelope in JSON"),
        ("{\"resource\":{}}", "envelope has no usable id"),
        ("{\"id\":\"n-1\"}", "envelope has no encrypted resource"),
        (
            "{\"id\":\"n-1\",\"resource\":{\"algorithm\":\"ROT13\"}}",
            "resource.algorithm is unknown",
        ),
    ] {
        site.check(body, &sign(body), 400, message).await;
    }
    let large = vec![b' '; 65_537];
    site.check("too large", &sign(large), 413, "body is too large")
        .await;
    assert_eq!(site.counts().await, stored, "nothing of a refusal is kept");

    let envelope = refund("R4", "SUCCESS").envelope("n-4", NOW * 1000, &mut seeded());
    let unopened = sign(envelope.seal(second().api_v3_key()));
    for time in ["first", "second"] {
        site.check(time, &unopened, 500, "resource does not open")
            .await;
    }
    assert_eq!(site.counts().await, "3 3 1", "kept once");
    assert_eq!(site.states().await[2], "quarantined resource does not open");
    site.stop().await;
}

#[tokio::test]
async fn a_body_of_just_the_limit_is_taken_and_one_byte_more_is_not() {
    // Aim: the limit is where the configuration says. Method: white space around one envelope.
    let site = Site::with("body_bytes_max = 4096", "", &[]).await;
    for (bytes, status, message) in [(4096, 204, ""), (4097, 413, "body is too large")] {
        let mut body = body_of(&refund(&format!("R{bytes}"), "SUCCESS"));
        body.resize(bytes, b' ');
        site.check(&bytes.to_string(), &sign(body), status, message)
            .await;
    }
    site.stop().await;
}

#[tokio::test]
async fn probes_are_refused_and_touch_nothing() {
    // Aim (A04): deliberately wrong signatures get a quick 401 and leave no row. Method: 200 probes
    // of both kinds, then what else cannot be decoded, then a genuine notice.
    let site = Site::start().await;
    let body = genuine("R1").body;
    for at in 0..100 {
        let probe = merchant().probe(body.clone(), NOW, &format!("nonce-{at}"));
        let short = with_header(
            &probe,
            "Wechatpay-Signature",
            "WECHATPAY/SIGNTEST/QUJDREVGRw",
        );
        for delivery in [probe, short] {
            site.check("probe", &delivery, 401, "signature is wrong")
                .await;
        }
    }
    for text in [
        "=",
        "====",
        "%%%",
        "AAAA",
        "QUJDREVGRw",
        "é",
        "\u{FFFD}",
        "a b",
    ] {
        let odd = with_header(&genuine("R1"), "Wechatpay-Signature", text);
        site.check(text, &odd, 401, "signature is wrong").await;
    }
    assert_eq!(site.counts().await, "0 0 0");
    site.check("genuine", &genuine("R1"), 204, "").await;
    site.stop().await;
}

#[tokio::test]
async fn a_database_that_cannot_write_is_answered_in_time_and_loses_nothing() {
    // Aim (B13): 503 and FAIL while nothing is durable, before the deadline; the resend is taken.
    // Method: another connection holds SQLite's write lock during the first delivery.
    let site = Site::with("reply_deadline_ms = 500", "", &[]).await;
    let delivery = genuine("R1");
    let mut other = Raw::open(&site.database.url).await;
    other.begin().await;
    let answered = site.post(&delivery).await;
    check_answer("locked", &answered, 503, "not stored in time");
    assert_eq!(site.counts().await, "0 0 0");
    other.run("ROLLBACK").await;
    until("the resend is acknowledged", || async {
        site.post(&delivery).await.status == 204
    })
    .await;
    assert_eq!(site.counts().await, "1 1 0");
    site.stop().await;
}

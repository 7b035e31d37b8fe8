//! The body: exact bytes under the signature, UTF-8 whatever the content type says.

use platform::encrypt;

use super::*;

#[tokio::test]
async fn the_signature_is_over_the_bytes_received() {
    // Aim (A01): bytes are verified before anything is parsed; nothing is printed anew. Method: a
    // body in unusual order with unknown members is accepted, the same with one space more is not.
    let site = Site::start().await;
    let ciphertext = encrypt(
        merchant().api_v3_key(),
        b"0123456789ab",
        b"refund",
        refund("R1", "SUCCESS").plaintext().as_bytes(),
    );
    let body = format!(
        "{{\"id\":\"n-0001\",\"create_time\":\"2026-03-01T10:00:00+08:00\",\"zz_new\":1.0,\
         \"resource\":{{\"nonce\":\"0123456789ab\",\"zz\":[{{}}],\"ciphertext\":\"{ciphertext}\",\
         \"associated_data\":\"refund\",\"algorithm\":\"AEAD_AES_256_GCM\"}},\
         \"event_type\":\"REFUND.SUCCESS\"}}"
    );
    let good = sign(body.clone());
    for (from, to) in [
        (":", ": "),
        ("1.0", "1"),
        ("\"n-0001\"", "\"n-0001\" "),
        ("},", "},\n"),
    ] {
        let mut changed = good.clone();
        changed.body = body.replacen(from, to, 1).into();
        assert_ne!(changed.body, good.body);
        site.check(to, &changed, 401, "signature is wrong").await;
    }
    assert_eq!(site.counts().await, "0 0 0");
    site.check("as signed", &good, 204, "").await;
    let select = "SELECT body FROM notice_raw";
    assert_eq!(site.lines(select).await, [body], "kept byte for byte");
    site.stop().await;
}

#[tokio::test]
async fn the_body_is_utf8_whatever_the_content_type_says() {
    // Aim (A17): a content type changes nothing, a charset neither. Method: Chinese text under
    // several content types; a byte order mark and an invalid byte, both genuinely signed.
    let site = Site::start().await;
    for (at, kind) in [
        Some("application/json"),
        Some("application/json; charset=gbk"),
        Some("text/xml"),
        Some("multipart/form-data; boundary=x"),
        Some("nonsense"),
        None,
    ]
    .into_iter()
    .enumerate()
    {
        let mut notice = refund(&format!("R{at}"), "SUCCESS");
        notice.user_received_account = "招商银行信用卡0403".to_owned();
        let signed = sign(body_of(&notice));
        let mut delivery = altered(&signed, |n, v| {
            (!n.eq_ignore_ascii_case("content-type")).then(|| (n.to_owned(), v.to_owned()))
        });
        if let Some(kind) = kind {
            let header = ("Content-Type".to_owned(), kind.to_owned());
            delivery.headers.insert(0, header);
        }
        site.check(kind.unwrap_or("none"), &delivery, 204, "").await;
    }
    assert_eq!(site.counts().await, "6 6 0");
    let good = body_of(&refund("R9", "SUCCESS"));
    let marked = [&b"\xEF\xBB\xBF"[..], &good].concat();
    let text = String::from_utf8(good.clone()).unwrap();
    let at = text.find('退').unwrap();
    let invalid = [&good[..at], &b"\xFF"[..], &good[at..]].concat();
    let cut = [&good[..at + 1], &good[at + 3..]].concat();
    let utf16: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
    for (case, body) in [
        ("byte order mark", marked),
        ("invalid byte", invalid),
        ("cut character", cut),
        ("UTF-16", utf16),
    ] {
        let message = "body is not an envelope in JSON";
        site.check(case, &sign(body), 400, message).await;
    }
    assert_eq!(site.counts().await, "6 6 0");
    site.stop().await;
}

#[tokio::test]
async fn only_the_members_we_act_on_are_needed() {
    // Aim (A13): a notice is not a query's answer; unknown and unused members may be absent, null,
    // empty or of another type; a status that is really missing is never guessed. Method: plaintexts
    // by hand.
    let site = Site::start().await;
    let success = "\"refund_status\":\"SUCCESS\",";
    for (at, more) in [
        "",
        ",\"channel\":null",
        ",\"channel\":\"\"",
        ",\"channel\":17",
        ",\"user_received_account\":null",
        ",\"status\":\"CLOSED\"",
        ",\"refund_id\":null,\"transaction_id\":null,\"success_time\":null",
        ",\"promotion_detail\":[{\"amount\":\"x\"}]",
    ]
    .into_iter()
    .enumerate()
    {
        let text = plaintext(&format!("R{at}"), success, more);
        site.check(more, &sign(seal("REFUND.SUCCESS", &text)), 204, "")
            .await;
    }
    assert_eq!(site.counts().await, "8 8 0");
    let parked = "parked refund is not known here yet".to_owned();
    assert_eq!(site.states().await, vec![parked; 8]);
    let anonymous = plaintext("R9", success, "").replace("\"mchid\"", "\"other\"");
    for (text, reason) in [
        (
            plaintext("R9", "\"status\":\"SUCCESS\",", ""),
            "refund_status is missing",
        ),
        (plaintext("R9", "", ""), "refund_status is missing"),
        (
            plaintext("R9", "\"refund_status\":null,", ""),
            "refund_status is missing",
        ),
        (
            plaintext("R9", "\"refund_status\":\"\",", ""),
            "refund_status is unknown",
        ),
        (
            plaintext("R9", "\"refund_status\":1,", ""),
            "refund_status is unknown",
        ),
        (anonymous, "mchid or sp_mchid is missing"),
    ] {
        site.check(reason, &sign(seal("REFUND.SUCCESS", &text)), 204, "")
            .await;
        let last = site.states().await.pop().unwrap();
        assert_eq!(last, format!("quarantined {reason}"), "{text}");
    }
    site.stop().await;
}

#[tokio::test]
async fn an_event_without_effect_is_acknowledged_and_kept() {
    // Aim: what has no effect here is not sent again, whatever its plaintext. Method: events other
    // than refunds, an unknown refund event, and PROCESSING.
    let site = Site::start().await;
    for (event, text) in [
        ("TRANSACTION.SUCCESS", "{\"out_trade_no\":\"T-1\"}"),
        ("REFUND.PARTLY_FROZEN", "{}"),
        ("", "{}"),
    ] {
        site.check(event, &sign(seal(event, text)), 204, "").await;
        let last = site.states().await.pop().unwrap();
        assert_eq!(last, "ignored event has no effect here", "{event}");
    }
    let text = plaintext("R1", "\"refund_status\":\"PROCESSING\",", "");
    site.check(
        "PROCESSING",
        &sign(seal("REFUND.PROCESSING", &text)),
        204,
        "",
    )
    .await;
    let last = site.states().await.pop().unwrap();
    assert_eq!(last, "ignored status has no effect here");
    site.stop().await;
}

//! Which paths there are, and what a bound route adds.

use super::*;

#[tokio::test]
async fn there_are_no_other_routes() {
    // Aim: a wrong path or method is told apart from a refused notice. Method: one request each.
    let site = Site::with("notify_paths = ['/wx/refund/notify', '/old']", "", &[]).await;
    for (path, status) in [
        ("/healthz", 200),
        ("/readyz", 200),
        ("/", 404),
        ("/metrics", 404),
        ("/notify/wechat/v2", 404),
        (PATH, 405),
        ("/notify/wechat/v3/1900000001", 405),
        ("/old", 405),
    ] {
        let answered = wire::get(&site.app, path).await;
        assert_eq!(answered.status, status, "{path}");
    }
    for (path, status) in [
        (PATH, 204),
        ("/wx/refund/notify", 204),
        ("/old", 204),
        ("/notify/wechat/v3/1900000001", 204),
        ("/notify/wechat/v3?from=somewhere", 204),
        ("/notify/wechat/v3/", 404),
        ("/notify/wechat/v3/1900000001/", 404),
        ("/older", 404),
        ("/notify", 404),
        ("/healthz", 405),
    ] {
        let answered = site.post_to(path, &genuine("R1")).await;
        assert_eq!(answered.status, status, "{path}");
    }
    assert_eq!(site.counts().await, "1 1 0");
    site.stop().await;
}

#[tokio::test]
async fn a_bound_route_takes_its_own_merchant_only() {
    // Aim: on the route of one merchant, the keys of another count for nothing. Method: two
    // merchants, each with keys of its own, on both routes.
    let site = Site::with_second().await;
    let mut notice = refund("R2", "SUCCESS");
    notice.form = platform::Form::Direct {
        mchid: SECOND.to_owned(),
    };
    let envelope = notice.envelope("n-2", NOW * 1000, &mut seeded());
    let of_second = second().sign(envelope.seal(second().api_v3_key()), NOW, "nonce");
    let of_first = genuine("R1");
    let other = "serial belongs to another merchant";
    for (mchid, delivery, status, message) in [
        (MCHID, &of_first, 204, ""),
        (SECOND, &of_second, 204, ""),
        (MCHID, &of_second, 401, other),
        (SECOND, &of_first, 401, other),
        ("1900000003", &of_first, 404, "merchant is not configured"),
        ("%31900000001", &of_first, 204, ""),
    ] {
        let answered = site.post_to(&format!("{PATH}/{mchid}"), delivery).await;
        check_answer(mchid, &answered, status, message);
    }
    let rows = "SELECT mchid, out_refund_no, state FROM notice ORDER BY id";
    let expected = ["1900000001 R1 parked", "1900000002 R2 parked"];
    assert_eq!(site.lines(rows).await, expected);

    // a partner's plaintext, or another merchant's, under the first one's own keys
    let mut foreign = refund("R3", "SUCCESS");
    foreign.form = platform::Form::Direct {
        mchid: SECOND.to_owned(),
    };
    let answered = site
        .post_to(&format!("{PATH}/{MCHID}"), &sign(body_of(&foreign)))
        .await;
    check_answer("foreign plaintext", &answered, 204, "");
    let last = site.states().await.pop().unwrap();
    assert_eq!(last, "quarantined merchant does not belong to this key");
    site.stop().await;
}

#[tokio::test]
async fn health_says_what_it_knows() {
    // Aim: `/healthz` is about the process, `/readyz` about storing. Method: both while the database
    // can write.
    let site = Site::start().await;
    let health = wire::get(&site.app, "/healthz").await;
    assert_eq!((health.status, &*health.body), (200, "ok"));
    let ready = wire::get(&site.app, "/readyz").await;
    assert_eq!((ready.status, &*ready.body), (200, "ready\n"));
    site.stop().await;
}

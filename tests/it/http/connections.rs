//! Connections that send too slowly, too much, or too late.

use std::net::SocketAddr;
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::*;
use crate::support::until;

/// What a connection may take to send its head, and some time for a busy machine.
const CLOSED_WITHIN: Duration = Duration::from_secs(12);

async fn connect(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).await.unwrap()
}

/// Reads until the server closes.
async fn until_closed(stream: &mut TcpStream) {
    let mut bytes = [0; 1024];
    while matches!(stream.read(&mut bytes).await, Ok(1..)) {}
}

#[tokio::test]
async fn silent_and_slow_connections_are_closed_and_hinder_nobody() {
    // Aim (E04): who sends nothing, or a byte now and then, is closed within seconds, and a genuine
    // notice is answered beside. Method: 100 connections of each kind, a notice, then the wait for
    // the server's end of each.
    let site = Site::start().await;
    let address = site.app.app.http_addr;
    let started = Instant::now();
    let mut idlers = JoinSet::new();
    for at in 0..200 {
        let mut stream = connect(address).await;
        idlers.spawn(async move {
            if at % 2 == 0 {
                return until_closed(&mut stream).await;
            }
            let (mut reader, mut writer) = stream.into_split();
            let mut pace = tokio::time::interval(Duration::from_millis(500));
            let dribble = async {
                for byte in b"POST /notify/wechat/v3 HTTP/1.1\r\nX: "
                    .iter()
                    .chain([b'x'; 999].iter())
                {
                    pace.tick().await;
                    if writer.write_all(&[*byte]).await.is_err() {
                        return;
                    }
                }
            };
            let closed = async {
                let mut bytes = [0; 1024];
                while matches!(reader.read(&mut bytes).await, Ok(1..)) {}
            };
            tokio::select! {
                () = closed => {}
                () = dribble => {}
            }
        });
    }
    let answered = site.post(&genuine("R1")).await;
    check_answer("beside the idlers", &answered, 204, "");
    assert!(
        answered.took < Duration::from_secs(1),
        "{:?}",
        answered.took
    );
    let all = timeout(CLOSED_WITHIN, idlers.join_all()).await;
    assert!(all.is_ok(), "still open after {:?}", started.elapsed());
    site.stop().await;
}

#[tokio::test]
async fn a_body_that_does_not_come_is_answered_at_the_deadline() {
    // Aim (E04): a body that dribbles or stops is over at `http.reply_deadline_ms`. Method: a whole
    // head, half a body, and silence.
    let site = Site::with("reply_deadline_ms = 300", "", &[]).await;
    let delivery = genuine("R1");
    let request = wire::request(PATH, &delivery.headers, &delivery.body);
    let half = &request[..request.len() - delivery.body.len() / 2];
    let answered = wire::exchange(site.app.app.http_addr, half).await;
    check_answer("half a body", &answered, 503, "not stored in time");
    assert!(answered.has("connection", "close"), "{answered:?}");
    assert_eq!(site.counts().await, "0 0 0");
    site.stop().await;
}

#[tokio::test]
async fn a_huge_body_is_refused_before_it_is_read() {
    // Aim (E06): no body is buffered beyond the limit, on any route, signed or not. Method: 10 GB
    // announced and not sent; 100 MB in chunks without a length.
    let site = Site::with("notify_paths = ['/old']", "", &[]).await;
    let address = site.app.app.http_addr;
    for path in [PATH, "/notify/wechat/v3/1900000001", "/old"] {
        let announced =
            format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 10737418240\r\n\r\n");
        let answered = wire::exchange(address, announced.as_bytes()).await;
        check_answer("10 GB announced", &answered, 413, "body is too large");
        assert!(
            answered.took < Duration::from_secs(1),
            "{:?}",
            answered.took
        );

        let (mut reader, mut writer) = connect(address).await.into_split();
        let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
        let chunk = [&b"10000\r\n"[..], &[b'x'; 0x10000], b"\r\n"].concat();
        let started = Instant::now();
        let write = async {
            let mut sent = 0_usize;
            let mut more = writer.write_all(head.as_bytes()).await.is_ok();
            while more && sent < 100 << 20 {
                more = writer.write_all(&chunk).await.is_ok();
                sent += chunk.len();
            }
            sent
        };
        let (sent, answered) = tokio::join!(write, wire::read_answer(&mut reader));
        let answered = answered.expect("an answer");
        check_answer("100 MB in chunks", &answered, 413, "body is too large");
        assert!(answered.has("connection", "close"), "{answered:?}");
        assert!(sent < 100 << 20, "all of it was read");
        assert!(started.elapsed() < Duration::from_secs(2));
    }
    for length in ["-1", "x", "99999999999999999999999999"] {
        let odd = format!("POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
        let answered = wire::exchange(address, odd.as_bytes()).await;
        assert_eq!(answered.status, 400, "{length}");
    }
    assert_eq!(site.counts().await, "0 0 0");
    site.check("afterwards", &genuine("R1"), 204, "").await;
    site.stop().await;
}

#[tokio::test]
async fn stopping_waits_for_nobody_who_is_idle() {
    // Aim (E07): idle keep-alive connections are closed at once; what comes on them afterwards is
    // refused or finds a closed connection, never half done. Method: ten connections that were used
    // once, stop, then a genuine notice on each.
    let site = Site::start().await;
    let mut idle = Vec::new();
    for _ in 0..10 {
        let mut stream = connect(site.app.app.http_addr).await;
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            .await
            .unwrap();
        let answered = wire::read_answer(&mut stream).await.unwrap();
        assert_eq!(answered.status, 200);
        assert!(!answered.has("connection", "close"), "{answered:?}");
        idle.push(stream);
    }
    let started = Instant::now();
    let Site { app, database, .. } = site;
    assert!(app.app.stop().await, "everything is emptied");
    assert!(
        started.elapsed() < Duration::from_secs(3),
        "{:?}",
        started.elapsed()
    );
    let late = genuine("R1");
    let request = wire::request(PATH, &late.headers, &late.body);
    for mut stream in idle {
        let _broken_off = stream.write_all(&request).await;
        let answered = wire::read_answer(&mut stream).await;
        assert!(answered.is_none_or(|a| a.status == 503));
    }
    assert_eq!(wire::counts(&database.url).await, "0 0 0");
}

#[tokio::test]
async fn a_request_under_way_while_stopping_is_answered() {
    // Aim (E07): a head that came before the stop gets its answer, 503 and `Connection: close`, and
    // leaves nothing; readiness says 503 meanwhile. Method: two half-sent requests, stop, the rest
    // once the listener is closed.
    let site = Site::start().await;
    let address = site.app.app.http_addr;
    let delivery = genuine("R1");
    let request = wire::request(PATH, &delivery.headers, &delivery.body);
    let probe = b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut halves = Vec::new();
    for whole in [&request[..], &probe[..]] {
        let mut stream = connect(address).await;
        let (first, rest) = whole.split_at(whole.len() - 2);
        stream.write_all(first).await.unwrap();
        halves.push((stream, rest));
    }
    // accepted in their order: once a later one is answered, so are the two
    assert_eq!(wire::get(&site.app, "/healthz").await.status, 200);
    let Site { app, database, .. } = site;
    let stop = tokio::spawn(app.app.stop());
    until("no connection is taken any more", || async {
        TcpStream::connect(address).await.is_err()
    })
    .await;
    let mut answers = Vec::new();
    for (mut stream, rest) in halves {
        stream.write_all(rest).await.unwrap();
        answers.push(wire::read_answer(&mut stream).await.expect("an answer"));
        timeout(CLOSED_WITHIN, until_closed(&mut stream))
            .await
            .expect("closed");
    }
    check_answer("notice", &answers[0], 503, "shutting down");
    assert!(answers[0].has("connection", "close"), "{:?}", answers[0]);
    assert_eq!(
        (answers[1].status, &*answers[1].body),
        (503, "shutting down\n")
    );
    assert!(stop.await.unwrap(), "everything is emptied");
    assert_eq!(wire::counts(&database.url).await, "0 0 0");
}

//! HTTP byte by byte: what a ready-made client would tidy up on the way.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::TestApp;
use crate::support::raw::Raw;

/// Longer than any answer may take, so that a late one is seen as late.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// An answer as it came.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    pub(crate) status: u16,
    /// Status line and headers.
    pub(crate) head: String,
    pub(crate) body: String,
    pub(crate) took: Duration,
}

impl Answered {
    /// Whether a header stands there with just this value.
    pub(crate) fn has(&self, name: &str, value: &str) -> bool {
        self.head.lines().any(|line| {
            line.split_once(": ")
                .is_some_and(|(n, v)| n.eq_ignore_ascii_case(name) && v == value)
        })
    }

    /// The message of a FAIL body, whose shape is checked down to the last member.
    pub(crate) fn fail_message(&self) -> String {
        let value: serde_json::Value = serde_json::from_str(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {:?}", self.body));
        let message = value["message"].as_str().unwrap_or_default().to_owned();
        let whole = format!("{{\"code\":\"FAIL\",\"message\":\"{message}\"}}");
        assert_eq!(self.body, whole);
        assert!(!message.is_empty());
        assert!(self.has("content-type", "application/json"), "{self:?}");
        message
    }
}

/// The head and the body of a POST; header lines in the order given, doubled ones too.
pub(crate) fn request(path: &str, headers: &[(String, String)], body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("POST {path} HTTP/1.1\r\nHost: pay.example\r\n").into_bytes();
    for (name, value) in headers {
        bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    bytes.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// Sends one request on a connection of its own and reads its answer. The answer may come before
/// the request is out.
pub(crate) async fn exchange(address: SocketAddr, request: &[u8]) -> Answered {
    let started = std::time::Instant::now();
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut reader, mut writer) = stream.into_split();
    let write = async {
        // a server that has answered need not read the rest
        let _broken_off = writer.write_all(request).await;
        std::future::pending::<()>().await;
    };
    let answer = async {
        tokio::select! {
            answer = read_answer(&mut reader) => answer,
            () = write => None,
        }
    };
    let answer = tokio::time::timeout(PATIENCE, answer).await;
    let answer = answer.expect("an answer in time");
    let mut answer = answer.expect("an answer at all");
    answer.took = started.elapsed();
    answer
}

/// Posts to a path of a service.
pub(crate) async fn post(
    app: &TestApp,
    path: &str,
    headers: &[(String, String)],
    body: &[u8],
) -> Answered {
    exchange(app.app.http_addr, &request(path, headers, body)).await
}

/// Gets a path of a service.
pub(crate) async fn get(app: &TestApp, path: &str) -> Answered {
    let request = format!("GET {path} HTTP/1.1\r\nHost: pay.example\r\n\r\n");
    exchange(app.app.http_addr, request.as_bytes()).await
}

/// Reads one answer; nothing when the connection ends without one.
pub(crate) async fn read_answer(reader: &mut (impl AsyncReadExt + Unpin)) -> Option<Answered> {
    let started = std::time::Instant::now();
    let mut bytes = Vec::new();
    loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8(bytes[..at].to_vec()).unwrap();
            let length: usize = head
                .lines()
                .filter_map(|line| line.split_once(": "))
                .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
                .map_or(0, |(_, value)| value.parse().unwrap());
            if bytes.len() >= at + 4 + length {
                let body = String::from_utf8(bytes[at + 4..at + 4 + length].to_vec()).unwrap();
                let status = head.split(' ').nth(1).unwrap().parse().unwrap();
                let took = started.elapsed();
                return Some(Answered {
                    status,
                    head,
                    body,
                    took,
                });
            }
        }
        match reader.read_buf(&mut bytes).await {
            Ok(0) | Err(_) => return None,
            Ok(_) => {}
        }
    }
}

/// How many rows each table of ours holds that a delivery may write.
pub(crate) async fn counts(url: &str) -> String {
    let text = "SELECT (SELECT COUNT(*) FROM notice), (SELECT COUNT(*) FROM notice_raw), \
                (SELECT COUNT(*) FROM refund_ledger)";
    Raw::open(url).await.lines(text).await.concat()
}

/// The rows that a select gives, each as one line; NULL is `-`.
pub(crate) async fn lines(url: &str, select: &str) -> Vec<String> {
    Raw::open(url).await.lines(select).await
}

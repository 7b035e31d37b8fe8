//! Sending: one delivery over HTTP/1.1, and what came back.
//!
//! A [`Sender`] keeps connections open between deliveries and never uses more than it was given. It follows no redirect
//! and repeats nothing; [`crate::campaign`] does that.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::sync::Semaphore;

use crate::delivery::Delivery;

/// The longest reply that is read. Proper ones have no body or about a hundred bytes.
const REPLY_BYTES_MAX: usize = 64 * 1024;

/// Why there is no status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// No complete reply in time.
    Timeout,
    /// No connection.
    Connect,
    /// The connection broke, or what came was no HTTP.
    Transport,
    /// The reply broke off, or its body is longer than 64 KiB.
    Body,
    /// The address or a header is none that HTTP allows; nothing was sent.
    Request,
}

/// What one delivery met with.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The status number, or why there is none.
    pub status: Result<u16, Failure>,
    /// The complete body; empty on failure.
    pub body: Bytes,
    /// From just before sending until the complete reply was read, or until the failure.
    pub took: Duration,
}

impl Reply {
    /// Whether the platform takes this for an acknowledgement: 200 or 204, whatever the body says.
    pub fn is_acknowledgement(&self) -> bool {
        acknowledges(self.status)
    }
}

/// The rule behind [`Reply::is_acknowledgement`].
pub(crate) fn acknowledges(status: Result<u16, Failure>) -> bool {
    matches!(status, Ok(200 | 204))
}

/// Posts deliveries. Clones share the connections.
#[derive(Clone, Debug)]
pub struct Sender {
    client: Client<HttpConnector, Full<Bytes>>,
    /// One permit per connection.
    connections: Arc<Semaphore>,
}

impl Sender {
    /// A sender that has at most `connections` deliveries under way, and keeps as many connections; 0 counts as 1.
    pub fn new(connections: usize) -> Self {
        let connections = connections.clamp(1, Semaphore::MAX_PERMITS);
        let mut connector = HttpConnector::new();
        // A delivery is one small write: waiting for more would only add to the reply time.
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(connections)
            .build(connector);
        Self {
            client,
            connections: Arc::new(Semaphore::new(connections)),
        }
    }

    /// Posts one delivery to `url` and reads the whole reply, within `timeout`.
    ///
    /// Shapes: `url`, like `http://127.0.0.1:8080/notify/wechat/refund`.
    /// Errors: none; a failure is a [`Reply`] without status. Waiting for a free connection counts neither for the
    /// timeout nor for the reply time.
    pub async fn send(&self, url: &str, delivery: &Delivery, timeout: Duration) -> Reply {
        let permit = self.connections.acquire().await;
        let started = Instant::now();
        let outcome = tokio::time::timeout(timeout, self.exchange(url, delivery)).await;
        let took = started.elapsed();
        drop(permit);
        let (status, body) = match outcome {
            Ok(Ok((status, body))) => (Ok(status), body),
            Ok(Err(failure)) => (Err(failure), Bytes::new()),
            Err(_) => (Err(Failure::Timeout), Bytes::new()),
        };
        Reply { status, body, took }
    }

    async fn exchange(&self, url: &str, delivery: &Delivery) -> Result<(u16, Bytes), Failure> {
        let mut request = Request::builder().method(Method::POST).uri(url);
        for (name, value) in &delivery.headers {
            request = request.header(name, value);
        }
        let request = request
            .body(Full::new(delivery.body.clone()))
            .map_err(|_| Failure::Request)?;
        if request.uri().host().is_none() {
            return Err(Failure::Request);
        }
        let reply = self.client.request(request).await.map_err(|e| {
            if e.is_connect() {
                Failure::Connect
            } else {
                Failure::Transport
            }
        })?;
        let status = reply.status().as_u16();
        let body = Limited::new(reply.into_body(), REPLY_BYTES_MAX)
            .collect()
            .await
            .map_err(|_| Failure::Body)?;
        Ok((status, body.to_bytes()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::keys::Merchant;
    use crate::vector::{API_V3_KEY, signing_key};

    fn delivery(body: &'static str) -> Delivery {
        let merchant = Merchant::new("1900000109", API_V3_KEY, signing_key()).unwrap();
        merchant.sign(body, 1_789_000_000, "nonce")
    }

    /// Answers one connection with `reply`, whatever is asked, then ends it if `close`.
    async fn exchange_with(reply: Vec<u8>, close: bool, timeout: Duration) -> Reply {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/notify", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            // All of it is read, because closing over unread bytes would reset the connection and lose the reply.
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n{}") {
                assert_ne!(stream.read_buf(&mut request).await.unwrap(), 0);
            }
            assert!(request.starts_with(b"POST /notify HTTP/1.1\r\n"));
            // The client may have seen enough before all is written.
            stream.write_all(&reply).await.ok();
            if !close {
                std::future::pending::<()>().await;
            }
        });
        let reply = Sender::new(1).send(&url, &delivery("{}"), timeout).await;
        server.abort();
        reply
    }

    #[tokio::test]
    async fn odd_replies_are_failures_and_never_panics() {
        let long = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: 70000\r\n\r\n{}",
            "x".repeat(70_000)
        );
        let cases: [(&[u8], Result<u16, Failure>); 8] = [
            (b"HTTP/1.1 204 No Content\r\n\r\n", Ok(204)),
            (b"HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n", Ok(999)),
            (
                b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n",
                Ok(302),
            ),
            (
                b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
                Err(Failure::Body),
            ),
            (long.as_bytes(), Err(Failure::Body)),
            (b"no HTTP at all\r\n\r\n", Err(Failure::Transport)),
            (b"HTTP/1.1 20 OK\r\n\r\n", Err(Failure::Transport)),
            (b"", Err(Failure::Transport)),
        ];
        for (reply, expected) in cases {
            let got = exchange_with(reply.to_vec(), true, Duration::from_secs(5)).await;
            assert_eq!(got.status, expected, "{}", String::from_utf8_lossy(reply));
            assert_eq!(got.is_acknowledgement(), expected == Ok(204));
        }
    }

    #[tokio::test]
    async fn the_timeout_covers_the_body() {
        let timeout = Duration::from_millis(50);
        let half = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf".to_vec();
        for reply in [Vec::new(), half] {
            let got = exchange_with(reply, false, timeout).await;
            assert_eq!(got.status, Err(Failure::Timeout));
            assert!(got.took >= timeout);
        }
    }

    #[tokio::test]
    async fn nothing_is_sent_where_nothing_can_be_sent() {
        let sender = Sender::new(0);
        let timeout = Duration::from_secs(5);
        let mut odd = delivery("{}");
        for url in ["", "/notify", "not a url"] {
            let got = sender.send(url, &odd, timeout).await;
            assert_eq!(got.status, Err(Failure::Request), "{url}");
        }
        odd.headers.push(("a b".into(), "c\nd".into()));
        let got = sender.send("http://127.0.0.1:1/", &odd, timeout).await;
        assert_eq!(got.status, Err(Failure::Request));

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        drop(listener);
        let got = sender.send(&url, &delivery("{}"), timeout).await;
        assert_eq!(got.status, Err(Failure::Connect));
    }
}

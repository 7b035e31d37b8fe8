//! FLOW: the life of one delivery, from raw bytes to the answer.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::commit::{Committers, Full};
use crate::core::envelope::Envelope;
use crate::core::keyring::KeyRing;
use crate::core::notice::{Content, Intake, Raw};
use crate::core::reply::{Answer, Reply};
use crate::core::signature::{Refusal, SignedHeaders};
use crate::core::types::UnixMs;
use crate::ports::Clock;
use crate::repeats::Repeats;
use crate::telemetry::{self, names};

/// Takes deliveries.
pub struct Notices {
    /// All keys.
    pub ring: Arc<KeyRing>,
    /// The time of day.
    pub clock: Arc<dyn Clock>,
    /// Where notices become durable.
    pub committers: Committers,
    /// What is known to be committed.
    pub repeats: Arc<Repeats>,
    /// From the request head to the answer at most.
    pub reply_deadline: Duration,
    /// Set while the process goes down.
    pub draining: CancellationToken,
}

/// One POST as it came.
pub struct Delivery<'a> {
    /// All headers, in their order.
    pub headers: Vec<(&'a str, &'a [u8])>,
    /// The exact bytes of the body; nothing when it was too large, or not there in time.
    pub body: Result<&'a [u8], Answer>,
    /// The merchant that the route names.
    pub bound: Option<&'a str>,
    /// When the request head was read.
    pub arrived: Instant,
}

impl Notices {
    /// Answers one delivery. Whatever the answer is, it comes before the deadline, and success is
    /// said only of what is durable.
    pub async fn handle(&self, delivery: Delivery<'_>) -> Reply {
        let answer = self.answer(&delivery).await;
        metrics::histogram!(names::REPLY_SECONDS).record(delivery.arrived.elapsed());
        match answer {
            Answer::Stored | Answer::Unopened => {}
            Answer::Refused(Refusal::Probe) => metrics::counter!(names::PROBES).increment(1),
            refusal => metrics::counter!(names::REFUSALS, "reason" => refusal.kind()).increment(1),
        }
        answer.reply()
    }

    async fn answer(&self, delivery: &Delivery<'_>) -> Answer {
        if delivery.bound.is_some_and(|mchid| !self.ring.knows(mchid)) {
            return Answer::UnknownMerchant;
        }
        let body = match delivery.body {
            Ok(body) => body,
            Err(answer) => return answer,
        };
        telemetry::stage("read", delivery.arrived.elapsed());
        let now = self.clock.now();
        let intake = match self.open(delivery, body, now) {
            Ok(intake) => intake,
            Err(answer) => return answer,
        };
        if intake.event_differs {
            metrics::counter!(names::EVENT_DIFFERS).increment(1);
        }
        if let Some(fact) = intake.fact()
            && let Some(key) = self
                .repeats
                .hit(intake.digest, fact.content(), &intake.envelope_id)
        {
            metrics::counter!(names::REPEATS, "by" => "cache").increment(1);
            self.repeats.count(&key);
            return Answer::Stored;
        }
        if self.draining.is_cancelled() {
            return Answer::Draining;
        }
        let unopened = intake.content == Content::Unopened;
        let verdict = match self.committers.submit(intake) {
            Ok(verdict) => {
                tokio::time::timeout_at(delivery.arrived + self.reply_deadline, verdict).await
            }
            Err(Full) => return Answer::Full,
        };
        match verdict {
            Ok(Ok(Some(_))) if unopened => Answer::Unopened,
            Ok(Ok(Some(_))) => Answer::Stored,
            // the committer could not store it, or ended before it did
            Ok(Ok(None) | Err(_)) => Answer::Unavailable,
            Err(_) => Answer::Late,
        }
    }

    /// Verifies and opens; pure, about 15 us.
    fn open(&self, delivery: &Delivery<'_>, body: &[u8], now: UnixMs) -> Result<Intake, Answer> {
        let headers =
            SignedHeaders::parse(delivery.headers.iter().copied()).map_err(Answer::Refused)?;
        let started = Instant::now();
        let key = headers
            .verify(body, now, &self.ring, delivery.bound)
            .map_err(Answer::Refused)?;
        let verified = Instant::now();
        telemetry::stage("verify", verified - started);
        metrics::histogram!(names::SKEW_SECONDS).record(skew_seconds(now, headers.signed_at()));
        let envelope = Envelope::parse(body).map_err(Answer::Unusable)?;
        let raw = Arc::new(Raw {
            headers: kept_headers(&delivery.headers),
            body: body.to_vec(),
        });
        let intake = envelope.into_intake(&self.ring, key, delivery.bound, raw, now);
        telemetry::stage("decrypt", verified.elapsed());
        Ok(intake)
    }
}

/// Our clock minus the delivery's, in seconds.
#[allow(clippy::cast_precision_loss)]
fn skew_seconds(now: UnixMs, signed_at: UnixMs) -> f64 {
    // within the window of five minutes, so nothing is lost
    (now.0 - signed_at.0) as f64 / 1000.0
}

/// The header lines that are kept with a notice: what the signature needs and what support asks for.
fn kept_headers(headers: &[(&str, &[u8])]) -> Vec<u8> {
    let mut lines = Vec::new();
    for (name, value) in headers {
        let lower = name.to_ascii_lowercase();
        if lower.starts_with("wechatpay-")
            || ["request-id", "content-type", "user-agent"].contains(&&*lower)
        {
            for part in [name.as_bytes(), b": ", value, b"\n"] {
                lines.extend_from_slice(part);
            }
        }
    }
    lines
}

//! What WeChat Pay hears: one row for each way a delivery can end. The status line is what counts;
//! a body of `FAIL` under 200 would be taken for success.

use super::envelope::Unusable;
use super::signature::Refusal;

/// The end of one delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The notice is durable.
    Stored,
    /// Durable, but its resource does not open: asked for again until the key is right.
    Unopened,
    /// Not believed.
    Refused(Refusal),
    /// Believed, but no notice.
    Unusable(Unusable),
    /// Larger than `http.body_bytes_max`.
    TooLarge,
    /// No merchant of this number is configured.
    UnknownMerchant,
    /// The deadline passed before it was durable.
    Late,
    /// The intake queue is full.
    Full,
    /// The process is going down.
    Draining,
    /// The database cannot make it durable now.
    Unavailable,
}

/// An answer in HTTP terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Status number.
    pub status: u16,
    /// JSON for a failure, empty for success.
    pub body: String,
}

impl Answer {
    /// The answer as WeChat Pay gets it. Messages name the kind of fault and nothing else.
    pub fn reply(self) -> Reply {
        let fail = |status: u16, message: &str| Reply {
            status,
            body: format!("{{\"code\":\"FAIL\",\"message\":\"{message}\"}}"),
        };
        match self {
            Answer::Stored => Reply {
                status: 204,
                body: String::new(),
            },
            Answer::Refused(refusal) => fail(401, &refusal.to_string()),
            Answer::Unusable(unusable) => fail(400, &unusable.to_string()),
            Answer::UnknownMerchant => fail(404, "merchant is not configured"),
            Answer::TooLarge => fail(413, "body is too large"),
            Answer::Unopened => fail(500, "resource does not open"),
            Answer::Late => fail(503, "not stored in time"),
            Answer::Full => fail(503, "too many deliveries are waiting"),
            Answer::Draining => fail(503, "shutting down"),
            Answer::Unavailable => fail(503, "not stored"),
        }
    }

    /// The name in metrics and logs, where the answer is not a verdict.
    pub fn kind(self) -> &'static str {
        match self {
            Answer::Stored => "stored",
            Answer::Unopened => "unopened",
            Answer::Refused(refusal) => refusal.kind(),
            Answer::Unusable(_) => "unusable",
            Answer::TooLarge => "too_large",
            Answer::UnknownMerchant => "unknown_merchant",
            Answer::Late => "late",
            Answer::Full => "full",
            Answer::Draining => "draining",
            Answer::Unavailable => "unavailable",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_stored_notice_is_acknowledged() {
        let check = |answer: Answer, status: u16| {
            let reply = answer.reply();
            assert_eq!(reply.status, status, "{answer:?}");
            if status == 204 {
                assert_eq!(reply.body, "");
            } else {
                assert!(reply.body.starts_with(r#"{"code":"FAIL","message":""#));
                assert!(reply.body.len() < 110, "WeChat Pay reads 64 characters");
            }
        };
        check(Answer::Stored, 204);
        check(Answer::Unopened, 500);
        check(Answer::Refused(Refusal::Probe), 401);
        check(
            Answer::Refused(Refusal::HeaderMissing("Wechatpay-Nonce")),
            401,
        );
        check(Answer::Unusable(Unusable::Json), 400);
        check(Answer::TooLarge, 413);
        check(Answer::UnknownMerchant, 404);
        for answer in [
            Answer::Late,
            Answer::Full,
            Answer::Draining,
            Answer::Unavailable,
        ] {
            check(answer, 503);
        }
    }
}

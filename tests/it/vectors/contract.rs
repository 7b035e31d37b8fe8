//! What the service makes of each vector: the answer table, and where it differs from the vectors'
//! own stages.

use super::files::Vector;

/// What the service keeps of a delivery.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kept {
    Nothing,
    /// A row with the refund's fields.
    Fact,
    /// A row in `ignored`.
    Ignored,
    /// A row in `quarantined` with this reason.
    Quarantined(&'static str),
}

pub(super) const UNOPENED: Kept = Kept::Quarantined("resource does not open");

/// Where the service does otherwise than the vectors' stages say, with the reason. Most of it the
/// protocol leaves open.
pub(super) const DIFFERS: [(&str, u16, Kept); 13] = [
    // these four fail before any key is tried, so no key of ours could mend it: the envelope is
    // refused like any other that is none, instead of being kept until a key fits
    ("v3-ciphertext-bad-base64", 400, Kept::Nothing),
    ("v3-ciphertext-url-safe-base64", 400, Kept::Nothing),
    ("v3-nonce-11-bytes", 400, Kept::Nothing),
    ("v3-nonce-16-bytes", 400, Kept::Nothing),
    // what opens to no JSON object is treated as not opened: another key may be the right one
    ("v3-plaintext-not-json", 500, UNOPENED),
    // genuine, but with a field that cannot be read: WeChat Pay would only send the same again, so
    // it is acknowledged, kept whole, and a person is called
    (
        "v3-plaintext-no-out-refund-no",
        204,
        Kept::Quarantined("out_refund_no is missing"),
    ),
    (
        "v3-plaintext-no-amount",
        204,
        Kept::Quarantined("amount.refund is missing"),
    ),
    (
        "v3-plaintext-amount-string",
        204,
        Kept::Quarantined("amount.refund is garbled"),
    ),
    (
        "v3-plaintext-amount-negative",
        204,
        Kept::Quarantined("amount.refund is garbled"),
    ),
    (
        "v3-plaintext-amount-fraction",
        204,
        Kept::Quarantined("amount.refund is garbled"),
    ),
    (
        "v3-plaintext-unknown-status",
        204,
        Kept::Quarantined("refund_status is unknown"),
    ),
    (
        "v3-plaintext-bad-success-time",
        204,
        Kept::Quarantined("success_time is garbled"),
    ),
    // a megabyte is over the default limit, which is looked at before anything else
    ("v3-deep-json-unsigned", 413, Kept::Nothing),
];

/// The answer table: what each outcome and stage comes to.
pub(super) fn contract(vector: &Vector) -> (u16, Kept) {
    if let Some((_, status, kept)) = DIFFERS.iter().find(|(name, ..)| *name == vector.name) {
        return (*status, *kept);
    }
    match (&*vector.expect.outcome, vector.expect.stage.as_deref()) {
        ("accept", None) => (204, Kept::Fact),
        ("accept_ignore", None) => (204, Kept::Ignored),
        ("reject", Some("headers" | "timestamp" | "serial" | "signature")) => (401, Kept::Nothing),
        ("reject", Some("size")) => (413, Kept::Nothing),
        ("reject", Some("envelope")) => (400, Kept::Nothing),
        ("reject", Some("decrypt")) => (500, UNOPENED),
        other => panic!("{}: no rule for {other:?}", vector.name),
    }
}

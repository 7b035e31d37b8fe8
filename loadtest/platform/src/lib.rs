//! A simulated `WeChat Pay APIv3`, as far as refund notices go.
//!
//! It plays the sending side over real HTTP: it makes keys and platform certificates ([`keys`]), writes and encrypts
//! notices ([`notice`]), signs deliveries, forges some, probes with others ([`delivery`]), posts them ([`sender`]) and
//! sends again what was not acknowledged ([`campaign`]).
//!
//! It is a second opinion on the protocol, so it shares no code with the service that receives the notices.
//! The same seed gives the same traffic, save for keys and the moments of signing.
//! What the notices should say, and what the receiver should have made of them, is the caller's business.

pub mod seeded;

pub mod keys;

pub mod notice;

pub mod delivery;

pub mod sender;

pub mod campaign;

pub use campaign::{Attempt, Campaign, Percentiles, Progress, Report};
pub use delivery::{Delivery, sign_all};
pub use keys::{KeyError, Merchant, SigningKey};
pub use notice::{Envelope, Form, RefundNotice, encrypt};
pub use seeded::Seeded;
pub use sender::{Failure, Reply, Sender};

#[cfg(test)]
mod vector;

//! The pure core: no I/O, no async, no clock, no randomness. Time comes in as an argument.
//!
//! In the order in which a notice meets them: [`keyring`] and [`signature`] prove the sender,
//! [`envelope`] opens the resource, [`fact`] says what was reported, [`decide`] judges a commit
//! group, [`plan`] plans a flush, [`batch`] collects, [`sql`] writes the statements, [`reply`]
//! says what WeChat Pay hears.

pub mod batch;
pub mod decide;
pub mod envelope;
pub mod fact;
pub mod keyring;
pub mod notice;
pub mod plan;
pub mod refund;
pub mod reply;
pub mod signature;
pub mod sql;
pub mod types;

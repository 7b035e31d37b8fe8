//! The outside world: HTTP, databases, the system clock. Each decides nothing.

pub mod clock;
pub mod http;
pub mod sql;

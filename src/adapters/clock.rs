//! The system clock, and chance from the standard library's hasher keys.

use std::hash::{BuildHasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::core::types::UnixMs;
use crate::ports::{Clock, Entropy};

/// The machine's own time of day.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> UnixMs {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        UnixMs(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }
}

/// The operating system's chance, good enough to spread retries.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn unit(&self) -> f64 {
        // a new hasher state has random keys
        let bits = u32::try_from(RandomState::new().hash_one(0_u8) >> 32).unwrap_or(0);
        f64::from(bits) / f64::from(u32::MAX)
    }
}

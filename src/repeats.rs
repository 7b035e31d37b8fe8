//! FLOW: repeats. Facts that this process saw committed are remembered for a while, so that a
//! repeat is answered without the database; deliveries of stored notices are counted together.
//!
//! Remembered only after the commit; forgotten when a connection was lost or the store's epoch
//! changed, because the database behind it may then be one that lacks the last writes.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::core::fact::Digest;
use crate::core::notice::NoticeKey;
use crate::core::sql::LIST_MAX;
use crate::ports::Store;
use crate::telemetry;

/// How long a fact is remembered.
const KEEP: Duration = Duration::from_secs(600);
/// Facts remembered at most, about 16 MiB.
const FACTS_MAX: usize = 65_536;
/// Notices whose counts wait at most; beyond it counts are dropped, never answers.
const COUNTS_MAX: usize = 65_536;
/// The pause between two writes of counts.
const COUNT_EVERY: Duration = Duration::from_millis(500);

/// What this process knows to be committed.
#[derive(Default)]
pub struct Repeats {
    known: Mutex<Known>,
    counts: Mutex<HashMap<NoticeKey, i64>>,
}

#[derive(Default)]
struct Known {
    /// Changes whenever everything is forgotten.
    generation: u64,
    facts: HashMap<Digest, Fact>,
    /// Oldest first.
    order: VecDeque<(Instant, Digest)>,
}

struct Fact {
    content: Digest,
    /// The envelope that was looked up with it: another one may wait unopened in a row of its own,
    /// which only the database knows.
    envelope_id: String,
    key: NoticeKey,
}

impl Repeats {
    /// The row of a fact that is known to be committed with just this content and envelope.
    pub fn hit(&self, digest: Digest, content: Digest, envelope_id: &str) -> Option<NoticeKey> {
        let mut known = lock(&self.known);
        known.forget_old();
        let fact = known.facts.get(&digest)?;
        (fact.content == content && fact.envelope_id == envelope_id).then(|| fact.key.clone())
    }

    /// To be read before a commit and handed to [`Repeats::remember`] after it.
    pub fn generation(&self) -> u64 {
        lock(&self.known).generation
    }

    /// Remembers a committed fact, unless everything was forgotten since `generation`.
    pub fn remember(
        &self,
        digest: Digest,
        content: Digest,
        envelope_id: &str,
        key: NoticeKey,
        generation: u64,
    ) {
        let mut known = lock(&self.known);
        if known.generation != generation {
            return;
        }
        if known.facts.len() >= FACTS_MAX
            && let Some((_, oldest)) = known.order.pop_front()
        {
            known.facts.remove(&oldest);
        }
        let fact = Fact {
            content,
            envelope_id: envelope_id.to_owned(),
            key,
        };
        if known.facts.insert(digest, fact).is_none() {
            known.order.push_back((Instant::now() + KEEP, digest));
        }
    }

    /// Forgets everything.
    pub fn forget(&self) {
        let mut known = lock(&self.known);
        let generation = known.generation + 1;
        *known = Known {
            generation,
            ..Known::default()
        };
    }

    /// Counts one more delivery of a stored notice; written later.
    pub fn count(&self, key: &NoticeKey) {
        let mut counts = lock(&self.counts);
        if let Some(count) = counts.get_mut(key) {
            *count += 1;
        } else if counts.len() < COUNTS_MAX {
            counts.insert(key.clone(), 1);
        }
    }

    /// Writes the counts every now and then, and what is left when `stop` comes.
    pub async fn run(self: Arc<Self>, store: Arc<dyn Store>, stop: CancellationToken) {
        loop {
            let last = tokio::select! {
                () = stop.cancelled() => true,
                () = tokio::time::sleep(COUNT_EVERY) => false,
            };
            self.write(&*store).await;
            if last {
                return;
            }
        }
    }

    async fn write(&self, store: &dyn Store) {
        let mut counts: Vec<(NoticeKey, i64)> = lock(&self.counts).drain().collect();
        counts.sort();
        for some in counts.chunks(LIST_MAX) {
            if let Err(error) = store.count_repeats(some).await {
                telemetry::store_error("count_repeats", &error);
                let mut waiting = lock(&self.counts);
                for (key, count) in some {
                    *waiting.entry(key.clone()).or_default() += count;
                }
            }
        }
    }
}

impl Known {
    fn forget_old(&mut self) {
        let now = Instant::now();
        while let Some((until, digest)) = self.order.front().copied() {
            if until > now {
                return;
            }
            self.order.pop_front();
            self.facts.remove(&digest);
        }
    }
}

/// Nothing panics while these are held.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::core::types::Mchid;

    fn key(id: i64) -> NoticeKey {
        NoticeKey {
            id,
            mchid: Mchid::parse("m").unwrap(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_fact_is_known_by_its_content_and_envelope_for_ten_minutes() {
        let repeats = Repeats::default();
        let (digest, content) = (Digest([1; 32]), Digest([2; 32]));
        repeats.remember(digest, content, "e", key(7), repeats.generation());
        assert_eq!(repeats.hit(digest, content, "e"), Some(key(7)));
        assert_eq!(repeats.hit(digest, Digest([3; 32]), "e"), None);
        assert_eq!(repeats.hit(digest, content, "another"), None);
        tokio::time::advance(KEEP).await;
        assert_eq!(repeats.hit(digest, content, "e"), None);
    }

    #[test]
    fn a_commit_from_before_everything_was_forgotten_is_not_remembered() {
        let repeats = Repeats::default();
        let before = repeats.generation();
        repeats.forget();
        repeats.remember(Digest([1; 32]), Digest([2; 32]), "e", key(7), before);
        assert_eq!(repeats.hit(Digest([1; 32]), Digest([2; 32]), "e"), None);
    }
}

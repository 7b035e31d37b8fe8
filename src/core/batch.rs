//! Collects items until a limit is reached: rows, or the age of the first.

/// Collects items of type `T` into batches.
///
/// Never holds more than `rows_max` items, never reorders, never loses one.
#[derive(Debug)]
pub struct Batcher<T> {
    rows_max: usize,
    wait_ms: i64,
    items: Vec<T>,
    /// When the first item came in; meaningless while empty.
    opened_at_ms: i64,
}

impl<T> Batcher<T> {
    /// An empty batcher.
    ///
    /// Units: `rows_max` items (0 counts as 1), `wait_ms` milliseconds.
    pub fn new(rows_max: usize, wait_ms: i64) -> Batcher<T> {
        Batcher {
            rows_max: rows_max.max(1),
            wait_ms,
            items: Vec::new(),
            opened_at_ms: 0,
        }
    }

    /// Adds an item at `now_ms` (any steady clock); gives the batch when it is full.
    pub fn push(&mut self, item: T, now_ms: i64) -> Option<Vec<T>> {
        if self.items.is_empty() {
            self.opened_at_ms = now_ms;
        }
        self.items.push(item);
        (self.items.len() >= self.rows_max).then(|| std::mem::take(&mut self.items))
    }

    /// When the waiting items are to be taken although the batch is not full.
    pub fn due_at_ms(&self) -> Option<i64> {
        (!self.items.is_empty()).then(|| self.opened_at_ms.saturating_add(self.wait_ms))
    }

    /// Gives the waiting items when their time has come.
    pub fn tick(&mut self, now_ms: i64) -> Option<Vec<T>> {
        (self.due_at_ms()? <= now_ms).then(|| self.take())
    }

    /// Gives whatever waits.
    pub fn take(&mut self) -> Vec<T> {
        std::mem::take(&mut self.items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_batch_ends_by_size_or_by_age() {
        let mut batcher = Batcher::new(2, 20);
        assert_eq!(batcher.tick(0), None);
        assert_eq!(batcher.push('a', 5), None);
        assert_eq!(batcher.due_at_ms(), Some(25));
        assert_eq!(batcher.tick(24), None);
        assert_eq!(batcher.tick(25), Some(vec!['a']));
        assert_eq!(batcher.push('b', 30), None);
        assert_eq!(batcher.push('c', 31), Some(vec!['b', 'c']));
        assert_eq!(batcher.due_at_ms(), None);
    }

    proptest! {
        /// Whatever the order of pushes and ticks: no batch passes the limit, nothing is lost,
        /// nothing changes its place, nothing waits past its time.
        #[test]
        fn keeps_every_item_in_order(
            rows_max in 1_usize..9,
            wait_ms in 0_i64..50,
            steps in prop::collection::vec((any::<bool>(), 0_i64..30), 0..200),
        ) {
            let mut batcher = Batcher::new(rows_max, wait_ms);
            let (mut now, mut pushed, mut out) = (0, 0, Vec::new());
            for (is_push, pause) in steps {
                now += pause;
                let batch = if is_push {
                    pushed += 1;
                    batcher.push(pushed, now)
                } else {
                    batcher.tick(now)
                };
                if let Some(batch) = batch {
                    prop_assert!(!batch.is_empty() && batch.len() <= rows_max);
                    out.extend(batch);
                }
                if !is_push {
                    prop_assert!(batcher.due_at_ms().is_none_or(|due| due > now));
                }
            }
            out.extend(batcher.take());
            prop_assert_eq!(out, (1..=pushed).collect::<Vec<_>>());
        }
    }
}

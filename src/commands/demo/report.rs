//! What the demo says in the end: for a person, and for a machine.

use std::time::Duration;

use platform::Percentiles;
use serde_json::json;

use super::Sent;
use crate::core::sql::shop::Books;

/// All that is known at the end.
pub(super) struct Outcome {
    pub(super) refunds: u32,
    pub(super) expected_total_fen: i64,
    pub(super) meant_to_be_refused: usize,
    pub(super) books: Books,
    /// Notices by state.
    pub(super) states: Vec<(String, i64)>,
    pub(super) flushes: u64,
    pub(super) flushed_rows: u64,
    pub(super) database: &'static str,
    pub(super) sent: Sent,
}

impl Outcome {
    fn acknowledged(&self) -> usize {
        let good = |status: &Result<u16, _>| matches!(status, Ok(200 | 204));
        self.sent
            .attempts
            .iter()
            .filter(|attempt| good(&attempt.status))
            .count()
    }

    fn rejected(&self) -> usize {
        self.sent.attempts.len() - self.acknowledged()
    }

    fn notices(&self) -> i64 {
        self.states.iter().map(|(_, count)| count).sum()
    }

    /// Acknowledged deliveries that made no row of their own.
    fn duplicates(&self) -> i64 {
        i64::try_from(self.acknowledged()).unwrap_or(i64::MAX) - self.notices()
    }

    /// Expected refunds without a ledger row.
    fn lost(&self) -> i64 {
        self.books.refunds_without_ledger
    }

    /// Ledger rows beyond the expected.
    fn doubled(&self) -> i64 {
        self.books.ledger_rows - (i64::from(self.refunds) - self.lost())
    }

    fn deliveries_per_s(&self) -> f64 {
        let seconds = self.sent.took.as_secs_f64();
        let count = u32::try_from(self.sent.attempts.len()).unwrap_or(u32::MAX);
        if seconds > 0.0 {
            (f64::from(count) / seconds).round()
        } else {
            0.0
        }
    }

    fn rows_per_flush(&self) -> f64 {
        let ratio = |rows: u64, flushes: u64| {
            let number = |n: u64| f64::from(u32::try_from(n).unwrap_or(u32::MAX));
            (number(rows) / number(flushes.max(1)) * 10.0).round() / 10.0
        };
        ratio(self.flushed_rows, self.flushes)
    }

    fn percentiles(&self) -> Percentiles {
        let took = self
            .sent
            .attempts
            .iter()
            .map(|attempt| attempt.took)
            .collect();
        Percentiles::of(took).unwrap_or(Percentiles {
            count: 0,
            p50: Duration::ZERO,
            p99: Duration::ZERO,
            p999: Duration::ZERO,
            max: Duration::ZERO,
        })
    }

    /// Whether every refund is booked once, the three totals are equal, and WeChat Pay heard yes
    /// and no where it should have.
    pub(super) fn is_exact(&self) -> bool {
        self.lost() == 0
            && self.doubled() == 0
            && self.books.orders_off == 0
            && self.books.ledger_total_fen == self.expected_total_fen
            && self.books.orders_refunded_total_fen == self.expected_total_fen
            && self.sent.wrong == 0
    }

    pub(super) fn json(&self) -> serde_json::Value {
        let percentiles = self.percentiles();
        let ms = |took: Duration| (took.as_secs_f64() * 100_000.0).round() / 100.0;
        json!({
            "refunds": self.refunds,
            "deliveries": self.sent.attempts.len(),
            "acknowledged": self.acknowledged(),
            "rejected": self.rejected(),
            "meant_to_be_refused": self.meant_to_be_refused,
            "wrongly_answered": self.sent.wrong,
            "applied": self.books.refunds_in_success,
            "duplicates": self.duplicates(),
            "notices": self.states.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
            "ledger_rows": self.books.ledger_rows,
            "ledger_total_fen": self.books.ledger_total_fen,
            "orders_refunded_total_fen": self.books.orders_refunded_total_fen,
            "expected_total_fen": self.expected_total_fen,
            "orders_off": self.books.orders_off,
            "lost": self.lost(),
            "doubled": self.doubled(),
            "flushes": self.flushes,
            "rows_per_flush": self.rows_per_flush(),
            "reply_p50_ms": ms(percentiles.p50),
            "reply_p99_ms": ms(percentiles.p99),
            "reply_max_ms": ms(percentiles.max),
            "deliveries_per_s": self.deliveries_per_s(),
            "database": self.database,
            "exact": self.is_exact(),
        })
    }

    pub(super) fn text(&self, duplicates: u32) -> String {
        let percentiles = self.percentiles();
        let ms = |took: Duration| format!("{:.1} ms", took.as_secs_f64() * 1000.0);
        let states: Vec<String> = self
            .states
            .iter()
            .map(|(state, count)| format!("{} {state}", grouped(*count)))
            .collect();
        let verdict = if self.is_exact() {
            "Every refund is booked once, none is lost, none is doubled: the books are exact."
        } else {
            "The books are NOT exact."
        };
        let lines = [
            format!(
                "\nA concert is cancelled: {} refunds, each notice sent {duplicates} times, shuffled, with forgeries among them.\n",
                grouped(i64::from(self.refunds))
            ),
            format!(
                "  WeChat Pay sent     {} deliveries, {} a second; half were answered within {}, 99 % within {}, all within {}",
                grouped_usize(self.sent.attempts.len()),
                grouped_usize(float_to_usize(self.deliveries_per_s())),
                ms(percentiles.p50),
                ms(percentiles.p99),
                ms(percentiles.max)
            ),
            format!(
                "  {:<19} {} acknowledged, {} refused ({} were forged or probes)",
                "it heard",
                grouped_usize(self.acknowledged()),
                grouped_usize(self.rejected()),
                grouped_usize(self.meant_to_be_refused)
            ),
            format!(
                "  {:<19} {} notices ({}); {} repeats made no second row",
                "stored once",
                grouped(self.notices()),
                states.join(", "),
                grouped(self.duplicates())
            ),
            format!(
                "  {:<19} {} ledger rows in {} batches of {} on average, on {}",
                "booked",
                grouped(self.books.ledger_rows),
                self.flushes,
                self.rows_per_flush(),
                self.database
            ),
            format!(
                "  {:<19} {} in the ledger, {} in the orders, {} expected; {} lost, {} doubled\n",
                "the money",
                yuan(self.books.ledger_total_fen),
                yuan(self.books.orders_refunded_total_fen),
                yuan(self.expected_total_fen),
                self.lost(),
                self.doubled()
            ),
            verdict.to_owned(),
        ];
        lines.join("\n")
    }
}

fn yuan(fen: i64) -> String {
    format!("{}.{:02} yuan", grouped(fen / 100), fen % 100)
}

fn grouped_usize(number: usize) -> String {
    grouped(i64::try_from(number).unwrap_or(i64::MAX))
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn float_to_usize(number: f64) -> usize {
    number as usize
}

/// 1,234,567
fn grouped(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if number < 0 { format!("-{out}") } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(grouped(-100), "-100");
        assert_eq!(yuan(123_456), "1,234.56 yuan");
        assert_eq!(yuan(5), "0.05 yuan");
    }
}

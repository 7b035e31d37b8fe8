//! The status of a refund and its transition table. Decided by allowed transitions, never by the
//! order in which notices arrive.

/// Where a refund stands, in WeChat Pay's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RefundStatus {
    /// Accepted, under way.
    Processing,
    /// The bank refused; the money waits to be sent elsewhere. Not final.
    Abnormal,
    /// Money returned. Final.
    Success,
    /// Closed without refund. Final.
    Closed,
}

/// What a reported status means for a row that stands at another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// The row may move to the reported status.
    Move,
    /// The row is there already.
    Already,
    /// An older report: the row is past it, nothing is wrong.
    Superseded,
    /// Two final outcomes contradict each other.
    Contradiction,
    /// The report has no effect on any row.
    NoEffect,
}

impl RefundStatus {
    /// The statuses a compare-and-set may start from, as stored.
    pub const OPEN: [RefundStatus; 2] = [RefundStatus::Processing, RefundStatus::Abnormal];

    /// As a notice spells it: `CLOSE` and `REFUNDCLOSE` are older spellings of `CLOSED`.
    pub fn from_wire(text: &str) -> Option<RefundStatus> {
        match text {
            "CLOSE" | "REFUNDCLOSE" => Some(RefundStatus::Closed),
            _ => RefundStatus::from_stored(text),
        }
    }

    /// As our tables spell it; anything else is nothing of ours.
    pub fn from_stored(text: &str) -> Option<RefundStatus> {
        match text {
            "PROCESSING" => Some(RefundStatus::Processing),
            "ABNORMAL" => Some(RefundStatus::Abnormal),
            "SUCCESS" => Some(RefundStatus::Success),
            "CLOSED" => Some(RefundStatus::Closed),
            _ => None,
        }
    }

    /// The stored and digested spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            RefundStatus::Processing => "PROCESSING",
            RefundStatus::Abnormal => "ABNORMAL",
            RefundStatus::Success => "SUCCESS",
            RefundStatus::Closed => "CLOSED",
        }
    }

    /// What `reported` means for a row that stands at `self`.
    pub fn on_report(self, reported: RefundStatus) -> Transition {
        use RefundStatus::{Abnormal, Closed, Processing, Success};
        match (self, reported) {
            (_, Processing) => Transition::NoEffect,
            (Processing, Abnormal | Success | Closed) | (Abnormal, Success | Closed) => {
                Transition::Move
            }
            (Abnormal, Abnormal) | (Success, Success) | (Closed, Closed) => Transition::Already,
            (Success | Closed, Abnormal) => Transition::Superseded,
            (Success, Closed) | (Closed, Success) => Transition::Contradiction,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::RefundStatus::{self, Abnormal, Closed, Processing, Success};
    use super::Transition::{self, Already, Contradiction, Move, NoEffect, Superseded};

    #[test]
    fn the_transition_table() {
        let check = |row: RefundStatus, reported: RefundStatus, expected: Transition| {
            assert_eq!(row.on_report(reported), expected, "{row:?} {reported:?}");
        };
        for row in [Processing, Abnormal, Success, Closed] {
            check(row, Processing, NoEffect);
        }
        check(Processing, Abnormal, Move);
        check(Processing, Success, Move);
        check(Processing, Closed, Move);
        check(Abnormal, Abnormal, Already);
        check(Abnormal, Success, Move);
        check(Abnormal, Closed, Move);
        check(Success, Abnormal, Superseded);
        check(Success, Success, Already);
        check(Success, Closed, Contradiction);
        check(Closed, Abnormal, Superseded);
        check(Closed, Success, Contradiction);
        check(Closed, Closed, Already);
    }

    #[test]
    fn closed_has_three_spellings_on_the_wire_and_one_in_the_tables() {
        for text in ["CLOSED", "CLOSE", "REFUNDCLOSE"] {
            assert_eq!(RefundStatus::from_wire(text), Some(Closed));
        }
        assert_eq!(RefundStatus::from_stored("CLOSE"), None);
        assert_eq!(RefundStatus::from_wire("CHANGE"), None);
        assert_eq!(RefundStatus::from_wire("success"), None);
    }
}

//! The small types every other module speaks: money, time, identifiers.
//!
//! A raw string becomes one of these once, at the edge; nothing behind the edge parses again.

use std::fmt;

/// An amount of money in whole fen (1/100 yuan). Arithmetic is checked; there is no float.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fen(pub i64);

impl Fen {
    /// The sum, or nothing when it leaves 64 bits.
    pub fn checked_add(self, other: Fen) -> Option<Fen> {
        self.0.checked_add(other.0).map(Fen)
    }
}

impl fmt::Display for Fen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A moment: milliseconds since the Unix epoch, UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixMs(pub i64);

impl UnixMs {
    /// This moment moved by `ms`; stays inside 64 bits.
    pub fn plus_ms(self, ms: i64) -> UnixMs {
        UnixMs(self.0.saturating_add(ms))
    }

    /// Milliseconds from `earlier` to this moment; 0 when a clock jumped back.
    pub fn since_ms(self, earlier: UnixMs) -> i64 {
        self.0.saturating_sub(earlier.0).max(0)
    }
}

/// Why a text is not an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Nothing in it.
    #[error("empty")]
    Empty,
    /// Longer than WeChat Pay's limit for this field, which is also the column's.
    #[error("longer than {0} characters")]
    Long(usize),
    /// A blank, a control character or one outside ASCII. Printable ASCII alone keeps two
    /// different identifiers different under every collation, trailing blanks included.
    #[error("a character that no identifier has")]
    Character,
}

/// Whether `text` can be an identifier of at most `chars_max` characters.
///
/// Errors: [`IdError`], the first that fits.
pub fn check_id(text: &str, chars_max: usize) -> Result<(), IdError> {
    if text.is_empty() {
        return Err(IdError::Empty);
    }
    if !text.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(IdError::Character);
    }
    if text.len() > chars_max {
        return Err(IdError::Long(chars_max));
    }
    Ok(())
}

macro_rules! identifier {
    ($(#[$doc:meta])* $name:ident, $chars_max:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// Characters at most, WeChat Pay's limit and the column's.
            pub const CHARS_MAX: usize = $chars_max;

            /// Parses a text from outside: 1 to `CHARS_MAX` printable ASCII characters.
            pub fn parse(text: &str) -> Result<Self, IdError> {
                check_id(text, Self::CHARS_MAX).map(|()| Self(text.to_owned()))
            }

            /// A text that a table of ours holds already, whatever it looks like: a row is never
            /// refused for the look of its key.
            pub fn stored(text: String) -> Self {
                Self(text)
            }

            /// The text as received.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", self.0)
            }
        }
    };
}

identifier!(
    /// A merchant number.
    Mchid, 32
);
identifier!(
    /// The merchant's refund number: the business key of a refund.
    OutRefundNo, 64
);
identifier!(
    /// The merchant's order number.
    OutTradeNo, 64
);
identifier!(
    /// WeChat Pay's refund number.
    RefundId, 64
);
identifier!(
    /// WeChat Pay's payment number.
    TransactionId, 64
);
identifier!(
    /// A currency code such as `CNY`.
    Currency, 16
);

impl Currency {
    /// What WeChat Pay means where it names no currency.
    pub fn cny() -> Currency {
        Currency("CNY".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_printable_ascii_of_bounded_length() {
        let check = |text: &str, expected: Result<(), IdError>| {
            assert_eq!(check_id(text, 4), expected, "{text:?}");
        };
        check("a|*@", Ok(()));
        check("0042", Ok(()));
        check("", Err(IdError::Empty));
        check("abcde", Err(IdError::Long(4)));
        check("a b", Err(IdError::Character));
        check("a ", Err(IdError::Character));
        check("退款", Err(IdError::Character));
        check("a\0", Err(IdError::Character));
    }

    #[test]
    fn money_and_time_never_wrap() {
        assert_eq!(Fen(i64::MAX).checked_add(Fen(1)), None);
        assert_eq!(UnixMs(i64::MAX).plus_ms(1), UnixMs(i64::MAX));
        assert_eq!(UnixMs(1).since_ms(UnixMs(5)), 0);
    }
}

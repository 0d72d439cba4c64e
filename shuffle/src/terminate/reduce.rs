//! How values of all ranks become one, and of which types they are.

use std::fmt;

/// How values of all ranks become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reduce {
    /// Sum; of integers it wraps around. Of `f64` it is the same for the same values in the same
    /// placement, whatever came first.
    Sum = 0,
    /// Smallest; of `f64` the smallest number, where there is one.
    Min = 1,
    /// Largest; of `f64` the largest number, where there is one.
    Max = 2,
    /// Exclusive or; of integers.
    Xor = 3,
    /// And, bit by bit; of integers.
    And = 4,
    /// Or, bit by bit; of integers.
    Or = 5,
}

/// Of which type values are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Unsigned = 0,
    Signed = 1,
    Float = 2,
}

impl Kind {
    pub const ALL: [Self; 3] = [Self::Unsigned, Self::Signed, Self::Float];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unsigned => "u64",
            Self::Signed => "i64",
            Self::Float => "f64",
        })
    }
}

impl Reduce {
    pub(crate) const ALL: [Self; 6] = [
        Self::Sum,
        Self::Min,
        Self::Max,
        Self::Xor,
        Self::And,
        Self::Or,
    ];

    /// Whether values of this type can be joined so.
    pub(crate) fn suits(self, kind: Kind) -> bool {
        kind != Kind::Float || matches!(self, Self::Sum | Self::Min | Self::Max)
    }

    /// Whether the result depends on the order.
    pub(crate) fn is_in_order(self, kind: Kind) -> bool {
        self == Self::Sum && kind == Kind::Float
    }

    /// Two values, as words, joined.
    pub(crate) fn combine(self, kind: Kind, a: u64, b: u64) -> u64 {
        let (x, y) = (a as i64, b as i64);
        let (v, w) = (f64::from_bits(a), f64::from_bits(b));
        match (self, kind) {
            (Self::Sum, Kind::Float) => (v + w).to_bits(),
            (Self::Min, Kind::Float) => v.min(w).to_bits(),
            (Self::Max, Kind::Float) => v.max(w).to_bits(),
            (Self::Min, Kind::Signed) => x.min(y) as u64,
            (Self::Max, Kind::Signed) => x.max(y) as u64,
            (Self::Sum, _) => a.wrapping_add(b),
            (Self::Min, _) => a.min(b),
            (Self::Max, _) => a.max(b),
            (Self::Xor, _) => a ^ b,
            (Self::And, _) => a & b,
            (Self::Or, _) => a | b,
        }
    }

    /// The value, as a word, that changes none that it is joined with.
    pub(crate) fn neutral(self, kind: Kind) -> u64 {
        match (self, kind) {
            (Self::Min, Kind::Unsigned) | (Self::And, _) => u64::MAX,
            (Self::Min, Kind::Signed) => i64::MAX as u64,
            (Self::Max, Kind::Signed) => i64::MIN as u64,
            (Self::Min, Kind::Float) => f64::INFINITY.to_bits(),
            (Self::Max, Kind::Float) => f64::NEG_INFINITY.to_bits(),
            (Self::Sum, Kind::Float) => (-0.0f64).to_bits(),
            (Self::Sum | Self::Max | Self::Xor | Self::Or, _) => 0,
        }
    }
}

/// Values as messages have them: eight bytes each, one behind the other.
pub(crate) fn bytes_of(words: impl ExactSizeIterator<Item = u64>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8 * words.len());
    words.for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
    bytes
}

/// What collectives reduce: `u64`, `i64` and `f64`.
pub trait Number: sealed::Sealed + Copy {}

pub(crate) mod sealed {
    use super::Kind;

    #[expect(private_interfaces, reason = "nobody else implements it")]
    pub trait Sealed {
        const KIND: Kind;
        fn word(self) -> u64;
        fn of(word: u64) -> Self;
    }
}

macro_rules! number {
    ($type:ty, $kind:ident, $number:ident => $word:expr, $from:ident => $of:expr) => {
        impl Number for $type {}

        #[expect(private_interfaces, reason = "nobody else implements it")]
        impl sealed::Sealed for $type {
            const KIND: Kind = Kind::$kind;

            fn word(self) -> u64 {
                let $number = self;
                $word
            }

            fn of($from: u64) -> Self {
                $of
            }
        }
    };
}

number!(u64, Unsigned, number => number, word => word);
number!(i64, Signed, number => number as u64, word => word as i64);
number!(f64, Float, number => number.to_bits(), word => f64::from_bits(word));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_joined_as_their_types_are() {
        let signed = |reduce: Reduce, a: i64, b: i64| {
            reduce.combine(Kind::Signed, a as u64, b as u64) as i64
        };
        assert_eq!(signed(Reduce::Sum, -3, 5), 2);
        assert_eq!(signed(Reduce::Min, -3, 5), -3);
        assert_eq!(signed(Reduce::Max, -3, 5), 5);
        assert_eq!(Reduce::Min.combine(Kind::Unsigned, -3i64 as u64, 5), 5);
        let float = |reduce: Reduce, a: f64, b: f64| {
            f64::from_bits(reduce.combine(Kind::Float, a.to_bits(), b.to_bits()))
        };
        assert_eq!(float(Reduce::Sum, 0.5, -2.0), -1.5);
        assert_eq!(float(Reduce::Min, 0.5, -2.0), -2.0);
        assert_eq!(float(Reduce::Max, f64::NAN, -2.0), -2.0);
        assert_eq!(Reduce::And.combine(Kind::Unsigned, 12, 10), 8);
        assert_eq!(Reduce::Or.combine(Kind::Signed, 12, 10), 14);
        assert_eq!(Reduce::Xor.combine(Kind::Unsigned, 12, 10), 6);
    }

    #[test]
    fn what_is_neutral_changes_nothing() {
        for kind in Kind::ALL {
            for reduce in Reduce::ALL.into_iter().filter(|reduce| reduce.suits(kind)) {
                for word in [0, 1, u64::MAX >> 12, (-0.0f64).to_bits(), 7.5f64.to_bits()] {
                    let joined = reduce.combine(kind, reduce.neutral(kind), word);
                    assert_eq!(joined, word, "{reduce:?} of {kind}");
                }
            }
        }
    }
}

//! What an option's value may be: how it is read from text, written as text, and held to its range.

use trihop_transport::bootstrap::Launcher;
use trihop_transport::link::Mover;

use super::MinirankCores;
use crate::route::RouteName;

/// A type of the table.
pub(super) trait Value: Sized {
    /// The value that a text stands for, or why it stands for none.
    fn parse(text: &str) -> Result<Self, String>;

    /// What [`parse`](Value::parse) takes for this value; empty where it is absent.
    fn text(&self) -> String;

    /// The value as a number, of an option that has a range.
    fn number(&self) -> Option<u64> {
        None
    }
}

fn whole(text: &str) -> Result<u64, String> {
    text.trim()
        .parse()
        .map_err(|_| format!("`{text}` is not a whole number"))
}

macro_rules! numbers {
    ($($type:ty)+) => {
        $(impl Value for $type {
            fn parse(text: &str) -> Result<Self, String> {
                let beyond = || format!("{} is the most that can be, not `{text}`", Self::MAX);
                whole(text)?.try_into().map_err(|_| beyond())
            }

            fn text(&self) -> String {
                self.to_string()
            }

            fn number(&self) -> Option<u64> {
                // No type of the table is wider.
                Some(*self as u64)
            }
        })+
    };
}

numbers!(u8 u32 u64 usize);

impl Value for bool {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "1" | "true" => Ok(true),
            "0" | "false" | "" => Ok(false),
            _ => Err(format!("`{text}` is neither `1` nor `0`")),
        }
    }

    fn text(&self) -> String {
        u8::from(*self).to_string()
    }
}

impl Value for Option<usize> {
    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(None);
        }
        usize::parse(text).map(|number| (number > 0).then_some(number))
    }

    fn text(&self) -> String {
        self.filter(|&number| number > 0)
            .map_or_else(String::new, |number| number.to_string())
    }

    fn number(&self) -> Option<u64> {
        self.map(|number| number as u64)
    }
}

impl Value for Option<String> {
    fn parse(text: &str) -> Result<Self, String> {
        Ok((!text.is_empty()).then(|| text.to_owned()))
    }

    fn text(&self) -> String {
        self.clone().unwrap_or_default()
    }
}

impl Value for RouteName {
    fn parse(text: &str) -> Result<Self, String> {
        text.parse()
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl Value for Option<Launcher> {
    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(None);
        }
        text.parse().map(Some).map_err(|error| match error {
            trihop_transport::Error::Config { why, .. } => why,
            other => other.to_string(),
        })
    }

    fn text(&self) -> String {
        self.map_or("", Launcher::name).to_owned()
    }
}

impl Value for Option<MinirankCores> {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "own" => Ok(Some(MinirankCores::Own)),
            "shared" => Ok(Some(MinirankCores::Shared)),
            "" => Ok(None),
            _ => Err(format!("`{text}` is neither `own` nor `shared`")),
        }
    }

    fn text(&self) -> String {
        let text = self.map_or("", |cores| match cores {
            MinirankCores::Own => "own",
            MinirankCores::Shared => "shared",
        });
        text.to_owned()
    }
}

impl Value for Option<Mover> {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "read" => Ok(Some(Mover::Read)),
            "segments" => Ok(Some(Mover::Segments)),
            "" => Ok(None),
            _ => Err(format!("`{text}` is neither `read` nor `segments`")),
        }
    }

    fn text(&self) -> String {
        let text = self.map_or("", |mover| match mover {
            Mover::Read => "read",
            Mover::Segments => "segments",
        });
        text.to_owned()
    }
}

/// The numbers that an option may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Range {
    /// Whether 0 may be, which means something of its own, below `low`.
    pub zero: bool,
    pub low: u64,
    pub high: u64,
}

impl Range {
    /// Why the value is not in the range.
    pub fn refuse(self, value: u64) -> Option<String> {
        let Self { zero, low, high } = self;
        if (low..=high).contains(&value) || (zero && value == 0) {
            return None;
        }
        Some(format!("{value} is {} between {low} and {high}", self.or()))
    }

    /// Why a text is no number in the range.
    pub fn refuse_text(self, text: &str) -> String {
        let Self { low, high, .. } = self;
        let or = self.or();
        format!("`{text}` is {or} a whole number between {low} and {high}")
    }

    fn or(self) -> &'static str {
        if self.zero { "neither 0 nor" } else { "not" }
    }
}

/// The range of a row's values; none where these are no numbers.
macro_rules! range_of {
    ((of $text:literal)) => {
        None
    };
    ((0 or $low:literal to $($high:tt)+)) => {
        Some(Range { zero: true, low: $low, high: $crate::option_value!(($($high)+)) })
    };
    (($low:literal $unit:ident to $($high:tt)+)) => {
        Some(Range {
            zero: false,
            low: $crate::option_value!(($low $unit)),
            high: $crate::option_value!(($($high)+)),
        })
    };
    (($low:literal to $($high:tt)+)) => {
        Some(Range { zero: false, low: $low, high: $crate::option_value!(($($high)+)) })
    };
}

pub(super) use range_of;

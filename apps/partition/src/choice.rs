//! What is chosen by a word.

use std::fmt;

/// A word or list that means nothing; its text is a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown(pub(crate) String);

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unknown {}

/// An enum whose values are words, on the command line as in JSON.
macro_rules! choice {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $value:ident = $word:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $($(#[$doc])* #[serde(rename = $word)] $value,)*
        }

        impl $name {
            /// All values.
            pub const ALL: &[Self] = &[$(Self::$value),*];

            /// The word for it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $word,)*
                }
            }
        }

        impl std::str::FromStr for $name {
            type Err = Unknown;

            fn from_str(word: &str) -> Result<Self, Unknown> {
                let known = Self::ALL.iter().find(|value| value.name() == word);
                known.copied().ok_or_else(|| {
                    let words: Vec<_> = Self::ALL.iter().map(|value| value.name()).collect();
                    Unknown(format!("`{word}` is none of {}", words.join(", ")))
                })
            }
        }
    };
}

choice! {
    /// How records are told apart and where their keys are.
    Format {
        /// Comma-separated with a header, quoted as in RFC 4180.
        Csv = "csv",
        /// Tab-separated with a header, quoted as CSV is unless told otherwise.
        Tsv = "tsv",
        /// One JSON value a line.
        Jsonl = "jsonl",
        /// Columns in row groups, in builds with the cargo feature `parquet`.
        Parquet = "parquet",
    }
}

choice! {
    /// What decides the part of a record.
    Split {
        /// The hash of its key: a fixed number of parts.
        Hash = "hash",
        /// Its key: a directory for each value.
        Value = "value",
    }
}

choice! {
    /// How parts are compressed.
    Compression {
        /// Not at all.
        None = "none",
        /// As `gzip` does, in several members.
        Gzip = "gzip",
        /// As `zstd` does, in several frames.
        Zstd = "zstd",
    }
}

choice! {
    /// What becomes of a record that cannot be taken.
    OnBadLine {
        /// It ends the job.
        Stop = "stop",
        /// It is left out of the parts, and written to a file of its own.
        Skip = "skip",
        /// It goes to the part of the empty key.
        Keep = "keep",
    }
}

impl Compression {
    /// What it adds to a file's name.
    pub(crate) fn extension(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Gzip => ".gz",
            Self::Zstd => ".zst",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_name_values_and_others_are_refused_with_all_of_them() {
        assert_eq!("value".parse(), Ok(Split::Value));
        let text = "Value".parse::<Split>().unwrap_err().to_string();
        assert_eq!(text, "`Value` is none of hash, value");
    }
}

//! Options of a job and of its streams, out of one table (`table.rs`): one name each, as a field,
//! as `TRIHOP_<NAME>`, in C, and in error texts.
//!
//! Unknown names and impossible values are refused with the reason; nothing is corrected silently.
//! Of the environment's variables only mistyped ones are refused, and others that begin as ours do
//! are named in a warning.

pub(crate) mod minis;
mod names;
mod pools;
mod shares;
mod shim;
mod table;
mod value;

use std::time::Duration;

use trihop_transport::bootstrap::Launcher;
use trihop_transport::fabric::Choice;
use trihop_transport::link::Mover;

use crate::error::{Error, Result};
use crate::route::RouteName;
use crate::{option_note, option_text, option_value, options_table};

pub use pools::PoolLimits;
pub(crate) use pools::getmsg_bytes_from_env;
pub use shares::Shares;
pub use shim::ShimOptions;
use value::{Range, Value, range_of};

/// One option, as the table has it.
#[derive(Debug, Clone, Copy)]
pub struct OptionRow {
    /// Its name: that of the field, and in lower case that of the variable.
    pub name: &'static str,
    /// Whether it is one of [`StreamOptions`]; else it is one of [`Options`].
    pub of_stream: bool,
    /// Whether all ranks need the same value.
    pub agreed: bool,
    /// What it is where nobody sets it.
    default: &'static str,
    /// What it may be.
    values: &'static str,
    /// What it counts; empty where it is no number.
    pub unit: &'static str,
    range: Option<Range>,
    doc: &'static str,
}

impl OptionRow {
    /// What it is where nobody sets it, as text.
    pub fn default_text(&self) -> String {
        self.default.replace('_', ",")
    }

    /// What it may be, as text.
    pub fn values(&self) -> String {
        self.values.replace('_', ",")
    }

    /// The largest number that it may be.
    pub fn most(&self) -> Option<u64> {
        self.range.map(|range| range.high)
    }

    /// All that there is to say of it.
    pub fn doc(&self) -> &'static str {
        self.doc.trim()
    }

    /// The first sentence of [`doc`](Self::doc), without its full stop.
    pub fn summary(&self) -> &'static str {
        let doc = self.doc();
        let first = doc.split_once(". ").map_or(doc, |(first, _)| first);
        first.trim_end_matches('.')
    }

    /// The variable of the environment.
    pub fn variable(&self) -> String {
        format!("TRIHOP_{}", self.name.to_uppercase())
    }
}

/// Which cores mini-ranks and the communication thread of their process keep to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub enum MinirankCores {
    /// Those of the process, which no other process uses.
    Own,
    /// A part of those that all processes of the machine use.
    Shared,
}

/// Makes the structs of options and what goes over all options, out of the table.
macro_rules! declare {
    (
        stream { $($(#[doc = $s_doc:literal])+ $s_who:ident $s:ident: $s_type:ty as $s_c:tt
            = $s_default:tt in $s_values:tt $s_unit:tt;)+ }
        job { $($(#[doc = $j_doc:literal])+ $j_who:ident $j:ident: $j_type:ty as $j_c:tt
            = $j_default:tt in $j_values:tt $j_unit:tt;)+ }
    ) => {
        /// Options of one stream. The defaults are meant to be left alone.
        #[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
        pub struct StreamOptions {
            $(
                $(#[doc = $s_doc])+
                ///
                #[doc = option_note!($s_who $s_default $s_values $s_unit)]
                pub $s: $s_type,
            )+
            /// Sizes in the place of the shares of `memory_bytes`.
            #[doc(hidden)]
            #[serde(skip_serializing_if = "Option::is_none")]
            pub given_shares: Option<Shares>,
            /// What only clients of DeltaFS ask for.
            #[doc(hidden)]
            pub shim: ShimOptions,
        }

        impl Default for StreamOptions {
            fn default() -> Self {
                Self {
                    $($s: option_value!($s_default),)+
                    given_shares: None,
                    shim: ShimOptions::default(),
                }
            }
        }

        /// Options of a job; `stream` holds the defaults of its streams.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Options {
            /// Defaults for every stream of the job.
            pub stream: StreamOptions,
            /// What the pools of all its streams may take together.
            #[doc(hidden)]
            pub pools: PoolLimits,
            $(
                $(#[doc = $j_doc])+
                ///
                #[doc = option_note!($j_who $j_default $j_values $j_unit)]
                pub $j: $j_type,
            )+
        }

        impl Default for Options {
            fn default() -> Self {
                Self {
                    stream: StreamOptions::default(),
                    pools: PoolLimits::default(),
                    $($j: option_value!($j_default),)+
                }
            }
        }

        impl Options {
            /// All options, in the order of the C struct.
            pub const TABLE: &'static [OptionRow] = &[
                $(OptionRow {
                    name: stringify!($s),
                    of_stream: true,
                    agreed: agreed!($s_who),
                    default: option_text!($s_default),
                    values: option_text!($s_values),
                    unit: $s_unit,
                    range: range_of!($s_values),
                    doc: concat!($($s_doc),+),
                },)+
                $(OptionRow {
                    name: stringify!($j),
                    of_stream: false,
                    agreed: agreed!($j_who),
                    default: option_text!($j_default),
                    values: option_text!($j_values),
                    unit: $j_unit,
                    range: range_of!($j_values),
                    doc: concat!($($j_doc),+),
                },)+
            ];

            /// The value of an option as [`set`](Self::set) takes it, empty where it is absent;
            /// none where there is no such option.
            pub fn get(&self, key: &str) -> Option<String> {
                match key {
                    $(stringify!($s) => Some(self.stream.$s.text()),)+
                    $(stringify!($j) => Some(self.$j.text()),)+
                    _ => None,
                }
            }

            /// Sets one option by name.
            ///
            /// # Errors
            /// An unknown name (with the nearest one), or a value that is none or out of range.
            pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
                match key {
                    $(stringify!($s) => self.stream.$s = parse(key, value, range_of!($s_values))?,)+
                    $(stringify!($j) => self.$j = parse(key, value, range_of!($j_values))?,)+
                    _ => return Err(names::unknown_name(key)),
                }
                Ok(())
            }

            fn check_ranges(&self) -> Result<()> {
                $(in_range(stringify!($j), &self.$j, range_of!($j_values))?;)+
                Ok(())
            }
        }

        impl StreamOptions {
            fn check_ranges(&self) -> Result<()> {
                $(in_range(stringify!($s), &self.$s, range_of!($s_values))?;)+
                Ok(())
            }
        }

        agreed_options!([] [] $($s_who stream $s: $s_type;)+ $($j_who job $j: $j_type;)+);
    };
}

/// Whether a row is one of those that have to be equal on all ranks.
macro_rules! agreed {
    (agreed) => {
        true
    };
    (local) => {
        false
    };
}

/// Makes the struct of what has to be equal on all ranks: one row of the table after the other.
macro_rules! agreed_options {
    ([$($field:ident: $type:ty,)*] [$($from:tt)*]) => {
        /// The options that have to be equal on all ranks: those rows of the table, and no others.
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub(crate) struct AgreedOptions {
            $(pub $field: $type,)*
        }

        impl AgreedOptions {
            pub fn new(stream: &StreamOptions, job: &Options) -> Self {
                agreed_options!(@new stream job $($from)*)
            }

            /// Each with its name and its value as text, in the order of the table.
            pub fn texts(&self) -> Vec<(&'static str, String)> {
                vec![$((stringify!($field), self.$field.text())),*]
            }
        }
    };
    (@new $stream:ident $job:ident $($scope:ident $field:ident)*) => {
        Self { $($field: agreed_options!(@of $scope $stream $job).$field.clone(),)* }
    };
    (@of stream $stream:ident $job:ident) => { $stream };
    (@of job $stream:ident $job:ident) => { $job };
    ([$($fields:tt)*] [$($from:tt)*] agreed $scope:ident $name:ident: $type:ty; $($rest:tt)*) => {
        agreed_options!([$($fields)* $name: $type,] [$($from)* $scope $name] $($rest)*);
    };
    ([$($fields:tt)*] [$($from:tt)*] local $scope:ident $name:ident: $type:ty; $($rest:tt)*) => {
        agreed_options!([$($fields)*] [$($from)*] $($rest)*);
    };
}

options_table!(declare);

const _: () = assert!(
    Options::TABLE.len() <= 25,
    "one option more than users can know"
);

fn parse<T: Value>(key: &str, text: &str, range: Option<Range>) -> Result<T> {
    let told = |why| Error::config(key, range.map_or(why, |range| range.refuse_text(text)));
    let value = T::parse(text).map_err(told)?;
    in_range(key, &value, range)?;
    Ok(value)
}

fn in_range(key: &str, value: &impl Value, range: Option<Range>) -> Result<()> {
    let refused = range
        .zip(value.number())
        .and_then(|(range, value)| range.refuse(value));
    refused.map_or(Ok(()), |why| Err(Error::config(key, why)))
}

impl Options {
    /// Checks every value and how they fit together.
    ///
    /// # Errors
    /// [`Error::Config`], with the option and the possible values.
    pub fn check(&self) -> Result<()> {
        self.stream.check()?;
        self.check_ranges()?;
        if self.loopback && self.interface.is_some() {
            let why = "simulated nodes use the loopback interface only; unset one of TRIHOP_INTERFACE and TRIHOP_LOOPBACK";
            return Err(Error::config("interface", why));
        }
        if self.interfaces().iter().any(String::is_empty) {
            let why = "a list of names with commas between them, and one of them is empty";
            return Err(Error::config("interface", why));
        }
        Ok(())
    }

    /// The names of `interface`, which is a list.
    pub(crate) fn interfaces(&self) -> Vec<String> {
        let names = self.interface.iter().flat_map(|list| list.split(','));
        names.map(|name| name.trim().to_owned()).collect()
    }

    /// What these options ask of libfabric.
    pub fn choice(&self) -> Choice {
        Choice {
            provider: self.provider.clone(),
            interfaces: self.interfaces(),
            eager_bytes: self.eager_bytes.filter(|&bytes| bytes > 0),
            mover: self.mover,
            loopback_only: self.loopback,
            ..Choice::default()
        }
    }

    /// `watch_timeout_ms` as a duration.
    pub fn watch_timeout(&self) -> Duration {
        Duration::from_millis(self.watch_timeout_ms)
    }

    /// `bootstrap_timeout_ms` as a duration.
    pub fn bootstrap_timeout(&self) -> Duration {
        Duration::from_millis(self.bootstrap_timeout_ms)
    }
}

impl StreamOptions {
    /// Checks every value and how they fit together.
    ///
    /// # Errors
    /// [`Error::Config`], with the option and the possible values.
    pub fn check(&self) -> Result<()> {
        self.check_ranges()?;
        self.shim.check(self.deliverq_max)
    }

    /// The sizes that `memory_bytes` stands for.
    #[doc(hidden)]
    pub fn shares(&self) -> Shares {
        self.given_shares
            .unwrap_or_else(|| Shares::of(self.memory_bytes, self.max_message_bytes))
    }
}

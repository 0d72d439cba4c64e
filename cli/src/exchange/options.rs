//! Every option of the library as a long option, as it is called there.

use clap::{Arg, ArgMatches, Command, FromArgMatches};
use trihop::{OptionRow, Options};

use super::error::Result;

/// Short options of the letters that `nexus-runner` has.
const SHORT: [(&str, char); 7] = [
    ("origin_maxrpc", 'm'),
    ("origin_buftarget_bytes", 'a'),
    ("relay_maxrpc", 'y'),
    ("relay_buftarget_bytes", 'b'),
    ("remote_maxrpc", 'M'),
    ("remote_buftarget_bytes", 'B'),
    ("deliverq_max", 'd'),
];

fn long(row: &OptionRow) -> String {
    row.name.replace('_', "-")
}

fn short(name: &str) -> Option<char> {
    let known = SHORT.iter().find(|(long, _)| *long == name);
    known.map(|(_, letter)| *letter)
}

/// The row's option of the command line.
fn argument(row: &'static OptionRow) -> Arg {
    let (value, heading) = match row.of_stream {
        true => ("N", "Queues (as TRIHOP_*)"),
        false => ("VALUE", "Job (as TRIHOP_*)"),
    };
    // Other options by what they are called here.
    let summary = Options::TABLE
        .iter()
        .fold(row.summary().to_owned(), |text, other| {
            text.replace(&format!("`{}`", other.name), &format!("--{}", long(other)))
        });
    let help = format!(
        "{summary} [default: {}; {}]",
        row.default_text(),
        row.values()
    );
    let arg = Arg::new(row.name)
        .long(long(row))
        .value_name(value)
        .help(help)
        .help_heading(heading);
    match short(row.name) {
        Some(letter) => arg.short(letter),
        None => arg,
    }
}

/// Options of the library as given, by their names there; the library checks them.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions(Vec<(&'static str, String)>);

impl EngineOptions {
    /// Sets what was given, above the environment.
    ///
    /// # Errors
    /// The library's, for a value that is none or does not fit the others.
    pub fn apply(&self, options: &mut Options) -> Result<()> {
        for (name, value) in &self.0 {
            options.set(name, value)?;
        }
        Ok(options.check()?)
    }
}

impl FromArgMatches for EngineOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = Self::default();
        given.update_from_arg_matches(matches)?;
        Ok(given)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for row in Options::TABLE {
            if let Some(value) = matches.get_one::<String>(row.name) {
                self.0.push((row.name, value.clone()));
            }
        }
        Ok(())
    }
}

impl clap::Args for EngineOptions {
    fn augment_args(command: Command) -> Command {
        command.args(Options::TABLE.iter().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        options: EngineOptions,
    }

    fn parsed(args: &[&str]) -> EngineOptions {
        Cli::try_parse_from(["exchange"].iter().chain(args))
            .unwrap()
            .options
    }

    /// A value for each option that is not its default.
    fn other_value(name: &str) -> String {
        let words = ["direct", "shm", "127.0.0.9", "read", "single", "own"].map(str::to_owned);
        let numbers = (0..40).map(|power| ((1u64 << power) + 1).to_string());
        let fits = |value: &String| {
            let mut options = Options::default();
            let set = options.set(name, value);
            set.is_ok() && options.check().is_ok() && options != Options::default()
        };
        let whether = ["0", "1"].map(str::to_owned);
        words
            .into_iter()
            .chain(whether)
            .chain(numbers)
            .find(fits)
            .unwrap_or_else(|| panic!("no other value for {name}"))
    }

    #[test]
    fn every_option_long_or_short_sets_its_field_and_no_other() {
        for row in Options::TABLE {
            let value = other_value(row.name);
            let mut expected = Options::default();
            expected.set(row.name, &value).unwrap();
            let long = format!("--{}", long(row));
            let short = short(row.name).map(|letter| format!("-{letter}"));
            for option in [Some(long), short].into_iter().flatten() {
                let mut options = Options::default();
                parsed(&[&option, &value]).apply(&mut options).unwrap();
                assert_eq!(options, expected, "{option} {value}");
            }
        }
    }

    #[test]
    fn short_options_are_of_options_that_there_are() {
        for (name, _) in SHORT {
            assert!(Options::TABLE.iter().any(|row| row.name == name), "{name}");
        }
    }

    #[test]
    fn options_reach_the_library_and_its_errors_come_back() {
        let mut options = Options::default();
        parsed(&["-M", "1", "--linger-us=7", "--provider", "shm"])
            .apply(&mut options)
            .unwrap();
        assert_eq!(
            (options.stream.remote_maxrpc, options.stream.linger_us),
            (1, 7)
        );
        assert_eq!(options.provider.as_deref(), Some("shm"));
        for value in ["0", "many"] {
            let error = parsed(&["--remote-maxrpc", value])
                .apply(&mut Options::default())
                .unwrap_err();
            assert!(error.to_string().contains("remote_maxrpc"), "{error}");
            assert_eq!(error.exit_status(), 2);
        }
    }
}

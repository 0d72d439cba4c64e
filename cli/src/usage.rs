//! Wrong usage: what is said of it.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Options as other tools have them: the command, what is typed, and what does it here.
const KNOWN_ELSEWHERE: [(&str, &[&str], &str); 4] = [
    (
        "partition",
        &[
            "-k",
            "--key",
            "--keys",
            "--column",
            "--columns",
            "--field",
            "--fields",
            "--partition-by",
            "--partition-key",
        ],
        "--by",
    ),
    ("partition", &["-o"], "--out"),
    ("partition", &["-n", "--np"], "--ranks"),
    ("bench", &["-n", "--np"], "--ranks"),
];

/// The error without advice to pass an unknown option as a value, which is never what was meant,
/// and with the option that was meant where that is known.
pub fn mended(mut error: clap::Error) -> clap::Error {
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    let said = match error.remove(ContextKind::Suggested) {
        Some(ContextValue::StyledStrs(said)) => said,
        _ => Vec::new(),
    };
    let of_use = said
        .into_iter()
        .filter(|advice| !advice.to_string().starts_with("to pass '"));
    let of_use: Vec<_> = of_use.collect();
    if !of_use.is_empty() {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(of_use));
    }
    if let Some(option) = meant_by(&error) {
        let option = ContextValue::String(option.to_owned());
        error.insert(ContextKind::SuggestedArg, option);
    }
    error
}

/// The option that goes by another name elsewhere.
fn meant_by(error: &clap::Error) -> Option<&'static str> {
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let usage = error.get(ContextKind::Usage)?.to_string();
    let is_of = |command: &str| usage.contains(&format!("trihop {command} "));
    let mut known = KNOWN_ELSEWHERE.iter();
    known
        .find(|(command, names, _)| is_of(command) && names.contains(&&**typed))
        .map(|(_, _, option)| *option)
}

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory, Parser};

    use super::*;
    use crate::Cli;

    fn refused(words: &[&str]) -> String {
        let words = ["trihop"].iter().chain(words);
        mended(Cli::try_parse_from(words).unwrap_err()).to_string()
    }

    #[test]
    fn options_that_other_tools_have_lead_to_ours() {
        for (command, names, option) in KNOWN_ELSEWHERE {
            let of = Cli::command();
            let of = of.find_subcommand(command).unwrap();
            let mut longs = of.get_arguments().filter_map(clap::Arg::get_long);
            assert!(longs.any(|long| option == format!("--{long}")), "{option}");
            for name in names {
                let refused = refused(&[command, name, "x"]);
                let tip = format!("tip: a similar argument exists: '{option}'");
                assert!(refused.contains(&tip), "{command} {name}: {refused}");
            }
        }
    }

    #[test]
    fn no_unknown_option_is_to_be_passed_as_a_value() {
        for command in [
            "partition",
            "bench",
            "report",
            "dump",
            "info",
            "topo",
            "top",
        ] {
            let refused = refused(&[command, "--zzz"]);
            assert!(refused.contains("unexpected argument '--zzz'"), "{refused}");
            assert!(!refused.contains("tip:"), "{refused}");
        }
        let near = refused(&["partition", "--output", "x"]);
        assert!(
            near.contains("a similar argument exists: '--out'"),
            "{near}"
        );
    }

    /// Sentences of the standard library about texts that are no value of a type.
    const OF_STD: [&str; 7] = [
        "invalid digit",
        "cannot parse",
        "number too",
        "invalid float",
        "invalid socket address",
        "invalid IP address",
        "provided string",
    ];

    /// Tries texts that are no value on each option and argument of a command, and of those below.
    fn try_texts(command: &Command, path: &[&str], tried: &mut usize) {
        for below in command.get_subcommands() {
            try_texts(below, &[path, &[below.get_name()]].concat(), tried);
        }
        for arg in command.get_arguments() {
            let (Some(long), true) = (arg.get_long(), arg.get_action().takes_values()) else {
                continue;
            };
            for text in ["zzz", "", "-1", "1.5", "99999999999999999999999", "1e999"] {
                let given = format!("--{long}={text}");
                let words = [&["trihop"], path, &[&given]].concat();
                let Err(error) = Cli::try_parse_from(words) else {
                    continue;
                };
                let is_about_it = error.kind() == ErrorKind::ValueValidation;
                let said = mended(error).to_string();
                let is_of_std = OF_STD.iter().any(|sentence| said.contains(sentence));
                assert!(!is_of_std, "{path:?} {given}: {said}");
                *tried += usize::from(is_about_it && said.contains(&format!("--{long}")));
            }
        }
    }

    #[test]
    fn values_that_are_none_are_told_what_would_be_one() {
        let mut tried = 0;
        try_texts(&Cli::command(), &[], &mut tried);
        assert!(tried > 150, "{tried} values were refused");
        let said = refused(&["partition", "--parts", "ten"]);
        let expected = "'ten' for '--parts <N>': a whole number from 1 to 1000000 is needed";
        assert!(said.contains(expected), "{said}");
        let said = refused(&["dump", "ten"]);
        let expected = "'ten' for '<PID>': a whole number from 0 to 4294967295 is needed";
        assert!(said.contains(expected), "{said}");
    }
}

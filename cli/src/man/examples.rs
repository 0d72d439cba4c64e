//! What the manual pages show of each command.

/// Words behind `trihop`, and what they do; by command.
pub(super) const EXAMPLES: [(&str, &[(&str, &str)]); 12] = [
    (
        "info",
        &[
            (
                "info",
                "shows the providers of libfabric and the one that would be chosen",
            ),
            ("info --json", "the same for a script"),
        ],
    ),
    (
        "run",
        &[
            (
                "run -n 4 --nodes 2 -- ./program",
                "runs a program as four ranks on two simulated nodes",
            ),
            (
                "run --node-sizes 3,1 --timeout 60 -- ./program",
                "three ranks on one node and one on another, for a minute at most",
            ),
            (
                "run -n 4 --nodes 2 --netns -- ./program",
                "gives each node a network of its own (as root)",
            ),
        ],
    ),
    (
        "agent",
        &[
            (
                "agent --ranks 4",
                "serves the four ranks of this node until their job ends",
            ),
            (
                "agent --ranks 4 --linger-ms 60000",
                "serves one job of four ranks after the other, until none has come for a minute",
            ),
            (
                "agent --ranks 4 --nics 2",
                "starts two agents here, which share the four ranks of a job",
            ),
        ],
    ),
    (
        "serve",
        &[
            (
                "serve",
                "serves guests of this machine under the default name, until a signal comes",
            ),
            (
                "serve --name shared --quiet",
                "under another name, which guests find by TRIHOP_GUESTS or --name",
            ),
        ],
    ),
    (
        "channel",
        &[
            (
                "channel create --messages 1000",
                "makes a channel at the server of this machine, and prints its descriptor",
            ),
            (
                "channel send --lines DESCRIPTOR",
                "sends each line of standard input as a message",
            ),
            (
                "channel get --timeout-ms 0 DESCRIPTOR",
                "writes the first message to standard output; status 3 where there is none",
            ),
        ],
    ),
    (
        "top",
        &[
            (
                "top",
                "shows all jobs of this user here, until q is pressed",
            ),
            ("top --once --by node", "one look, a row for each node"),
        ],
    ),
    (
        "dump",
        &[(
            "dump 21624",
            "shows what a rank does and waits for, by its process number",
        )],
    ),
    (
        "report",
        &[(
            "report --output report.html histo.json",
            "makes a page of what `trihop bench histo --json` has printed",
        )],
    ),
    (
        "exchange",
        &[
            (
                "run -n 4 --nodes 2 -- trihop exchange",
                "four ranks send each other messages and check them",
            ),
            (
                "run -n 4 -- trihop exchange --count 100000 --json",
                "more of them, with the counters as JSON",
            ),
        ],
    ),
    (
        "bench",
        &[
            (
                "bench histo --ranks 4 --nodes 2",
                "random updates of a table by four ranks on two nodes",
            ),
            ("bench p2p", "latency and rate between two nodes"),
        ],
    ),
    (
        "topo",
        &[
            (
                "topo --ranks 10240 --nodes 320",
                "who represents which nodes in a job of that shape",
            ),
            (
                "topo --ranks 64 --nodes 4 --route mesh:8x8",
                "what another route asks of each rank",
            ),
        ],
    ),
    (
        "partition",
        &[
            (
                "partition --by country --out parts cities.csv",
                "splits a table by a column",
            ),
            (
                "run -n 8 -- trihop partition --by country --out parts cities.csv",
                "the same with eight ranks",
            ),
        ],
    ),
];

/// The examples of a command as a section below its options.
pub(super) fn section(command: &str) -> String {
    let shown = EXAMPLES.iter().find(|(name, _)| *name == command);
    section_of(shown.into_iter().flat_map(|(_, examples)| *examples))
}

/// As that, the first one of each command.
pub(super) fn of_all() -> String {
    section_of(EXAMPLES.iter().filter_map(|(_, examples)| examples.first()))
}

fn section_of<'e>(shown: impl Iterator<Item = &'e (&'e str, &'e str)>) -> String {
    let lines: String = shown
        .map(|(words, what)| format!("  trihop {words}  {what}\n"))
        .collect();
    format!("EXAMPLES\n{lines}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};
    use std::fs;
    use std::path::Path;

    /// Lines of the blocks of shell in a document, those that go on as one.
    fn lines_of_shell(text: &str) -> Vec<String> {
        let (mut lines, mut is_shell, mut begun) = (Vec::new(), false, String::new());
        for line in text.lines() {
            if line.starts_with("```") {
                is_shell = line == "```sh";
            } else if is_shell {
                match line.strip_suffix('\\') {
                    Some(begin) => begun += begin,
                    None => lines.push(std::mem::take(&mut begun) + line),
                }
            }
        }
        lines
    }

    /// The words of a line of shell, quoted ones as one.
    fn words_of(line: &str) -> Vec<String> {
        let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
        for letter in line.chars() {
            match (letter, quote) {
                (_, Some(by)) if letter == by => quote = None,
                ('\'' | '"', None) => quote = Some(letter),
                (_, None) if letter.is_whitespace() => words.push(std::mem::take(&mut word)),
                _ => word.push(letter),
            }
        }
        words.push(word);
        words.retain(|word| !word.is_empty());
        words
    }

    /// What a newcomer copies from a document is understood: commands that go, and options that get
    /// other names, are found here.
    #[test]
    fn commands_in_documents_are_understood() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let docs = fs::read_dir(root.join("docs")).unwrap();
        let mut documents: Vec<_> = docs.map(|entry| entry.unwrap().path()).collect();
        documents.retain(|path| path.extension().is_some_and(|end| end == "md"));
        documents.extend(["README.md", "CONTRIBUTING.md"].map(|name| root.join(name)));
        let mut understood = 0;
        for path in documents {
            for line in lines_of_shell(&fs::read_to_string(&path).unwrap()) {
                let line = line.split(" #").next().unwrap_or_default();
                for part in line
                    .split(" -- ")
                    .flat_map(|part| part.split(['|', '&', ';', '>']))
                {
                    let words = words_of(part).into_iter();
                    let words: Vec<String> = words
                        .skip_while(|word| word != "trihop" && !word.ends_with("/trihop"))
                        .collect();
                    let Some(command) = words.get(1) else {
                        continue;
                    };
                    let is_run = (command == "run").then(|| "./program".to_owned());
                    let parsed = crate::Cli::try_parse_from(words.iter().cloned().chain(is_run));
                    if let Err(error) = parsed {
                        panic!("{}: `{part}`: {error}", path.display());
                    }
                    understood += 1;
                }
            }
        }
        assert!(understood >= 20, "only {understood} commands were found");
    }

    #[test]
    fn each_command_has_examples_that_it_understands() {
        let command = crate::Cli::command();
        let shown: Vec<&str> = command
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
            .map(clap::Command::get_name)
            .collect();
        let mut examples = EXAMPLES.map(|(name, _)| name);
        examples.sort_unstable();
        let mut names = shown.clone();
        names.sort_unstable();
        assert_eq!(names, examples);
        for (name, examples) in EXAMPLES {
            for (words, _) in examples {
                let whole = format!("trihop {words}");
                assert!(whole.contains(&format!("trihop {name}")), "{whole}");
                for part in whole
                    .split(" -- ")
                    .filter(|part| part.starts_with("trihop "))
                {
                    let is_run = part.starts_with("trihop run");
                    let words = part.split(' ').chain(is_run.then_some("./program"));
                    crate::Cli::try_parse_from(words).unwrap_or_else(|e| panic!("{whole}: {e}"));
                }
            }
        }
    }
}

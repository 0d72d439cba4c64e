//! Agents under tools that look into them: valgrind, and perf, whose samples become stacks for a
//! flame graph.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Error;

/// Samples of an agent in a second; no divisor of what programs do at round times.
const SAMPLES_PER_SECOND: &str = "199";

/// What looks into agents.
#[derive(Debug, Clone)]
pub(super) enum Tool {
    /// Writes what it finds of each agent to a file of this folder.
    Valgrind,
    /// Leaves the stacks of each agent in this folder.
    Perf(PathBuf),
}

impl Tool {
    /// The words that run an agent under it. What an earlier job of so many agents on each of so
    /// many nodes has left is removed.
    ///
    /// # Errors
    /// It is not installed; its folder cannot be made, or has a name that is no text.
    pub(super) fn begin(&self, nodes: usize, agents: u32) -> Result<Vec<String>, Error> {
        match self {
            Self::Valgrind => {
                is_installed("--agent-valgrind", "valgrind", "valgrind")?;
                Ok(words(&[
                    "valgrind",
                    "--leak-check=full",
                    "--show-leak-kinds=definite",
                    "--errors-for-leak-kinds=definite",
                    "--num-callers=30",
                    "--log-file=agent-{node}.{agent}.valgrind.log",
                ]))
            }
            Self::Perf(folder) => {
                let packages = "linux-perf (Debian), linux-tools (Ubuntu) or perf";
                is_installed("--agent-flamegraph", "perf", packages)?;
                fs::create_dir_all(folder)
                    .map_err(|e| Error::system(format!("making {}", folder.display()), e))?;
                for (node, agent) in each(nodes, agents) {
                    let data = data_of(folder, &node.to_string(), &agent.to_string());
                    for file in [data.with_extension("folded"), data] {
                        remove(&file).map_err(|e| {
                            Error::system(format!("removing {}", file.display()), e)
                        })?;
                    }
                }
                let data = data_of(folder, "{node}", "{agent}");
                let data = data.to_str().ok_or_else(|| {
                    let why = format!("--agent-flamegraph {}: no text", folder.display());
                    Error::Usage(why)
                })?;
                // Stacks by the unwind tables, which all programs have: few have frame pointers.
                let record = ["perf", "record", "--quiet", "--freq", SAMPLES_PER_SECOND];
                let output = ["--call-graph", "dwarf", "--output", data, "--"];
                Ok(words(&[record, output].concat()))
            }
        }
    }

    /// Once the job has ended: makes what is asked for out of what it has left of so many agents on
    /// each of so many nodes.
    ///
    /// # Errors
    /// It has left nothing of an agent, or that cannot be read.
    pub(super) fn finish(&self, nodes: usize, agents: u32) -> Result<(), Error> {
        let Self::Perf(folder) = self else {
            return Ok(());
        };
        // Those of all agents that have left some, whatever is missing of others.
        let folded = each(nodes, agents).map(|(node, agent)| {
            let data = data_of(folder, &node.to_string(), &agent.to_string());
            fold(&data).map_err(|e| {
                let what = format!("the stacks of agent {agent} of node {node}");
                Error::system(what, e)
            })
        });
        folded.fold(Ok(()), Result::and)
    }
}

/// Each agent: its node, and its number there.
fn each(nodes: usize, agents: u32) -> impl Iterator<Item = (usize, u32)> {
    (0..nodes).flat_map(move |node| (0..agents).map(move |agent| (node, agent)))
}

fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// What perf leaves of an agent.
fn data_of(folder: &Path, node: &str, agent: &str) -> PathBuf {
    folder.join(format!("agent-{node}.{agent}.data"))
}

fn is_installed(option: &str, program: &str, packages: &str) -> Result<(), Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_program = |file: PathBuf| {
        let about = fs::metadata(file);
        about.is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
    };
    match std::env::split_paths(&path).any(|folder| is_program(folder.join(program))) {
        true => Ok(()),
        false => Err(Error::Usage(format!(
            "{option} runs `{program}`, which is not in PATH: install the package {packages}"
        ))),
    }
}

/// Writes the stacks of an agent beside its samples, one in a line: what calls what, with
/// semicolons between, and how many samples had it.
fn fold(data: &Path) -> io::Result<()> {
    if !data.exists() {
        let why = format!("perf has not written {}", data.display());
        return Err(io::Error::other(why));
    }
    let mut script = Command::new("perf");
    script.args(["script", "--no-inline", "--fields", "comm,ip,sym"]);
    script.arg("--input").arg(data);
    script.stdin(Stdio::null());
    script.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut script = script.spawn()?;
    let said = script.stderr.take().map(|mut stderr| {
        std::thread::spawn(move || {
            let mut said = Vec::new();
            let _ = stderr.read_to_end(&mut said);
            said
        })
    });
    let mut stacks = Stacks::default();
    if let Some(stdout) = script.stdout.take() {
        for line in BufReader::new(stdout).split(b'\n') {
            stacks.take(&String::from_utf8_lossy(&line?));
        }
    }
    stacks.end();
    let status = script.wait()?;
    if !status.success() {
        let said = said.and_then(|thread| thread.join().ok());
        let said = String::from_utf8_lossy(&said.unwrap_or_default()).into_owned();
        let why = format!("`perf script --input {}`: {said}", data.display());
        return Err(io::Error::other(why.trim_end().to_owned()));
    }
    let mut file = io::BufWriter::new(fs::File::create(data.with_extension("folded"))?);
    for (stack, count) in &stacks.counts {
        writeln!(file, "{stack} {count}")?;
    }
    file.flush()
}

/// Folds what `perf script` prints of each sample: a line with the thread's name, one for each
/// frame from the innermost one on, with an address and the function's name, and an empty line.
#[derive(Debug, Default)]
struct Stacks {
    counts: BTreeMap<String, u64>,
    thread: String,
    frames: Vec<String>,
}

impl Stacks {
    fn take(&mut self, line: &str) {
        let words = line.trim();
        if words.is_empty() {
            self.end();
        } else if line.starts_with(char::is_whitespace) && !self.thread.is_empty() {
            let name = words.split_once(' ').map_or(words, |(_, name)| name.trim());
            self.frames.push(without_semicolons(name));
        } else {
            self.end();
            self.thread = without_semicolons(words);
        }
    }

    /// The sample is whole.
    fn end(&mut self) {
        let thread = std::mem::take(&mut self.thread);
        let frames = std::mem::take(&mut self.frames);
        if thread.is_empty() {
            return;
        }
        let stack = std::iter::once(thread).chain(frames.into_iter().rev());
        let stack = stack.collect::<Vec<_>>().join(";");
        *self.counts.entry(stack).or_default() += 1;
    }
}

/// Types of arrays have some.
fn without_semicolons(name: &str) -> String {
    name.replace(';', ":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_counted_from_the_outermost_frame_on() {
        let printed = "\
trihop-agent-jo 
\t    7f01 trihop::relay<[u8; 4]>
\t    7f02 main

trihop-agent-jo 
\t    7f03 trihop::relay<[u8; 4]>
\t    7f02 main

two words
\tffffffff81 [unknown]
";
        let mut stacks = Stacks::default();
        printed.lines().for_each(|line| stacks.take(line));
        stacks.end();
        let folded: Vec<_> = stacks.counts.into_iter().collect();
        let expected = [
            ("trihop-agent-jo;main;trihop::relay<[u8: 4]>", 2),
            ("two words;[unknown]", 1),
        ];
        assert_eq!(folded, expected.map(|(stack, n)| (stack.to_owned(), n)));
    }
}

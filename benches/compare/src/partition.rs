//! A CSV file by the values of a key: `trihop partition` beside what people take for it on one
//! machine. Every entry reads one file and writes a file for each value; then the records of each
//! value are counted, and only a run whose counts are right gives figures.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::entries::{Entry, How, Setting};
use crate::launch::Program;
use crate::plan::{Contest, Work};

/// Name of the benchmark.
pub const BENCH: &str = "partition";

/// Bytes of the input, and those of `--quick`.
const BYTES: u64 = 300 << 20;
const QUICK_BYTES: u64 = 3 << 20;

/// Values of the key, of very unequal numbers of records.
const KEYS: u64 = 246;

/// Ranks of ours.
const RANKS: [u32; 4] = [1, 2, 4, 8];

/// Systems that are compared with.
pub const RIVALS: [&str; 3] = ["DuckDB", "Polars", "mawk"];

const HEADER: &str = "id,key,amount,text";

/// Who partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Tool {
    /// Ours.
    Trihop,
    /// DuckDB's `COPY ... (PARTITION_BY ...)`.
    Duckdb,
    /// Polars' `sink_csv` by key.
    Polars,
    /// `print >` of mawk.
    Mawk,
}

/// What the hidden subcommand is told.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    tool: Tool,
    /// Executable: ours, or that of Python or mawk.
    #[arg(long)]
    program: PathBuf,
    /// Folder of the rivals' scripts.
    #[arg(long)]
    scripts: PathBuf,
    /// Ranks of ours.
    #[arg(long, default_value_t = 1)]
    ranks: u32,
    /// Where the input is; the counts lie beside it, and parts go to a folder beside it.
    #[arg(long)]
    input: PathBuf,
}

/// The contest: ours on several numbers of ranks, then the rivals.
pub fn contest(setting: &Setting) -> Contest {
    let entry = |system: String, tool: Tool, program: Result<PathBuf, String>, ranks: u32| {
        let how = match program {
            Ok(program) => How::Json(started(setting, tool, &program, ranks), Some(1)),
            Err(why) => How::Absent(why),
        };
        let ours = tool == Tool::Trihop;
        Entry {
            system,
            ours,
            way: if ours {
                "shared memory"
            } else {
                "threads of one process"
            }
            .into(),
            crosses: false,
            memory_groups: None,
            how,
        }
    };
    let mut entries: Vec<Entry> = RANKS
        .into_iter()
        .map(|ranks| entry(ours(ranks), Tool::Trihop, Ok(setting.trihop.clone()), ranks))
        .collect();
    let python = || setting.python.clone();
    let [duckdb, polars, mawk] = RIVALS;
    entries.push(entry(duckdb.into(), Tool::Duckdb, python(), 1));
    entries.push(entry(polars.into(), Tool::Polars, python(), 1));
    let mawk = Entry {
        way: "one thread".into(),
        ..entry(mawk.into(), Tool::Mawk, found("mawk"), 1)
    };
    entries.push(mawk);
    Contest {
        goals: &[BENCH],
        work: work(),
        reference: "trihop, 2 ranks",
        sizes: vec![0],
        entries,
        within: Duration::from_secs(180),
    }
}

/// What everybody does.
pub fn work() -> Work {
    Work::new(BENCH, 0, 1, 0, 0)
}

/// A program of the system, or that it is not there.
fn found(program: &str) -> Result<PathBuf, String> {
    let asked = Command::new(program).arg("--version").output();
    asked
        .map(|_| program.into())
        .map_err(|_| format!("{program} is not installed"))
}

/// Ours, as the system is called.
pub fn ours(ranks: u32) -> String {
    let plural = if ranks == 1 { "" } else { "s" };
    format!("trihop, {ranks} rank{plural}")
}

fn started(setting: &Setting, tool: Tool, program: &Path, ranks: u32) -> Program {
    let word = match tool {
        Tool::Trihop => "trihop",
        Tool::Duckdb => "duckdb",
        Tool::Polars => "polars",
        Tool::Mawk => "mawk",
    };
    let text = |path: &Path| path.display().to_string();
    let mut argv = vec![text(&setting.myself), BENCH.into(), word.into()];
    argv.extend(["--program".into(), text(program)]);
    argv.extend(["--scripts".into(), text(&setting.scripts)]);
    argv.extend(["--ranks".into(), ranks.to_string()]);
    argv.extend(["--input".into(), text(&input(setting))]);
    Program::new(argv)
}

fn input(setting: &Setting) -> PathBuf {
    setting.folder.join("partition.csv")
}

/// Writes the input of a contest, which all entries read.
///
/// # Errors
/// The operating system's answer.
pub fn prepare(setting: &Setting) -> io::Result<()> {
    let bytes = if setting.quick { QUICK_BYTES } else { BYTES };
    make(&input(setting), bytes)
}

/// Writes a table of about so many bytes, the same each time, and its counts beside it.
fn make(path: &Path, bytes: u64) -> io::Result<()> {
    let mut to = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    let (mut written, mut id, mut state) = (0, 0u64, 1u64);
    let mut random = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    writeln!(to, "{HEADER}")?;
    let text =
        "the quick brown fox jumps over the lazy dog and runs away into the dark green wood ";
    while written < bytes {
        // The cube of a number between 0 and 1: half of the records have an eighth of the keys.
        let at = random() as f64 / (1u64 << 31) as f64;
        let key = format!("k{}", (at * at * at * KEYS as f64) as u64);
        let length = 20 + random() as usize % (text.len() - 20);
        let record = format!(
            "{id},{key},{}.{:02},{}",
            random() % 100_000,
            id % 100,
            &text[..length]
        );
        writeln!(to, "{record}")?;
        written += record.len() as u64 + 1;
        id += 1;
        *counts.entry(key).or_default() += 1;
    }
    to.into_inner()?.sync_all()?;
    let counts = serde_json::to_vec(&counts)?;
    fs::write(path.with_extension("counts"), counts)
}

/// One line of figures; a message is a record.
#[derive(Debug, Serialize)]
pub struct Row {
    size: usize,
    count: u64,
    msgs_per_s: f64,
    bytes_per_s: f64,
    cpu_us_per_msg: f64,
    seconds: f64,
    cpu_seconds: f64,
    checked: bool,
}

/// Runs one tool, from its start until all parts are on the disk, then counts records.
///
/// # Errors
/// What the tool said, or which value has another number of records.
pub fn run(arguments: &Arguments) -> Result<Row, String> {
    let input = &arguments.input;
    let wrong = |what: &str| {
        let path = input.display().to_string();
        let what = what.to_owned();
        move |error: io::Error| format!("{path}: {what}: {error}")
    };
    let counts = fs::read(input.with_extension("counts")).map_err(wrong("its counts"))?;
    let counts: BTreeMap<String, u64> =
        serde_json::from_slice(&counts).map_err(|error| format!("counts: {error}"))?;
    let bytes = fs::metadata(input).map_err(wrong("the input"))?.len();
    let out = input.with_extension(format!("parts-{}", std::process::id()));
    fs::create_dir(&out).map_err(wrong("making the folder of parts"))?;
    let measured = measure(arguments, &out);
    let found = measured.and_then(|figures| Ok((figures, count(&out)?)));
    fs::remove_dir_all(&out).map_err(wrong("removing the parts"))?;
    let ((seconds, cpu_seconds), found) = found?;
    if found != counts {
        let differs = counts
            .iter()
            .find(|(key, count)| found.get(*key) != Some(count));
        return Err(match differs {
            Some((key, count)) => format!(
                "`{key}` has {} records in its part, and {count} in the input",
                found.get(key).copied().unwrap_or(0)
            ),
            None => "there are parts of values that the input does not have".to_owned(),
        });
    }
    let records: u64 = counts.values().sum();
    Ok(Row {
        size: 0,
        count: records,
        msgs_per_s: records as f64 / seconds,
        bytes_per_s: bytes as f64 / seconds,
        cpu_us_per_msg: cpu_seconds * 1e6 / records as f64,
        seconds,
        cpu_seconds,
        checked: true,
    })
}

/// Seconds by the clock, and of all cores together.
fn measure(arguments: &Arguments, out: &Path) -> Result<(f64, f64), String> {
    let script = |name: &str| arguments.scripts.join(name);
    let mut command = Command::new(&arguments.program);
    match arguments.tool {
        Tool::Trihop => command
            .args(["partition", "--split", "value", "--by", "key", "--ranks"])
            .args([&arguments.ranks.to_string(), "--out"])
            .arg(out)
            .arg(&arguments.input),
        Tool::Duckdb => command
            .arg(script("duckdb.py"))
            .arg(&arguments.input)
            .arg(out.join("all")),
        Tool::Polars => command
            .arg(script("polars.py"))
            .arg(&arguments.input)
            .arg(out),
        Tool::Mawk => command
            .args(["-F,", "-v"])
            .arg(format!("out={}", out.display()))
            .arg("-f")
            .arg(script("split.awk"))
            .arg(&arguments.input),
    };
    let (start, cpu) = (Instant::now(), children_seconds()?);
    let done = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .map_err(|error| format!("starting {}: {error}", arguments.program.display()))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        return Err(format!("error: {}: {said}", done.status));
    }
    // Ours waits for the disk, and so everybody does.
    let synced = File::open(out).and_then(|folder| Ok(rustix::fs::syncfs(folder.as_fd())?));
    synced.map_err(|error| format!("waiting for the disk: {error}"))?;
    Ok((start.elapsed().as_secs_f64(), children_seconds()? - cpu))
}

/// User and system time of all children that have ended, and of theirs, in steps of 10 ms.
fn children_seconds() -> Result<f64, String> {
    let stat =
        fs::read_to_string("/proc/self/stat").map_err(|error| format!("CPU time: {error}"))?;
    // The name of the program, in parentheses, may hold anything.
    let behind = stat.rsplit_once(')').map_or("", |(_, behind)| behind);
    let ticks: Option<Vec<u64>> = behind
        .split_whitespace()
        .skip(13)
        .take(2)
        .map(|word| word.parse().ok())
        .collect();
    match ticks.as_deref() {
        Some([user, system]) => {
            Ok((user + system) as f64 / rustix::param::clock_ticks_per_second() as f64)
        }
        _ => Err(format!("CPU time: {stat:?} is not as expected")),
    }
}

/// Records of each value below a folder: those of files named `key=VALUE.csv`, or that lie in a
/// folder `key=VALUE`.
fn count(folder: &Path) -> Result<BTreeMap<String, u64>, String> {
    let mut counts = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let wrong = |error: io::Error| format!("{}: {error}", folder.display());
        for entry in fs::read_dir(&folder).map_err(wrong)? {
            let path = entry.map_err(wrong)?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let value = path.components().rev().find_map(|part| {
                let value = part.as_os_str().to_str()?.strip_prefix("key=")?;
                Some(value.strip_suffix(".csv").unwrap_or(value).to_owned())
            });
            if let Some(value) = value {
                *counts.entry(value).or_default() += records(&path).map_err(wrong)?;
            }
        }
    }
    Ok(counts)
}

/// Lines of a file that are no header, with or without the column of the key.
fn records(path: &Path) -> io::Result<u64> {
    let (mut from, mut line, mut count) = (BufReader::new(File::open(path)?), Vec::new(), 0);
    while from.read_until(b'\n', &mut line)? > 0 {
        count += u64::from(!line.starts_with(b"id,"));
        line.clear();
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(tool: Tool, program: &str, input: PathBuf) -> Arguments {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("partition");
        Arguments {
            tool,
            program: program.into(),
            scripts,
            ranks: 2,
            input,
        }
    }

    /// A short input by every tool that is there; `.ci/compare` says which Python and which
    /// `trihop`.
    #[test]
    fn every_tool_that_is_there_partitions_a_short_input() {
        let folder = tempfile::tempdir().expect("a folder");
        let input = folder.path().join("short.csv");
        make(&input, 200_000).expect("the input");
        let given = |name: &str| std::env::var(name).unwrap_or_default();
        let (python, trihop) = (given("COMPARE_PYTHON"), given("COMPARE_TRIHOP"));
        let tools = [
            (Tool::Trihop, &trihop[..]),
            (Tool::Duckdb, &python),
            (Tool::Polars, &python),
            (Tool::Mawk, "mawk"),
        ];
        for (tool, program) in tools {
            if let Err(why) = found(program) {
                eprintln!("skipped: {tool:?}: {why}");
                continue;
            }
            let row = run(&arguments(tool, program, input.clone()));
            let row = row.unwrap_or_else(|why| panic!("{tool:?}: {why}"));
            assert!(row.checked && row.count > 1000, "{row:?}");
            assert_eq!(fs::read_dir(folder.path()).expect("its files").count(), 2);
        }
    }

    #[test]
    fn a_record_that_is_lost_gives_no_figures() {
        let folder = tempfile::tempdir().expect("a folder");
        let input = folder.path().join("short.csv");
        make(&input, 20_000).expect("the input");
        let mut lossy = arguments(Tool::Mawk, "mawk", input);
        if let Err(why) = found("mawk") {
            eprintln!("skipped: {why}");
            return;
        }
        lossy.scripts = folder.path().to_owned();
        let script = lossy.scripts.join("split.awk");
        let whole = include_str!("../partition/split.awk");
        let skips = whole.replace("\n{ print", "\nNR != 7 { print");
        assert_ne!(skips, whole);
        fs::write(script, skips).expect("the script");
        let why = run(&lossy).expect_err("a record is missing");
        assert!(why.contains("records in its part"), "{why}");
    }

    #[test]
    fn what_is_absent_stays_as_an_entry_with_its_reason() {
        let folder = tempfile::tempdir().expect("a folder");
        let contest = contest(&crate::entries::tests::setting(true, folder.path()));
        let absent: Vec<&str> = contest
            .entries
            .iter()
            .filter(|entry| matches!(entry.how, How::Absent(_)))
            .map(|entry| &entry.system[..])
            .collect();
        let tools = [
            ("DuckDB", true),
            ("Polars", true),
            ("mawk", found("mawk").is_err()),
        ];
        let expected = tools
            .into_iter()
            .filter_map(|(tool, is_absent)| is_absent.then_some(tool));
        assert_eq!(absent, expected.collect::<Vec<_>>());
        assert!(
            contest
                .entries
                .iter()
                .any(|entry| entry.system == contest.reference)
        );
    }
}

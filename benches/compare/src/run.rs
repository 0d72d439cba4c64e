//! Runs contests, round after round: in even rounds ours begins, in odd rounds the last rival does.

use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::entries::{Entry, How};
use crate::launch::{Program, Running};
use crate::plan::Contest;
use crate::results::Results;
use crate::rows::{self, Row};

/// Between two tries of a client whose server may not listen yet.
const RETRY: Duration = Duration::from_millis(150);

/// Runs everything `rounds` times. Who fails is not asked again: its reason stays.
pub fn run(contests: &[Contest], rounds: usize) -> Results {
    let mut results = Results::default();
    let mut failed = BTreeSet::new();
    let start = Instant::now();
    for round in 0..rounds {
        results.begin_round();
        for (number, contest) in contests.iter().enumerate() {
            eprintln!(
                "[{:>4.0} s] round {} of {rounds}, {} of {}: {}",
                start.elapsed().as_secs_f64(),
                round + 1,
                number + 1,
                contests.len(),
                contest.work.text()
            );
            let mut order: Vec<usize> = (0..contest.entries.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for at in order {
                if failed.contains(&(number, at)) {
                    continue;
                }
                let entry = &contest.entries[at];
                let outcome = measure(entry, contest.within);
                if let Err(why) = &outcome {
                    eprintln!("         {}: {why}", entry.system);
                    failed.insert((number, at));
                }
                results.note(contest, entry, outcome);
            }
        }
    }
    results
}

/// One launch of one entry.
fn measure(entry: &Entry, within: Duration) -> Result<Vec<Row>, String> {
    match &entry.how {
        How::Absent(why) => Err(why.clone()),
        How::Json(program, lines) => {
            let printed = program.start()?.lines(*lines, within)?;
            let rows = printed.iter().map(|line| rows::json(line));
            let rows: Vec<Row> = rows
                .filter_map(Result::transpose)
                .collect::<Result<_, _>>()?;
            if rows.is_empty() {
                return Err(format!("`{}` printed no figures", program.text()));
            }
            check_memory(entry, &rows)?;
            Ok(rows)
        }
        How::Ucx {
            server,
            client,
            tests,
        } => ucx(server, client, *tests, within),
    }
}

/// A rival that shares memory where it should not, or the other way round, is another rival.
fn check_memory(entry: &Entry, rows: &[Row]) -> Result<(), String> {
    let Some(wanted) = entry.memory_groups else {
        return Ok(());
    };
    match rows.iter().find(|row| row.memory_groups != Some(wanted)) {
        None => Ok(()),
        Some(row) => Err(format!(
            "its ranks see {} groups of shared memory instead of {wanted}: it does not run as \"{}\"",
            row.memory_groups
                .map_or_else(|| "no".to_owned(), |groups| groups.to_string()),
            entry.way
        )),
    }
}

fn ucx(
    server: &Program,
    client: &Program,
    tests: usize,
    within: Duration,
) -> Result<Vec<Row>, String> {
    let deadline = Instant::now() + within;
    // Ended with this function, whatever becomes of the client.
    let _server: Running = server.start()?;
    loop {
        sleep(RETRY);
        // A head, and a line per test.
        match client.start()?.lines(Some(tests + 1), within) {
            Ok(printed) => return rows::ucx(&printed.join("\n")),
            Err(why) if Instant::now() >= deadline => return Err(why),
            // It gives up at once where nobody listens yet.
            Err(why) if why.contains("did not end") => return Err(why),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Work;
    use crate::rows::Measure;

    fn entry(system: &str, ours: bool, script: &str) -> Entry {
        Entry {
            system: system.into(),
            ours,
            way: String::new(),
            crosses: false,
            memory_groups: None,
            how: How::Json(Program::new(["sh", "-c", script]), None),
        }
    }

    #[test]
    fn rounds_alternate_and_a_failure_is_not_asked_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("log").display().to_string();
        let row = r#"{"size":8,"count":1,"memory_groups":1,"msgs_per_s":2e6,"bytes_per_s":16e6,"checked":true}"#;
        let contest = Contest {
            goals: &[],
            work: Work::new("histo", 2, 1, 1000, 0),
            reference: "trihop",
            sizes: vec![8],
            entries: vec![
                entry("trihop", true, &format!("echo ours >> {log}; echo '{row}'")),
                entry(
                    "theirs",
                    false,
                    &format!("echo theirs >> {log}; echo '{row}'"),
                ),
                entry(
                    "broken",
                    false,
                    &format!("echo broken >> {log}; echo 'no luck' >&2; exit 1"),
                ),
                entry("mute", false, "true"),
                Entry {
                    way: "two simulated nodes".into(),
                    memory_groups: Some(2),
                    ..entry("together", false, &format!("echo '{row}'"))
                },
                Entry {
                    memory_groups: Some(1),
                    ..entry("apart", false, &format!("echo '{row}'"))
                },
            ],
            within: Duration::from_secs(60),
        };
        let results = run(std::slice::from_ref(&contest), 3);
        let log = std::fs::read_to_string(log).expect("the log");
        let order: Vec<&str> = log.lines().collect();
        assert_eq!(
            order,
            [
                "ours", "theirs", "broken", "theirs", "ours", "ours", "theirs"
            ]
        );
        let work = contest.work.sized(8);
        assert_eq!(results.figure(2, &work, "theirs", Measure::Rate), Ok(2e6));
        let error = |system| {
            results
                .figure(0, &work, system, Measure::Rate)
                .expect_err("it failed")
        };
        assert!(error("broken").contains("no luck"));
        assert!(error("mute").contains("printed no figures"));
        let together = error("together");
        assert!(
            together.contains("1 groups of shared memory instead of 2")
                && together.contains("two simulated nodes"),
            "{together}"
        );
        assert_eq!(results.figure(2, &work, "apart", Measure::Rate), Ok(2e6));
    }
}

//! Sinks of one thread each, so that a process can try many.

use std::fs;
use std::path::Path;
use std::sync::Mutex;

use super::*;

/// What the callback was given.
type Heard = Arc<Mutex<Vec<(Level, Facility, String)>>>;

fn listener() -> (Callback, Heard) {
    let heard = Heard::default();
    let ours = Arc::clone(&heard);
    let callback = move |level, facility, text: &str| {
        ours.lock()
            .unwrap()
            .push((level, facility, text.to_owned()));
    };
    (Box::new(callback), heard)
}

/// These options, and nothing on the tests' own standard error.
fn quiet(mut options: Options) -> Options {
    options.all.stderr = Filter::uniform(Level::Off);
    options.detailed.stderr = Filter::uniform(Level::Off);
    options
}

/// Logs on this thread alone while `run` runs.
fn with<T>(options: Options, run: impl FnOnce(&Sinks) -> T) -> T {
    let sinks = Arc::new(Sinks::open(quiet(options)).unwrap());
    let subscriber = tracing_subscriber::registry().with(Layer::new(Arc::clone(&sinks)));
    tracing::subscriber::with_default(subscriber, || run(&sinks))
}

/// One message of each level from each of two facilities.
fn everything() {
    tracing::error!(target: "trihop_transport::fabric::cq", "fabric error");
    tracing::warn!(target: "trihop_transport::fabric::cq", "fabric warn");
    tracing::info!(target: "trihop_transport::fabric::cq", "fabric info");
    tracing::debug!(target: "trihop_transport::fabric::cq", "fabric debug");
    tracing::trace!(target: "trihop_transport::fabric::cq", "fabric trace");
    tracing::error!(target: "trihop_shuffle::deliver", "deliver error");
    tracing::warn!(target: "trihop_shuffle::deliver", "deliver warn");
    tracing::info!(target: "trihop_shuffle::deliver", "deliver info");
}

/// Texts of lines, without time, level and facility.
fn texts(lines: &str) -> Vec<&str> {
    lines
        .lines()
        .map(|l| l.split_once(": ").unwrap().1)
        .collect()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn each_facility_has_its_level() {
    let mut options = Options::default();
    options.all.record = "error,fabric=debug".parse().unwrap();
    let recent = with(options, |sinks| {
        everything();
        sinks.recent()
    });
    assert_eq!(
        texts(&recent),
        [
            "fabric error",
            "fabric warn",
            "fabric info",
            "fabric debug",
            "deliver error"
        ]
    );
}

#[test]
fn a_line_has_time_level_facility_rank_text_and_fields() {
    let recent = with(Options::default(), |sinks| {
        tracing::warn!(target: "trihop_shuffle::deliver", lost = 3, "gone");
        sinks.set_rank(7).unwrap();
        tracing::error!(target: "elsewhere", why = %"no", "bad");
        sinks.recent()
    });
    let lines: Vec<&str> = recent.lines().collect();
    let (time, rest) = lines[0].split_once(' ').unwrap();
    assert!(
        time.len() >= 20 && time.starts_with("20") && time.ends_with('Z'),
        "{time}"
    );
    assert_eq!(rest, "warn  deliver: gone lost=3");
    assert!(
        lines[1].ends_with(" error other rank 7: bad why=no"),
        "{recent}"
    );
}

#[test]
fn first_ranks_log_in_more_detail() {
    for (rank, expected) in [(None, 2), (Some(1), 8), (Some(2), 2)] {
        let options = Options {
            detailed_ranks: 2,
            detailed: Detail {
                record: Filter::uniform(Level::Trace),
                ..Detail::default()
            },
            all: Detail {
                record: Filter::uniform(Level::Error),
                ..Detail::default()
            },
            rank,
            ..Options::default()
        };
        let recent = with(options, |sinks| {
            everything();
            sinks.recent()
        });
        assert_eq!(recent.lines().count(), expected, "{rank:?}: {recent}");
    }
}

#[test]
fn each_rank_has_a_file_that_begins_before_its_rank_was_known() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("log");
    let options = || Options {
        file: Some(file.clone()),
        ..Options::default()
    };
    for round in 1..3 {
        with(options(), |sinks| {
            tracing::warn!("early");
            sinks.set_rank(5).unwrap();
            sinks.set_rank(5).unwrap();
            tracing::warn!("late");
        });
        let lines = read(&directory.path().join("log.5"));
        assert_eq!(texts(&lines), ["early", "late"].repeat(round), "appended");
    }
    // A process that becomes another rank goes on in that one's file.
    with(
        Options {
            rank: Some(5),
            ..options()
        },
        |sinks| {
            sinks.set_rank(6).unwrap();
            tracing::warn!("six");
        },
    );
    assert_eq!(texts(&read(&directory.path().join("log.6"))), ["six"]);
    assert_eq!(texts(&read(&directory.path().join("log.5"))).len(), 4);
    assert!(!file.exists());
}

#[test]
fn early_lines_beyond_their_room_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options {
        file: Some(directory.path().join("log")),
        ring_bytes: 0,
        ..Options::default()
    };
    with(options, |sinks| {
        for _ in 0..100 {
            tracing::warn!("{:1000}", "");
        }
        assert_eq!(sinks.recent(), "", "no ring was asked for");
        sinks.set_rank(0).unwrap();
    });
    let lines = read(&directory.path().join("log.0"));
    let kept = lines.lines().count() - 1;
    assert!((50..65).contains(&kept), "{kept}");
    assert!(
        lines.ends_with(&format!(
            "({} lines from before the rank was known had no room)\n",
            100 - kept
        )),
        "{}",
        &lines[lines.len() - 100..]
    );
}

#[test]
fn ranks_may_share_a_file_and_only_detailed_ones_may_have_one() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("log");
    std::thread::scope(|scope| {
        for rank in 0..4 {
            let file = file.clone();
            scope.spawn(move || {
                let options = Options {
                    file: Some(file),
                    file_per_rank: false,
                    detailed_ranks: 3,
                    all: Detail {
                        file: false,
                        ..Detail::default()
                    },
                    rank: Some(rank),
                    ..Options::default()
                };
                with(options, |_| {
                    for number in 0..200 {
                        tracing::warn!(rank, "{number}");
                    }
                });
            });
        }
    });
    let lines = read(&file);
    for rank in 0..4 {
        let mine: Vec<String> = texts(&lines)
            .into_iter()
            .filter_map(|text| text.strip_suffix(&format!(" rank={rank}")))
            .map(str::to_owned)
            .collect();
        let expected: Vec<String> = (0..200).map(|n| n.to_string()).collect();
        assert_eq!(
            mine,
            if rank < 3 { expected } else { Vec::new() },
            "rank {rank}"
        );
    }
    assert_eq!(lines.lines().count(), 600);
}

#[test]
fn a_callback_hears_what_is_recorded() {
    let (callback, heard) = listener();
    let mut options = Options {
        callback: Some(callback),
        ..Options::default()
    };
    options.all.record = "off,fabric=info,client=error".parse().unwrap();
    with(options, |_| everything());
    let heard = heard.lock().unwrap();
    let expected = [
        (Level::Error, Facility::Fabric, "fabric error".to_owned()),
        (Level::Warn, Facility::Fabric, "fabric warn".to_owned()),
        (Level::Info, Facility::Fabric, "fabric info".to_owned()),
    ];
    assert_eq!(heard[..], expected);
}

#[test]
fn lines_that_were_asked_for_pass_every_filter_but_stay_out_of_the_ring_beside_a_file() {
    let directory = tempfile::tempdir().unwrap();
    for file in [None, Some(directory.path().join("log"))] {
        let (callback, heard) = listener();
        let mut options = Options {
            file: file.clone(),
            rank: Some(2),
            callback: Some(callback),
            ..Options::default()
        };
        options.all.record = Filter::uniform(Level::Error);
        let recent = with(options, |sinks| {
            sinks.keep("asked for");
            tracing::warn!("not recorded");
            tracing::error!("happened");
            sinks.recent()
        });
        match file {
            None => assert_eq!(texts(&recent), ["asked for", "happened"]),
            Some(_) => {
                assert_eq!(texts(&recent), ["happened"]);
                let lines = read(&directory.path().join("log.2"));
                assert_eq!(texts(&lines), ["asked for", "happened"]);
            }
        }
        let heard: Vec<String> = heard.lock().unwrap().iter().map(|h| h.2.clone()).collect();
        assert_eq!(heard, ["asked for", "happened"]);
    }
}

#[test]
fn a_file_that_cannot_be_opened_is_an_error_and_the_rest_goes_on() {
    let options = || Options {
        file: Some("/nonexistent/directory/log".into()),
        ..Options::default()
    };
    let known = Options {
        rank: Some(1),
        ..options()
    };
    let text = Sinks::open(known).err().unwrap().to_string();
    assert!(
        text.contains("opening the log file /nonexistent/directory/log.1"),
        "{text}"
    );
    let recent = with(options(), |sinks| {
        sinks.set_rank(1).unwrap_err();
        tracing::warn!("still here");
        sinks.recent()
    });
    assert_eq!(texts(&recent), ["still here"]);
}

#[test]
fn a_full_device_ends_the_file_only() {
    let options = Options {
        file: Some("/dev/full".into()),
        file_per_rank: false,
        rank: Some(0),
        ..Options::default()
    };
    let recent = with(options, |sinks| {
        tracing::warn!("one");
        tracing::warn!("two");
        sinks.recent()
    });
    assert_eq!(texts(&recent), ["one", "two"]);
}

#[test]
fn an_impossible_ring_is_refused() {
    let options = Options {
        ring_bytes: Options::RING_BYTES_MAX + 1,
        ..Options::default()
    };
    let text = install(options).unwrap_err().to_string();
    assert!(text.contains("ring_bytes: 1073741825"), "{text}");
}

#[test]
fn what_others_said_stays_on_its_line_and_acts_on_no_terminal() {
    let (callback, heard) = listener();
    let options = Options {
        callback: Some(callback),
        ..Options::default()
    };
    let name = "a\u{1b}[2J\n2026-01-01T00:00:00Z error client: forged\u{9b}1m";
    let recent = with(options, |sinks| {
        tracing::warn!("a peer said {name}");
        tracing::warn!(name, "a field");
        sinks.recent()
    });
    assert_eq!(recent.lines().count(), 2, "{recent}");
    assert!(
        !recent.chars().any(|c| c.is_control() && c != '\n'),
        "{recent:?}"
    );
    let heard = heard.lock().unwrap();
    assert!(
        heard
            .iter()
            .all(|(_, _, text)| !text.chars().any(char::is_control)),
        "{heard:?}"
    );
}

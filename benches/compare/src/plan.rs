//! What is run: contests, each with everybody who takes part, as a table.

use std::time::Duration;

use crate::calls;
use crate::client;
use crate::entries::{Entry, REPS, Setting};
use crate::mpi::{Form, Mpi};
use crate::seats;

/// A work that all entries of a contest do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Work {
    /// Name of the benchmark.
    pub bench: &'static str,
    /// Ranks, or the two threads.
    pub ranks: u32,
    /// Simulated nodes.
    pub nodes: u32,
    /// Items per rank; 0 where each program chooses.
    pub items: u64,
    /// Message size in bytes; 0 while it is that of each row.
    pub size: usize,
}

impl Work {
    /// Of all that a work is.
    pub const fn new(bench: &'static str, ranks: u32, nodes: u32, items: u64, size: usize) -> Self {
        Self {
            bench,
            ranks,
            nodes,
            items,
            size,
        }
    }

    /// As reports say it.
    pub fn text(&self) -> String {
        let place = match (self.bench, self.nodes) {
            (crate::partition::BENCH, _) => "a CSV file by the values of a key".to_owned(),
            ("threads", _) => "2 threads".to_owned(),
            (_, 1) => format!("P={} on one node", self.ranks),
            (_, nodes) => format!("P={} on {nodes} nodes", self.ranks),
        };
        let items = match self.items {
            0 => String::new(),
            items => format!(", {} k items a rank", items / 1000),
        };
        let size = match self.size {
            0 => String::new(),
            size => format!(", {size} B"),
        };
        format!("{}, {place}{size}{items}", self.bench)
    }

    /// The same work with messages of this size.
    pub fn sized(&self, size: usize) -> Self {
        Self {
            size,
            ..self.clone()
        }
    }
}

/// A work and all who do it, in the same minute.
#[derive(Debug, Clone)]
pub struct Contest {
    /// Goals that need it.
    pub goals: &'static [&'static str],
    /// What is done.
    pub work: Work,
    /// System that the others are compared with; its rows carry the variant.
    pub reference: &'static str,
    /// Sizes that are measured where a program takes several.
    pub sizes: Vec<usize>,
    /// Ours first.
    pub entries: Vec<Entry>,
    /// Longest run of one entry.
    pub within: Duration,
}

/// Items per rank of `isend`: a message each takes 50 to 500 times as long as an item in a buffer.
const ISEND_ITEMS: u64 = 20_000;

/// Sizes between two processes.
const PAIR_SIZES: [usize; 6] = [8, 64, 1024, 4096, 65_536, 1 << 20];
const QUICK_PAIR_SIZES: [usize; 4] = [8, 64, 4096, 1 << 20];

/// Sizes between two nodes that rivals take, and those of `--quick`; ours alone takes every power
/// of two.
const P2P_SIZES: [usize; 6] = [8, 64, 1024, 8192, 65_536, 1 << 20];
const QUICK_P2P_SIZES: [usize; 4] = [8, 4096, 65_536, 1 << 20];

/// From this size on, `p2p` itself chooses how many messages it sends.
const P2P_LARGE: usize = 8192;

/// Messages of smaller sizes, and round trips at most.
const P2P_COUNT: u64 = 4000;

/// Sizes between threads.
const THREAD_SIZES: [usize; 3] = [8, 64, 4096];

/// Everything, in the order in which it is run.
pub fn contests(setting: &Setting) -> Vec<Contest> {
    let mut all = Vec::new();
    let pair_sizes = match setting.quick {
        true => &QUICK_PAIR_SIZES[..],
        false => &PAIR_SIZES,
    };
    all.extend(pair_sizes.iter().map(|&size| ring(setting, size)));
    all.extend(
        THREAD_SIZES
            .into_iter()
            .filter(|&s| !setting.quick || s == 8)
            .map(|s| threads(setting, s)),
    );
    all.extend(p2p(setting));
    all.extend(many(setting));
    all.extend(clients(setting));
    all.extend(calls::contests(setting));
    all.extend(seats::contests(setting));
    all.push(crate::partition::contest(setting));
    all
}

/// `bench ranks nodes size items [engines of rivals]`: the goals that need it, and its rivals'
/// forms.
struct Many {
    goals: &'static [&'static str],
    bench: &'static str,
    ranks: u32,
    nodes: u32,
    size: usize,
    items: u64,
    engines: &'static [&'static str],
    quick: bool,
}

/// Sizes of `a2a` in bytes, and messages of a rank. Rivals take part in two of them.
pub const A2A: [(usize, u64); 9] = [
    (16, 2_000_000),
    (32, 1_000_000),
    (64, 1_000_000),
    (128, 500_000),
    (256, 250_000),
    (512, 125_000),
    (1024, 65_536),
    (2048, 32_768),
    (4096, 16_384),
];

const ALL: &[&str] = &["isend", "aggregate", "alltoallv"];
const BUFFERED: &[&str] = &["aggregate", "alltoallv"];

const fn row(
    goals: &'static [&'static str],
    bench: &'static str,
    (ranks, nodes): (u32, u32),
    (size, items): (usize, u64),
    engines: &'static [&'static str],
    quick: bool,
) -> Many {
    Many {
        goals,
        bench,
        ranks,
        nodes,
        size,
        items,
        engines,
        quick,
    }
}

const MANY: [Many; 12] = [
    row(&["S1", "S14"], "histo", (2, 1), (8, 1_000_000), ALL, true),
    row(
        &["S1", "S6"],
        "histo",
        (2, 1),
        (8, 5_000_000),
        BUFFERED,
        true,
    ),
    row(&["S6"], "histo", (8, 1), (8, 5_000_000), BUFFERED, true),
    row(
        &["S2", "S3", "S7", "T3"],
        "histo",
        (4, 2),
        (8, 5_000_000),
        BUFFERED,
        true,
    ),
    row(
        &["S2", "S3", "S7"],
        "histo",
        (4, 2),
        (8, 1_000_000),
        ALL,
        false,
    ),
    row(
        &["S2", "S3", "T3"],
        "histo",
        (8, 2),
        (8, 5_000_000),
        BUFFERED,
        false,
    ),
    row(&["S2"], "histo", (8, 2), (8, 1_000_000), &[], true),
    row(&["S2"], "histo", (64, 8), (8, 1_000_000), &[], false),
    row(&["S4"], "ig", (4, 2), (16, 1_000_000), ALL, true),
    row(&["S5", "T3"], "a2a", (4, 2), (128, 500_000), ALL, true),
    row(&["S5", "T3"], "a2a", (4, 2), (1024, 65_536), BUFFERED, true),
    row(&["T4"], "histo", (4, 1), (8, 5_000_000), &[], false),
];

/// The other sizes of `a2a`, of ours alone.
fn a2a_alone() -> impl Iterator<Item = Many> {
    let has_rivals = |size| {
        MANY.iter()
            .any(|many| many.bench == "a2a" && many.size == size)
    };
    let alone = A2A.into_iter().filter(move |(size, _)| !has_rivals(*size));
    alone.map(|sized| row(&["S5"], "a2a", (4, 2), sized, &[], false))
}

impl Many {
    fn ours(&self, setting: &Setting, system: &str, more: &[&str]) -> Entry {
        let mut options = vec![
            "--ranks".to_owned(),
            self.ranks.to_string(),
            "--nodes".into(),
            self.nodes.to_string(),
            "--count".into(),
            self.items.to_string(),
        ];
        if self.bench == "a2a" {
            options.extend(["--size".into(), self.size.to_string()]);
        }
        options.extend(more.iter().map(|&word| word.to_owned()));
        setting.ours(
            system,
            self.bench,
            (&way(self.nodes), self.nodes > 1),
            options,
        )
    }
}

/// How ranks of ours on so many nodes reach each other.
pub fn way(nodes: u32) -> String {
    match nodes {
        1 => Form::Shared.text().to_owned(),
        nodes => {
            format!(
                "{nodes} simulated nodes: shared memory inside, libfabric over loopback between"
            )
        }
    }
}

fn many(setting: &Setting) -> impl Iterator<Item = Contest> + '_ {
    MANY.into_iter()
        .chain(a2a_alone())
        .filter(|many| many.quick || !setting.quick)
        .map(|many| {
            let work = Work::new(many.bench, many.ranks, many.nodes, many.items, 0);
            let mut entries = vec![many.ours(setting, "trihop", &[])];
            if many.nodes > 1 && many.bench != "ig" && many.ranks <= 8 {
                entries.push(many.ours(setting, "trihop direct", &["--route", "direct"]));
            }
            if many.goals.contains(&"T3") {
                entries.push(many.ours(setting, "trihop agent", &["--seat", "agent"]));
            }
            if many.goals.contains(&"T4") {
                entries.push(many.ours(setting, "trihop mini-ranks", &["--seat", "minirank"]));
            }
            for engine in many.engines {
                for (mpi, form) in forms(many.nodes) {
                    let items = if *engine == "isend" {
                        ISEND_ITEMS
                    } else {
                        many.items
                    };
                    let arguments = [
                        engine,
                        many.bench,
                        &many.size.to_string(),
                        &REPS.to_string(),
                        &items.to_string(),
                    ];
                    let arguments = arguments.map(str::to_owned);
                    let system = format!("{} {engine}", mpi.name());
                    entries.push(setting.mpi(
                        system,
                        (*mpi, "many"),
                        many.ranks,
                        *form,
                        &arguments,
                        1,
                    ));
                }
            }
            Contest {
                goals: many.goals,
                work,
                reference: "trihop, typed",
                sizes: vec![many.size],
                entries,
                within: Duration::from_secs(if many.ranks > 8 { 60 } else { 15 }),
            }
        })
}

/// Sizes of a client's messages, and those of its round trips.
const CLIENT_SIZES: [usize; 5] = [24, 256, 1024, 32_768, 64 << 20];
const TRIP_SIZES: [usize; 2] = [24, 32_768];

/// A client of the DeltaFS interface, by its options, beside what our benchmark shows of it.
fn clients(setting: &Setting) -> [Contest; 3] {
    let (ranks, nodes) = (client::RANKS, client::NODES);
    let shown = if setting.quick { 3 } else { CLIENT_SIZES.len() };
    // Message by message, a long one takes seconds.
    let (sizes, single) = (&CLIENT_SIZES[..shown], &CLIENT_SIZES[..shown.min(4)]);
    let mut options: Vec<String> = ["--api", "deltafs", "--ranks"].map(str::to_owned).into();
    options.extend([ranks.to_string(), "--nodes".into(), nodes.to_string()]);
    options.extend(
        single
            .iter()
            .flat_map(|size| ["--size".into(), size.to_string()]),
    );
    let way = "4 simulated nodes: shared memory inside, libfabric over loopback between";
    let all_to_all = vec![
        setting.client(&["-o", "production"], sizes),
        setting.client(&["-o", "default"], sizes),
        setting.client(&["-o", "single"], single),
        setting.ours("trihop bench", "a2a", (way, true), options),
    ];
    let trips = |pair: &str| {
        let of = |more: &[&str]| setting.client(&[&["-l", pair], more].concat(), &TRIP_SIZES);
        vec![
            of(&["-o", "default"]),
            of(&["-o", "single"]),
            of(&["-o", "single", "-u"]),
        ]
    };
    let contest = |bench, sizes: &[usize], entries| Contest {
        goals: &["S8"],
        work: Work::new(bench, ranks, nodes, 0, 0),
        reference: "DeltaFS client, default",
        sizes: sizes.to_vec(),
        entries,
        within: Duration::from_secs(120),
    };
    [
        contest("client", sizes, all_to_all),
        contest("client-node", &TRIP_SIZES, trips("node")),
        contest("client-hops", &TRIP_SIZES, trips("hops")),
    ]
}

/// In which forms rivals do a work on so many nodes.
pub fn forms(nodes: u32) -> &'static [(Mpi, Form)] {
    match nodes {
        1 => &[(Mpi::Mpich, Form::Shared), (Mpi::OpenMpi, Form::Shared)],
        _ => &[
            (Mpi::Mpich, Form::OddEven),
            (Mpi::Mpich, Form::Tcp),
            (Mpi::OpenMpi, Form::Tcp),
        ],
    }
}

fn ring(setting: &Setting, size: usize) -> Contest {
    let mut options = vec!["--size".into(), size.to_string()];
    if setting.quick && size <= 64 {
        options.extend(["--count".into(), "1000000".into()]);
    }
    let way = Form::Shared.text();
    let mut entries = vec![setting.ours("trihop", "ring", (way, false), options)];
    entries.extend(Mpi::EVERY.map(|mpi| setting.mpi_pair(mpi, Form::Shared, &[size])));
    entries.push(setting.ucx("posix,self", &[size], way, false));
    Contest {
        goals: &["R1", "R2", "R3"],
        work: Work::new("ring", 2, 1, 0, 0),
        reference: "trihop, copy",
        sizes: vec![size],
        entries,
        within: Duration::from_secs(20),
    }
}

fn threads(setting: &Setting, size: usize) -> Contest {
    let queues = [
        ("trihop", "trihop"),
        ("rtrb", "rtrb"),
        ("rtrb-bytes", "rtrb as a ring of bytes"),
        ("crossbeam", "crossbeam-channel"),
        ("iceoryx2", "iceoryx2"),
    ];
    Contest {
        goals: &["R2"],
        work: Work::new("threads", 2, 1, 0, 0),
        reference: "trihop",
        sizes: vec![size],
        entries: queues
            .map(|(queue, system)| setting.queue(queue, system, size))
            .into(),
        within: Duration::from_secs(20),
    }
}

/// Beside rivals, and the sizes between theirs for ours alone (F3).
fn p2p(setting: &Setting) -> Vec<Contest> {
    if setting.quick {
        return vec![p2p_of(setting, QUICK_P2P_SIZES.to_vec(), true)];
    }
    let between = (3..=20)
        .map(|power| 1 << power)
        .filter(|size| !P2P_SIZES.contains(size));
    vec![
        p2p_of(setting, P2P_SIZES.to_vec(), true),
        p2p_of(setting, between.collect(), false),
    ]
}

fn p2p_of(setting: &Setting, sizes: Vec<usize>, rivals: bool) -> Contest {
    let way = "two simulated nodes, libfabric over loopback; fi_pingpong over the same provider";
    let ours = |small: bool| {
        let mut options = Vec::new();
        for size in sizes.iter().filter(|&&size| (size < P2P_LARGE) == small) {
            options.extend(["--size".into(), size.to_string()]);
        }
        if small {
            options.extend(["--count".into(), P2P_COUNT.to_string()]);
        }
        setting.ours("trihop", "p2p", (way, true), options)
    };
    let mut entries = vec![ours(true), ours(false)];
    if rivals {
        entries.extend(Mpi::EVERY.map(|mpi| setting.mpi_pair(mpi, Form::Tcp, &sizes)));
        entries.push(setting.ucx("tcp,self", &sizes, Form::Tcp.text(), true));
    }
    Contest {
        goals: &["F1", "F2", "F3"],
        work: Work::new("p2p", 2, 2, 0, 0),
        reference: "trihop, bytes",
        sizes,
        entries,
        within: Duration::from_secs(90),
    }
}

/// Contests that a word on the command line asks for: a goal, or a benchmark.
pub fn only(contests: Vec<Contest>, wanted: &[String]) -> Vec<Contest> {
    let named = |name: &str| wanted.iter().any(|w| w.eq_ignore_ascii_case(name));
    contests
        .into_iter()
        .filter(|c| named(c.work.bench) || c.goals.iter().any(|g| named(g)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entries::How;
    use crate::entries::tests::setting;
    use std::collections::BTreeSet;

    #[test]
    fn every_contest_has_ours_first_and_names_that_differ() {
        let folder = tempfile::tempdir().expect("a folder");
        for quick in [false, true] {
            let mut setting = setting(quick, folder.path());
            setting.client = Ok("/ours/many".into());
            for contest in contests(&setting) {
                assert!(contest.entries[0].ours, "{}", contest.work.text());
                let rivals = contest.entries.iter().filter(|e| !e.ours);
                let (mut names, mut count) = (BTreeSet::new(), 0);
                for rival in rivals {
                    names.insert(rival.system.clone());
                    count += 1;
                }
                assert_eq!(names.len(), count, "{}", contest.work.text());
            }
        }
    }

    #[test]
    fn an_mpi_that_could_not_be_built_stays_as_an_entry() {
        let folder = tempfile::tempdir().expect("a folder");
        let all = contests(&setting(true, folder.path()));
        let mpich: Vec<_> = all
            .iter()
            .flat_map(|c| &c.entries)
            .filter(|e| e.system.starts_with("MPICH"))
            .collect();
        assert!(!mpich.is_empty() && mpich.iter().all(|e| matches!(e.how, How::Absent(_))));
    }

    #[test]
    fn goals_and_benchmarks_choose_contests() {
        let folder = tempfile::tempdir().expect("a folder");
        let all = contests(&setting(false, folder.path()));
        let of = |wanted: &str| {
            only(all.clone(), &[wanted.to_owned()])
                .into_iter()
                .map(|c| c.work.text())
                .collect::<Vec<_>>()
        };
        assert_eq!(of("s4"), ["ig, P=4 on 2 nodes, 1000 k items a rank"]);
        assert_eq!(of("a2a").len(), A2A.len());
        assert_eq!(of("t2").len(), 1);
        assert_eq!(of("t3").len(), 4);
        assert!(of("nothing").is_empty());
    }
}

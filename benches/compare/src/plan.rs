//! What is run: contests, each with everybody who takes part, as a table.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::launch::Program;
use crate::mpi::{Form, Mpi};

/// A work that all entries of a contest do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Work {
    /// Name of the benchmark.
    pub bench: &'static str,
    /// Ranks, or the two threads.
    pub ranks: u32,
    /// Simulated nodes.
    pub nodes: u32,
    /// Millions of items per rank; 0 where each program chooses.
    pub items: u64,
    /// Message size in bytes; 0 while it is that of each row.
    pub size: usize,
}

impl Work {
    /// As reports say it.
    pub fn text(&self) -> String {
        let place = match (self.bench, self.nodes) {
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
        Self { size, ..self.clone() }
    }
}

/// How the figures of an entry are had.
#[derive(Debug, Clone)]
pub enum How {
    /// A program that prints rows of JSON; so many lines are all, where that is known.
    Json(Program, Option<usize>),
    /// `ucx_perftest`: a server and a client that read the same list of tests.
    Ucx {
        /// Started first.
        server: Program,
        /// Prints the table.
        client: Program,
        /// Tests in the list.
        tests: usize,
    },
    /// Known to be impossible.
    Absent(String),
}

/// Who takes part.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its name; rows with a variant add that.
    pub system: String,
    /// Whether it is ours.
    pub ours: bool,
    /// How its ranks reach each other.
    pub way: String,
    /// Whether its messages cross simulated nodes.
    pub crosses: bool,
    /// Groups of shared memory that its ranks have to see, where they can tell.
    pub memory_groups: Option<u32>,
    /// How it is run.
    pub how: How,
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

/// Where things are, and how much is done.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Our release binary.
    pub trihop: PathBuf,
    /// This program, for queues between threads.
    pub myself: PathBuf,
    /// Folder with the built MPI programs and lists of tests.
    pub folder: PathBuf,
    /// Why an MPI's programs could not be built.
    pub unbuilt: Vec<(Mpi, String)>,
    /// Less of everything.
    pub quick: bool,
}

/// Repetitions inside one launch; the rounds come on top.
const REPS: u32 = 3;

/// Items per rank of `isend`: a message each takes 50 to 500 times as long as an item in a buffer.
const ISEND_ITEMS: u64 = 20_000;

/// Sizes between two processes.
const PAIR_SIZES: [usize; 6] = [8, 64, 1024, 4096, 65_536, 1 << 20];
const QUICK_PAIR_SIZES: [usize; 4] = [8, 64, 4096, 1 << 20];

/// Sizes between two nodes that rivals take, and those of `--quick`; ours alone takes every power of two.
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
    all.extend(setting.pair_sizes().into_iter().map(|size| ring(setting, size)));
    all.extend(
        THREAD_SIZES
            .into_iter()
            .filter(|&s| !setting.quick || s == 8)
            .map(|s| threads(setting, s)),
    );
    all.extend(p2p(setting));
    all.extend(many(setting));
    all
}

/// `bench ranks nodes size items [engines of rivals]`: the goals that need it, and its rivals' forms.
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

const ALL: &[&str] = &["isend", "aggregate", "alltoallv"];
const BUFFERED: &[&str] = &["aggregate", "alltoallv"];

const MANY: [Many; 11] = {
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
    [
        row(&["S1"], "histo", (2, 1), (8, 1_000_000), ALL, true),
        row(&["S1", "S6"], "histo", (2, 1), (8, 5_000_000), BUFFERED, true),
        row(&["S6"], "histo", (8, 1), (8, 5_000_000), BUFFERED, true),
        row(
            &["S2", "S3", "S7"],
            "histo",
            (4, 2),
            (8, 5_000_000),
            BUFFERED,
            true,
        ),
        row(&["S2", "S3", "S7"], "histo", (4, 2), (8, 1_000_000), ALL, false),
        row(&["S2", "S3"], "histo", (8, 2), (8, 5_000_000), BUFFERED, false),
        row(&["S2"], "histo", (8, 2), (8, 1_000_000), &[], true),
        row(&["S2"], "histo", (64, 8), (8, 1_000_000), &[], false),
        row(&["S4"], "ig", (4, 2), (16, 1_000_000), ALL, true),
        row(&["S5"], "a2a", (4, 2), (128, 500_000), ALL, true),
        row(&["S5"], "a2a", (4, 2), (1024, 65_536), BUFFERED, true),
    ]
};

fn many(setting: &Setting) -> impl Iterator<Item = Contest> {
    MANY.iter()
        .filter(|many| many.quick || !setting.quick)
        .map(|many| {
            let work = Work {
                bench: many.bench,
                ranks: many.ranks,
                nodes: many.nodes,
                items: many.items,
                size: 0,
            };
            let mut entries = vec![setting.ours_many("trihop", many, &[])];
            if many.nodes > 1 && many.bench == "histo" && many.ranks <= 8 {
                entries.push(setting.ours_many("trihop direct", many, &["--route", "direct"]));
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
                    entries.push(setting.mpi(system, (*mpi, "many"), many.ranks, *form, &arguments, 1));
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

/// In which forms rivals do a work on so many nodes.
fn forms(nodes: u32) -> &'static [(Mpi, Form)] {
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
    let work = Work {
        bench: "ring",
        ranks: 2,
        nodes: 1,
        items: 0,
        size: 0,
    };
    let mut command = vec![
        setting.trihop.display().to_string(),
        "bench".into(),
        "ring".into(),
        "--json".into(),
        "--reps".into(),
        REPS.to_string(),
        "--size".into(),
        size.to_string(),
    ];
    if setting.quick && size <= 64 {
        command.extend(["--count".into(), "1000000".into()]);
    }
    let way = Form::Shared.text();
    let mut entries = vec![Entry {
        system: "trihop".into(),
        ours: true,
        way: way.into(),
        crosses: false,
        memory_groups: None,
        how: How::Json(Program::new(command), None),
    }];
    entries.extend(Mpi::EVERY.map(|mpi| setting.mpi_pair(mpi, Form::Shared, &[size])));
    entries.push(setting.ucx("posix,self", &[size], way, false));
    Contest {
        goals: &["R1", "R2", "R3"],
        work,
        reference: "trihop, copy",
        sizes: vec![size],
        entries,
        within: Duration::from_secs(20),
    }
}

fn threads(setting: &Setting, size: usize) -> Contest {
    let work = Work {
        bench: "threads",
        ranks: 2,
        nodes: 1,
        items: 0,
        size: 0,
    };
    let queues = [
        ("trihop", "trihop"),
        ("rtrb", "rtrb"),
        ("rtrb-bytes", "rtrb as a ring of bytes"),
        ("crossbeam", "crossbeam-channel"),
        ("iceoryx2", "iceoryx2"),
    ];
    let entries = queues.map(|(queue, system)| {
        let myself = setting.myself.display().to_string();
        let program = Program::new([myself.as_str(), "threads", queue, &size.to_string()]);
        Entry {
            system: system.into(),
            ours: queue == "trihop",
            way: "two threads of one process".into(),
            crosses: false,
            memory_groups: None,
            how: How::Json(program, Some(1)),
        }
    });
    Contest {
        goals: &["R2"],
        work,
        reference: "trihop",
        sizes: vec![size],
        entries: entries.into(),
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
    let work = Work {
        bench: "p2p",
        ranks: 2,
        nodes: 2,
        items: 0,
        size: 0,
    };
    let command = |small: bool| {
        let mut argv = vec![setting.trihop.display().to_string()];
        argv.extend(["bench", "p2p", "--json", "--reps"].map(str::to_owned));
        argv.push(REPS.to_string());
        for size in sizes.iter().filter(|&&size| (size < P2P_LARGE) == small) {
            argv.extend(["--size".into(), size.to_string()]);
        }
        if small {
            argv.extend(["--count".into(), P2P_COUNT.to_string()]);
        }
        Program::new(argv)
    };
    let ours = |small| Entry {
        system: "trihop".into(),
        ours: true,
        way: "two simulated nodes, libfabric over loopback; fi_pingpong over the same provider".into(),
        crosses: true,
        memory_groups: None,
        how: How::Json(command(small), None),
    };
    let mut entries = vec![ours(true), ours(false)];
    if rivals {
        entries.extend(Mpi::EVERY.map(|mpi| setting.mpi_pair(mpi, Form::Tcp, &sizes)));
        entries.push(setting.ucx("tcp,self", &sizes, Form::Tcp.text(), true));
    }
    Contest {
        goals: &["F1", "F2", "F3"],
        work,
        reference: "trihop, bytes",
        sizes,
        entries,
        within: Duration::from_secs(90),
    }
}

impl Setting {
    fn pair_sizes(&self) -> Vec<usize> {
        if self.quick {
            QUICK_PAIR_SIZES.to_vec()
        } else {
            PAIR_SIZES.to_vec()
        }
    }

    fn ours_many(&self, system: &str, many: &Many, more: &[&str]) -> Entry {
        let mut argv = vec![
            self.trihop.display().to_string(),
            "bench".into(),
            many.bench.into(),
        ];
        for (option, value) in [
            ("--ranks", many.ranks.to_string()),
            ("--nodes", many.nodes.to_string()),
            ("--reps", REPS.to_string()),
            ("--count", many.items.to_string()),
        ] {
            argv.extend([option.to_owned(), value]);
        }
        if many.bench == "a2a" {
            argv.extend(["--size".to_owned(), many.size.to_string()]);
        }
        argv.push("--json".into());
        argv.extend(more.iter().map(|&word| word.to_owned()));
        let way = match many.nodes {
            1 => Form::Shared.text().to_owned(),
            nodes => {
                format!("{nodes} simulated nodes: shared memory inside, libfabric over loopback between")
            }
        };
        Entry {
            system: system.into(),
            ours: true,
            way,
            crosses: many.nodes > 1,
            memory_groups: None,
            how: How::Json(Program::new(argv), None),
        }
    }

    fn mpi_pair(&self, mpi: Mpi, form: Form, sizes: &[usize]) -> Entry {
        let mut arguments = vec![REPS.to_string()];
        arguments.extend(sizes.iter().map(usize::to_string));
        self.mpi(mpi.name().into(), (mpi, "pair"), 2, form, &arguments, sizes.len())
    }

    fn mpi(
        &self,
        system: String,
        (mpi, program): (Mpi, &str),
        ranks: u32,
        form: Form,
        arguments: &[String],
        lines: usize,
    ) -> Entry {
        let system = match form {
            Form::Shared => system,
            Form::Tcp => format!("{system}, tcp"),
            Form::OddEven => format!("{system}, odd-even"),
        };
        let how = match self.unbuilt.iter().find(|(unbuilt, _)| *unbuilt == mpi) {
            Some((_, why)) => How::Absent(why.clone()),
            None => How::Json(
                mpi.program(&self.folder, program, ranks, form, arguments),
                Some(lines),
            ),
        };
        Entry {
            system,
            ours: false,
            way: form.text().into(),
            crosses: form.crosses(),
            memory_groups: mpi.memory_groups(ranks, form),
            how,
        }
    }

    fn ucx(&self, transports: &str, sizes: &[usize], way: &str, crosses: bool) -> Entry {
        let how = match self.ucx_programs(transports, sizes) {
            Ok((server, client)) => How::Ucx {
                server,
                client,
                tests: 2 * sizes.len(),
            },
            Err(error) => How::Absent(format!("preparing ucx_perftest: {error}")),
        };
        let system = if crosses { "UCX, tcp" } else { "UCX" };
        Entry {
            system: system.into(),
            ours: false,
            way: way.into(),
            crosses,
            memory_groups: None,
            how,
        }
    }

    fn ucx_programs(&self, transports: &str, sizes: &[usize]) -> std::io::Result<(Program, Program)> {
        let list = self
            .folder
            .join(format!("ucx-{}-{}.txt", transports.replace(',', "-"), sizes[0]));
        let tests: String = sizes.iter().map(|&size| ucx_tests(size)).collect();
        std::fs::write(&list, tests)?;
        // Free a moment ago; a neighbour that takes it meanwhile makes these runs fail.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
            .local_addr()?
            .port()
            .to_string();
        let program = |core: &str, more: &[&str]| {
            let list = path_text(&list);
            let mut argv = vec!["ucx_perftest"];
            argv.extend(more);
            argv.extend(["-b", &list, "-p", &port, "-c", core, "-v", "-f"]);
            let mut program = Program::new(argv);
            program.env = [("UCX_TLS", transports), ("UCX_NET_DEVICES", "lo")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into();
            program
        };
        Ok((program("0", &[]), program("1", &["127.0.0.1"])))
    }
}

/// A latency and a bandwidth test of one size, named as `rows::ucx` wants it.
fn ucx_tests(size: usize) -> String {
    let rounds = ((64 << 20) / size).clamp(200, 10_000);
    let messages = ((256 << 20) / size).clamp(200, 500_000);
    format!(
        "lat_{size} -t tag_lat -s {size} -n {rounds} -w {}\nbw_{size} -t tag_bw -s {size} -n {messages} -w {}\n",
        rounds / 10,
        messages / 10
    )
}

fn path_text(path: &Path) -> String {
    path.display().to_string()
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
    use std::collections::BTreeSet;

    fn setting(quick: bool, folder: &Path) -> Setting {
        Setting {
            trihop: "/ours/trihop".into(),
            myself: "/ours/trihop-compare".into(),
            folder: folder.into(),
            unbuilt: vec![(Mpi::Mpich, "mpicc.mpich is not installed".into())],
            quick,
        }
    }

    #[test]
    fn every_contest_has_ours_first_and_names_that_differ() {
        let folder = tempfile::tempdir().expect("a folder");
        for quick in [false, true] {
            for contest in contests(&setting(quick, folder.path())) {
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
        assert_eq!(of("a2a").len(), 2);
        assert!(of("nothing").is_empty());
    }

    #[test]
    fn the_list_of_ucx_tests_is_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let entry = setting(false, folder.path()).ucx("tcp,self", &[8, 1 << 20], "tcp", true);
        let How::Ucx { client, tests, .. } = entry.how else {
            panic!("{:?}", entry.how);
        };
        assert_eq!(tests, 4);
        let list = std::fs::read_to_string(&client.argv[3]).expect("the list");
        assert!(
            list.starts_with("lat_8 -t tag_lat -s 8 -n 10000 -w 1000\nbw_8 "),
            "{list}"
        );
    }
}

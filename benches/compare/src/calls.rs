//! Contests about single calls: pushes of one item each, handlers that send, and the ends of
//! rounds.

use std::time::Duration;

use crate::entries::{REPS, Setting};
use crate::mpi::{Form, Mpi};
use crate::plan::{Contest, Work, forms, way};

/// All of them.
pub fn contests(setting: &Setting) -> Vec<Contest> {
    let pushed = PUSHED
        .into_iter()
        .filter(|(ranks, _)| !setting.quick || *ranks == 2);
    let pushed = pushed.map(|(ranks, nodes)| pushes(setting, ranks, nodes));
    let rounds = ROUNDS.map(|(ranks, nodes, count)| rounds(setting, ranks, nodes, count));
    pushed.chain([cc(setting)]).chain(rounds).collect()
}

/// Updates of a rank where each is a push of its own.
pub const PUSHES: u64 = 1_000_000;

/// Ranks and nodes of pushes.
const PUSHED: [(u32, u32); 2] = [(2, 1), (8, 2)];

/// The histogram as conveyors defines it, a push and a handler's call or a pull for each item: by
/// each interface of ours, beside aggregation by hand.
fn pushes(setting: &Setting, ranks: u32, nodes: u32) -> Contest {
    let ours = |system: &str, more: &[&str]| {
        let shape = [
            ("--ranks", ranks.into()),
            ("--nodes", nodes.into()),
            ("--count", PUSHES),
        ];
        let shape = shape.map(|(name, value): (&str, u64)| [name.to_owned(), value.to_string()]);
        let more = more.iter().map(|&word| word.to_owned());
        let options = shape.into_iter().flatten().chain(more);
        setting.ours(system, "push", (&way(nodes), nodes > 1), options)
    };
    let inline = [
        "--api",
        "typed",
        "--api",
        "conveyor",
        "--api",
        "c",
        "--api",
        "c-conveyor",
    ];
    let mut entries = vec![
        ours("trihop", &inline),
        ours("trihop threaded", &["--api", "c", "--seat", "threaded"]),
    ];
    for (mpi, form) in forms(nodes) {
        let arguments = [
            "aggregate",
            "histo",
            "8",
            &REPS.to_string(),
            &PUSHES.to_string(),
        ];
        let arguments = arguments.map(str::to_owned);
        let system = format!("{} aggregate", mpi.name());
        entries.push(setting.mpi(system, (*mpi, "many"), ranks, *form, &arguments, 1));
    }
    Contest {
        goals: &["S14"],
        work: Work::new("push", ranks, nodes, PUSHES, 0),
        reference: "trihop, typed",
        sizes: vec![8],
        entries,
        within: Duration::from_secs(60),
    }
}

/// Label propagation by handlers that send, on two seats; no rival of the registries has it.
fn cc(setting: &Setting) -> Contest {
    let ours = |system: &str, seat: &str| {
        let options = ["--ranks", "4", "--nodes", "2", "--seat", seat].map(str::to_owned);
        setting.ours(system, "cc", (&way(2), true), options)
    };
    Contest {
        goals: &["S14"],
        work: Work::new("cc", 4, 2, 0, 0),
        reference: "trihop, typed",
        sizes: vec![8],
        entries: vec![
            ours("trihop", "inline"),
            ours("trihop threaded", "threaded"),
        ],
        within: Duration::from_secs(60),
    }
}

/// Ranks and nodes of bulk-synchronous steps, and how many are measured at a time: of two ranks
/// more, until the kernel has them on a core each.
const ROUNDS: [(u32, u32, u64); 3] = [(2, 1, 20_000), (8, 1, 1000), (8, 2, 1000)];
/// Rounds and fences of ours beside a loop of `MPI_Alltoallv`.
fn rounds(setting: &Setting, ranks: u32, nodes: u32, count: u64) -> Contest {
    let options = [
        ("--ranks", u64::from(ranks)),
        ("--nodes", u64::from(nodes)),
        ("--size", 8),
        ("--count", count),
    ];
    let options = options.map(|(name, value)| [name.to_owned(), value.to_string()]);
    let mut entries = vec![setting.ours(
        "trihop",
        "round",
        (&way(nodes), nodes > 1),
        options.into_iter().flatten(),
    )];
    // MPICH's ranks do not let each other run: where they outnumber the cores, a round takes 12
    // ms.
    let fair = |(mpi, _): &&(Mpi, Form)| ranks == 2 || *mpi == Mpi::OpenMpi;
    for (mpi, form) in forms(nodes).iter().filter(fair) {
        let arguments = [8, u64::from(REPS), count].map(|number| number.to_string());
        let system = format!("{} alltoallv", mpi.name());
        entries.push(setting.mpi(system, (*mpi, "round"), ranks, *form, &arguments, 1));
    }
    Contest {
        goals: &["S12"],
        work: Work::new("round", ranks, nodes, 0, 0),
        reference: "trihop, round",
        sizes: vec![8],
        entries,
        within: Duration::from_secs(30),
    }
}

//! What the ranks of a job ask of their launcher from start to end, counted by a PMI server.

mod launched;
#[path = "../../transport/src/pmi_server.rs"]
mod pmi_server;

use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use launched::{Ended, Launched, example};
use pmi_server::PmiServer;

/// The ranks of a job of `nodes` simulated nodes with `ranks_per_node` each, as a launcher starts
/// them; what each has said.
fn run(server: &Arc<PmiServer>, ranks: u32, route: &str) -> Vec<Ended> {
    let (address, hello) = (server.listen(), example("trihop", "hello"));
    let began = Instant::now();
    let start = |rank: u32| {
        let mut command = Command::new(&hello);
        command
            .env("PMI_PORT", &address)
            .env("PMI_ID", rank.to_string())
            .env("TRIHOP_LAUNCHER", "pmi1")
            .env("TRIHOP_LOOPBACK", "1")
            .env("TRIHOP_ROUTE", route);
        Launched::start(command)
    };
    let started: Vec<Launched> = (0..ranks).map(start).collect();
    let ended = started.into_iter().map(Launched::wait).collect();
    eprintln!(
        "{ranks} ranks by {route}: {:?} from start to end",
        began.elapsed()
    );
    ended
}

#[test]
fn a_job_asks_for_one_card_of_each_node_on_a_node_whatever_its_route() {
    const NODES: u32 = 4;
    const LOCAL: u32 = 3;
    for route in ["three-hop", "direct", "mesh"] {
        let mapping = format!("(vector,(0,{NODES},{LOCAL}))");
        let ranks = NODES * LOCAL;
        let server = PmiServer::new(ranks, ranks as usize, &mapping);
        let ended = run(&server, ranks, route);
        if ended
            .iter()
            .any(|rank| rank.stderr.contains("no usable libfabric provider"))
        {
            eprintln!("skipped: there is no provider");
            return;
        }
        for (rank, ended) in (0..).zip(&ended) {
            assert_eq!(ended.status, 0, "{route}: {}", ended.stderr);
            assert_eq!(
                ended.stdout,
                format!("rank {rank} heard {ranks} greetings\n")
            );
            let asked = server.asked(rank);
            let (node, local) = (rank / LOCAL, rank % LOCAL);
            let cards = (0..NODES).filter(|other| *other != node && other % LOCAL == local);
            // Who is where, and the greeting of rank 0 or of the node's first rank.
            let gets = 1 + u64::from(rank > 0) + cards.count() as u64;
            assert_eq!(asked.gets, gets, "{route}, rank {rank}: {asked:?}");
            assert_eq!(
                asked.puts,
                2 * u64::from(local == 0),
                "{route}, rank {rank}: {asked:?}"
            );
            // Three at the start, one at the end.
            assert_eq!(asked.barriers, 4, "{route}, rank {rank}: {asked:?}");
            assert_eq!(asked.others, 5, "{route}, rank {rank}: {asked:?}");
            assert!(asked.requests() <= 15, "{route}, rank {rank}: {asked:?}");
        }
    }
}

#[test]
fn a_launcher_that_does_not_say_who_is_where_is_asked_for_all_ranks_by_one() {
    const RANKS: u32 = 5;
    let server = PmiServer::new(RANKS, RANKS as usize, "");
    for (rank, ended) in (0..).zip(run(&server, RANKS, "three-hop")) {
        assert_eq!(ended.status, 0, "{}", ended.stderr);
        let asked = server.asked(rank);
        // The placement that is missing, the hosts or the placement that rank 0 left, the greeting.
        let gets = if rank == 0 { 1 + u64::from(RANKS) } else { 3 };
        assert_eq!(
            (asked.gets, asked.barriers),
            (gets, 6),
            "rank {rank}: {asked:?}"
        );
    }
}

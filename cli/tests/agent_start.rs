//! An agent that the first rank starts which finds none.

mod launched;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use launched::agents::{ENV_ROLE, has_ended_well, role};
use launched::{Launched, cores_of, processes_named, until};
use tempfile::TempDir;
use trihop::transport::cores::{allowed, keep_to};
use trihop::{Job, Options, Reduce};

const TRIHOP: &str = env!("CARGO_BIN_EXE_trihop");

/// A command that starts agents, and counts how many.
struct Starts {
    folder: TempDir,
    name: String,
}

impl Starts {
    fn new(what: &str, ranks: u32, linger_ms: u32) -> Self {
        Self::of_several(1, what, ranks, linger_ms)
    }

    /// So many agents at a time.
    fn of_several(nics: u32, what: &str, ranks: u32, linger_ms: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let name = format!("trihop-test-start-{what}-{}", std::process::id());
        let this = Self { folder, name };
        let script = format!(
            "#!/bin/sh\necho >>{}\nsed -n 's/^Cpus_allowed_list:[[:space:]]*//p' \
             /proc/self/status >{}\nexec {TRIHOP} agent --ranks {ranks} --nics {nics} \
             --linger-ms {linger_ms} --name {}\n",
            this.count().display(),
            this.cores().display(),
            this.name
        );
        fs::write(this.command(), script).unwrap();
        fs::set_permissions(this.command(), fs::Permissions::from_mode(0o755)).unwrap();
        this
    }

    fn command(&self) -> PathBuf {
        self.folder.path().join("start")
    }

    fn count(&self) -> PathBuf {
        self.folder.path().join("count")
    }

    /// Where it says which cores it may use.
    fn cores(&self) -> PathBuf {
        self.folder.path().join("cores")
    }

    fn counted(&self) -> usize {
        fs::read_to_string(self.count()).unwrap_or_default().len()
    }

    fn rank(&self, test: &str, role: &str) -> Command {
        let mut rank = Command::new(std::env::current_exe().unwrap());
        rank.args([test, "--exact", "--nocapture"]);
        rank.env(ENV_ROLE, role).env("RUST_BACKTRACE", "0");
        rank.env("TRIHOP_AGENT", &self.name);
        rank.env("TRIHOP_AGENT_START", self.command());
        rank
    }
}

fn meet(ranks: u32) {
    let job = Job::start(Options::from_env().unwrap()).unwrap();
    let mut count = [1_u64];
    job.allreduce(&mut count, Reduce::Sum).unwrap();
    assert_eq!((count, job.size()), ([u64::from(ranks)], ranks));
    job.shutdown().unwrap();
}

#[test]
fn ranks_that_come_at_once_start_one_agent_which_ends_after_them() {
    let test = "ranks_that_come_at_once_start_one_agent_which_ends_after_them";
    if role().is_some() {
        return meet(4);
    }
    for nics in [1, 2] {
        let starts = Starts::of_several(nics, "once", 4, 300);
        // The output of ranks ends with them, though their agent runs on.
        let ranks = [(); 4].map(|()| Launched::start(starts.rank(test, "rank")));
        for rank in ranks {
            has_ended_well(&rank.wait(), "a rank");
        }
        assert_eq!(starts.counted(), 1);
        until("the agent has ended", || processes_named(&starts.name) == 0);
    }
}

/// It serves the ranks of all cores.
#[test]
fn an_agent_is_not_bound_to_the_cores_of_the_rank_that_starts_it() {
    let test = "an_agent_is_not_bound_to_the_cores_of_the_rank_that_starts_it";
    if role().is_some() {
        return meet(1);
    }
    let all = allowed().unwrap();
    let Ok(before) = keep_to(&all[..1]) else {
        eprintln!("skipped: nobody may be bound to cores here");
        return;
    };
    let starts = Starts::new("bound", 1, 0);
    let rank = Launched::start(starts.rank(test, "rank"));
    before.restore();
    has_ended_well(&rank.wait(), "the rank");
    let cores = fs::read_to_string(starts.cores()).unwrap();
    assert_eq!(cores_of(cores.trim(), &all), all);
    until("the agent has ended", || processes_named(&starts.name) == 0);
}

/// With a time to linger of 0 each job may meet the end of the agent of the one before.
#[test]
fn an_agent_that_ends_is_followed_by_another_one() {
    let test = "an_agent_that_ends_is_followed_by_another_one";
    if role().is_some() {
        return (0..30).for_each(|_| meet(2));
    }
    let starts = Starts::new("again", 2, 0);
    let ranks = [(); 2].map(|()| Launched::start(starts.rank(test, "rank")));
    for rank in ranks {
        has_ended_well(&rank.wait(), "a rank");
    }
    assert!(starts.counted() >= 1);
    until("the agent has ended", || processes_named(&starts.name) == 0);
}

/// The kernel reaps the children of such a program, and nobody can wait for them.
#[test]
fn a_rank_that_ignores_the_end_of_its_children_starts_an_agent() {
    let test = "a_rank_that_ignores_the_end_of_its_children_starts_an_agent";
    if role().is_some() {
        return meet(1);
    }
    let starts = Starts::new("reaped", 1, 0);
    let rank = starts.rank(test, "rank");
    let mut ignoring = Command::new("sh");
    ignoring.args(["-c", "trap '' CHLD; exec \"$0\" \"$@\""]);
    ignoring.arg(rank.get_program()).args(rank.get_args());
    let variables = rank.get_envs();
    ignoring.envs(variables.filter_map(|(name, value)| Some((name, value?))));
    has_ended_well(&Launched::start(ignoring).wait(), "the rank");
    assert_eq!(starts.counted(), 1);
    until("the agent has ended", || processes_named(&starts.name) == 0);
}

/// As where somebody starts one by hand in the same moment.
#[test]
fn an_agent_that_is_there_after_all_is_taken_although_the_command_has_failed() {
    let test = "an_agent_that_is_there_after_all_is_taken_although_the_command_has_failed";
    if role().is_some() {
        return meet(1);
    }
    let starts = Starts::new("other", 1, 0);
    let (said, name) = (starts.folder.path().join("said"), &starts.name);
    let script = format!(
        "#!/bin/sh\n{TRIHOP} agent --ranks 1 --linger-ms 0 --name {name} >{said} 2>&1 &\n\
         until grep -q ready {said}; do sleep 0.01; done\nexit 3\n",
        said = said.display(),
    );
    fs::write(starts.command(), script).unwrap();
    has_ended_well(
        &Launched::start(starts.rank(test, "rank")).wait(),
        "the rank",
    );
    until("the agent has ended", || processes_named(&starts.name) == 0);
}

#[test]
fn a_command_that_starts_no_agent_is_named_with_what_went_wrong() {
    let test = "a_command_that_starts_no_agent_is_named_with_what_went_wrong";
    if role().is_some() {
        let refused = Job::start(Options::from_env().unwrap()).map(drop);
        return eprintln!("refused: {}", refused.unwrap_err());
    }
    let starts = Starts::new("wrong", 1, 0);
    for (command, why) in [
        ("/nowhere/trihop agent", "No such file"),
        ("true", "without a word that an agent is ready"),
        (
            "echo ready somebody",
            "without a word that an agent is ready",
        ),
        (" ", "only blanks"),
    ] {
        let mut rank = starts.rank(test, "rank");
        rank.env("TRIHOP_AGENT_START", command);
        let ended = Launched::start(rank).wait();
        let said = &ended.stderr;
        assert!(said.contains("TRIHOP_AGENT_START"), "{command}: {said}");
        assert!(said.contains(why), "{command}: {said}");
    }
}

//! Jobs within limits of the system: in a control group whose memory limit they do not fit (real
//! groups, where this process may make them), and of an ordinary user with few descriptors.

mod launched;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use launched::{run, until};

const TRIHOP: &str = env!("CARGO_BIN_EXE_trihop");

/// Enough for two small ranks and their launcher, not for batches of 16 MiB.
const LIMIT_BYTES: usize = 256 << 20;

/// Where control groups may be mounted, and the file that limits the memory of one.
const HIERARCHIES: [(&str, &str); 3] = [
    ("/sys/fs/cgroup", "memory.max"),
    ("/sys/fs/cgroup/unified", "memory.max"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
];

/// A control group of this test's own, which goes with it.
struct Group {
    directory: PathBuf,
    file: &'static str,
}

impl Group {
    /// A group that limits memory to [`LIMIT_BYTES`]; none, and the reason is printed, where that
    /// cannot be made.
    fn limited() -> Option<Self> {
        for (mount, file) in HIERARCHIES {
            let directory = Path::new(mount).join(format!("trihop-test-{}", std::process::id()));
            if let Err(error) = fs::create_dir(&directory) {
                eprintln!("no control group in {mount}: {error}");
                continue;
            }
            let group = Self { directory, file };
            let limit = group.directory.join(file);
            // Writing would make a plain file where this is no control group.
            if !limit.exists() || fs::write(&limit, LIMIT_BYTES.to_string()).is_err() {
                eprintln!("no memory limits in {mount}");
                continue;
            }
            if run(group.command("true", &[])).status == 0 {
                return Some(group);
            }
            eprintln!("no process can be put into {}", group.directory.display());
        }
        eprintln!("skipped: this process may make no control group that limits memory");
        None
    }

    /// A command that is in the group from its beginning on.
    fn command(&self, program: &str, words: &[&str]) -> Command {
        let mut command = Command::new("sh");
        let script = "echo $$ > \"$0/cgroup.procs\" && exec \"$@\"";
        command
            .args(["-c", script])
            .arg(&self.directory)
            .arg(program)
            .args(words);
        command
    }

    /// An exchange of two ranks on two nodes.
    fn exchange(&self) -> Command {
        let words = "run --node-sizes 1,1 --";
        let words: Vec<&str> = words
            .split(' ')
            .chain([TRIHOP, "exchange", "--count", "100"])
            .collect();
        self.command(TRIHOP, &words)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that has just ended may still be counted.
        until("the control group is empty", || {
            !self.directory.exists() || fs::remove_dir(&self.directory).is_ok()
        });
    }
}

#[test]
fn a_job_that_its_control_group_cannot_hold_is_refused_and_not_killed() {
    let Some(group) = Group::limited() else {
        return;
    };
    run(group.exchange()).succeeded();
    let mut command = group.exchange();
    command.env("TRIHOP_REMOTE_BUFTARGET_BYTES", (16 << 20).to_string());
    command.env("TRIHOP_MEMORY_BYTES", (8u64 << 30).to_string());
    let ended = run(command);
    assert!(ended.status > 0 && ended.status < 128, "{ended:?}");
    for part in [
        "option memory_bytes: a rank needs endpoint ",
        " + send pools ",
        "times 2 for the ranks that share the limit = ",
        group.file,
        &format!(" is {LIMIT_BYTES}; raise that limit"),
    ] {
        assert!(ended.stderr.contains(part), "`{part}` in {}", ended.stderr);
    }
}

/// Linux counts the descriptors that are under way between all processes of a user, and lets an
/// ordinary one send none beyond its own limit of open ones.
#[test]
fn many_ranks_of_a_node_start_with_few_descriptors() {
    let is_root = rustix::process::geteuid().is_root();
    let may_more = ["setpriv", "--bounding-set=-sys_admin,-sys_resource"];
    let as_others = if is_root { &may_more[..] } else { &[] };
    if is_root && Command::new("setpriv").arg("--version").output().is_err() {
        eprintln!("skipped: there is no `setpriv` to give up what root may do beyond limits");
        return;
    }
    let mut command = Command::new("sh");
    // Each rank has two of each other one, and as many more while it starts; all of them have
    // given each other 3,120.
    command.args(["-c", "ulimit -n 256 && exec \"$@\"", "sh"]);
    command.args(as_others);
    command.args([TRIHOP, "run", "--ranks", "40", "--"]);
    command.args([TRIHOP, "exchange", "--count", "10"]);
    run(command).succeeded();
}

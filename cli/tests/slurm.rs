//! Jobs under Slurm, as a cluster of this machine alone that the test starts and ends.

mod launched;

use std::fs;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use launched::{Ended, Launched, is_installed, probe, try_run, until};
use tempfile::TempDir;

const TRIHOP: &str = env!("CARGO_BIN_EXE_trihop");

/// A controller and a daemon, which end with it.
struct Cluster {
    folder: TempDir,
    daemons: Vec<Child>,
}

impl Cluster {
    /// None where Slurm is not installed.
    fn start() -> Option<Self> {
        let paths = ["/usr/sbin", "/usr/local/sbin", "/usr/bin", "/usr/local/bin"];
        let find = |name: &str| {
            paths
                .iter()
                .map(|p| Path::new(p).join(name))
                .find(|p| p.is_file())
        };
        let (Some(controller), Some(daemon)) = (find("slurmctld"), find("slurmd")) else {
            eprintln!("skipped: slurmctld or slurmd is not installed");
            return None;
        };
        if !is_installed("srun") || !rustix::process::geteuid().is_root() {
            eprintln!("skipped: srun is not installed, or this is not root");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        fs::write(
            folder.path().join("slurm.conf"),
            configuration(folder.path()),
        )
        .unwrap();
        let mut cluster = Self {
            folder,
            daemons: Vec::new(),
        };
        for program in [controller, daemon] {
            let log = fs::File::create(cluster.folder.path().join("said")).unwrap();
            let mut command = cluster.command(&program);
            command
                .arg("-D")
                .stdout(log.try_clone().unwrap())
                .stderr(log);
            command.stdin(Stdio::null()).process_group(0);
            cluster.daemons.push(command.spawn().unwrap());
        }
        until("the node is idle", || {
            let mut sinfo = cluster.command(Path::new("sinfo"));
            sinfo.args(["--noheader", "--format=%T"]);
            try_run(sinfo).is_some_and(|ended| ended.stdout.trim() == "idle")
        });
        Some(cluster)
    }

    /// A command that finds the cluster, and nothing of a launcher around the tests.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if ["PMI", "SLURM", "TRIHOP_"]
                .iter()
                .any(|prefix| text.starts_with(prefix))
            {
                command.env_remove(name);
            }
        }
        command.env("SLURM_CONF", self.folder.path().join("slurm.conf"));
        command.current_dir(self.folder.path());
        command
    }

    /// Four tasks.
    fn srun(&self, mpi: &str, words: &[&str]) -> Ended {
        let mut command = self.command(Path::new("srun"));
        command
            .arg(format!("--mpi={mpi}"))
            .args(["--ntasks=4", "--immediate=60"])
            .args(words);
        Launched::start(command).wait()
    }

    fn has(&self, mpi: &str) -> bool {
        let mut command = self.command(Path::new("srun"));
        command.arg("--mpi=list");
        let listed = Launched::start(command).wait();
        let has = format!("{}{}", listed.stdout, listed.stderr).contains(mpi);
        if !has {
            eprintln!("skipped: this Slurm was built without {mpi}");
        }
        has
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            if let Some(group) = rustix::process::Pid::from_raw(daemon.id() as i32) {
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            }
            let _ = daemon.wait();
        }
    }
}

/// One node with more processors than the machine has, and no authentication but by ports of
/// loopback that nobody else knows.
fn configuration(folder: &Path) -> String {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [controller, daemon] = listeners.map(|l| l.local_addr().unwrap().port());
    let name = rustix::system::uname();
    let name = name.nodename().to_string_lossy();
    let host = name.split('.').next().unwrap_or_default();
    let folder = folder.display();
    for made in ["state", "spool"] {
        fs::create_dir(format!("{folder}/{made}")).unwrap();
    }
    format!(
        "ClusterName=trihop
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/none
CredType=cred/none
SlurmctldPort={controller}
SlurmdPort={daemon}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SchedulerType=sched/builtin
JobAcctGatherType=jobacct_gather/none
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"
    )
}

fn assert_probed(ended: &Ended, launcher: &str) {
    assert_eq!(ended.status, 0, "{}\n{}", ended.stdout, ended.stderr);
    let expected: Vec<String> = (0..4)
        .map(|rank| {
            let map = format!("map (vector,(0,1,4)) launcher {launcher}");
            format!("probe rank {rank}/4 node 0/1 local {rank}/4 {map}")
        })
        .collect();
    assert_eq!(ended.sorted_lines(), expected, "{}", ended.stderr);
}

/// One test, since a cluster is what takes its time.
#[test]
fn jobs_under_slurm() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let probe = probe().display().to_string();
    for (mpi, launcher) in [("pmi2", "pmi1"), ("pmix", "pmix")] {
        if cluster.has(mpi) {
            assert_probed(&cluster.srun(mpi, &[&probe]), launcher);
            let exchange = [TRIHOP, "exchange", "--count", "500"];
            cluster.srun(mpi, &exchange).succeeded();
        }
    }
    let refused = cluster.srun("none", &[&probe]);
    assert_ne!(refused.status, 0, "{}", refused.stdout);
    assert!(
        refused.stderr.contains("srun --mpi=pmi2"),
        "{}",
        refused.stderr
    );

    let script = cluster.folder.path().join("batch.sh");
    fs::write(
        &script,
        format!("#!/bin/sh\nsrun --mpi=pmi2 {probe} && {probe}\n"),
    )
    .unwrap();
    let output: PathBuf = cluster.folder.path().join("batch.out");
    let mut sbatch = cluster.command(Path::new("sbatch"));
    sbatch
        .args(["--wait", "--ntasks=4", "--output"])
        .arg(&output)
        .arg(&script);
    let ended = Launched::start(sbatch).wait();
    let text = fs::read_to_string(&output).unwrap_or_default();
    assert_eq!(ended.status, 0, "{}{text}", ended.stderr);
    assert_eq!(text.matches("launcher pmi1").count(), 4, "{text}");
    // The script itself is no task: it is a job of one, and says so.
    assert_eq!(text.matches("launcher single").count(), 1, "{text}");
    assert!(text.contains("this is a job of one"), "{text}");
}

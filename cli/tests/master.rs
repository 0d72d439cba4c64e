//! Ranks that a plain shell starts, and that meet at the address of rank 0.

mod launched;

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use launched::{Ended, Launched, probe};
use serde_json::Value;
use tempfile::TempDir;

const TRIHOP: &str = env!("CARGO_BIN_EXE_trihop");

/// Starts `$1` as ranks `$2` to `$3`, and takes the first status that is not 0.
const LOOP: &str = r#"
for rank in $(seq "$2" "$3"); do
    TRIHOP_RANK=$rank sh -c "$1" &
    started="$started $!"
done
for process in $started; do
    wait "$process" || status=$?
done
exit ${status:-0}
"#;

/// A folder with the secret of a job, and another one.
struct Secrets(TempDir);

impl Secrets {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("secret", "0123456789abcdef"),
            ("other", "fedcba9876543210"),
        ] {
            fs::write(folder.path().join(name), text).unwrap();
            let mode = fs::Permissions::from_mode(0o600);
            fs::set_permissions(folder.path().join(name), mode).unwrap();
        }
        Self(folder)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("secret")
    }
}

/// A shell that is to start ranks, without what a launcher around the tests may have left.
fn shell(secret: &Path, master: &str, size: u32, words: &[&str]) -> Command {
    let mut command = Command::new("sh");
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["PMI", "TRIHOP_"]
            .iter()
            .any(|prefix| text.starts_with(prefix))
        {
            command.env_remove(name);
        }
    }
    command
        .args(["-c", LOOP, "loop"])
        .args(words)
        .env("TRIHOP_MASTER", master)
        .env("TRIHOP_SIZE", size.to_string())
        .env("TRIHOP_SECRET_FILE", secret);
    command
}

/// Runs `rank` four times at a port that was free a moment ago, and again where it no longer is.
fn loop_of_four(secret: &Path, rank: &str) -> Ended {
    loop {
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .unwrap()
            .port();
        let master = format!("127.0.0.1:{port}");
        let ended = Launched::start(shell(secret, &master, 4, &[rank, "0", "3"])).wait();
        if !ended.stderr.contains("rank 0 cannot listen") {
            return ended;
        }
    }
}

#[test]
fn four_processes_of_a_shell_are_a_job() {
    let secrets = Secrets::new();
    let ended = loop_of_four(&secrets.path(), &probe().display().to_string()).succeeded();
    let expected: Vec<String> = (0..4)
        .map(|rank| {
            let map = "map (vector,(0,1,4)) launcher master";
            format!("probe rank {rank}/4 node 0/1 local {rank}/4 {map}")
        })
        .collect();
    assert_eq!(ended.sorted_lines(), expected, "{}", ended.stderr);
    let exchange = format!("{TRIHOP} exchange --count 2000");
    let ended = loop_of_four(&secrets.path(), &exchange).succeeded();
    assert_eq!(ended.stderr, "");
}

/// Two machines, as far as processes can tell: each has a network of its own.
#[test]
fn processes_in_two_network_namespaces_are_a_job_of_two_nodes() {
    let secrets = Secrets::new();
    let inner = |rank: &str| {
        // Node 0 has the first address. What the outer launcher says of its own ranks goes.
        let command = shell(&secrets.path(), "10.201.0.1:7777", 4, &[]);
        let set: Vec<String> = command
            .get_envs()
            .filter_map(|(name, value)| Some(format!("{}={}", name.to_str()?, value?.to_str()?)))
            .collect();
        let script = format!(
            "first=$((2 * TRIHOP_RANK)); unset TRIHOP_BOOT_FD TRIHOP_NODE_SIZES TRIHOP_RANK; \
             exec env {} sh -c '{LOOP}' loop '{rank}' $first $((first + 1))",
            set.join(" ")
        );
        let words = [
            "-n",
            "2",
            "--nodes",
            "2",
            "--netns",
            "--no-prefix",
            "--",
            "sh",
            "-c",
            &script,
        ];
        Launched::trihop(words.map(str::to_owned)).wait()
    };
    let ended = inner(&probe().display().to_string());
    if ended.status == 1 && ended.stderr.contains("--netns") {
        eprintln!("skipped: {}", ended.stderr.trim());
        return;
    }
    let ended = ended.succeeded();
    let expected: Vec<String> = (0..4)
        .map(|rank| {
            let (node, local) = (rank / 2, rank % 2);
            let map = "map (vector,(0,2,2)) launcher master";
            format!("probe rank {rank}/4 node {node}/2 local {local}/2 {map}")
        })
        .collect();
    assert_eq!(ended.sorted_lines(), expected, "{}", ended.stderr);
    inner(&format!("{TRIHOP} exchange --count 2000")).succeeded();
}

#[test]
fn a_process_with_another_secret_is_told_and_rank_0_names_it() {
    let secrets = Secrets::new();
    let probe = probe().display();
    let rank = format!(
        "[ $TRIHOP_RANK != 2 ] || TRIHOP_SECRET_FILE={}/other; exec {probe} --deadline-ms 3000",
        secrets.0.path().display()
    );
    let ended = loop_of_four(&secrets.path(), &rank);
    assert_eq!(ended.status, 1, "{}", ended.stdout);
    assert!(ended.stderr.contains("another secret"), "{}", ended.stderr);
    let missing = "missing at a fence after 3s: 2 (never connected)";
    assert!(ended.stderr.contains(missing), "{}", ended.stderr);
    assert!(
        !ended.stderr.contains("0123456789abcdef"),
        "{}",
        ended.stderr
    );
}

#[test]
fn what_a_process_lacks_is_named_with_the_remedy() {
    let secrets = Secrets::new();
    let open = secrets.0.path().join("open");
    fs::write(&open, "0123456789abcdef").unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();
    let start = |change: &dyn Fn(&mut Command)| {
        let probe = format!("exec {} --deadline-ms 200", probe().display());
        let mut command = shell(&secrets.path(), "127.0.0.1:1", 2, &[&probe, "1", "1"]);
        change(&mut command);
        let ended = Launched::start(command).wait();
        assert_eq!(ended.status, 1, "{}", ended.stdout);
        ended.stderr
    };
    let unreached = start(&|_| {});
    assert!(
        unreached.contains("was not reached at TRIHOP_MASTER=127.0.0.1:1 for 200ms"),
        "{unreached}"
    );
    for (variable, value, remedy) in [
        ("TRIHOP_SECRET_FILE", "", "/dev/urandom"),
        ("TRIHOP_SECRET_FILE", "/nowhere", "/nowhere"),
        ("TRIHOP_SECRET_FILE", open.to_str().unwrap(), "chmod 600"),
        ("TRIHOP_SIZE", "", "the number of ranks"),
        ("TRIHOP_SIZE", "many", "is no number from 0 to 4294967295"),
        ("TRIHOP_SIZE", "4294967296", "is no number from 0 to"),
        ("TRIHOP_SIZE", "1", "no rank of 1"),
        ("TRIHOP_MASTER", "127.0.0.1", "HOST:PORT"),
    ] {
        let said = start(&|command| {
            command.env(variable, value);
        });
        assert!(
            said.contains(variable) || said.contains("TRIHOP_RANK"),
            "{said}"
        );
        assert!(said.contains(remedy), "{variable}={value}: {said}");
    }
}

/// The documents of `docs/kubernetes.yaml`; none where nobody here reads YAML.
fn kubernetes() -> Option<Vec<Value>> {
    let yaml = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/kubernetes.yaml");
    let script =
        "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))";
    let mut known = Command::new("python3");
    known.args(["-c", "import yaml"]);
    if !known.output().is_ok_and(|known| known.status.success()) {
        eprintln!("skipped: python3 with its module yaml is not installed");
        return None;
    }
    let mut read = Command::new("python3");
    read.args(["-c", script]).arg(yaml);
    let read = Launched::start(read).wait().succeeded();
    Some(serde_json::from_str(&read.stdout).unwrap())
}

/// What the documents show for Kubernetes fits together, and its variables make processes a job.
#[test]
fn the_ranks_of_kubernetes_are_a_job() {
    let Some(documents) = kubernetes() else {
        return;
    };
    let of_kind = |kind: &str| documents.iter().find(|of| of["kind"] == kind).unwrap();
    let (service, job) = (of_kind("Service"), of_kind("Job"));
    let (name, pods) = (&job["metadata"]["name"], &job["spec"]["template"]["spec"]);
    assert_eq!(&service["spec"]["selector"]["job-name"], name);
    assert_eq!(service["metadata"]["name"], pods["subdomain"]);
    assert_eq!(job["spec"]["completionMode"], "Indexed");
    assert_eq!(job["spec"]["completions"], job["spec"]["parallelism"]);
    let ranks = job["spec"]["completions"].as_u64().unwrap();

    let container = &pods["containers"][0];
    let variables: Vec<(&str, &Value)> = container["env"]
        .as_array()
        .unwrap()
        .iter()
        .map(|of| (of["name"].as_str().unwrap(), of))
        .collect();
    let value_of = |wanted: &str| {
        let found = variables.iter().find(|(name, _)| *name == wanted);
        found.and_then(|(_, of)| of["value"].as_str())
    };
    let first = format!(
        "{}-0.{}:",
        name.as_str().unwrap(),
        pods["subdomain"].as_str().unwrap()
    );
    let master = value_of("TRIHOP_MASTER").unwrap();
    assert!(master.starts_with(&first), "{master} is not pod 0: {first}");
    assert_eq!(value_of("TRIHOP_SIZE"), Some(&*ranks.to_string()));
    let (mount, volume) = (&container["volumeMounts"][0], &pods["volumes"][0]);
    assert_eq!(mount["name"], volume["name"]);
    let secret = Path::new(value_of("TRIHOP_SECRET_FILE").unwrap());
    assert_eq!(
        secret.parent().and_then(Path::to_str),
        mount["mountPath"].as_str()
    );

    let secrets = Secrets::new();
    let (folder, host) = (
        secrets.0.path().to_str().unwrap(),
        master.rsplit_once(':').unwrap().0,
    );
    let set = |(name, of): &(&str, &Value)| {
        let index = "metadata.annotations['batch.kubernetes.io/job-completion-index']";
        let value = match of["value"].as_str() {
            Some(value) => value.replace(mount["mountPath"].as_str().unwrap(), folder),
            None => {
                assert_eq!(of["valueFrom"]["fieldRef"]["fieldPath"], index);
                "$TRIHOP_RANK".to_owned()
            }
        };
        // Rank 0 is here, at a port that is free.
        let value = match value.strip_prefix(host) {
            Some(_) => "$MASTER".to_owned(),
            None => value,
        };
        format!("{name}=\"{value}\"")
    };
    let set: Vec<String> = variables.iter().map(set).collect();
    let rank = format!(
        "MASTER=$TRIHOP_MASTER RANK=$TRIHOP_RANK; \
         unset TRIHOP_MASTER TRIHOP_SIZE TRIHOP_SECRET_FILE TRIHOP_RANK; \
         exec env {} {}",
        set.join(" ").replace("$TRIHOP_RANK", "$RANK"),
        probe().display()
    );
    assert_eq!(ranks, 4, "as many as the loop starts");
    let ended = loop_of_four(&secrets.path(), &rank).succeeded();
    let lines = ended.stdout.matches(" launcher master").count();
    assert_eq!(lines as u64, ranks, "{}", ended.stdout);
    assert!(ended.stdout.contains("probe rank 3/4 "), "{}", ended.stdout);
}

/// Who calls `trihop run` inside of such a job means a job of its own.
#[test]
fn trihop_run_is_the_launcher_of_its_ranks() {
    let secrets = Secrets::new();
    let rank = format!("{TRIHOP} run -n 2 -- {}", probe().display());
    let ended =
        Launched::start(shell(&secrets.path(), "127.0.0.1:1", 2, &[&rank, "1", "1"])).wait();
    let ended = ended.succeeded();
    assert_eq!(
        ended.stdout.matches("launcher local").count(),
        2,
        "{}",
        ended.stdout
    );
}

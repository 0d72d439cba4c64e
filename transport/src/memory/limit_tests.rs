use super::*;
use proptest::prelude::*;

const GIB: u64 = 1 << 30;

/// A directory that looks like a machine of 64 GiB.
struct Machine(tempfile::TempDir);

impl Machine {
    /// One with these `/proc/self/cgroup` and `/proc/self/mountinfo`.
    fn new(groups: &str, mounts: &str) -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        machine.write(
            "proc/meminfo",
            "MemTotal:       67108864 kB\nMemFree: 1 kB\n",
        );
        machine.write("proc/self/cgroup", groups);
        machine.write("proc/self/mountinfo", mounts);
        machine
    }

    /// One with the unified hierarchy alone, and this process in `group`.
    fn unified(group: &str) -> Self {
        let mounts = "22 27 0:21 / /proc rw,relatime - proc proc rw\n\
            41 31 0:38 / /sys/fs/cgroup rw,relatime shared:9 master:2 - cgroup2 cgroup2 rw,nsdelegate\n";
        Self::new(&format!("0::{group}\n"), mounts)
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.0.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// What limits groups here: bytes, and the end of the source's text.
    fn group(&self) -> Option<(u64, Scope)> {
        let limits = limits_under(self.0.path(), None);
        assert!(
            limits
                .iter()
                .any(|l| l.bytes == 64 * GIB && l.scope == Scope::Machine)
        );
        let group = limits
            .into_iter()
            .find(|l| matches!(l.scope, Scope::Group(_)))?;
        Some((group.bytes, group.scope))
    }

    fn group_bytes(&self) -> Option<u64> {
        self.group().map(|(bytes, _)| bytes)
    }
}

#[test]
fn a_group_that_holds_ours_limits_us() {
    let machine = Machine::unified("/job/step/task");
    machine.write("sys/fs/cgroup/job/memory.max", format!("{GIB}\n"));
    machine.write("sys/fs/cgroup/job/step/memory.max", "max\n");
    machine.write(
        "sys/fs/cgroup/job/step/task/memory.max",
        format!("{}\n", 2 * GIB),
    );
    machine.write("sys/fs/cgroup/job/step/other/memory.max", "4096\n");
    assert_eq!(machine.group_bytes(), Some(GIB));
    let least = least(limits_under(machine.0.path(), None)).unwrap();
    assert!(least.source.contains("job/memory.max"), "{}", least.source);
    assert!(
        least.to_string().starts_with("1073741824 bytes ("),
        "{least}"
    );
}

#[test]
fn of_equal_limits_the_outermost_counts_since_most_processes_share_it() {
    let machine = Machine::unified("/job/step");
    machine.write("sys/fs/cgroup/job/memory.max", format!("{GIB}\n"));
    machine.write("sys/fs/cgroup/job/step/memory.max", format!("{GIB}\n"));
    machine.write("sys/fs/cgroup/job/two/memory.max", format!("{GIB}\n"));
    let (_, first) = machine.group().unwrap();
    machine.write("proc/self/cgroup", "0::/job/two\n");
    let (_, second) = machine.group().unwrap();
    assert_eq!(first, second, "two steps of a job share the job's limit");
    machine.write("sys/fs/cgroup/job/two/memory.max", "4096\n");
    assert_ne!(machine.group().unwrap().1, first);
}

#[test]
fn a_limit_of_version_1_is_found_beside_an_empty_unified_hierarchy() {
    let machine = Machine::new(
        "9:name=systemd:/\n4:cpu,memory:/slurm/uid_1/job 7\n1:devices:/memory\n0::/\n",
        "40 31 0:37 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
         35 31 0:32 / /sys/fs/cgroup/the\\040memory rw,relatime - cgroup cgroup rw,cpu,memory\n\
         36 31 0:33 / /sys/fs/cgroup/devices rw,relatime - cgroup cgroup rw,devices\n",
    );
    let group = "sys/fs/cgroup/the memory/slurm/uid_1";
    machine.write(
        "sys/fs/cgroup/devices/memory/memory.limit_in_bytes",
        "4096\n",
    );
    for none in ["9223372036854771712\n", "9223372036854710272\n", "-1\n"] {
        machine.write(&format!("{group}/memory.limit_in_bytes"), none);
        assert_eq!(machine.group_bytes(), None, "{none}");
    }
    machine.write(&format!("{group}/memory.limit_in_bytes"), "4294967296\n");
    assert_eq!(machine.group_bytes(), Some(4 * GIB));
    machine.write(&format!("{group}/memory.use_hierarchy"), "0\n");
    assert_eq!(
        machine.group_bytes(),
        None,
        "the group outside does not count us"
    );
    machine.write(
        &format!("{group}/job 7/memory.limit_in_bytes"),
        "1073741824\n",
    );
    machine.write(&format!("{group}/job 7/memory.use_hierarchy"), "0\n");
    assert_eq!(
        machine.group_bytes(),
        Some(GIB),
        "our own group always does"
    );
}

#[test]
fn a_container_sees_its_group_at_the_mount_point() {
    let mount =
        |group: &str| format!("41 31 0:38 {group} /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n");
    // Without a namespace of groups: the host's path, and a mount of just that.
    let machine = Machine::new("0::/docker/abc/inner\n", &mount("/docker/abc"));
    machine.write("sys/fs/cgroup/memory.max", "3221225472\n");
    assert_eq!(machine.group_bytes(), Some(3 * GIB));
    machine.write("sys/fs/cgroup/inner/memory.max", "1073741824\n");
    assert_eq!(machine.group_bytes(), Some(GIB));
    // A mount from outside of the namespace: what is at its top holds us.
    machine.write("proc/self/cgroup", "0::/\n");
    machine.write("proc/self/mountinfo", mount("/../.."));
    assert_eq!(machine.group_bytes(), Some(3 * GIB));
    // Groups that the mount does not show are not guessed.
    for (own, root) in [
        ("/elsewhere", "/docker/abc"),
        ("/../sibling", "/"),
        ("/docker/abcd", "/docker/abc"),
    ] {
        machine.write("proc/self/cgroup", format!("0::{own}\n"));
        machine.write("proc/self/mountinfo", mount(root));
        assert_eq!(machine.group_bytes(), None, "{own} in a mount of {root}");
    }
}

#[test]
fn the_least_of_groups_memory_and_address_space_is_what_is_available() {
    let machine = Machine::unified("/job");
    machine.write("sys/fs/cgroup/job/memory.max", format!("{GIB}\n"));
    let least = |space| least(limits_under(machine.0.path(), space)).unwrap();
    assert!(matches!(least(Some(2 * GIB)).scope, Scope::Group(_)));
    assert_eq!(least(Some(GIB / 2)).scope, Scope::Process);
    assert!(least(Some(GIB / 2)).source.contains("ulimit -v"));
    machine.write("sys/fs/cgroup/job/memory.max", "max\n");
    assert_eq!(least(None).scope, Scope::Machine);
    assert_eq!(least(None).bytes, 64 * GIB);
}

#[test]
fn this_machine_has_a_limit() {
    let limit = available();
    assert!(limit.bytes > 0 && limit.bytes < 1 << 50, "{limit}");
    assert!(limits().iter().all(|l| l.bytes >= limit.bytes));
}

#[test]
fn files_that_are_missing_or_directories_limit_nothing() {
    let empty = tempfile::tempdir().unwrap();
    assert_eq!(limits_under(empty.path(), None), []);
    let machine = Machine::unified("/job");
    std::fs::create_dir_all(machine.0.path().join("sys/fs/cgroup/job/memory.max")).unwrap();
    assert_eq!(machine.group_bytes(), None);
    machine.write("sys/fs/cgroup/memory.max", format!("{GIB}\n"));
    assert_eq!(machine.group_bytes(), Some(GIB));
}

#[test]
fn odd_numbers_limit_nothing() {
    let machine = Machine::unified("/job");
    for odd in [
        "",
        "\n",
        "maximum",
        "-5",
        "1.5",
        "1k",
        "99999999999999999999999",
        "\0",
        "12 13",
    ] {
        machine.write("sys/fs/cgroup/job/memory.max", odd);
        assert_eq!(machine.group_bytes(), None, "{odd:?}");
    }
    machine.write("sys/fs/cgroup/job/memory.max", b"\xff\xfe");
    assert_eq!(machine.group_bytes(), None);
    machine.write("sys/fs/cgroup/job/memory.max", "0\n");
    assert_eq!(machine.group_bytes(), Some(0));
    machine.write("proc/meminfo", "MemTotal: 18446744073709551615 kB\n");
    assert_eq!(
        limits_under(machine.0.path(), None).len(),
        1,
        "no such machine"
    );
}

/// Lines that are nearly right, and others.
fn line() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        Just(" "),
        Just(":"),
        Just("::"),
        Just("\\04"),
        Just("\\777"),
        Just("-"),
        Just(" - "),
        Just("cgroup2"),
        Just("cgroup"),
        Just("memory"),
        Just("/"),
        Just("/.."),
        Just("0"),
        Just("/sys/fs/cgroup"),
        Just("\n"),
    ];
    let near = proptest::collection::vec(word, 0..24).prop_map(|words| words.concat().into_bytes());
    prop_oneof![near, proptest::collection::vec(any::<u8>(), 0..80)]
}

proptest! {
    #![proptest_config(crate::seed::properties())]
    #[test]
    fn odd_files_never_panic(groups in line(), mounts in line(), meminfo in line(), limit in line()) {
        let machine = Machine::unified("/job");
        machine.write("proc/self/cgroup", [b"0::/job\n".as_slice(), &groups].concat());
        machine.write("proc/self/mountinfo", &mounts);
        machine.write("proc/meminfo", &meminfo);
        machine.write("sys/fs/cgroup/job/memory.max", &limit);
        limits_under(machine.0.path(), Some(1));
        let _ = (Mount::parse(&mounts), own_group(&groups), unescape(&limit));
    }
}

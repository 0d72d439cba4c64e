//! Guests: processes that are no ranks, of `trihop serve` and of programs, killed at random too.

mod launched;

use std::process::Command;
use std::time::Duration;

use launched::agents::{ENV_ROLE, descriptors, role};
use launched::compiled::{Compiler, client_of};
use launched::{Launched, kills, run, until};
use trihop::channel::{Descriptor, Poll, Return, Timeout};
use trihop::guest::{Channel, Guest, Lifetime};
use trihop::{ChannelLimits, Error};

const TRIHOP: &str = env!("CARGO_BIN_EXE_trihop");

const WAIT: Duration = Duration::from_secs(60);

/// A server that is ready, and its name.
fn serve(what: &str) -> (Launched, String) {
    let name = format!("trihop-test-guests-{what}-{}", std::process::id());
    (serve_named(&name), name)
}

fn serve_named(name: &str) -> Launched {
    // Whoever runs the tests may ignore signals, as `nohup` and `&` of a script do.
    let mut server = Command::new("env");
    server.args([
        "--default-signal=INT,HUP,TERM",
        TRIHOP,
        "serve",
        "--name",
        name,
    ]);
    let mut server = Launched::start(server);
    assert_eq!(server.wait_for_lines(1), [format!("ready {name}")]);
    server
}

/// A guest of a server that is ready, and a channel that it has made there.
fn with_channel(name: &str) -> (Guest, Channel) {
    let guest = Guest::of(name, WAIT).unwrap();
    let made = guest
        .create(ChannelLimits::default(), Lifetime::Server)
        .unwrap();
    (guest, made)
}

fn end(server: Launched) {
    server.signal(libc::SIGTERM);
    server.wait().succeeded();
}

/// Starts this test binary as a guest: there it runs the test again, in this role.
fn start_guest(test: &str, name: &str, role: &str) -> Launched {
    let mut guest = Command::new(std::env::current_exe().unwrap());
    guest.args([test, "--exact", "--nocapture"]);
    guest.env(ENV_ROLE, role).env("RUST_BACKTRACE", "0");
    guest.env("TRIHOP_GUESTS", name);
    Launched::start(guest)
}

/// Of a process that was started as a guest: the channel that its role names.
fn port(role: &str) -> Channel {
    let guest = Guest::of(&trihop::guest::default_name(), WAIT).unwrap();
    let (_, descriptor) = role.split_once(' ').unwrap();
    guest.attach(&descriptor.parse().unwrap()).unwrap()
}

fn kill(guest: Launched) {
    guest.signal(libc::SIGKILL);
    assert_eq!(guest.wait().status, 128 + libc::SIGKILL);
}

/// The length of the message with this number.
fn length(number: u32) -> usize {
    match number % 50 {
        0 => 100_000,
        small => small as usize,
    }
}

#[test]
fn guests_that_are_killed_lose_nothing_that_others_have() {
    const TEST: &str = "guests_that_are_killed_lose_nothing_that_others_have";
    if let Some(role) = role() {
        let mut port = port(&role);
        if role.starts_with("gets ") {
            loop {
                port.get(Timeout::Never).unwrap();
            }
        }
        if role.starts_with("starts ") {
            loop {
                port.start_get(Timeout::Never).unwrap().wait().unwrap();
            }
        }
        for number in 0.. {
            let bytes = vec![number as u8; length(number)];
            port.send(number, &bytes, Return::WhenBuffered, Timeout::Never)
                .unwrap();
        }
    }
    let (server, name) = serve("kills");
    let (_, mut mine) = with_channel(&name);
    let descriptor = mine.descriptor();
    let before = descriptors(server.id());
    let (count, mut random) = kills::asked_for(12);
    for _ in 0..count {
        let sender = start_guest(TEST, &name, &format!("sends {descriptor}"));
        let until_killed = random.below(3_000) as u32;
        for number in 0..until_killed {
            let got = mine.get(Timeout::Never).unwrap();
            assert_eq!((got.kind, got.bytes.len()), (number, length(number)));
        }
        kill(sender);
        // All that it had sent whole comes, and its port is gone then.
        let mut next = until_killed;
        until("the port of a guest that was killed is gone", || {
            while let Ok(got) = mine.get(Timeout::Once) {
                assert_eq!((got.kind, got.bytes.len()), (next, length(next)));
                assert!(got.bytes.iter().all(|byte| *byte == next as u8));
                next += 1;
            }
            descriptors(server.id()) == before
        });
        // A guest that gets is killed, too: what it has not got stays.
        let how = ["gets", "starts"][random.below(2) as usize];
        let getter = start_guest(TEST, &name, &format!("{how} {descriptor}"));
        let sent = random.below(300) as u32;
        for number in 0..sent {
            let bytes = vec![1; length(number)];
            mine.send(number, &bytes, Return::WhenDeposited, Timeout::Never)
                .unwrap();
        }
        kill(getter);
        until("the port of a guest that was killed is gone", || {
            descriptors(server.id()) == before
        });
        let mut left = Vec::new();
        while let Ok(got) = mine.get(Timeout::Once) {
            left.push(got.kind);
        }
        let first = sent - left.len() as u32;
        assert!(left.iter().copied().eq(first..sent), "{left:?} of {sent}");
    }
    end(server);
}

#[test]
fn guests_of_a_server_that_is_killed_attach_to_its_successor() {
    let (server, name) = serve("successor");
    let (guest, mut mine) = with_channel(&name);
    let old = mine.descriptor();
    let mut waits = guest.attach(&old).unwrap();
    let waits = std::thread::spawn(move || waits.get(Timeout::Never));
    kill(server);
    let outcomes = [
        waits.join().unwrap().map(drop),
        mine.send(0, b"", Return::WhenDeposited, Timeout::Never),
        mine.poll(Poll::Size, Timeout::Never).map(drop),
        guest.attach(&old).map(drop),
    ];
    for outcome in outcomes {
        assert!(
            matches!(outcome, Err(Error::ServerFailed { .. })),
            "{outcome:?}"
        );
    }
    let server = serve_named(&name);
    let gone = guest.attach(&old).map(drop);
    assert!(matches!(gone, Err(Error::NoChannel { .. })), "{gone:?}");
    let limits = ChannelLimits::default();
    let mut mine = guest.create(limits, Lifetime::Guest).unwrap();
    mine.send(1, b"on", Return::WhenDeposited, Timeout::Never)
        .unwrap();
    assert_eq!(mine.get(Timeout::Never).unwrap().bytes, b"on");
    end(server);
}

#[test]
fn a_server_that_is_stopped_comes_back_unharmed() {
    let (server, name) = serve("stopped");
    let (guest, mut mine) = with_channel(&name);
    let descriptor = mine.descriptor();
    let sender = {
        let guest = guest.clone();
        std::thread::spawn(move || {
            let mut port = guest.attach(&descriptor).unwrap();
            for number in 0..20_000 {
                port.send(number, b"x", Return::WhenBuffered, Timeout::Never)
                    .unwrap();
            }
            port.failures().unwrap()
        })
    };
    for number in 0..20_000 {
        if number == 700 {
            server.signal(libc::SIGSTOP);
            std::thread::sleep(Duration::from_millis(50));
            server.signal(libc::SIGCONT);
        }
        assert_eq!(mine.get(Timeout::Never).unwrap().kind, number);
    }
    assert_eq!(sender.join().unwrap(), (0, None));
    end(server);
}

/// A server on each of two nodes, and a guest of each.
fn on_two_nodes() -> (Launched, [Guest; 2]) {
    let script = format!("exec {TRIHOP} serve --name trihop-test-guests-node-$$");
    let words = ["-n", "2", "--nodes", "2", "--no-prefix", "--", "sh", "-c"];
    let words = words.into_iter().map(str::to_owned).chain([script]);
    let mut job = Launched::trihop(words);
    let names = job.wait_for_lines(2);
    let guest = |line: &String| Guest::of(line.trim_start_matches("ready "), WAIT).unwrap();
    let guests = [guest(&names[0]), guest(&names[1])];
    assert_eq!([guests[0].size(), guests[1].size()], [2; 2]);
    assert_ne!(guests[0].rank(), guests[1].rank());
    (job, guests)
}

#[test]
fn guests_of_two_nodes_reach_each_other() {
    let (job, guests) = on_two_nodes();
    let mut own = guests.each_ref().map(|guest| {
        let limits = ChannelLimits::default();
        guest.create(limits, Lifetime::Server).unwrap()
    });
    let names: [Descriptor; 2] = own.each_ref().map(Channel::descriptor);
    // Of each, a port of the other's channel.
    let mut far = [0, 1].map(|at| guests[at].attach(&names[1 - at]).unwrap());
    for number in 0..500 {
        for at in [0, 1] {
            far[at]
                .send(number, &[7; 3000], Return::WhenBuffered, Timeout::Never)
                .unwrap();
            let got = own[1 - at].get(Timeout::Never).unwrap();
            let of = (got.kind, got.source, got.bytes.len());
            assert_eq!(of, (number, guests[at].rank(), 3000));
        }
    }
    let long: Vec<u8> = (0..900_000u32).map(|at| (at % 253) as u8).collect();
    own[0]
        .send(1, &long, Return::WhenDeposited, Timeout::Never)
        .unwrap();
    assert!(far[1].get(Timeout::Never).unwrap().bytes == long[..]);
    assert_eq!(far[0].failures(), Ok((0, None)));
    job.signal(libc::SIGTERM);
    let ended = job.wait();
    assert!(!ended.stderr.contains("gone"), "{}", ended.stderr);
    let gone = own[0].poll(Poll::Size, Timeout::Never);
    assert!(matches!(gone, Err(Error::ServerFailed { .. })), "{gone:?}");
}

#[test]
fn guests_hear_that_the_server_of_another_node_is_gone() {
    let (job, guests) = on_two_nodes();
    let far = guests[1]
        .create(ChannelLimits::default(), Lifetime::Server)
        .unwrap()
        .descriptor();
    let mut waits = guests[0].attach(&far).unwrap();
    let waits = std::thread::spawn(move || waits.get(Timeout::Never));
    let servers = job.children_with("serve");
    let names = guests.each_ref().map(Guest::name);
    let of_second = servers
        .into_iter()
        .find(|id| names[1].ends_with(&format!("-{id}")));
    let process = of_second.and_then(|id| rustix::process::Pid::from_raw(id as i32));
    rustix::process::kill_process(process.unwrap(), rustix::process::Signal::KILL).unwrap();
    let gone = waits.join().unwrap();
    assert!(matches!(gone, Err(Error::ServerFailed { .. })), "{gone:?}");
    assert_ne!(job.wait().status, 0);
}

#[test]
fn c_and_cpp_programs_are_guests_and_serve_some() {
    if Compiler::C.is_there() {
        let program = client_of("guests", "guest", Compiler::C, &["include"]);
        let (server, name) = serve("c");
        let mut guest = Command::new(program);
        guest.arg(&name);
        let said = run(guest).succeeded().stdout;
        assert_eq!(
            said,
            "3000 messages\nstarted and slept on\none thread at a time\nsemaphore and barrier\n"
        );
        end(server);
    }
    if Compiler::Cpp.is_there() {
        let program = client_of("guests", "server", Compiler::Cpp, &["include"]);
        let mut server = Command::new(program);
        server.arg(format!("trihop-test-guests-cpp-{}", std::process::id()));
        assert_eq!(run(server).succeeded().stdout, "ok\n");
    }
}

/// `trihop channel` with these words; its status and output.
fn channel(name: &str, words: &str, input: &str) -> (i32, String) {
    let script = format!("printf '{input}' | {TRIHOP} channel --name {name} {words}");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]);
    let ended = run(shell);
    (ended.status, ended.stdout)
}

#[test]
fn scripts_use_channels() {
    let (server, name) = serve("scripts");
    let channel = |words: &str, input: &str| channel(&name, words, input);
    let done = |said: &str| (0, said.to_owned());
    let (status, tasks) = channel("create --messages 3", "");
    assert_eq!(status, 0);
    let tasks = tasks.trim();
    assert_eq!(
        channel(&format!("send --lines {tasks}"), "a b\\nc\\n"),
        done("")
    );
    assert_eq!(
        channel(&format!("send --kind 9 {tasks}"), "whole\\n"),
        done("")
    );
    let full = channel(&format!("send --timeout-ms 0 {tasks}"), "more");
    assert_eq!(full.0, 3);
    assert_eq!(channel(&format!("poll {tasks} size"), ""), done("3\n"));
    assert_eq!(channel(&format!("get --peek {tasks}"), ""), done("a b"));
    assert_eq!(channel(&format!("get {tasks}"), ""), done("a b"));
    assert_eq!(channel(&format!("get {tasks}"), ""), done("c"));
    assert_eq!(channel(&format!("get {tasks}"), ""), done("whole\n"));
    let late = channel(&format!("get --timeout-ms 20 {tasks}"), "");
    assert_eq!(late, (3, String::new()));
    let (status, lock) = channel("create --semaphore 1", "");
    assert_eq!(status, 0);
    assert_eq!(
        channel(&format!("poll {} acquire", lock.trim()), ""),
        done("0\n")
    );
    assert_eq!(
        channel(&format!("poll {} release", lock.trim()), ""),
        done("1\n")
    );
    assert_eq!(channel(&format!("close {tasks}"), ""), done(""));
    assert_eq!(channel(&format!("get {tasks}"), "").0, 4);
    assert_eq!(channel("get trihop-ch:nothing", "").0, 1);
    end(server);
    assert_eq!(channel("create --wait-ms 10", "").0, 1);
}

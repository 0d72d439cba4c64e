//! A job whose ports are open to strangers: messages that nobody expects, and connections that are
//! cut in the middle of one, cost the job nothing.
//!
//! The job is a process of its own, four ranks on two nodes over loopback, which exchanges and
//! checks in rounds until its standard input ends. The strangers are this process: they know the
//! ports, as the kernel tells everybody, and not the job's secret. What they do counts as arrived
//! when the job has made further rounds.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Barrier, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use trihop_shuffle::{Job, Options, Rank, Reduce};
use trihop_transport::bootstrap::{Custom, Launcher};
use trihop_transport::fabric::{self, Choice};
use trihop_transport::link::{Access, Link, Peer, PostError, Tag, Token};
use trihop_transport::memory::pool::Pool;

const PROVIDERS: [&str; 2] = ["net", "tcp;ofi_rxm"];
/// Two ranks on each of two nodes.
const NODES: [u64; 4] = [1, 1, 2, 2];
const WATCHDOG: Duration = Duration::from_secs(60);
/// Tells the test binary to be the job, over this provider.
const ATTACKED: &str = "TRIHOP_TEST_ATTACKED";
/// More than any slot of the job's receives.
const LONGER_THAN_ANY_SLOT: usize = 300_000;

// The job.

/// Its input has ended: so does the job.
static STOP: Mutex<bool> = Mutex::new(false);

#[test]
#[ignore = "the job that the other tests attack; they start it"]
fn the_attacked_job() {
    let Ok(provider) = std::env::var(ATTACKED) else {
        return;
    };
    thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        *STOP.lock().unwrap() = true;
    });
    let size = NODES.len();
    let shared = Arc::new((Mutex::new(Vec::new()), Barrier::new(size)));
    let (done, ended) = mpsc::channel();
    for (number, node) in NODES.into_iter().enumerate() {
        let (shared, done, provider) = (Arc::clone(&shared), done.clone(), provider.clone());
        thread::spawn(move || {
            let allgather = Box::new(move |mine: &[u8], all: &mut [u8]| {
                let (table, barrier) = &*shared;
                {
                    let mut table = table.lock().unwrap();
                    table.resize(all.len(), 0);
                    table[number * mine.len()..][..mine.len()].copy_from_slice(mine);
                }
                barrier.wait();
                all.copy_from_slice(&table.lock().unwrap());
                barrier.wait();
                Ok(())
            });
            let bootstrap = Custom::new(number as u32, size as u32, node, allgather).unwrap();
            let outcome = rounds(&provider, Box::new(bootstrap));
            done.send(outcome.map_err(|error| format!("rank {number}: {error}")))
                .unwrap();
        });
    }
    drop(done);
    for _ in 0..size {
        match ended.recv_timeout(WATCHDOG) {
            Ok(Ok(strange)) => say(&format!("strange {strange}")),
            Ok(Err(error)) => end(&format!("failed {error}")),
            Err(_) => end("failed a rank panicked, or the job hangs"),
        }
    }
    end("ended");
}

fn say(line: &str) {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "job: {line}").and_then(|()| out.flush());
}

/// The job's last word: what other ranks still do does not matter.
fn end(line: &str) -> ! {
    say(line);
    std::process::exit(0)
}

fn payload(source: u32, round: u32, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| (at as u32 ^ round.wrapping_mul(31) ^ source) as u8)
        .collect()
}

/// Sizes of what each rank sends each rank in a round: within small slots, batches, and rendezvous.
const SIZES: [usize; 5] = [0, 8, 700, 9000, 200_000];

/// One rank: exchanges until the input ends; returns how many strange messages it counted.
fn rounds(
    provider: &str,
    bootstrap: Box<dyn trihop_transport::bootstrap::Bootstrap>,
) -> trihop_shuffle::Result<u64> {
    let options = Options {
        loopback: true,
        launcher: Some(Launcher::Pmix),
        provider: Some(provider.to_owned()),
        ..Options::default()
    };
    let heard = Cell::new(0);
    let wrong = RefCell::new(None);
    let job = Job::start_with(options, bootstrap)?;
    let shuffle = job
        .shuffle("all")
        .handler(|message, _| {
            heard.set(heard.get() + 1);
            if message.bytes != payload(message.source.0, message.kind, message.bytes.len()) {
                *wrong.borrow_mut() = Some((message.source.0, message.kind, message.bytes.len()));
            }
        })
        .open()?;
    for round in 0.. {
        for bytes in SIZES {
            let data = payload(job.rank().0, round, bytes);
            for target in (0..job.size()).map(Rank) {
                shuffle.send(target, round, &data)?;
            }
        }
        shuffle.fence()?;
        let expected = u64::from(round + 1) * SIZES.len() as u64 * u64::from(job.size());
        if heard.get() != expected || wrong.borrow().is_some() {
            end(&format!(
                "failed rank {}: {} messages of {expected}, wrong {:?}",
                job.rank().0,
                heard.get(),
                wrong.borrow()
            ));
        }
        let mut stop = [u64::from(*STOP.lock().unwrap())];
        job.allreduce(&mut stop, Reduce::Sum)?;
        if stop[0] > 0 {
            break;
        }
        if job.rank() == Rank(0) {
            say(&format!("round {round}"));
        }
    }
    let strange = shuffle.stats().expect("no handler runs").bad_headers;
    drop(shuffle);
    job.shutdown()?;
    Ok(strange)
}

// The strangers.

/// The job as its attacker sees it.
struct Attacked {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: mpsc::Receiver<String>,
    provider: String,
}

impl Drop for Attacked {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Attacked {
    /// Starts the job, and waits until it exchanges.
    fn start(provider: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        command
            .args(["--exact", "the_attacked_job", "--ignored", "--nocapture"])
            .env(ATTACKED, provider)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("this test starts again");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let (told, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if let Some((_, line)) = line.split_once("job: ") {
                    let _ = told.send(line.to_owned());
                }
            }
        });
        let this = Self {
            stdin: child.stdin.take(),
            child,
            lines,
            provider: provider.to_owned(),
        };
        this.rounds(1);
        this
    }

    fn line(&self) -> String {
        let line = self.lines.recv_timeout(WATCHDOG);
        let line =
            line.unwrap_or_else(|e| panic!("{}: the job hangs, or has ended: {e}", self.provider));
        assert!(!line.starts_with("failed"), "{}: {line}", self.provider);
        line
    }

    /// Hears what the job has said so far.
    fn must_live(&self) {
        while let Ok(line) = self.lines.try_recv() {
            assert!(line.starts_with("round"), "{}: {line}", self.provider);
        }
    }

    /// Waits until the job has ended so many more rounds than when this was called.
    fn rounds(&self, count: usize) {
        self.must_live();
        for _ in 0..count {
            let line = self.line();
            assert!(line.starts_with("round"), "{}: {line}", self.provider);
        }
    }

    /// Ports on which the job listens, as everybody can see them.
    fn ports(&self) -> Vec<u16> {
        let fds =
            fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("the job's descriptors");
        let sockets: HashSet<String> = fds
            .filter_map(|fd| fs::read_link(fd.ok()?.path()).ok())
            .filter_map(|link| {
                let name = link.to_str()?.strip_prefix("socket:[")?;
                Some(name.strip_suffix(']')?.to_owned())
            })
            .collect();
        let table = fs::read_to_string("/proc/net/tcp").expect("the kernel's list of sockets");
        let mut ports = Vec::new();
        for line in table.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            // 0A: listening.
            if fields[3] == "0A" && sockets.contains(fields[9]) {
                let (_, port) = fields[1].split_once(':').expect("an address has a port");
                ports.push(u16::from_str_radix(port, 16).expect("a port in hexadecimal"));
            }
        }
        // The watch of a node speaks first, libfabric waits to be spoken to.
        let silent: Vec<_> = ports
            .into_iter()
            .map(|port| thread::spawn(move || (port, is_silent(port))))
            .collect();
        let silent = silent
            .into_iter()
            .map(|port| port.join().expect("a look at a port"));
        let ports: Vec<u16> = silent
            .filter_map(|(port, is_silent)| is_silent.then_some(port))
            .collect();
        assert_eq!(
            ports.len(),
            4,
            "a port for each rank of a job on several nodes"
        );
        ports
    }

    /// The job goes on and ends well; returns how many strange messages its ranks have counted.
    fn ends_well(mut self) -> u64 {
        self.rounds(3);
        self.stdin = None;
        let mut strange = 0;
        loop {
            let line = self.line();
            match line.split_once(' ') {
                Some(("strange", count)) => strange += count.parse::<u64>().expect("a number"),
                _ if line == "ended" => return strange,
                _ => assert!(line.starts_with("round"), "{line}"),
            }
        }
    }
}

/// An endpoint that is none of the job's.
struct Stranger {
    link: Box<dyn Link>,
    peer: Peer,
    pool: Pool,
}

impl Stranger {
    fn of(provider: &str, port: u16) -> Self {
        let mut link = open(provider).expect("opened before");
        // The port stands behind the provider's name and the family of the socket.
        let mut address = link.address().to_vec();
        let at = 1 + address[0] as usize + 2;
        address[at..at + 2].copy_from_slice(&port.to_be_bytes());
        let peer = link.connect(&address).expect("an address like our own");
        let pool = link
            .create_pool(LONGER_THAN_ANY_SLOT.next_multiple_of(64), 1, Access::All)
            .expect("a pool");
        Self { link, peer, pool }
    }

    /// Posts a message; it leaves while the link is polled.
    fn send(&mut self, job: &Attacked, tag: u64, bytes: usize) {
        let mut buffer = self.pool.take().expect("one message each");
        let deadline = Instant::now() + WATCHDOG;
        loop {
            job.must_live();
            match self
                .link
                .post_send(self.peer, Tag(tag), buffer, bytes, Token(0))
            {
                Ok(()) => return,
                Err(PostError::WouldBlock(back)) => buffer = back,
                Err(PostError::Failed(_, e)) => panic!("{e}"),
            }
            self.poll();
            assert!(Instant::now() < deadline, "the job takes no connection");
        }
    }

    fn poll(&mut self) {
        // What becomes of the message on this side does not matter.
        let _ = self.link.poll(&mut Vec::new());
    }
}

fn open(provider: &str) -> Result<Box<dyn Link>, trihop_transport::Error> {
    fabric::open(&Choice {
        provider: Some(provider.to_owned()),
        loopback_only: true,
        universe: Some(256),
        ..Choice::default()
    })
}

/// One attack at a time: a process that is started while another test has endpoints inherits their
/// sockets, and its ports would no longer be those of its job alone.
static ATTACKS: Mutex<()> = Mutex::new(());

/// Runs `attack` for each provider that the machine has.
fn for_each_provider(attack: impl Fn(&str)) {
    let _alone = ATTACKS.lock().unwrap_or_else(PoisonError::into_inner);
    for provider in PROVIDERS {
        match open(provider) {
            Ok(link) => {
                drop(link);
                attack(provider);
            }
            Err(e) => eprintln!("skipped {provider}: {e}"),
        }
    }
}

/// Tags whose fields are streams, classes and numbers that every job has.
fn guessed_tags() -> Vec<u64> {
    let streams_and_classes = [0u64, 1].into_iter().flat_map(|stream| {
        [1u64, 2, 3, 4]
            .into_iter()
            .map(move |class| stream << 32 | class << 28)
    });
    streams_and_classes.collect()
}

#[test]
fn a_strangers_messages_end_no_job() {
    for_each_provider(|provider| {
        let job = Attacked::start(provider);
        for port in job.ports() {
            for bytes in [0, 64, LONGER_THAN_ANY_SLOT] {
                let mut strangers: Vec<Stranger> = Vec::new();
                for tag in guessed_tags() {
                    let mut stranger = Stranger::of(provider, port);
                    stranger.send(&job, tag, bytes);
                    strangers.push(stranger);
                }
                strangers.iter_mut().for_each(Stranger::poll);
                job.rounds(2);
                strangers.iter_mut().for_each(Stranger::poll);
            }
        }
        assert_eq!(job.ends_well(), 0, "{provider}: no receive matches them");
    });
}

/// A connection through which a stranger speaks to a port, as far as it may.
struct Leash {
    port: u16,
    /// What is left of it when the stranger's first bytes have passed.
    ended: mpsc::Receiver<Held>,
}

/// Both halves of a connection that is open, and on which nothing moves any more.
struct Held([TcpStream; 2]);

impl Leash {
    /// Passes the first `after` bytes on to the port, and all answers back.
    fn before(port: u16, after: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let own = listener.local_addr().expect("an address").port();
        let (told, ended) = mpsc::channel();
        thread::spawn(move || {
            let Ok((mut sender, _)) = listener.accept() else {
                return;
            };
            let Ok(mut target) = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port)))
            else {
                return;
            };
            let mut answers = (
                target.try_clone().expect("a copy"),
                sender.try_clone().expect("a copy"),
            );
            thread::spawn(move || std::io::copy(&mut answers.0, &mut answers.1));
            let _ = std::io::copy(
                &mut Read::by_ref(&mut sender).take(after as u64),
                &mut target,
            );
            let _ = told.send(Held([sender, target]));
        });
        Self { port: own, ended }
    }
}

impl Held {
    fn cut(self) {
        for stream in self.0 {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Whether nothing comes from a port that is not spoken to, for as long as a watch may take.
fn is_silent(port: u16) -> bool {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the job listens");
    let limit = Some(Duration::from_secs(3));
    stream.set_read_timeout(limit).expect("a limit");
    !matches!(stream.read(&mut [0; 1]), Ok(1))
}

/// Opens `count` connections to each port of the job, and says half of something on each: a request
/// for a connection, which has about 40 bytes, or a message behind it.
fn say_half(job: &Attacked, count: usize, mut then: impl FnMut(Held)) {
    let tags = guessed_tags();
    for port in job.ports() {
        for number in 0..count {
            let after = [1, 20, 32, 35, 60, 120, 400, 3000][number % 8];
            let leash = Leash::before(port, after);
            let mut stranger = Stranger::of(&job.provider, leash.port);
            let mut unsent = stranger.pool.take();
            let deadline = Instant::now() + WATCHDOG;
            let held = loop {
                if let Ok(held) = leash.ended.try_recv() {
                    break held;
                }
                if let Some(buffer) = unsent.take() {
                    let tag = Tag(tags[number % tags.len()]);
                    let (link, peer) = (&mut stranger.link, stranger.peer);
                    if let Err(PostError::WouldBlock(back)) =
                        link.post_send(peer, tag, buffer, 6000, Token(0))
                    {
                        unsent = Some(back);
                    }
                }
                stranger.poll();
                job.must_live();
                assert!(Instant::now() < deadline, "the job takes no connection");
            };
            then(held);
        }
    }
}

#[test]
fn twelve_connections_cut_in_a_message_end_no_job() {
    for_each_provider(|provider| {
        let job = Attacked::start(provider);
        say_half(&job, 12, Held::cut);
        job.ends_well();
    });
}

#[test]
fn a_hundred_connections_cut_in_a_message_end_no_job() {
    for_each_provider(|provider| {
        let job = Attacked::start(provider);
        say_half(&job, 100, Held::cut);
        job.ends_well();
    });
}

#[test]
fn connections_on_which_half_a_message_came_and_no_more_stop_no_job() {
    for_each_provider(|provider| {
        let job = Attacked::start(provider);
        let mut open = Vec::new();
        say_half(&job, 24, |held| open.push(held));
        job.ends_well();
        drop(open);
    });
}

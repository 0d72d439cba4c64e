//! A PMI-1 launcher for tests: it answers as MPICH's does and counts what each rank asks.
//!
//! Included by the tests of several packages.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// What one rank has asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Asked {
    pub gets: u64,
    pub puts: u64,
    pub barriers: u64,
    /// Init, limits, names, leave.
    pub others: u64,
    /// Bytes of requests and answers.
    pub bytes: u64,
}

impl Asked {
    pub fn requests(&self) -> u64 {
        self.gets + self.puts + self.barriers + self.others
    }
}

/// Longest value, key and name, as MPICH has them.
const LIMITS: &str = "kvsname_max=256 keylen_max=64 vallen_max=1024";

#[derive(Default)]
struct State {
    store: HashMap<String, String>,
    asked: HashMap<u32, Asked>,
    /// Ranks at the barrier, and barriers that were passed.
    arrived: usize,
    passed: u64,
}

/// The launcher of one job.
pub struct PmiServer {
    size: u32,
    /// Ranks that take part in its barriers.
    present: usize,
    mapping: String,
    state: Mutex<State>,
    released: Condvar,
}

impl PmiServer {
    /// Of a job of `size` ranks, of which `present` really run; `mapping` is what MPICH says of who
    /// is where, empty where the launcher does not say.
    pub fn new(size: u32, present: usize, mapping: &str) -> Arc<Self> {
        Arc::new(Self {
            size,
            present,
            mapping: mapping.to_owned(),
            state: Mutex::default(),
            released: Condvar::new(),
        })
    }

    /// The rank's end of a connection, as `PMI_FD` names it.
    #[allow(dead_code)] // not by all who include it
    pub fn connect(self: &Arc<Self>, rank: u32) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = Arc::clone(self);
        // A job of many ranks has as many of these.
        let small = thread::Builder::new().stack_size(128 << 10);
        small
            .spawn(move || server.serve(ours.try_clone().unwrap(), ours, Some(rank)))
            .unwrap();
        theirs
    }

    /// Takes connections at the port that it returns, as `PMI_PORT` names it.
    #[allow(dead_code)] // not by all who include it
    pub fn listen(self: &Arc<Self>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = Arc::clone(self);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let server = Arc::clone(&server);
                thread::spawn(move || {
                    stream.set_nodelay(true).unwrap();
                    let reader: TcpStream = stream.try_clone().unwrap();
                    server.serve(reader, stream, None);
                });
            }
        });
        address
    }

    /// What a rank has asked so far.
    pub fn asked(&self, rank: u32) -> Asked {
        self.state().asked.get(&rank).copied().unwrap_or_default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a rank until it hangs up.
    fn serve(&self, reader: impl Read, mut writer: impl Write, mut rank: Option<u32>) {
        for line in BufReader::new(reader).lines() {
            let Ok(line) = line else { return };
            let known = rank.or_else(|| word(&line, "pmiid")?.parse().ok());
            let Some(known) = known else { return };
            rank = Some(known);
            let answer = self.answer(known, &line);
            let mut state = self.state();
            state.asked.entry(known).or_default().bytes += (line.len() + 1 + answer.len()) as u64;
            drop(state);
            if writer.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }

    fn answer(&self, rank: u32, line: &str) -> String {
        let command = word(line, "cmd").unwrap_or("");
        let mut state = self.state();
        let asked = state.asked.entry(rank).or_default();
        match command {
            "get" => asked.gets += 1,
            "put" => asked.puts += 1,
            "barrier_in" => asked.barriers += 1,
            _ => asked.others += 1,
        }
        let key = || word(line, "key").unwrap_or("").to_owned();
        match command {
            "initack" => {
                let size = self.size;
                format!("cmd=initack\ncmd=set size={size}\ncmd=set rank={rank}\ncmd=set debug=0\n")
            }
            "init" => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n".into(),
            "get_maxes" => format!("cmd=maxes {LIMITS}\n"),
            "get_my_kvsname" => "cmd=my_kvsname kvsname=kvs_4711_0\n".into(),
            "get" if word(line, "key") == Some("PMI_process_mapping") => found(Some(&self.mapping)),
            "get" => found(state.store.get(&key())),
            "put" => {
                let value = word(line, "value").unwrap_or("").to_owned();
                assert!(key().len() < 64 && value.len() < 1024, "{line}");
                state.store.insert(key(), value);
                "cmd=put_result rc=0 msg=success\n".into()
            }
            "barrier_in" => {
                self.pass(state);
                "cmd=barrier_out\n".into()
            }
            "finalize" => "cmd=finalize_ack\n".into(),
            _ => format!("cmd={command} rc=-1\n"),
        }
    }

    fn pass(&self, mut state: MutexGuard<'_, State>) {
        state.arrived += 1;
        if state.arrived == self.present {
            state.arrived = 0;
            state.passed += 1;
            self.released.notify_all();
            return;
        }
        let before = state.passed;
        let waited = self
            .released
            .wait_while(state, |state| state.passed == before);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

fn found(value: Option<&String>) -> String {
    match value.filter(|value| !value.is_empty()) {
        Some(value) => format!("cmd=get_result rc=0 msg=success value={value}\n"),
        None => "cmd=get_result rc=-1 msg=key_not_found value=unknown\n".into(),
    }
}

fn word<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let mut words = line.split(' ');
    words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

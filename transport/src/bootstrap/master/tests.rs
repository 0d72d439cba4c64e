use super::*;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use crate::watchdog;

const SECRET: [u8; 16] = [7; 16];

/// Rank 0's listener at a free port of loopback, and what the others know of it.
fn listener() -> (TcpListener, Place) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = Place {
        host: "127.0.0.1".into(),
        port: listener.local_addr().unwrap().port(),
    };
    (listener, place)
}

fn claim(rank: u32, size: u32) -> Claim {
    let rank = Rank(rank);
    Claim { rank, size }
}

/// What a rank other than 0 does, on a thread of its own.
fn rank<T: Send + 'static>(
    place: &Place,
    claim: Claim,
    secret: [u8; 16],
    then: impl FnOnce(Result<Master>) -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let place = place.clone();
    thread::spawn(move || {
        let secret = Secret::from_bytes(secret);
        then(Master::meet(&place, &secret, claim, watchdog::PERIOD))
    })
}

/// Each rank leaves a value, hears that of all, and takes leave.
fn exchange(master: Result<Master>) -> Topology {
    let mut master = master.unwrap();
    let topology = master.topology().clone();
    let value = |rank: u32| vec![rank as u8; 100 * rank as usize];
    let (me, size) = (topology.rank().0, topology.size());
    master.put("value", &value(me)).unwrap();
    master.fence().unwrap();
    for from in 0..size {
        assert_eq!(master.get(Rank(from), "value").unwrap(), Some(value(from)));
    }
    assert_eq!(master.get(Rank(0), "never-put").unwrap(), None);
    master.fence().unwrap();
    master.finalize().unwrap();
    topology
}

fn serve(listener: TcpListener, size: u32) -> Result<Master> {
    Master::serve(
        listener,
        &Secret::from_bytes(SECRET),
        size,
        watchdog::PERIOD,
    )
}

#[test]
fn ranks_meet_at_rank_0_and_may_meet_there_again() {
    const JOBS: usize = 3;
    let (listener, place) = listener();
    // Whoever is first in its next job finds the last one's server there, which lets nobody in.
    let others: Vec<_> = (1..5)
        .map(|number| {
            let place = place.clone();
            thread::spawn(move || {
                for _ in 0..JOBS {
                    let rank = rank(&place, claim(number, 5), SECRET, exchange);
                    let topology = rank.join().unwrap();
                    assert_eq!((topology.rank().0, topology.nodes()), (number, 1));
                }
            })
        })
        .collect();
    let mut listeners = vec![listener];
    for _ in 0..JOBS {
        // Another process may have the port for a moment.
        let listener = listeners.pop().unwrap_or_else(|| {
            loop {
                match place.listen() {
                    Ok(listener) => break listener,
                    Err(_) => thread::yield_now(),
                }
            }
        });
        assert_eq!(exchange(serve(listener, 5)).local_size(), 5);
    }
    others.into_iter().for_each(|other| other.join().unwrap());
}

#[test]
fn strangers_on_the_port_cost_the_job_nothing() {
    let (listener, place) = listener();
    let address = (&*place.host, place.port);
    // Silent ones, more than are heard at once, and some that send what no rank would.
    let silent: Vec<_> = (0..100)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    let mut loud: Vec<_> = (0..20)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    for (number, stranger) in loud.iter_mut().enumerate() {
        let _ = stranger.write_all(&vec![number as u8; 40 * number]);
    }
    let other = rank(&place, claim(1, 2), SECRET, exchange);
    exchange(serve(listener, 2));
    other.join().unwrap();
    for mut stranger in silent.into_iter().chain(loud) {
        stranger.set_read_timeout(Some(watchdog::PERIOD)).unwrap();
        let mut heard = Vec::new();
        // A reset ends it too, where bytes of it were not read.
        let _ = stranger.read_to_end(&mut heard);
        let most = handshake::HELLO_BYTES + handshake::VERDICT_BYTES;
        assert!(heard.len() <= most, "{} bytes were said", heard.len());
    }
}

/// As many say nothing as are heard at once: the oldest makes room for a rank, and who has answered
/// is heard before that.
#[test]
fn silent_strangers_make_room_for_a_rank_and_one_that_has_answered_does_not() {
    let (listener, place) = listener();
    let connect = || TcpStream::connect((&*place.host, place.port)).unwrap();
    let mut gate = gate::Gate::new(
        listener,
        Secret::from_bytes(SECRET),
        "a test",
        String::new(),
    )
    .unwrap();
    // The first two are ranks.
    let mut crowd: Vec<_> = (0..gate::STRANGERS_MAX).map(|_| connect()).collect();
    assert!(gate.hear(&[gate::At::Listener]).is_empty());
    let _late = connect();
    for (rank, stream) in (1..).zip(&mut crowd[..2]) {
        let mut hello = [0; handshake::HELLO_BYTES];
        stream.read_exact(&mut hello).unwrap();
        let secret = Secret::from_bytes(SECRET);
        let answer = handshake::answer(&hello, &secret, claim(rank, 3), &[9; 16]);
        let Ok(answer) = answer else {
            panic!("the gate has greeted it with something else");
        };
        stream.write_all(&answer).unwrap();
    }
    // Nobody says that these answers are there.
    let listens = |gate: &gate::Gate| {
        let mut sources = gate.sources(Instant::now());
        sources.any(|(at, _)| at == gate::At::Listener)
    };
    let mut looks = 0..;
    while !listens(&gate) {
        thread::sleep(Duration::from_millis(10));
        assert!(looks.next() < Some(1000), "nobody makes room");
    }
    let known = gate.hear(&[gate::At::Listener]);
    let ranks: Vec<_> = known.iter().map(|(_, claim)| claim.rank.0).collect();
    assert_eq!(ranks, [1, 2], "they were sent away");
    assert!(listens(&gate), "there is room");
}

#[test]
fn the_kernel_looks_after_connections_that_are_idle() {
    let (listener, place) = listener();
    let here = TcpStream::connect((&*place.host, place.port)).unwrap();
    let (there, _) = listener.accept().unwrap();
    for end in [&here, &there] {
        assert!(!rustix::net::sockopt::socket_keepalive(end).unwrap());
        gate::prepare(end).unwrap();
        assert!(rustix::net::sockopt::socket_keepalive(end).unwrap());
        assert!(end.nodelay().unwrap());
    }
}

#[test]
fn a_rank_with_another_secret_is_told_and_the_job_goes_on_without_it() {
    let (listener, place) = listener();
    let wrong = rank(&place, claim(1, 2), [8; 16], |master| {
        master.unwrap_err().to_string()
    });
    let right = {
        let place = place.clone();
        move || {
            let text = wrong.join().unwrap();
            rank(&place, claim(1, 2), SECRET, exchange).join().unwrap();
            text
        }
    };
    let right = thread::spawn(right);
    exchange(serve(listener, 2));
    let text = right.join().unwrap();
    assert!(
        text.contains("another secret") && text.contains("TRIHOP_SECRET_FILE"),
        "{text}"
    );
}

/// Both ranks and rank 0 hear why, above all one of `refused`.
fn is_refused_for_all(claims: [Claim; 2], refused: &[usize], why: &str) {
    let (listener, place) = listener();
    let outcome = |master: Result<Master>| master.unwrap_err().to_string();
    let others = claims.map(|claim| rank(&place, claim, SECRET, outcome));
    let of_0 = outcome(serve(listener, 3));
    assert!(of_0.contains(why), "rank 0 heard: {of_0}");
    let texts = others.map(|other| other.join().unwrap());
    for text in &texts {
        // Who was let in before may be waiting at a fence, or find the job gone.
        let is_told = text.contains(why) || text.contains("closed") || text.contains("not reached");
        assert!(is_told, "{text}");
    }
    let is_told = |rank: &usize| texts[*rank].contains(why);
    assert!(refused.iter().any(is_told), "{refused:?} of {texts:?}");
}

#[test]
fn ranks_that_contradict_each_other_are_told_by_all() {
    // Verdict and reason come at once or not, as it happens.
    for _ in 0..16 {
        // Whichever comes second.
        let twice = [claim(1, 3), claim(1, 3)];
        is_refused_for_all(twice, &[0, 1], "two processes are rank 1");
        let unlike = [claim(1, 3), claim(2, 4)];
        is_refused_for_all(unlike, &[1], "TRIHOP_SIZE=4, rank 0 has 3");
    }
}

#[test]
fn an_abort_reaches_all_and_a_rank_that_ends_is_named() {
    let (listener, place) = listener();
    let aborts = rank(&place, claim(1, 3), SECRET, |master| {
        let mut master = master.unwrap();
        master.abort(9, "it was told to");
        master.fence().unwrap_err().to_string()
    });
    let waits = rank(&place, claim(2, 3), SECRET, |master| {
        master.unwrap().fence().unwrap_err().to_string()
    });
    let mut rank_0 = serve(listener, 3).unwrap();
    let texts = [
        rank_0.fence().unwrap_err().to_string(),
        aborts.join().unwrap(),
        waits.join().unwrap(),
    ];
    for text in texts {
        let why = "rank 1 aborted the job with status 9: it was told to";
        assert!(text.contains(why), "{text}");
    }
    let (listener, place) = self::listener();
    let ends = rank(&place, claim(1, 2), SECRET, |master| drop(master.unwrap()));
    let mut rank_0 = serve(listener, 2).unwrap();
    let text = rank_0.fence().unwrap_err().to_string();
    let why = "TRIHOP_RANK=1 has ended, or has left the job, and others wait for it";
    assert!(text.ends_with(why), "{text}");
    let missed = rank_0.why_missed().unwrap().unwrap_or_default();
    assert!(missed.ends_with(why), "{missed}");
    ends.join().unwrap();
}

#[test]
fn a_server_ends_with_rank_0_though_a_forked_child_has_its_connection() {
    let (listener, _) = listener();
    let secret = Secret::from_bytes(SECRET);
    let (server, connection) = Server::start(listener, secret, 1).unwrap();
    let of_a_child = connection.try_clone().unwrap();
    let (ended, ends) = mpsc::channel();
    thread::spawn(move || {
        drop(connection);
        drop(server);
        ended.send(()).unwrap();
    });
    ends.recv_timeout(watchdog::PERIOD)
        .expect("the server's thread still runs");
    drop(of_a_child);
}

#[test]
fn what_is_not_rank_0_is_said_to_be_none() {
    let (listener, place) = listener();
    let service = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n");
        stream
    });
    let secret = Secret::from_bytes(SECRET);
    let text = Master::meet(&place, &secret, claim(1, 2), watchdog::PERIOD)
        .unwrap_err()
        .to_string();
    assert!(text.contains("no rank 0 of trihop"), "{text}");
    drop(service.join().unwrap());
    let wait = Duration::from_millis(50);
    let text = Master::meet(&place, &secret, claim(1, 2), wait)
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("was not reached") && text.contains("50ms") && text.contains("refused"),
        "{text}"
    );
}

#[test]
fn places_are_read_and_shown() {
    for (text, host, port) in [
        ("node1:7777", "node1", 7777),
        ("[fd00::1]:80", "fd00::1", 80),
        ("10.0.0.1:65535", "10.0.0.1", 65535),
    ] {
        let place = Place::parse(text).unwrap();
        assert_eq!((&*place.host, place.port), (host, port));
        assert_eq!(place.to_string(), text);
    }
    for text in [
        "",
        "node1",
        ":1",
        "node1:",
        "node1:0",
        "node1:65536",
        "fd00::1:80",
        "[]:80",
    ] {
        let error = Place::parse(text).unwrap_err().to_string();
        assert!(error.contains("HOST:PORT"), "{text}: {error}");
    }
    let secret = Secret::from_bytes(SECRET);
    let place = Place::parse("node1:7777").unwrap();
    let error = Master::meet(&place, &secret, claim(2, 2), Duration::ZERO).unwrap_err();
    assert!(error.to_string().contains("no rank of 2"), "{error}");
    // An address that is documented to be nobody's.
    let error = Place::parse("192.0.2.1:7777")
        .unwrap()
        .listen()
        .unwrap_err();
    assert!(error.to_string().contains("machine of rank 0"), "{error}");
}

//! A rank against a launcher that is played by a script.

use super::*;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::thread;

/// Answers each line by `reply` until the rank hangs up; gives back the lines.
fn launcher(
    reply: impl Fn(&str) -> String + Send + 'static,
) -> (LauncherSocket, thread::JoinHandle<Vec<String>>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs
        .set_read_timeout(Some(crate::watchdog::PERIOD))
        .unwrap();
    let script = thread::spawn(move || {
        let mut out = theirs.try_clone().unwrap();
        let mut lines = Vec::new();
        for line in BufReader::new(theirs).lines() {
            let Ok(line) = line else { break };
            if out.write_all(reply(&line).as_bytes()).is_err() {
                break;
            }
            lines.push(line);
        }
        lines
    });
    (
        LauncherSocket::of(ours.into(), Duration::from_millis(100)),
        script,
    )
}

/// What Hydra says, with the words in another order and one value in the store.
fn plain(line: &str, mapping: &str) -> String {
    match line.split(' ').next().unwrap() {
        "cmd=init" => "rc=0 pmi_subversion=2 cmd=response_to_init pmi_version=1\n".into(),
        "cmd=get_maxes" => "cmd=maxes rc=0 vallen_max=1024 keylen_max=64 kvsname_max=256\n".into(),
        "cmd=get_my_kvsname" => "cmd=my_kvsname kvsname=kvs_1_0 rc=0\n".into(),
        "cmd=get" if line.ends_with("PMI_process_mapping") => mapping.into(),
        "cmd=get" if line.ends_with("trihop.0.1.key") => {
            "cmd=get_result rc=0 msg=success value=3.Zm9v\n".into()
        }
        "cmd=get" => "cmd=get_result rc=-1 msg=key_not_found value=unknown\n".into(),
        "cmd=put" => "cmd=put_result rc=0 msg=success\n".into(),
        "cmd=barrier_in" => "cmd=barrier_out\n".into(),
        "cmd=finalize" => "cmd=finalize_ack\n".into(),
        _ => String::new(),
    }
}

const MAPPING: &str = "cmd=get_result rc=0 value=(vector,(0,2,1)) msg=success\n";

#[test]
fn a_rank_joins_exchanges_and_leaves() {
    let (socket, script) = launcher(|line| plain(line, MAPPING));
    let mut pmi = Pmi1::join(Session::open(socket, Rank(1), 0, false).unwrap(), 2).unwrap();
    assert_eq!((pmi.topology.nodes(), pmi.topology.node().0), (2, 1));
    let long = vec![7_u8; pmi.value_limit()];
    pmi.put("long", &long).unwrap();
    pmi.fence().unwrap();
    assert_eq!(
        pmi.get(Rank(1), "key").unwrap().as_deref(),
        Some(&b"foo"[..])
    );
    assert_eq!(pmi.get(Rank(0), "key").unwrap(), None);
    assert!(pmi.put("long", &[0; 1 << 20]).is_err() && pmi.put("no blank", b"").is_err());
    pmi.finalize().unwrap();
    drop(pmi);
    let lines = script.join().unwrap();
    assert!(
        lines.iter().all(|l| l.len() <= wire::LINE_BYTES_MAX),
        "{lines:?}"
    );
    assert_eq!(
        lines.iter().filter(|l| l.starts_with("cmd=put ")).count(),
        64
    );
    assert_eq!(
        (lines[0].as_str(), lines.last().unwrap().as_str()),
        ("cmd=init pmi_version=1 pmi_subversion=1", "cmd=finalize")
    );
}

#[test]
fn at_a_port_the_launcher_says_who_we_are() {
    let greeting = "cmd=initack\ncmd=set size=2\ncmd=set rank=1\ncmd=set debug=0\n";
    let (socket, script) = launcher(move |line| match line {
        "cmd=initack pmiid=7" => greeting.to_owned(),
        _ => plain(line, MAPPING),
    });
    let (session, size) = Session::open_by_id(socket, 7, 0).unwrap();
    let mut pmi = Pmi1::join(session, size).unwrap();
    assert_eq!((pmi.topology.size(), pmi.topology.rank()), (2, Rank(1)));
    pmi.fence().unwrap();
    pmi.finalize().unwrap();
    drop(pmi);
    let lines = script.join().unwrap();
    assert_eq!(
        lines[..2],
        [
            "cmd=initack pmiid=7",
            "cmd=init pmi_version=1 pmi_subversion=1"
        ]
    );
    assert_eq!(lines.last().unwrap(), "cmd=finalize");
}

#[test]
fn a_port_that_does_not_say_who_we_are_is_refused() {
    for greeting in [
        "cmd=initack rc=-1\n",
        "cmd=initack\ncmd=set size=2\ncmd=set size=2\n",
        "cmd=initack\ncmd=set colour=2\n",
        "cmd=initack\ncmd=set size=2\ncmd=set rank=-1\n",
        "cmd=initack\ncmd=set size=2 rank=5000000000 debug=0\n",
        "cmd=initack\ncmd=set size=\n",
        "cmd=initack\ncmd=response_to_init\n",
        "cmd=initack\n",
        "HTTP/1.1 400 Bad Request\r\n",
    ] {
        let (socket, _script) = launcher(|line| match line {
            "cmd=initack pmiid=0" => greeting.to_owned(),
            _ => plain(line, MAPPING),
        });
        assert!(Session::open_by_id(socket, 0, 0).is_err(), "{greeting:?}");
    }
}

#[test]
fn beside_mpi_neither_init_nor_finalize_is_sent() {
    let (socket, script) = launcher(|line| plain(line, MAPPING));
    let mut pmi = Pmi1::join(Session::open(socket, Rank(0), 0, true).unwrap(), 2).unwrap();
    pmi.fence().unwrap();
    pmi.finalize().unwrap();
    drop(pmi);
    let lines = script.join().unwrap();
    assert!(
        !lines
            .iter()
            .any(|l| l.contains("init") || l.contains("finalize")),
        "{lines:?}"
    );
}

#[test]
fn a_later_session_does_not_find_what_an_earlier_one_put() {
    let (socket, _script) = launcher(|line| plain(line, MAPPING));
    let mut pmi = Pmi1::join(Session::open(socket, Rank(1), 1, true).unwrap(), 2).unwrap();
    assert_eq!(pmi.get(Rank(1), "key").unwrap(), None);
}

#[test]
fn a_silent_barrier_ends_at_the_deadline() {
    let (socket, _script) = launcher(|line| {
        if line == "cmd=barrier_in" {
            String::new()
        } else {
            plain(line, MAPPING)
        }
    });
    let mut pmi = Pmi1::join(Session::open(socket, Rank(0), 0, false).unwrap(), 2).unwrap();
    let text = pmi.fence().unwrap_err().to_string();
    assert!(
        text.contains("deadline") && text.contains("which ranks are missing"),
        "{text}"
    );
}

#[test]
fn bad_answers_are_errors() {
    for bad in [
        "cmd=response_to_init rc=-1 pmi_version=2\n",
        "cmd=response_to_init rc=0 pmi_version=2\n",
        "cmd=maxes\n",
        "\n",
        "\u{fffd}= = =\n",
    ] {
        let (socket, _script) = launcher(move |_| bad.to_owned());
        assert!(Session::open(socket, Rank(0), 0, false).is_err(), "{bad:?}");
    }
    let (socket, _script) =
        launcher(|line| plain(line, "cmd=get_result rc=0 value=(vector,(9,9\n"));
    assert!(Pmi1::join(Session::open(socket, Rank(0), 0, false).unwrap(), 2).is_err());
    let (socket, _script) = launcher(|line| plain(line, MAPPING));
    assert!(Pmi1::join(Session::open(socket, Rank(2), 0, false).unwrap(), 2).is_err());
}

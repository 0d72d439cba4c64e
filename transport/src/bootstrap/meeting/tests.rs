use super::gathering::{Gatherings, Replies};
use super::*;

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

use proptest::prelude::*;
use rustix::net::sockopt;

use crate::bootstrap::local::wire::{Request, VERSION};
use crate::watchdog;

const LOST_AFTER: Duration = Duration::from_secs(5);

/// The server of so many agents, which are alone on their nodes, and what each of them knows.
fn meeting(agents: u32, wait: Duration) -> (Server, Vec<Joiner>) {
    meeting_on(&vec![1; agents as usize], wait)
}

/// The same of nodes with so many agents.
fn meeting_on(sizes: &[u32], wait: Duration) -> (Server, Vec<Joiner>) {
    let topology = nodes(sizes);
    let (server, secret, addresses) = listen(&[], true, &topology, LOST_AFTER).unwrap();
    let joiner = |agent| {
        Joiner(Arc::new(Known {
            launcher: Launcher::Local,
            topology: topology.seen_from(Rank(agent)).unwrap(),
            secret: secret.clone(),
            addresses: addresses.clone(),
            wait,
            lost_after: LOST_AFTER,
        }))
    };
    let joiners = (0..topology.size()).map(joiner).collect();
    (server, joiners)
}

fn nodes(sizes: &[u32]) -> Topology {
    Topology::from_node_sizes(sizes, Rank(0)).unwrap()
}

impl Joiner {
    fn stay(&self) -> Client {
        let mut stay = self.connect().unwrap();
        stay.stay().unwrap();
        stay
    }

    fn join_by_name(&self, job: &str) -> Result<JobOfAgents> {
        self.come_to((job, 0), &|| None)
    }
}

/// Each agent leaves a word in the job's store, and finds that of all.
fn exchange(mut job: JobOfAgents, word: &str) {
    let (me, size) = (job.topology().rank().0, job.topology().size());
    job.put("word", format!("{word} {me}").as_bytes()).unwrap();
    job.fence().unwrap();
    for from in 0..size {
        let expected = format!("{word} {from}").into_bytes();
        assert_eq!(job.get(Rank(from), "word").unwrap(), Some(expected));
    }
    job.fence().unwrap();
    job.finalize().unwrap();
}

fn over(stay: &mut Client) -> String {
    loop {
        if let Some(why) = stay.why_over() {
            return why;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn each_job_has_a_store_of_its_own_and_those_of_one_name_keep_their_order() {
    let (server, joiners) = meeting(3, watchdog::PERIOD);
    let agents: Vec<_> = joiners
        .into_iter()
        .map(|joiner| {
            thread::spawn(move || {
                let stay = joiner.stay();
                let others: Vec<_> = ["a", "b"]
                    .map(|name| {
                        let joiner = joiner.clone();
                        thread::spawn(move || {
                            for number in 0..5 {
                                let job = joiner.join_by_name(name).unwrap();
                                exchange(job, &format!("{name} {number}"));
                            }
                        })
                    })
                    .into();
                others.into_iter().for_each(|other| other.join().unwrap());
                stay
            })
        })
        .collect();
    let stays: Vec<Client> = agents.into_iter().map(|a| a.join().unwrap()).collect();
    server.end_when_alone();
    assert!(!server.has_ended(), "agents are there");
    drop(stays);
    while !server.has_ended() {
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_agent_that_ends_ends_the_meeting_and_jobs_go_on() {
    let (_server, joiners) = meeting(2, watchdog::PERIOD);
    let mut stays: Vec<Client> = joiners.iter().map(Joiner::stay).collect();
    let other = joiners[1].clone();
    let other = thread::spawn(move || other.join_by_name("job").unwrap());
    let job = joiners[0].join_by_name("job").unwrap();
    let others_job = other.join().unwrap();
    let waiting = joiners[0].clone();
    let waiting = thread::spawn(move || waiting.join_by_name("next").unwrap_err().to_string());
    assert_eq!(stays[0].why_over(), None);
    drop(stays.pop());
    let why = "agent 1 has ended";
    let said = over(&mut stays[0]);
    assert!(said.contains(why), "{said}");
    let refused = waiting.join().unwrap();
    assert!(refused.contains(why), "{refused}");
    let refused = joiners[0].join_by_name("last").unwrap_err().to_string();
    assert!(refused.contains(why), "{refused}");
    let other = thread::spawn(move || exchange(others_job, "on"));
    exchange(job, "on");
    other.join().unwrap();
}

#[test]
fn who_waits_for_an_agent_that_has_left_their_job_hears_so_when_it_asks() {
    let (_server, joiners) = meeting(2, watchdog::PERIOD);
    let _stays: Vec<Client> = joiners.iter().map(Joiner::stay).collect();
    let other = joiners[1].clone();
    let other = thread::spawn(move || other.join_by_name("job").unwrap());
    let mut job = joiners[0].join_by_name("job").unwrap();
    let others_job = other.join().unwrap();
    assert_eq!(job.why_missed(), Ok(None));
    drop(others_job);
    let missed = loop {
        match job.why_missed().unwrap() {
            Some(missed) => break missed,
            None => thread::sleep(Duration::from_millis(1)),
        }
    };
    assert!(
        missed.starts_with("agent 1 has ended, or has left"),
        "{missed}"
    );
}

#[test]
fn who_waits_in_vain_hears_for_whom_and_who_gives_up_leaves_its_place() {
    let (_server, joiners) = meeting(3, Duration::from_millis(300));
    let other = joiners[2].clone();
    let other = thread::spawn(move || other.join_by_name("").unwrap_err().to_string());
    let late = joiners[0].join_by_name("").unwrap_err().to_string();
    for (text, own) in [(late, '0'), (other.join().unwrap(), '2')] {
        let (why, missing) = text.rsplit_once(": ").unwrap();
        assert!(why.contains("no ranks of the job have come"), "{text}");
        // The other one of the two may come later or have gone before.
        let names = |agent| ["1", "0-1", "1-2"].contains(&missing) && !missing.contains(agent);
        assert!(names(own), "{text}");
    }
    let (_server, joiners) = meeting(3, watchdog::PERIOD);
    let mut gives_up = joiners[0].connect().unwrap();
    let gone = gives_up.join(("", 0), 3, &|| Some("they have gone".into()));
    assert!(gone.unwrap_err().to_string().contains("they have gone"));
    drop(gives_up);
    let agents = joiners.into_iter().map(|joiner| {
        thread::spawn(move || {
            let mut client = joiner.connect().unwrap();
            client.join(("", 0), 3, &|| None).map_err(|e| e.to_string())
        })
    });
    let agents: Vec<_> = agents.collect();
    for agent in agents {
        assert_eq!(agent.join().unwrap(), Ok(vec![0, 1, 2]));
    }
}

#[test]
fn a_job_on_some_nodes_begins_without_the_others() {
    let (_server, joiners) = meeting(4, Duration::from_millis(300));
    let come = |agent: usize, job: &'static str, nodes| {
        let joiner = joiners[agent].clone();
        thread::spawn(move || joiner.come_to((job, nodes), &|| None))
    };
    let others: Vec<_> = [3, 1].map(|agent| come(agent, "", 2)).into();
    let alone = come(2, "", 1).join().unwrap().unwrap();
    assert_eq!(
        (alone.topology().size(), alone.topology().rank()),
        (1, Rank(0))
    );
    exchange(alone, "alone");
    let jobs = others.into_iter().map(|other| other.join().unwrap());
    let jobs: Vec<_> = jobs.collect::<Result<_>>().unwrap();
    let members = jobs
        .iter()
        .map(|job| (job.topology().rank().0, job.topology().nodes()));
    assert_eq!(members.collect::<Vec<_>>(), [(1, 2), (0, 2)]);
    let threads: Vec<_> = jobs
        .into_iter()
        .map(|job| thread::spawn(move || exchange(job, "two")))
        .collect();
    threads.into_iter().for_each(|one| one.join().unwrap());
    let late = come(0, "late", 3).join().unwrap().unwrap_err();
    assert!(late.to_string().ends_with(": 2 of 1-3"), "{late}");
    let many = come(0, "many", 5).join().unwrap().unwrap_err();
    let why = "a job on 5 nodes, of 4 with agents";
    assert!(many.to_string().contains(why), "{many}");
}

#[test]
fn strangers_and_agents_of_another_launch_are_not_let_in() {
    let (_server, joiners) = meeting(2, watchdog::PERIOD);
    let of = |agents: &[u32], secret: Secret| {
        let Known {
            addresses, wait, ..
        } = &*joiners[0].0;
        Joiner(Arc::new(Known {
            launcher: Launcher::Local,
            topology: Topology::from_node_sizes(agents, Rank(1)).unwrap(),
            secret,
            addresses: addresses.clone(),
            wait: *wait,
            lost_after: LOST_AFTER,
        }))
    };
    let secret = joiners[0].0.secret.clone();
    let text = of(&[1; 3], secret).connect().unwrap_err().to_string();
    assert!(text.contains("agent 1 of 3 in a meeting of 2"), "{text}");
    let other = of(&[1; 2], Secret::from_bytes([9; Secret::BYTES]));
    let text = other.connect().unwrap_err().to_string();
    assert!(text.contains("another job"), "{text}");
}

/// No test here can show the end of a machine. This one shows that the kernel is told to look for
/// it, of an agent's end.
#[test]
fn the_kernel_looks_after_the_connections_of_agents() {
    let (_server, joiners) = meeting(2, watchdog::PERIOD);
    let stay = joiners[1].stay();
    let timeout_ms = LOST_AFTER.as_millis() as u32;
    let timeout = sockopt::tcp_user_timeout(&stay).unwrap();
    assert!(sockopt::socket_keepalive(&stay).unwrap());
    assert_eq!(timeout, timeout_ms);
}

#[test]
fn what_the_first_agent_says_comes_back() {
    let opened = listen(&[], true, &nodes(&[1; 2]), LOST_AFTER);
    let (secret, addresses) = heard(&said(&opened)).unwrap();
    let (_, known, places) = opened.unwrap();
    assert_eq!((secret.expose(), &addresses), (known.expose(), &places));
    let refused = said(&Err(failed("no address".into())));
    let text = heard(&refused).unwrap_err().to_string();
    assert!(text.contains("no address"), "{text}");
    for bytes in [&b""[..], &[OPEN], &[OPEN; 17], &[7; 30]] {
        assert!(heard(bytes).is_err(), "{bytes:?}");
    }
}

/// The first agent drops who is slow, and has room for so many at once: such an agent comes again.
#[test]
fn an_agent_whose_first_connection_is_dropped_is_let_in_by_the_next() {
    let (_server, joiners) = meeting(2, watchdog::PERIOD);
    let door = TcpListener::bind("127.0.0.1:0").unwrap();
    let Known {
        topology, secret, ..
    } = &*joiners[1].0;
    let through = Joiner(Arc::new(Known {
        launcher: Launcher::Local,
        topology: topology.clone(),
        secret: secret.clone(),
        addresses: vec![door.local_addr().unwrap()],
        wait: watchdog::PERIOD,
        lost_after: LOST_AFTER,
    }));
    let server = joiners[0].0.addresses[0];
    let relay = thread::spawn(move || {
        for _ in 0..3 {
            drop(door.accept().unwrap());
        }
        let (inside, outside) = (
            TcpStream::connect(server).unwrap(),
            door.accept().unwrap().0,
        );
        let (mut from, mut to) = (inside.try_clone().unwrap(), outside.try_clone().unwrap());
        let back = thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        });
        let (mut from, mut to) = (outside, inside);
        let _ = io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
        back.join().unwrap();
    });
    let other = thread::spawn(move || through.join_by_name("job").unwrap());
    let job = joiners[0].join_by_name("job").unwrap();
    let others_job = other.join().unwrap();
    let other = thread::spawn(move || exchange(others_job, "through"));
    exchange(job, "through");
    other.join().unwrap();
    relay.join().unwrap();
}

#[test]
fn joins_of_one_name_meet_in_the_order_in_which_each_agent_sent_them() {
    let mut gatherings = Gatherings::new(nodes(&[1; 2]));
    // Agent 0 has two of the name under way, and a third one that gives up; agent 1 comes later.
    for (guest, agent) in [(5, 0), (3, 0), (4, 0), (1, 1), (2, 1)] {
        gatherings.admit(guest, agent, 2).unwrap();
    }
    let mut replies = Replies::new();
    let mut join = |gatherings: &mut Gatherings, guest| {
        let job = Request::Join {
            nodes: 0,
            job: "job".into(),
        };
        gatherings.take(guest, job, &mut replies);
        let mut begun: Vec<u64> = replies.drain(..).map(|(guest, _)| guest).collect();
        begun.sort_unstable();
        begun
    };
    for guest in [5, 3, 4] {
        assert_eq!(join(&mut gatherings, guest), []);
    }
    gatherings.end(3, &mut Replies::new());
    assert_eq!(join(&mut gatherings, 1), [1, 5]);
    assert_eq!(join(&mut gatherings, 2), [2, 4]);
}

#[test]
fn a_meeting_is_quiet_once_the_jobs_of_all_agents_have_ended() {
    let (_server, joiners) = meeting(2, watchdog::PERIOD);
    let quiet = |agent: &Joiner| agent.connect().unwrap().quiet_for().unwrap();
    assert_eq!(quiet(&joiners[1]), None, "there was none yet");
    let job = joiners[0].come_to(("job", 1), &|| None).unwrap();
    assert_eq!(job.topology().size(), 1);
    assert_eq!(quiet(&joiners[1]), None);
    let other = joiners[1].come_to(("job", 1), &|| None).unwrap();
    exchange(job, "alone");
    assert_eq!(quiet(&joiners[1]), None);
    drop(other);
    while quiet(&joiners[1]).is_none() {
        thread::sleep(Duration::from_millis(1));
    }
    let waits = joiners[0].clone();
    let waits = thread::spawn(move || waits.join_by_name("both").unwrap());
    while quiet(&joiners[1]).is_some() {
        thread::sleep(Duration::from_millis(1));
    }
    let both = joiners[1].join_by_name("both").unwrap();
    drop((both, waits.join().unwrap()));
}

/// Its agents are those of two nodes by turns, and of a third one.
fn of_three_nodes(agent: u32) -> Topology {
    Topology::from_node_of(&[0_u32, 1, 0, 1, 2], Rank(agent)).unwrap()
}

#[test]
fn other_agents_of_a_node_come_to_each_job_of_its_first_one() {
    let wait = watchdog::PERIOD;
    let (server, secret, addresses) = listen(&[], true, &of_three_nodes(0), LOST_AFTER).unwrap();
    let joiners: Vec<Joiner> = (0..5)
        .map(|agent| {
            Joiner(Arc::new(Known {
                launcher: Launcher::Local,
                topology: of_three_nodes(agent),
                secret: secret.clone(),
                addresses: addresses.clone(),
                wait,
                lost_after: LOST_AFTER,
            }))
        })
        .collect();
    // Each tells its place in its jobs, in their order.
    let place = |job: &JobOfAgents| {
        let topology = job.topology();
        (
            topology.size(),
            topology.rank().0,
            topology.node().0,
            topology.local_rank(),
        )
    };
    let first = |agent: usize, jobs: &'static [(&str, u32)]| {
        let joiner = joiners[agent].clone();
        thread::spawn(move || {
            let jobs = jobs.iter().map(|&job| {
                let come = joiner.come_to(job, &|| None).unwrap();
                let place = place(&come);
                exchange(come, job.0);
                place
            });
            jobs.collect::<Vec<_>>()
        })
    };
    let other = |agent: usize, jobs: &'static [&str]| {
        let mut follower = joiners[agent].follower();
        thread::spawn(move || {
            let jobs = jobs.iter().map(|&word| {
                let job = loop {
                    match follower.next_job().unwrap() {
                        Some(job) => break job,
                        None => thread::sleep(Duration::from_millis(1)),
                    }
                };
                let place = place(&job);
                exchange(job, word);
                place
            });
            jobs.collect::<Vec<_>>()
        })
    };
    let threads = [
        first(0, &[("all", 0), ("some", 2), ("alone", 1)]),
        first(1, &[("all", 0), ("alone", 1)]),
        other(2, &["all", "some", "alone"]),
        other(3, &["all", "alone"]),
        first(4, &[("all", 3), ("some", 2), ("alone", 1)]),
    ];
    let places = threads.map(|thread| thread.join().unwrap());
    let expected = [
        vec![(5, 0, 0, 0), (3, 0, 0, 0), (2, 0, 0, 0)],
        vec![(5, 1, 1, 0), (2, 0, 0, 0)],
        vec![(5, 2, 0, 1), (3, 1, 0, 1), (2, 1, 0, 1)],
        vec![(5, 3, 1, 1), (2, 1, 0, 1)],
        vec![(5, 4, 2, 0), (3, 2, 1, 0), (1, 0, 0, 0)],
    ];
    assert_eq!(places, expected);
    drop(server);
}

#[test]
fn a_job_waits_for_the_other_agents_of_its_nodes_and_says_for_which() {
    let (_server, joiners) = meeting_on(&[3, 1], Duration::from_secs(1));
    let come = |agent: usize, nodes| {
        let joiner = joiners[agent].clone();
        thread::spawn(move || joiner.come_to(("job", nodes), &|| None))
    };
    let text = |come: Result<JobOfAgents>| come.unwrap_err().to_string();
    // Nobody waits for agents of nodes that the job has no ranks on.
    assert!(come(3, 1).join().unwrap().is_ok());
    let late = text(come(0, 1).join().unwrap());
    assert!(late.contains("take no job at the moment: 1-2"), "{late}");
    let mut second = joiners[2].follower();
    assert!(second.next_job().unwrap().is_none());
    let late = text(come(0, 1).join().unwrap());
    assert!(late.ends_with("take no job at the moment: 1"), "{late}");
    // What has waited in vain is in no way of the next one.
    let mut first = joiners[1].follower();
    assert!(first.next_job().unwrap().is_none());
    let job = come(0, 1).join().unwrap().unwrap();
    assert_eq!(job.topology().size(), 3);
    for follower in [&mut first, &mut second] {
        while follower.next_job().unwrap().is_none() {
            thread::sleep(Duration::from_millis(1));
        }
    }
    // Only the first one has a reception, and one is asked once at a time.
    let refused = text(come(1, 0).join().unwrap());
    assert!(refused.contains("is not the first one"), "{refused}");
    assert!(first.next_job().unwrap().is_none());
    let refused = |agent: usize| {
        let mut follower = joiners[agent].follower();
        loop {
            match follower.next_job() {
                Ok(job) => assert!(job.is_none(), "agent {agent}"),
                Err(error) => break error.to_string(),
            }
            thread::sleep(Duration::from_millis(1));
        }
    };
    let why = refused(0);
    assert!(why.contains("is the first one"), "{why}");
    let why = refused(1);
    assert!(why.contains("waits for its next job already"), "{why}");
}

/// What a follower waits for at the meeting is short; a job's store is another matter.
#[test]
fn a_follower_waits_in_its_job_as_long_as_any_agent() {
    let (_server, joiners) = meeting_on(&[2], watchdog::PERIOD);
    let mut follower = joiners[1].follower();
    assert!(follower.begun_job().unwrap().is_none(), "it has not asked");
    assert!(follower.next_job().unwrap().is_none());
    let job = joiners[0].join_by_name("job").unwrap();
    // Also one that is about to leave gets what has begun.
    let others = loop {
        match follower.begun_job().unwrap() {
            Some(job) => break job,
            None => thread::sleep(Duration::from_millis(1)),
        }
    };
    assert!(follower.descriptor().is_none());
    let other = thread::spawn(move || exchange(others, "late"));
    thread::sleep(ASKING + Duration::from_millis(300));
    exchange(job, "late");
    other.join().unwrap();
}

/// What an agent does with one of its connections.
#[derive(Debug, Clone)]
enum Act {
    Connect(u32),
    Say(usize, Request),
    HangUp(usize),
}

fn act() -> impl Strategy<Value = Act> {
    let job = prop_oneof![Just(""), Just("a"), Just("b")];
    let request = prop_oneof![
        4 => (0..5_u32, job).prop_map(|(nodes, job)| Request::Join { nodes, job: job.into() }),
        2 => Just(Request::Fence),
        1 => Just(Request::Missing),
        1 => Just(Request::Finalize),
        1 => Just(Request::Quiet),
        4 => Just(Request::Follow),
        1 => any::<u32>().prop_map(|rank| Request::Hello { version: VERSION, rank: rank % 4 }),
        1 => any::<u8>().prop_map(|byte| Request::Put { key: "k".into(), value: vec![byte] }),
        1 => (0..4_u32).prop_map(|rank| Request::Get { rank, key: "k".into() }),
        1 => any::<i32>().prop_map(|status| Request::Abort { status, why: "so".into() }),
    ];
    prop_oneof![
        3 => (0..4_u32).prop_map(Act::Connect),
        8 => (any::<usize>(), request).prop_map(|(guest, request)| Act::Say(guest, request)),
        1 => any::<usize>().prop_map(Act::HangUp),
    ]
}

proptest! {
    #![proptest_config(crate::seed::properties())]

    #[test]
    fn whatever_agents_say_is_answered_to_those_who_are_there(
        acts in prop::collection::vec(act(), 1..200),
    ) {
        let mut gatherings = Gatherings::new(nodes(&[1, 2]));
        let (mut here, mut asked): (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
        for (number, act) in (0..).zip(acts) {
            let mut replies = Replies::new();
            match act {
                Act::Connect(agent) => {
                    let admitted = gatherings.admit(number, agent, 3);
                    prop_assert_eq!(admitted.is_ok(), agent < 3);
                    here.extend(admitted.map(|()| number));
                }
                Act::Say(_, _) | Act::HangUp(_) if here.is_empty() => {}
                Act::Say(guest, request) => {
                    let guest = here[guest % here.len()];
                    asked.push(guest);
                    gatherings.take(guest, request, &mut replies);
                }
                Act::HangUp(guest) => {
                    let guest = here.swap_remove(guest % here.len());
                    asked.retain(|other| *other != guest);
                    gatherings.end(guest, &mut replies);
                }
            }
            for (guest, reply) in replies {
                prop_assert!(here.contains(&guest), "{reply:?} to who is gone");
                let question = asked.iter().position(|other| *other == guest);
                prop_assert!(question.is_some(), "{reply:?} without a question");
                asked.swap_remove(question.unwrap_or_default());
            }
            prop_assert_eq!(gatherings.is_empty(), here.is_empty());
        }
    }
}

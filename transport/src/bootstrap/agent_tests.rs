use std::thread;

use super::*;
use crate::bootstrap::Bootstrap;

fn name(what: &str) -> String {
    format!("trihop-test-agent-{what}-{}", std::process::id())
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// What two ranks of an agent are told; which of them has which place.
#[test]
fn ranks_are_told_who_they_are_once_all_have_come() {
    let name = name("both");
    // The ranks may come first.
    let rank = |place| {
        let name = name.clone();
        thread::spawn(move || Attached::introduce(&name, ("", 0), place, None, soon()).unwrap())
    };
    let ranks = [rank(1), rank(ANY), rank(2)];
    let mut reception = Reception::open(&name, 3, 1..=2, 1).unwrap();
    assert!(
        Reception::open(&name, 3, 1..=2, 1).is_err(),
        "the name is the lock"
    );
    let party = reception.receive(&[], None).unwrap().unwrap();
    let welcome = Welcome {
        processes: Topology::from_node_sizes(&[1, 1], Rank(1)).unwrap(),
        ranks_of_nodes: vec![2, 3],
        secret: Secret::random().unwrap(),
        agents: vec!["agents-socket".to_owned()],
        ranks: party.nonces().to_vec(),
        provider: "some".to_owned(),
    };
    party.welcome(&welcome, &reception.listener).unwrap();
    let mut seen = Vec::new();
    for rank in ranks {
        let mut attached = rank.join().unwrap();
        let topology = attached.topology().clone();
        let shape = (topology.size(), topology.nodes(), topology.local_size());
        assert_eq!(shape, (5, 2, 3));
        assert!(topology.has_agents() && !topology.is_relay());
        let attachment = attached.attachment().unwrap();
        let told = attachment.welcome;
        assert_eq!(told.secret.expose(), welcome.secret.expose());
        assert_eq!(
            (&told.agents, &told.provider),
            (&welcome.agents, &welcome.provider)
        );
        let sockets = told.sockets(&topology);
        assert_eq!(sockets.len(), 3, "two ranks and the agent");
        assert_eq!(
            sockets[2],
            (topology.relay_of(1), "agents-socket".to_owned())
        );
        let own = attachment.listener.name().to_owned();
        assert!(sockets.iter().all(|(_, name)| *name != own));
        seen.push(topology.rank().0);
    }
    // Who takes any place takes what is left when it comes.
    assert_eq!((seen[0], seen[2]), (3, 4));
    assert_eq!(seen[1], 2);
}

#[test]
fn ranks_of_another_version_or_for_a_place_that_is_taken_are_refused() {
    let name = name("refusals");
    let mut reception = Reception::open(&name, 2, 1..=2, 1).unwrap();
    let agent = thread::spawn(move || {
        reception
            .receive(&[], None)
            .unwrap()
            .unwrap()
            .nonces()
            .len()
    });
    let nonce: u64 = 0x1234_5678_0000_0000 + u64::from(std::process::id());
    let listener = DescriptorListener::listen(&socket_name(nonce), 8).unwrap();
    let mut hello = prefix();
    hello[4] += 1;
    hello.extend_from_slice(&ANY.to_le_bytes());
    hello.extend_from_slice(&nonce.to_le_bytes());
    for strange in [&b"?"[..], &[0; 64], &hello] {
        DescriptorListener::send_until(&name, strange, &[], soon()).unwrap();
    }
    let (bytes, ..) = listener.accept(soon()).unwrap();
    let said = String::from_utf8_lossy(&bytes).into_owned();
    let (ours, theirs) = (VERSION, VERSION + 1);
    assert!(
        said.contains(&format!("(wire version {theirs}) here"))
            && said.contains(&format!("(wire version {ours}) there")),
        "{said}"
    );
    let refused = Attached::introduce(&name, ("", 0), 2, None, soon()).unwrap_err();
    assert!(refused.to_string().contains("none is 2"), "{refused}");
    let refused = Attached::introduce(&name, ("", 3), 0, None, soon()).unwrap_err();
    let many = "its job has ranks on 3 nodes, of 2 with agents";
    assert!(refused.to_string().contains(many), "{refused}");
    let come = |place: u32, nonce: u64| {
        let [place, nodes] = [place, 0].map(u32::to_le_bytes);
        let hello = [&prefix()[..], &place, &nodes, &nonce.to_le_bytes()].concat();
        DescriptorListener::send_until(&name, &hello, &[], soon()).unwrap();
    };
    // One that waits keeps its place; one that does not any more gives it free, though its process
    // lives.
    come(0, nonce);
    let refused = Attached::introduce(&name, ("", 0), 0, None, soon()).unwrap_err();
    let taken = "place 0 of this agent is taken";
    assert!(refused.to_string().contains(taken), "{refused}");
    let refused = Attached::introduce(&name, ("other", 0), 0, None, soon()).unwrap_err();
    let other = "ranks of job ``, and this one is of `other`";
    assert!(refused.to_string().contains(other), "{refused}");
    drop(listener);
    let late = Attached::introduce(&name, ("", 0), 0, None, Instant::now()).unwrap_err();
    assert!(late.to_string().contains("does not answer"), "{late}");
    let _wait = [1, 2].map(|number| {
        let nonce = nonce ^ number << 56;
        let listener = DescriptorListener::listen(&socket_name(nonce), 8).unwrap();
        come(ANY, nonce);
        listener
    });
    assert_eq!(agent.join().unwrap(), 2);
}

#[test]
fn no_agent_is_an_error_that_names_it() {
    let name = name("none");
    let error = Attached::introduce(&name, ("", 0), ANY, None, Instant::now()).unwrap_err();
    assert!(
        error.to_string().contains(&format!("no agent @{name}")),
        "{error}"
    );
}

#[test]
fn a_welcome_that_is_cut_is_none() {
    let welcome = Welcome {
        processes: Topology::from_node_sizes(&[1, 1, 2], Rank(2)).unwrap(),
        ranks_of_nodes: vec![1, 2, 3],
        secret: Secret::random().unwrap(),
        agents: vec!["a".to_owned(), "b".to_owned()],
        ranks: vec![1, 2, 3],
        provider: String::new(),
    };
    let bytes = welcome.encode(1);
    let bytes = behind_versions(&bytes).unwrap();
    let bytes = &bytes[1..];
    let (read, place) = Welcome::decode(bytes).unwrap();
    assert_eq!(
        (place, read.ranks, read.processes.rank()),
        (1, vec![1, 2, 3], Rank(2))
    );
    for cut in 0..bytes.len() {
        assert!(Welcome::decode(&bytes[..cut]).is_none(), "{cut}");
    }
}

/// Each job has its ranks, in whatever order they come; who asks for a place that one has taken
/// belongs to the next job of that name.
#[test]
fn ranks_of_several_jobs_come_to_one_agent() {
    let name = name("jobs");
    let mut reception = Reception::open(&name, 2, 1..=2, 3).unwrap();
    let rank = |job: &'static str, place| {
        let name = name.clone();
        // All nodes are asked for by their number and without one.
        let nodes = match (job, place) {
            ("two", _) => 1,
            (_, ANY) => 2,
            _ => 0,
        };
        thread::spawn(move || {
            let attached = Attached::introduce(&name, (job, nodes), place, None, soon())?;
            Ok::<_, Error>(attached.topology().rank().0)
        })
    };
    let one = [("one", 0), ("two", 0), ("one", 0)].map(|(job, place)| {
        let rank = rank(job, place);
        let soon = Some(Instant::now() + Duration::from_millis(20));
        assert!(reception.receive(&[], soon).unwrap().is_none());
        rank
    });
    while reception.parties.len() < 3 {
        let soon = Some(Instant::now() + Duration::from_millis(20));
        assert!(reception.receive(&[], soon).unwrap().is_none());
    }
    let refused = rank("three", ANY);
    while !refused.is_finished() {
        let soon = Some(Instant::now() + Duration::from_millis(20));
        assert!(reception.receive(&[], soon).unwrap().is_none());
    }
    let mut others = Vec::new();
    for job in ["two", "one"] {
        others.push(rank(job, ANY));
        let party = reception.receive(&[], None).unwrap().unwrap();
        let nodes = if job == "two" { 1 } else { 2 };
        assert_eq!((party.job(), party.nodes()), (job, nodes));
        let welcome = Welcome {
            processes: Topology::from_node_sizes(&[1], Rank(0)).unwrap(),
            ranks_of_nodes: vec![2],
            secret: Secret::random().unwrap(),
            agents: vec!["agents-socket".to_owned()],
            ranks: party.nonces().to_vec(),
            provider: String::new(),
        };
        party.welcome(&welcome, &reception.listener).unwrap();
    }
    let refused = refused.join().unwrap().unwrap_err().to_string();
    assert!(refused.contains("3 jobs wait at this agent"), "{refused}");
    for other in others {
        assert_eq!(other.join().unwrap().unwrap(), 1);
    }
    assert!(!reception.is_empty());
    let late = {
        let name = name.clone();
        thread::spawn(move || {
            // As a rank that starts an agent does, as soon as it is told that this one ends.
            one.map(|rank| {
                let outcome = rank.join().unwrap().map_err(|error| error.to_string());
                let comes_again = DescriptorListener::send_to_listener(&name, b"x", &[], soon());
                let refused = comes_again.is_err_and(|error| error.is_refused_connection());
                (outcome, refused)
            })
        })
    };
    thread::sleep(Duration::from_millis(20));
    reception.close("it ends");
    let outcomes = late.join().unwrap();
    for (outcome, refused) in &outcomes {
        assert!(*refused || outcome.is_ok(), "{outcomes:?}");
    }
    let outcomes = outcomes.map(|(outcome, _)| outcome);
    assert_eq!(outcomes[1], Ok(0));
    let refused = outcomes.iter().filter(|outcome| {
        let why = outcome.as_ref().err();
        why.is_some_and(|why| why.contains("refuses this rank: it ends"))
    });
    assert_eq!(refused.count(), 1, "{outcomes:?}");
}

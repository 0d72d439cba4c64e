use std::thread;

use super::*;
use crate::bootstrap::Bootstrap;
use crate::protocol::wire::VERSION;

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

/// One number differs from ours in each.
fn made_up() -> [Versions; 5] {
    let with = |change: &dyn Fn(&mut Versions)| {
        let mut versions = Versions::ours();
        change(&mut versions);
        versions
    };
    let release = |at: usize, number: &str| {
        let ours = Versions::ours().release;
        let mut numbers: Vec<_> = ours.split('.').collect();
        numbers[at] = number;
        let release = numbers.join(".");
        with(&|versions: &mut Versions| versions.release = release.clone())
    };
    [
        with(&|versions: &mut Versions| versions.wire += 1),
        with(&|versions: &mut Versions| versions.feature += 41),
        with(&|versions: &mut Versions| versions.feature -= 1),
        release(0, "77"),
        release(1, "77"),
    ]
}

#[test]
fn major_minor_and_feature_numbers_are_compared_and_patches_are_not() {
    let ours = Versions::ours();
    let patched = Versions {
        release: format!("{}-patched", ours.release),
        ..ours.clone()
    };
    assert!(ours.agree_with(&ours) && ours.agree_with(&patched));
    for theirs in made_up() {
        assert!(!ours.agree_with(&theirs), "{theirs}");
        let bytes = [&theirs.encode(MAGIC)[..], b"rest"].concat();
        assert_eq!(
            Versions::decode(MAGIC, &bytes),
            Some((theirs, &b"rest"[..]))
        );
        assert!(behind_versions(&bytes).is_err_and(|why| !why.is_empty()));
    }
    // As it was before there were feature numbers, and what nobody says.
    let before = [&MAGIC[..], &[VERSION, 5], b"0.1.0rest"].concat();
    let (before, rest) = Versions::decode(MAGIC, &before).unwrap();
    assert_eq!((before.feature, rest), (0, &b"rest"[..]));
    assert!(before.to_string().contains("feature number 0"));
    for none in [&b"0.1.0+"[..], b"0.1.0+x", b"0.1.0+1+1"] {
        let bytes = [&MAGIC[..], &[VERSION, none.len() as u8], none].concat();
        assert_eq!(behind_versions(&bytes), Err(String::new()));
    }
}

/// The other side of the same refusal.
#[test]
fn a_rank_whose_agent_is_of_another_version_names_both() {
    for (number, theirs) in (0..).zip(made_up()) {
        let name = name(&format!("other-{number}"));
        let agent = DescriptorListener::listen(&name, 8).unwrap();
        let rank = {
            let name = name.clone();
            thread::spawn(move || Attached::introduce(&name, ("", 0), ANY, None, soon()))
        };
        let (hello, ..) = agent.accept(soon()).unwrap();
        let (_, nonce) = hello.split_last_chunk::<8>().unwrap();
        let answer = [&theirs.encode(MAGIC)[..], &[REFUSED], b"as it says"].concat();
        let rank_socket = socket_name(u64::from_le_bytes(*nonce));
        DescriptorListener::send_until(&rank_socket, &answer, &[], soon()).unwrap();
        let refused = rank.join().unwrap().unwrap_err().to_string();
        let both = format!("trihop {theirs} here and {} there", Versions::ours());
        assert!(refused.contains(&both), "{refused}");
        assert!(refused.contains(&format!("the agent @{name}")), "{refused}");
    }
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
    for strange in [&b"?"[..], &[0; 64]] {
        DescriptorListener::send_until(&name, strange, &[], soon()).unwrap();
    }
    for theirs in made_up() {
        let [place, nodes] = [ANY, 0].map(u32::to_le_bytes);
        let hello = [
            &theirs.encode(MAGIC)[..],
            &place,
            &nodes,
            &nonce.to_le_bytes(),
        ]
        .concat();
        DescriptorListener::send_until(&name, &hello, &[], soon()).unwrap();
        let (bytes, ..) = listener.accept(soon()).unwrap();
        let said = String::from_utf8_lossy(&bytes).into_owned();
        let both = format!("trihop {theirs} here and {} there", Versions::ours());
        assert!(said.contains(&both), "{said}");
    }
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

//! Two interfaces of one network, in a network namespace: ranks of one node take one each, and
//! their endpoints reach each other.
//!
//! A process asks libfabric once what there is, so this is the only test of its binary.

use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{UnshareFlags, unshare_unsafe};
use trihop_transport::fabric::{self, Choice};
use trihop_transport::link::{Access, Completion, Link, Tag, Token};

/// A test that has not ended after this time hangs.
const WATCHDOG: Duration = Duration::from_secs(60);

const ADDRESSES: [[u8; 4]; 2] = [[10, 9, 0, 1], [10, 9, 0, 2]];

/// Enters a namespace of its own with two interfaces in one network, or says why not.
fn enter() -> Result<(), String> {
    // SAFETY: NEWNET shares no memory or descriptors with other threads, it only changes this
    // thread's network, and that of the processes that it starts.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(|e| format!("no namespace: {e}"))?;
    let mut batch = String::from("link set lo up\n");
    for (i, [a, b, c, d]) in ADDRESSES.iter().enumerate() {
        batch += &format!("link add near{i} type veth peer name far{i}\n");
        batch += &format!("address add {a}.{b}.{c}.{d}/24 dev near{i}\n");
        batch += &format!("link set near{i} up\nlink set far{i} up\n");
    }
    let mut ip = Command::new("ip");
    ip.args(["-batch", "-"]).stdin(Stdio::piped());
    let mut child = ip.spawn().map_err(|e| format!("no `ip`: {e}"))?;
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin
        .write_all(batch.as_bytes())
        .map_err(|e| e.to_string())?;
    drop(stdin);
    match child.wait() {
        Ok(status) if status.success() => Ok(()),
        other => Err(format!("`ip` failed: {other:?}")),
    }
}

fn open(local_rank: u32, interfaces: &[&str]) -> Box<dyn Link> {
    let choice = Choice {
        provider: Some("tcp".to_owned()),
        interfaces: interfaces.iter().map(|&name| name.to_owned()).collect(),
        local_rank,
        ..Choice::default()
    };
    fabric::open(&choice).expect("tcp opens on an interface")
}

/// Which of the two addresses an endpoint listens on.
fn address_of(link: &dyn Link) -> usize {
    let is_in = |ip: &[u8; 4]| link.address().windows(4).any(|bytes| bytes == ip);
    let found: Vec<usize> = (0..2).filter(|&i| is_in(&ADDRESSES[i])).collect();
    assert_eq!(found.len(), 1, "{:?}", link.address());
    found[0]
}

#[test]
fn ranks_of_a_node_take_one_interface_each_and_reach_each_other() {
    let test = thread::spawn(|| {
        if let Err(why) = enter() {
            eprintln!("skipped: {why}");
            return;
        }
        let (mut a, mut b) = (open(0, &[]), open(1, &[]));
        let taken = [address_of(&*a), address_of(&*b)];
        assert_ne!(taken[0], taken[1]);
        assert_eq!(address_of(&*open(2, &[])), taken[0], "in turn");
        // The order is that of the list, in which nothing else counts.
        for names in [["near0", "near1"], ["10.9.0.1", "10.9.0.2"]] {
            assert_eq!(address_of(&*open(0, &names)), 0);
            assert_eq!(address_of(&*open(1, &names)), 1);
        }
        assert_eq!(
            address_of(&*open(1, &["near0"])),
            0,
            "the only one that is left"
        );

        let to_b = a.connect(b.address()).unwrap();
        let (sends, receives) = (
            a.create_pool(4096, 1, Access::All).unwrap(),
            b.create_pool(4096, 1, Access::All).unwrap(),
        );
        b.post_receive(Tag(7), receives.take().unwrap(), Token(1))
            .unwrap();
        let mut buffer = sends.take().unwrap();
        buffer[..5].copy_from_slice(b"hello");
        let mut unsent = Some(buffer);
        let (mut ended, deadline) = (Vec::new(), Instant::now() + WATCHDOG);
        let received = loop {
            if let Some(buffer) = unsent.take() {
                use trihop_transport::link::PostError;
                match a.post_send(to_b, Tag(7), buffer, 5, Token(2)) {
                    Ok(()) => {}
                    Err(PostError::WouldBlock(buffer)) => unsent = Some(buffer),
                    Err(PostError::Failed(_, error)) => panic!("{error}"),
                }
            }
            a.poll(&mut ended).unwrap();
            b.poll(&mut ended).unwrap();
            let arrived = ended.iter().find_map(|completion| match completion {
                Completion::Received { buffer, bytes, .. } => Some(buffer[..*bytes].to_vec()),
                _ => None,
            });
            if let Some(arrived) = arrived {
                break arrived;
            }
            assert!(Instant::now() < deadline, "nothing arrives");
        };
        assert_eq!(received, b"hello");
    });
    test.join().unwrap();
}

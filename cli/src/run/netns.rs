//! One network namespace per node, joined by veth pairs to bridges in one more namespace: one pair
//! for each adapter of a node, and a bridge for the first adapters of all nodes, one for the second
//! ones and so on. On one bridge a node would answer for an address of it by any of its adapters.
//!
//! The namespaces have no names: they live as long as our descriptors and the ranks inside, so
//! nothing can be left behind, however the launcher ends. The addresses exist inside of them only.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;

use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::Error;

/// Most adapters of all nodes.
const PORTS_MAX: usize = 1000;

/// Most adapters of a node: each is in a network of its own.
const ADAPTERS_MAX: u32 = 16;

/// The first adapter of node `n` has the address `NETWORK + n + 1`, the others that of the networks
/// behind.
const NETWORK: u32 = u32::from_be_bytes([10, 201, 0, 0]);
const PREFIX_BITS: u32 = 16;

/// The namespaces of a job.
pub(super) struct Networks {
    nodes: Vec<File>,
    /// Of each node.
    adapters: u32,
    bridges: File,
}

impl Networks {
    /// Namespaces of so many nodes, of which each costs us a descriptor: theirs, and the bridges'.
    pub(super) fn namespaces(nodes: usize) -> usize {
        nodes + 1
    }

    /// Creates and joins the namespaces of so many nodes with so many adapters each.
    pub(super) fn create(nodes: usize, adapters: u32) -> Result<Self, Error> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::Network(
                "network namespaces need root; run as root, or leave --netns away".into(),
            ));
        }
        if nodes * adapters as usize > PORTS_MAX || adapters > ADAPTERS_MAX {
            return Err(Error::Network(format!(
                "{nodes} nodes with {adapters} adapters each; possible are {ADAPTERS_MAX} adapters \
                 of a node, and {PORTS_MAX} of all nodes"
            )));
        }
        let bridges = namespace()?;
        let nodes: Vec<File> = (0..nodes).map(|_| namespace()).collect::<Result<_, _>>()?;
        let networks = Self {
            nodes,
            adapters,
            bridges,
        };
        networks.join()?;
        Ok(networks)
    }

    /// Addresses of a node's interfaces, inside of the namespaces only.
    pub(super) fn addresses(&self, node: usize) -> impl Iterator<Item = Ipv4Addr> {
        let network = |adapter| NETWORK + (adapter << (32 - PREFIX_BITS));
        let address = move |adapter| Ipv4Addr::from(network(adapter) + node as u32 + 1);
        (0..self.adapters).map(address)
    }

    /// The namespace of a node.
    pub(super) fn namespace(&self, node: usize) -> BorrowedFd<'_> {
        self.nodes[node].as_fd()
    }

    fn join(&self) -> Result<(), Error> {
        let us = std::process::id();
        let mut batch = String::new();
        for adapter in 0..self.adapters {
            let bridge = format!("bridge{adapter}");
            let _ = writeln!(batch, "link add {bridge} type bridge\nlink set {bridge} up");
        }
        for (node, namespace) in self.nodes.iter().enumerate() {
            let theirs = format!("/proc/{us}/fd/{}", namespace.as_raw_fd());
            for adapter in 0..self.adapters {
                let port = format!("port{node}.{adapter}");
                let _ = writeln!(
                    batch,
                    "link add {port} type veth peer name trihop{adapter} netns {theirs}"
                );
                let _ = writeln!(batch, "link set {port} master bridge{adapter} up");
            }
        }
        ip(self.bridges.as_raw_fd(), &batch)?;
        for (node, namespace) in self.nodes.iter().enumerate() {
            let mut batch = String::from("link set lo up\n");
            for (adapter, address) in self.addresses(node).enumerate() {
                let _ = writeln!(
                    batch,
                    "address add {address}/{PREFIX_BITS} dev trihop{adapter}"
                );
                let _ = writeln!(batch, "link set trihop{adapter} up");
            }
            ip(namespace.as_raw_fd(), &batch)?;
        }
        Ok(())
    }
}

/// A new namespace; a thread enters it, and the descriptor keeps it when the thread has ended.
fn namespace() -> Result<File, Error> {
    let created = thread::spawn(|| {
        // SAFETY: NEWNET shares no memory or descriptors with other threads, it only changes this
        // thread's network.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
        File::open("/proc/thread-self/ns/net")
    });
    let created = created
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the thread that creates it has panicked")));
    created.map_err(|e| {
        Error::Network(format!(
            "creating a network namespace: {e}; are you root in a container?"
        ))
    })
}

/// Runs a batch of `ip` commands inside of a namespace.
fn ip(namespace: RawFd, batch: &str) -> Result<(), Error> {
    let mut command = Command::new("ip");
    command
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let enter = move || {
        // SAFETY: one system call on integers; the descriptor is open as long as the namespaces are
        // borrowed.
        match unsafe { libc::setns(namespace, libc::CLONE_NEWNET) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: `enter` makes one system call and nothing else between fork and exec.
    unsafe { command.pre_exec(enter) };
    let output = command.spawn().and_then(|mut child| {
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(batch.as_bytes())?;
        }
        child.wait_with_output()
    });
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            Err(Error::Network(format!(
                "`ip` failed: {}",
                text.trim().replace('\n', "; ")
            )))
        }
        Err(e) => Err(Error::Network(format!(
            "`ip` cannot be run: {e}; install iproute2"
        ))),
    }
}

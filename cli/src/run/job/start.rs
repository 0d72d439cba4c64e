//! How the processes of a job are started: ranks, and agents beside them.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use trihop::agent;
use trihop::transport::bootstrap::local::{
    ENV_BOUND, ENV_DESCRIPTOR, ENV_LOOPBACK, ENV_NODE_SIZES, ENV_RANK, ENV_SIZE,
};
use trihop::transport::cores::keep_to;

use super::super::netns::Networks;
use super::super::output::Target;
use super::super::process::{Process, Start};
use super::super::signals::Signals;
use super::super::{Error, OutputMode};
use super::{ENV_INTERFACE, Job};
use crate::agent::{ENV_LINGER, NEVER};

impl Job {
    pub(super) fn start_rank(
        &mut self,
        (node, local): (usize, u32),
        networks: Option<&Networks>,
        progress: Option<&OwnedFd>,
        signals: &Signals,
    ) -> Result<(), Error> {
        let rank = self.processes.len();
        let mut environment = self.environment(rank, &self.spec.node_sizes);
        if let Some(agent) = self.agent_names.get(node) {
            environment.push((agent::ENV_NAME.into(), agent.into()));
            environment.push((agent::ENV_PLACE.into(), local.to_string().into()));
        }
        let command = self.spec.command.clone();
        let progress = progress.filter(|_| rank == 0);
        let progress = progress.map(|pipe| (crate::progress::VARIABLE, pipe.as_fd()));
        let name = rank.to_string();
        // Where a core has gone since, the rank starts without that.
        let bound = self.cores.get(rank).and_then(|cores| keep_to(cores).ok());
        if bound.is_some() {
            environment.push((ENV_BOUND.into(), "1".into()));
        }
        let process = (node, &*command, environment, &*name);
        let started = self.start_process(process, networks, progress, signals);
        if let Some(before) = bound {
            before.restore();
        }
        started
    }

    /// One of the agents of a node, which are ranks to us.
    pub(super) fn start_agent(
        &mut self,
        agent: usize,
        networks: Option<&Networks>,
        signals: &Signals,
    ) -> Result<(), Error> {
        let executable = std::env::current_exe()
            .map_err(|e| Error::system("finding this executable to start agents", e))?;
        let (node, local) = self.place_of_agent(agent);
        let ranks = self.spec.node_sizes[node].to_string();
        let words = [
            "agent",
            "--quiet",
            "--ranks",
            &ranks,
            "--name",
            &self.agent_names[node],
        ];
        let (of_node, of_agent) = (node.to_string(), local.to_string());
        let under = self.spec.agent_under.iter();
        let under = under.map(|word| word.replace("{node}", &of_node));
        let under = under.map(|word| OsString::from(word.replace("{agent}", &of_agent)));
        let command: Vec<OsString> = under
            .chain([executable.into()])
            .chain(words.map(OsString::from))
            .collect();
        let on_each = vec![self.spec.agents; self.spec.node_sizes.len()];
        let mut environment = self.environment(agent, &on_each);
        // Ranks may have one job after the other; agents are ended when all ranks have. What runs
        // an agent sees its own end.
        let linger = std::env::var_os(ENV_LINGER).filter(|text| !text.is_empty());
        if linger.is_none() && self.spec.agent_under.is_empty() {
            environment.push((ENV_LINGER.into(), NEVER.into()));
        }
        let name = match self.spec.agents {
            1 => format!("agent {node}"),
            _ => format!("agent {node}.{local}"),
        };
        let process = (node, &*command, environment, &*name);
        self.start_process(process, networks, None, signals)
    }

    /// Who a process is, of so many on each node.
    fn environment(&self, rank: usize, sizes: &[u32]) -> Vec<(OsString, OsString)> {
        let mut environment = self.spec.env.clone();
        let mut set = |name: &str, value: String| environment.push((name.into(), value.into()));
        let size: u32 = sizes.iter().sum();
        let sizes: Vec<String> = sizes.iter().map(u32::to_string).collect();
        set(ENV_RANK, rank.to_string());
        set(ENV_SIZE, size.to_string());
        set(ENV_NODE_SIZES, sizes.join(","));
        environment
    }

    /// Starts a process on a node: its command, its environment, and what its output is marked with.
    fn start_process(
        &mut self,
        (node, command, mut environment, name): (
            usize,
            &[OsString],
            Vec<(OsString, OsString)>,
            &str,
        ),
        networks: Option<&Networks>,
        progress: Option<(&'static str, BorrowedFd<'_>)>,
        signals: &Signals,
    ) -> Result<(), Error> {
        let mut set = |name: &str, value: String| environment.push((name.into(), value.into()));
        match networks {
            Some(networks) => {
                let addresses = networks.addresses(node).map(|address| address.to_string());
                set(ENV_INTERFACE, addresses.collect::<Vec<_>>().join(","));
            }
            // Who names interfaces wants those; the two variables together are refused.
            None if self.spec.are_agents || names_interfaces() => {}
            None => set(ENV_LOOPBACK, "1".into()),
        }
        // Debian's libfabric brings libraries that turn signals into exit status 1 unless they are
        // told not to.
        for name in ["IPATH_NO_BACKTRACE", "HFI_NO_BACKTRACE"] {
            if std::env::var_os(name).is_none() {
                set(name, "1".into());
            }
        }
        let prefix = (self.spec.output != OutputMode::Plain).then(|| format!("[{name}] "));
        let start = Start {
            command,
            environment,
            removed: if networks.is_some() {
                &[ENV_LOOPBACK]
            } else {
                &[]
            },
            descriptor_variable: ENV_DESCRIPTOR,
            inherit_stdin: self.processes.is_empty(),
            stdout: (Target::Stdout, prefix.clone()),
            stderr: (Target::Stderr, prefix),
            network: networks.map(|n| n.namespace(node)),
            progress,
            signal_mask: signals.mask_of_ranks(),
        };
        let process = Process::start(&start).map_err(|source| Error::Command {
            command: command[0].clone(),
            source,
        })?;
        let id = process.id;
        self.processes.push(process);
        self.warden
            .watch(id)
            .map_err(|e| Error::system("telling the warden of a rank", e))
    }
}

/// Whether the user has said which interfaces ranks use.
fn names_interfaces() -> bool {
    std::env::var_os(ENV_INTERFACE).is_some_and(|names| !names.is_empty())
}

//! Which launcher started this process, from what it left in the environment.

use std::env;

use super::agent::{ENV_JOB, ENV_NODES, ENV_PLACE, ENV_START};
use super::{Launcher, master, pmix, tasks};
use crate::error::{Error, Result};
use crate::notice;
use crate::sync::Once;

/// The launcher to use: `forced` where given, else the node's agent, the address of rank 0, PMIx,
/// PMI-1, `trihop run`, in this order, else a job of one.
///
/// PMIx is passed over where its library is missing and another launcher is there.
///
/// # Errors
/// When the forced launcher left no trace in the environment, or when nothing is forced and this is
/// one of several tasks of a launcher that offers none of these: each of them would take itself for
/// a job of one.
pub fn detect(forced: Option<Launcher>) -> Result<Launcher> {
    detect_among(forced, true)
}

/// As [`detect`], for an agent: no other one is its launcher.
///
/// # Errors
/// As [`detect`], and where an agent is asked for.
pub fn detect_beside_agents(forced: Option<Launcher>) -> Result<Launcher> {
    match detect_among(forced, false)? {
        Launcher::Agent => Err(Error::config(
            "TRIHOP_LAUNCHER",
            "an agent cannot have another one as its launcher; unset TRIHOP_LAUNCHER",
        )),
        launcher => Ok(launcher),
    }
}

/// The name of an agent: this variable alone, of those that begin so.
const AGENT: &str = "TRIHOP_AGENT=";

/// As [`detect`], with agents passed over or not.
fn detect_among(forced: Option<Launcher>, agents: bool) -> Result<Launcher> {
    // With the sign behind a name, so that it can be asked for as a whole; what is empty is not set.
    let set = env::vars_os().filter(|(_, value)| !value.is_empty());
    let names: Vec<String> = set
        .map(|(name, _)| format!("{}=", name.to_string_lossy()))
        .collect();
    let has = |prefix: &str| names.iter().any(|n| n.starts_with(prefix));
    // A site may start its jobs by PMI-1 and PMIx at once, but have the library for one only.
    let other = has("PMI_FD") || has("PMI_PORT") || has("TRIHOP_BOOT_FD");
    let hidden = forced.is_none() && other && !pmix::is_loadable();
    let chosen = choose(
        &|name| {
            let is_passed_over = hidden && name.starts_with("PMIX_") || !agents && name == AGENT;
            has(name) && !is_passed_over
        },
        forced,
    )?;
    if forced.is_none() && chosen == Launcher::Single {
        tasks::refuse_half_a_launcher()?;
        let of_agents = [ENV_JOB, ENV_NODES, ENV_PLACE, ENV_START];
        let unused = of_agents.into_iter().find(|name| has(&format!("{name}=")));
        if let Some(name) = unused.filter(|_| agents) {
            SAID.call_once(|| say_unused(name));
        }
    }
    Ok(chosen)
}

/// That a variable of agents is set and none is meant was said.
static SAID: Once = Once::new();

fn say_unused(name: &str) {
    let text = format!(
        "{name} is set, and neither TRIHOP_AGENT nor TRIHOP_LAUNCHER=agent: this is a job of one \
         rank, without an agent"
    );
    tracing::warn!("{text}");
    notice::unless_logged(text);
}

/// This process's rank as the environment has it, before anybody was asked; `None` without a
/// launcher. For logs.
pub fn environment_rank() -> Option<u32> {
    let forced = env::var("TRIHOP_LAUNCHER")
        .ok()
        .and_then(|name| name.parse().ok());
    let variables: &[&str] = match detect(forced).ok()? {
        Launcher::Pmix => &["PMIX_RANK"],
        // At a port the rank is asked for; launchers give the process the same number.
        Launcher::Pmi1 => &["PMI_RANK", "PMI_ID"],
        // `trihop run` starts ranks with agents, too.
        Launcher::Local | Launcher::Master | Launcher::Agent => &[super::local::ENV_RANK],
        Launcher::Single | Launcher::Custom => return None,
    };
    variables
        .iter()
        .find_map(|name| env::var(name).ok())?
        .parse()
        .ok()
}

/// `has` answers whether a variable with this prefix is set; `NAME=` is a name as a whole.
fn choose(has: &dyn Fn(&str) -> bool, forced: Option<Launcher>) -> Result<Launcher> {
    let trace = |launcher: Launcher| match launcher {
        // Services of Kubernetes leave names that begin so; so do an agent's own variables.
        Launcher::Master => has(&format!("{}=", master::ENV_MASTER)),
        Launcher::Pmix => has("PMIX_NAMESPACE") && has("PMIX_RANK") && has("PMIX_SERVER_URI"),
        Launcher::Pmi1 => has("PMI_FD") || has("PMI_PORT"),
        Launcher::Local => has("TRIHOP_BOOT_FD"),
        // One that is asked for may have its usual name.
        Launcher::Agent => forced.is_some() || has(AGENT),
        Launcher::Single => true,
        // Only the program can know, and it does not come here.
        Launcher::Custom => false,
    };
    match forced {
        Some(launcher) if trace(launcher) => Ok(launcher),
        Some(launcher) => Err(no_trace(launcher)),
        None => {
            let order = [
                Launcher::Agent,
                // Set by hand, while the others may be those of a launcher around the shell.
                Launcher::Master,
                Launcher::Pmix,
                Launcher::Pmi1,
                Launcher::Local,
                Launcher::Single,
            ];
            Ok(order
                .into_iter()
                .find(|l| trace(*l))
                .unwrap_or(Launcher::Single))
        }
    }
}

/// Why this launcher, which was asked for, cannot be the one.
pub(super) fn no_trace(launcher: Launcher) -> Error {
    let (missing, remedy) = match launcher {
        Launcher::Pmix => (
            "PMIX_NAMESPACE and PMIX_SERVER_URI* are not set",
            "start with a PMIx launcher such as mpirun",
        ),
        Launcher::Pmi1 => (
            "neither PMI_FD nor PMI_PORT is set",
            "start with mpiexec of MPICH",
        ),
        Launcher::Agent => (
            "TRIHOP_AGENT is not set",
            "start with `trihop run --seat agent`",
        ),
        Launcher::Local | Launcher::Single => {
            ("TRIHOP_BOOT_FD is not set", "start with `trihop run`")
        }
        Launcher::Master => (
            "TRIHOP_MASTER is not set",
            "give all processes the address of rank 0, HOST:PORT",
        ),
        Launcher::Custom => (
            "only the program itself can give its callback",
            "start the job with that (`Job::start_with`)",
        ),
    };
    Error::config(
        "TRIHOP_LAUNCHER",
        format!("{launcher} is asked for, but {missing}; {remedy}, or unset TRIHOP_LAUNCHER"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(set: &[&str], forced: Option<Launcher>) -> Option<Launcher> {
        choose(&|name| set.iter().any(|s| s.starts_with(name)), forced).ok()
    }

    #[test]
    fn precedence_is_master_pmix_pmi1_local_single() {
        let pmix = ["PMIX_NAMESPACE", "PMIX_RANK", "PMIX_SERVER_URI41"];
        let all: Vec<&str> = pmix
            .into_iter()
            .chain(["PMI_FD", "TRIHOP_BOOT_FD"])
            .collect();
        let by_hand = [&all[..], &["TRIHOP_MASTER="]].concat();
        assert_eq!(chosen(&by_hand, None), Some(Launcher::Master));
        let service = [&all[..], &["TRIHOP_MASTER_SERVICE_HOST="]].concat();
        assert_eq!(chosen(&service, None), Some(Launcher::Pmix));
        let by_agent = [&by_hand[..], &["TRIHOP_AGENT="]].concat();
        assert_eq!(chosen(&by_agent, None), Some(Launcher::Agent));
        for of_agents in ["TRIHOP_AGENT_LINGER_MS=", "TRIHOP_AGENT_SERVICE_HOST="] {
            let beside = [&all[..], &[of_agents]].concat();
            assert_eq!(chosen(&beside, None), Some(Launcher::Pmix), "{of_agents}");
        }
        assert_eq!(chosen(&all, None), Some(Launcher::Pmix));
        assert_eq!(chosen(&all[1..], None), Some(Launcher::Pmi1));
        assert_eq!(chosen(&["PMI_PORT", "PMI_ID"], None), Some(Launcher::Pmi1));
        assert_eq!(chosen(&["TRIHOP_BOOT_FD"], None), Some(Launcher::Local));
        assert_eq!(chosen(&[], None), Some(Launcher::Single));
    }

    #[test]
    fn a_forced_launcher_needs_its_trace() {
        assert_eq!(
            chosen(&["PMI_FD", "TRIHOP_BOOT_FD"], Some(Launcher::Local)),
            Some(Launcher::Local)
        );
        assert_eq!(
            chosen(&["PMI_FD"], Some(Launcher::Single)),
            Some(Launcher::Single)
        );
        assert_eq!(chosen(&["PMI_FD"], Some(Launcher::Pmix)), None);
        assert_eq!(chosen(&[], Some(Launcher::Pmi1)), None);
        assert_eq!(chosen(&[], Some(Launcher::Local)), None);
        assert_eq!(chosen(&["PMI_FD"], Some(Launcher::Custom)), None);
        assert_eq!(chosen(&["PMI_FD"], Some(Launcher::Master)), None);
    }
}

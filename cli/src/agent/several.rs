//! Several agents of this node by one command.

use std::ffi::OsString;

use trihop::transport::bootstrap::{Launcher, detect_beside_agents};

use super::{AgentArgs, Error, Linger, NEVER};
use crate::run::{self, LaunchSpec, OutputMode};

/// Starts as many as are asked for, and waits for their end; the exit status.
///
/// # Errors
/// Fewer ranks than agents; a launcher around this process, whose ranks the agents would have to
/// be; what keeps them from being started.
pub(super) fn serve(
    args: &AgentArgs,
    name: &str,
    linger: Option<Linger>,
    launcher: Option<Launcher>,
) -> Result<i32, Error> {
    let (nics, ranks) = (args.nics, args.ranks);
    let refused = |why| Err(run::Error::Usage(why).into());
    if ranks < nics {
        return refused(format!(
            "--nics {nics} needs as many ranks on this node, and --ranks is {ranks}"
        ));
    }
    let launcher = detect_beside_agents(launcher).map_err(trihop::Error::from)?;
    if launcher != Launcher::Single {
        return refused(format!(
            "--nics {nics} starts agents where no launcher does, and this process has one \
             ({launcher}): leave --nics away, and have it start {nics} agents on each node, such \
             as by `mpiexec -ppn {nics}` or `srun --ntasks-per-node={nics}`"
        ));
    }
    let executable = std::env::current_exe().map_err(|source| run::Error::System {
        what: "finding this executable to start agents".to_owned(),
        source,
    })?;
    let mut command: Vec<OsString> = vec![executable.into(), "agent".into()];
    let mut option = |name: &str, value: &str| command.extend([name.into(), value.into()]);
    option("--ranks", &ranks.to_string());
    option("--name", name);
    if let Some(Linger(linger)) = linger {
        let text = linger.map_or_else(|| NEVER.to_owned(), |time| time.as_millis().to_string());
        option("--linger-ms", &text);
    }
    if args.quiet {
        command.push("--quiet".into());
    }
    let mut spec = LaunchSpec::new(vec![nics], command);
    spec.output = OutputMode::Plain;
    spec.are_agents = true;
    spec.says_why = true;
    Ok(run::launch(spec)?.status)
}

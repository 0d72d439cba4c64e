//! Our MPI programs in C: built once per MPI, started by its own launcher, in one of three forms.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::launch::Program;

/// An MPI that Debian has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mpi {
    /// MPICH
    Mpich,
    /// Open MPI
    OpenMpi,
}

/// How the ranks of a rival reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// As the launcher does it on one machine.
    Shared,
    /// Every pair over tcp, as if each rank had a node of its own.
    Tcp,
    /// Even and odd ranks on two simulated nodes. Only MPICH has that.
    OddEven,
}

impl Form {
    /// In words of reports.
    pub fn text(self) -> &'static str {
        match self {
            Self::Shared => "one node, shared memory",
            Self::Tcp => "every pair over tcp, no shared memory",
            Self::OddEven => "two simulated nodes: shared memory inside, tcp between",
        }
    }

    /// Whether messages cross simulated nodes.
    pub fn crosses(self) -> bool {
        self != Self::Shared
    }
}

impl Mpi {
    /// Both.
    pub const EVERY: [Self; 2] = [Self::Mpich, Self::OpenMpi];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mpich => "MPICH",
            Self::OpenMpi => "Open MPI",
        }
    }

    /// Its launcher; the line that tells its version comes from it.
    pub fn launcher(self) -> &'static str {
        match self {
            Self::Mpich => "mpiexec.mpich",
            Self::OpenMpi => "mpirun.openmpi",
        }
    }

    fn compiler(self) -> &'static str {
        match self {
            Self::Mpich => "mpicc.mpich",
            Self::OpenMpi => "mpicc.openmpi",
        }
    }

    /// Where `program` lies after [`build`].
    fn executable(self, folder: &Path, program: &str) -> PathBuf {
        let suffix = match self {
            Self::Mpich => "mpich",
            Self::OpenMpi => "openmpi",
        };
        folder.join(format!("{program}.{suffix}"))
    }

    /// The command that starts `ranks` of `program`.
    pub fn program(
        self,
        folder: &Path,
        program: &str,
        ranks: u32,
        form: Form,
        arguments: &[String],
    ) -> Program {
        let mut argv = vec![self.launcher().to_owned(), "-n".into(), ranks.to_string()];
        let mut env = Vec::new();
        match self {
            Self::Mpich => {
                let variables: &[(&str, &str)] = match form {
                    Form::Shared => &[],
                    Form::Tcp => &[("MPIR_CVAR_NOLOCAL", "1")],
                    Form::OddEven => &[("MPIR_CVAR_ODD_EVEN_CLIQUES", "1")],
                };
                env.extend(variables);
                if form.crosses() {
                    env.extend([("UCX_TLS", "tcp,self"), ("UCX_NET_DEVICES", "lo")]);
                }
            }
            Self::OpenMpi => {
                // It refuses root otherwise, and more ranks than cores.
                env.extend([
                    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
                    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
                ]);
                let options: &[&str] = match form {
                    Form::Shared => &["--mca", "btl", "vader,self"],
                    _ => &[
                        "--mca",
                        "btl",
                        "tcp,self",
                        "--mca",
                        "btl_tcp_if_include",
                        "lo",
                    ],
                };
                let common = ["--oversubscribe", "--mca", "pml", "ob1"];
                argv.extend(common.iter().chain(options).map(|&word| word.to_owned()));
            }
        }
        argv.push(self.executable(folder, program).display().to_string());
        argv.extend_from_slice(arguments);
        Program {
            argv,
            env: env
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
        }
    }

    /// Groups of shared memory that the ranks see in this form; none where it says nothing: Open
    /// MPI names the machine, whatever its ranks use.
    pub fn memory_groups(self, ranks: u32, form: Form) -> Option<u32> {
        match (self, form) {
            (_, Form::Shared) => Some(1),
            (Self::Mpich, Form::Tcp) => Some(ranks),
            (Self::Mpich, Form::OddEven) => Some(ranks.min(2)),
            (Self::OpenMpi, _) => None,
        }
    }

    /// Builds the programs from `sources` into `folder`.
    ///
    /// # Errors
    /// What is missing or what the compiler said.
    pub fn build(self, sources: &Path, folder: &Path) -> Result<(), String> {
        for program in ["many", "pair", "round"] {
            let source = format!("{program}.c");
            let mut command = compile(self, &self.executable(folder, program));
            command.arg("-O3").arg(sources.join(&source));
            run_compiler(command, &source)?;
        }
        Ok(())
    }
}

/// A compiler that makes `program`.
pub fn compile(mpi: Mpi, program: &Path) -> Command {
    let mut command = Command::new(mpi.compiler());
    command
        .args([
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-Wno-stringop-overflow",
            "-o",
        ])
        .arg(program);
    command
}

/// Compiles `source`, which the command has.
///
/// # Errors
/// What is missing or what the compiler said.
pub fn run_compiler(mut command: Command, source: &str) -> Result<(), String> {
    let compiler = command.get_program().display().to_string();
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let line = said
                .lines()
                .find(|line| line.contains("error"))
                .unwrap_or("it did not say why");
            Err(format!("{compiler} failed on {source}: {line}"))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(format!("{compiler} is not installed"))
        }
        Err(error) => Err(format!("starting {compiler}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_form_sets_what_its_launcher_wants() {
        let folder = Path::new("/built");
        let start = |mpi: Mpi, form| {
            mpi.program(folder, "pair", 2, form, &["3".into(), "8".into()])
                .text()
        };
        assert_eq!(
            start(Mpi::Mpich, Form::Shared),
            "mpiexec.mpich -n 2 /built/pair.mpich 3 8"
        );
        assert_eq!(
            start(Mpi::Mpich, Form::OddEven),
            "MPIR_CVAR_ODD_EVEN_CLIQUES=1 UCX_TLS=tcp,self UCX_NET_DEVICES=lo \
             mpiexec.mpich -n 2 /built/pair.mpich 3 8"
        );
        let tcp = start(Mpi::OpenMpi, Form::Tcp);
        assert!(
            tcp.starts_with("OMPI_ALLOW_RUN_AS_ROOT=1") && tcp.contains("--mca btl tcp,self"),
            "{tcp}"
        );
    }

    /// Every engine and every work, small; the programs verify what they did.
    #[test]
    fn the_programs_do_every_work_under_each_mpi_that_is_there() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("mpi");
        let folder = tempfile::tempdir().expect("a folder");
        let within = Duration::from_secs(60);
        for mpi in Mpi::EVERY {
            if let Err(why) = mpi.build(&sources, folder.path()) {
                assert!(why.contains("not installed"), "{why}");
                eprintln!("{}: skipped, {why}", mpi.name());
                continue;
            }
            let run = |program: &str, ranks, form, arguments: &str| {
                let arguments: Vec<String> = arguments.split(' ').map(str::to_owned).collect();
                let program = mpi.program(folder.path(), program, ranks, form, &arguments);
                let lines = program
                    .start()
                    .and_then(|running| running.lines(Some(1), within));
                let lines = lines.unwrap_or_else(|why| panic!("{}: {why}", program.text()));
                let row = crate::rows::json(&lines[0])
                    .expect("a row")
                    .expect("one that counts");
                assert!(row.figures.values().all(|figure| *figure > 0.0), "{row:?}");
                if let Some(groups) = mpi.memory_groups(ranks, form) {
                    assert_eq!(row.memory_groups, Some(groups), "{row:?}");
                }
            };
            for work in [
                "isend histo 8",
                "isend ig 16",
                "aggregate histo 8",
                "aggregate ig 16",
                "aggregate a2a 40",
                "alltoallv ig 16",
                "alltoallv a2a 40000",
            ] {
                run("many", 2, Form::Shared, &format!("{work} 1 500"));
            }
            run("round", 3, Form::Shared, "8 1 50");
            run("pair", 2, Form::Tcp, "1 65536");
            run("many", 4, Form::Tcp, "aggregate histo 8 1 500");
            if mpi == Mpi::Mpich {
                run("many", 4, Form::OddEven, "aggregate histo 8 1 500");
            }
        }
    }
}

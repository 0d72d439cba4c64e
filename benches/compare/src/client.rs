//! The client of the DeltaFS interface: the program of tests/deltafs in our library's hands, under
//! MPICH, which alone takes one machine for several nodes.

use std::path::{Path, PathBuf};

use crate::entries::{Entry, How, REPS, Setting};
use crate::launch::Program;
use crate::mpi::{Mpi, compile};

/// Ranks and simulated nodes of its job.
pub const RANKS: u32 = 8;
pub const NODES: u32 = 4;

/// Its name in results.
pub const SYSTEM: &str = "DeltaFS client";

/// Builds it from the tree at `root`, linked with the library beside `trihop`; where it lies.
///
/// # Errors
/// What is missing or what the compiler said.
pub fn build(root: &Path, trihop: &Path, folder: &Path) -> Result<PathBuf, String> {
    let library = trihop.parent().unwrap_or(Path::new("."));
    if !library.join("libtrihop.so").exists() {
        return Err(format!(
            "there is no libtrihop.so in {}: `make library` builds it",
            library.display()
        ));
    }
    let program = folder.join("many.deltafs");
    let mut command = compile(Mpi::Mpich, &program);
    command
        .args(["-O2", "-D_GNU_SOURCE", "-DWITH_MPI", "-pthread", "-I"])
        .arg(root.join("include/trihop/deltafs"))
        .arg(root.join("tests/deltafs/many.c"))
        .arg("-L")
        .arg(library)
        .arg("-ltrihop")
        .arg(format!("-Wl,-rpath,{}", library.display()));
    crate::mpi::run_compiler(command, "tests/deltafs/many.c")?;
    Ok(program)
}

impl Setting {
    /// The client with these options, at these sizes: all to all, or round trips.
    pub fn client(&self, options: &[&str], sizes: &[usize]) -> Entry {
        let how = match &self.client {
            Ok(client) => {
                let launcher = [Mpi::Mpich.launcher(), "-n"].map(str::to_owned);
                let mut argv = Vec::from(launcher);
                argv.extend([RANKS.to_string(), client.display().to_string()]);
                argv.extend(["-r".into(), REPS.to_string()]);
                argv.extend(options.iter().map(|&word| word.to_owned()));
                argv.extend(
                    sizes
                        .iter()
                        .flat_map(|size| ["-s".into(), size.to_string()]),
                );
                let nodes = ("MPIR_CVAR_NUM_CLIQUES".to_owned(), NODES.to_string());
                let program = Program {
                    argv,
                    env: vec![nodes],
                };
                How::Json(program, Some(sizes.len()))
            }
            Err(why) => How::Absent(why.clone()),
        };
        Entry {
            system: SYSTEM.into(),
            // Who cannot build it misses a figure of ours, and nothing of ours has failed.
            ours: self.client.is_ok(),
            way: format!(
                "{NODES} simulated nodes under MPICH, whose barriers are between the flushes"
            ),
            crosses: true,
            memory_groups: None,
            how,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entries::tests::setting;

    #[test]
    fn the_client_is_started_by_mpich_with_its_nodes() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut setting = setting(false, folder.path());
        setting.client = Ok("/built/many".into());
        let entry = setting.client(&["-o", "default"], &[24, 256]);
        let How::Json(program, lines) = entry.how else {
            panic!("{:?}", entry.how);
        };
        assert_eq!(lines, Some(2));
        assert_eq!(
            program.text(),
            "MPIR_CVAR_NUM_CLIQUES=4 mpiexec.mpich -n 8 /built/many -r 3 -o default -s 24 -s 256"
        );
    }

    #[test]
    fn a_library_that_is_not_built_is_said() {
        let folder = tempfile::tempdir().expect("a folder");
        let trihop = folder.path().join("trihop");
        let why = build(Path::new("."), &trihop, folder.path()).expect_err("no library");
        assert!(why.contains("make library"), "{why}");
    }
}

//! C programs as tests run them: compiled against the headers of this tree and the shared library,
//! as jobs of `trihop run` and under each MPI that is there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

use super::{Ended, Launched, is_installed, run};

/// What compiles a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Compiler {
    C,
    Cpp,
    Mpich,
    MpichCpp,
    OpenMpi,
}

impl Compiler {
    pub fn command(self) -> &'static str {
        match self {
            Self::C => "cc",
            Self::Cpp => "c++",
            Self::Mpich => "mpicc.mpich",
            Self::MpichCpp => "mpicxx.mpich",
            Self::OpenMpi => "mpicc.openmpi",
        }
    }

    pub fn options(self) -> &'static [&'static str] {
        match self {
            Self::C => &["-std=c11", "-D_GNU_SOURCE", "-Wstrict-prototypes"],
            Self::Cpp => &["-std=c++17", "-x", "c++"],
            // The headers of MPI are not ours to be strict about.
            Self::Mpich | Self::OpenMpi => &["-std=c11", "-D_GNU_SOURCE", "-DWITH_MPI"],
            Self::MpichCpp => &["-std=c++17", "-DWITH_MPI", "-x", "c++"],
        }
    }

    pub fn is_there(self) -> bool {
        let there = is_installed(self.command());
        if !there {
            eprintln!("skipped: {} is not installed", self.command());
        }
        there
    }
}

pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The folder of the shared library, which is built where that has not happened yet.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<&'static Path> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let folder = Path::new(env!("CARGO_BIN_EXE_trihop")).parent().unwrap();
        let mut build = Command::new(env!("CARGO"));
        build
            .args([
                "rustc",
                "--quiet",
                "--package",
                "trihop",
                "--lib",
                "--features",
                "capi",
            ])
            .args(["--crate-type", "cdylib", "--target-dir"])
            .arg(folder.parent().unwrap())
            // As tests are, so that cargo has most of it already.
            .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
            .current_dir(root());
        if folder.ends_with("release") {
            build.arg("--release");
        }
        super::build(build);
        folder
    })
}

/// A compiler that sees the headers in these folders of this tree, and is strict.
pub fn strict(compiler: Compiler, includes: &[&str]) -> Command {
    let mut command = Command::new(compiler.command());
    command
        .args(compiler.options())
        .args(["-Wall", "-Wextra", "-Werror", "-Wundef", "-O1", "-g"]);
    for folder in includes {
        command.arg("-I").arg(root().join(folder));
    }
    command
}

/// Lets a compiler link what it was given with the library, as `program`.
pub fn link(command: &mut Command, program: &Path) {
    let library = library();
    // Behind `-x c++`, what follows would be taken for a source.
    command.args(["-x", "none", "-pthread", "-o"]).arg(program);
    command.arg("-L").arg(library).arg("-ltrihop");
    command.arg(format!("-Wl,-rpath,{}", library.display()));
}

/// The program of `tests/FOLDER/NAME.c`, or `.cpp`, compiled once.
pub fn client_of(folder: &str, name: &str, compiler: Compiler, includes: &[&str]) -> PathBuf {
    static BUILT: Mutex<BTreeMap<(String, Compiler), PathBuf>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (format!("{folder}-{name}"), compiler);
    if let Some(program) = built.get(&key) {
        return program.clone();
    }
    let program =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{folder}-{name}-{compiler:?}"));
    let mut command = strict(compiler, includes);
    let source = |end: &str| root().join(format!("tests/{folder}/{name}.{end}"));
    let found = ["c", "cpp"]
        .map(source)
        .into_iter()
        .find(|file| file.exists());
    command.arg(found.expect("a source of this name"));
    link(&mut command, &program);
    run(command).succeeded();
    built.insert(key, program.clone());
    program
}

/// Runs a program as a job of `trihop run`.
pub fn launch(job: &[&str], program: &Path, arguments: &[&str]) -> Ended {
    launch_with(job, program, arguments, &[])
}

pub fn launch_with(
    job: &[&str],
    program: &Path,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> Ended {
    let words = [
        job,
        &["--no-prefix", "--", program.to_str().unwrap()],
        arguments,
    ]
    .concat();
    let mut command = Launched::command(words.into_iter().map(str::to_owned));
    command.envs(environment.iter().copied());
    run(command)
}

/// Runs a program that `client` compiles under an MPI; none where that is not installed.
pub fn under_mpi(
    compiler: Compiler,
    launcher: &[&str],
    client: impl FnOnce() -> PathBuf,
    arguments: &[&str],
) -> Option<Ended> {
    if !compiler.is_there() {
        return None;
    }
    if !is_installed(launcher[0]) {
        eprintln!("skipped: {} is not installed", launcher[0]);
        return None;
    }
    let mut command = Command::new(launcher[0]);
    command
        .args(&launcher[1..])
        .arg(client())
        .args(arguments)
        // Open MPI refuses root unless told twice.
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    Some(run(command))
}

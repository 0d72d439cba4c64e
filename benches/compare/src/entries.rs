//! Who takes part in a contest, and how each is started.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

use crate::launch::Program;
use crate::mpi::{Form, Mpi};

/// How the figures of an entry are had.
#[derive(Debug, Clone)]
pub enum How {
    /// A program that prints rows of JSON; so many lines are all, where that is known.
    Json(Program, Option<usize>),
    /// `ucx_perftest`: a server and a client that read the same list of tests.
    Ucx {
        /// Started first.
        server: Program,
        /// Prints the table.
        client: Program,
        /// Tests in the list.
        tests: usize,
    },
    /// Known to be impossible.
    Absent(String),
}

/// Who takes part.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its name; rows with a variant add that.
    pub system: String,
    /// Whether it is ours.
    pub ours: bool,
    /// How its ranks reach each other.
    pub way: String,
    /// Whether its messages cross simulated nodes.
    pub crosses: bool,
    /// Groups of shared memory that its ranks have to see, where they can tell.
    pub memory_groups: Option<u32>,
    /// How it is run.
    pub how: How,
}

/// Where things are, and how much is done.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Our release binary.
    pub trihop: PathBuf,
    /// This program, for queues between threads.
    pub myself: PathBuf,
    /// Folder with the built MPI programs and lists of tests.
    pub folder: PathBuf,
    /// Why an MPI's programs could not be built.
    pub unbuilt: Vec<(Mpi, String)>,
    /// The client of the DeltaFS interface, or why it could not be built.
    pub client: Result<PathBuf, String>,
    /// The scripts of partition's rivals.
    pub scripts: PathBuf,
    /// Python with the packages of these rivals, or why there is none.
    pub python: Result<PathBuf, String>,
    /// Less of everything.
    pub quick: bool,
}

/// Repetitions inside one launch; the rounds come on top.
pub const REPS: u32 = 3;

impl Setting {
    /// `trihop bench` of `bench`; `way` is how its ranks reach each other and whether messages
    /// cross nodes.
    pub fn ours(
        &self,
        system: &str,
        bench: &str,
        (way, crosses): (&str, bool),
        options: impl IntoIterator<Item = String>,
    ) -> Entry {
        let mut argv = vec![path_text(&self.trihop)];
        argv.extend(["bench", bench, "--json", "--reps"].map(str::to_owned));
        argv.push(REPS.to_string());
        argv.extend(options);
        Entry {
            system: system.into(),
            ours: true,
            way: way.into(),
            crosses,
            memory_groups: None,
            how: How::Json(Program::new(argv), None),
        }
    }

    /// One of the queues between two threads, by its name on our own command line.
    pub fn queue(&self, queue: &str, system: &str, size: usize) -> Entry {
        let myself = path_text(&self.myself);
        let program = Program::new([myself.as_str(), "threads", queue, &size.to_string()]);
        Entry {
            system: system.into(),
            ours: queue == "trihop",
            way: "two threads of one process".into(),
            crosses: false,
            memory_groups: None,
            how: How::Json(program, Some(1)),
        }
    }

    /// Our MPI program for two ranks.
    pub fn mpi_pair(&self, mpi: Mpi, form: Form, sizes: &[usize]) -> Entry {
        let mut arguments = vec![REPS.to_string()];
        arguments.extend(sizes.iter().map(usize::to_string));
        self.mpi(
            mpi.name().into(),
            (mpi, "pair"),
            2,
            form,
            &arguments,
            sizes.len(),
        )
    }

    /// One of our MPI programs; it prints so many `lines`.
    pub fn mpi(
        &self,
        system: String,
        (mpi, program): (Mpi, &str),
        ranks: u32,
        form: Form,
        arguments: &[String],
        lines: usize,
    ) -> Entry {
        let system = match form {
            Form::Shared => system,
            Form::Tcp => format!("{system}, tcp"),
            Form::OddEven => format!("{system}, odd-even"),
        };
        let how = match self.unbuilt.iter().find(|(unbuilt, _)| *unbuilt == mpi) {
            Some((_, why)) => How::Absent(why.clone()),
            None => How::Json(
                mpi.program(&self.folder, program, ranks, form, arguments),
                Some(lines),
            ),
        };
        Entry {
            system,
            ours: false,
            way: form.text().into(),
            crosses: form.crosses(),
            memory_groups: mpi.memory_groups(ranks, form),
            how,
        }
    }

    /// `ucx_perftest` over these transports of UCX.
    pub fn ucx(&self, transports: &str, sizes: &[usize], way: &str, crosses: bool) -> Entry {
        let how = match self.ucx_programs(transports, sizes) {
            Ok((server, client)) => How::Ucx {
                server,
                client,
                tests: 2 * sizes.len(),
            },
            Err(error) => How::Absent(format!("preparing ucx_perftest: {error}")),
        };
        let system = if crosses { "UCX, tcp" } else { "UCX" };
        Entry {
            system: system.into(),
            ours: false,
            way: way.into(),
            crosses,
            memory_groups: None,
            how,
        }
    }

    fn ucx_programs(
        &self,
        transports: &str,
        sizes: &[usize],
    ) -> std::io::Result<(Program, Program)> {
        let list = self.folder.join(format!(
            "ucx-{}-{}.txt",
            transports.replace(',', "-"),
            sizes[0]
        ));
        let tests: String = sizes.iter().map(|&size| ucx_tests(size)).collect();
        std::fs::write(&list, tests)?;
        // Free a moment ago; a neighbour that takes it meanwhile makes these runs fail.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
            .local_addr()?
            .port()
            .to_string();
        let program = |core: &str, more: &[&str]| {
            let list = path_text(&list);
            let mut argv = vec!["ucx_perftest"];
            argv.extend(more);
            argv.extend(["-b", &list, "-p", &port, "-c", core, "-v", "-f"]);
            let mut program = Program::new(argv);
            program.env = [("UCX_TLS", transports), ("UCX_NET_DEVICES", "lo")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into();
            program
        };
        Ok((program("0", &[]), program("1", &["127.0.0.1"])))
    }
}

/// A latency and a bandwidth test of one size, named as `rows::ucx` wants it.
fn ucx_tests(size: usize) -> String {
    let rounds = ((64 << 20) / size).clamp(200, 10_000);
    let messages = ((256 << 20) / size).clamp(200, 500_000);
    format!(
        "lat_{size} -t tag_lat -s {size} -n {rounds} -w {}\nbw_{size} -t tag_bw -s {size} -n {messages} -w {}\n",
        rounds / 10,
        messages / 10
    )
}

fn path_text(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Without MPICH; nothing of it is there.
    pub fn setting(quick: bool, folder: &Path) -> Setting {
        Setting {
            trihop: "/ours/trihop".into(),
            myself: "/ours/trihop-compare".into(),
            folder: folder.into(),
            unbuilt: vec![(Mpi::Mpich, "mpicc.mpich is not installed".into())],
            client: Err("mpicc.mpich is not installed".into()),
            scripts: "/ours/scripts".into(),
            python: Err("pip cannot fetch duckdb".into()),
            quick,
        }
    }

    #[test]
    fn the_list_of_ucx_tests_is_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let entry = setting(false, folder.path()).ucx("tcp,self", &[8, 1 << 20], "tcp", true);
        let How::Ucx { client, tests, .. } = entry.how else {
            panic!("{:?}", entry.how);
        };
        assert_eq!(tests, 4);
        let list = std::fs::read_to_string(&client.argv[3]).expect("the list");
        assert!(
            list.starts_with("lat_8 -t tag_lat -s 8 -n 10000 -w 1000\nbw_8 "),
            "{list}"
        );
    }
}

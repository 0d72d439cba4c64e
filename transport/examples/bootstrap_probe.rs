//! A rank that only bootstraps: exchanges values all to all, checks them, prints who it is. Used by
//! the tests of every launcher, and by hand to see what a launcher says.
//!
//! `bootstrap_probe [--deadline-ms N] [--absent RANK] [--abort RANK] [--mpi LIBRARY] [--mpi-late
//! LIBRARY] [--times N] [--leave drop|exit]`

use std::env;
use std::ffi::{c_char, c_int};
use std::process::ExitCode;
use std::ptr;
use std::time::Duration;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use trihop_transport::bootstrap::{self, Bootstrap};
use trihop_transport::topology::{NodeId, Rank};
use trihop_transport::{Error, Result};

#[derive(Debug)]
struct Arguments {
    deadline: Duration,
    /// This rank never arrives at the first fence.
    absent: Option<u32>,
    /// After the exchange this rank aborts the job with status 9.
    abort: Option<u32>,
    /// MPI library to initialise before and to finalise after.
    mpi: Option<String>,
    /// MPI library to initialise after the exchange.
    mpi_late: Option<String>,
    /// So many jobs, one after the other.
    times: u32,
    /// How the last one is left without a word to the launcher.
    leave: Option<Leave>,
}

#[derive(Debug, Clone, Copy)]
enum Leave {
    /// By dropping it.
    Drop,
    /// With the process.
    Exit,
}

impl Arguments {
    fn parse() -> Result<Self> {
        let mut parsed = Self {
            deadline: Duration::from_secs(30),
            absent: None,
            abort: None,
            mpi: None,
            mpi_late: None,
            times: 1,
            leave: None,
        };
        let mut words = env::args().skip(1);
        while let Some(option) = words.next() {
            let value = words
                .next()
                .ok_or_else(|| Error::config(&option, "needs a value"))?;
            let number = || {
                value
                    .parse::<u32>()
                    .map_err(|_| Error::config(&option, format!("{value:?} is no number")))
            };
            match option.as_str() {
                "--deadline-ms" => parsed.deadline = Duration::from_millis(number()?.into()),
                "--absent" => parsed.absent = Some(number()?),
                "--abort" => parsed.abort = Some(number()?),
                "--mpi" => parsed.mpi = Some(value),
                "--mpi-late" => parsed.mpi_late = Some(value),
                "--times" => parsed.times = number()?,
                "--leave" if value == "drop" => parsed.leave = Some(Leave::Drop),
                "--leave" if value == "exit" => parsed.leave = Some(Leave::Exit),
                _ => return Err(Error::config(option, "unknown option")),
            }
        }
        Ok(parsed)
    }
}

fn main() -> ExitCode {
    match Arguments::parse().and_then(|arguments| probe(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bootstrap_probe: {error}");
            ExitCode::FAILURE
        }
    }
}

fn probe(arguments: &Arguments) -> Result<()> {
    let forced = env::var("TRIHOP_LAUNCHER")
        .ok()
        .map(|name| name.parse())
        .transpose()?;
    let mpi = arguments.mpi.as_deref().map(Mpi::initialise).transpose()?;
    for number in 1..arguments.times {
        let mut boot = bootstrap::start(forced, arguments.deadline)?;
        exchange(boot.as_mut(), number)?;
        boot.finalize()?;
    }
    let mut boot = bootstrap::start(forced, arguments.deadline)?;
    let topology = boot.topology().clone();
    let me = topology.rank();
    if arguments.absent == Some(me.0) {
        std::thread::sleep(arguments.deadline * 4);
        return Ok(());
    }
    exchange(boot.as_mut(), 0)?;
    if let Some(aborts) = arguments.abort {
        // Not while others are in a fence: the PMIx server of Open MPI 4 then sometimes crashes or
        // hangs.
        if aborts == me.0 {
            boot.abort(9, "the probe was told to");
        }
        std::thread::sleep(arguments.deadline * 4);
        return Ok(());
    }
    let mpi = arguments
        .mpi_late
        .as_deref()
        .map(Mpi::initialise)
        .transpose()?
        .or(mpi);
    #[allow(clippy::print_stdout)]
    {
        let (size, node, nodes) = (topology.size(), topology.node(), topology.nodes());
        let (local, local_size) = (topology.local_rank(), topology.local_size());
        let map = topology.process_mapping();
        let launcher = boot.launcher();
        println!(
            "probe rank {me}/{size} node {node}/{nodes} local {local}/{local_size} map {map} launcher {launcher}"
        );
    }
    match arguments.leave {
        None => boot.finalize()?,
        Some(Leave::Drop) => drop(boot),
        Some(Leave::Exit) => {
            mpi.map_or(Ok(()), Mpi::finalise)?;
            std::process::exit(0)
        }
    }
    mpi.map_or(Ok(()), Mpi::finalise)
}

/// Every rank puts an empty, a short and the longest value, and gets everybody's; others in job
/// `number` than in the one before.
fn exchange(boot: &mut dyn Bootstrap, number: u32) -> Result<()> {
    let topology = boot.topology().clone();
    let (me, limit) = (topology.rank(), boot.value_limit().min(8 << 10));
    let keys = ["empty", "short", "a-key-of-24-characters.x"];
    let value = |rank: Rank, key: usize| -> Vec<u8> {
        let length = [0, 64, limit][key];
        (0..length as u32)
            .map(|i| (i.wrapping_mul(31) ^ rank.0 ^ key as u32).wrapping_add(number) as u8)
            .collect()
    };
    for (index, key) in keys.into_iter().enumerate() {
        boot.put(key, &value(me, index))?;
    }
    if me == Rank(0) {
        boot.put("limit", &vec![0xa5; boot.value_limit()])?;
    }
    boot.fence()?;
    let wrong = |what: String| Error::config("probe", what);
    for rank in (0..topology.size()).map(Rank) {
        for (index, key) in keys.into_iter().enumerate() {
            if boot.get(rank, key)?.as_deref() != Some(&value(rank, index)[..]) {
                return Err(wrong(format!(
                    "rank {me} got a wrong value {key} of rank {rank}"
                )));
            }
        }
        if boot.get(rank, "never-put")?.is_some() {
            return Err(wrong(format!(
                "rank {me} got a value that rank {rank} never put"
            )));
        }
    }
    if boot
        .get(Rank(0), "limit")?
        .is_none_or(|v| v != vec![0xa5; boot.value_limit()])
    {
        return Err(wrong(format!("rank {me} got a wrong longest value")));
    }
    // The placement must be what every other rank believes.
    boot.put(
        "map",
        format!("{} {}", topology.node(), topology.process_mapping()).as_bytes(),
    )?;
    boot.fence()?;
    for rank in (0..topology.size()).map(Rank) {
        let theirs = boot.get(rank, "map")?.unwrap_or_default();
        let NodeId(node) = topology.node_of(rank);
        if theirs != format!("{node} {}", topology.process_mapping()).into_bytes() {
            return Err(wrong(format!(
                "rank {rank} sees another placement: {}",
                String::from_utf8_lossy(&theirs)
            )));
        }
    }
    boot.fence()
}

/// MPI in the same process, as an application would have it.
struct Mpi(Library);

impl Mpi {
    fn initialise(library: &str) -> Result<Self> {
        // SAFETY: the user names a library of MPI, whose initialisers only set up its own tables.
        let library = unsafe { Library::open(Some(library), RTLD_NOW | RTLD_GLOBAL) }
            .map_err(|e| Error::config("--mpi", format!("{library}: {e}")))?;
        type Init = unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char) -> c_int;
        // SAFETY: the MPI standard gives MPI_Init this signature.
        let init = unsafe { library.get::<Init>(c"MPI_Init".to_bytes_with_nul()) };
        let init = init.map_err(|e| Error::config("--mpi", e.to_string()))?;
        // SAFETY: both arguments may be null (MPI 2 and later).
        match unsafe { init(ptr::null_mut(), ptr::null_mut()) } {
            0 => Ok(Self(library)),
            code => Err(Error::config(
                "--mpi",
                format!("MPI_Init failed with code {code}"),
            )),
        }
    }

    fn finalise(self) -> Result<()> {
        // SAFETY: the MPI standard gives MPI_Finalize this signature.
        let finalize = unsafe {
            self.0
                .get::<unsafe extern "C" fn() -> c_int>(c"MPI_Finalize".to_bytes_with_nul())
        };
        let finalize = finalize.map_err(|e| Error::config("--mpi", e.to_string()))?;
        // SAFETY: MPI is initialised, and nothing else uses it.
        match unsafe { finalize() } {
            0 => Ok(()),
            code => Err(Error::config(
                "--mpi",
                format!("MPI_Finalize failed with code {code}"),
            )),
        }
    }
}

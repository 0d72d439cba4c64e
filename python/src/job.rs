//! A rank's part of a job.

use std::sync::Once;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyList, PyType};
use trihop::threaded::{self, UntypedBuilder};
use trihop::{Options, Rank, Reduce, StreamOptions, Topology};

use crate::array::{ItemType, Numbers, View};
use crate::channel::{Channels, Kept, named};
use crate::detached::{Detached, Ended, apart};
use crate::error::Failure;
use crate::handler;
use crate::inbox::{Inbox, Store};
use crate::stream::{Shuffle, Stream};

/// One rank's part of a job. `Job()` joins the job that this process was started in, by `trihop
/// run`, MPI's launchers or Slurm; without one, a job of one rank. Collective.
///
/// Options are those of docs/OPTIONS.md, as keyword arguments; the environment has the rest. In a
/// `with` statement the job is shut down at its end. Where an exception leaves it, the job is not,
/// which would wait for the others: it has failed then, and their calls say with what.
///
/// Any thread may call. A thread of the library's keeps messages moving while the program
/// computes; calls that wait let other threads of Python's run. Collective calls are made in the
/// same order on every rank.
#[pyclass(frozen, module = "trihop")]
pub struct Job {
    job: Detached<threaded::Job>,
    options: Options,
    ended: Ended,
}

/// Takes the logs of the engine, once.
static LOGS: Once = Once::new();

#[pymethods]
impl Job {
    #[new]
    #[pyo3(signature = (**options))]
    fn new(py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let mut chosen = Options::from_env().map_err(Failure::from)?;
        set_all(&mut chosen, options)?;
        chosen.check().map_err(Failure::from)?;
        let mut logs = Ok(());
        LOGS.call_once(|| logs = trihop::log::Options::from_env().and_then(trihop::log::install));
        logs.map_err(Failure::from)?;
        let start = || -> Result<threaded::Job, trihop::Error> {
            let job = threaded::Job::start(chosen.clone())?;
            trihop::log::set_rank(job.rank().0)?;
            Ok(job)
        };
        let job = py.detach(start).map_err(Failure::from)?;
        Ok(Self {
            job: Detached::new(job),
            options: chosen,
            ended: Ended::default(),
        })
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<&Bound<'_, PyType>>,
        value: Option<&Bound<'_, PyAny>>,
        _traceback: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let Some(kind) = kind else {
            return self.shutdown(py);
        };
        // An exception whose name or text raises another one is none to speak of.
        let name = kind
            .name()
            .map_or_else(|_| "exception".into(), |name| name.to_string());
        let text = value.and_then(|value| value.str().ok());
        let text = text.map_or_else(String::new, |text| text.to_string_lossy().into_owned());
        let why = match text.is_empty() {
            true => name,
            false => format!("{name}: {text}"),
        };
        // A fork has nothing to say of the job.
        let _ = apart(py, || {
            self.job.fail(&why);
            Ok::<_, Failure>(())
        });
        Ok(())
    }

    fn __repr__(&self) -> String {
        let (rank, size) = (self.rank(), self.size());
        format!(
            "<trihop.Job: rank {rank} of {size}, on {} nodes>",
            self.nodes()
        )
    }

    /// This rank.
    #[getter]
    fn rank(&self) -> u32 {
        self.job.anywhere().rank().0
    }

    /// Ranks of the job.
    #[getter]
    fn size(&self) -> u32 {
        self.job.anywhere().size()
    }

    /// Nodes of the job.
    #[getter]
    fn nodes(&self) -> u32 {
        self.topology().nodes()
    }

    /// The node of this rank.
    #[getter]
    fn node(&self) -> u32 {
        self.topology().node().0
    }

    /// This rank's number on its node.
    #[getter]
    fn local_rank(&self) -> u32 {
        self.topology().local_rank()
    }

    /// Ranks on this rank's node.
    #[getter]
    fn local_size(&self) -> u32 {
        self.topology().local_size()
    }

    /// Who has started the job.
    #[getter]
    fn launcher(&self) -> &'static str {
        self.job.anywhere().launcher().name()
    }

    /// The provider of libfabric that carries traffic between nodes, where there are several.
    #[getter]
    fn provider(&self) -> Option<&str> {
        self.job.anywhere().provider()
    }

    /// The node of a rank.
    fn node_of(&self, rank: u32) -> PyResult<u32> {
        if rank >= self.size() {
            let size = self.size();
            return Err(Failure::Engine(trihop::Error::Rank { rank, size }).into());
        }
        Ok(self.topology().node_of(Rank(rank)).0)
    }

    /// The ranks of a node, ascending.
    fn ranks_of(&self, node: u32) -> PyResult<Vec<u32>> {
        if node >= self.nodes() {
            let nodes = self.nodes();
            let why = format!("node {node} does not exist in a job on {nodes} nodes");
            return Err(Failure::Misuse(why).into());
        }
        let ranks = self.topology().ranks_of(node.into());
        Ok(ranks.map(|rank| rank.0).collect())
    }

    /// Opens a stream of items, which `dtype` describes: whatever numpy takes for a type of one
    /// size, structures and rows included, of `max_message_bytes` at most, and the same on all
    /// ranks, which are of Python all. `held_bytes` is how much
    /// may wait here to be pulled; options of streams are those of docs/OPTIONS.md. Collective.
    ///
    /// With a handler nothing waits: `handler(source, items)` is called for each run of items of
    /// one source, on a thread of the library's, one call at a time. It may send, on this stream
    /// and others, which never waits; what waits raises `Misuse` there. What it raises ends the
    /// job.
    #[pyo3(signature = (name, dtype, *, handler=None, held_bytes=HELD_BYTES, **options))]
    fn stream(
        &self,
        py: Python<'_>,
        name: &str,
        dtype: &Bound<'_, PyAny>,
        handler: Option<Py<PyAny>>,
        held_bytes: usize,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Stream> {
        let items = ItemType::new(py, dtype)?;
        let of_items = match callable(py, handler)? {
            Some(handler) => Some((handler, ItemType::new(py, dtype)?)),
            None => None,
        };
        let handled = of_items.map(|(handler, items)| {
            |builder: UntypedBuilder| handler::of_items(builder, handler, items)
        });
        let inbox = self.open(py, (name, items.bytes), held_bytes, options, handled)?;
        if let Err(refused) = self.agree_on(py, name, &items) {
            // On all ranks; why it was refused is said, whatever becomes of that.
            let _ = apart(py, || inbox.close());
            return Err(refused);
        }
        Ok(Stream { inbox, items })
    }

    /// Opens a shuffle of byte records of any length. As `stream`, but that a handler is called for
    /// each record: `handler(source, kind, data)`. Collective.
    #[pyo3(signature = (name, *, handler=None, held_bytes=HELD_BYTES, **options))]
    fn shuffle(
        &self,
        py: Python<'_>,
        name: &str,
        handler: Option<Py<PyAny>>,
        held_bytes: usize,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Shuffle> {
        let handled = callable(py, handler)?
            .map(|handler| |builder: UntypedBuilder| handler::of_records(builder, handler));
        let inbox = self.open(py, (name, 0), held_bytes, options, handled)?;
        Ok(Shuffle { inbox })
    }

    /// Opens channels: those that this rank has kept of another job, else none yet. `getmsg_bytes`
    /// bounds what this rank hands out of its channels and has not arrived: beyond it gets wait;
    /// one message may be longer. Without it, it is that of `TRIHOP_MAX_GETMSG_MB`. Collective.
    ///
    /// Raises `Config` on all ranks where what one has kept cannot be gone on with.
    #[pyo3(signature = (name, *, kept=None, getmsg_bytes=None, **options))]
    fn channels(
        &self,
        py: Python<'_>,
        name: &str,
        kept: Option<&Bound<'_, Kept>>,
        getmsg_bytes: Option<u64>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Channels> {
        let mut builder = apart(py, || Ok::<_, Failure>(self.job.channels(name)))?;
        if let Some(bytes) = getmsg_bytes {
            builder = builder.getmsg_bytes(bytes);
        }
        if let Some(kept) = kept {
            builder = builder.keeping(&kept.get().0);
        }
        if let Some(options) = self.stream_options(options)? {
            builder = builder.options(options);
        }
        let channels = apart(py, || builder.open())?;
        Ok(Channels::over(channels))
    }

    /// Waits until every rank has called this. Takes nothing of what arrives on streams: their own
    /// `barrier` does.
    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        Ok(apart(py, || self.job.barrier())?)
    }

    /// From now on the job goes on without ranks, or nodes, that are gone: else the first of them
    /// ends it for all. For ranks that have an agent. What is wanted of one that is gone, and what
    /// all ranks take part in, raises from then on; `lost` says who is gone. Collective.
    ///
    /// Raises `Misuse` for ranks without an agent.
    fn survive(&self, py: Python<'_>) -> PyResult<()> {
        Ok(apart(py, || self.job.survive())?)
    }

    /// Ranks that this one cannot reach any more: those that are gone since `survive`, and those
    /// behind an agent that is.
    #[getter]
    fn lost(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        let lost = apart(py, || self.job.lost())?;
        Ok(lost.into_iter().map(|rank| rank.0).collect())
    }

    /// Reduces numbers over all ranks: "sum", "min", "max", and of integers "xor", "and", "or".
    /// Every rank gives a number, or an array or a list of as many; integers are reduced in 64
    /// bits, others as `float64`. Returns a number, or an array of these. Collective.
    #[pyo3(signature = (values, op="sum"))]
    fn allreduce<'py>(
        &self,
        py: Python<'py>,
        values: &Bound<'py, PyAny>,
        op: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        let op = named("op", op, OPS)?;
        let (mut numbers, given) = Numbers::of(values)?;
        let reduce = || match &mut numbers {
            Numbers::Unsigned(numbers) => self.job.allreduce(numbers, op),
            Numbers::Signed(numbers) => self.job.allreduce(numbers, op),
            Numbers::Float(numbers) => self.job.allreduce(numbers, op),
        };
        apart(py, reduce)?;
        numbers.into_python(py, given)
    }

    /// As `allreduce`, over the ranks before this one: rank 0 gets what changes nothing, 0 of a
    /// sum. So ranks find where their parts of something begin. Collective.
    #[pyo3(signature = (values, op="sum"))]
    fn exscan<'py>(
        &self,
        py: Python<'py>,
        values: &Bound<'py, PyAny>,
        op: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        let op = named("op", op, OPS)?;
        let (mut numbers, given) = Numbers::of(values)?;
        let scan = || match &mut numbers {
            Numbers::Unsigned(numbers) => self.job.exscan(numbers, op),
            Numbers::Signed(numbers) => self.job.exscan(numbers, op),
            Numbers::Float(numbers) => self.job.exscan(numbers, op),
        };
        apart(py, scan)?;
        numbers.into_python(py, given)
    }

    /// The bytes that every rank gives, by rank. Collective.
    fn allgather<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let view = View::of_bytes(data)?;
        let bytes = view.bytes();
        let all = apart(py, || self.job.allgather(bytes));
        let all = all?;
        PyList::new(py, all.iter().map(|bytes| PyBytes::new(py, bytes)))
    }

    /// The bytes that the rank `root` gives; what others give does not count.
    /// Collective.
    #[pyo3(signature = (data, root=0))]
    fn broadcast<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        root: u32,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let view = View::of_bytes(data)?;
        let bytes = view.bytes();
        let given = apart(py, || self.job.broadcast(Rank(root), bytes));
        Ok(PyBytes::new(py, &given?))
    }

    /// What the queues of this rank hold, with their bounds, for people to read.
    fn dump(&self, py: Python<'_>) -> PyResult<String> {
        let mut text = Vec::new();
        apart(py, || self.job.dump(&mut text).map_err(PyErr::from))?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Ends the whole job: the calls of all ranks raise from then on, and say that this one has
    /// failed, and why; its launcher ends it, where that can. The caller still has to exit. Whether
    /// the launcher could be asked.
    #[pyo3(signature = (status=1, why="aborted by the program"))]
    fn abort(&self, py: Python<'_>, status: i32, why: &str) -> PyResult<bool> {
        Ok(apart(py, || Ok::<_, Failure>(self.job.abort(status, why)))?)
    }

    /// Leaves the job, once all ranks do and all that was sent has arrived. Collective. Other calls
    /// raise `Closed` from then on.
    fn shutdown(&self, py: Python<'_>) -> PyResult<()> {
        let end = || threaded::Job::clone(&self.job).shutdown();
        let ended = apart(py, || self.ended.once(end));
        Ok(ended?)
    }
}

/// What of a stream may wait to be pulled where nothing else is said: 1 GiB.
const HELD_BYTES: usize = 1 << 30;

const OPS: &[(&str, Reduce)] = &[
    ("sum", Reduce::Sum),
    ("min", Reduce::Min),
    ("max", Reduce::Max),
    ("xor", Reduce::Xor),
    ("and", Reduce::And),
    ("or", Reduce::Or),
];

impl Job {
    /// Refuses a stream whose items mean something else on another rank, on all of them.
    fn agree_on(&self, py: Python<'_>, name: &str, items: &ItemType) -> PyResult<()> {
        let own = items.description(py)?;
        let all = apart(py, || self.job.allgather(own.as_bytes()))?;
        let Some(rank) = all.iter().position(|other| *other != all[0]) else {
            return Ok(());
        };
        let [first, other] = [0, rank].map(|rank| String::from_utf8_lossy(&all[rank]));
        let why = format!(
            "stream `{name}` has items of {first} on rank 0, and of {other} on rank {rank}"
        );
        Err(Failure::Misuse(why).into())
    }

    fn topology(&self) -> &Topology {
        self.job.anywhere().topology()
    }

    fn open<S: Store>(
        &self,
        py: Python<'_>,
        (name, item_bytes): (&str, usize),
        held_bytes: usize,
        options: Option<&Bound<'_, PyDict>>,
        handled: Option<impl FnOnce(UntypedBuilder) -> UntypedBuilder>,
    ) -> PyResult<Inbox<S>> {
        if held_bytes == 0 {
            return Err(PyValueError::new_err("held_bytes is 0: it is 1 at least"));
        }
        let mut builder = apart(py, || Ok::<_, Failure>(self.job.untyped(name, item_bytes)))?;
        if let Some(options) = self.stream_options(options)? {
            builder = builder.options(options);
        }
        let has_handler = handled.is_some();
        if let Some(handled) = handled {
            builder = handled(builder);
        }
        let untyped = apart(py, || builder.open())?;
        Ok(Inbox::new(untyped, held_bytes, has_handler))
    }

    /// Those of the job, with what is given for one stream.
    fn stream_options(&self, given: Option<&Bound<'_, PyDict>>) -> PyResult<Option<StreamOptions>> {
        let Some(given) = given.filter(|given| !given.is_empty()) else {
            return Ok(None);
        };
        for key in given.keys() {
            let key: String = key.extract()?;
            let is_of_job = Options::TABLE
                .iter()
                .any(|row| row.name == key && !row.of_stream);
            if is_of_job {
                let why = format!("`{key}` is an option of the job: give it to Job()");
                return Err(Failure::Misuse(why).into());
            }
        }
        let mut options = self.options.clone();
        set_all(&mut options, Some(given))?;
        options.check().map_err(Failure::from)?;
        Ok(Some(options.stream))
    }
}

/// A handler that is given, which is to be called.
fn callable(py: Python<'_>, handler: Option<Py<PyAny>>) -> PyResult<Option<Py<PyAny>>> {
    match handler {
        Some(handler) if !handler.bind(py).is_callable() => {
            let why = format!(
                "the handler is {}, which cannot be called",
                handler.bind(py)
            );
            Err(PyTypeError::new_err(why))
        }
        handler => Ok(handler),
    }
}

/// Sets options by name: to texts, numbers, and for switches True or False.
fn set_all(options: &mut Options, given: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
    for (key, value) in given.into_iter().flat_map(|given| given.iter()) {
        let key: String = key.extract()?;
        let text = match value.cast::<PyBool>() {
            Ok(switch) => u8::from(switch.is_true()).to_string(),
            Err(_) if value.is_none() => {
                let why = format!("option {key} is None: leave it out, or give its value");
                return Err(PyTypeError::new_err(why));
            }
            Err(_) => value.str()?.extract()?,
        };
        options.set(&key, &text).map_err(Failure::from)?;
    }
    Ok(())
}

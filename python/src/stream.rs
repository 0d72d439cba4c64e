//! Streams of items that a type of numpy describes, and shuffles of byte records.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use trihop::Stats;

use crate::array::{ItemType, TargetView, View};
use crate::detached::apart;
use crate::error::Failure;
use crate::inbox::{Inbox, Items, Records};

/// A stream of items of one type between all ranks of a job: `Job.stream` opens one.
///
/// Items go out by blocks and come in by blocks, without a call of Python's for each. From one
/// source they arrive in the order in which it has sent them. What has arrived waits here until it
/// is pulled, `held_bytes` of it at most; calls that would take more raise `WouldBlock`.
#[pyclass(frozen, module = "trihop")]
pub struct Stream {
    pub(crate) inbox: Inbox<Items>,
    pub(crate) items: ItemType,
}

#[pymethods]
impl Stream {
    /// The name that it was opened by.
    #[getter]
    fn name(&self) -> &str {
        self.inbox.untyped.anywhere().name()
    }

    /// The type of its items.
    #[getter]
    fn dtype(&self, py: Python<'_>) -> Py<PyAny> {
        self.items.dtype(py)
    }

    /// Sends items, `targets[i]` being the rank that gets `items[i]`, or one rank for all. `items`
    /// is an array of the stream's type, or bytes of whole items; arrays in one piece are read
    /// where they lie, and must not change meanwhile. Waits while there is no room, and takes what
    /// arrives.
    ///
    /// Raises `Misuse` at a target that is no rank, and `WouldBlock` once `held_bytes` wait to be
    /// pulled: `taken` of the exception says how many items were sent before.
    fn push_block(
        &self,
        py: Python<'_>,
        targets: &Bound<'_, PyAny>,
        items: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let view = self.items.view(items)?;
        let target_view = TargetView::of(targets)?;
        let items = view.bytes();
        let count = items.len() / self.items.bytes;
        if let Some(targets) = target_view.count()
            && targets != count
        {
            let why = format!("{targets} targets for {count} items");
            return Err(PyValueError::new_err(why));
        }
        let targets = target_view.targets();
        let pushed = apart(py, || Ok::<_, Failure>(self.inbox.push(targets, items)));
        let (taken, outcome) = pushed?;
        outcome.map_err(|failure| failure.after(py, taken))
    }

    /// What has arrived: a list of pairs, each of a source and an array of its items, by source.
    /// The arrays are the program's. Does not wait. After a round it is what was sent until the
    /// round was over, and nothing of the next one.
    fn pull<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let pulled = apart(py, || self.inbox.pull())?;
        let blocks = pulled.by_source.into_iter().map(|(source, items)| {
            let array = self.items.array(py, items)?;
            (source, array).into_pyobject(py)
        });
        PyList::new(py, blocks.collect::<PyResult<Vec<_>>>()?)
    }

    /// As `pull`, all items in one array, behind one with the source of each.
    fn pull_all<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let bytes = self.items.bytes;
        let (sources, items) = apart(py, || -> Result<_, Failure> {
            let by_source = self.inbox.pull()?.by_source;
            let total = by_source.values().map(Vec::len).sum();
            let mut items = Vec::with_capacity(total);
            let mut sources = Vec::with_capacity(total / bytes * size_of::<u32>());
            for (source, block) in by_source {
                let source = source.to_ne_bytes();
                sources.extend(std::iter::repeat_n(source, block.len() / bytes).flatten());
                items.extend_from_slice(&block);
            }
            Ok((sources, items))
        })?;
        let ranks = ItemType::of_ranks(py)?;
        Ok((ranks.array(py, sources)?, self.items.array(py, items)?))
    }

    /// Returns on every rank when all that any rank has sent before has arrived. Collective.
    /// Cheaper, where ranks go in steps: `round`.
    ///
    /// Raises `WouldBlock` once `held_bytes` wait to be pulled: pull, and call this again.
    fn fence(&self, py: Python<'_>) -> PyResult<()> {
        Ok(apart(py, || self.inbox.fence())?)
    }

    /// Ends a step: returns when all that any rank has sent before its own call has arrived.
    /// Nothing that is sent later is pulled by the first `pull` from then on. Collective.
    ///
    /// Raises `WouldBlock` once `held_bytes` wait to be pulled: pull, and call this again.
    fn round(&self, py: Python<'_>) -> PyResult<()> {
        Ok(apart(py, || self.inbox.round())?)
    }

    /// Begins a `round` and does not wait: the program computes, asks by `test`, or waits by
    /// `wait`. Until it is over nothing is sent on this stream.
    fn start_round(&self, py: Python<'_>) -> PyResult<()> {
        Ok(apart(py, || self.inbox.start_round())?)
    }

    /// Whether no round is under way any more. Takes what has arrived.
    fn test(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(apart(py, || self.inbox.test())?)
    }

    /// Waits until no round is under way any more.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        Ok(apart(py, || self.inbox.wait())?)
    }

    /// Waits until every rank has called this, and takes meanwhile what arrives.
    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        Ok(apart(py, || self.inbox.barrier())?)
    }

    /// A fence, after which the stream is gone; what was not pulled is given up. Collective.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        Ok(apart(py, || self.inbox.close())?)
    }

    /// Counters of this rank by name, as docs/DIAGNOSTICS.md has them.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        counters(
            py,
            apart(py, || Ok::<_, Failure>(self.inbox.untyped.stats()))?,
        )
    }
}

/// A shuffle of byte records of any length between all ranks of a job: `Job.shuffle` opens one.
#[pyclass(frozen, module = "trihop")]
pub struct Shuffle {
    pub(crate) inbox: Inbox<Records>,
}

#[pymethods]
impl Shuffle {
    /// The name that it was opened by.
    #[getter]
    fn name(&self) -> &str {
        self.inbox.untyped.anywhere().name()
    }

    /// Sends a record: `bytes`, or whatever has the buffer protocol, with 32 bits that mean what
    /// the program wants. The bytes are copied. Waits while there is no room, and takes what
    /// arrives.
    ///
    /// Raises `Misuse` for a rank that does not exist and above `max_message_bytes`; `WouldBlock`
    /// once `held_bytes` wait to be pulled.
    #[pyo3(signature = (target, data, kind=0))]
    fn send(
        &self,
        py: Python<'_>,
        target: u32,
        data: &Bound<'_, PyAny>,
        kind: u32,
    ) -> PyResult<()> {
        let view = View::of_bytes(data)?;
        let bytes = view.bytes();
        Ok(apart(py, || self.inbox.send(target, kind, bytes))?)
    }

    /// As `send`, and raises `WouldBlock` where there is no room now.
    #[pyo3(signature = (target, data, kind=0))]
    fn try_send(
        &self,
        py: Python<'_>,
        target: u32,
        data: &Bound<'_, PyAny>,
        kind: u32,
    ) -> PyResult<()> {
        let view = View::of_bytes(data)?;
        let bytes = view.bytes();
        Ok(apart(py, || self.inbox.try_send(target, kind, bytes))?)
    }

    /// What has arrived: a list of triples, of a source, a kind and `bytes`. Does not wait.
    fn pull<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let pulled = apart(py, || self.inbox.pull())?;
        let list = PyList::empty(py);
        for (source, kind, bytes) in pulled.each() {
            list.append((source, kind, PyBytes::new(py, bytes)))?;
        }
        Ok(list)
    }

    /// As `Stream.fence`.
    fn fence(&self, py: Python<'_>) -> PyResult<()> {
        Ok(apart(py, || self.inbox.fence())?)
    }

    /// Ends a step: returns when all that any rank has sent before its own call has arrived.
    /// Collective, and cheaper than `fence`. What others send in the next step may come into the
    /// same `pull`.
    fn round(&self, py: Python<'_>) -> PyResult<()> {
        Ok(apart(py, || self.inbox.round())?)
    }

    /// Waits until every rank has called this, and takes meanwhile what arrives.
    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        Ok(apart(py, || self.inbox.barrier())?)
    }

    /// A fence, after which the shuffle is gone; what was not pulled is given up. Collective.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        Ok(apart(py, || self.inbox.close())?)
    }

    /// Counters of this rank by name, as docs/DIAGNOSTICS.md has them.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        counters(
            py,
            apart(py, || Ok::<_, Failure>(self.inbox.untyped.stats()))?,
        )
    }
}

/// Counters by name.
pub fn counters(py: Python<'_>, stats: Option<Stats>) -> PyResult<Bound<'_, PyDict>> {
    let stats = stats.ok_or(Failure::Engine(trihop::Error::WouldBlock))?;
    let counters = PyDict::new(py);
    for (row, value) in stats.rows() {
        counters.set_item(row.name, value)?;
    }
    Ok(counters)
}

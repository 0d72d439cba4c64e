//! Handlers: callables of the program, called on the delivery thread of their stream.

use std::cell::Cell;
use std::panic::resume_unwind;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCFunction, PyDict, PyTuple};
use trihop::threaded::UntypedBuilder;

use crate::array::ItemType;
use crate::error::{Failure, SIGNALS_EVERY, check_signals, keep_raised};

/// Calls `handler(source, items)` for each run of items that arrives.
pub fn of_items(builder: UntypedBuilder, handler: Py<PyAny>, items: ItemType) -> UntypedBuilder {
    begin_here();
    builder.handler(move |arrival, _| {
        call(|py| {
            let block = items.array(py, arrival.bytes.to_vec())?;
            handler.bind(py).call1((arrival.source.0, block)).map(drop)
        });
    })
}

/// Calls `handler(source, kind, data)` for each record that arrives; those of a run with Python's
/// lock taken once.
pub fn of_records(builder: UntypedBuilder, handler: Py<PyAny>) -> UntypedBuilder {
    begin_here();
    builder.run_handler(move |mut messages, _| {
        call(|py| {
            let handler = handler.bind(py);
            messages.try_for_each(|message| {
                if ENDS.get().is_some() {
                    return Ok(());
                }
                let data = PyBytes::new(py, message.bytes);
                let arguments = (message.source.0, message.kind, data);
                handler.call1(arguments).map(drop)
            })
        });
    })
}

/// Set once the interpreter is about to end: nothing is called any more.
static ENDS: OnceLock<()> = OnceLock::new();
/// Set where the interpreter ends while a handler runs.
static ABANDONED: OnceLock<()> = OnceLock::new();
/// How many calls are under way.
static CALLS: Mutex<usize> = Mutex::new(0);
/// Told when a call has ended.
static ENDED: Condvar = Condvar::new();

/// Whose threads make calls: a fork has none of these. Locked with Python's lock held alone, as it
/// is while Python forks.
static PROCESS: Mutex<u32> = Mutex::new(0);

thread_local! {
    static IN_HANDLER: Cell<bool> = const { Cell::new(false) };
}

/// Whether the caller is a handler.
pub fn is_in_handler() -> bool {
    IN_HANDLER.get()
}

/// Ends a step of a stream with a handler, or the stream, on a thread of its own: the engine calls
/// handlers on the thread that waits for that. Python's main thread is not for them, since Python
/// calls its handlers of signals there in the midst of ours, which what they raise would then fail.
pub fn end_apart(end: impl FnOnce() -> Result<(), trihop::Error> + Send) -> Result<(), Failure> {
    if is_in_handler() {
        return Ok(end()?); // the engine refuses it here, and only here knows why
    }
    thread::scope(|scope| {
        let waits = thread::Builder::new().name("trihop-wait".to_owned());
        let waits = waits.spawn_scoped(scope, end).map_err(PyErr::from)?;
        Ok(waits.join().unwrap_or_else(|panic| resume_unwind(panic))?)
    })
}

/// Whether a handler runs, and may never end, while the interpreter does.
pub fn is_abandoned() -> bool {
    ABANDONED.get().is_some()
}

/// A call of a handler that is under way.
struct Call;

impl Call {
    fn begin() -> Option<Self> {
        let mut calls = calls();
        if ENDS.get().is_some() {
            return None;
        }
        *calls += 1;
        IN_HANDLER.set(true);
        Some(Self)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        IN_HANDLER.set(false);
        *calls() -= 1;
        ENDED.notify_all();
    }
}

fn calls() -> MutexGuard<'static, usize> {
    CALLS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn process() -> MutexGuard<'static, u32> {
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Handlers are about to be called in this process.
fn begin_here() {
    let own = std::process::id();
    if std::mem::replace(&mut *process(), own) != own {
        *calls() = 0; // what was under way in the one that has forked
    }
}

/// Runs a call of Python's; what it raises ends the job. Of an interpreter that ends nothing is
/// called any more.
fn call(call: impl FnOnce(Python<'_>) -> PyResult<()>) {
    let Some(_under_way) = Call::begin() else {
        return;
    };
    let outcome = Python::try_attach(|py| {
        call(py).map_err(|raised| {
            let text = raised.to_string();
            keep_raised(raised);
            text
        })
    });
    if let Some(Err(text)) = outcome {
        // The exception says it all: no report of a panic beside it.
        resume_unwind(Box::new(text));
    }
}

/// Sees to it that no handler runs while the interpreter ends: that would end the threads that come
/// back to it, in the midst of whatever they do.
pub fn end_at_exit(py: Python<'_>) -> PyResult<()> {
    let end = |arguments: &Bound<'_, PyTuple>, _: Option<&Bound<'_, PyDict>>| -> PyResult<()> {
        let is_ours = *process() == std::process::id();
        match is_ours {
            true => arguments.py().detach(end_calls),
            false => Ok(()),
        }
    };
    let end = PyCFunction::new_closure(py, None, None, end)?;
    py.import("atexit")?.call_method1("register", (end,))?;
    Ok(())
}

/// Has no handler called any more, and waits for those that run, unless a signal raises.
fn end_calls() -> PyResult<()> {
    let mut calls = calls();
    let _ = ENDS.set(()); // exits run once
    while *calls > 0 {
        let waited = ENDED.wait_timeout(calls, SIGNALS_EVERY);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        if let Err(raised) = check_signals() {
            ABANDONED.get_or_init(|| ());
            return Err(raised);
        }
        calls = self::calls();
    }
    Ok(())
}

//! Handlers: callables of the program, called on the delivery thread of their stream.

use std::panic::resume_unwind;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use trihop::threaded::UntypedBuilder;

use crate::array::ItemType;
use crate::error::keep_raised;

/// Calls `handler(source, items)` for each run of items that arrives.
pub fn of_items(builder: UntypedBuilder, handler: Py<PyAny>, items: ItemType) -> UntypedBuilder {
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
    builder.run_handler(move |mut messages, _| {
        call(|py| {
            let handler = handler.bind(py);
            messages.try_for_each(|message| {
                let data = PyBytes::new(py, message.bytes);
                let arguments = (message.source.0, message.kind, data);
                handler.call1(arguments).map(drop)
            })
        });
    })
}

/// Runs a call of Python's; what it raises ends the job. Of an interpreter that ends nothing is
/// called any more.
fn call(call: impl FnOnce(Python<'_>) -> PyResult<()>) {
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

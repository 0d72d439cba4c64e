//! `trihop report`: results of bench, exchange, topo and partition, which these print as JSON, and
//! traces, on one page of HTML that needs nothing else.
//!
//! `input` reads objects, `page` puts sections together, `compared` shows rivals and `timeline`
//! traces, `chart` and `time` draw, `html` escapes.

mod chart;
mod compared;
mod html;
mod input;
mod page;
mod time;
mod timeline;

use std::io;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::output;
use input::Found;

/// Make one HTML page of results
///
/// Of what `bench`, `exchange`, `topo` and `partition` print with `--json`, in any order and
/// mixture, through `trihop run` too: curves by size, traffic between ranks and load of
/// representatives (of `exchange --detail`), records of partitions, and tables of everything. Of
/// what TRIHOP_TRACE has written, what each rank did when, and rates over time. Of what `make
/// compare` has measured, curves of all systems. The page needs no other file and no network.
#[derive(Debug, Clone, Args)]
pub struct ReportArgs {
    /// Files with a JSON object on each line, or traces; `-` is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// The page; an older one is replaced
    #[arg(short, long, value_name = "HTML")]
    output: PathBuf,
}

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A file cannot be read.
    #[error("reading {path}: {source}", path = output::path(path))]
    Read {
        /// Which one.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file with something else in it.
    #[error("{path}, line {line}: no JSON object of trihop ({why}); `--json` prints them", path = output::path(path))]
    Line {
        /// Which one.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// Why.
        why: String,
    },
    /// Files with nothing in them.
    #[error("no result in any of the files")]
    Nothing,
    /// The page cannot be written.
    #[error("writing {path}: {source}", path = output::path(path))]
    Write {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Writes the page.
///
/// # Errors
/// A file that cannot be read, or has something else in it; a page that cannot be written.
pub fn run(args: ReportArgs) -> Result<(), ReportError> {
    let mut results = Vec::new();
    let mut events = Vec::new();
    for path in &args.files {
        let text = read(path).map_err(|source| ReportError::Read {
            path: path.clone(),
            source,
        })?;
        match input::objects(path, &text)? {
            Found::Results(found) => results.extend(found),
            Found::Trace(found) => events.extend(found),
        }
    }
    if results.is_empty() && events.is_empty() {
        return Err(ReportError::Nothing);
    }
    std::fs::write(&args.output, page::of(&results, &events)).map_err(|source| ReportError::Write {
        path: args.output,
        source,
    })
}

fn read(path: &Path) -> io::Result<String> {
    match path == Path::new("-") {
        true => io::read_to_string(io::stdin()),
        false => std::fs::read_to_string(path),
    }
}

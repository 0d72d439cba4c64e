//! What stands in the place of Parquet in a build without it: nothing that could be had.

use std::convert::Infallible;
use std::io;
use std::path::Path;

use super::choice::Compression;
use super::error::{Error, Result, shown};
use super::groups::Group;
use super::inputs::InputFile;
use super::request::Request;
use super::route::{Router, Scratch};

/// What rank 0 would have found out.
#[derive(Debug)]
pub struct Looked {
    pub groups: Vec<Group>,
    pub names: Vec<Vec<u8>>,
}

/// What all files would have in common.
#[derive(Debug)]
pub struct Table(Infallible);

impl Table {
    /// Refuses.
    ///
    /// # Errors
    /// Always: the sentence that names the feature.
    pub fn look(files: &[InputFile], _request: &Request) -> Result<Looked> {
        let file = files.first().map_or(Path::new(""), |file| &file.path);
        Err(Error::Usage(format!(
            "{}: this build does not read Parquet; build trihop-cli with the cargo feature \
             `parquet`",
            shown(file)
        )))
    }

    /// As [`look`](Self::look).
    pub fn open(files: &[InputFile], request: &Request) -> Result<Self> {
        match Self::look(files, request) {
            Err(error) => Err(error),
            Ok(_) => Err(Error::Lost("Parquet is not in this build".to_owned())),
        }
    }

    pub fn source(&self, _file: &InputFile) -> Result<Source, String> {
        match self.0 {}
    }

    pub fn batches(&self, source: &Source, _group: &Group) -> Result<Batches, String> {
        match source.0 {}
    }
}

/// A file of the job.
#[derive(Debug)]
pub struct Source(Infallible);

/// The rows of a row group.
#[derive(Debug)]
pub struct Batches(Infallible);

impl Batches {
    pub fn next(&mut self) -> Result<Option<usize>, String> {
        match self.0 {}
    }

    pub fn route<'s>(
        &self,
        _row: usize,
        _file: usize,
        _router: &Router,
        _scratch: &'s mut Scratch,
    ) -> Result<(u32, u32, &'s [u8]), String> {
        match self.0 {}
    }

    pub fn row(&self, _row: usize) -> Row<'_> {
        match self.0 {}
    }
}

/// A row on its way.
#[derive(Clone, Copy, Debug)]
pub struct Row<'r> {
    pub hash: u64,
    pub bytes: &'r [u8],
}

/// Bytes that are no row.
#[derive(Clone, Copy, Debug)]
pub struct Unfit;

impl<'r> Row<'r> {
    pub fn write(self, _to: &mut Vec<u8>) {}

    pub fn parse(_record: &'r [u8]) -> Result<Self, Unfit> {
        Err(Unfit)
    }
}

/// A part in the making.
#[derive(Debug)]
pub struct Writer(Infallible);

impl Writer {
    pub fn new(table: &Table, _compression: Compression) -> io::Result<Self> {
        match table.0 {}
    }

    pub fn group(&mut self, _table: &Table, _rows: &[u8]) -> io::Result<Vec<u8>> {
        match self.0 {}
    }

    pub fn end(self) -> io::Result<Vec<u8>> {
        match self.0 {}
    }
}

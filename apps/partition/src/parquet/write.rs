//! Makes a part: row groups of rows, then the footer.

use std::fmt;
use std::io;
use std::sync::Arc;

use arrow_array::RecordBatch;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;

use super::super::choice::Compression;
use super::super::frame::framed;
use super::footer::guarded;
use super::table::Table;

/// Rows that are made columns of at a time.
const BATCH_ROWS: usize = 8192;

/// A part in the making. What is to be written is handed out, so that nothing here needs an open
/// file.
pub struct Writer {
    writer: ArrowWriter<Vec<u8>>,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups = self.writer.flushed_row_groups().len();
        f.debug_struct("Writer").field("groups", &groups).finish()
    }
}

impl Writer {
    /// An empty part.
    ///
    /// # Errors
    /// A schema that cannot be written.
    pub fn new(table: &Table, compression: Compression) -> io::Result<Self> {
        let writer = guarded(|| {
            let options = ArrowWriterOptions::new()
                .with_properties(table.properties(compression))
                .with_parquet_schema(table.parquet_schema()?)
                .with_skip_arrow_metadata(true);
            ArrowWriter::try_new_with_options(Vec::new(), Arc::clone(table.schema()), options)
        });
        Ok(Self {
            writer: writer.map_err(io::Error::other)?,
        })
    }

    /// Makes a row group of `rows`, each behind its length; returns bytes for the end of the file.
    ///
    /// # Errors
    /// Rows that cannot be written.
    pub fn group(&mut self, table: &Table, rows: &[u8]) -> io::Result<Vec<u8>> {
        let parser = table.rows.parser();
        let mut rows = framed(rows).peekable();
        while rows.peek().is_some() {
            let batch = rows.by_ref().take(BATCH_ROWS).map(|row| parser.parse(row));
            let writer = &mut self.writer;
            let written = guarded(|| {
                let columns = table.rows.convert_rows(batch)?;
                let batch = RecordBatch::try_new(Arc::clone(table.schema()), columns)?;
                writer.write(&batch)
            });
            written.map_err(io::Error::other)?;
        }
        let writer = &mut self.writer;
        guarded(|| writer.flush()).map_err(io::Error::other)?;
        self.writer.sync()?;
        Ok(std::mem::take(self.writer.inner_mut()))
    }

    /// Ends the part; returns bytes for the end of the file.
    ///
    /// # Errors
    /// A footer that cannot be written.
    pub fn end(self) -> io::Result<Vec<u8>> {
        guarded(|| self.writer.into_inner()).map_err(io::Error::other)
    }
}

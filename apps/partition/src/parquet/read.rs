//! The rows of a row group, batch by batch.

use std::fs::File;

use arrow_row::Rows;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};

use super::super::groups::Group;
use super::super::inputs::InputFile;
use super::super::order;
use super::super::route::{Router, Scratch};
use super::footer::{self, guarded};
use super::key::Texts;
use super::row::Row;
use super::table::Table;

/// Bytes of a batch before they were compressed, about.
const BATCH_BYTES: u64 = 2 << 20;
/// Most rows of a batch.
const BATCH_ROWS: u64 = 8192;

/// A file of the job, open.
#[derive(Debug)]
pub struct Source {
    file: File,
    footer: ArrowReaderMetadata,
}

/// A row group that is being read.
pub struct Batches<'t> {
    table: &'t Table,
    reader: ParquetRecordBatchReader,
    /// Rows before the batch in the file.
    before: u64,
    /// Of the batch.
    count: u64,
    rows: Option<Rows>,
    orders: Option<Rows>,
    keys: Vec<Texts>,
}

impl Table {
    /// Opens a file.
    ///
    /// # Errors
    /// A sentence about one that cannot be read, or is another than rank 0 has seen.
    pub fn source(&self, file: &InputFile) -> Result<Source, String> {
        let (open, footer) = footer::open(&file.path)?;
        self.check(&footer)?;
        let size = open
            .metadata()
            .map_err(|error| format!("cannot stat: {error}"))?
            .len();
        match size == file.bytes {
            true => Ok(Source { file: open, footer }),
            false => Err(changed(&format!(
                "{size} bytes here and had {}",
                file.bytes
            ))),
        }
    }

    /// Begins to read a row group.
    ///
    /// # Errors
    /// A sentence about what cannot be read.
    pub fn batches(&self, source: &Source, group: &Group) -> Result<Batches<'_>, String> {
        let found = source.footer.metadata().row_groups().get(group.number);
        if found.map(|found| found.num_rows()) != i64::try_from(group.rows).ok() {
            return Err(changed("other row groups here than"));
        }
        let open = source
            .file
            .try_clone()
            .map_err(|error| format!("cannot open: {error}"))?;
        let row_bytes = (group.plain_bytes / group.rows.max(1)).max(1);
        let batch_rows = (BATCH_BYTES / row_bytes).clamp(1, BATCH_ROWS);
        let reader = guarded(|| {
            ParquetRecordBatchReaderBuilder::new_with_metadata(open, source.footer.clone())
                .with_row_groups(vec![group.number])
                .with_batch_size(batch_rows as usize)
                .build()
        })
        .map_err(|why| format!("cannot read row group {}: {why}", group.number))?;
        Ok(Batches {
            table: self,
            reader,
            before: group.first_row,
            count: 0,
            rows: None,
            orders: None,
            keys: Vec::new(),
        })
    }
}

fn changed(how: &str) -> String {
    format!(
        "the file has {how} on rank 0 at the start; it must be the same on all nodes and not change"
    )
}

impl Batches<'_> {
    /// Reads the next batch; returns how many rows it has, `None` behind the last.
    ///
    /// # Errors
    /// A sentence about what cannot be read.
    pub fn next(&mut self) -> Result<Option<usize>, String> {
        self.before += self.count;
        self.count = 0;
        let reader = &mut self.reader;
        let broken = |why| format!("cannot read behind row {}: {why}", self.before);
        let Some(batch) = guarded(|| reader.next().transpose()).map_err(broken)? else {
            return Ok(None);
        };
        let columns = batch.columns();
        let broken = |why| format!("cannot take the rows behind row {}: {why}", self.before);
        self.rows = Some(guarded(|| self.table.rows.convert_columns(columns)).map_err(broken)?);
        if !self.table.sort.is_empty() {
            let sorted: Vec<_> = self
                .table
                .sort
                .iter()
                .map(|&at| columns[at].clone())
                .collect();
            let orders = guarded(|| self.table.order.convert_columns(&sorted));
            self.orders = Some(orders.map_err(broken)?);
        }
        let keys = self.table.by.iter().map(|&at| Texts::of(&columns[at]));
        self.keys = keys.collect::<Result<_, _>>()?;
        self.count = batch.num_rows() as u64;
        Ok(Some(batch.num_rows()))
    }

    /// Where row number `row` of the batch goes: rank and kind, and the label before it.
    ///
    /// # Errors
    /// A sentence about a row that cannot be taken.
    pub fn route<'s>(
        &self,
        row: usize,
        file: usize,
        router: &Router,
        scratch: &'s mut Scratch,
    ) -> Result<(u32, u32, &'s [u8]), String> {
        let place = self.before + row as u64;
        let order = |order: &mut Vec<u8>| {
            if let Some(orders) = &self.orders {
                order.extend_from_slice(orders.row(row).data());
            }
            order::push_place(order, file, place);
        };
        let length = size_of::<u64>() + self.row(row).bytes.len();
        router
            .route_row(
                &self.keys,
                length,
                scratch,
                |key, to| key.push(row, to),
                order,
            )
            .map_err(|why| format!("row {}: {why}", place + 1))
    }

    /// Row number `row` of the batch.
    pub fn row(&self, row: usize) -> Row<'_> {
        Row::of(self.rows.as_ref().map_or(&[], |rows| rows.row(row).data()))
    }
}

//! What a Parquet file says of itself.

use std::any::Any;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use arrow_schema::ArrowError;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::errors::ParquetError;
use parquet::schema::types::{ColumnDescriptor, SchemaDescriptor};

/// Calls into the readers of Parquet, whose checks of hostile bytes include panics: such a panic
/// becomes a sentence, as an error does.
pub fn guarded<T, E: Into<Refused>>(work: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done.map_err(|error| error.into().0),
        Err(panic) => Err(format!("its bytes make no sense: {}", said(&*panic))),
    }
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no reason was given")
}

/// Why the readers refuse a file.
pub struct Refused(String);

impl From<ParquetError> for Refused {
    fn from(error: ParquetError) -> Self {
        Self(error.to_string())
    }
}

impl From<ArrowError> for Refused {
    fn from(error: ArrowError) -> Self {
        Self(error.to_string())
    }
}

/// Opens a file and reads its footer. Types are those of Parquet alone: what a writer has noted of
/// its own types beside them is passed on as it is, and decides nothing.
///
/// # Errors
/// A sentence.
pub fn open(path: &Path) -> Result<(File, ArrowReaderMetadata), String> {
    let file = File::open(path).map_err(|error| format!("cannot open: {error}"))?;
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let footer = guarded(|| ArrowReaderMetadata::load(&file, options))
        .map_err(|why| format!("no Parquet file, or a broken one: {why}"))?;
    Ok((file, footer))
}

/// The first column of `other` that is not as in `schema`, the one of the file `first`: a sentence.
pub fn difference(
    schema: &SchemaDescriptor,
    other: &SchemaDescriptor,
    first: &str,
) -> Option<String> {
    for (ours, theirs) in schema.columns().iter().zip(other.columns()) {
        let name = theirs.path().string();
        if ours.path() != theirs.path() {
            let wanted = ours.path().string();
            return Some(format!(
                "the schema differs: column `{name}` stands where {first} has `{wanted}`"
            ));
        }
        let (ours, theirs) = (told(ours), told(theirs));
        if ours != theirs {
            return Some(format!(
                "the schema differs: column `{name}` is {theirs}, in {first} it is {ours}"
            ));
        }
    }
    let (ours, theirs) = (schema.columns(), other.columns());
    let (column, which) = match (ours.get(theirs.len()), theirs.get(ours.len())) {
        (Some(column), _) => (column, "missing"),
        (_, Some(column)) => (column, "additional"),
        (None, None) => return None,
    };
    let name = column.path().string();
    Some(format!(
        "the schema differs from that of {first}: column `{name}` is {which}"
    ))
}

/// The type of a column, and how often its values may be there.
fn told(column: &ColumnDescriptor) -> String {
    let physical = column.physical_type();
    let mut text = match column.type_length() {
        length if length > 0 => format!("{physical}({length})"),
        _ => physical.to_string(),
    };
    if let Some(logical) = column.logical_type_ref() {
        text += &format!(" {logical:?}");
    } else if column.converted_type() != parquet::basic::ConvertedType::NONE {
        text += &format!(" {}", column.converted_type());
        if column.type_precision() > 0 {
            text += &format!("({},{})", column.type_precision(), column.type_scale());
        }
    }
    // One level of definition for each optional or repeated step on the way.
    match (column.max_rep_level(), column.max_def_level()) {
        (0, 0) => text + " required",
        (0, 1) => text + " optional",
        (repeated, defined) => format!("{text} (levels {repeated}, {defined})"),
    }
}

//! What all files of a job have in common: their columns, and what is done with them.

use std::path::Path;
use std::sync::Arc;

use arrow_row::{RowConverter, SortField};
use arrow_schema::SchemaRef;
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use parquet::basic::{
    Compression as Codec, ConvertedType, GzipLevel, LogicalType, Repetition, Type as Physical,
    ZstdLevel,
};
use parquet::errors::ParquetError;
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder};
use parquet::schema::types::{ColumnDescriptor, SchemaDescriptor, Type, TypePtr};

use super::super::choice::Compression;
use super::super::error::{Result, shown};
use super::super::groups::Group;
use super::super::header::Header;
use super::super::inputs::{InputFile, Way, of_file};
use super::super::request::Request;
use super::footer;
use super::key::is_single;

/// Rows of a group, or bytes of them before they are compressed, so that sums of all groups of a
/// file pass no 64 bits.
const MOST_OF_A_GROUP: u64 = 1 << 48;

/// What rank 0 finds out.
#[derive(Debug)]
pub struct Looked {
    /// All row groups, in order.
    pub groups: Vec<Group>,
    /// Names of the columns that are the key.
    pub names: Vec<Vec<u8>>,
}

/// What all files have in common.
#[derive(Debug)]
pub struct Table {
    /// The file whose footer it is from, for sentences.
    first: String,
    footer: ArrowReaderMetadata,
    /// Numbers of the key's columns.
    pub by: Vec<usize>,
    /// Numbers of the columns that rows are sorted by.
    pub sort: Vec<usize>,
    /// Makes rows of columns, and columns of rows.
    pub rows: RowConverter,
    /// Makes what rows are sorted by.
    pub order: RowConverter,
}

impl Table {
    /// Looks at all files.
    ///
    /// # Errors
    /// A file that is no Parquet file, or has other columns than the first; a key that no column
    /// has, or that is not a single value.
    pub fn look(files: &[InputFile], request: &Request) -> Result<Looked> {
        for (number, file) in files.iter().enumerate() {
            if file.way != Way::Groups {
                let why = "Parquet is read from files as they are on the disk, not from a pipe, and not compressed as a whole";
                return Err(of_file(&file.path, number, why.to_owned()));
            }
        }
        let table = Self::open(files, request)?;
        let mut groups = Vec::new();
        for (number, file) in files.iter().enumerate() {
            let wrong = |why: String| of_file(&file.path, number, why);
            let (_, footer) = footer::open(&file.path).map_err(wrong)?;
            table.check(&footer).map_err(wrong)?;
            let mut first_row = 0;
            for (place, group) in footer.metadata().row_groups().iter().enumerate() {
                let (Ok(rows), Ok(bytes), Ok(plain_bytes)) = (
                    u64::try_from(group.num_rows()),
                    u64::try_from(group.compressed_size()),
                    u64::try_from(group.total_byte_size()),
                ) else {
                    return Err(wrong(format!(
                        "row group {place} has a negative size: the footer is broken"
                    )));
                };
                if bytes > file.bytes || plain_bytes.max(rows) > MOST_OF_A_GROUP {
                    let length = file.bytes;
                    return Err(wrong(format!(
                        "row group {place} says that it has {rows} rows and {bytes} bytes, in a file of {length}: \
                         the footer is broken"
                    )));
                }
                groups.push(Group {
                    file: number,
                    number: place,
                    first_row,
                    rows,
                    bytes,
                    plain_bytes,
                });
                first_row = first_row.saturating_add(rows);
            }
        }
        let schema = table.schema();
        let name = |&column: &usize| schema.field(column).name().clone().into_bytes();
        let names = table.by.iter().map(name).collect();
        Ok(Looked { groups, names })
    }

    /// Reads the footer of the first file.
    ///
    /// # Errors
    /// As [`look`](Self::look), for this file.
    pub fn open(files: &[InputFile], request: &Request) -> Result<Self> {
        let first = files.first().map_or(Path::new(""), |file| &file.path);
        let wrong = |why: String| of_file(first, 0, why);
        let (_, footer) = footer::open(first).map_err(wrong)?;
        footer
            .parquet_schema()
            .columns()
            .iter()
            .try_for_each(|column| match untaken(column) {
                Some(why) => Err(wrong(format!("column `{}` {why}", column.path().string()))),
                None => Ok(()),
            })?;
        let schema = footer.schema();
        let header = Header {
            names: schema
                .fields()
                .iter()
                .map(|field| field.name().clone().into_bytes())
                .collect(),
            line: Vec::new(),
        };
        let columns = |option: &str, keys: &[String]| -> Result<Vec<usize>> {
            let column = |key: &String| {
                let column = header.column(key)?;
                let kind = schema.field(column).data_type();
                match is_single(kind) {
                    true => Ok(column),
                    false => Err(format!(
                        "column `{key}` is {kind}: columns of single values are taken"
                    )),
                }
            };
            let found: Result<Vec<usize>, String> = keys.iter().map(column).collect();
            found.map_err(|why| wrong(format!("{option}: {why}")))
        };
        let (by, sort) = (
            columns("--by", &request.by.0)?,
            columns("--sort", &request.sort.0)?,
        );
        let converter = |columns: &mut dyn Iterator<Item = usize>| {
            let field = |column: usize| SortField::new(schema.field(column).data_type().clone());
            let fields: Vec<SortField> = columns.map(field).collect();
            RowConverter::new(fields)
                .map_err(|error| wrong(format!("its columns cannot be taken: {error}")))
        };
        let (rows, order) = (
            converter(&mut (0..schema.fields().len()))?,
            converter(&mut sort.iter().copied())?,
        );
        Ok(Self {
            first: shown(first).to_string(),
            by,
            sort,
            rows,
            order,
            footer,
        })
    }

    /// The columns.
    pub fn schema(&self) -> &SchemaRef {
        self.footer.schema()
    }

    /// Whether a file has the same columns.
    ///
    /// # Errors
    /// A sentence about the first that is another.
    pub fn check(&self, footer: &ArrowReaderMetadata) -> Result<(), String> {
        let (ours, theirs) = (self.footer.parquet_schema(), footer.parquet_schema());
        match footer::difference(ours, theirs, &self.first) {
            Some(why) => Err(why),
            None if self.schema().fields() != footer.schema().fields() => Err(format!(
                "the schema differs from that of {}: columns of one name are nested otherwise",
                self.first
            )),
            None => Ok(()),
        }
    }

    /// The columns of parts: those of the first file, but for decimals of any length, which nobody
    /// writes any more.
    ///
    /// # Errors
    /// A schema that cannot be built anew.
    pub fn parquet_schema(&self) -> Result<SchemaDescriptor, ParquetError> {
        let root = self.footer.parquet_schema().root_schema();
        Ok(SchemaDescriptor::new(writable(root)?))
    }

    /// How parts are written: each column compressed as in the first file, unless told otherwise,
    /// and whatever that file's writer has noted.
    pub fn properties(&self, compression: Compression) -> WriterProperties {
        let metadata = self.footer.metadata();
        let noted = metadata.file_metadata().key_value_metadata().cloned();
        let mut properties = WriterProperties::builder().set_key_value_metadata(noted);
        properties = match compression {
            Compression::Zstd => properties.set_compression(Codec::ZSTD(ZstdLevel::default())),
            Compression::Gzip => properties.set_compression(Codec::GZIP(GzipLevel::default())),
            Compression::None => match metadata.row_groups().first() {
                Some(group) => group.columns().iter().fold(
                    properties,
                    |properties: WriterPropertiesBuilder, column| {
                        let path = column.column_path().clone();
                        properties.set_column_compression(path, column.compression())
                    },
                ),
                None => properties.set_compression(Codec::SNAPPY),
            },
        };
        properties.build()
    }
}

/// Why a column cannot be carried along: something of its values would be lost on the way.
fn untaken(column: &ColumnDescriptor) -> Option<&'static str> {
    match (column.physical_type(), column.converted_type()) {
        (Physical::INT96, _) => {
            Some("is INT96, whose far days have no timestamp: write it as a timestamp in INT64")
        }
        (_, ConvertedType::INTERVAL) => {
            Some("is an INTERVAL, whose months would be lost: write it as numbers")
        }
        _ => None,
    }
}

/// A type with decimals of any length replaced by those of one.
fn writable(kind: &Type) -> Result<TypePtr, ParquetError> {
    let info = kind.get_basic_info();
    let id = info.has_id().then(|| info.id());
    if let Type::GroupType { fields, .. } = kind {
        let fields: Result<Vec<TypePtr>, ParquetError> =
            fields.iter().map(|field| writable(field)).collect();
        let mut group = Type::group_type_builder(info.name())
            .with_converted_type(info.converted_type())
            .with_logical_type(info.logical_type_ref().cloned())
            .with_fields(fields?)
            .with_id(id);
        if info.has_repetition() {
            group = group.with_repetition(info.repetition());
        }
        return group.build().map(Arc::new);
    }
    let is_decimal = info.converted_type() == ConvertedType::DECIMAL
        || matches!(info.logical_type_ref(), Some(LogicalType::Decimal { .. }));
    let builder = |physical: Physical| {
        let repetition = match info.has_repetition() {
            true => info.repetition(),
            false => Repetition::REQUIRED,
        };
        Type::primitive_type_builder(info.name(), physical)
            .with_repetition(repetition)
            .with_id(id)
    };
    match kind.get_physical_type() {
        Physical::BYTE_ARRAY if is_decimal => {
            let Type::PrimitiveType {
                precision, scale, ..
            } = *kind
            else {
                return Ok(Arc::new(kind.clone()));
            };
            // Bits of the largest number of so many digits, and its sign.
            let bits = f64::from(precision) * std::f64::consts::LOG2_10 + 1.0;
            builder(Physical::FIXED_LEN_BYTE_ARRAY)
                .with_length((bits / 8.0).ceil() as i32)
                .with_converted_type(ConvertedType::DECIMAL)
                .with_logical_type(Some(LogicalType::decimal(scale, precision)))
                .with_precision(precision)
                .with_scale(scale)
                .build()
                .map(Arc::new)
        }
        _ => Ok(Arc::new(kind.clone())),
    }
}

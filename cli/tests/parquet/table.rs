//! Tables of every type of key, made row by row from values whose texts are written beside them.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::builder::{Int32Builder, ListBuilder, MapBuilder, StringBuilder};
use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, FixedSizeBinaryArray,
    Float32Array, Float64Array, Int8Array, Int16Array, Int32Array, Int64Array, RecordBatch,
    StringArray, StructArray, Time64MicrosecondArray, TimestampMicrosecondArray,
    TimestampMillisecondArray, UInt8Array, UInt32Array, UInt64Array,
};
use arrow_schema::{DataType, Field};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::properties::WriterProperties;

/// Number of a row, by which a test finds it again.
pub const ID: &str = "id";

/// Values of a column, each with the text that it is as a key; `None` for a null.
type Values<T> = &'static [(Option<T>, &'static str)];

const FLAGS: Values<bool> = &[(Some(true), "true"), (None, ""), (Some(false), "false")];
const SMALL: Values<i8> = &[
    (Some(-128), "-128"),
    (Some(0), "0"),
    (Some(127), "127"),
    (None, ""),
];
const SHORT: Values<i16> = &[(Some(-32_768), "-32768"), (Some(9), "9"), (Some(10), "10")];
const LONG: Values<i64> = &[
    (Some(i64::MIN), "-9223372036854775808"),
    (Some(7), "7"),
    (None, ""),
];
const BYTES: Values<u8> = &[(Some(255), "255"), (Some(1), "1")];
const WORDS: Values<u32> = &[(Some(u32::MAX), "4294967295"), (Some(3), "3"), (None, "")];
const HUGE: Values<u64> = &[(Some(u64::MAX), "18446744073709551615"), (Some(12), "12")];
const FLOATS: Values<f32> = &[
    (Some(0.1), "0.1"),
    (Some(-0.0), "0.0"),
    (Some(2.5e30), "2.5e30"),
];
const DOUBLES: Values<f64> = &[
    (Some(0.1), "0.1"),
    (Some(0.0), "0.0"),
    (Some(-0.0), "0.0"),
    (Some(f64::NAN), "NaN"),
    (Some(1e300), "1e300"),
    (None, ""),
];
const TEXTS: Values<&str> = &[
    (Some(""), ""),
    (Some("DE"), "DE"),
    (Some("Übung, \"a/b\" = 50%"), "Übung, \"a/b\" = 50%"),
    (
        Some("a text that is longer than a block of the rows that travel"),
        "a text that is longer than a block of the rows that travel",
    ),
    (None, ""),
];
const DECIMALS: Values<i128> = &[(Some(-5), "-0.05"), (Some(123_456), "1234.56"), (None, "")];
const DAYS: Values<i32> = &[
    (Some(0), "1970-01-01"),
    (Some(19_782), "2024-02-29"),
    (Some(-1), "1969-12-31"),
    (None, ""),
];
const MICROS: Values<i64> = &[
    (Some(1_709_210_096_500_000), "2024-02-29 12:34:56.5"),
    (Some(-1), "1969-12-31 23:59:59.999999"),
    (Some(0), "1970-01-01 00:00:00"),
];
const MILLIS: Values<i64> = &[
    (Some(1_709_210_096_007), "2024-02-29 12:34:56.007"),
    (None, ""),
];
const TIMES: Values<i64> = &[
    (Some(86_399_999_999), "23:59:59.999999"),
    (Some(0), "00:00:00"),
];

/// Which of a column's values a row has: neighbours differ, and columns are not alike.
fn pick<T: Copy>(values: Values<T>, column: u64, id: u64) -> (Option<T>, &'static str) {
    let mixed =
        (id + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15 ^ column.wrapping_mul(0xD6E8_FEB8_6659_FD93));
    values[(mixed >> 33) as usize % values.len()]
}

/// Columns of rows, and the texts of all that can be keys.
#[derive(Default)]
pub struct Table {
    columns: Vec<(&'static str, ArrayRef, bool)>,
    /// By the name of a column and the number of a row.
    pub texts: BTreeMap<(&'static str, u64), String>,
    ids: Vec<u64>,
}

impl Table {
    /// The rows of these numbers.
    pub fn of(ids: std::ops::Range<u64>) -> Self {
        let mut table = Self {
            ids: ids.collect(),
            ..Self::default()
        };
        let ids: Vec<i64> = table.ids.iter().map(|&id| id as i64).collect();
        for id in &table.ids {
            table.texts.insert((ID, *id), id.to_string());
        }
        table
            .columns
            .push((ID, Arc::new(Int64Array::from(ids)), false));
        table.add("flag", FLAGS, |values| Arc::new(BooleanArray::from(values)));
        table.add("i8", SMALL, |values| Arc::new(Int8Array::from(values)));
        table.add("i16", SHORT, |values| Arc::new(Int16Array::from(values)));
        table.add("i64", LONG, |values| Arc::new(Int64Array::from(values)));
        table.add("u8", BYTES, |values| Arc::new(UInt8Array::from(values)));
        table.add("u32", WORDS, |values| Arc::new(UInt32Array::from(values)));
        table.add("u64", HUGE, |values| Arc::new(UInt64Array::from(values)));
        table.add("f32", FLOATS, |values| Arc::new(Float32Array::from(values)));
        table.add("f64", DOUBLES, |values| {
            Arc::new(Float64Array::from(values))
        });
        table.add("text", TEXTS, |values| Arc::new(StringArray::from(values)));
        table.add("binary", TEXTS, |values| {
            Arc::new(
                values
                    .iter()
                    .map(|text| text.map(str::as_bytes))
                    .collect::<BinaryArray>(),
            )
        });
        table.add("decimal", DECIMALS, |values| {
            Arc::new(
                Decimal128Array::from(values)
                    .with_precision_and_scale(12, 2)
                    .unwrap(),
            )
        });
        table.add("day", DAYS, |values| Arc::new(Date32Array::from(values)));
        table.add("micros", MICROS, |values| {
            Arc::new(TimestampMicrosecondArray::from(values))
        });
        table.add("millis", MILLIS, |values| {
            Arc::new(TimestampMillisecondArray::from(values).with_timezone("UTC"))
        });
        table.add("time", TIMES, |values| {
            Arc::new(Time64MicrosecondArray::from(values))
        });
        table.nested();
        table
    }

    fn add<T: Copy>(
        &mut self,
        name: &'static str,
        values: Values<T>,
        array: impl Fn(Vec<Option<T>>) -> ArrayRef,
    ) {
        let column = self.columns.len() as u64;
        let picked: Vec<_> = self
            .ids
            .iter()
            .map(|&id| pick(values, column, id))
            .collect();
        for (id, (_, text)) in self.ids.iter().zip(&picked) {
            self.texts.insert((name, *id), (*text).to_owned());
        }
        self.columns.push((
            name,
            array(picked.into_iter().map(|(value, _)| value).collect()),
            true,
        ));
    }

    /// What cannot be a key: lists, structures, maps, and bytes of one length that can.
    fn nested(&mut self) {
        let fixed = self.ids.iter().map(|id| (*id as u32 % 5).to_be_bytes());
        for id in &self.ids {
            let text = String::from_utf8_lossy(&(*id as u32 % 5).to_be_bytes()).into_owned();
            self.texts.insert(("fixed", *id), text);
        }
        let fixed =
            FixedSizeBinaryArray::try_from_sparse_iter_with_size(fixed.map(Some), 4).unwrap();
        self.columns.push(("fixed", Arc::new(fixed), true));
        let mut lists = ListBuilder::new(Int32Builder::new());
        let mut maps = MapBuilder::new(None, StringBuilder::new(), Int32Builder::new());
        for id in &self.ids {
            for item in 0..id % 4 {
                lists
                    .values()
                    .append_option((item != 2).then_some(item as i32));
                maps.keys().append_value(format!("{id}-{item}"));
                maps.values()
                    .append_option((item != 1).then_some(*id as i32));
            }
            lists.append(id % 7 != 0);
            maps.append(true).unwrap();
        }
        self.columns.push(("list", Arc::new(lists.finish()), true));
        self.columns.push(("map", Arc::new(maps.finish()), true));
        let (x, y) = (
            Arc::new(
                self.ids
                    .iter()
                    .map(|id| (id % 3 != 0).then_some(*id as i32))
                    .collect::<Int32Array>(),
            ),
            Arc::new(
                self.ids
                    .iter()
                    .map(|id| Some(format!("y{id}")))
                    .collect::<StringArray>(),
            ),
        );
        let pair = StructArray::from(vec![
            (
                Arc::new(Field::new("x", DataType::Int32, true)),
                x as ArrayRef,
            ),
            (
                Arc::new(Field::new("y", DataType::Utf8, true)),
                y as ArrayRef,
            ),
        ]);
        self.columns.push(("pair", Arc::new(pair), true));
    }

    pub fn batch(&self) -> RecordBatch {
        RecordBatch::try_from_iter_with_nullable(
            self.columns
                .iter()
                .map(|(name, column, nullable)| (*name, Arc::clone(column), *nullable)),
        )
        .unwrap()
    }
}

/// How a file is written.
pub fn properties(group_rows: usize) -> WriterProperties {
    WriterProperties::builder()
        .set_max_row_group_row_count(Some(group_rows))
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(1).unwrap()))
        .set_column_compression("text".into(), Compression::SNAPPY)
        .set_column_compression("day".into(), Compression::UNCOMPRESSED)
        .build()
}

pub fn write(dir: &Path, name: &str, batch: &RecordBatch, properties: WriterProperties) -> PathBuf {
    let path = dir.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let file = File::create(&path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
    path
}

/// A file's footer, and its rows, each as its number and all its values printed.
pub fn read(path: &Path) -> (Arc<ParquetMetaData>, Vec<(u64, String)>) {
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let file = File::open(path).unwrap();
    let builder = ParquetRecordBatchReaderBuilder::try_new_with_options(file, options).unwrap();
    let footer = Arc::clone(builder.metadata());
    let mut rows = Vec::new();
    for batch in builder.build().unwrap() {
        let batch = batch.unwrap();
        let ids = batch.column_by_name(ID).unwrap();
        let ids = ids.as_any().downcast_ref::<Int64Array>().unwrap();
        for row in 0..batch.num_rows() {
            let printed = format!("{:?}", batch.slice(row, 1).columns());
            rows.push((ids.value(row) as u64, printed));
        }
    }
    (footer, rows)
}

//! Types that Parquet has given up, and are still met.

use std::fs::File;
use std::sync::Arc;

use parquet::basic::Type;
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use tempfile::TempDir;

use super::launched::run;
use super::start::partition;
use super::table::read;
use super::{all_rows, part_of};

const SCHEMA: &str = "message old {
    required int64 id;
    required binary price (DECIMAL(10, 2));
}";

#[test]
fn decimals_of_any_length_become_those_of_one() {
    let dir = TempDir::new().unwrap();
    let input = dir.path().join("old.parquet");
    let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
    let properties = Arc::new(WriterProperties::builder().build());
    let file = File::create(&input).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, properties).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let ids = column.typed::<Int64Type>();
    ids.write_batch(&[0, 1, 2], None, None).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let prices = [vec![0x04, 0xD2], vec![0xFF], vec![0x00]].map(ByteArray::from);
    let decimals = column.typed::<ByteArrayType>();
    decimals.write_batch(&prices, None, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();

    let out = dir.path().join("out");
    let mut command = partition(2, 1);
    command.args(["--by", "price", "--parts", "3", "--out"]);
    command.arg(&out).arg(&input);
    run(command).succeeded();
    let texts = ["12.34", "-0.01", "0.00"];
    let parts: Vec<_> = (0..3)
        .map(|part| out.join(format!("part-{part:05}.parquet")))
        .collect();
    for (number, part) in parts.iter().enumerate() {
        let (footer, rows) = read(part);
        let columns = footer.file_metadata().schema_descr().columns();
        let types: Vec<_> = columns
            .iter()
            .map(|column| column.physical_type())
            .collect();
        assert_eq!(types, [Type::INT64, Type::FIXED_LEN_BYTE_ARRAY]);
        for (id, row) in rows {
            let text = texts[id as usize].as_bytes();
            assert_eq!(part_of(text, 3), number as u32, "{row}");
        }
    }
    assert_eq!(all_rows(&parts), all_rows(&[input]));
}

/// What would come out as another value is told, and not carried along.
#[test]
fn columns_that_would_lose_something_are_refused() {
    let dir = TempDir::new().unwrap();
    let input = dir.path().join("old.parquet");
    for (column, expected) in [
        ("optional int96 at;", "old.parquet: column `at` is INT96"),
        (
            "required group deep { optional fixed_len_byte_array(12) since (INTERVAL); }",
            "old.parquet: column `deep.since` is an INTERVAL",
        ),
    ] {
        let schema = format!("message old {{ required int64 id; {column} }}");
        let schema = Arc::new(parse_message_type(&schema).unwrap());
        let file = File::create(&input).unwrap();
        let properties = Arc::new(WriterProperties::builder().build());
        let writer = SerializedFileWriter::new(file, schema, properties).unwrap();
        writer.close().unwrap();
        let mut command = partition(2, 1);
        command.args(["--by", "id", "--out"]);
        command.arg(dir.path().join("out")).arg(&input);
        let told = run(command);
        assert_eq!(told.status, 1, "{}", told.stderr);
        assert!(told.stderr.contains(expected), "{}", told.stderr);
    }
}

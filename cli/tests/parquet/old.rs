//! Types that Parquet has given up, and are still met.

use std::fs::File;
use std::sync::Arc;

use parquet::basic::Type;
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type, Int96, Int96Type};
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
    optional int96 at;
    required binary price (DECIMAL(10, 2));
}";

#[test]
fn types_that_are_given_up_become_their_successors() {
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
    // A day is counted from noon of the first one of the Julian calendar, and has nanoseconds.
    let at = [2_440_588, 2_460_370].map(|day| {
        let mut at = Int96::new();
        at.set_data(7, 0, day);
        at
    });
    let times = column.typed::<Int96Type>();
    times.write_batch(&at, Some(&[1, 0, 1]), None).unwrap();
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
    command.args(["--by", "price,at", "--parts", "3", "--out"]);
    command.arg(&out).arg(&input);
    run(command).succeeded();
    let texts = [
        "12.34\x1F1970-01-01 00:00:00.000000007",
        "-0.01\x1F",
        "0.00\x1F2024-02-29 00:00:00.000000007",
    ];
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
        assert_eq!(
            types,
            [Type::INT64, Type::INT64, Type::FIXED_LEN_BYTE_ARRAY]
        );
        for (id, row) in rows {
            let text = texts[id as usize].as_bytes();
            assert_eq!(part_of(text, 3), number as u32, "{row}");
        }
    }
    assert_eq!(all_rows(&parts), all_rows(&[input]));
}

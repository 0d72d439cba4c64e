//! The splitting core against a parse of everything by one process that looks at one byte at a
//! time.

use proptest::prelude::*;

use super::choice::OnBadLine;
use super::cut::Place;
use super::cut::{Blocks, Halt, cut};
use super::header::Header;
use super::json;
use super::ranges::{Entry, Span, entry, spans};
use super::record::{Dialect, owner};
use super::route::{Grammar, Placing, Routed, Router};
use super::scan::Tally;
use super::split::without_line_end;

const LIMIT: usize = 1 << 20;

/// Pieces of files in memory, in blocks of an odd size.
struct Memory<'f> {
    files: &'f [Vec<u8>],
    spans: &'f [Span],
    piece: usize,
    at: u64,
    block: usize,
}

impl Blocks for Memory<'_> {
    type Error = ();

    fn next_block(&mut self) -> Result<Option<(usize, &[u8])>, ()> {
        while let Some(span) = self.spans.get(self.piece) {
            let last = self.piece + 1 == self.spans.len();
            let end = if last && self.at >= span.end {
                span.size
            } else {
                span.end
            };
            if self.at < end {
                let from = self.at as usize;
                let to = (from + self.block).min(end as usize);
                self.at = to as u64;
                return Ok(Some((self.piece, &self.files[span.file][from..to])));
            }
            if last {
                break;
            }
            self.piece += 1;
            self.at = self.spans[self.piece].start;
        }
        Ok(None)
    }
}

/// What all ranks together found: records with their owner, and the first bad record as (file,
/// offset, line, why).
type Found = (Vec<(u32, Vec<u8>)>, Option<(usize, u64, u64, String)>);

fn by_ranks(files: &[Vec<u8>], router: &Router, block: usize) -> Found {
    let ranks = router.ranks;
    let sizes: Vec<u64> = files.iter().map(|file| file.len() as u64).collect();
    let tallies: Vec<Tally> = (0..ranks)
        .map(|rank| {
            let mut tally = Tally::default();
            if let Some(last) = spans(&sizes, rank, ranks)
                .last()
                .filter(|last| last.is_continued())
            {
                tally.add(
                    &files[last.file][last.start as usize..last.end as usize],
                    router.quote(),
                );
            }
            tally
        })
        .collect();
    let (mut records, mut first_bad) = (Vec::new(), None);
    for rank in 0..ranks {
        let spans = spans(&sizes, rank, ranks);
        let start = spans.first().map_or(
            Entry {
                quoted: false,
                line: 1,
            },
            |first| entry(first, rank, &sizes, &tallies),
        );
        let at = spans.first().map_or(0, |first| first.start);
        let mut blocks = Memory {
            files,
            spans: &spans,
            piece: 0,
            at,
            block,
        };
        let done = cut(&spans, start, router, &mut blocks, |routed, _| {
            if let Routed::To { kind, bytes, .. } = routed {
                records.push((kind, without_line_end(bytes).to_vec()));
            }
            Ok(())
        });
        if let Err(Halt::Bad { place, why }) = done {
            let Place {
                file, offset, line, ..
            } = place;
            let bad = (file, offset, line, why);
            if first_bad
                .as_ref()
                .is_none_or(|first: &(usize, u64, u64, String)| (bad.0, bad.1) < (first.0, first.1))
            {
                first_bad = Some(bad);
            }
        }
    }
    (records, first_bad)
}

/// Records with their owner, and the first bad record as (file, offset, line).
type Expected = (Vec<(u32, Vec<u8>)>, Option<(usize, u64, u64)>);

/// The same by a state machine of its own; the error without text.
fn by_one(files: &[Vec<u8>], ranks: u32, key: usize, columns: usize) -> Expected {
    #[derive(PartialEq, Clone, Copy)]
    enum State {
        FieldStart,
        Plain,
        Quoted,
        Closed,
        Bad,
    }
    let mut records = Vec::new();
    for (number, file) in files.iter().enumerate() {
        let (mut at, mut line) = (0usize, 1u64);
        while at < file.len() {
            let (start, start_line) = (at, line);
            let mut fields: Vec<Vec<u8>> = vec![Vec::new()];
            let mut state = State::FieldStart;
            let mut end = file.len();
            while at < file.len() {
                let byte = file[at];
                let crlf_or_end = byte == b'\r' && (at + 1 == file.len() || file[at + 1] == b'\n');
                at += 1;
                line += u64::from(byte == b'\n');
                if state == State::Bad {
                    break;
                }
                state = match (state, byte) {
                    (State::Quoted, b'"') => State::Closed,
                    (State::Quoted, _) => {
                        fields.last_mut().unwrap().push(byte);
                        State::Quoted
                    }
                    (_, b'\n') => {
                        end = at - 1;
                        break;
                    }
                    (_, b'\r') if crlf_or_end => state,
                    (State::FieldStart, b'"') => State::Quoted,
                    (State::Closed, b'"') => {
                        fields.last_mut().unwrap().push(b'"');
                        State::Quoted
                    }
                    (_, b',') => {
                        fields.push(Vec::new());
                        State::FieldStart
                    }
                    (State::Plain, b'"') | (State::Closed, _) => State::Bad,
                    (State::Plain | State::FieldStart, _) => {
                        fields.last_mut().unwrap().push(byte);
                        State::Plain
                    }
                    (State::Bad, _) => State::Bad,
                };
            }
            let content = without_line_end(&file[start..end.max(start)]);
            if content.is_empty() && start > 0 {
                continue;
            }
            let wrong = matches!(state, State::Quoted | State::Bad) || fields.len() != columns;
            if wrong {
                return (records, Some((number, start as u64, start_line)));
            }
            if start > 0 {
                records.push((owner(&fields[key], ranks), content.to_vec()));
            }
        }
    }
    (records, None)
}

const CSV: Dialect = Dialect {
    separator: b',',
    quote: Some(b'"'),
};
const HEADER: &str = "k,\"second\r\ncolumn\"\r\n";

fn router(ranks: u32, key: usize) -> Router {
    let header = Header::parse(HEADER.as_bytes(), CSV).unwrap();
    Router {
        grammar: Grammar::Table {
            dialect: CSV,
            header,
            by: vec![key],
            sort: Vec::new(),
            first: "first".into(),
        },
        placing: Placing::Hash { parts: ranks },
        ranks,
        is_ordered: false,
        on_bad_line: OnBadLine::Stop,
        limit: LIMIT,
    }
}

/// A file of well-formed records of two columns, of every kind of line end, with blank lines.
fn table() -> impl Strategy<Value = Vec<u8>> {
    let value = prop::collection::vec(prop::sample::select(b"ab,\"\n\r\xC3".to_vec()), 0..8);
    let record = (
        value.clone(),
        value,
        prop::sample::select(vec!["\n", "\r\n", "\n\n", "\r\n\r\n"]),
        any::<bool>(),
    );
    (
        prop::collection::vec(record, 0..12),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(records, bare_end, bom)| {
            let mut file = if bom {
                b"\xEF\xBB\xBF".to_vec()
            } else {
                Vec::new()
            };
            file.extend_from_slice(HEADER.as_bytes());
            for (first, second, end, always_quoted) in records {
                for (value, after) in [(first, ","), (second, end)] {
                    if always_quoted || value.iter().any(|byte| b",\"\n\r".contains(byte)) {
                        file.push(b'"');
                        for byte in value {
                            if byte == b'"' {
                                file.push(b'"');
                            }
                            file.push(byte);
                        }
                        file.push(b'"');
                    } else {
                        file.extend_from_slice(&value);
                    }
                    file.extend_from_slice(after.as_bytes());
                }
            }
            if bare_end {
                while file.last().is_some_and(|byte| b"\r\n".contains(byte)) {
                    file.pop();
                }
            }
            file
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn well_formed_tables_are_cut_alike_by_any_number_of_ranks(
        files in prop::collection::vec(prop_oneof![4 => table(), 1 => Just(Vec::new())], 1..4),
        ranks in 1u32..40,
        block in 1usize..70,
        key in 0usize..2,
    ) {
        let (expected, bad) = by_one(&files.iter().map(|file| super::route::without_bom(file).to_vec()).collect::<Vec<_>>(), ranks, key, 2);
        prop_assert_eq!(bad, None);
        prop_assert_eq!(by_ranks(&files, &router(ranks, key), block), (expected, None));
    }

    #[test]
    fn the_first_bad_record_of_any_bytes_is_found_by_any_number_of_ranks(
        bodies in prop::collection::vec(prop::collection::vec(prop::sample::select(b"\"\"\n\n\r,,aab".to_vec()), 0..60), 1..4),
        ranks in 1u32..40,
        block in 1usize..70,
    ) {
        let files: Vec<Vec<u8>> = bodies.iter().map(|body| [HEADER.as_bytes(), body].concat()).collect();
        let (expected, bad) = by_one(&files, ranks, 0, 2);
        let (found, found_bad) = by_ranks(&files, &router(ranks, 0), block);
        prop_assert_eq!(found_bad.map(|(file, offset, line, _)| (file, offset, line)), bad);
        if bad.is_none() {
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn json_lines_are_cut_alike_by_any_number_of_ranks(
        keys in prop::collection::vec((0u32..1000, 0usize..30, any::<bool>()), 0..40),
        ranks in 1u32..40,
        block in 1usize..70,
    ) {
        let (mut file, mut expected) = (Vec::new(), Vec::new());
        for (key, padding, blank) in keys {
            let record = format!("{{\"pad\":\"{}\\\"\\n\",\"id\":{key}}}", "x".repeat(padding));
            file.extend_from_slice(record.as_bytes());
            file.extend_from_slice(if blank { b"\n\r\n" } else { b"\n" });
            expected.push((owner(key.to_string().as_bytes(), ranks), record.into_bytes()));
        }
        let by = vec![json::Path::parse("id").unwrap()];
        let router = Router { grammar: Grammar::Lines { by, sort: Vec::new() }, ..router(ranks, 0) };
        prop_assert_eq!(by_ranks(&[file], &router, block), (expected, None));
    }

    #[test]
    fn fields_agree_with_csv_core(file in table()) {
        let mut body = super::route::without_bom(&file).to_vec();
        if !body.ends_with(b"\n") {
            body.push(b'\n');
        }
        let mut theirs = Vec::new();
        let mut reader = csv_core::ReaderBuilder::new().terminator(csv_core::Terminator::CRLF).build();
        let (mut input, mut output, mut ends) = (&body[..], vec![0; 4096], [0; 64]);
        loop {
            let (result, read, _, fields) = reader.read_record(input, &mut output, &mut ends);
            input = &input[read..];
            match result {
                csv_core::ReadRecordResult::Record => {
                    let starts = [0].into_iter().chain(ends[..fields].iter().copied());
                    theirs.push(starts.zip(&ends[..fields]).map(|(start, &end)| output[start..end].to_vec()).collect::<Vec<_>>());
                }
                csv_core::ReadRecordResult::InputEmpty => {}
                csv_core::ReadRecordResult::End => break,
                other => prop_assert!(false, "{other:?}"),
            }
        }
        let mut ours = vec![Header::parse(HEADER.as_bytes(), CSV).unwrap().names];
        let (records, _) = by_ranks(&[body], &router(3, 0), 50);
        ours.extend(records.iter().map(|(_, record)| CSV.fields(record).unwrap()));
        prop_assert_eq!(ours, theirs);
    }
}

#[test]
fn a_record_beyond_the_limit_names_its_line_and_the_open_quote() {
    let file = [
        HEADER.as_bytes(),
        b"a,b\nc,\"",
        &vec![b'x'; 300],
        b"\nd,e\n",
    ]
    .concat();
    for ranks in 1..20 {
        let mut router = router(ranks, 0);
        router.limit = 100;
        let (_, bad) = by_ranks(std::slice::from_ref(&file), &router, 64);
        let (number, _, line, why) = bad.expect("the record is refused");
        assert_eq!((number, line), (0, 4), "{ranks} ranks");
        assert!(
            why.contains("longer than 100 bytes") && why.contains("never closed"),
            "{why}"
        );
    }
}

#[test]
fn headers_of_other_files_are_compared_by_their_columns() {
    let files = |second: &str| vec![HEADER.as_bytes().to_vec(), second.as_bytes().to_vec()];
    let why = |second: &str| {
        by_ranks(&files(second), &router(3, 0), 9)
            .1
            .map(|(file, _, line, why)| (file, line, why))
    };
    assert_eq!(why("\"k\",\"second\r\ncolumn\"\n1,2\n"), None);
    let (file, line, text) = why("k,other\n").unwrap();
    assert_eq!((file, line), (1, 1));
    assert!(
        text.contains("column 2 is `other`") && text.contains("in first"),
        "{text}"
    );
    assert!(why("k\n").unwrap().2.contains("is missing"));
    assert!(
        why("k,\"second\r\ncolumn\",z\n")
            .unwrap()
            .2
            .contains("`z` is additional")
    );
    assert!(why("\nk\n").unwrap().2.contains("blank"));
}

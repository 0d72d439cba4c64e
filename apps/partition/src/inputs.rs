//! What the names on the command line mean: files, directories, patterns and pipes.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use walkdir::{DirEntry, WalkDir};

use super::choice::Format;
use super::error::{Error, Result, shown};
use super::hive;
use super::stream::Codec;

/// The word for standard input.
const STDIN: &str = "-";

/// One file of the list that all ranks read.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct InputFile {
    /// As the user may know it.
    #[serde(with = "path_bytes")]
    pub path: PathBuf,
    /// Its bytes on the disk; 0 where nobody knows.
    pub bytes: u64,
    /// Who reads it.
    pub way: Way,
}

/// How a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Way {
    /// By all ranks, a range each.
    Cut,
    /// By all ranks, some row groups each.
    Groups,
    /// From its start to its end by one rank: it is compressed.
    Whole { rank: u32 },
    /// As it comes, by rank 0.
    Pipe,
    /// As it comes, by rank 0, whose standard input it is.
    Stdin,
}

impl InputFile {
    /// Bytes that are cut into ranges.
    pub fn cut_bytes(&self) -> u64 {
        if self.way == Way::Cut { self.bytes } else { 0 }
    }

    /// The one rank that reads it, where there is one.
    pub fn reader(&self) -> Option<u32> {
        match self.way {
            Way::Cut | Way::Groups => None,
            Way::Whole { rank } => Some(rank),
            Way::Pipe | Way::Stdin => Some(0),
        }
    }
}

/// Names need not be text, which JSON asks for.
mod path_bytes {
    use super::*;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        path.as_os_str().as_bytes().serialize(to)
    }

    pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<PathBuf, D::Error> {
        let bytes = Vec::<u8>::deserialize(from)?;
        Ok(std::ffi::OsString::from_vec(bytes).into())
    }
}

/// All files that `names` mean, in order: of directories and patterns those whose names begin
/// neither with `.` nor with `_`, sorted by name.
///
/// # Errors
/// A name that means nothing, or a file that cannot be read.
pub fn find(names: &[PathBuf], ranks: u32) -> Result<Vec<InputFile>> {
    let mut files = Vec::new();
    for name in names {
        if name.as_os_str() == STDIN {
            files.push(InputFile {
                path: "(standard input)".into(),
                bytes: 0,
                way: Way::Stdin,
            });
            continue;
        }
        for path in matches(name, files.len())? {
            add(&path, &mut files)?;
        }
    }
    share_out(&mut files, ranks);
    let total = files
        .iter()
        .try_fold(0u64, |sum, file| sum.checked_add(file.bytes));
    match total {
        Some(_) => Ok(files),
        None => Err(Error::Usage(
            "the files have more than 2^64 bytes together".to_owned(),
        )),
    }
}

/// An error about the first line of a file; `number` is its place in the list.
pub fn at_start(path: &Path, number: usize, why: String) -> Error {
    Error::Input {
        file: path.to_owned(),
        line: 1,
        why,
        at: (number as u64, 0),
    }
}

/// An error about a file as a whole; `number` is its place in the list.
pub fn of_file(path: &Path, number: usize, why: String) -> Error {
    Error::Input {
        file: path.to_owned(),
        line: 0,
        why,
        at: (number as u64, 0),
    }
}

/// The file of this name, or those that a pattern matches.
fn matches(name: &Path, number: usize) -> Result<Vec<PathBuf>> {
    let pattern = name.to_str().filter(|text| text.contains(['*', '?', '[']));
    let Some(pattern) = pattern.filter(|_| !name.exists()) else {
        return Ok(vec![name.to_owned()]);
    };
    let bad = |why: String| of_file(name, number, why);
    let options = glob::MatchOptions {
        require_literal_leading_dot: true,
        ..glob::MatchOptions::new()
    };
    let found: Vec<PathBuf> = glob::glob_with(pattern, options)
        .map_err(|error| bad(format!("no pattern of files: {error}")))?
        .collect::<Result<_, _>>()
        .map_err(|error| bad(format!("cannot read: {error}")))?;
    match found.is_empty() {
        true => Err(bad("no file is matched".to_owned())),
        false => Ok(found),
    }
}

/// Adds a file, or all files below a directory.
fn add(path: &Path, files: &mut Vec<InputFile>) -> Result<()> {
    let number = files.len();
    if !path.is_dir() {
        files.push(look_at(path, number)?);
        return Ok(());
    }
    let is_data = |entry: &DirEntry| {
        let name = entry.file_name().as_bytes();
        let is_hidden = matches!(name.first(), Some(b'.' | b'_'));
        // What a split by value has made is data, whatever its key is called.
        let is_value = || entry.file_type().is_dir() && hive::is_name(name);
        entry.depth() == 0 || !is_hidden || is_value()
    };
    let below = WalkDir::new(path).follow_links(true).sort_by_file_name();
    for entry in below.into_iter().filter_entry(is_data) {
        let entry =
            entry.map_err(|error| of_file(path, number, format!("cannot read: {error}")))?;
        if !entry.file_type().is_dir() {
            files.push(look_at(entry.path(), files.len())?);
        }
    }
    match files.len() == number {
        true => Err(of_file(
            path,
            number,
            "no file is in this directory".to_owned(),
        )),
        false => Ok(()),
    }
}

fn look_at(path: &Path, number: usize) -> Result<InputFile> {
    let unreadable = |error: std::io::Error| of_file(path, number, format!("cannot read: {error}"));
    let metadata = fs::metadata(path).map_err(unreadable)?;
    let kind = metadata.file_type();
    let (bytes, way) = if kind.is_file() {
        let mut start = Vec::new();
        let mut file = File::open(path)
            .map_err(unreadable)?
            .take(Codec::MARK_BYTES as u64);
        file.read_to_end(&mut start).map_err(unreadable)?;
        let way = match Codec::of(&start) {
            Codec::Plain => Way::Cut,
            // The rank follows when all files are known.
            Codec::Gzip | Codec::Zstd => Way::Whole { rank: 0 },
        };
        (metadata.len(), way)
    } else if kind.is_fifo() || kind.is_char_device() {
        (0, Way::Pipe)
    } else {
        let why = "cannot read: it is neither a file nor a directory nor a pipe";
        return Err(of_file(path, number, why.to_owned()));
    };
    Ok(InputFile {
        path: path.to_owned(),
        bytes,
        way,
    })
}

/// Each file that one rank reads goes to the rank that has least to read so far.
fn share_out(files: &mut [InputFile], ranks: u32) {
    let mut loads = vec![0u64; ranks as usize];
    for file in files {
        if let Way::Whole { rank } = &mut file.way {
            let least = (0..loads.len())
                .min_by_key(|&rank| loads[rank])
                .unwrap_or(0);
            *rank = least as u32;
            loads[least] = loads[least].saturating_add(file.bytes.max(1));
        }
    }
}

/// The format that a file name's extension tells, and that extension; what a compressor has added
/// is left out.
fn told_by(path: &Path) -> Option<(Format, String)> {
    let extension = |path: &Path| Some(path.extension()?.to_str()?.to_ascii_lowercase());
    let mut told = extension(path)?;
    if matches!(&told[..], "gz" | "zst") {
        told = extension(Path::new(path.file_stem()?))?;
    }
    let format = match &told[..] {
        "csv" => Format::Csv,
        "tsv" | "tab" => Format::Tsv,
        "jsonl" | "ndjson" => Format::Jsonl,
        "parquet" => Format::Parquet,
        _ => return None,
    };
    Some((format, told))
}

/// The format given, or the one that all extensions agree on, and the extension of parts: the first
/// input's, if that tells the format.
///
/// # Errors
/// A sentence that names the file whose extension is unknown or differs.
pub fn format_of(files: &[InputFile], given: Option<Format>) -> Result<(Format, String), String> {
    let Some(first) = files.first() else {
        return Err("no input file was given".to_owned());
    };
    if let Some(format) = given {
        let told = told_by(&first.path).filter(|(told, _)| *told == format);
        return Ok(told.unwrap_or_else(|| (format, format.name().to_owned())));
    }
    let mut agreed: Option<(Format, String)> = None;
    for InputFile { path, .. } in files {
        let Some((format, extension)) = told_by(path) else {
            return Err(format!(
                "{}: the extension tells no format; add --format csv, tsv{}",
                shown(path),
                if cfg!(feature = "parquet") {
                    ", jsonl or parquet"
                } else {
                    " or jsonl"
                }
            ));
        };
        match &agreed {
            Some((other, _)) if *other != format => {
                return Err(format!(
                    "{} is {} but {} is {}; partition one format at a time or add --format",
                    shown(path),
                    format.name(),
                    shown(&first.path),
                    other.name()
                ));
            }
            Some(_) => {}
            None => agreed = Some((format, extension)),
        }
    }
    agreed.ok_or_else(|| "no input file was given".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> Vec<InputFile> {
        let file = |name: &&str| InputFile {
            path: name.into(),
            bytes: 1,
            way: Way::Cut,
        };
        names.iter().map(file).collect()
    }

    #[test]
    fn formats_follow_the_extensions() {
        let format = |names: &[&str], given| format_of(&named(names), given);
        let told = |format, extension: &str| Ok((format, extension.to_owned()));
        assert_eq!(
            format(&["a.CSV", "b.csv.gz"], None),
            told(Format::Csv, "csv")
        );
        assert_eq!(format(&["a.tab", "b.tsv"], None), told(Format::Tsv, "tab"));
        assert_eq!(
            format(&["a.ndjson.zst"], None),
            told(Format::Jsonl, "ndjson")
        );
        assert_eq!(
            format(&["a.txt"], Some(Format::Csv)),
            told(Format::Csv, "csv")
        );
        let why = |names: &[&str]| format(names, None).unwrap_err();
        assert!(why(&["a.csv", "b.jsonl"]).contains("b.jsonl is jsonl"));
        assert!(why(&["a.csv", "a.txt.gz"]).contains("a.txt.gz"));
        assert!(why(&["(standard input)"]).contains("tells no format"));
    }

    #[test]
    fn directories_and_patterns_are_their_files() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        };
        write("b.csv", b"b");
        write("k=1/part-00000.csv", b"one");
        write("a.csv", b"\x1F\x8B\x08 gzip");
        write(".hidden/x.csv", b"x");
        write("_SUCCESS", b"{}");
        fs::create_dir(dir.path().join("empty")).unwrap();
        let found = |names: &[&str]| {
            let names: Vec<PathBuf> = names.iter().map(|name| dir.path().join(name)).collect();
            find(&names, 2).map(|files| {
                let name = |file: &InputFile| {
                    let name = file.path.strip_prefix(dir.path()).unwrap();
                    (name.to_str().unwrap().to_owned(), file.cut_bytes())
                };
                files.iter().map(name).collect::<Vec<_>>()
            })
        };
        let pairs = |pairs: &[(&str, u64)]| -> Vec<(String, u64)> {
            pairs
                .iter()
                .map(|(name, bytes)| ((*name).to_owned(), *bytes))
                .collect()
        };
        let all = [("a.csv", 0), ("b.csv", 1), ("k=1/part-00000.csv", 3)];
        assert_eq!(found(&[""]).unwrap(), pairs(&all));
        assert_eq!(found(&["*.csv", "k=?"]).unwrap(), pairs(&all));
        for (name, expected) in [
            ("empty", "no file is in this directory"),
            ("*.tsv", "no file is matched"),
            ("none.csv", "cannot read: No such file"),
        ] {
            let text = found(&["b.csv", name]).unwrap_err().to_string();
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn whole_files_are_dealt_out_by_their_bytes() {
        let mut files = named(&["a", "b", "c", "d"]);
        for (file, bytes) in files.iter_mut().zip([9, 2, 3, 1]) {
            (file.bytes, file.way) = (bytes, Way::Whole { rank: 0 });
        }
        files[1].way = Way::Cut;
        share_out(&mut files, 2);
        let readers: Vec<_> = files.iter().map(InputFile::reader).collect();
        assert_eq!(readers, [Some(0), None, Some(1), Some(1)]);
    }
}

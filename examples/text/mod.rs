//! A text that all ranks read together, each its own part: what `words`, `sort` and `bfs` begin
//! with.

use std::fs::File;
use std::io::{self, Cursor, Read, Seek, SeekFrom};

/// A file, or what an example makes where none is named.
pub enum Text {
    File(String),
    Made(&'static str, String),
}

impl Text {
    /// The file that the first argument names.
    pub fn named_or(what: &'static str, make: impl FnOnce() -> String) -> Self {
        match std::env::args().nth(1) {
            Some(path) => Self::File(path),
            None => Self::Made(what, make()),
        }
    }

    pub fn name(&self) -> &str {
        match self {
            Self::File(path) => path,
            Self::Made(what, _) => what,
        }
    }

    /// The lines that begin in part `part` of `parts` equally long ones.
    pub fn part(&self, part: u32, parts: u32) -> io::Result<Vec<u8>> {
        let with_name = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", self.name()));
        match self {
            Self::File(path) => File::open(path).and_then(|file| lines(file, part, parts)),
            Self::Made(_, text) => lines(Cursor::new(text), part, parts),
        }
        .map_err(with_name)
    }

    /// All of it, for the sequential run that a result is compared with.
    pub fn whole(&self) -> io::Result<Vec<u8>> {
        self.part(0, 1)
    }
}

fn lines(mut input: impl Read + Seek, part: u32, parts: u32) -> io::Result<Vec<u8>> {
    let length = input.seek(SeekFrom::End(0))?;
    let bound = |part: u32| (u128::from(length) * u128::from(part) / u128::from(parts)) as u64;
    let begin = line_begin(&mut input, bound(part), length)?;
    let end = line_begin(&mut input, bound(part + 1), length)?;
    let mut text = vec![0; (end - begin) as usize];
    input.seek(SeekFrom::Start(begin))?;
    input.read_exact(&mut text)?;
    Ok(text)
}

/// Where the first line begins that does not begin before `at`.
fn line_begin(input: &mut (impl Read + Seek), at: u64, length: u64) -> io::Result<u64> {
    if at == 0 {
        return Ok(0);
    }
    // A line begins at `at` where the byte before it ends one.
    let mut place = at - 1;
    let mut bytes = [0; 4096];
    input.seek(SeekFrom::Start(place))?;
    loop {
        let read = input.read(&mut bytes)?;
        if let Some(end) = bytes[..read].iter().position(|&byte| byte == b'\n') {
            return Ok(place + end as u64 + 1);
        }
        if read == 0 {
            return Ok(length);
        }
        place += read as u64;
    }
}

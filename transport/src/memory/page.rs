//! Pages that a process shows to others of the same user: what it counts and what it waits for, in
//! memory that they read while it goes on, hangs or is stopped.
//!
//! A page has [areas](Area). What is shown in an area is a *snapshot*: words that belong together.
//! There is room for two of them, of which one is shown while the other is written, so a reader
//! finds a whole one even where the writer was stopped in the middle. Nothing of it has a name in a
//! file system: the anonymous file is found among the descriptors of a process.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{Mode, OFlags, SealFlags};

use crate::error::{Error, Result};
use crate::memory::segment::Segment;
use crate::ring::{Orderings, Shipped};
use crate::sync::{MappedU64, Ordering, Word, fence};

/// Name of the anonymous file.
const NAME: &str = "trihop-stats";

/// First word of a page: the letters `trihopst`, the first one in the lowest byte.
const MAGIC: u64 = u64::from_le_bytes(*b"trihopst");

/// Version of what is in pages: second word of each.
pub const VERSION: u64 = 1;

/// Most pages of one process: its ranks, and one more for their relay.
pub const MOST_PAGES: usize = 2048;

/// Word of an area that says how many snapshots were shown; the last of them is shown.
const SHOWN: usize = 0;
/// Where the rooms of an area begin.
const ROOMS: usize = 8;
/// Times that a reader tries anew because the snapshot was replaced meanwhile.
const TRIES: usize = 64;

/// What a part of a page is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Area {
    /// Who shows the page: written once.
    Identity,
    /// Counters and waits of a moment.
    Numbers,
    /// Text for people.
    Text,
}

impl Area {
    /// Most words of a snapshot.
    pub const fn most_words(self) -> usize {
        match self {
            Self::Identity => 55,
            Self::Numbers => 4096,
            Self::Text => 8192,
        }
    }

    const fn words(self) -> usize {
        words(self.most_words())
    }

    /// Where it begins in a page.
    const fn first(self) -> usize {
        let head = 8;
        match self {
            Self::Identity => head,
            Self::Numbers => head + Self::Identity.words(),
            Self::Text => head + Self::Identity.words() + Self::Numbers.words(),
        }
    }
}

/// Words of a page, in whole pages of the machine up to 64 KiB.
const PAGE_WORDS: usize =
    (Area::Text.first() + Area::Text.words()).next_multiple_of((64 << 10) / 8);

/// Words of an area for snapshots of at most so many.
pub const fn words(most: usize) -> usize {
    ROOMS + 2 * (1 + most)
}

/// The room of snapshot number `count`: its length, then its words.
fn room<W>(area: &[W], count: u64) -> &[W] {
    let (first, second) = area[ROOMS..].split_at((area.len() - ROOMS) / 2);
    if count.is_multiple_of(2) {
        first
    } else {
        second
    }
}

/// Shows another snapshot, which `write` writes.
pub fn show<W: Word, O: Orderings>(area: &[W], write: impl FnOnce(&mut Snapshot<'_, W>)) {
    let shown = area[SHOWN].load(Ordering::Relaxed); // nobody else writes it
    fence(O::PAGE_RENEW_FENCE);
    let next = shown.wrapping_add(1);
    let (length, words) = room(area, next).split_first().expect("a room has a length");
    let mut snapshot = Snapshot { words, used: 0 };
    write(&mut snapshot);
    length.store(snapshot.used as u64, Ordering::Relaxed);
    area[SHOWN].store(next, O::PAGE_STORE);
}

/// The snapshot that is shown; `None` while there is none, or where others replace it faster than it
/// is read. Lengths of another process are checked.
pub fn read<W: Word, O: Orderings>(area: &[W]) -> Option<Vec<u64>> {
    for _ in 0..TRIES {
        let shown = area[SHOWN].load(Ordering::Relaxed);
        if shown == 0 {
            return None;
        }
        fence(O::PAGE_LOOK_FENCE);
        let (length, words) = room(area, shown).split_first()?;
        let length = usize::try_from(length.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
        let words = words.iter().take(length);
        let read = words.map(|word| word.load(Ordering::Relaxed)).collect();
        fence(O::PAGE_CHECK_FENCE);
        if area[SHOWN].load(Ordering::Relaxed) == shown {
            return Some(read);
        }
    }
    None
}

/// A snapshot that is being written, word after word. What has no room is left out.
#[derive(Debug)]
pub struct Snapshot<'a, W> {
    words: &'a [W],
    used: usize,
}

impl<W: Word> Snapshot<'_, W> {
    /// Words that have room behind those written.
    pub fn room(&self) -> usize {
        self.words.len() - self.used
    }

    /// Words written so far.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether nothing was written yet.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Adds a word.
    pub fn put(&mut self, value: u64) {
        if let Some(word) = self.words.get(self.used) {
            word.store(value, Ordering::Relaxed);
            self.used += 1;
        }
    }

    /// Replaces the word that was written as number `at`.
    pub fn set(&mut self, at: usize, value: u64) {
        if let Some(word) = self.words[..self.used].get(at) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Adds bytes, 8 in a word, the last one filled up with zeros.
    pub fn put_bytes(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut eight = [0; 8];
            eight[..chunk.len()].copy_from_slice(chunk);
            self.put(u64::from_le_bytes(eight));
        }
    }
}

/// A page in the hands of the process that shows it.
pub struct Page {
    segment: Arc<Segment>,
    first: usize,
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Page({:?}, from word {})", self.segment, self.first)
    }
}

impl Page {
    /// So many pages, of which nothing is shown yet, in one anonymous file. Memory is taken by what
    /// is shown.
    ///
    /// # Errors
    /// More than [`MOST_PAGES`]; memory or descriptors run out.
    pub fn create(count: usize) -> Result<Vec<Self>> {
        if count > MOST_PAGES {
            let why = format!("{count} endpoints of a process, of {MOST_PAGES} possible");
            return Err(Error::config("counters_page", why));
        }
        let bytes = count * PAGE_WORDS * size_of::<MappedU64>();
        let segment = Segment::create_shown(NAME, bytes)?;
        let page = |at| Self {
            segment: Arc::clone(&segment),
            first: at * PAGE_WORDS,
        };
        let pages: Vec<Self> = (0..count).map(page).collect();
        for page in &pages {
            page.words()[1].store(VERSION, Ordering::Relaxed);
            page.words()[0].store(MAGIC, Ordering::Relaxed);
        }
        Ok(pages)
    }

    fn words(&self) -> &[MappedU64] {
        // SAFETY: the mapping is page aligned, zeroed at its creation, of `PAGE_WORDS` words behind
        // `first` as asked for at creation, and lives as long as `self`; it is used as atomic words
        // only, by everybody.
        unsafe {
            let first = self.segment.as_ptr().cast::<MappedU64>().add(self.first);
            std::slice::from_raw_parts(first, PAGE_WORDS)
        }
    }

    /// Shows another snapshot in an area. Allocates nothing, takes no lock and waits for nobody.
    pub fn show(&mut self, area: Area, write: impl FnOnce(&mut Snapshot<'_, MappedU64>)) {
        if self.segment.is_mapped_here() {
            show::<_, Shipped>(part(self.words(), area), write);
        }
    }
}

fn part(page: &[MappedU64], area: Area) -> &[MappedU64] {
    &page[area.first()..area.first() + area.words()]
}

/// The pages of a process as another one reads them. Nothing in them can do the reader harm.
#[derive(Debug)]
pub struct Pages {
    map: MmapRaw,
    /// Number of the anonymous file: two processes that show the same one are parent and child.
    number: u64,
}

impl Pages {
    /// What this process shows: pages of each of its jobs.
    ///
    /// # Errors
    /// The process is gone, or another user's; or a file is not what it should be.
    pub fn of_process(process: u32) -> io::Result<Vec<Self>> {
        let folder = PathBuf::from(format!("/proc/{process}/fd"));
        let name = format!("/memfd:{NAME} (deleted)");
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            // Descriptors come and go meanwhile.
            if std::fs::read_link(&path).is_ok_and(|link| link.as_os_str() == name.as_str()) {
                let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
                let file = rustix::fs::open(&path, flags, Mode::empty())?;
                found.push(Self::over(&file)?);
            }
        }
        Ok(found)
    }

    fn over(file: &OwnedFd) -> io::Result<Self> {
        let refuse = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        let seals = rustix::fs::fcntl_get_seals(file)
            .map_err(|e| refuse(format!("it is not an anonymous file: {e}")))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(refuse("it may become shorter while it is read".into()));
        }
        let status = rustix::fs::fstat(file)?;
        let page_bytes = PAGE_WORDS * size_of::<MappedU64>();
        let bytes = usize::try_from(status.st_size).unwrap_or(0);
        let count = bytes / page_bytes;
        if bytes % page_bytes != 0 || !(1..=MOST_PAGES).contains(&count) {
            let why = format!("it has {bytes} bytes, no number of pages of {page_bytes}");
            return Err(refuse(why));
        }
        Ok(Self {
            map: MmapOptions::new().len(bytes).map_raw_read_only(file)?,
            number: status.st_ino,
        })
    }

    /// Number of the anonymous file on this machine.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// How many pages there are.
    pub fn len(&self) -> usize {
        self.map.len() / size_of::<MappedU64>() / PAGE_WORDS
    }

    /// Whether there is none (there always is).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn page(&self, page: usize) -> Option<&[MappedU64]> {
        // SAFETY: the mapping is page aligned, of so many bytes, sealed against becoming shorter as
        // checked in `over`, and lives as long as `self`; of words that others write only relaxed
        // atomic loads are made, which read-only memory allows.
        let words = unsafe {
            let first = self.map.as_ptr().cast::<MappedU64>();
            std::slice::from_raw_parts(first, self.map.len() / size_of::<MappedU64>())
        };
        words.chunks_exact(PAGE_WORDS).nth(page)
    }

    /// The snapshot that is shown in an area of a page, where there is one.
    ///
    /// # Errors
    /// The page is of another version, which is returned; 0 stands for no page at all.
    pub fn read(&self, page: usize, area: Area) -> Result<Option<Vec<u64>>, u64> {
        let words = self.page(page).ok_or(0u64)?;
        if words[0].load(Ordering::Relaxed) != MAGIC {
            return Err(0);
        }
        match words[1].load(Ordering::Relaxed) {
            VERSION => Ok(read::<_, Shipped>(part(words, area))),
            other => Err(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As another process sees these.
    fn seen(pages: &[Page]) -> Pages {
        let file = pages[0].segment.descriptor().unwrap();
        let number = rustix::fs::fstat(file).unwrap().st_ino;
        let found = Pages::of_process(std::process::id()).unwrap();
        let mut found = found.into_iter();
        found.find(|pages| pages.number() == number).expect("shown")
    }

    #[test]
    fn what_a_process_shows_others_find_and_nobody_else_writes() {
        let mut pages = Page::create(3).unwrap();
        let file = pages[0].segment.descriptor().unwrap();
        let writable = MmapOptions::new().map_raw(&file);
        let seals = rustix::fs::fcntl_get_seals(file).unwrap();
        assert_eq!(writable.is_err(), seals.contains(SealFlags::FUTURE_WRITE));
        let seen = seen(&pages);
        assert_eq!((seen.len(), seen.is_empty()), (3, false));
        assert_eq!(seen.read(1, Area::Numbers), Ok(None));
        for count in 1..=5 {
            pages[1].show(Area::Numbers, |snapshot| {
                (0..=count).for_each(|word| snapshot.put(word));
                snapshot.set(0, 77);
            });
            let words = seen.read(1, Area::Numbers).unwrap().unwrap();
            assert_eq!(words, [vec![77], (1..=count).collect()].concat());
        }
        pages[2].show(Area::Text, |snapshot| snapshot.put_bytes(b"nine bytes"));
        let words = seen.read(2, Area::Text).unwrap().unwrap();
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        assert_eq!(bytes, b"nine bytes\0\0\0\0\0\0");
        assert_eq!(seen.read(3, Area::Text), Err(0));
    }

    #[test]
    fn what_has_no_room_is_left_out() {
        let area: Vec<MappedU64> = (0..words(3)).map(|_| MappedU64::new(0)).collect();
        show::<_, Shipped>(&area, |snapshot| {
            (0..5).for_each(|word| snapshot.put(word));
            assert_eq!((snapshot.room(), snapshot.len()), (0, 3));
            snapshot.set(3, 9);
        });
        assert_eq!(read::<_, Shipped>(&area).unwrap(), [0, 1, 2]);
    }

    #[test]
    fn words_of_a_broken_process_are_no_page_and_no_panic() {
        let area: Vec<MappedU64> = (0..words(3)).map(|_| MappedU64::new(u64::MAX)).collect();
        assert_eq!(read::<_, Shipped>(&area).unwrap(), [u64::MAX; 3]);
        let pages = Page::create(1).unwrap();
        let words = pages[0].words();
        words[1].store(9, Ordering::Relaxed);
        let seen = seen(&pages);
        assert_eq!(seen.read(0, Area::Identity), Err(9));
        words[0].store(0, Ordering::Relaxed);
        assert_eq!(seen.read(0, Area::Identity), Err(0));
    }

    #[test]
    fn only_a_sealed_file_of_whole_pages_is_read() {
        let file = rustix::fs::memfd_create(NAME, rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, (PAGE_WORDS * 8) as u64).unwrap();
        let why = Pages::over(&file).unwrap_err().to_string();
        assert!(why.contains("shorter"), "{why}");
        rustix::fs::ftruncate(&file, 4096).unwrap();
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        let why = Pages::over(&file).unwrap_err().to_string();
        assert!(why.contains("4096 bytes"), "{why}");
    }
}

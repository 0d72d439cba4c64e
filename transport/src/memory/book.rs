//! A node's book: values under numbers, in memory that the processes of a node share.
//!
//! What one of them has fetched from outside is written here once, and all others read it. Nobody
//! waits for anybody: a value that is not there yet is absent, and a book without room for one more
//! stays as it is.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::memory::segment::Segment;
use crate::ring::{Orderings, Shipped};
use crate::sync::{MappedU64, Ordering, Word};

/// Words of the room that are given away; more than there are once it is full.
const GIVEN: usize = 0;
/// Where the places begin: of each value where it lies and its length, 0 while it is absent.
const PLACES: usize = 8;

/// Words of a book with so many places, and room for values of so many words.
pub const fn words(places: usize, room: usize) -> usize {
    PLACES + places + room
}

/// Writes a value, which is not empty, unless there is one at `place`; whether there is one now.
pub fn write<W: Word, O: Orderings>(
    words: &[W],
    places: usize,
    place: usize,
    value: &[u8],
) -> bool {
    let (index, room) = words[PLACES..].split_at(places);
    let count = value.len().div_ceil(8);
    let begin = words[GIVEN].fetch_add(count as u64, Ordering::Relaxed);
    let Some(range) = within(room, begin, count) else {
        return index[place].load(Ordering::Relaxed) != 0;
    };
    for (word, bytes) in range.iter().zip(value.chunks(8)) {
        let mut eight = [0; 8];
        eight[..bytes.len()].copy_from_slice(bytes);
        word.store(u64::from_le_bytes(eight), Ordering::Relaxed);
    }
    // Whoever was first has written as good a value.
    index[place].set_first(begin << 32 | value.len() as u64, O::BOOK_STORE);
    true
}

/// The value at `place`, if there is one; another process's words are checked.
pub fn read<W: Word, O: Orderings>(words: &[W], places: usize, place: usize) -> Option<Vec<u8>> {
    let (index, room) = words[PLACES..].split_at(places);
    let word = index[place].load(O::BOOK_LOAD);
    let length = word as u32 as usize;
    let range = within(room, word >> 32, length.div_ceil(8))?;
    let eights = range.iter().map(|word| word.load(Ordering::Relaxed));
    let bytes = eights.flat_map(u64::to_le_bytes).take(length);
    (length > 0).then(|| bytes.collect())
}

/// `count` words of the room, where there are so many.
fn within<W>(room: &[W], begin: u64, count: usize) -> Option<&[W]> {
    // Places have 32 bits for where a value lies.
    let begin = u32::try_from(begin).ok()? as usize;
    room.get(begin..begin.checked_add(count)?)
}

/// The book of a node, in the hands of one of its processes.
#[derive(Debug, Clone)]
pub struct Book {
    segment: Arc<Segment>,
    places: usize,
    room: usize,
}

impl Book {
    /// Most bytes that values may have together, 4 GiB.
    pub const ROOM_BYTES_MAX: usize = 4 << 30;

    /// An empty book for values of `room_bytes` together, under numbers below `places`. Memory is
    /// taken by what is written.
    ///
    /// # Errors
    /// When memory or descriptors run out.
    pub fn create(places: usize, room_bytes: usize) -> Result<Self> {
        let room = room(room_bytes)?;
        let segment = Segment::create(words(places, room) * size_of::<MappedU64>())?;
        Ok(Self {
            segment,
            places,
            room,
        })
    }

    /// The book that another process has created with these numbers.
    ///
    /// # Errors
    /// When the descriptor is not that of such a book.
    pub fn attach(file: OwnedFd, places: usize, room_bytes: usize) -> Result<Self> {
        let room = room(room_bytes)?;
        let segment = Segment::attach(file, words(places, room) * size_of::<MappedU64>())?;
        Ok(Self {
            segment,
            places,
            room,
        })
    }

    /// What other processes of the node attach.
    ///
    /// # Errors
    /// When the segment is private.
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        self.segment.descriptor()
    }

    /// Writes a value unless there is one under this number; whether there is one now. A book
    /// without room for it does not take it.
    ///
    /// # Panics
    /// When the value is empty, or the number is not below those of the book.
    pub fn write(&self, number: usize, value: &[u8]) -> bool {
        assert!(!value.is_empty(), "an empty value under {number}");
        write::<_, Shipped>(self.words(), self.places, number, value)
    }

    /// The value under this number, if there is one.
    ///
    /// # Panics
    /// When the number is not below those of the book.
    pub fn read(&self, number: usize) -> Option<Vec<u8>> {
        read::<_, Shipped>(self.words(), self.places, number)
    }

    /// Bytes of the room that are taken by values.
    pub fn used_bytes(&self) -> usize {
        let given = self.words()[GIVEN].load(Ordering::Relaxed) as usize;
        given.min(self.room) * size_of::<MappedU64>()
    }

    fn words(&self) -> &[MappedU64] {
        let count = words(self.places, self.room);
        // SAFETY: the mapping is page aligned, zeroed at its creation, of at least `count` words as
        // asked for at creation and at attaching, and lives as long as `self`; it is used as atomic
        // words only, by everybody.
        unsafe { std::slice::from_raw_parts(self.segment.as_ptr().cast::<MappedU64>(), count) }
    }
}

/// Words of a room of so many bytes.
fn room(bytes: usize) -> Result<usize> {
    if bytes > Book::ROOM_BYTES_MAX {
        let most = Book::ROOM_BYTES_MAX;
        let why = format!("{bytes} bytes of room in a node's book are above the {most} possible");
        return Err(Error::config("book", why));
    }
    Ok(bytes.div_ceil(size_of::<MappedU64>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_process_writes_all_read_once() {
        let book = Book::create(3, 64).unwrap();
        let file = book.descriptor().unwrap().try_clone_to_owned().unwrap();
        let other = Book::attach(file, 3, 64).unwrap();
        assert_eq!(other.read(1), None);
        assert!(book.write(1, b"seventeen bytes.."));
        assert!(other.write(1, b"too late") && other.write(2, &[0; 8]));
        for book in [&book, &other] {
            assert_eq!(book.read(1).unwrap(), b"seventeen bytes..");
            assert_eq!((book.read(0), book.read(2)), (None, Some(vec![0; 8])));
        }
    }

    #[test]
    fn a_full_book_takes_nothing_more_and_keeps_what_it_has() {
        let book = Book::create(3, 24).unwrap();
        assert!(book.write(0, &[1; 16]));
        assert!(!book.write(1, &[2; 9]));
        assert!(!book.write(1, &[2; 8]), "room is given away once");
        assert!(book.write(0, &[3; 1000]), "a value is there");
        assert_eq!((book.read(0), book.read(1)), (Some(vec![1; 16]), None));
        assert_eq!(book.used_bytes(), 24);
    }

    #[test]
    fn words_of_a_broken_process_are_no_value_and_no_panic() {
        let book = Book::create(2, 64).unwrap();
        for word in [
            u64::MAX,
            65,
            1 << 32 | 57,
            8 << 32 | 1,
            u64::from(u32::MAX) << 32 | 1,
            1 << 32,
        ] {
            book.words()[PLACES].store(word, Ordering::Relaxed);
            assert_eq!(book.read(0), None, "{word:#x}");
        }
        book.words()[GIVEN].store(u64::MAX, Ordering::Relaxed);
        assert!(!book.write(1, b"value"));
    }

    #[test]
    fn another_file_is_refused() {
        let book = Book::create(2, 64).unwrap();
        let file = || book.descriptor().unwrap().try_clone_to_owned().unwrap();
        assert!(Book::attach(file(), 2, 1 << 20).is_err());
        assert!(Book::attach(file(), 2, usize::MAX).is_err());
        assert!(Book::create(1, Book::ROOM_BYTES_MAX + 1).is_err());
    }
}

//! Where the elements of an array are, as a rank knows it.

use std::collections::{HashMap, HashSet};

use foldhash::fast::RandomState;
use trihop_transport::topology::Rank;

use crate::engine::BadRun;
use crate::error::{Error, Result};
use crate::face::codec::{Codec, encode};

/// An element on this rank.
pub struct Local<E> {
    pub element: E,
    /// How often it has moved.
    pub moves: u64,
    /// Broadcasts by source that it has had elsewhere and this rank has not.
    pub ahead: HashMap<u32, u64>,
}

/// What the rank knows of an element that is not here.
#[derive(Debug, Clone, Copy)]
pub struct Elsewhere {
    /// A step was over since it was heard.
    pub is_old: bool,
    /// None: it was removed.
    pub rank: Option<Rank>,
    pub moves: u64,
}

/// By an element's key. Keys are the program's own, so that the hash need not withstand those that
/// are chosen badly on purpose.
pub type ByKey<V> = HashMap<u64, V, RandomState>;

/// Source, number and item of a broadcast.
pub type Logged = (u32, u64, Box<[u8]>);

/// What an item takes in the log.
fn logged_bytes(item: &[u8]) -> usize {
    size_of::<Logged>() + item.len()
}

pub struct Table<E> {
    pub here: ByKey<Local<E>>,
    /// On the owner of a key as long as there is the element; else for the step in which it has
    /// left, and the one behind that.
    pub elsewhere: ByKey<Elsewhere>,
    /// Keys that this rank owns, whose elements have moved before it has heard that they were
    /// inserted: these two come from different ranks.
    pub early: HashSet<u64>,
    /// Elements that this rank has inserted, less those that it has removed.
    pub inserted: i64,
    /// Broadcasts heard, by source.
    pub heard: HashMap<u32, u64>,
    /// Broadcasts that an element may not have had that comes.
    pub log: Vec<Logged>,
    /// What they take, and may take.
    logged_bytes: usize,
    pub most_logged_bytes: usize,
    /// Of the log, those that were there when a step was over for the last time.
    pub logged: usize,
    pub late: u64,
    /// Steps of the stream, fences included, behind which this was settled.
    settled: u64,
    /// What a handler could not send.
    pub failure: Option<Error>,
}

impl<E> Table<E> {
    pub fn new() -> Self {
        Self {
            here: ByKey::default(),
            elsewhere: ByKey::default(),
            early: HashSet::new(),
            inserted: 0,
            heard: HashMap::new(),
            log: Vec::new(),
            logged_bytes: 0,
            most_logged_bytes: usize::MAX,
            logged: 0,
            late: 0,
            settled: 0,
            failure: None,
        }
    }

    /// The owner of a key hears where its element is, or that it is gone.
    pub fn note(
        &mut self,
        key: u64,
        rank: Option<Rank>,
        moves: u64,
    ) -> std::result::Result<(), &'static str> {
        let now = Elsewhere {
            rank,
            moves,
            is_old: false,
        };
        let known = match self.here.get(&key) {
            Some(local) => Some((None, local.moves)),
            None => self
                .elsewhere
                .get(&key)
                .map(|known| (known.rank, known.moves)),
        };
        match known {
            // Who has sent it there knows already.
            Some((rank, moves)) if moves == now.moves && rank == now.rank => Ok(()),
            Some((_, moves)) if moves == now.moves => Err("two ranks have inserted the same key"),
            // It has moved on meanwhile, and that was heard first.
            Some((_, moves)) if moves > now.moves => Ok(()),
            _ => {
                self.elsewhere.insert(key, now);
                Ok(())
            }
        }
    }

    /// Keeps a broadcast until no element can come without it.
    pub fn log(&mut self, source: u32, number: u64, item: &[u8]) -> Result<(), BadRun> {
        let bytes = self.logged_bytes.saturating_add(logged_bytes(item));
        let limit = self.most_logged_bytes;
        if bytes > limit {
            return Err(BadRun::Unkept { bytes, limit });
        }
        self.logged_bytes = bytes;
        self.log.push((source, number, item.into()));
        Ok(())
    }

    /// So many steps are over here.
    pub fn settle_until(&mut self, steps: u64, is_owner: impl Fn(u64) -> bool) {
        if self.settled < steps {
            self.settled = steps;
            self.settle(is_owner);
        }
    }

    /// A step is over here: nothing of it is under way, so no element that has left is looked for
    /// where it was, and none comes without the broadcasts of the step before.
    pub fn settle(&mut self, is_owner: impl Fn(u64) -> bool) {
        // What is not old may be of the next step already.
        self.elsewhere.retain(|&key, of| {
            let stays = is_owner(key) && of.rank.is_some();
            stays || !std::mem::replace(&mut of.is_old, true)
        });
        let old = self.log.drain(..self.logged);
        self.logged_bytes -= old.map(|old| logged_bytes(&old.2)).sum::<usize>();
        self.logged = self.log.len();
    }

    /// The record by which an element leaves; it stays until it has left.
    pub fn departure(&self, key: u64, codec: &impl Codec<E>, bytes: &mut Vec<u8>) -> Result<()> {
        let local = &self.here[&key];
        let mut seen = self.heard.clone();
        for (&source, &number) in &local.ahead {
            let known = seen.entry(source).or_default();
            *known = number.max(*known);
        }
        for word in [key, local.moves + 1, seen.len() as u64] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        for (source, number) in seen {
            bytes.extend_from_slice(&u64::from(source).to_le_bytes());
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        encode(codec, &local.element, bytes)
    }

    /// It has left.
    pub fn depart(&mut self, key: u64, to: Rank) {
        if let Some(local) = self.here.remove(&key) {
            let moves = local.moves + 1;
            let rank = Some(to);
            self.elsewhere.insert(
                key,
                Elsewhere {
                    rank,
                    moves,
                    is_old: false,
                },
            );
        }
    }

    /// Whether an element of this key is here, or known to be, or to have been, elsewhere.
    pub fn knows(&self, key: u64) -> bool {
        self.here.contains_key(&key) || self.elsewhere.contains_key(&key)
    }

    /// It goes, to no other rank; `None` where it is not here.
    pub fn remove(&mut self, key: u64) -> Option<E> {
        let local = self.here.remove(&key)?;
        self.inserted -= 1;
        let gone = Elsewhere {
            rank: None,
            moves: local.moves + 1,
            is_old: false,
        };
        self.elsewhere.insert(key, gone);
        Some(local.element)
    }
}

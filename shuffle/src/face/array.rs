//! Arrays: elements with keys, each on some rank, to which items are sent by key.
//!
//! An element begins where it is inserted, and may move. The owner of its key, which a function of
//! the program's names, knows where it is; so does, for a step, a rank that it has left. Who does
//! not sends what comes for it to the owner. A rank tells the owner of an element once that has
//! arrived there: until then the owner sends to where it was, which sends on behind the element
//! itself, so that nothing overtakes it on its way. All of that are messages of one stream: a fence,
//! or a step, ends when the last is where it belongs.

use std::cell::{RefCell, RefMut};
use std::collections::HashMap;
use std::marker::PhantomData;
use std::rc::Rc;

use trihop_transport::topology::Rank;

use super::codec::{Codec, with_scratch};
use super::coded::{decoded, no_value};
use super::shuffle::{Shuffle, ShuffleBuilder, each_message};
use crate::config::StreamOptions;
use crate::deliver::Message;
use crate::engine::BadRun;
use crate::engine::contribution::Contributors;
use crate::engine::outbound::Outbound;
use crate::engine::outbox::Outbox;
use crate::error::{Error, Result};
use crate::queue::audience::BroadcastTo;
use crate::seat::{Handle, Inline};
use crate::terminate::End;

// What a record is, by its kind.
const ITEM: u32 = 1;
const ELEMENT: u32 = 2;
const MOVED: u32 = 3;
const GONE: u32 = 4;
const EVERY: u32 = 5;

/// An element on this rank.
struct Local<E> {
    element: E,
    /// How often it has moved.
    moves: u64,
    /// Broadcasts by source that it has had elsewhere and this rank has not.
    ahead: HashMap<u32, u64>,
}

/// What the rank knows of an element that is not here.
#[derive(Debug, Clone, Copy)]
struct Elsewhere {
    /// None: it was removed.
    rank: Option<Rank>,
    moves: u64,
}

struct Table<E> {
    here: HashMap<u64, Local<E>>,
    /// On the owner of a key for good; else for the step in which it has left.
    elsewhere: HashMap<u64, Elsewhere>,
    /// Broadcasts that this rank has sent.
    sent: u64,
    /// Broadcasts heard, by source.
    heard: HashMap<u32, u64>,
    /// Source, number and item of broadcasts: an element may come that has not had them.
    log: Vec<(u32, u64, Box<[u8]>)>,
    /// Of the log, those that were there when a step was over for the last time.
    logged: usize,
    late: u64,
    /// What a handler could not send.
    failure: Option<Error>,
}

impl<E> Table<E> {
    fn new() -> Self {
        Self {
            here: HashMap::new(),
            elsewhere: HashMap::new(),
            sent: 0,
            heard: HashMap::new(),
            log: Vec::new(),
            logged: 0,
            late: 0,
            failure: None,
        }
    }

    /// The owner of a key hears where its element is, or that it is gone.
    fn note(&mut self, key: u64, now: Elsewhere) -> Result<(), &'static str> {
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

    /// A step is over here: nothing of it is under way, so no element that has left is looked for
    /// where it was, and none comes without the broadcasts of the step before.
    fn settle(&mut self, is_owner: impl Fn(u64) -> bool) {
        self.elsewhere.retain(|&key, _| is_owner(key));
        self.log.drain(..self.logged);
        self.logged = self.log.len();
    }

    /// The record by which an element leaves; it stays until it has left.
    fn departure(
        &self,
        key: u64,
        codec: &impl Codec<E>,
        bytes: &mut Vec<u8>,
    ) -> Result<(), String> {
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
        codec.encode(&local.element, bytes)
    }

    /// It has left.
    fn depart(&mut self, key: u64, to: Rank) {
        if let Some(local) = self.here.remove(&key) {
            let moves = local.moves + 1;
            let rank = Some(to);
            self.elsewhere.insert(key, Elsewhere { rank, moves });
        }
    }
}

fn word(bytes: &mut &[u8]) -> Option<u64> {
    let (word, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*word))
}

fn with_words<R>(words: &[u64], send: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    with_scratch(|bytes| {
        words
            .iter()
            .for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
        send(bytes)
    })
}

/// The rank whose number a key has, modulo ranks.
fn cyclic(key: u64, size: u32) -> Rank {
    Rank((key % u64::from(size)) as u32)
}

type Owner<'h> = Rc<dyn Fn(u64) -> Rank + 'h>;

/// Opens an [`Array`]: owners, options, handler.
pub struct ArrayBuilder<'h, E, T, C> {
    shuffle: ShuffleBuilder<Inline<'h>>,
    codec: C,
    owner: Owner<'h>,
    size: u32,
    of: PhantomData<fn() -> (E, T)>,
}

impl<'h, E: 'h, T: 'h, C> ArrayBuilder<'h, E, T, C>
where
    C: Codec<E> + Codec<T> + Clone + 'h,
{
    pub(crate) fn new(seat: &Inline<'h>, name: &str, size: u32, codec: C) -> Self {
        Self {
            shuffle: ShuffleBuilder::new(seat, name),
            codec,
            owner: Rc::new(move |key| cyclic(key, size)),
            size,
            of: PhantomData,
        }
    }

    /// Who knows where the element of a key is: the same on all ranks. Without this, the ranks in
    /// turn, by key. What is sent to an element that is with its owner goes straight there.
    pub fn owner(mut self, owner: impl Fn(u64) -> Rank + 'h) -> Self {
        self.owner = Rc::new(owner);
        self
    }

    /// Options of this array's stream instead of the job's.
    pub fn options(mut self, options: StreamOptions) -> Self {
        self.shuffle = self.shuffle.options(options);
        self
    }

    /// Opens the array, without elements; collective. `handler` is called for each item with the
    /// key and the element that it was sent to.
    ///
    /// # Errors
    /// Impossible options, ranks that disagree, memory, and the transport's.
    pub fn open(
        self,
        handler: impl FnMut(u64, &mut E, T, &mut ArrayOutbox<'_, T, C>) + 'h,
    ) -> Result<Array<'h, E, T, C>> {
        let table = Rc::new(RefCell::new(Table::new()));
        let mut keeper = Keeper {
            table: Rc::clone(&table),
            codec: self.codec.clone(),
            owner: Rc::clone(&self.owner),
            handler,
            of: PhantomData,
        };
        let shuffle = self
            .shuffle
            .handle_by(Box::new(move |delivery, done, outbox| {
                let mut bad = None;
                let taken = each_message(delivery, done, |message, first| {
                    if !first && outbox.has_overfilled() {
                        return false;
                    }
                    bad = keeper.take(message, outbox).err();
                    bad.is_none()
                });
                bad.map_or(taken, Err)
            }));
        Ok(Array {
            handle: shuffle.open()?.handle,
            table,
            codec: self.codec,
            owner: self.owner,
            size: self.size,
            of: PhantomData,
        })
    }
}

/// What the handler of an [`Array`] gets to send with: as [`Outbox`].
pub struct ArrayOutbox<'a, T, C> {
    outbox: Outbox<'a>,
    codec: &'a C,
    owner: &'a dyn Fn(u64) -> Rank,
    sent: &'a mut u64,
    migrates: &'a mut Option<Rank>,
    item: PhantomData<fn() -> T>,
}

impl<T, C: Codec<T>> ArrayOutbox<'_, T, C> {
    /// This rank.
    pub fn rank(&self) -> Rank {
        self.outbox.rank()
    }

    /// Ranks of the job.
    pub fn size(&self) -> u32 {
        self.outbox.size()
    }

    /// Sends an item to the element of a key, or spills it.
    ///
    /// # Errors
    /// As [`Outbox::send`]; an item that the codec refuses.
    pub fn push(&mut self, key: u64, item: &T) -> Result<()> {
        let target = (self.owner)(key);
        with_words(&[key], |bytes| {
            encode(self.codec, item, bytes)?;
            self.outbox.send(target, ITEM, bytes)
        })
    }

    /// Sends an item to every element, or spills it.
    ///
    /// # Errors
    /// As [`ArrayOutbox::push`].
    pub fn broadcast(&mut self, item: &T) -> Result<()> {
        let number = *self.sent + 1;
        with_words(&[number], |bytes| {
            encode(self.codec, item, bytes)?;
            self.outbox.broadcast(EVERY, bytes, BroadcastTo::Everyone)
        })?;
        *self.sent = number;
        Ok(())
    }

    /// Has the element for which the handler was called move to another rank, as soon as the handler
    /// has returned.
    ///
    /// # Errors
    /// A rank that is not in the job.
    pub fn migrate(&mut self, to: Rank) -> Result<()> {
        self.outbox.check(to, 0)?;
        *self.migrates = Some(to);
        Ok(())
    }

    /// So many contributors of the array's step are done: see [`Array::begin_step`].
    ///
    /// # Errors
    /// As [`crate::Shuffle::done`].
    pub fn done(&mut self, contributors: u64) -> Result<()> {
        self.outbox.done(contributors)
    }
}

fn encode<V>(codec: &impl Codec<V>, value: &V, bytes: &mut Vec<u8>) -> Result<()> {
    let written = codec.encode(value, bytes);
    written.map_err(|why| Error::config("value", why))
}

/// What takes the records of an array.
struct Keeper<'h, E, T, C, H> {
    table: Rc<RefCell<Table<E>>>,
    codec: C,
    owner: Owner<'h>,
    handler: H,
    of: PhantomData<fn() -> T>,
}

impl<E, T, C, H> Keeper<'_, E, T, C, H>
where
    C: Codec<E> + Codec<T>,
    H: FnMut(u64, &mut E, T, &mut ArrayOutbox<'_, T, C>),
{
    fn take(&mut self, message: Message<'_>, outbox: &mut Outbox<'_>) -> Result<(), BadRun> {
        let table = Rc::clone(&self.table);
        let mut table = in_use(&table);
        let table = &mut *table;
        let source = message.source;
        let mut rest = message.bytes;
        let no_words = || no_value(source, "a record of an array is too short");
        let key = word(&mut rest).ok_or_else(no_words)?;
        match message.kind {
            ITEM if table.here.contains_key(&key) => self.call(table, key, source, rest, outbox),
            ITEM => {
                let owner = (self.owner)(key);
                let known = table.elsewhere.get(&key).map(|known| known.rank);
                let next = known.unwrap_or((owner != outbox.rank()).then_some(owner));
                let Some(next) = next else {
                    let why = format!("an item for element {key}, which no rank has");
                    return Err(no_value(source, why));
                };
                table.late += 1;
                let sent = outbox.send(next, ITEM, message.bytes);
                keep(table, sent);
                Ok(())
            }
            ELEMENT => self.arrive(table, key, source, rest, outbox),
            MOVED | GONE => {
                let moves = word(&mut rest).ok_or_else(no_words)?;
                let rank = (message.kind == MOVED).then_some(source);
                let noted = table.note(key, Elsewhere { rank, moves });
                noted.map_err(|why| no_value(source, format!("element {key}: {why}")))
            }
            EVERY => {
                let number = key;
                let heard = table.heard.entry(source.0).or_default();
                if number != *heard + 1 {
                    return Err(no_value(source, "a broadcast out of order"));
                }
                *heard = number;
                table.log.push((source.0, number, rest.into()));
                let keys: Vec<u64> = table.here.keys().copied().collect();
                keys.into_iter().try_for_each(|key| {
                    let ahead = table.here[&key].ahead.get(&source.0);
                    match ahead.is_some_and(|&ahead| ahead >= number) {
                        true => Ok(()),
                        false => self.call(table, key, source, rest, outbox),
                    }
                })
            }
            _ => Err(no_value(source, "a record of no kind that arrays have")),
        }
    }

    /// Calls the handler for an element that is here, and lets it move if it is to.
    fn call(
        &mut self,
        table: &mut Table<E>,
        key: u64,
        source: Rank,
        item: &[u8],
        outbox: &mut Outbox<'_>,
    ) -> Result<(), BadRun> {
        let Some(local) = table.here.get_mut(&key) else {
            return Ok(());
        };
        let item = decoded::<T>(&self.codec, source, item)?;
        let mut migrates = None;
        let mut with = ArrayOutbox {
            outbox: outbox.again(),
            codec: &self.codec,
            owner: &*self.owner,
            sent: &mut table.sent,
            migrates: &mut migrates,
            item: PhantomData,
        };
        (self.handler)(key, &mut local.element, item, &mut with);
        let Some(to) = migrates.filter(|&to| to != outbox.rank()) else {
            return Ok(());
        };
        let sent = with_scratch(|bytes| {
            let written = table.departure(key, &self.codec, bytes);
            written.map_err(|why| Error::config("value", why))?;
            outbox.send(to, ELEMENT, bytes)
        });
        if keep(table, sent) {
            table.depart(key, to);
        }
        Ok(())
    }

    /// An element comes.
    fn arrive(
        &mut self,
        table: &mut Table<E>,
        key: u64,
        source: Rank,
        mut rest: &[u8],
        outbox: &mut Outbox<'_>,
    ) -> Result<(), BadRun> {
        let no_words = || no_value(source, "an element without its words");
        let moves = word(&mut rest).ok_or_else(no_words)?;
        let mut seen = HashMap::new();
        for _ in 0..word(&mut rest).ok_or_else(no_words)? {
            let (from, number) = (word(&mut rest), word(&mut rest));
            let from = from.and_then(|from| u32::try_from(from).ok());
            let (from, number) = from.zip(number).ok_or_else(no_words)?;
            seen.insert(from, number);
        }
        let element = decoded::<E>(&self.codec, source, rest)?;
        if table.here.contains_key(&key) {
            let why = format!("element {key} comes to where it is");
            return Err(no_value(source, why));
        }
        table.elsewhere.remove(&key);
        let heard = |from: &u32| table.heard.get(from).copied().unwrap_or(0);
        let ahead = seen.iter().filter(|(from, number)| heard(from) < **number);
        let ahead = ahead.map(|(from, number)| (*from, *number)).collect();
        let local = Local {
            element,
            moves,
            ahead,
        };
        table.here.insert(key, local);
        let owner = (self.owner)(key);
        if owner != outbox.rank() {
            let sent = with_words(&[key, moves], |bytes| outbox.send(owner, MOVED, bytes));
            keep(table, sent);
        }
        // What it has missed on its way.
        let is_new = |(from, number, _): &&(u32, u64, Box<[u8]>)| {
            *number > seen.get(from).copied().unwrap_or(0)
        };
        let missed: Vec<_> = table.log.iter().filter(is_new).cloned().collect();
        for (at, (from, _, item)) in missed.iter().enumerate() {
            if !table.here.contains_key(&key) {
                // It has moved on in between: what is left of them follows it.
                let to = table.elsewhere.get(&key).and_then(|known| known.rank);
                let rest = missed[at..].iter();
                for ((_, _, item), to) in rest.zip(std::iter::repeat(to)) {
                    let to = to.unwrap_or(owner);
                    let sent = with_words(&[key], |bytes| {
                        bytes.extend_from_slice(item);
                        outbox.send(to, ITEM, bytes)
                    });
                    keep(table, sent);
                }
                break;
            }
            self.call(table, key, Rank(*from), item, outbox)?;
        }
        Ok(())
    }
}

/// Keeps what a handler could not send, for the next call of the program; whether it could.
fn keep<E>(table: &mut Table<E>, sent: Result<()>) -> bool {
    match sent {
        Ok(()) => true,
        Err(error) => {
            table.failure.get_or_insert(error);
            false
        }
    }
}

fn in_use<E>(table: &RefCell<Table<E>>) -> RefMut<'_, Table<E>> {
    match table.try_borrow_mut() {
        Ok(table) => table,
        Err(_) => panic!(
            "an array is in use: a call of it was made inside of its handler, or inside of its `with`"
        ),
    }
}

/// Elements with keys of 64 bits, of which each rank of an inline job has some, and to which items
/// are sent by key: the cells of a grid, the vertices of a graph, the patients of a simulation. An
/// element may move to another rank, between steps or while items are on their way to it: they are
/// sent on to where it is, each exactly once. What is sent to one element keeps its order as long as
/// that stays.
///
/// All ranks insert their elements and then [fence](Array::fence) before anybody sends to them.
/// Items and elements travel by the [`Codec`] of the array.
///
/// ```
/// use trihop_shuffle::{Job, Options, Plain, Rank};
///
/// let job = Job::start(Options::from_env()?)?;
/// // Counters, to which numbers are added. Each moves to the next rank when it has had enough.
/// let counters = job.array::<u64, u64, _>("counters", Plain).open(|_key, sum, number, outbox| {
///     *sum += number;
///     if *sum % 1000 == 0 {
///         outbox.migrate(Rank((outbox.rank().0 + 1) % outbox.size())).expect("a rank of the job");
///     }
/// })?;
/// for key in (0..100).filter(|key| key % u64::from(job.size()) == u64::from(job.rank().0)) {
///     counters.insert(key, 0)?;
/// }
/// counters.fence()?;
/// for number in 0..10_000 {
///     counters.push(number % 100, &number)?;
/// }
/// counters.fence()?;
/// let sum: u64 = counters.with(|_key, sum| *sum).iter().sum();
/// assert!(job.size() > 1 || sum == 9_999 * 5_000);
/// job.shutdown()?;
/// # Ok::<(), trihop_shuffle::Error>(())
/// ```
pub struct Array<'h, E, T, C> {
    handle: Handle<Inline<'h>>,
    table: Rc<RefCell<Table<E>>>,
    codec: C,
    owner: Owner<'h>,
    size: u32,
    of: PhantomData<fn() -> T>,
}

impl<'h, E, T, C: Codec<E> + Codec<T>> Array<'h, E, T, C> {
    /// Puts an element here. Everybody sends to it after the next fence, not before.
    ///
    /// # Errors
    /// [`Error::Misuse`] where this rank has the key already; as [`crate::Shuffle::send`]. Where
    /// another rank has it, the job ends.
    pub fn insert(&self, key: u64, element: E) -> Result<()> {
        let table = in_use(&self.table);
        if table.here.contains_key(&key) {
            let why = format!("element {key} is here already");
            return Err(Error::misuse(&self.handle.name, why));
        }
        drop(table);
        let owner = self.owner_of(key)?;
        if owner != self.handle.rank {
            with_words(&[key, 0], |bytes| self.send(owner, MOVED, bytes))?;
        } else if in_use(&self.table).elsewhere.contains_key(&key) {
            let why = format!("element {key} is on another rank already");
            return Err(Error::misuse(&self.handle.name, why));
        }
        let local = Local {
            element,
            moves: 0,
            ahead: HashMap::new(),
        };
        in_use(&self.table).here.insert(key, local);
        Ok(())
    }

    /// Takes an element that is here away; `None` where it is not. What is sent to it later ends the
    /// job.
    ///
    /// # Errors
    /// As [`crate::Shuffle::send`].
    pub fn remove(&self, key: u64) -> Result<Option<E>> {
        let owner = self.owner_of(key)?;
        let Some(local) = in_use(&self.table).here.remove(&key) else {
            return Ok(None);
        };
        let moves = local.moves + 1;
        match owner == self.handle.rank {
            true => {
                let gone = Elsewhere { rank: None, moves };
                in_use(&self.table).elsewhere.insert(key, gone);
            }
            false => with_words(&[key, moves], |bytes| self.send(owner, GONE, bytes))?,
        }
        Ok(Some(local.element))
    }

    /// Sends an item to the element of a key, wherever that is; waits as
    /// [`Shuffle::send`](crate::Shuffle::send) does.
    ///
    /// # Errors
    /// As that; an item that the codec refuses. Where no rank has the element, the job ends.
    pub fn push(&self, key: u64, item: &T) -> Result<()> {
        let owner = self.owner_of(key)?;
        with_words(&[key], |bytes| {
            encode(&self.codec, item, bytes)?;
            self.send(owner, ITEM, bytes)
        })
    }

    /// Sends an item to every element, each of which gets it once, also one that moves meanwhile.
    ///
    /// # Errors
    /// As [`Array::push`].
    pub fn broadcast(&self, item: &T) -> Result<()> {
        self.attempt(|out| {
            let mut table = in_use(&self.table);
            let number = table.sent + 1;
            with_words(&[number], |bytes| {
                encode(&self.codec, item, bytes)?;
                out.try_broadcast(BroadcastTo::Everyone, EVERY, bytes)
            })?;
            table.sent = number;
            Ok(())
        })
    }

    /// Has an element that is here move to another rank.
    ///
    /// # Errors
    /// [`Error::Misuse`] where it is not here; as [`Array::push`], with the element still here.
    pub fn migrate(&self, key: u64, to: Rank) -> Result<()> {
        self.attempt(|out| {
            out.check(to, 0)?;
            let mut table = in_use(&self.table);
            if !table.here.contains_key(&key) {
                let why = format!("element {key} is not here, or has moved already");
                return Err(Error::misuse(&self.handle.name, why));
            }
            if to == self.handle.rank {
                return Ok(());
            }
            with_scratch(|bytes| {
                let written = table.departure(key, &self.codec, bytes);
                written.map_err(|why| Error::config("value", why))?;
                out.try_send(to, ELEMENT, bytes)
            })?;
            table.depart(key, to);
            Ok(())
        })
    }

    /// Uses every element that is here, in no order; what comes of each.
    pub fn with<R>(&self, mut each: impl FnMut(u64, &mut E) -> R) -> Vec<R> {
        let mut table = in_use(&self.table);
        let all = table.here.iter_mut();
        all.map(|(&key, local)| each(key, &mut local.element))
            .collect()
    }

    /// Elements that are here.
    pub fn len(&self) -> usize {
        in_use(&self.table).here.len()
    }

    /// Whether no element is here.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Items that came here for elements elsewhere, and were sent on.
    pub fn late(&self) -> u64 {
        in_use(&self.table).late
    }

    /// Collective: everything that was sent before is handled, also what handlers sent because of
    /// it, and every element is where it was sent.
    ///
    /// # Errors
    /// As [`Shuffle::fence`](crate::Shuffle::fence), and what handlers could not send.
    pub fn fence(&self) -> Result<()> {
        self.shuffle().fence()?;
        self.settle()
    }

    /// Begins a step of which each element that is here now is a contributor: a rank without any is
    /// done at once. See [`Shuffle::begin_step`](crate::Shuffle::begin_step); the step ends by
    /// [`Array::test`] or [`Array::wait`]. An element's contribution is done on the rank where the
    /// step has begun for it.
    ///
    /// # Errors
    /// As that.
    pub fn begin_step(&self) -> Result<()> {
        let contributors = self.len() as u64;
        self.handle
            .start(End::Completion(Contributors::Local(contributors)))
    }

    /// So many of this rank's contributors have sent what they have to send.
    ///
    /// # Errors
    /// As [`Shuffle::done`](crate::Shuffle::done).
    pub fn done(&self, contributors: u64) -> Result<()> {
        self.handle.done(contributors)
    }

    /// One round of progress, and whether the step is over.
    ///
    /// # Errors
    /// As [`Shuffle::test`](crate::Shuffle::test), and what handlers could not send.
    pub fn test(&self) -> Result<bool> {
        let is_over = self.handle.test()?;
        if is_over {
            self.settle()?;
        }
        Ok(is_over)
    }

    /// Waits until the step is over.
    ///
    /// # Errors
    /// As [`Array::test`].
    pub fn wait(&self) -> Result<()> {
        self.handle.wait()?;
        self.settle()
    }

    /// One round of progress; how many records were handled.
    ///
    /// # Errors
    /// As [`Shuffle::poll`](crate::Shuffle::poll).
    pub fn poll(&self) -> Result<u64> {
        self.handle.poll()
    }

    /// The last fence; the elements that are here then, with their keys. Collective.
    ///
    /// # Errors
    /// As [`Array::fence`].
    pub fn shutdown(self) -> Result<Vec<(u64, E)>> {
        self.shuffle().shutdown()?;
        self.settle()?;
        let here = std::mem::take(&mut in_use(&self.table).here);
        let elements = here.into_iter();
        Ok(elements.map(|(key, local)| (key, local.element)).collect())
    }

    fn shuffle(&self) -> Shuffle<Inline<'h>> {
        Shuffle {
            handle: self.handle.clone(),
        }
    }

    fn owner_of(&self, key: u64) -> Result<Rank> {
        let (owner, size) = ((self.owner)(key), self.size);
        let rank = owner.0;
        match rank < size {
            true => Ok(owner),
            false => Err(Error::Rank { rank, size }),
        }
    }

    fn send(&self, target: Rank, kind: u32, bytes: &[u8]) -> Result<()> {
        self.attempt(|out| out.try_send(target, kind, bytes))
    }

    /// Sends as soon as there is room. Nobody else uses the table while `send` does.
    fn attempt(&self, send: impl FnMut(&mut Outbound) -> Result<()>) -> Result<()> {
        self.handle.send_with(send)
    }

    fn settle(&self) -> Result<()> {
        let mut table = in_use(&self.table);
        let here = self.handle.rank;
        table.settle(|key| (self.owner)(key) == here);
        table.failure.take().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::ranks::ranks;
    use crate::face::codec::Plain;
    use crate::{Job, Options};
    use trihop_transport::bootstrap::{Custom, Launcher};

    const RANKS: u32 = 4;
    const KEYS: u64 = 24;
    const ITEMS: u64 = 600;
    const NEWS: u64 = 5;
    /// An item that is news to all; others are added up.
    const ALL: u64 = 1 << 40;

    /// What an element has had: a sum, items, news, moves.
    type Had = [u64; 4];

    fn mixed(number: u64) -> u64 {
        (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) ^ number >> 3
    }

    /// Elements move about while items, and news for all, are on their way to them.
    fn wander(rank: u32, bootstrap: Custom) -> Result<(Vec<(u64, Had)>, u64)> {
        let options = Options {
            loopback: true,
            ..Options::default()
        };
        let job = Job::start_with(options, Box::new(bootstrap))?;
        let array = job.array::<Had, u64, _>("wanderers", Plain);
        let array = array.open(|key, had, item, outbox| {
            match item {
                ALL => had[2] += 1,
                _ => (had[0], had[1]) = (had[0] + item, had[1] + 1),
            }
            if mixed(key + had[1] + had[2] * 7) % 5 == 0 {
                had[3] += 1;
                let to = mixed(key ^ had[0]) % u64::from(outbox.size());
                outbox.migrate(Rank(to as u32)).unwrap();
            }
            // Some go on to another element.
            if item % 7 == 1 && item < ALL {
                outbox.push((key + item) % KEYS, &(item - 1)).unwrap();
            }
        })?;
        for key in (0..KEYS).filter(|key| mixed(*key) % u64::from(RANKS) == u64::from(rank)) {
            array.insert(key, Had::default())?;
            assert!(matches!(
                array.insert(key, Had::default()),
                Err(Error::Misuse { .. })
            ));
        }
        array.fence()?;
        for step in 0..4 {
            let mine = array.len() as u64;
            array.begin_step()?;
            // Who has no elements sends nothing.
            for number in 0..if mine > 0 { ITEMS } else { 0 } {
                array.push(mixed(number + step) % KEYS, &(number % 50))?;
                if number % (ITEMS / NEWS) == 3 {
                    array.broadcast(&ALL)?;
                }
                if number % 50 == 0 {
                    let here = array.with(|key, _| key);
                    if let Some(&key) = here.first() {
                        array.migrate(key, Rank((rank + 1) % RANKS))?;
                    }
                }
            }
            if mine > 0 {
                array.done(mine)?;
            }
            array.wait()?;
            // How many have sent, which is how often all have had the news.
            let mut counts = [u64::from(mine > 0) * NEWS];
            job.allreduce(&mut counts, crate::Reduce::Sum)?;
            array.with(|key, had| {
                had[2] = had[2]
                    .checked_sub(counts[0])
                    .unwrap_or_else(|| panic!("{key}: {had:?}"));
                assert_eq!(had[2], 0, "element {key} has had news twice");
            });
            job.barrier()?;
        }
        let late = array.late();
        let elements = array.shutdown()?;
        job.shutdown()?;
        Ok((elements, late))
    }

    #[test]
    fn elements_move_and_each_item_finds_its_own_once() {
        let (mut elements, mut late) = (Vec::new(), 0);
        for (rank, outcome) in ranks(RANKS, |rank| rank / 2, wander) {
            match outcome {
                Ok((mine, so_late)) => (elements.extend(mine), late += so_late).1,
                Err(Error::NoProvider { why }) => return eprintln!("skipped: {why}"),
                Err(error) => panic!("rank {rank}: {error}"),
            }
        }
        elements.sort_unstable();
        let keys: Vec<u64> = elements.iter().map(|(key, _)| *key).collect();
        assert_eq!(keys, (0..KEYS).collect::<Vec<_>>());
        let all = |which: usize| elements.iter().map(|(_, had)| had[which]).sum::<u64>();
        assert!(all(3) > 100 && late > 100, "{} moves, {late} late", all(3));
        // What was sent, and what handlers made of it.
        let per_sender: (u64, u64) =
            (0..ITEMS)
                .map(|number| number % 50)
                .fold((0, 0), |sums, item| {
                    let more = if item % 7 == 1 { (1, item - 1) } else { (0, 0) };
                    (sums.0 + 1 + more.0, sums.1 + item + more.1)
                });
        let (count, sum) = (all(1), all(0));
        assert_eq!(
            count % per_sender.0,
            0,
            "{count} items, {per_sender:?} of each"
        );
        assert_eq!(sum, count / per_sender.0 * per_sender.1);
    }

    #[test]
    fn what_nobody_has_ends_the_job() {
        let options = Options {
            launcher: Some(Launcher::Single),
            ..Options::default()
        };
        let job = Job::start(options).unwrap();
        let array = job.array::<u64, u64, _>("few", Plain);
        let array = array.open(|_, sum, item, _| *sum += item).unwrap();
        array.insert(7, 1).unwrap();
        array.push(7, &2).unwrap();
        array.fence().unwrap();
        assert!(matches!(
            array.migrate(8, Rank(0)),
            Err(Error::Misuse { .. })
        ));
        assert!(matches!(array.migrate(7, Rank(1)), Err(Error::Rank { .. })));
        array.migrate(7, Rank(0)).unwrap();
        assert_eq!(array.remove(7).unwrap(), Some(3));
        assert_eq!(array.remove(7).unwrap(), None);
        array.fence().unwrap();
        array.push(7, &1).unwrap();
        let failed = array.fence().unwrap_err();
        assert!(matches!(failed, Error::BadPeer { .. }), "{failed:?}");
    }
}

//! What takes the records of an array: calls the handler, and lets elements come and go.

use std::collections::HashMap;
use std::marker::PhantomData;

use trihop_transport::sync::Arc;
use trihop_transport::topology::Rank;

use super::elements::{Elements, InUse};
use super::table::{Local, Logged, Table};
use super::{ArrayOutbox, ELEMENT, EVERY, GONE, INSERTED, ITEM, MOVED, Owners, with_words};
use crate::deliver::Message;
use crate::engine::BadRun;
use crate::error::Result;
use crate::face::codec::{Codec, with_scratch};
use crate::face::coded::{decoded, no_value};
use crate::seat::{HandlerOutbox, Seat};

fn word(bytes: &mut &[u8]) -> Option<u64> {
    let (word, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*word))
}

/// What takes the records of an array.
pub(crate) struct Keeper<E, T, C, S: Seat, H> {
    pub elements: Arc<Elements<E>>,
    pub codec: C,
    pub owners: Owners<S>,
    pub handler: H,
    pub of: PhantomData<fn() -> T>,
}

/// The table, for the records of a run.
pub(crate) fn lock<E>(elements: &Elements<E>) -> InUse<'_, E> {
    match elements.lock("a delivery") {
        Ok(table) => table,
        Err(_) => panic!(
            "handlers need the elements of an array while this thread has those of one: inside of \
             `with`, another job has made progress"
        ),
    }
}

impl<E, T, C, S, H> Keeper<E, T, C, S, H>
where
    C: Codec<E> + Codec<T>,
    S: Seat,
    H: FnMut(u64, &mut E, T, &mut ArrayOutbox<'_, E, T, C, S>),
{
    /// Takes a record; `table` is that of the keeper's elements.
    pub fn take(
        &mut self,
        table: &mut Table<E>,
        message: Message<'_>,
        outbox: &mut S::Outbox<'_>,
    ) -> Result<(), BadRun> {
        let source = message.source;
        let mut rest = message.bytes;
        let no_words = || no_value(source, "a record of an array is too short");
        let key = word(&mut rest).ok_or_else(no_words)?;
        match message.kind {
            ITEM => {
                if self.call(table, key, source, rest, outbox)? {
                    return Ok(());
                }
                let owner = self.owners.of(key);
                let known = table.elsewhere.get(&key).map(|known| known.rank);
                let next = known.unwrap_or((owner != outbox.rank()).then_some(owner));
                let next = next.ok_or(BadRun::Element(key))?;
                table.late += 1;
                let sent = outbox.send(next, ITEM, message.bytes);
                self.elements.keep(table, sent);
                Ok(())
            }
            ELEMENT => self.arrive(table, key, source, rest, outbox),
            MOVED | GONE => {
                let moves = word(&mut rest).ok_or_else(no_words)?;
                let rank = (message.kind == MOVED).then_some(source);
                if !table.knows(key) {
                    table.early.insert(key);
                }
                let noted = table.note(key, rank, moves);
                noted.map_err(|why| no_value(source, format!("element {key}: {why}")))
            }
            INSERTED if table.early.remove(&key) => Ok(()),
            INSERTED if table.knows(key) => {
                let why = format!("element {key} was inserted twice, the second time by that rank");
                Err(no_value(source, why))
            }
            INSERTED => {
                let noted = table.note(key, Some(source), 0);
                noted.map_err(|why| no_value(source, why))
            }
            EVERY => {
                let number = key;
                let heard = table.heard.entry(source.0).or_default();
                if number != *heard + 1 {
                    return Err(no_value(source, "a broadcast out of order"));
                }
                *heard = number;
                table.log(source.0, number, rest)?;
                let keys: Vec<u64> = table.here.keys().copied().collect();
                keys.into_iter().try_for_each(|key| {
                    let ahead = table.here[&key].ahead.get(&source.0);
                    match ahead.is_some_and(|&ahead| ahead >= number) {
                        true => Ok(()),
                        false => self.call(table, key, source, rest, outbox).map(drop),
                    }
                })
            }
            _ => Err(no_value(source, "a record of no kind that arrays have")),
        }
    }

    /// Calls the handler for an element, if it is here, and lets it move if it is to; whether it
    /// was.
    fn call(
        &mut self,
        table: &mut Table<E>,
        key: u64,
        source: Rank,
        item: &[u8],
        outbox: &mut S::Outbox<'_>,
    ) -> Result<bool, BadRun> {
        let Some(local) = table.here.get_mut(&key) else {
            return Ok(false);
        };
        let item = decoded::<T>(&self.codec, source, item)?;
        let mut migrates = None;
        let mut with = ArrayOutbox {
            outbox: S::again(outbox),
            codec: &self.codec,
            owners: &self.owners,
            elements: &self.elements,
            migrates: Some(&mut migrates),
            item: PhantomData,
        };
        (self.handler)(key, &mut local.element, item, &mut with);
        drop(with);
        let Some(to) = migrates.filter(|&to| to != outbox.rank()) else {
            return Ok(true);
        };
        let sent = with_scratch(|bytes| {
            table.departure(key, &self.codec, bytes)?;
            outbox.send(to, ELEMENT, bytes)
        });
        if self.elements.keep(table, sent) {
            table.depart(key, to);
        }
        Ok(true)
    }

    /// An element comes.
    fn arrive(
        &mut self,
        table: &mut Table<E>,
        key: u64,
        source: Rank,
        mut rest: &[u8],
        outbox: &mut S::Outbox<'_>,
    ) -> Result<(), BadRun> {
        let no_words = || no_value(source, "an element without its words");
        let moves = word(&mut rest).ok_or_else(no_words)?;
        let mut seen = HashMap::new();
        for _ in 0..word(&mut rest).ok_or_else(no_words)? {
            let (from, number) = (word(&mut rest), word(&mut rest));
            let size = outbox.size();
            let from = from.and_then(|from| u32::try_from(from).ok().filter(|&from| from < size));
            let (from, number) = from.zip(number).ok_or_else(no_words)?;
            seen.insert(from, number);
        }
        let element = decoded::<E>(&self.codec, source, rest)?;
        let before = table.elsewhere.get(&key).map_or(0, |known| known.moves);
        if moves <= before || moves == u64::MAX {
            return Err(no_value(source, "an element with fewer moves than it had"));
        }
        if table.here.contains_key(&key) {
            let why = format!("element {key} comes to where it is");
            return Err(no_value(source, why));
        }
        let owner = self.owners.of(key);
        if owner == outbox.rank() && !table.knows(key) {
            table.early.insert(key);
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
        if owner != outbox.rank() {
            let sent = with_words(&[key, moves], |bytes| outbox.send(owner, MOVED, bytes));
            self.elements.keep(table, sent);
        }
        // What it has missed on its way.
        let is_new = |(from, number, _): &&Logged| *number > seen.get(from).copied().unwrap_or(0);
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
                    self.elements.keep(table, sent);
                }
                break;
            }
            self.call(table, key, Rank(*from), item, outbox)?;
        }
        Ok(())
    }
}

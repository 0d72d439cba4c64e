//! What the ranks of a process ask of its relay: it opens and closes the same streams as they do,
//! and speaks with the launcher for them.
//!
//! All ranks of a process make the same requests in the same order, since the calls behind them
//! are collective and each rank makes them one at a time. So a request has a number, which each
//! rank counts by itself, and is made once for all. To close a stream has no number: a thread may
//! do that while another one opens a stream, and on each rank it may come before that or behind.

use std::collections::{HashMap, VecDeque};

use crate::config::StreamOptions;
use crate::error::{Error, Result};
use crate::queue::limits::LinkTerms;

/// What a relay is to do.
#[derive(Debug, Clone)]
pub(crate) enum Request {
    /// To begin to open such a stream: [`Answer::Begun`].
    Begin {
        name: String,
        options: Box<StreamOptions>,
        item_bytes: usize,
        /// The closed stream whose place it could have on the rank that asks. Which one fits is the
        /// ranks' to say: options that they need not have in common are theirs.
        again: Option<u16>,
    },
    /// To open the stream that it has begun to open: [`Answer::Opened`].
    Open(Way),
    /// To forget it: the ranks do not agree.
    Forget,
    /// To give up the stream that it has opened: not all have.
    GiveUp,
    /// To close the stream with this number, which all ranks have closed. The request itself has
    /// no number.
    Retire(u16),
    /// To say how many bytes of the stream with this number it has handed to the fabric:
    /// [`Answer::Counted`].
    Count(u16),
    /// To wait for all ranks of the job at the launcher, once all of this process ask for it:
    /// [`Answer::Arrived`]. `alone`: the launcher cannot be asked, and all have arrived.
    Arrive { alone: bool },
}

/// How a stream is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// In the place of this closed one.
    Again(u16),
    /// As a new one, on the terms of all endpoints of the job.
    New(LinkTerms),
}

/// What comes of it.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// What the relay can: the terms of its links, and this closed stream used again.
    Begun(Result<(LinkTerms, Option<u16>)>),
    /// Whether it has the stream.
    Opened(Result<()>),
    /// So many bytes.
    Counted(u64),
    /// All have arrived, or not.
    Arrived(Result<()>),
}

impl Request {
    /// Whether all ranks of the process have to make it before anything is done.
    fn is_of_all(&self) -> bool {
        matches!(self, Self::Arrive { .. })
    }

    /// Whether it has a number.
    pub fn is_counted(&self) -> bool {
        !matches!(self, Self::Retire(_))
    }

    /// Whether it is answered.
    fn is_answered(&self) -> bool {
        matches!(
            self,
            Self::Begin { .. } | Self::Open(_) | Self::Count(_) | Self::Arrive { .. }
        )
    }
}

/// The requests of a process's ranks that are not over.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// Number of the first of them.
    first: u64,
    list: VecDeque<Entry>,
    /// Streams to be closed, before anything else is done.
    retired: VecDeque<u16>,
    /// How many ranks have said so of a stream, while not all have.
    retired_by: HashMap<u16, u32>,
    /// What keeps an endpoint of this process from going on.
    failure: Option<Error>,
}

#[derive(Debug)]
struct Entry {
    request: Request,
    /// Ranks that have made it, and that have taken its answer.
    asked: u32,
    taken: u32,
    done: bool,
    answer: Option<Answer>,
}

impl Requests {
    fn entry(&mut self, number: u64) -> Option<&mut Entry> {
        let place = number.checked_sub(self.first)?;
        self.list.get_mut(usize::try_from(place).ok()?)
    }

    /// One of `ranks` makes its request, which has this number if it is counted; false where one
    /// before it is missing.
    pub fn ask(&mut self, number: u64, request: Request, ranks: u32) -> bool {
        if let Request::Retire(stream) = request {
            self.retire(stream, ranks);
            return true;
        }
        let next = self.first + self.list.len() as u64;
        if number == next {
            self.list.push_back(Entry {
                request,
                asked: 0,
                taken: 0,
                done: false,
                answer: None,
            });
        }
        // One that is over has been made by all who take part in it.
        if let Some(entry) = self.entry(number) {
            entry.asked += 1;
        }
        number <= next
    }

    /// The first rank to say that a stream is closed has it closed. Its number is given to another
    /// stream only once all have said so.
    fn retire(&mut self, stream: u16, ranks: u32) {
        let by = self.retired_by.entry(stream).or_insert(0);
        *by += 1;
        if *by == 1 {
            self.retired.push_back(stream);
        }
        if *by == ranks {
            self.retired_by.remove(&stream);
        }
    }

    /// What the relay has answered, for one of `ranks`.
    pub fn answer(&mut self, number: u64, ranks: u32) -> Result<Option<Answer>> {
        let entry = self.entry(number);
        let Some(answer) = entry.and_then(|entry| {
            entry.taken += u32::from(entry.answer.is_some());
            entry.answer.clone()
        }) else {
            return self.check().map(|()| None);
        };
        self.drop_those_that_are_over(ranks);
        Ok(Some(answer))
    }

    /// The next request, which is `number` if it is counted, for the relay of so many ranks.
    pub fn next(&mut self, number: u64, ranks: u32) -> Result<Option<Request>> {
        self.check()?;
        if let Some(stream) = self.retired.pop_front() {
            return Ok(Some(Request::Retire(stream)));
        }
        let Some(entry) = self.entry(number) else {
            return Ok(None);
        };
        if entry.request.is_of_all() && entry.asked < ranks {
            return Ok(None);
        }
        entry.done = !entry.request.is_answered();
        let request = entry.request.clone();
        self.drop_those_that_are_over(ranks);
        Ok(Some(request))
    }

    /// The relay answers.
    pub fn reply(&mut self, number: u64, answer: Answer) {
        if let Some(entry) = self.entry(number) {
            entry.answer = Some(answer);
            entry.done = true;
        }
    }

    /// Each rank has been told the answer.
    pub fn answered(&mut self, number: u64) {
        if let Some(entry) = self.entry(number) {
            entry.taken = u32::MAX;
            entry.done = true;
        }
    }

    /// Nothing is done or answered any more.
    pub fn give_up(&mut self, error: Error) {
        self.failure.get_or_insert(error);
    }

    /// What keeps the relay from going on.
    pub fn check(&self) -> Result<()> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    fn drop_those_that_are_over(&mut self, ranks: u32) {
        let is_over = |entry: &Entry| {
            let is_taken = !entry.request.is_answered() || entry.taken >= ranks;
            entry.done && entry.asked == ranks && is_taken
        };
        while self.list.front().is_some_and(is_over) {
            self.list.pop_front();
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(name: &str) -> Request {
        Request::Begin {
            name: name.to_owned(),
            options: Box::default(),
            item_bytes: 0,
            again: None,
        }
    }

    fn name(request: Option<Request>) -> Option<String> {
        match request? {
            Request::Begin { name, .. } => Some(name),
            other => Some(format!("{other:?}")),
        }
    }

    #[test]
    fn a_request_is_made_once_for_all_ranks_and_answered_to_each() {
        let mut requests = Requests::default();
        assert_eq!(name(requests.next(0, 2).unwrap()), None);
        requests.ask(0, begin("a"), 2);
        assert_eq!(name(requests.next(0, 2).unwrap()), Some("a".into()));
        assert!(requests.answer(0, 2).unwrap().is_none());
        requests.reply(0, Answer::Begun(Ok((LinkTerms::ANY, None))));
        assert!(requests.answer(0, 2).unwrap().is_some());
        // The first rank goes ahead; the second one has not asked yet.
        requests.ask(1, Request::Forget, 2);
        assert_eq!(name(requests.next(1, 2).unwrap()), Some("Forget".into()));
        requests.ask(0, begin("a"), 2);
        assert_eq!(
            name(requests.next(2, 2).unwrap()),
            None,
            "it is the same one"
        );
        assert!(requests.answer(0, 2).unwrap().is_some());
        assert_eq!(requests.list.len(), 1, "the first one is over");
        requests.ask(1, Request::Forget, 2);
        requests.ask(2, begin("b"), 2);
        assert_eq!(name(requests.next(2, 2).unwrap()), Some("b".into()));
        assert_eq!((requests.first, requests.list.len()), (2, 1));
    }

    #[test]
    fn a_stream_is_closed_once_whenever_the_ranks_say_so() {
        let mut requests = Requests::default();
        // One rank closes a stream before it opens the next one, the other one behind.
        requests.ask(0, Request::Retire(3), 2);
        requests.ask(0, begin("a"), 2);
        requests.ask(0, begin("a"), 2);
        assert_eq!(name(requests.next(0, 2).unwrap()), Some("Retire(3)".into()));
        assert_eq!(name(requests.next(0, 2).unwrap()), Some("a".into()));
        requests.ask(1, Request::Retire(3), 2);
        assert_eq!(name(requests.next(1, 2).unwrap()), None, "it is closed");
        // Another stream with its number.
        requests.ask(1, Request::Retire(3), 2);
        assert_eq!(name(requests.next(1, 2).unwrap()), Some("Retire(3)".into()));
    }

    #[test]
    fn a_request_that_is_missing_is_noticed() {
        let mut requests = Requests::default();
        assert!(requests.ask(0, begin("a"), 1));
        assert!(!requests.ask(2, begin("c"), 1));
        assert!(requests.next(1, 1).unwrap().is_none(), "it is not there");
        assert!(requests.ask(1, begin("b"), 1));
    }

    #[test]
    fn the_launcher_is_asked_once_all_ranks_have_arrived() {
        let mut requests = Requests::default();
        for rank in 0..3 {
            assert!(
                requests.next(0, 3).unwrap().is_none(),
                "{rank} have arrived"
            );
            requests.ask(0, Request::Arrive { alone: false }, 3);
        }
        assert!(requests.next(0, 3).unwrap().is_some());
    }

    #[test]
    fn what_has_ended_the_relay_is_told_to_who_waits_for_its_answers() {
        let mut requests = Requests::default();
        requests.ask(0, begin("a"), 2);
        requests.ask(1, begin("b"), 2);
        requests.reply(0, Answer::Begun(Ok((LinkTerms::ANY, None))));
        requests.give_up(Error::config("a", "first"));
        requests.give_up(Error::config("a", "second"));
        assert!(
            requests.answer(0, 2).unwrap().is_some(),
            "what it has said holds"
        );
        let told = requests.answer(1, 2).unwrap_err();
        assert!(told.to_string().contains("first"), "{told}");
        assert!(requests.next(1, 2).is_err());
    }
}

//! Handing over between threads: one fills a queue, another one sleeps until there is something in
//! it.

use std::time::Duration;

use crate::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What the reader of a [`Mailbox`] makes of its queue.
pub enum Mail<R> {
    /// This much was taken out.
    Taken(R),
    /// Nothing to take: sleep until somebody fills the queue.
    Nothing,
    /// Something, but not enough yet: sleep, but no longer than so.
    Soon(Duration),
}

/// What is in the queue of a [`Mailbox`] after a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Content {
    /// Nothing that the reader would take.
    Nothing,
    /// Something that he would take a little later: see [`Mail::Soon`].
    Something,
    /// Something that he would take at once.
    Enough,
}

/// A queue with one reader, who sleeps while there is nothing for him. Those who fill it wake him
/// only if he does.
#[derive(Debug)]
pub struct Mailbox<Q> {
    state: Mutex<State<Q>>,
    news: Condvar,
}

#[derive(Debug)]
struct State<Q> {
    queue: Q,
    reader: Reader,
    closed: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Reader {
    Awake,
    /// He waits for more of what he has seen.
    Naps,
    Sleeps,
}

impl<Q> Mailbox<Q> {
    /// A mailbox around `queue`.
    pub fn new(queue: Q) -> Self {
        Self {
            state: Mutex::new(State {
                queue,
                reader: Reader::Awake,
                closed: false,
            }),
            news: Condvar::new(),
        }
    }

    /// Uses the queue; `change` says beside its result what is in it now.
    pub fn with<R>(&self, change: impl FnOnce(&mut Q) -> (R, Content)) -> R {
        let mut state = self.lock();
        let (result, content) = change(&mut state.queue);
        self.tell(state, content);
        result
    }

    /// As [`Mailbox::with`], unless the mailbox is closed: whether it was not.
    pub fn post(&self, change: impl FnOnce(&mut Q) -> Content) -> bool {
        let mut state = self.lock();
        if state.closed {
            return false;
        }
        let content = change(&mut state.queue);
        self.tell(state, content);
        true
    }

    /// Wakes the reader where this is in the queue now.
    fn tell(&self, mut state: MutexGuard<'_, State<Q>>, content: Content) {
        let wakes = match content {
            Content::Nothing => false,
            Content::Something => state.reader == Reader::Sleeps,
            Content::Enough => state.reader != Reader::Awake,
        };
        if wakes {
            state.reader = Reader::Awake;
            drop(state);
            self.news.notify_one();
        }
    }

    /// The reader: sleeps until `take` takes something; `None` once the mailbox is closed and
    /// `take` finds nothing. Its second argument says that nobody will be waited for: because the
    /// last [`Mail::Soon`] is over, or at the end.
    pub fn wait<R>(&self, mut take: impl FnMut(&mut Q, bool) -> Mail<R>) -> Option<R> {
        let mut state = self.lock();
        let mut late = false;
        loop {
            let closed = state.closed;
            let limit = match take(&mut state.queue, late || closed) {
                Mail::Taken(result) => return Some(result),
                _ if closed => return None,
                Mail::Nothing => None,
                Mail::Soon(limit) => Some(limit),
            };
            state.reader = if limit.is_some() {
                Reader::Naps
            } else {
                Reader::Sleeps
            };
            (state, late) = self.sleep(state, limit);
            state.reader = Reader::Awake;
        }
    }

    /// Sleeps; says whether the limit is over.
    fn sleep<'a>(
        &self,
        state: MutexGuard<'a, State<Q>>,
        limit: Option<Duration>,
    ) -> (MutexGuard<'a, State<Q>>, bool) {
        let Some(limit) = limit else {
            let state = self
                .news
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            return (state, false);
        };
        let (state, slept) = self
            .news
            .wait_timeout(state, limit)
            .unwrap_or_else(PoisonError::into_inner);
        (state, slept.timed_out())
    }

    /// Lets the reader take what is left, and then end.
    pub fn close(&self) {
        self.lock().closed = true;
        self.news.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State<Q>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

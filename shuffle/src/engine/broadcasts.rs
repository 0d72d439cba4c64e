//! Broadcasts of this rank: one frame that the source copies to the first hops of a tree, from
//! where others copy it on.
//!
//! Which hops these are, the route says ([`crate::route::Route::copies`]). On that of three hops
//! the source puts one copy into the queue of each other local rank and one into each of its own
//! remote queues. A rank that gets it over an origin edge delivers it and copies it into its own
//! remote queues; a target's representative delivers it and copies it into the relay queues of its
//! node; over a relay edge it is only delivered. Without representatives the source makes all
//! copies.
//!
//! **Nothing is copied twice, nothing is lost.** Hops have numbers. A frame that finds no room at
//! one of them stays where it is, with the number of that hop beside it: here at the source, or per
//! input at a relay. What comes behind it waits, so the order is kept.
//!
//! **No deadlock.** A broadcast waits as a message for one rank does, only for more of them: in an
//! edge of one stage for queues of later stages, and for delivery, which is later than any. A copy
//! that has left is a frame like any other: it holds no queue for those that have not. So there is
//! no circle, as there is none without broadcasts.
//!
//! That is also why a record that is longer than a frame is not copied along the tree. Its
//! fragments would occupy queues until the last has come: two sources of a node that represent
//! nodes for each other could each hold a remote queue that the other's next fragment needs. Such a
//! record goes to one rank after the other (`long`).

use trihop_transport::protocol::wire::run_flags;
use trihop_transport::topology::Rank;

use super::queues::Queues;
use crate::queue::Input;
use crate::route::Stage;

/// Where an input's front run, a broadcast, stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Copying {
    /// The next hop to get a copy.
    pub next: u32,
    pub delivered: bool,
}

/// The broadcast that is being copied at its source, if one is.
pub(crate) struct Broadcasts {
    /// Its frame, and that of the next one.
    frame: Vec<u8>,
    source: Rank,
    copying: Option<Copying>,
}

impl Broadcasts {
    /// None yet.
    pub fn new(source: Rank) -> Self {
        Self {
            frame: Vec::new(),
            source,
            copying: None,
        }
    }

    /// Whether none waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.copying.is_none()
    }

    /// Hops that have their copy of the one that waits.
    pub fn copied(&self) -> u32 {
        self.copying.as_ref().map_or(0, |copying| copying.next)
    }

    /// Takes a broadcast of `bytes` (with its header) that `write` fills in, while none waits;
    /// `to_self`: this rank gets a copy. False when not even the first copy has room: then nothing
    /// was taken.
    pub fn send(
        &mut self,
        queues: &mut Queues,
        to_self: bool,
        bytes: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> bool {
        debug_assert!(self.is_empty(), "one broadcast at a time");
        self.frame.clear();
        self.frame.resize(bytes, 0);
        write(&mut self.frame);
        let begin = Copying {
            next: 0,
            delivered: !to_self,
        };
        let reached = self.copy(queues, begin);
        let taken = reached != begin || self.is_done(queues, begin);
        self.copying = (taken && !self.is_done(queues, reached)).then_some(reached);
        taken
    }

    /// Goes on with the one that waits; true when none is left.
    pub fn go_on(&mut self, queues: &mut Queues) -> bool {
        if let Some(copying) = self.copying.take() {
            let reached = self.copy(queues, copying);
            self.copying = (!self.is_done(queues, reached)).then_some(reached);
        }
        self.copying.is_none()
    }

    fn is_done(&self, queues: &Queues, copying: Copying) -> bool {
        copying.delivered && copying.next == queues.route.copies(Stage::SOURCE, self.source)
    }

    /// Copies the frame as far as there is room, the own copy first.
    fn copy(&self, queues: &mut Queues, from: Copying) -> Copying {
        let (frame, input) = (&self.frame[..], Input::APPLICATION);
        let flags = run_flags::BROADCAST;
        if !from.delivered {
            if queues.push(Stage::SOURCE, self.source, frame, flags, input) != Some(true) {
                return from;
            }
            queues.copies += 1;
        }
        Copying {
            next: queues.push_copies(Stage::SOURCE, self.source, from.next, frame, input),
            delivered: true,
        }
    }
}

//! What the channels of a job are on one rank: its own, and its ports to others'; and what takes
//! the records of their stream.
//!
//! Whoever has the engine may take the lock of messages in parts, then the owner's, and then the
//! client's; nobody takes one of these, or the engine, with a later one. So what is to be sent is
//! sent by who has the engine already. With the lock of memory that is shared nobody takes any.

use std::task::Waker;
use std::time::Instant;

use trihop_transport::protocol::wire::SHARED_RECORD_BYTES;
use trihop_transport::sync::{Arc, Flag, Mutex, MutexGuard, OnceLock, PoisonError};
use trihop_transport::topology::Rank;

use super::bytes::Bytes;
use super::client::{Client, Effects};
use super::owner::{Answer, Owner};
use super::parts::{Carriers, Parts};
use super::wire::{AnswerHead, HEAD_BYTES, Payload, Request, kinds};
use crate::deliver::{Delivery, LongBytes};
use crate::endpoint::{Engine, StreamId};
use crate::engine::BadRun;
use crate::engine::outbound::Outbound;
use crate::engine::outbox::Outbox;
use crate::error::{Error, Result};
use crate::face::codec::with_scratch;
use crate::face::coded::no_value;
use crate::face::shuffle::each_message;
use crate::job::{LossStage, wake_each};
use crate::member::Loss;
use crate::queue::shared::{Passed, SharedMemory};
use crate::seat::TurnHandler;

/// The channels of a job on one rank.
pub(crate) struct Office {
    rank: u32,
    owner: Mutex<Owner>,
    client: Mutex<Client>,
    /// There is something among [`Client::unasked`]. Of one thread: others ask at once.
    pub(super) has_unasked: Flag,
    /// There are some of whom nothing more counts.
    has_gone: Flag,
    /// Where messages are cut: what has come in parts, and what parts go by.
    parts: Mutex<Parts>,
    carriers: OnceLock<Carriers>,
    /// What long messages inside of the node lie in, where there is any.
    shared: OnceLock<SharedMemory>,
    epoch: Instant,
}

/// What has come of a change for those who wait on this rank.
#[derive(Default)]
pub(super) struct News {
    /// Somebody was answered.
    pub is_any: bool,
    wakers: Vec<Waker>,
}

impl News {
    fn note(&mut self, waker: Option<Waker>) {
        self.is_any = true;
        self.wakers.extend(waker);
    }

    pub fn add(&mut self, other: Self) {
        self.is_any |= other.is_any;
        self.wakers.extend(other.wakers);
    }

    /// Wakes futures, with no lock held.
    pub fn wake(self) {
        wake_each(self.wakers);
    }
}

impl Office {
    /// With the bound of what its owner has handed out and has not arrived, and of a message, in
    /// bytes.
    pub fn new(rank: Rank, getmsg_bytes: Option<u64>, message_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            rank: rank.0,
            owner: Mutex::new(Owner::new(getmsg_bytes)),
            client: Mutex::default(),
            has_unasked: Flag::default(),
            has_gone: Flag::default(),
            parts: Mutex::new(Parts::new(message_bytes)),
            carriers: OnceLock::new(),
            shared: OnceLock::new(),
            epoch: Instant::now(),
        })
    }

    pub(super) fn owner(&self) -> MutexGuard<'_, Owner> {
        self.owner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn client(&self) -> MutexGuard<'_, Client> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has long messages cut. Before any can have come.
    pub(super) fn cut_by(&self, carriers: Carriers) {
        let known = self.carriers.set(carriers);
        debug_assert!(known.is_ok(), "an opening is one");
    }

    /// What parts of messages go by, where any are cut.
    pub(super) fn carriers(&self) -> Option<&Carriers> {
        self.carriers.get()
    }

    /// Has long messages inside of the node lie in this. Before any is sent.
    pub(super) fn share(&self, memory: SharedMemory) {
        let known = self.shared.set(memory);
        debug_assert!(known.is_ok(), "an opening is one");
    }

    /// What long messages inside of the node lie in.
    pub(super) fn shared(&self) -> Option<&SharedMemory> {
        self.shared.get()
    }

    /// Passes a message on to another rank, where that is possible; memory that is of no use any
    /// more goes to `spare`.
    ///
    /// # Errors
    /// The message, where it is not.
    fn pass(&self, to: Rank, message: Bytes, spare: impl FnOnce(Bytes)) -> Result<Passed, Bytes> {
        let Some(shared) = self.shared() else {
            return Err(message);
        };
        let message = match message {
            Bytes::Own(_) => message,
            Bytes::Shared(block) => match shared.pass(to, block) {
                Ok(passed) => return Ok(passed),
                Err(block) => block.into(),
            },
        };
        match shared.pass_copy(to, &message) {
            Some(passed) => {
                spare(message);
                Ok(passed)
            }
            None => Err(message),
        }
    }

    /// Sends an answer whose message was passed on.
    fn answer_passed(
        &self,
        target: Rank,
        (head, passed): (AnswerHead, Passed),
        by: impl FnOnce(Option<StreamId>, &mut dyn FnMut(&mut Outbound) -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        let sent = with_scratch(|record| {
            passed.write(record);
            head.write(record);
            let kind = kinds::ANSWER | kinds::SHARED;
            by(self.carriers().map(Carriers::main), &mut |out| {
                out.send_or_spill(target, kind, record)
            })
        });
        sent.inspect_err(|_| drop(passed.take_back())) // nothing fails behind it
    }

    /// Sends an answer, in parts where that is long, by the streams that `by` is given, or the
    /// caller's own one.
    fn answer(
        &self,
        target: Rank,
        record: &mut Vec<u8>,
        mut by: impl FnMut(Option<StreamId>, &mut dyn FnMut(&mut Outbound) -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        let carriers = self.carriers();
        let (message, head) = record.split_at(record.len() - HEAD_BYTES);
        if let Some(carriers) = carriers.filter(|by| by.cut(target, message.len(), true)) {
            let kind = kinds::ANSWER;
            let by =
                |stream, send: &mut dyn FnMut(&mut Outbound) -> Result<()>| by(Some(stream), send);
            if carriers.send_at_once((target, kind), (message, head), by)? {
                return Ok(());
            }
        }
        by(carriers.map(Carriers::main), &mut |out| {
            out.send_or_spill_given(target, kinds::ANSWER, record)
        })
    }

    /// Time, for deadlines.
    pub fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// A request of this rank's to itself.
    pub(super) fn ask_here(&self, owner: &mut Owner, request: Request, payload: Payload<'_>) {
        if let Err(why) = owner.take(self.rank, request, payload, || self.now_ns()) {
            // Only a defect of ours.
            debug_assert!(false, "{request:?}: {why}");
            tracing::error!(?request, why, "a request to a channel of this rank");
        }
    }

    /// Tells askers of this rank what the owner has for them.
    pub(super) fn tell_here(&self, owner: &mut Owner) -> News {
        let mut news = News::default();
        while let Some(answer) = owner.take_answer_to(self.rank) {
            self.tell_one_here(owner, answer, &mut news);
        }
        news
    }

    #[inline(never)] // no part of messages that nobody here waits for
    fn tell_one_here(&self, owner: &mut Owner, answer: Answer, news: &mut News) {
        let bytes = Payload::Owned(answer.bytes.unwrap_or_default());
        let effects = self.client().answer(self.rank, answer.head, bytes);
        match effects {
            Ok(effects) => news.note(self.follow(answer.head.port, effects, |request, bytes| {
                self.ask_here(owner, request, Payload::Owned(bytes));
            })),
            Err(why) => {
                debug_assert!(false, "{:?}: {why}", answer.head);
                tracing::error!(head = ?answer.head, why, "an answer of this rank");
            }
        }
    }

    /// Tells all askers what the owner has for them, others by the streams that `by` is given, or
    /// the caller's own one.
    pub(super) fn tell(
        &self,
        owner: &mut Owner,
        mut by: impl FnMut(Option<StreamId>, &mut dyn FnMut(&mut Outbound) -> Result<()>) -> Result<()>,
    ) -> News {
        let news = self.tell_here(owner);
        while let Some(Answer { to, head, bytes }) = owner.take_answer() {
            let to = Rank(to);
            let passed = bytes.map(|message| self.pass(to, message, |spare| owner.spare(spare)));
            let sent = match passed {
                None => with_scratch(|record| {
                    head.write(record);
                    self.answer(to, record, &mut by)
                }),
                Some(Ok(passed)) => self.answer_passed(to, (head, passed), &mut by),
                Some(Err(message)) => message.into_vec_with(HEAD_BYTES).and_then(|mut record| {
                    head.write(&mut record);
                    let sent = self.answer(to, &mut record, &mut by);
                    owner.spare(record.into());
                    sent
                }),
            };
            if let Err(error) = sent {
                let main = self.carriers().map(Carriers::main);
                self.note_untold(error, |fail| by(main, fail));
            }
        }
        news
    }

    /// Somebody could not be told what it waits for, and would wait for ever: the job ends by that,
    /// whoever makes its next round of progress. Once the stream is shut down nobody waits for it.
    fn note_untold(
        &self,
        error: Error,
        main: impl FnOnce(&mut dyn FnMut(&mut Outbound) -> Result<()>) -> Result<()>,
    ) {
        match error {
            Error::Closed(_) => return,
            // Nor does who is lost.
            error if error.is_about_peer() => return,
            _ => {}
        }
        // Where the stream is gone nobody waits either.
        let _ = main(&mut |out| {
            tracing::error!(%error, "somebody is not told what it waits for in a channel");
            out.fail(&error);
            Ok(())
        });
    }

    /// Some ranks are lost, and the job goes on; `main` is the stream of requests.
    pub fn lose(
        &self,
        engine: &mut Engine,
        main: StreamId,
        (loss, stage): (&Loss, LossStage),
        woken: &mut Vec<Waker>,
    ) {
        let is_over = stage == LossStage::Over;
        let mut owner = self.owner();
        match is_over {
            false => owner.lose(loss),
            true => owner.forget(loss),
        }
        let by = |stream: Option<StreamId>, send: &mut dyn FnMut(&mut Outbound) -> Result<()>| {
            send(engine.out(stream.unwrap_or(main))?)
        };
        let mut news = self.tell(&mut owner, by);
        drop(owner);
        news.wakers.extend(self.client().lose(loss, is_over));
        if is_over {
            let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
            parts.forget(|rank| loss.has(rank));
            self.has_gone.raise();
        }
        woken.append(&mut news.wakers);
    }

    /// Asks the owner of a port for what an answer has led to; who is to be woken.
    fn follow(
        &self,
        port: u32,
        effects: Effects,
        mut ask: impl FnMut(Request, Bytes),
    ) -> Option<Waker> {
        let Effects {
            waker,
            arrived,
            back,
            close,
        } = effects;
        if let Some(arrived) = arrived {
            ask(arrived, Bytes::default());
        }
        let returned = back.and_then(|(id, request, bytes)| {
            ask(request, bytes);
            self.client().returned(port, id)
        });
        for close in close.into_iter().chain(returned) {
            ask(close, Bytes::default());
        }
        waker
    }

    /// What takes all that the streams of the channels bring.
    pub fn handler(self: &Arc<Self>) -> TurnHandler {
        let office = Arc::clone(self);
        Box::new(move |delivery, done, outbox, woken| {
            let mut take_owned = |source, kind, bytes: Bytes| {
                let record = Payload::Owned(bytes);
                office.take(Rank(source), kind, record, outbox, woken)?;
                Ok(1)
            };
            if let Delivery::Record {
                source,
                kind,
                bytes: LongBytes::Given(bytes),
            } = delivery
            {
                return take_owned(source, kind, std::mem::take(bytes).into());
            }
            if let Delivery::Record {
                source,
                kind,
                bytes: LongBytes::Shared(block @ Some(_)),
            } = delivery
            {
                let block = block.take().map(Bytes::from);
                return take_owned(source, kind, block.unwrap_or_default());
            }
            each_message(delivery, done, |message, first| {
                if !first && outbox.has_overfilled() {
                    return Ok(false);
                }
                let record = Payload::Borrowed(message.bytes);
                office.take(message.source, message.kind, record, outbox, woken)?;
                Ok(true)
            })
        })
    }

    /// Takes a record of a stream of the channels. Who is to be woken for it goes to `woken`.
    #[inline]
    fn take(
        &self,
        source: Rank,
        kind: u32,
        record: Payload<'_>,
        outbox: &mut Outbox<'_>,
        woken: &mut Vec<Waker>,
    ) -> Result<(), BadRun> {
        if self.has_gone.is_raised() && self.owner().is_gone(source) {
            self.free(kind, record.as_slice());
            return Ok(()); // too late to count
        }
        let mut news = News::default();
        let taken = match self.carriers() {
            None => self.handle(source, kind, record, outbox, &mut news),
            Some(_) => self.take_in_order(source, kind, record, outbox, &mut news),
        };
        woken.append(&mut news.wakers);
        taken
    }

    /// Takes a record where messages may come in parts: what is to wait waits.
    fn take_in_order(
        &self,
        source: Rank,
        kind: u32,
        record: Payload<'_>,
        outbox: &mut Outbox<'_>,
        news: &mut News,
    ) -> Result<(), BadRun> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((kind, record)) = parts.take(source, kind, record)? {
            return self.handle(source, kind, record, outbox, news);
        }
        while let Some((kind, record)) = parts.next(source)? {
            self.handle(source, kind, Payload::Owned(record.into()), outbox, news)?;
        }
        Ok(())
    }

    /// A record does not count: if it says where a message lies, that is free again.
    #[cold]
    fn free(&self, kind: u32, record: &[u8]) {
        let said = record
            .get(..SHARED_RECORD_BYTES)
            .filter(|_| kind & kinds::SHARED != 0);
        drop(said.and_then(|said| self.shared()?.claim(said)));
    }

    /// The message that lies where a record says.
    #[cold]
    fn claim(&self, source: Rank, said: &[u8]) -> Result<Payload<'static>, BadRun> {
        let message = (self.shared()).and_then(|shared| shared.claim(said));
        let none = || no_value(source, "a message in memory that was not passed on");
        let message = message.map(|block| Payload::Owned(block.into()));
        message.ok_or_else(none)
    }

    /// Takes a request or an answer.
    fn handle(
        &self,
        source: Rank,
        kind: u32,
        record: Payload<'_>,
        outbox: &mut Outbox<'_>,
        news: &mut News,
    ) -> Result<(), BadRun> {
        let main = self.carriers().map(Carriers::main);
        let bad = |why| no_value(source, why);
        let (kind, is_shared) = (kind & !kinds::SHARED, kind & kinds::SHARED != 0);
        if kind == kinds::ANSWER {
            let parsed = AnswerHead::parse(record.as_slice());
            let (head, bytes) = parsed.ok_or_else(|| bad("no answer of a channel's owner"))?;
            let bytes = bytes.len();
            // No value that may be either: that would be moved once more.
            let effects = match is_shared {
                false => self.client().answer(source.0, head, record.first(bytes)),
                true => {
                    let message = self.claim(source, &record.as_slice()[..bytes])?;
                    self.client().answer(source.0, head, message)
                }
            };
            let waker = self.follow(head.port, effects.map_err(bad)?, |request, bytes| {
                let sent = with_request(request, &bytes, |kind, record| {
                    outbox.send_on(main, |out| out.send_or_spill(source, kind, record))
                });
                if let Err(error) = sent {
                    self.note_untold(error, |fail| outbox.send_on(main, fail));
                }
            });
            news.note(waker);
            return Ok(());
        }
        let parsed = Request::parse(kind, record.as_slice());
        let (request, bytes) = parsed.ok_or_else(|| bad("no request to a channel's owner"))?;
        let bytes = bytes.len();
        let (mut owner, now_ns) = (self.owner(), || self.now_ns());
        let taken = match is_shared {
            false => owner.take(source.0, request, record.first(bytes), now_ns),
            true => {
                let message = self.claim(source, &record.as_slice()[..bytes])?;
                owner.take(source.0, request, message, now_ns)
            }
        };
        news.add(self.tell(&mut owner, |stream, send| outbox.send_on(stream, send)));
        drop(owner);
        taken.map_err(bad)
    }
}

/// The record of a request.
pub(super) fn with_request<R>(
    request: Request,
    bytes: &[u8],
    send: impl FnOnce(u32, &[u8]) -> R,
) -> R {
    with_scratch(|record| {
        record.extend_from_slice(bytes);
        let kind = request.write(record);
        send(kind, record)
    })
}

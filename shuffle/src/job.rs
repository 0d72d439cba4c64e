//! A rank's part of a job: start-up, waiting, collectives, end.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use trihop_transport::Error as TransportError;
use trihop_transport::bootstrap::{self, Bootstrap, Launcher};
use trihop_transport::fabric;
use trihop_transport::link::Link;
use trihop_transport::memory::handover::Handover;
use trihop_transport::memory::segment::Segment;
use trihop_transport::park::{Backoff, Parker, Step, Turn, spin_budget};
use trihop_transport::ring::{Bell, Doorbell};
use trihop_transport::sync;
use trihop_transport::topology::{Rank, Topology};

use crate::collective::{Operation, Reduce, Ticket};
use crate::config::{Options, StreamOptions};
use crate::deliver::Sink;
use crate::dump;
use crate::endpoint::{Endpoint, Prepared, SYSTEM_STREAM, check_memory};
use crate::engine::Core;
use crate::error::{Error, Result};
use crate::node::{Label, NodeExchange, not_arrived};
use crate::route::{Chosen, Route, RouteName};
use crate::shuffle::ShuffleBuilder;
use crate::stream::{Item, StreamBuilder};

/// Longest sleep while nothing waits for time: how often peers' lives are looked at.
const PARK: Duration = Duration::from_millis(100);
/// Longest sleep while something waits that no descriptor announces.
const NAP: Duration = Duration::from_millis(1);
/// Mark of the link's descriptor in the parker; local peers have their rank.
const LINK_MARK: u64 = 1 << 32;
/// Mark of the socket over which the node's ranks hand descriptors to each other.
const HANDOVER_MARK: u64 = LINK_MARK + 1;

/// One rank's part of a job. It stays on the thread that started it.
///
/// `'h` is how long handlers may borrow: what they use is declared before the job.
///
/// ```no_run
/// use std::cell::Cell;
/// use trihop_shuffle::{Job, Options, Rank};
///
/// let heard = Cell::new(0);
/// let job = Job::start(Options::from_env()?)?;
/// let shuffle = job.shuffle("greetings").handler(|_message, _outbox| heard.set(heard.get() + 1)).open()?;
/// for rank in 0..job.size() {
///     shuffle.send(Rank(rank), 0, b"hello")?;
/// }
/// shuffle.fence()?;
/// assert_eq!(heard.get(), job.size());
/// job.shutdown()?;
/// # Ok::<(), trihop_shuffle::Error>(())
/// ```
pub struct Job<'h> {
    pub(crate) inner: Rc<Inner<'h>>,
}

pub(crate) struct Inner<'h> {
    pub endpoint: Endpoint<'h>,
    pub options: Options,
    bootstrap: RefCell<Option<Box<dyn Bootstrap>>>,
    launcher: Launcher,
    node: RefCell<NodeExchange>,
    doorbell: Doorbell,
    parker: RefCell<Parker>,
    /// How long a wait spins.
    spin: Duration,
    woken: RefCell<Vec<u64>>,
    epoch: Instant,
    closing: Cell<bool>,
    /// A thread of ours waits for the launcher's fence.
    fencing: Cell<bool>,
    checked_ns: Cell<u64>,
    /// Rounds of progress.
    rounds: Cell<u64>,
    /// Where a progress thread parks and several threads call: what all of this is reached with.
    pub turn: OnceCell<Turn>,
    /// How the progress thread sleeps.
    sleep: Cell<Sleep>,
    /// A caller went to sit out while the progress thread was awake: what it waits for may have come before that thread
    /// wants to hear of it.
    newcomer: Cell<bool>,
    /// A caller has made progress since the progress thread did: it makes more soon, or the nap ends.
    relieved: Cell<bool>,
    /// What ended the progress thread.
    failure: RefCell<Option<Arc<Error>>>,
}

/// How the progress thread sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sleep {
    Awake,
    /// It looks around again very soon.
    Nap,
    /// Until somebody rings.
    Deep,
}

/// Who waits, and so how he passes the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiter {
    /// A call.
    Caller,
    /// The progress thread.
    ProgressThread,
}

/// What a rank tells the others at start: how to reach it inside its node, the job's cookie (rank 0's counts), its
/// route (which has to be everyone's), its fabric address.
struct Card {
    nonce: u64,
    cookie: u64,
    route: RouteName,
    address: Vec<u8>,
}

impl Card {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = self.nonce.to_le_bytes().to_vec();
        bytes.extend_from_slice(&self.cookie.to_le_bytes());
        bytes.push(self.route as u8);
        bytes.extend_from_slice(&self.address);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (nonce, rest) = bytes.split_first_chunk::<8>()?;
        let (cookie, rest) = rest.split_first_chunk::<8>()?;
        let (&route, address) = rest.split_first()?;
        Some(Self {
            route: RouteName::ALL.into_iter().find(|r| *r as u8 == route)?,
            nonce: u64::from_le_bytes(*nonce),
            cookie: u64::from_le_bytes(*cookie),
            address: address.to_vec(),
        })
    }
}

fn random_word() -> Result<u64> {
    let mut bytes = [0u8; 8];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut bytes))
        .map_err(|e| TransportError::system("reading /dev/urandom", e))?;
    Ok(u64::from_le_bytes(bytes))
}

impl<'h> Job<'h> {
    /// Joins the job that this process was started in; without a launcher, a job of one.
    ///
    /// # Errors
    /// A bad option, no usable provider, a rank that does not arrive within `bootstrap_timeout_ms`, memory.
    pub fn start(options: Options) -> Result<Self> {
        options.check()?;
        let bootstrap = bootstrap::start(options.launcher, options.bootstrap_timeout())?;
        Self::start_with(options, bootstrap)
    }

    /// As [`Job::start`], with a bootstrap of the caller's: [`bootstrap::Custom`] for ranks that know each other already.
    /// `options.launcher` then says nothing.
    ///
    /// # Errors
    /// As [`Job::start`].
    pub fn start_with(options: Options, mut bootstrap: Box<dyn Bootstrap>) -> Result<Self> {
        options.check()?;
        let topology = bootstrap.topology().clone();
        let launcher = bootstrap.launcher();
        let route = Chosen::new(options.route, &topology);
        check_memory(&route, &options.stream)?;
        let mut link = if route.links() == 0 {
            None
        } else {
            Some(open_link(&options, topology.nodes())?)
        };

        let nonce = random_word()?;
        let name = |nonce: u64, rank: Rank| format!("trihop-{nonce:016x}-{}", rank.0);
        let handover = Handover::listen(&name(nonce, topology.rank()), 2 * topology.local_size() + 8)?;
        let address = link.as_ref().map_or(Vec::new(), |l| l.address().to_vec());
        bootstrap.put(
            "trihop",
            &Card {
                nonce,
                cookie: random_word()?,
                route: options.route,
                address,
            }
            .encode(),
        )?;
        bootstrap.fence()?;
        let mut card = |rank: Rank| -> Result<Card> {
            let bytes = bootstrap.get(rank, "trihop")?;
            let card = bytes.as_deref().and_then(Card::decode).ok_or_else(|| {
                let why = format!("rank {rank} has left no valid start-up card");
                TransportError::Bootstrap {
                    launcher: launcher.name(),
                    why,
                }
            })?;
            if card.route != options.route {
                let why = format!(
                    "`{}` here and `{}` on rank {rank}; set TRIHOP_ROUTE for all ranks or for none",
                    options.route, card.route
                );
                return Err(Error::config("route", why));
            }
            Ok(card)
        };
        let cookie = card(Rank(0))?.cookie;
        let mut names = Vec::new();
        for local in 0..topology.local_size() {
            let rank = topology.rank_at(topology.node(), local);
            names.push(name(card(rank)?.nonce, rank));
        }
        let peers = match &mut link {
            Some(link) => route.connect(|rank| Ok::<_, Error>(link.connect(&card(rank)?.address)?))?,
            None => Vec::new(),
        };

        let doorbell = Doorbell::create()?;
        let mut node = NodeExchange::new(handover, names);
        let deadline = Instant::now() + options.bootstrap_timeout();
        let bells = node.exchange_bells(&topology, &doorbell, cookie, deadline)?;
        let mut parker = Parker::new(&doorbell)?;
        if let Some(descriptor) = link.as_ref().and_then(|l| l.wait_descriptor()) {
            parker.watch_news(descriptor, LINK_MARK)?;
        }
        parker.watch(node.handover.descriptor(), HANDOVER_MARK)?;
        for (rank, watch) in &node.watches {
            parker.watch(watch.descriptor(), u64::from(*rank))?;
        }
        // Simulated nodes share this machine's cores.
        let neighbours = if options.loopback {
            topology.size()
        } else {
            topology.local_size()
        };
        let spin = spin_budget(neighbours as usize);
        let endpoint = Endpoint::new(topology, route, cookie, link, peers.into(), bells.into());
        let inner = Rc::new(Inner {
            endpoint,
            options,
            bootstrap: RefCell::new(Some(bootstrap)),
            launcher,
            node: RefCell::new(node),
            doorbell,
            parker: RefCell::new(parker),
            spin,
            woken: RefCell::default(),
            epoch: Instant::now(),
            closing: Cell::new(false),
            fencing: Cell::new(false),
            checked_ns: Cell::new(0),
            rounds: Cell::new(0),
            turn: OnceCell::new(),
            sleep: Cell::new(Sleep::Awake),
            newcomer: Cell::new(false),
            relieved: Cell::new(false),
            failure: RefCell::default(),
        });
        let system = Endpoint::system_options();
        let prepared = inner.endpoint.prepare("(collectives)", &system, 0)?;
        debug_assert_eq!(prepared.id, SYSTEM_STREAM);
        let sink = inner.endpoint.system_sink();
        inner.connect(prepared, sink)?;
        // The receives of the system stream are posted: only now may anybody send to anybody. Until then nobody needs
        // anybody's progress; a fence on another thread is there to notice a dead neighbour.
        let waiting = inner.bootstrap.borrow_mut().take().expect("put there above");
        let mut waiting = inner.launchers_fence(waiting)?;
        waiting.forget();
        *inner.bootstrap.borrow_mut() = Some(waiting);
        let job = Self { inner };
        tracing::info!(
            size = job.size(),
            nodes = job.topology().nodes(),
            %launcher,
            route = %job.inner.options.route,
            provider = job.provider(),
            "job started"
        );
        Ok(job)
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.topology().rank()
    }

    /// Ranks of the job.
    pub fn size(&self) -> u32 {
        self.topology().size()
    }

    /// Who is where.
    pub fn topology(&self) -> &Topology {
        &self.inner.endpoint.topology
    }

    /// Who started the job.
    pub fn launcher(&self) -> Launcher {
        self.inner.launcher
    }

    /// Provider that carries traffic between nodes, where this rank represents any.
    pub fn provider(&self) -> Option<String> {
        self.inner
            .endpoint
            .link
            .borrow()
            .as_ref()
            .map(|l| l.name().to_owned())
    }

    /// A shuffle of byte records. Opening is collective; the same names in the same order on every rank.
    pub fn shuffle(&self, name: &str) -> ShuffleBuilder<'h> {
        ShuffleBuilder::new(Rc::clone(&self.inner), name)
    }

    /// A stream of items of one type. Opening is collective; the same names in the same order on every rank.
    pub fn stream<T: Item>(&self, name: &str) -> StreamBuilder<'h, T> {
        StreamBuilder::new(Rc::clone(&self.inner), name)
    }

    /// Waits until every rank has called this as often as this rank.
    ///
    /// # Errors
    /// The transport's, and [`Error::Nested`] inside a handler.
    pub fn barrier(&self) -> Result<()> {
        self.inner.barrier()
    }

    /// Replaces each value by its reduction over all ranks; every rank gives as many values.
    ///
    /// # Errors
    /// As [`Job::barrier`].
    pub fn allreduce(&self, values: &mut [u64], reduce: Reduce) -> Result<()> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let result = self.inner.collective(Operation::Reduce(reduce), &bytes)?;
        if result.len() != bytes.len() {
            let why = format!("{} values here, {} elsewhere", values.len(), result.len() / 8);
            return Err(Error::Mismatch {
                name: "allreduce".into(),
                why,
            });
        }
        for (value, bytes) in values.iter_mut().zip(result.chunks_exact(8)) {
            *value = u64::from_le_bytes(bytes.try_into().expect("chunks of 8"));
        }
        Ok(())
    }

    /// Every rank's contribution, by rank. For small strings: the result is as large as all of them on every rank.
    ///
    /// # Errors
    /// As [`Job::barrier`].
    pub fn allgather(&self, contribution: &[u8]) -> Result<Vec<Vec<u8>>> {
        let result = self.inner.collective(Operation::Gather, contribution)?;
        Ok(self.inner.endpoint.collectives.borrow().contributions(&result))
    }

    /// One round of progress of everything in the job; true when anything moved.
    ///
    /// # Errors
    /// As [`Job::barrier`].
    pub fn progress(&self) -> Result<bool> {
        self.inner.progress()
    }

    /// Rounds of progress that were made so far, by whichever call.
    pub fn rounds(&self) -> u64 {
        self.inner.rounds.get()
    }

    /// Ends the whole job through the launcher, where it can; the caller still has to exit.
    pub fn abort(&self, status: i32, why: &str) {
        if let Ok(mut bootstrap) = self.inner.bootstrap.try_borrow_mut()
            && let Some(bootstrap) = bootstrap.as_mut()
        {
            bootstrap.abort(status, why);
        }
    }

    /// Writes the queues of every stream with their use and their bounds.
    ///
    /// # Errors
    /// The writer's.
    pub fn dump(&self, writer: &mut dyn std::io::Write) -> std::io::Result<()> {
        for core in self.inner.endpoint.streams.borrow().iter() {
            dump::write(core, writer)?;
        }
        Ok(())
    }

    /// Fences every stream that is still open, waits for everyone, and leaves the job. Collective.
    ///
    /// Records that wait for [`crate::Shuffle::take`] are given up here; the log says how many.
    ///
    /// # Errors
    /// As [`Job::barrier`].
    pub fn shutdown(self) -> Result<()> {
        self.inner.shutdown()
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        // Handlers may own handles of this job's streams: end the circle.
        for core in self.inner.endpoint.streams.borrow_mut().drain(..) {
            if let Ok(mut sink) = core.sink.try_borrow_mut() {
                *sink = Sink::Closed;
            }
            if let Ok(mut out) = core.out.try_borrow_mut() {
                out.closed = true;
            }
        }
    }
}

fn open_link(options: &Options, nodes: u32) -> Result<Box<dyn Link>> {
    let choice = fabric::Choice {
        universe: Some((nodes as usize).max(16)),
        ..options.choice()
    };
    Ok(fabric::open(&choice)?)
}

impl<'h> Inner<'h> {
    pub fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64 + 1
    }

    pub fn progress(&self) -> Result<bool> {
        let now_ns = self.now_ns();
        self.rounds.set(self.rounds.get() + 1);
        let worked = self.endpoint.progress(now_ns)?;
        if now_ns.saturating_sub(self.checked_ns.get()) >= PARK.as_nanos() as u64 {
            self.look_after_peers(now_ns)?;
        }
        Ok(worked)
    }

    /// Progress by a caller who will be back soon: while the progress thread naps, nobody needs to wake it.
    pub fn progress_in_passing(&self) -> Result<bool> {
        if self.sleep.get() == Sleep::Nap {
            self.relieved.set(true);
            self.doorbell.awake();
        }
        self.progress()
    }

    /// Makes progress until `done` gives a value; sleeps while nothing moves. Among threads, others have their turns
    /// meanwhile: the caller keeps no borrow of anything that they reach.
    pub fn wait<T>(&self, done: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        self.wait_as(Waiter::Caller, done)
    }

    fn wait_as<T>(&self, waiter: Waiter, mut done: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        let mut backoff = Backoff::new(self.spin);
        // Whether the progress thread may sleep without knowing what is waited for here.
        let mut unknown = true;
        loop {
            if let Some(value) = done()? {
                return Ok(value);
            }
            if self.progress()? {
                backoff.reset();
                unknown = true;
                if let Some(turn) = self.turn.get() {
                    turn.tell_moved();
                    // SAFETY: who calls has the turn, since there is one; nothing is borrowed here.
                    unsafe { turn.give_way() };
                }
                continue;
            }
            let step = match waiter {
                Waiter::ProgressThread if self.relieved.take() => Step::Park,
                _ => backoff.next(),
            };
            match (step, self.turn.get()) {
                (Step::Spin, _) => std::hint::spin_loop(),
                (Step::Yield, None) => std::thread::yield_now(),
                (Step::Yield, Some(turn)) => {
                    // SAFETY: as above.
                    unsafe { turn.leave() };
                    std::thread::yield_now();
                    turn.take();
                }
                (Step::Park, Some(turn)) if waiter == Waiter::Caller => {
                    self.check_failure()?;
                    if self.sleep.get() == Sleep::Awake {
                        self.newcomer.set(true);
                    } else if std::mem::take(&mut unknown) {
                        self.wake_from(Sleep::Nap);
                    }
                    // SAFETY: as above.
                    unsafe { turn.sit_out(PARK) };
                }
                (Step::Park, turn) => {
                    self.park()?;
                    if let Some(turn) = turn {
                        turn.tell_moved();
                    }
                }
            }
        }
    }

    /// What the progress thread does until `stopping`. Its caller has the turn; an error is kept for all callers.
    pub fn progress_until(&self, stopping: impl Fn() -> bool) {
        let outcome = self.wait_as(Waiter::ProgressThread, || Ok(stopping().then_some(())));
        if let Err(error) = outcome {
            *self.failure.borrow_mut() = Some(Arc::new(error));
        }
        if let Some(turn) = self.turn.get() {
            turn.tell_moved();
        }
    }

    /// What ended the progress thread, if anything did.
    pub fn check_failure(&self) -> Result<()> {
        match &*self.failure.borrow() {
            Some(error) => Err(Error::Stopped(Arc::clone(error))),
            None => Ok(()),
        }
    }

    /// What wakes whoever makes progress.
    pub fn bell(&self) -> Arc<Bell> {
        self.doorbell.bell()
    }

    /// Wakes whoever makes progress; needs no turn.
    pub fn ring(&self) {
        self.doorbell.ring();
    }

    /// After a call that may have left something to be sent on by age: a progress thread in deep sleep must know.
    #[inline]
    pub fn wake_progress_thread(&self) {
        self.wake_from(Sleep::Deep);
    }

    #[inline]
    fn wake_from(&self, sleep: Sleep) {
        if self.sleep.get() == sleep || self.sleep.get() == Sleep::Deep {
            self.sleep.set(Sleep::Awake);
            self.doorbell.wake();
        }
    }

    fn park(&self) -> Result<()> {
        let now_ns = self.now_ns();
        let timed = {
            let (streams, link) = (self.endpoint.streams.borrow(), self.endpoint.link.borrow());
            for core in streams.iter() {
                core.want_space(core.urgent.get() > 0);
            }
            let blind = link.as_ref().is_some_and(|l| l.wait_descriptor().is_none());
            blind || self.fencing.get() || streams.iter().any(|s| s.waits_for_time())
        };
        if let Some(turn) = self.turn.get().filter(|_| self.newcomer.take()) {
            turn.tell_moved();
        }
        let left = Cell::new(false);
        let stay_awake = || {
            let (streams, mut link) = (self.endpoint.streams.borrow(), self.endpoint.link.borrow_mut());
            let awake = streams.iter().any(|s| s.must_stay_awake())
                || link.as_deref_mut().is_some_and(|l| !l.try_wait());
            drop((streams, link));
            if let Some(turn) = self.turn.get().filter(|_| !awake) {
                self.sleep.set(if timed { Sleep::Nap } else { Sleep::Deep });
                left.set(true);
                // SAFETY: the caller has the turn. What stays borrowed, the parker and its list, only the one thread
                // reaches that parks.
                unsafe { turn.leave() };
            }
            awake
        };
        let mut woken = self.woken.borrow_mut();
        woken.clear();
        let timeout = if timed { NAP } else { PARK };
        let parked = self
            .parker
            .borrow_mut()
            .park(&self.doorbell, timeout, stay_awake, &mut woken);
        if let Some(turn) = self.turn.get().filter(|_| left.get()) {
            turn.take();
            self.sleep.set(Sleep::Awake);
        }
        parked?;
        let (ended, arrived) = (
            woken.iter().any(|&m| m < LINK_MARK),
            woken.contains(&HANDOVER_MARK),
        );
        drop(woken);
        if ended {
            self.look_after_peers(now_ns)?;
        }
        if arrived {
            let mut node = self.node.borrow_mut();
            while let Some(parcel) = node.handover.try_accept()? {
                node.keep(&self.endpoint.topology, self.endpoint.cookie, parcel)?;
            }
        }
        Ok(())
    }

    /// See [`Job::shutdown`].
    pub fn shutdown(&self) -> Result<()> {
        let streams: Vec<_> = self
            .endpoint
            .streams
            .borrow()
            .iter()
            .skip(1)
            .map(Rc::clone)
            .collect();
        for core in streams.into_iter().filter(|core| !core.out.borrow().closed) {
            let before = core.delivered();
            let untaken = core.give_up_untaken();
            let mut fence = core.fence.take().unwrap_or_default();
            self.wait(|| {
                Ok(fence
                    .poll(&core, &mut self.endpoint.collectives.borrow_mut())
                    .then_some(()))
            })?;
            if let Some(untaken) = untaken {
                let lost = untaken + core.delivered() - before;
                if lost > 0 {
                    tracing::warn!(
                        stream = core.name,
                        lost,
                        "records were not taken before the job ended"
                    );
                }
            }
            core.out.borrow_mut().closed = true;
        }
        self.barrier()?;
        let bootstrap = self.bootstrap.borrow_mut().take();
        if let Some(bootstrap) = bootstrap {
            if bootstrap.fences_on_callers_thread() {
                // Every record of every stream has been delivered, and a barrier's last messages go to ranks one hop away that
                // still wait for them: once they have left, nobody needs this rank's progress. The first barrier has used
                // each of these links both ways, so that none of the second one's waits for a connection.
                self.barrier()?;
                self.wait(|| Ok(self.endpoint.has_left_results().then_some(())))?;
            }
            self.closing.set(true);
            // Nobody's memory and addresses go before the launcher says that all have arrived here.
            let mut bootstrap = self.launchers_fence(bootstrap)?;
            bootstrap.finalize()?;
        }
        Ok(())
    }

    /// See [`Job::barrier`].
    pub fn barrier(&self) -> Result<()> {
        self.collective(Operation::Reduce(Reduce::Sum), &[]).map(|_| ())
    }

    /// A local peer that ended, or a remote one that owes us an answer for too long, ends the job with its rank.
    fn look_after_peers(&self, now_ns: u64) -> Result<()> {
        self.checked_ns.set(now_ns);
        if self.closing.get() {
            return Ok(());
        }
        if let Some((rank, _)) = self
            .node
            .borrow()
            .watches
            .iter()
            .find(|(_, watch)| watch.has_ended())
        {
            let why = "its process ended before the job did".to_owned();
            return Err(TransportError::PeerDead { rank: *rank, why }.into());
        }
        let limit_ns = self.options.peer_timeout_ms.saturating_mul(1_000_000);
        for core in self.endpoint.streams.borrow().iter() {
            match core.silent_peer(now_ns) {
                Some((rank, silent_ns)) if silent_ns >= limit_ns => {
                    let why = format!(
                        "it owes an answer and has been silent for {} ms (peer_timeout_ms)",
                        silent_ns / 1_000_000
                    );
                    return Err(TransportError::PeerDead { rank, why }.into());
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn collective(&self, operation: Operation, contribution: &[u8]) -> Result<Vec<u8>> {
        if self.endpoint.is_busy() {
            return Err(Error::Nested("a collective"));
        }
        let ticket: Ticket = self.endpoint.begin_collective(operation, contribution);
        let result = self.wait(|| Ok(self.endpoint.collective_result(ticket)))?;
        self.pass_on_results()?;
        Ok(result)
    }

    /// Sends what a collective that is complete here still has to tell others: the caller may not come back for long.
    pub fn pass_on_results(&self) -> Result<()> {
        self.wait(|| Ok(self.endpoint.has_passed_on_results().then_some(())))
    }

    /// The launcher's fence: with progress where the launcher allows it, else on this thread, where it must not be needed.
    fn launchers_fence(&self, mut bootstrap: Box<dyn Bootstrap>) -> Result<Box<dyn Bootstrap>> {
        if !bootstrap.fences_on_callers_thread() {
            return self.fence_while_progressing(bootstrap);
        }
        bootstrap.fence()?;
        Ok(bootstrap)
    }

    /// Runs a launcher's call, which waits, on a thread of its own while this one keeps forwarding.
    fn fence_while_progressing(&self, mut bootstrap: Box<dyn Bootstrap>) -> Result<Box<dyn Bootstrap>> {
        let bell = self.doorbell.bell();
        let thread = sync::thread::spawn(move || {
            let outcome = bootstrap.fence();
            bell.ring();
            (bootstrap, outcome)
        });
        // The thread rings before it has quite ended, hence naps.
        self.fencing.set(true);
        let waited = self.wait(|| Ok(thread.is_finished().then_some(())));
        self.fencing.set(false);
        // An error here must come out although the launcher may wait for a dead rank for ever: the thread stays behind.
        // Once all ranks have arrived at the end, though, the first may be gone before we hear of it: nobody needs us.
        if !self.closing.get() {
            waited?;
        }
        let (bootstrap, outcome) = thread.join().map_err(|_| {
            let why = "the thread that spoke with the launcher panicked".into();
            Error::from(TransportError::Bootstrap {
                launcher: self.launcher.name(),
                why,
            })
        })?;
        outcome?;
        Ok(bootstrap)
    }

    /// Opens a stream on all ranks.
    pub fn open(
        &self,
        name: &str,
        options: &StreamOptions,
        item_bytes: usize,
        sink: Sink<'h>,
    ) -> Result<Rc<Core<'h>>> {
        if self.endpoint.is_busy() {
            return Err(Error::Nested("opening a stream"));
        }
        let prepared = self.endpoint.prepare(name, options, item_bytes);
        // Whether all ranks mean the same stream is agreed before anything of it is shared. A rank that failed says so by
        // a pair that agrees with nobody's, rather than leave the others waiting.
        let eager = self.options.eager_bytes.unwrap_or(0);
        let pair = prepared.as_ref().map_or([0, 0], |p| {
            let word = p.agreement(eager) | 1;
            [word, !word]
        });
        let least = self.agree(&pair)?;
        let prepared = prepared?;
        if least != pair {
            let why = format!(
                "rank {} has {options:?} with items of {item_bytes} bytes; another rank differs, or failed and says why",
                self.endpoint.topology.rank()
            );
            let (id, name) = (prepared.id, prepared.name);
            return Err(Error::Mismatch {
                name: format!("{name} (number {id})"),
                why,
            });
        }
        let core = self.connect(prepared, sink);
        // Nobody sends on the stream before everybody has posted its receives.
        let all_open = self.agree(&[u64::from(core.is_ok())])? == [1];
        let core = core?;
        if !all_open {
            let why = "another rank could not open it, and says why".to_owned();
            return Err(Error::Mismatch {
                name: name.to_owned(),
                why,
            });
        }
        Ok(core)
    }

    /// Smallest of all ranks' values.
    fn agree(&self, values: &[u64]) -> Result<Vec<u64>> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let least = self.collective(Operation::Reduce(Reduce::Min), &bytes)?;
        Ok(least
            .chunks_exact(8)
            .map(|c| u64::from_le_bytes(c.try_into().expect("chunks of 8")))
            .collect())
    }

    /// Exchanges inboxes with the node's ranks, with progress since others may need it to come this far.
    fn connect(&self, prepared: Prepared, sink: Sink<'h>) -> Result<Rc<Core<'h>>> {
        let (topology, cookie) = (&self.endpoint.topology, self.endpoint.cookie);
        let deadline = Instant::now() + self.options.bootstrap_timeout();
        let label = Label {
            cookie,
            stream: prepared.id,
            rank: topology.rank().0,
        };
        self.node
            .borrow()
            .give(topology, &label, &[prepared.segment.descriptor()?], deadline)?;
        self.wait(|| {
            let mut node = self.node.borrow_mut();
            while let Some(parcel) = node.handover.try_accept()? {
                node.keep(topology, cookie, parcel)?;
            }
            let missing = node.missing(topology, prepared.id);
            if !missing.is_empty() && Instant::now() >= deadline {
                return Err(not_arrived(&missing, &"bootstrap_timeout_ms has passed"));
            }
            Ok(missing.is_empty().then_some(()))
        })?;
        let segments: Vec<Arc<Segment>> = self
            .node
            .borrow_mut()
            .taken(topology, prepared.id)?
            .into_iter()
            .map(|theirs| match theirs {
                None => Ok(Arc::clone(&prepared.segment)),
                Some([memory]) => Ok(Segment::attach(memory, prepared.segment_bytes())?),
            })
            .collect::<Result<_>>()?;
        self.endpoint.connect(prepared, &segments, sink)
    }
}

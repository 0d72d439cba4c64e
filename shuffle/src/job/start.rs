//! The start of a job: from a launcher's store to endpoints that may send to each other.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use trihop_transport::bootstrap::{self, Bootstrap};
use trihop_transport::fabric;
use trihop_transport::link::Link;
use trihop_transport::memory::handover::Handover;
use trihop_transport::ring::Doorbell;
use trihop_transport::topology::Rank;

use super::card::{Card, random_word};
use super::wait::Waiting;
use super::{Inner, Job};
use crate::config::Options;
use crate::endpoint::{Endpoint, check_memory};
use crate::error::{Error, Result};
use crate::node::NodeExchange;
use crate::route::{Chosen, Route};
use crate::signal::DumpOnSignal;

impl<'h> Job<'h> {
    /// Joins the job that this process was started in; without a launcher, a job of one.
    ///
    /// # Errors
    /// A bad option, no usable provider, a rank that does not arrive within `bootstrap_timeout_ms`, memory.
    pub fn start(options: Options) -> Result<Self> {
        let bootstrap = Self::detect(&options)?;
        Self::start_with(options, bootstrap)
    }

    /// The launcher's bootstrap.
    pub(crate) fn detect(options: &Options) -> Result<Box<dyn Bootstrap>> {
        options.check()?;
        Ok(bootstrap::start(options.launcher, options.bootstrap_timeout())?)
    }

    /// As [`Job::start`], with a bootstrap of the caller's: [`bootstrap::Custom`] for ranks that know each other already.
    /// `options.launcher` then says nothing.
    ///
    /// # Errors
    /// As [`Job::start`].
    pub fn start_with(options: Options, bootstrap: Box<dyn Bootstrap>) -> Result<Self> {
        Self::start_seated(options, bootstrap, false)
    }

    /// As [`Job::start_with`]; `threads`: a thread will make progress whatever the application does.
    pub(crate) fn start_seated(
        options: Options,
        mut bootstrap: Box<dyn Bootstrap>,
        threads: bool,
    ) -> Result<Self> {
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
        let mine = Card {
            nonce,
            cookie: random_word()?,
            route: options.route,
            threads,
            address,
        };
        mine.leave(&mut *bootstrap)?;
        let mut card = |rank: Rank| {
            tracing::trace!(target: "trihop_transport::bootstrap", of = rank.0, "fetching a card");
            Card::of(rank, &mut *bootstrap, options.route)
        };
        let cookie = card(Rank(0))?.cookie;
        let mut names = Vec::new();
        for local in 0..topology.local_size() {
            let rank = topology.rank_at(topology.node(), local);
            names.push(name(card(rank)?.nonce, rank));
        }
        let mut lively = Vec::new();
        let peers = match &mut link {
            Some(link) => route.connect(|rank| {
                let theirs = card(rank)?;
                tracing::trace!(target: "trihop_shuffle::route", to = rank.0, "link");
                if threads && theirs.threads {
                    lively.push(rank);
                }
                Ok::<_, Error>(link.connect(&theirs.address)?)
            })?,
            None => Vec::new(),
        };

        let doorbell = Doorbell::create()?;
        let mut node = NodeExchange::new(handover, names);
        let deadline = Instant::now() + options.bootstrap_timeout();
        let bells = node.exchange_bells(&topology, &doorbell, cookie, deadline)?;
        // Simulated nodes share this machine's cores.
        let neighbours = if options.loopback {
            topology.size()
        } else {
            topology.local_size()
        };
        let waiting = Waiting::new(doorbell, link.as_deref(), &node, neighbours)?;
        let endpoint = Endpoint::new(topology, route, cookie, link, peers.into(), bells.into());
        let inner = Rc::new(Inner {
            endpoint,
            options,
            bootstrap: RefCell::new(Some(bootstrap)),
            launcher,
            node: RefCell::new(node),
            waiting,
            epoch: Instant::now(),
            closing: Cell::new(false),
            fencing: Cell::new(false),
            checked_ns: Cell::new(0),
            lively,
            asked_ns: Cell::new(0),
            told: Cell::new(false),
            rounds: Cell::new(0),
            dump_on_signal: DumpOnSignal::default(),
            told_records: Cell::new(0),
            turn: OnceCell::new(),
        });
        inner.open_system_stream()?;
        // The receives of the system stream are posted: only now may anybody send to anybody. Until then nobody needs
        // anybody's progress; a fence on another thread is there to notice a dead neighbour.
        let bootstrap = inner.bootstrap.borrow_mut().take().expect("put there above");
        let mut bootstrap = inner.launchers_fence(bootstrap)?;
        bootstrap.forget();
        *inner.bootstrap.borrow_mut() = Some(bootstrap);
        let job = Self { inner };
        let topology = job.topology();
        tracing::info!(
            target: "trihop_shuffle::route",
            route = %job.inner.options.route,
            links = job.inner.endpoint.route.links(),
            "route chosen"
        );
        tracing::debug!(
            target: "trihop_shuffle::route",
            neighbours = topology.local_size() - 1,
            other_nodes = topology.nodes() - 1,
            placement = topology.process_mapping(),
            "routed by this placement"
        );
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
}

fn open_link(options: &Options, nodes: u32) -> Result<Box<dyn Link>> {
    let choice = fabric::Choice {
        universe: Some((nodes as usize).max(16)),
        ..options.choice()
    };
    Ok(fabric::open(&choice)?)
}

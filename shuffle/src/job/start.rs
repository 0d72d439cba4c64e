//! The start of a job: from a launcher's store to endpoints that may send to each other.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use trihop_transport::bootstrap::{self, Bootstrap};
use trihop_transport::fabric;
use trihop_transport::link::Link;
use trihop_transport::memory::handover::Handover;
use trihop_transport::random::random_bytes;
use trihop_transport::ring::Doorbell;
use trihop_transport::secret::Secret;
use trihop_transport::topology::Rank;
use trihop_transport::watch::{Neighbour, decode_addresses, encode_addresses};

use super::JobState;
use super::card::Card;
use super::lives::{Lives, WatchStart};
use super::parked::Parked;
use super::wait::Waiting;
use crate::config::Options;
use crate::endpoint::{Endpoint, WIRE_LABEL, check_memory};
use crate::error::{Error, Result};
use crate::node::NodeExchange;
use crate::route::{Chosen, Route};

/// The launcher's bootstrap.
pub(crate) fn detect(options: &Options) -> Result<Box<dyn Bootstrap>> {
    options.check()?;
    Ok(bootstrap::start(options.launcher, options.bootstrap_timeout())?)
}

impl JobState<'_> {
    /// See [`crate::Job::start_with`].
    pub fn start(options: Options, mut bootstrap: Box<dyn Bootstrap>) -> Result<Rc<Self>> {
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

        let nonce = u64::from_le_bytes(random_bytes()?);
        let name = |nonce: u64, rank: Rank| format!("trihop-{nonce:016x}-{}", rank.0);
        let handover = Handover::listen(&name(nonce, topology.rank()), 2 * topology.local_size() + 8)?;
        let mut watch = WatchStart::listen(&options, &topology)?;
        let watch_addresses = watch.as_ref().map_or(&[][..], |w| w.listening.addresses());
        let address = link.as_ref().map_or(Vec::new(), |l| l.address().to_vec());
        let mine = Card {
            nonce,
            secret: Secret::random()?,
            route: options.route,
            watch: encode_addresses(watch_addresses),
            address,
        };
        mine.leave(&mut *bootstrap)?;
        let mut card = |rank| Card::of(rank, &mut *bootstrap, options.route);
        let secret = card(Rank(0))?.secret;
        let mut names = Vec::new();
        for local in 0..topology.local_size() {
            let rank = topology.rank_at(topology.node(), local);
            names.push(name(card(rank)?.nonce, rank));
        }
        if let Some(watch) = &mut watch {
            for node in WatchStart::nodes(&topology) {
                let rank = topology.rank_at(node, 0);
                let addresses = decode_addresses(&card(rank)?.watch).ok_or_else(|| {
                    Error::bad_peer(rank.0, "a card with an impossible address of its watch")
                })?;
                watch.neighbours.push(Neighbour { node, addresses });
            }
        }
        let peers = match &mut link {
            Some(link) => route.connect(|rank| Ok::<_, Error>(link.connect(&card(rank)?.address)?))?,
            None => Vec::new(),
        };

        let doorbell = Doorbell::create()?;
        let mut node = NodeExchange::new(handover, names);
        let deadline = Instant::now() + options.bootstrap_timeout();
        let met = node.meet(&topology, &doorbell, secret.derive(WIRE_LABEL), deadline)?;
        let (bells, lives) = (met.bells.clone(), Lives::new(met));
        if let Some(watch) = watch {
            watch.start(&options, &topology, &secret, &node, &lives)?;
        }
        // Simulated nodes share this machine's cores.
        let neighbours = if options.loopback {
            topology.size()
        } else {
            topology.local_size()
        };
        let waiting = Waiting::new(doorbell, link.as_deref(), &node, neighbours)?;
        let endpoint = Endpoint::new(topology, route, secret, link, peers.into(), bells.into());
        let state = Rc::new(Self {
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
            lives,
            rounds: Cell::new(0),
            parked: Parked::default(),
            turn: OnceCell::new(),
        });
        state.open_system_stream()?;
        // Who dies once this start has ended is to be heard of by all.
        state.wait(|| Ok(state.watch_is_settled().then_some(())))?;
        // The receives of the system stream are posted: only now may anybody send to anybody. Until then nobody needs
        // anybody's progress; a fence on another thread is there to notice a dead neighbour.
        let bootstrap = state.bootstrap.borrow_mut().take().expect("put there above");
        let mut bootstrap = state.launchers_fence(bootstrap)?;
        bootstrap.forget();
        *state.bootstrap.borrow_mut() = Some(bootstrap);
        tracing::info!(
            size = state.endpoint.topology.size(),
            nodes = state.endpoint.topology.nodes(),
            %launcher,
            route = %state.options.route,
            provider = state.provider(),
            "job started"
        );
        Ok(state)
    }
}

fn open_link(options: &Options, nodes: u32) -> Result<Box<dyn Link>> {
    let choice = fabric::Choice {
        universe: Some((nodes as usize).max(16)),
        ..options.choice()
    };
    Ok(fabric::open(&choice)?)
}

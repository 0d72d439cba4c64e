//! The ranks: an engine each, and what they sleep on.

use std::sync::Arc;

use trihop_transport::link::Link;
use trihop_transport::memory::segment::Segment;
use trihop_transport::protocol::wire::Epoch;
use trihop_transport::ring::{Bell, Doorbell};
use trihop_transport::secret::Secret;
use trihop_transport::topology::{EndpointId, Rank, Topology};

use super::awake::Awake;
use super::error::SimulationError;
use super::fabric::Fabric;
use super::options::SimulationOptions;
use crate::endpoint::{Engine, StreamId};
use crate::engine::StreamState;
use crate::engine::outbound::Outbound;
use crate::engine::sink::{Heard, Sink};
use crate::error::Error;
use crate::queue::limits::LinkTerms;
use crate::terminate::collective::Collectives;

/// Secret of all simulated jobs.
pub(crate) const SECRET: [u8; Secret::BYTES] = [42; Secret::BYTES];

/// A stream of a rank, and its inbox.
pub(super) type Opened = (StreamId, Arc<Segment>);

/// What endpoints of a node have of each other.
pub(super) struct Here {
    end: EndpointId,
    epoch: Epoch,
    bell: Arc<Bell>,
    streams: Box<[Opened]>,
}

/// One rank of the job, or a relay.
pub(crate) struct Member {
    pub engine: Engine,
    /// The stream that is used.
    pub id: StreamId,
    /// Its streams, that of the collectives first, and their inboxes.
    pub(super) streams: Box<[Opened]>,
    pub(super) epoch: Epoch,
    pub(super) doorbell: Doorbell,
    /// Nothing moved in its last round.
    pub(super) idle: bool,
}

impl Member {
    /// All endpoints of a job in order, with the job's own stream and those of the options open; and
    /// the terms that each of these was opened on.
    pub fn all(
        fabric: &mut Fabric,
        topology: &Topology,
        options: &SimulationOptions,
        sink: impl Fn(Rank) -> Sink,
    ) -> Result<(Vec<Self>, Box<[LinkTerms]>), SimulationError> {
        let links = fabric.links(topology.endpoints());
        let addresses: Vec<Box<[u8]>> = links.iter().map(|link| link.address().into()).collect();
        let engines = (0..topology.endpoints()).map(EndpointId).zip(links);
        let engines = engines.map(|(end, link)| new_engine(topology, end, link, Epoch::FIRST));
        let mut engines: Vec<Engine> = engines.collect::<Result<_, _>>()?;
        let count = 1 + usize::from(options.streams.max(1));
        let mut streams: Vec<_> = engines.iter().map(|_| Vec::with_capacity(count)).collect();
        let mut agreed = Vec::with_capacity(count);
        for number in 0..count {
            // As the ranks of a job agree: both ends of a link do as the one wants that takes
            // least.
            let terms = engines.iter().map(Engine::link_terms);
            let terms = terms.reduce(LinkTerms::and).unwrap_or(LinkTerms::ANY);
            for (engine, streams) in engines.iter_mut().zip(&mut streams) {
                let (rank, is_relay) = (engine.topology.rank(), engine.topology.is_relay());
                streams.push(open_stream(
                    engine,
                    options,
                    number,
                    terms,
                    || match is_relay {
                        true => Sink::Closed,
                        false => sink(rank),
                    },
                )?);
            }
            agreed.push(terms);
        }
        let members = engines
            .into_iter()
            .zip(streams)
            .map(|(engine, streams)| Self {
                engine,
                id: streams[1].0,
                streams: streams.into(),
                epoch: Epoch::FIRST,
                doorbell: Doorbell::private(),
                idle: false,
            });
        let mut members: Vec<Self> = members.collect();
        for at in 0..members.len() {
            let ends: Vec<_> = members[at].engine.topology.ends_here().collect();
            for end in ends {
                let other = members[end.0 as usize].here();
                members[at].attach_here(other)?;
            }
            for end in members[at].engine.ends() {
                let address = &addresses[end.0 as usize];
                members[at].engine.attach_end(end, Epoch::FIRST, address)?;
            }
        }
        Ok((members, agreed.into()))
    }

    /// What an endpoint of the same node, or this one itself, attaches.
    pub(super) fn here(&self) -> Here {
        Here {
            end: self.engine.topology.endpoint(),
            epoch: self.epoch,
            bell: self.doorbell.bell(),
            streams: self.streams.clone(),
        }
    }

    /// An endpoint of the same node, or this one itself, comes to this one.
    pub(super) fn attach_here(&mut self, other: Here) -> Result<(), Error> {
        self.engine.attach_here(other.end, other.epoch, other.bell);
        for ((id, _), (_, inbox)) in self.streams.iter().zip(other.streams) {
            self.engine.attach_inbox(*id, other.end, inbox)?;
        }
        Ok(())
    }

    /// The stream of the options.
    pub fn stream(&self) -> (&StreamState, &Outbound) {
        self.engine.stream(self.id).expect("it stays open")
    }

    /// As [`Member::stream`], to use it, with the rank's collectives.
    pub fn stream_mut(&mut self) -> (&mut StreamState, &mut Outbound, &mut Collectives) {
        self.engine.stream_mut(self.id).expect("it stays open")
    }

    /// Closes its stream, with nothing of it under way; it is opened again by
    /// [`Member::reopen`].
    #[cfg(test)]
    pub fn close(&mut self) {
        self.engine.retire(self.id);
    }

    /// Opens a stream in the place of the one that was closed, which has these options.
    ///
    /// # Panics
    /// When none was closed.
    #[cfg(test)]
    pub fn reopen(&mut self, options: &SimulationOptions) -> Result<(), Error> {
        let (stream, bytes) = (&options.stream, options.item_bytes);
        let plan = self.engine.plan("reopened", stream, bytes)?;
        let number = self.engine.reusable(&plan).expect("one was closed");
        self.id = self.engine.reopen(number, plan, Sink::Handler)?;
        Ok(())
    }

    /// Goes to sleep as a job parks, unless there is something to do after all; `blind` ranks look
    /// again soon.
    pub(super) fn sleep(&mut self, awake: &mut Awake, rank: u32, blind: bool) -> bool {
        let timed = self.engine.prepare_to_sleep();
        self.doorbell.announce_sleep();
        if self.engine.must_stay_awake() {
            self.doorbell.awake();
            return false;
        }
        if blind || timed {
            awake.nap(rank);
        }
        true
    }
}

/// An engine of an endpoint for which all others are away. Where there are relays, these alone have
/// links.
pub(super) fn new_engine(
    topology: &Topology,
    end: EndpointId,
    link: Box<dyn Link>,
    epoch: Epoch,
) -> Result<Engine, Error> {
    let topology = topology.seen_by(end)?;
    let secret = Secret::from_bytes(SECRET);
    let link = Some(link).filter(|_| topology.is_relay() || !topology.has_relays());
    let mut engine = Engine::new(topology, secret, link, epoch);
    engine.create_segment = Segment::private;
    Ok(engine)
}

/// Opens a stream on one endpoint, whose inbox those of the node attach: the job's own, 0, or one
/// of the options. `terms` are what all have agreed on.
pub(super) fn open_stream(
    engine: &mut Engine,
    options: &SimulationOptions,
    number: usize,
    terms: LinkTerms,
    sink: impl FnOnce() -> Sink,
) -> Result<Opened, Error> {
    let (options, item_bytes, sink) = match number {
        0 => (
            &Engine::system_options(),
            0,
            Sink::Collectives(Heard::default()),
        ),
        _ => (&options.stream, options.item_bytes, sink()),
    };
    let prepared = engine.prepare(engine.plan("simulated", options, item_bytes)?)?;
    let inbox = Arc::clone(&prepared.segment);
    let number = engine.take_number()?;
    Ok((engine.connect(number, prepared, terms, sink)?, inbox))
}

#[cfg(test)]
mod tests {
    use trihop_transport::sim::{Net, SimOptions};

    use super::*;
    use crate::config::{PoolLimits, Shares, StreamOptions};
    use crate::dump::Bound;
    use crate::endpoint::Need;
    use crate::route::RouteName;

    /// What `Need` says before a stream is opened is what it then takes.
    #[test]
    fn what_a_stream_needs_is_known_before_it_is_opened() {
        let tiny = StreamOptions {
            remote_buftarget_bytes: 300,
            remote_maxrpc: 1,
            run_bytes: 64,
            given_shares: Some(Shares {
                run_table_bytes: 256,
                lane_budget_bytes: 8192,
                receive_pool_bytes: 1,
                send_pool_bytes: 64 << 10,
                small_slot_bytes: 256,
                ..Shares::default()
            }),
            ..StreamOptions::default()
        };
        for sizes in [&[1u32][..], &[3], &[1, 1], &[2, 5, 1], &[1; 40]] {
            for stream in [&tiny, &StreamOptions::default()] {
                for route in RouteName::all() {
                    let options = SimulationOptions {
                        stream: StreamOptions {
                            route,
                            ..stream.clone()
                        },
                        ..SimulationOptions::default()
                    };
                    let topology = Topology::from_node_sizes(sizes, Rank(0)).unwrap();
                    let mut fabric = Fabric::Simulated(Net::new(SimOptions::default()));
                    let members = Member::all(&mut fabric, &topology, &options, |_| Sink::Closed)
                        .unwrap()
                        .0;
                    for member in &members {
                        let limits = SimOptions::default().limits;
                        let engine = &member.engine;
                        let (state, out) = member.stream();
                        let need = Need::of(
                            &engine.topology,
                            &out.queues.route,
                            &options.stream,
                            &PoolLimits::default(),
                            false,
                            Some(&limits),
                        );
                        let need = need.unwrap().sharing(state.block_bytes);
                        let bound = Bound::of(state, out);
                        assert_eq!(
                            need.bytes(),
                            bound.fixed(),
                            "{route} on {sizes:?}: {need}; {bound}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn pools_stay_within_what_an_agent_has_left_of_its_limits() {
        let topology = Topology::from_node_sizes(&[2, 2, 2], Rank(0)).unwrap();
        let options = SimulationOptions::default();
        let mut fabric = Fabric::Simulated(Net::new(SimOptions::default()));
        let members = Member::all(&mut fabric, &topology, &options, |_| Sink::Closed);
        let mut members = members.unwrap().0;
        let engine = &mut members[0].engine;
        // As many batches as its memory is for.
        let stream = StreamOptions {
            remote_maxrpc: 64,
            ..StreamOptions::default()
        };
        // What a stream with these limits takes.
        let mut open = |injection_bytes, ejection_bytes| {
            let mut plan = engine.plan("more", &stream, 0).unwrap();
            plan.pools = PoolLimits {
                injection_bytes,
                ejection_bytes,
            };
            let prepared = engine.prepare(plan).unwrap();
            let (number, terms) = (engine.take_number().unwrap(), engine.link_terms());
            let id = engine.connect(number, prepared, terms, Sink::Closed);
            let (state, out) = engine.stream(id.unwrap()).unwrap();
            let notices = state.notices.as_ref().unwrap().bytes();
            let received = state.inbound.links.as_ref().unwrap().pool_bytes;
            [out.queues.remotes.pool_bytes() + notices, received]
        };
        let most = open(usize::MAX, usize::MAX);
        let least = open(0, 0);
        let is_less = least[0] < most[0] / 4 && least[1] < most[1];
        assert!(is_less, "{least:?} of {most:?}");
        for part in 1..8 {
            let limit = |at: usize| least[at] + (most[at] - least[at]) * part / 8;
            let (injection, ejection) = (limit(0), limit(1));
            let [sent, received] = open(injection, ejection);
            assert!(
                sent <= injection && received <= ejection,
                "{sent} and {received}"
            );
            assert!(sent > injection / 2, "{sent} of {injection}");
        }
    }
}

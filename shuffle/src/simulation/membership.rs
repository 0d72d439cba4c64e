//! Ranks that leave the job, and join it again.

use trihop_transport::link::Link;
use trihop_transport::topology::Rank;

use super::error::SimulationError;
use super::job::Simulation;
use super::member::{new_engine, open_stream};
use crate::engine::sink::Sink;
use crate::error::Error;
use crate::route::EndpointId;

impl Simulation<'_> {
    /// A rank leaves the job, which comes to rest first. What is sent to it or through it from then
    /// on waits at its senders until it joins again ([`Simulation::join`]); so does a fence.
    ///
    /// # Errors
    /// As [`Simulation::step`], and [`SimulationError::Stuck`] where something cannot move on,
    /// because another rank is away, or is in another round. The rank does not exist, or is away, or
    /// it is in the middle of a round or of a step of contributors.
    pub fn leave(&mut self, rank: Rank) -> Result<(), SimulationError> {
        self.check_rank(rank)?;
        if self.away.contains(&rank) {
            return Err(Error::config("rank", format!("rank {rank} is away")).into());
        }
        self.settle()?;
        let is_other = |at: &usize| *at != rank.0 as usize;
        let others: Vec<usize> = (0..self.members.len()).filter(is_other).collect();
        for &at in &others {
            let other = &mut self.members[at].engine;
            if other.knows(rank.into()) && !other.may_detach(rank.into()) {
                return Err(self.stuck("rest", 1, &[]));
            }
        }
        let legacy = match self.members[rank.0 as usize].engine.legacy() {
            Err(Error::WouldBlock) => return Err(self.stuck("rest", 1, &[])),
            legacy => legacy?,
        };
        for at in others {
            let other = &mut self.members[at].engine;
            if other.knows(rank.into()) {
                other.detach(rank.into())?;
            }
        }
        let member = &mut self.members[rank.0 as usize];
        let link = self
            .fabric
            .link_again(rank)
            .ok_or_else(|| Error::config("fabric", "only simulated links come again"))?;
        member.epoch = member.epoch.next();
        let mut engine = new_engine(&self.topology, rank.into(), link, member.epoch)?;
        let opened = self.terms.iter().zip(0..).map(|(&terms, number)| {
            open_stream(&mut engine, &self.options, number, terms, || Sink::Handler)
        });
        member.streams = opened.collect::<Result<_, _>>()?;
        engine.inherit(legacy);
        member.engine = engine;
        self.away.insert(rank);
        Ok(())
    }

    /// A rank that has left joins the job again.
    ///
    /// # Errors
    /// It has not left, or memory.
    pub fn join(&mut self, rank: Rank) -> Result<(), SimulationError> {
        if !self.away.remove(&rank) {
            return Err(Error::config("rank", format!("rank {rank} is not away")).into());
        }
        let at = rank.0 as usize;
        let engine = &self.members[at].engine;
        let here: Vec<EndpointId> = engine.topology.ends_here().collect();
        let ends = engine.ends();
        for other in here {
            self.attach_here(at, other)?;
            if other != rank.into() {
                self.attach_here(other.0 as usize, rank.into())?;
            }
        }
        for end in ends {
            self.attach_end(at, end)?;
            self.attach_end(end.0 as usize, rank.into())?;
        }
        (0..self.topology.endpoints()).for_each(|end| self.wake_rank(end));
        Ok(())
    }

    /// An endpoint of the same node, or the one itself, comes to one, unless either is away.
    fn attach_here(&mut self, at: usize, other: EndpointId) -> Result<(), SimulationError> {
        if self.away.contains(&Rank(other.0)) || self.away.contains(&Rank(at as u32)) {
            return Ok(());
        }
        let other = self.members[other.0 as usize].here();
        Ok(self.members[at].attach_here(other)?)
    }

    /// The other end of a link comes to a rank, unless either is away.
    fn attach_end(&mut self, at: usize, end: EndpointId) -> Result<(), SimulationError> {
        if self.away.contains(&Rank(end.0)) || self.away.contains(&Rank(at as u32)) {
            return Ok(());
        }
        let from = &self.members[end.0 as usize];
        let link: &dyn Link = &**from.engine.link.as_ref().expect("each rank has a link");
        let (epoch, address) = (from.epoch, link.address().to_vec());
        let engine = &mut self.members[at].engine;
        Ok(engine.attach_end(end, epoch, &address)?)
    }
}

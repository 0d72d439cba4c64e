//! Long records between ranks of a node: they lie in memory that all of these have mapped, and what
//! is sent is where.

use std::sync::Arc;

use trihop_transport::protocol::wire::{SHARED_RECORD_BYTES, SharedRecord};
use trihop_transport::ring::{Block, BlockArea, Blocks, PassedBlock};
use trihop_transport::sync::{Mutex, PoisonError};
use trihop_transport::topology::{EndpointId, Rank, Topology};

/// A record of fewer bytes goes through lanes: its copies take less than what a block does.
pub(crate) const LEAST_BYTES: usize = 16 << 10;

/// The place on the node of the endpoint behind whose inbox a record is said to lie; `None` where
/// that is none of the node's.
pub(crate) fn place_of(topology: &Topology, record: &SharedRecord) -> Option<u32> {
    let end = EndpointId(record.end);
    let is_known = topology.has_endpoint(end) && topology.is_here(end);
    is_known.then(|| topology.place_of(end))
}

/// The memory of a stream that the ranks of a node share for messages.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    topology: Topology,
    own: Arc<Mutex<Blocks>>,
    /// By place on the node.
    areas: Vec<Option<BlockArea>>,
    /// Bytes of a message at most.
    most_bytes: usize,
}

/// A message that was passed on: to be told where it lies.
pub(crate) struct Passed {
    end: EndpointId,
    block: PassedBlock,
}

impl Passed {
    /// Says where it lies, behind what is in `record`.
    pub fn write(&self, record: &mut Vec<u8>) {
        let said = SharedRecord {
            end: self.end.0,
            kind: 0,
            place: self.block.place(),
        };
        let before = record.len();
        record.resize(before + SHARED_RECORD_BYTES, 0);
        said.write(&mut record[before..]);
    }

    /// Takes it back: nobody was told of it.
    pub fn take_back(self) -> Option<Block> {
        self.block.take_back()
    }
}

impl SharedMemory {
    /// This rank's, and where that of the node's ranks lies, by place, for messages of so many
    /// bytes at most.
    pub fn new(
        topology: Topology,
        own: Arc<Mutex<Blocks>>,
        areas: Vec<Option<BlockArea>>,
        most_bytes: usize,
    ) -> Self {
        Self {
            topology,
            own,
            areas,
            most_bytes,
        }
    }

    /// Memory of this rank's for a message; `None` where there is no room for it.
    pub fn take(&self, bytes: usize) -> Option<Block> {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.take(bytes)
    }

    /// Whether a message of so many bytes for this rank goes by a block.
    pub fn is_for(&self, to: Rank, bytes: usize) -> bool {
        bytes >= LEAST_BYTES && self.topology.is_local(to)
    }

    /// A copy of a message for this rank, where it is to go by a block and there is room.
    pub fn copy(&self, to: Rank, message: &[u8]) -> Option<Block> {
        if !self.is_for(to, message.len()) {
            return None;
        }
        let mut block = self.take(message.len())?;
        block.copy_from_slice(message);
        Some(block)
    }

    /// Passes a message on to a rank of the node, by a copy.
    pub fn pass_copy(&self, to: Rank, message: &[u8]) -> Option<Passed> {
        self.passed(self.copy(to, message)?).ok()
    }

    /// Passes the memory of a message on to a rank of the node.
    ///
    /// # Errors
    /// The message, where that rank does not have that memory: of another node, or of another
    /// opening, before.
    pub fn pass(&self, to: Rank, message: Block) -> Result<Passed, Block> {
        match self.topology.is_local(to) {
            true => self.passed(message),
            false => Err(message),
        }
    }

    fn passed(&self, block: Block) -> Result<Passed, Block> {
        let is_it = |area: &BlockArea| block.is_in(area);
        let mut areas = self.areas.iter();
        let place = areas.position(|area| area.as_ref().is_some_and(is_it));
        let Some(place) = place else {
            return Err(block);
        };
        Ok(Passed {
            end: self.topology.endpoint_at(place as u32),
            block: block.pass(),
        })
    }

    /// Claims a message that was passed on to this rank; `None` for what cannot be.
    pub fn claim(&self, said: &[u8]) -> Option<Block> {
        let said = SharedRecord::read(said)?;
        let place = place_of(&self.topology, &said)?;
        let area = self.areas.get(place as usize)?.as_ref()?;
        let block = Block::claim(area, said.place)?;
        (block.len() <= self.most_bytes).then_some(block)
    }
}

//! Long messages between ranks of a node: they lie in memory that all of these have mapped, and
//! what is sent is where.

use std::sync::Arc;

use trihop_transport::ring::{Block, BlockArea, BlockPlace, Blocks, PassedBlock};
use trihop_transport::sync::{Mutex, PoisonError};
use trihop_transport::topology::{EndpointId, Rank, Topology};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A message of fewer bytes goes through lanes: its copies take less than what a block does.
pub(super) const LEAST_BYTES: usize = 16 << 10;

/// Says where a message lies, in the place of its bytes.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawPlace {
    /// The endpoint whose inbox it lies behind.
    end: U32,
    reserved: U32,
    offset: U64,
    word: U64,
}

/// Bytes of what says where a message lies.
pub(super) const PLACE_BYTES: usize = size_of::<RawPlace>();

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
pub(super) struct Passed {
    end: EndpointId,
    block: PassedBlock,
}

impl Passed {
    /// Says where it lies, behind what is in `record`.
    pub fn write(&self, record: &mut Vec<u8>) {
        let BlockPlace { offset, word } = self.block.place();
        let raw = RawPlace {
            end: self.end.0.into(),
            reserved: 0.into(),
            offset: offset.into(),
            word: word.into(),
        };
        record.extend_from_slice(raw.as_bytes());
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
        let raw = RawPlace::ref_from_bytes(said).ok()?;
        let end = EndpointId(raw.end.get());
        let is_known = self.topology.has_endpoint(end) && self.topology.is_here(end);
        let place = is_known.then(|| self.topology.place_of(end))?;
        let area = self.areas.get(place as usize)?.as_ref()?;
        let at = BlockPlace {
            offset: raw.offset.get(),
            word: raw.word.get(),
        };
        let block = Block::claim(area, at)?;
        (block.len() <= self.most_bytes).then_some(block)
    }
}

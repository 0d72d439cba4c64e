//! What a rank keeps of its channels from one job to the next.

use trihop_transport::sync::{Arc, Mutex, PoisonError};

use super::descriptor::Descriptor;
use super::owner::Place;

/// The channels of a rank, with the messages in them, between two jobs:
/// [`Channels::keep`](super::Channels::keep) gives them, and
/// [`ChannelsBuilder::keeping`](super::ChannelsBuilder::keeping) goes on with them. Clones are the
/// same. With the last one they are gone.
#[derive(Debug, Clone)]
pub struct Kept {
    pub(super) job: u64,
    pub(super) owner: u32,
    /// Ranks of the job.
    pub(super) size: u32,
    /// None once an opening goes on with them.
    places: Arc<Mutex<Option<Vec<Place>>>>,
}

impl Kept {
    pub(super) fn new(job: u64, (owner, size): (u32, u32), places: Vec<Place>) -> Self {
        Self {
            job,
            owner,
            size,
            places: Arc::new(Mutex::new(Some(places))),
        }
    }

    fn places<R>(&self, with: impl FnOnce(&mut Option<Vec<Place>>) -> R) -> R {
        with(&mut self.places.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The channels, by which they are attached to again; none once an opening goes on with them.
    pub fn descriptors(&self) -> Vec<Descriptor> {
        self.places(|places| {
            let places = (0..).zip(places.iter().flatten());
            let named = |(number, place): (u32, &Place)| {
                place.taken().map(|epoch| Descriptor {
                    job: self.job,
                    owner: self.owner,
                    number,
                    epoch,
                })
            };
            places.filter_map(named).collect()
        })
    }

    pub(super) fn take(&self) -> Option<Vec<Place>> {
        self.places(Option::take)
    }

    pub(super) fn give_back(&self, kept: Vec<Place>) {
        self.places(|places| *places = Some(kept));
    }
}

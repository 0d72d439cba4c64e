//! How the channels of a job are opened.

use trihop_transport::secret::Secret;
use trihop_transport::sync::Arc;
use trihop_transport::topology::Rank;

use super::wire::{OPENING_BYTES, Payload};
use super::{Channels, Office};
use crate::config::{StreamOptions, getmsg_bytes_from_env};
use crate::deliver::{Delivery, LongBytes};
use crate::endpoint::Channel as CollectiveOrder;
use crate::error::{Error, Result};
use crate::face::shuffle::{ShuffleBuilder, each_message};
use crate::seat::{self, Inline, Seat};
use crate::terminate::reduce::Reduce;

/// Opens the [`Channels`] of a job: options.
pub struct ChannelsBuilder<S: Seat> {
    seat: S,
    name: String,
    options: Option<StreamOptions>,
    getmsg_bytes: Option<u64>,
}

impl<S: Seat> ChannelsBuilder<S> {
    pub(crate) fn new(seat: &S, name: &str) -> Self {
        Self {
            seat: seat.clone(),
            name: name.to_owned(),
            options: None,
            getmsg_bytes: None,
        }
    }

    /// Options of the channels' stream instead of the job's. Without them, a job with threads has
    /// one more that answers for channels (`own_thread`), so that no handler keeps it from that.
    /// `max_message_bytes` is at least 96; a message of a channel has at most 56 less.
    pub fn options(mut self, options: StreamOptions) -> Self {
        self.options = Some(options);
        self
    }

    /// Bytes of messages that this rank hands out of its channels and that have not arrived at the
    /// ranks which get them: beyond these, gets wait, and those that are tried once are
    /// [`Error::WouldBlock`]. One message may be longer. It is this rank's alone; without it, it is
    /// that of `TRIHOP_MAX_GETMSG_MB`, and none where that is not set. With it, each message that
    /// is handed out is answered by a word that it has arrived.
    pub fn getmsg_bytes(mut self, bytes: u64) -> Self {
        self.getmsg_bytes = Some(bytes);
        self
    }

    pub(crate) fn open_by(
        self,
        handler: impl FnOnce(Arc<Office>) -> S::Handler,
    ) -> Result<Channels<S>> {
        let Self {
            seat,
            name,
            options,
            getmsg_bytes,
        } = self;
        let (rank, usual) = seat.with("opening channels", |job| {
            Ok((job.engine.topology.rank(), job.options.stream.clone()))
        })?;
        let options = options.unwrap_or(StreamOptions {
            own_thread: true,
            ..usual
        });
        let message_bytes = options.max_message_bytes;
        if message_bytes < OPENING_BYTES {
            let why = format!("{message_bytes}: channels need at least {OPENING_BYTES}");
            return Err(Error::config("max_message_bytes", why));
        }
        let getmsg_bytes = match getmsg_bytes {
            Some(bytes) => Some(bytes),
            None => getmsg_bytes_from_env()?,
        };
        let office = Office::new(rank, getmsg_bytes);
        let handle = ShuffleBuilder::new(&seat, &name)
            .options(options)
            .handle_by(handler(Arc::clone(&office)))
            .open()?
            .handle;
        let mut job = [match rank.0 {
            0 => Secret::random()?.derive("channels"),
            _ => 0,
        }];
        let what = "opening channels";
        seat.one_at_a_time(None, what, || {
            seat::allreduce(&seat, CollectiveOrder::Calls, &mut job, Reduce::Max)
        })?;
        Ok(Channels {
            handle,
            office,
            job: job[0],
            message_bytes,
        })
    }
}

impl<'h> ChannelsBuilder<Inline<'h>> {
    /// Opens the channels, of which there are none yet; collective.
    ///
    /// # Errors
    /// Impossible options, ranks that disagree, memory, and the transport's.
    pub fn open(self) -> Result<Channels<Inline<'h>>> {
        self.open_by(|office| {
            Box::new(move |delivery, done, outbox| {
                if let Delivery::Record {
                    source,
                    kind,
                    bytes: LongBytes::Given(bytes),
                } = delivery
                {
                    let record = Payload::Owned(std::mem::take(bytes));
                    office.take(Rank(source), kind, record, outbox)?;
                    return Ok(1);
                }
                each_message(delivery, done, |message, first| {
                    if !first && outbox.has_overfilled() {
                        return Ok(false);
                    }
                    office.take_message(message, outbox)?;
                    Ok(true)
                })
            })
        })
    }
}

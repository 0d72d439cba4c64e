//! How channels are opened, made and found, and what they say of themselves.

use std::ffi::c_char;
use std::ptr::{null, null_mut};

use super::{ask_port, trihop_channel_t};
use crate::capi::argument;
use crate::capi::job::trihop_job_t;
use crate::capi::options::trihop_options_t;
use crate::capi::seat::{Either, Home, Homed, either};
use crate::capi::sized::{check_size, load_sized, store_sized};
use crate::capi::stats::{self, trihop_stats_t};
use crate::capi::status::{Failure, guard, trihop_status_t};
use crate::channel::{Descriptor, Kept};
use crate::over::ChannelsBuilder;
use crate::{ChannelLimits, Channels, Seat, StreamOptions, threaded};

/// The channels of a job on this rank. See `trihop_channel_t`.
///
/// Threads: as `trihop_job_t`.
pub struct trihop_channels_t {
    home: Home,
    pub(crate) channels: Either<threaded::Channels, Channels<'static>>,
}

impl Homed for trihop_channels_t {
    fn home(&self) -> Home {
        self.home
    }
}

/// What a channel may hold, in the memory of its owner. Fields that are 0 have their defaults.
/// Later versions add fields at the end.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct trihop_channel_limits_t {
    /// Bytes of this struct as the caller knows it.
    pub size: usize,
    /// Bytes of the messages that it holds; 1 MiB. A longer message is refused.
    pub bytes: u64,
    /// Bytes of the sends of one port that are not yet in the channel; 256 KiB. A longer message
    /// goes when nothing else of its port is under way.
    pub window_bytes: u64,
    /// Messages that it holds; 100.
    pub messages: u32,
    /// Ports that may be open at once; 1024.
    pub ports: u32,
    /// Sends of one port that are not yet in the channel; as many of its other requests may wait.
    /// 64.
    pub window_messages: u32,
    /// 0.
    pub reserved: u32,
}

impl trihop_channel_limits_t {
    const DEFAULTS: Self = Self {
        size: 0,
        bytes: 0,
        window_bytes: 0,
        messages: 0,
        ports: 0,
        window_messages: 0,
        reserved: 0,
    };

    fn limits(&self) -> Result<ChannelLimits, Failure> {
        if self.reserved != 0 {
            return Err(Failure::argument("`reserved` of `limits` is not 0"));
        }
        let usual = ChannelLimits::default();
        let or = |given: u32, usual: u32| if given == 0 { usual } else { given };
        let long = |given: u64, usual: u64| if given == 0 { usual } else { given };
        Ok(ChannelLimits {
            messages: or(self.messages, usual.messages),
            bytes: long(self.bytes, usual.bytes),
            ports: or(self.ports, usual.ports),
            window_messages: or(self.window_messages, usual.window_messages),
            window_bytes: long(self.window_bytes, usual.window_bytes),
        })
    }

    fn of(limits: &ChannelLimits, size: usize) -> Self {
        Self {
            size,
            bytes: limits.bytes,
            window_bytes: limits.window_bytes,
            messages: limits.messages,
            ports: limits.ports,
            window_messages: limits.window_messages,
            reserved: 0,
        }
    }
}

/// How channels are opened, by `trihop_channels_open_with`. Later versions add fields at the end.
/// Fill it with `trihop_channels_options_init`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct trihop_channels_options_t {
    /// Bytes of this struct as the caller knows it; set by `trihop_channels_options_init`.
    pub size: usize,
    /// Options of the channels' stream; null, as at first, for those of the job.
    pub stream: *const trihop_options_t,
    /// What this rank has kept of its channels, as of `trihop_channels_open_kept`; null, as at
    /// first, for nothing.
    pub kept: *const trihop_kept_t,
    /// Bytes of messages that this rank hands out of its channels and that have not arrived at the
    /// ranks which get them. Beyond these gets wait, and those that are tried once are
    /// `TRIHOP_ERR_WOULD_BLOCK`. One message may be longer, so that with 1 they go one by one. It
    /// is this rank's alone. 0, as at first, for that of the environment, `TRIHOP_MAX_GETMSG_MB`,
    /// and for none where that is not set.
    pub getmsg_bytes: u64,
}

impl trihop_channels_options_t {
    const DEFAULTS: Self = Self {
        size: size_of::<Self>(),
        stream: null(),
        kept: null(),
        getmsg_bytes: 0,
    };
}

const _: () = assert!(size_of::<trihop_channels_options_t>() == 32, "no padding");
const _: () = assert!(size_of::<trihop_channel_limits_t>() == 40, "no padding");

/// Opens the channels of a job, of which there are none yet. Collective over all ranks: the same
/// names in the same order. `options` null stands for those of the job.
///
/// Fails as `trihop_stream_open`.
/// Threads: any, but one that opens at a time; not inside a handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_channels_open(
    job: *const trihop_job_t,
    name: *const c_char,
    options: *const trihop_options_t,
    channels: *mut *mut trihop_channels_t,
) -> trihop_status_t {
    let options = trihop_channels_options_t {
        stream: options,
        ..trihop_channels_options_t::DEFAULTS
    };
    // SAFETY: as the header asks.
    guard(|| unsafe { open(job, name, &options, channels) })
}

/// As `trihop_channels_open`, and goes on with what this rank has kept of its channels in an earlier
/// job: `trihop_channel_attach` finds them again by their descriptors, with the messages in them.
/// Ranks that have kept nothing, since they are new processes, call `trihop_channels_open` instead:
/// what they had is `TRIHOP_ERR_NO_CHANNEL`. The job has as many ranks as that, and each process its
/// old number; otherwise, and where `kept` is open already, it is `TRIHOP_ERR_CONFIG` on all ranks.
/// After a failure `kept` has what it had; after a success nothing. Either way it has to be freed.
///
/// Fails as `trihop_channels_open`.
/// Threads: as that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_channels_open_kept(
    job: *const trihop_job_t,
    name: *const c_char,
    options: *const trihop_options_t,
    kept: *const trihop_kept_t,
    channels: *mut *mut trihop_channels_t,
) -> trihop_status_t {
    let options = trihop_channels_options_t {
        stream: options,
        kept,
        ..trihop_channels_options_t::DEFAULTS
    };
    guard(|| {
        // SAFETY: the header asks for null or a place for a pointer.
        *unsafe { argument::place(channels, "channels")? } = null_mut();
        // SAFETY: the header asks for null, or what was kept and not freed.
        unsafe { argument::reference(kept, "kept")? };
        // SAFETY: as the header asks.
        unsafe { open(job, name, &options, channels) }
    })
}

/// Fills `options` with the defaults. `size` is `sizeof(trihop_channels_options_t)` as the caller
/// knows it.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_channels_options_init(
    options: *mut trihop_channels_options_t,
    size: usize,
) -> trihop_status_t {
    guard(|| {
        check_size(size)?;
        let filled = trihop_channels_options_t {
            size,
            ..trihop_channels_options_t::DEFAULTS
        };
        // SAFETY: the header asks for null or `size` bytes that nobody else uses, and the struct
        // has no padding.
        unsafe { store_sized(&filled, options, size, "options") }
    })
}

/// As `trihop_channels_open`, or `trihop_channels_open_kept`, with all that an opening can have.
/// `options` null stands for the defaults.
///
/// Fails as these.
/// Threads: as `trihop_channels_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_channels_open_with(
    job: *const trihop_job_t,
    name: *const c_char,
    options: *const trihop_channels_options_t,
    channels: *mut *mut trihop_channels_t,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a place for a pointer.
        *unsafe { argument::place(channels, "channels")? } = null_mut();
        let options = match options.is_null() {
            true => trihop_channels_options_t::DEFAULTS,
            // SAFETY: the header asks for as many bytes of options as their first field says; any
            // bytes are such a struct.
            false => unsafe {
                load_sized(options, trihop_channels_options_t::DEFAULTS, "options")?
            },
        };
        // SAFETY: as the header asks.
        unsafe { open(job, name, &options, channels) }
    })
}

/// # Safety
/// As of `trihop_channels_open`, and of what the options point to.
unsafe fn open(
    job: *const trihop_job_t,
    name: *const c_char,
    options: &trihop_channels_options_t,
    channels: *mut *mut trihop_channels_t,
) -> Result<(), Failure> {
    // SAFETY: the header asks for null or a place for a pointer.
    let place = unsafe { argument::place(channels, "channels")? };
    *place = null_mut();
    // SAFETY: the header asks for null or a job that has not ended, and a text that ends with NUL.
    let (job, name) = unsafe { (argument::handle(job, "job")?, argument::text(name, "name")?) };
    let asked = Asked {
        // SAFETY: the header asks for null or initialised options.
        stream: unsafe { trihop_options_t::of_stream(options.stream)? },
        // SAFETY: the header asks for null, or what was kept and not freed.
        kept: unsafe { options.kept.as_ref() }.map(|kept| &kept.kept),
        getmsg_bytes: options.getmsg_bytes,
    };
    let channels = match &job.job {
        Either::Threaded(job) => Either::Threaded(asked.of(job.channels(name)).open()?),
        Either::Inline(job) => Either::Inline(asked.of(job.channels(name)).open()?),
    };
    *place = Box::into_raw(Box::new(trihop_channels_t {
        home: Home::of(&channels),
        channels,
    }));
    Ok(())
}

/// What a caller asks of an opening.
struct Asked<'a> {
    stream: Option<StreamOptions>,
    kept: Option<&'a Kept>,
    getmsg_bytes: u64,
}

impl Asked<'_> {
    fn of<S: Seat>(self, mut builder: ChannelsBuilder<S>) -> ChannelsBuilder<S> {
        if let Some(stream) = self.stream {
            builder = builder.options(stream);
        }
        if let Some(kept) = self.kept {
            builder = builder.keeping(kept);
        }
        match self.getmsg_bytes {
            0 => builder,
            bytes => builder.getmsg_bytes(bytes),
        }
    }
}

/// The limits that a caller gives.
///
/// # Safety
/// `limits` is null, or has as many bytes as its first field says.
pub(crate) unsafe fn load(
    limits: *const trihop_channel_limits_t,
) -> Result<ChannelLimits, Failure> {
    if limits.is_null() {
        return trihop_channel_limits_t::DEFAULTS.limits();
    }
    // SAFETY: as the caller promises.
    let limits = unsafe { load_sized(limits, trihop_channel_limits_t::DEFAULTS, "limits") }?;
    limits.limits()
}

/// Makes a port of one that either seat gives.
///
/// # Safety
/// `channels` is null or channels that were not closed, `channel` null or a place for a pointer.
unsafe fn port(
    channels: *const trihop_channels_t,
    channel: *mut *mut trihop_channel_t,
    threaded: impl FnOnce(&threaded::Channels) -> Result<threaded::Channel, Failure>,
    inline: impl FnOnce(&Channels<'static>) -> Result<crate::Channel<'static>, Failure>,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: as the caller promises.
        let place = unsafe { argument::place(channel, "channel")? };
        *place = null_mut();
        // SAFETY: as the caller promises.
        let channels = unsafe { argument::handle(channels, "channels")? };
        *place = trihop_channel_t::give(match &channels.channels {
            Either::Threaded(channels) => Either::Threaded(threaded(channels)?),
            Either::Inline(channels) => Either::Inline(inline(channels)?),
        });
        Ok(())
    })
}

/// Makes a channel of this rank's, and a port of it. `limits` null stands for the defaults. The
/// channel is there until it is closed, or this rank closes its channels.
///
/// Fails with `TRIHOP_ERR_CONFIG` on limits that cannot be.
/// Threads: as the job; not inside a handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_channel_create(
    channels: *const trihop_channels_t,
    limits: *const trihop_channel_limits_t,
    channel: *mut *mut trihop_channel_t,
) -> trihop_status_t {
    // SAFETY: the header asks for null or as many bytes of limits as their first field says, null or
    // channels that were not closed, and a place.
    unsafe {
        let load = || load(limits);
        port(
            channels,
            channel,
            |channels| Ok(channels.create(load()?)?),
            |channels| Ok(channels.create(load()?)?),
        )
    }
}

/// Makes a semaphore of this rank's, and a port of it: a channel with a value, that
/// `TRIHOP_POLL_ACQUIRE` takes one from and `TRIHOP_POLL_RELEASE` adds one to. It is never above
/// `most`: `UINT64_MAX` is no bound. Of `limits`, of which null stands for the defaults, `ports` and
/// `window_messages` count, the calls of a port that may wait at once.
///
/// Fails with `TRIHOP_ERR_CONFIG` on a value above `most`, and on limits that cannot be.
/// Threads: as the job; not inside a handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_channel_create_semaphore(
    channels: *const trihop_channels_t,
    value: u64,
    most: u64,
    limits: *const trihop_channel_limits_t,
    channel: *mut *mut trihop_channel_t,
) -> trihop_status_t {
    // SAFETY: as of `trihop_channel_create`.
    unsafe {
        let load = || load(limits);
        port(
            channels,
            channel,
            |channels| Ok(channels.semaphore(value, most, load()?)?),
            |channels| Ok(channels.semaphore(value, most, load()?)?),
        )
    }
}

/// Makes a barrier of this rank's, and a port of it: a channel in which `parties` calls with
/// `TRIHOP_POLL_ARRIVE` wait for each other, of whichever ranks and ports. `limits` as of
/// `trihop_channel_create_semaphore`: 1024 ports by default.
///
/// Fails with `TRIHOP_ERR_CONFIG` where `parties` are none, or more than may wait by all ports, and
/// on limits that cannot be.
/// Threads: as the job; not inside a handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_channel_create_barrier(
    channels: *const trihop_channels_t,
    parties: u32,
    limits: *const trihop_channel_limits_t,
    channel: *mut *mut trihop_channel_t,
) -> trihop_status_t {
    // SAFETY: as of `trihop_channel_create`.
    unsafe {
        let load = || load(limits);
        port(
            channels,
            channel,
            |channels| Ok(channels.barrier(parties, load()?)?),
            |channels| Ok(channels.barrier(parties, load()?)?),
        )
    }
}

/// Makes a port of the channel with this descriptor, whatever its kind, by asking its owner.
///
/// Fails with `TRIHOP_ERR_NO_CHANNEL` where that is no descriptor, or one of another job, or of a
/// channel that is gone; with `TRIHOP_ERR_CONFIG` where the channel has as many ports as it may.
/// Threads: as the job; not inside a handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_channel_attach(
    channels: *const trihop_channels_t,
    descriptor: *const c_char,
    channel: *mut *mut trihop_channel_t,
) -> trihop_status_t {
    let parse = || {
        // SAFETY: the header asks for null or a text that ends with NUL.
        let text = unsafe { argument::text(descriptor, "descriptor")? };
        Ok::<Descriptor, Failure>(text.parse()?)
    };
    // SAFETY: the header asks for null or channels that were not closed, and a place.
    unsafe {
        port(
            channels,
            channel,
            |channels| Ok(channels.attach(&parse()?)?),
            |channels| Ok(channels.attach(&parse()?)?),
        )
    }
}

/// Fills `limits` with what the channel may hold, as its owner has made it, at any port of it.
/// `size` is `sizeof(trihop_channel_limits_t)` as the caller knows it. What is filled so makes
/// another channel like it.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_channel_limits(
    channel: *const trihop_channel_t,
    limits: *mut trihop_channel_limits_t,
    size: usize,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a port that was not freed.
        let channel = unsafe { argument::handle(channel, "channel")? };
        check_size(size)?;
        let of = ask_port!(channel, port => port.limits());
        let filled = trihop_channel_limits_t::of(&of, size);
        // SAFETY: the header asks for null or `size` bytes that nobody else uses, and the struct
        // has no padding.
        unsafe { store_sized(&filled, limits, size, "limits") }
    })
}

/// Runs `call` on the channels of a rank.
///
/// # Safety
/// `channels` is null or channels that were not closed.
unsafe fn with(
    channels: *const trihop_channels_t,
    call: impl FnOnce(&trihop_channels_t) -> Result<(), Failure>,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: as the caller promises.
        call(unsafe { argument::handle(channels, "channels")? })
    })
}

/// Fills `counters` with what the stream of the channels, by which requests and answers go, has
/// done on this rank, as `trihop_stream_stats` of other streams. Each request to another rank and
/// each answer is a record, with 32 or 56 bytes beside its message; calls of a rank on its own
/// channels are none. Parts of long messages that go by other relays are not counted. `size` is
/// `sizeof(trihop_stats_t)` as the caller knows it.
///
/// Threads: any. Fails with `TRIHOP_ERR_WOULD_BLOCK` where the engine is in use and does not come
/// free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_channels_stats(
    channels: *const trihop_channels_t,
    counters: *mut trihop_stats_t,
    size: usize,
) -> trihop_status_t {
    // SAFETY: the header asks for null or `size` bytes that nobody else uses.
    let give = |open: &trihop_channels_t| unsafe {
        stats::give(either!(&open.channels, all => all.stats()), counters, size)
    };
    // SAFETY: the header asks for null or channels that were not closed.
    unsafe { with(channels, give) }
}

/// As `trihop_channels_stats`, as a JSON object that ends with NUL, as `trihop_stream_stats_json`
/// writes it.
///
/// Threads: as `trihop_channels_stats`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_channels_stats_json(
    channels: *const trihop_channels_t,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> trihop_status_t {
    // SAFETY: the header asks for a buffer of `capacity` bytes and a place for the length.
    let give = |open: &trihop_channels_t| unsafe {
        let stats = either!(&open.channels, all => all.stats());
        stats::give_json(stats, text, capacity, length)
    };
    // SAFETY: the header asks for null or channels that were not closed.
    unsafe { with(channels, give) }
}

/// Closes the channels of this rank, whose messages are dropped, and waits until all ranks have
/// called this. Collective. Others who wait in them hear that they are closed. Ports that are left
/// answer `TRIHOP_ERR_CLOSED`, and have to be freed for their memory. The handle is gone afterwards,
/// whatever is returned, but where that is `TRIHOP_ERR_NESTED` or `TRIHOP_ERR_MISUSE` (beside a
/// fence of all streams): it may be closed again then. Null is refused.
///
/// Threads: as the job; not inside a handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_channels_close(
    channels: *mut trihop_channels_t,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or channels that were not closed.
        let open = unsafe { argument::handle(channels, "channels")? };
        let outcome = match &open.channels {
            Either::Threaded(channels) => channels.clone().shutdown(),
            Either::Inline(channels) => channels.clone().shutdown(),
        };
        // SAFETY: made by `trihop_channels_open`; the header allows no other call on it.
        unsafe { argument::closed(channels, outcome) }
    })
}

/// The channels of a rank, with the messages in them, between two jobs.
pub struct trihop_kept_t {
    kept: Kept,
}

/// Closes the channels of this rank as `trihop_channels_close` does, and keeps them with the
/// messages in them for a job that takes the place of this one, because an agent or another rank is
/// gone: see `trihop_channels_open_kept`. Where the job goes on it waits until all ranks have
/// called this or that: collective. Sends that have failed with the job may or may not be in a
/// channel; what was deposited is. A message that was under way to a get is gone with the get.
///
/// Fails with `TRIHOP_ERR_NESTED` inside a handler, with `TRIHOP_ERR_MISUSE` where a fence of them
/// is under way, and as the job. Where it fails `channels` is to be closed still.
/// Threads: as the job; not inside a handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_channels_keep(
    channels: *mut trihop_channels_t,
    kept: *mut *mut trihop_kept_t,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a place for a pointer.
        let place = unsafe { argument::place(kept, "kept")? };
        *place = null_mut();
        // SAFETY: the header asks for null or channels that were not closed.
        let open = unsafe { argument::handle(channels, "channels")? };
        let kept = match &open.channels {
            Either::Threaded(channels) => channels.clone().keep()?,
            Either::Inline(channels) => channels.clone().keep()?,
        };
        // SAFETY: made by `trihop_channels_open`; the header allows no other call on it.
        drop(unsafe { Box::from_raw(channels) });
        *place = Box::into_raw(Box::new(trihop_kept_t { kept }));
        Ok(())
    })
}

/// Frees what `trihop_channels_keep` has given: channels that no job has gone on with are gone, and
/// so are their messages. Null is ignored.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_kept_free(kept: *mut trihop_kept_t) {
    if !kept.is_null() {
        // SAFETY: made by `trihop_channels_keep`; the header allows no other call on it.
        drop(unsafe { Box::from_raw(kept) });
    }
}

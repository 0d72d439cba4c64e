//! `struct shuffle_opts` as options of ours.

use std::ffi::c_int;

use crate::capi::status::Failure;
use crate::route::RouteName;
use crate::{Error, Options, Shares, ShimOptions, StreamOptions};

/// Bytes that a run may have however short batches are to be.
const SHORTEST_RUN: usize = 1024;

/// Length of a batch between nodes where none is asked for: as with the defaults.
const UNASKED_BATCH: usize = 64 << 10;

/// Length of a lane, where memory affords it, and of what may be under way in it however few
/// batches are to be. A client has two or three threads a rank and, most often, fewer cores: every
/// release that somebody has to wait for takes two switches between them.
const LANE_BYTES: usize = 256 << 10;

/// Messages that may wait for the callback however few are to: each time that none more may, two
/// threads wake each other.
const LEAST_WAITING: usize = 64;

/// `struct shuffle_opts`; the header says what each field means.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct shuffle_opts {
    localsenderlimit: c_int,
    remotesenderlimit: c_int,
    lomaxrpc: c_int,
    lobuftarget: c_int,
    lrmaxrpc: c_int,
    lrbuftarget: c_int,
    rmaxrpc: c_int,
    rbuftarget: c_int,
    deliverq_max: c_int,
    deliverq_threshold: c_int,
}

const _: () = assert!(size_of::<shuffle_opts>() == 40);

impl shuffle_opts {
    /// The defaults: those of the engine, as the environment has them.
    pub(super) fn good() -> Self {
        let stream =
            Options::from_env().map_or_else(|_| StreamOptions::default(), |options| options.stream);
        Self::from_stream(&stream)
    }

    fn from_stream(stream: &StreamOptions) -> Self {
        fn int(value: impl TryInto<c_int>) -> c_int {
            value.try_into().unwrap_or(c_int::MAX)
        }
        Self {
            localsenderlimit: int(stream.shim.origin_sender_limit),
            remotesenderlimit: int(stream.shim.remote_sender_limit),
            lomaxrpc: int(stream.origin_maxrpc),
            lobuftarget: int(stream.origin_buftarget_bytes),
            lrmaxrpc: int(stream.relay_maxrpc),
            lrbuftarget: int(stream.relay_buftarget_bytes),
            rmaxrpc: int(stream.remote_maxrpc),
            rbuftarget: int(stream.remote_buftarget_bytes),
            deliverq_max: int(stream.deliverq_max),
            deliverq_threshold: int(stream.shim.deliverq_threshold),
        }
    }

    /// Options of a stream that are like `base` in all that these do not say.
    ///
    /// # Errors
    /// Options with which nothing could ever move.
    pub(super) fn choose(&self, base: &StreamOptions) -> Result<StreamOptions, Failure> {
        let mut stream = base.clone();
        stream.origin_maxrpc = at_most("origin_maxrpc", in_flight("lomaxrpc", self.lomaxrpc)?);
        stream.relay_maxrpc = at_most("relay_maxrpc", in_flight("lrmaxrpc", self.lrmaxrpc)?);
        stream.remote_maxrpc = at_most("remote_maxrpc", in_flight("rmaxrpc", self.rmaxrpc)?);
        stream.origin_buftarget_bytes = at_most("origin_buftarget_bytes", target(self.lobuftarget));
        stream.relay_buftarget_bytes = at_most("relay_buftarget_bytes", target(self.lrbuftarget));
        stream.remote_buftarget_bytes = at_most("remote_buftarget_bytes", target(self.rbuftarget));
        if matches!(stream.route, RouteName::ThreeHop(_)) {
            // Of lanes these are bytes, and no more than that.
            let least = |bytes: usize| (LANE_BYTES / bytes).max(1) as u32;
            let (origin, relay) = (stream.origin_buftarget_bytes, stream.relay_buftarget_bytes);
            stream.origin_maxrpc =
                at_most("origin_maxrpc", stream.origin_maxrpc.max(least(origin)));
            stream.relay_maxrpc = at_most("relay_maxrpc", stream.relay_maxrpc.max(least(relay)));
        }
        stream.given_shares = Some(Shares {
            longest_lane_bytes: LANE_BYTES,
            ..stream.shares()
        });
        // A run is part of a batch, and no longer than one.
        let batch_bytes = stream.origin_buftarget_bytes.max(SHORTEST_RUN);
        stream.run_bytes = stream.run_bytes.min(batch_bytes);
        if self.lobuftarget <= 1 {
            // A program that does not batch wants its messages soon, also beside the bulk of other
            // shuffles.
            stream.linger_us = 0;
            stream.priority = stream.priority.saturating_add(1);
            if self.rbuftarget <= 1 {
                // Each round sends what there is, and a long message in few batches.
                stream.remote_buftarget_bytes = UNASKED_BATCH;
            }
        }
        stream.own_thread = true; // as in the original: a callback may wait for another's
        stream.shim.origin_sender_limit =
            not_negative("localsenderlimit", self.localsenderlimit)?.min(ShimOptions::SENDER_LIMIT);
        stream.shim.remote_sender_limit =
            not_negative("remotesenderlimit", self.remotesenderlimit)?
                .min(ShimOptions::SENDER_LIMIT);
        let threshold = not_negative("deliverq_threshold", self.deliverq_threshold)?;
        stream.shim.deliverq_discard = self.deliverq_max < 0;
        if stream.shim.deliverq_discard {
            stream.shim.deliverq_threshold = 0;
            return Ok(stream);
        }
        if self.deliverq_max == 0 {
            let why = "0 messages may wait, so none could ever be delivered; give 1 or more, or -1 to discard what arrives";
            return Err(refused("deliverq_max", why));
        }
        stream.deliverq_max = (self.deliverq_max as usize).max(LEAST_WAITING);
        stream.shim.deliverq_threshold = threshold as usize;
        if self.deliverq_threshold >= self.deliverq_max {
            let why = format!(
                "{} is not below deliverq_max ({}), so the callback would never be woken; lower it",
                self.deliverq_threshold, self.deliverq_max
            );
            return Err(refused("deliverq_threshold", why));
        }
        Ok(stream)
    }
}

/// The value, or the most that the option of this name may be.
fn at_most<T: TryFrom<u64> + Ord>(name: &str, value: T) -> T {
    let row = Options::TABLE.iter().find(|row| row.name == name);
    let most = row.and_then(|row| T::try_from(row.most()?).ok());
    most.map_or_else(
        || unreachable!("`{name}` has a range"),
        |most| most.min(value),
    )
}

/// A number of batches under way.
fn in_flight(name: &str, value: c_int) -> Result<u32, Failure> {
    match u32::try_from(value) {
        Ok(value) if value > 0 => Ok(value),
        _ => {
            let why = format!(
                "{value} batches may be under way, so none could ever leave; give 1 or more"
            );
            Err(refused(name, why))
        }
    }
}

/// A batch's bytes: up to 1 means one message each.
fn target(value: c_int) -> usize {
    usize::try_from(value).unwrap_or(1).max(1)
}

fn not_negative(name: &str, value: c_int) -> Result<u32, Failure> {
    u32::try_from(value).map_err(|_| refused(name, format!("{value} is below 0; 0 means none")))
}

fn refused(name: &str, why: impl Into<String>) -> Failure {
    Failure::from(Error::Config {
        key: name.to_owned(),
        why: why.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::Rails;

    fn base() -> StreamOptions {
        StreamOptions::default()
    }

    fn good() -> shuffle_opts {
        shuffle_opts::from_stream(&base())
    }

    #[test]
    fn the_defaults_are_those_of_the_engine_with_longer_lanes() {
        let chosen = good().choose(&base()).unwrap();
        let expected = StreamOptions {
            own_thread: true,
            origin_maxrpc: (LANE_BYTES / base().origin_buftarget_bytes) as u32,
            relay_maxrpc: (LANE_BYTES / base().relay_buftarget_bytes) as u32,
            given_shares: Some(Shares {
                longest_lane_bytes: LANE_BYTES,
                ..base().shares()
            }),
            // No longer than a batch.
            run_bytes: base().origin_buftarget_bytes,
            ..base()
        };
        assert_eq!(chosen, expected);
        assert!(good().lobuftarget > 1 && good().rmaxrpc > 1 && good().deliverq_max > 1);
    }

    #[test]
    fn settings_of_production_runs_are_taken_as_they_are() {
        let opts = shuffle_opts {
            localsenderlimit: 16,
            remotesenderlimit: 16,
            lomaxrpc: 16,
            lobuftarget: 32768,
            lrmaxrpc: 16,
            lrbuftarget: 32768,
            rmaxrpc: 16,
            rbuftarget: 32768,
            deliverq_max: 4096,
            deliverq_threshold: 1024,
        };
        let stream = opts.choose(&base()).unwrap();
        stream.check().unwrap();
        assert_eq!(
            (stream.origin_maxrpc, stream.origin_buftarget_bytes),
            (16, 32768)
        );
        assert_eq!(
            (stream.relay_maxrpc, stream.relay_buftarget_bytes),
            (16, 32768)
        );
        assert_eq!(
            (stream.remote_maxrpc, stream.remote_buftarget_bytes),
            (16, 32768)
        );
        assert_eq!(
            (stream.deliverq_max, stream.shim.deliverq_threshold),
            (4096, 1024)
        );
        assert_eq!(
            (
                stream.shim.origin_sender_limit,
                stream.shim.remote_sender_limit
            ),
            (16, 16)
        );
        assert_eq!(stream.linger_us, base().linger_us);
    }

    #[test]
    fn the_originals_defaults_mean_message_by_message() {
        let opts = shuffle_opts {
            localsenderlimit: 0,
            remotesenderlimit: 0,
            lomaxrpc: 1,
            lobuftarget: 0,
            lrmaxrpc: 1,
            lrbuftarget: -7,
            rmaxrpc: 1,
            rbuftarget: 1,
            deliverq_max: 1,
            deliverq_threshold: 0,
        };
        let stream = opts.choose(&base()).unwrap();
        stream.check().unwrap();
        assert_eq!(
            [
                stream.origin_buftarget_bytes,
                stream.relay_buftarget_bytes,
                stream.remote_buftarget_bytes
            ],
            [1, 1, UNASKED_BATCH]
        );
        assert_eq!((stream.linger_us, stream.deliverq_max), (0, LEAST_WAITING));
        // Of lanes that many bytes, of links that many batches.
        assert!(stream.origin_maxrpc >= 65_535 && stream.relay_maxrpc >= 65_535);
        assert_eq!(stream.remote_maxrpc, 1);
        assert!(
            stream.priority > base().priority,
            "before the bulk of others"
        );
    }

    #[test]
    fn of_links_in_the_place_of_lanes_a_number_of_batches_is_that() {
        let mut opts = good();
        (opts.lomaxrpc, opts.lobuftarget) = (1, 1);
        let base = StreamOptions {
            route: RouteName::FabricOnly(Rails::ONE),
            ..base()
        };
        assert_eq!(opts.choose(&base).unwrap().origin_maxrpc, 1);
    }

    #[test]
    fn what_could_never_move_is_refused_with_the_reason() {
        let refuse = |change: &dyn Fn(&mut shuffle_opts), words: &[&str]| {
            let mut opts = good();
            change(&mut opts);
            let text = opts.choose(&base()).unwrap_err().text;
            for word in words {
                assert!(text.contains(word), "{text}");
            }
        };
        refuse(
            &|o| (o.deliverq_max, o.deliverq_threshold) = (4, 8),
            &["deliverq_threshold", "8", "4"],
        );
        refuse(
            &|o| (o.deliverq_max, o.deliverq_threshold) = (4, 4),
            &["deliverq_threshold"],
        );
        refuse(&|o| o.deliverq_max = 0, &["deliverq_max", "-1"]);
        refuse(
            &|o| o.deliverq_threshold = -1,
            &["deliverq_threshold", "-1"],
        );
        refuse(&|o| o.lomaxrpc = 0, &["lomaxrpc"]);
        refuse(&|o| o.lrmaxrpc = -3, &["lrmaxrpc", "-3"]);
        refuse(&|o| o.rmaxrpc = 0, &["rmaxrpc"]);
        refuse(&|o| o.localsenderlimit = -1, &["localsenderlimit"]);
        refuse(&|o| o.remotesenderlimit = -1, &["remotesenderlimit"]);
    }

    #[test]
    fn discarding_needs_no_sense_of_the_threshold() {
        let mut opts = good();
        (opts.deliverq_max, opts.deliverq_threshold) = (-1, 1024);
        let chosen = opts.choose(&base()).unwrap();
        assert!(chosen.shim.deliverq_discard);
        chosen.check().unwrap();
    }

    #[test]
    fn larger_values_count_as_the_largest() {
        let mut opts = good();
        (opts.lomaxrpc, opts.lrmaxrpc, opts.rmaxrpc) = (c_int::MAX, c_int::MAX, c_int::MAX);
        (opts.lobuftarget, opts.lrbuftarget, opts.rbuftarget) =
            (c_int::MAX, c_int::MAX, c_int::MAX);
        opts.deliverq_max = c_int::MAX;
        (opts.localsenderlimit, opts.remotesenderlimit) = (c_int::MAX, c_int::MAX);
        opts.choose(&base()).unwrap().check().unwrap();
    }
}

//! Opening a stream: all ranks agree on it, those of a node exchange their inboxes, and only then
//! may anybody send.

use std::time::Instant;

use super::collective::{agree, allreduce};
use super::{Seating, relay};
use crate::config::StreamOptions;
use crate::endpoint::{Channel, Engine, Prepared, SYSTEM_STREAM, StreamId};
use crate::engine::sink::{Heard, Sink};
use crate::error::{Error, Result};
use crate::job::{Begun, SYSTEM_NAME};
use crate::node::{Answer, Request, Way};
use crate::queue::limits::LinkTerms;
use crate::terminate::reduce::Reduce;

/// Opens a stream on all ranks, who agree on it over `channel`. `install` is told of it before
/// anything can be delivered.
pub(crate) fn open(
    seat: &impl Seating,
    channel: Channel,
    name: &str,
    options: &StreamOptions,
    item_bytes: usize,
    sink: Sink,
    install: impl FnOnce(StreamId),
) -> Result<StreamId> {
    let what = "opening a stream";
    seat.may_wait(what)?;
    // Where somebody is gone no relay need hear of it.
    seat.with(what, |job| job.check_whole())?;
    let begun = seat.with(what, |job| {
        job.begin_opening(name, options, item_bytes, Engine::reusable)
    });
    let again = match &begun {
        Ok((_, Begun::Again(id, _))) => Some(*id),
        _ => None,
    };
    // The relay of this process, where there is one, has to open it too. All its ranks ask it; one
    // that cannot open the stream asks for what any relay can, and makes it forget that below.
    let default = StreamOptions::default();
    let at_relay = match &begun {
        Ok(_) => begin_at_relay(seat, name, options, item_bytes, again),
        Err(_) => begin_at_relay(seat, name, &default, 0, None),
    };
    let begun = begun.and_then(|begun| at_relay.clone().map(|_| begun));
    let at_relay = at_relay.ok().flatten();
    // Whether all ranks mean the same stream is agreed before anything of it is shared. A rank that
    // failed says so by a pair that agrees with nobody's, rather than leave the others waiting.
    let pair = begun.as_ref().map_or([0, 0], |(agreed, _)| {
        let word = agreed.word();
        [word, !word]
    });
    // A closed stream whose place this one can take, if it is the same on all ranks.
    let old = again.filter(|_| at_relay.is_none_or(|relay| relay.reusable == again));
    let old = old.map_or(0, u64::from);
    // Both ends of a link do as the endpoint wants that takes least.
    let terms = seat.with(what, |job| Ok(job.engine.link_terms()));
    let terms = terms.unwrap_or(LinkTerms::ANY);
    let LinkTerms {
        receives,
        longest_offer,
    } = at_relay.map_or(terms, |relay| relay.terms.and(terms));
    let words = [pair[0], pair[1], old, !old, receives, longest_offer];
    let least = agree(seat, channel, words)?;
    let agreed = begun.as_ref().map(|(agreed, _)| agreed);
    let why = match agreed {
        Ok(_) if least[..2] == pair => None,
        Ok(agreed) if least[0] > 0 => {
            let mut pairs = agreed.pairs();
            allreduce(seat, channel, &mut pairs, Reduce::Min)?;
            Some(agreed.differences(&pairs))
        }
        _ => Some("another rank could not open it, and says why".to_owned()),
    };
    if why.is_some() {
        let told = tell_relay(seat, Request::Forget);
        // All say it before any of them ends by it: then nobody says instead that a rank has ended.
        let _ = agree(seat, channel, [1]);
        told?;
    }
    let (_, begun) = begun?;
    if let Some(why) = why {
        let name = name.to_owned();
        return Err(Error::Mismatch { name, why });
    }
    let is_again = old > 0 && least[2..4] == [old, !old];
    let way = match &begun {
        Begun::Again(id, _) if is_again => Way::Again(*id),
        _ => Way::New(LinkTerms {
            receives: least[4],
            longest_offer: least[5],
        }),
    };
    let asked = tell_relay(seat, Request::Open(way));
    let number = number_for(seat, way);
    let here = asked.clone().and(number.clone());
    let here = here.and_then(|number| open_by(seat, begun, number, sink));
    // This one does not wait for it before: they exchange their inboxes.
    let at_relay = asked.and_then(|asked| relay::answer(seat, what, asked));
    let opened = match (&here, at_relay) {
        // Who has refused says why, and the others say that somebody has.
        (Ok(_) | Err(Error::Mismatch { .. }), Ok(Some(Answer::Opened(Err(why))))) => Err(why),
        (_, Err(why)) => Err(why),
        (here, _) => here.clone(),
    };
    if let Ok(id) = &opened {
        install(*id);
    }
    // Nobody sends on the stream before everybody has posted its receives.
    let all_open = agree(seat, channel, [u64::from(opened.is_ok())])? == [1];
    if !all_open {
        let told = tell_relay(seat, Request::GiveUp);
        // What is open here is so, whatever the relay says.
        if let Ok(id) = here {
            seat.with(what, |job| {
                job.engine.give_up(id);
                Ok(())
            })?;
        }
        forget_inboxes(seat, number)?;
        opened?;
        told?;
        let why = "another rank could not open it, and says why".to_owned();
        return Err(Error::Mismatch {
            name: name.to_owned(),
            why,
        });
    }
    let id = opened?;
    seat.with(what, |job| {
        job.log_opened(id);
        Ok(id)
    })
}

/// What the relay of this process says of a stream that is to be opened.
#[derive(Debug, Clone, Copy)]
struct AtRelay {
    terms: LinkTerms,
    reusable: Option<u16>,
}

/// Has the relay of this process begin to open a stream; `None` where there is none.
fn begin_at_relay(
    seat: &impl Seating,
    name: &str,
    options: &StreamOptions,
    item_bytes: usize,
    again: Option<u16>,
) -> Result<Option<AtRelay>> {
    let request = Request::Begin {
        name: name.to_owned(),
        options: Box::new(options.clone()),
        item_bytes,
        again,
    };
    match relay::ask(seat, "opening a stream", request)? {
        Some(Answer::Begun(outcome)) => {
            outcome.map(|(terms, reusable)| Some(AtRelay { terms, reusable }))
        }
        _ => Ok(None),
    }
}

/// Makes a request of the relay of this process, where there is one, and does not wait for what
/// comes of it.
fn tell_relay(seat: &impl Seating, request: Request) -> Result<Option<u64>> {
    seat.with("opening a stream", |job| job.ask_relay(request))
}

/// The number of a new stream, and the terms of all links of the job; `None` where it takes the
/// place of a closed one.
pub(super) fn number_for(seat: &impl Seating, way: Way) -> Result<Option<(u16, LinkTerms)>> {
    match way {
        Way::Again(_) => Ok(None),
        Way::New(terms) => {
            let number = seat.with("opening a stream", |job| job.engine.take_number())?;
            Ok(Some((number, terms)))
        }
    }
}

/// Opens the stream that was begun, in the way that all have agreed on: see [`number_for`].
pub(super) fn open_by(
    seat: &impl Seating,
    begun: Begun,
    number: Option<(u16, LinkTerms)>,
    sink: Sink,
) -> Result<StreamId> {
    match (begun, number) {
        (Begun::Again(id, plan), None) => {
            seat.with("opening a stream", |job| job.engine.reopen(id, plan, sink))
        }
        (begun, Some((number, terms))) => connect_new(seat, begun, number, terms, sink),
        (Begun::New(_), None) => {
            let why = "the relay of the process has no such closed stream";
            Err(Error::mismatch("(closed)", why))
        }
    }
}

/// Not all have opened a stream, and all have tried: nobody takes the inboxes that came for it.
pub(super) fn forget_inboxes(
    seat: &impl Seating,
    number: Result<Option<(u16, LinkTerms)>>,
) -> Result<()> {
    match number {
        Ok(Some((number, _))) => seat.with("opening a stream", |job| job.forget_inboxes(number)),
        _ => Ok(()),
    }
}

fn connect_new(
    seat: &impl Seating,
    begun: Begun,
    number: u16,
    terms: LinkTerms,
    sink: Sink,
) -> Result<StreamId> {
    let what = "opening a stream";
    let prepared = seat.with(what, |job| match begun {
        Begun::New(prepared) => Ok(prepared),
        Begun::Again(_, plan) => job.prepare(plan),
    });
    match prepared {
        Ok(prepared) => connect(seat, number, prepared, terms, sink),
        Err(why) => {
            seat.with(what, |job| job.refuse_inbox(number))?;
            Err(why)
        }
    }
}

/// Opens the stream of the collectives, over which all others are agreed on.
pub(super) fn open_system_stream(seat: &impl Seating) -> Result<()> {
    let (number, prepared) = seat.with("opening the job's own stream", |job| {
        let plan = job.engine.plan(SYSTEM_NAME, &Engine::system_options(), 0)?;
        job.attach_ends(&plan)?;
        let prepared = job.engine.prepare(plan)?;
        Ok((job.engine.take_number()?, prepared))
    })?;
    debug_assert_eq!(number, SYSTEM_STREAM);
    // Its links are few: no rank asks for slots.
    let sink = Sink::Collectives(Heard::default());
    connect(seat, number, prepared, LinkTerms::ANY, sink).map(drop)
}

/// Exchanges inboxes with the node's ranks, with progress since others may need it to come this
/// far.
fn connect(
    seat: &impl Seating,
    number: u16,
    prepared: Prepared,
    terms: LinkTerms,
    sink: Sink,
) -> Result<StreamId> {
    let what = "other ranks of the node, to open a stream";
    let deadline = seat.with(what, |job| {
        let deadline = Instant::now() + job.options.bootstrap_timeout();
        job.give_inbox(number, &prepared, deadline)?;
        // Whoever is stopped later is waited for, as in all other calls.
        Ok((number == SYSTEM_STREAM).then_some(deadline))
    })?;
    seat.wait(what, |job| {
        let have_arrived = job.inboxes_have_arrived(number, deadline)?;
        if !have_arrived {
            job.check_whole()?;
        }
        Ok(have_arrived.then_some(()))
    })?;
    seat.with(what, |job| job.attach(number, prepared, terms, sink))
}

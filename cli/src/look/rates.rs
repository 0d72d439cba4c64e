//! What has happened between two looks.

use std::collections::HashMap;

use serde::Serialize;
use trihop::QueueStats;
use trihop::observe::{Moment, Seen, StreamSeen};

/// What an endpoint shows, and how fast its counters grow.
#[derive(Debug, Serialize)]
pub struct Row {
    /// What it shows.
    #[serde(flatten)]
    pub seen: Seen,
    /// Since the look before this; `None` where there was none, or it has shown nothing new.
    pub rates: Option<Rates>,
}

/// Growth per second, over all streams but that of the collectives.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Time between the two moments.
    pub seconds: f64,
    pub sent_per_s: f64,
    pub delivered_per_s: f64,
    pub sent_bytes_per_s: f64,
    pub batches_sent_per_s: f64,
    pub wire_bytes_per_s: f64,
    pub stages: Vec<StageRates>,
}

/// Growth per second of the queues of one stage.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct StageRates {
    pub name: String,
    pub runs_per_s: f64,
    pub sends_per_s: f64,
    pub waits_per_s: f64,
}

/// What tells endpoints apart, and their order: job, number, process.
pub fn key(seen: &Seen) -> (String, u32, u32) {
    (seen.about.job.clone(), seen.about.endpoint, seen.process)
}

/// Each endpoint with its growth since an earlier look.
pub fn compare(before: &[Seen], now: Vec<Seen>) -> Vec<Row> {
    let before: HashMap<_, _> = before.iter().map(|seen| (key(seen), seen)).collect();
    let row = |seen: Seen| {
        let earlier = before.get(&key(&seen)).and_then(|seen| seen.now.as_ref());
        let rates = earlier
            .zip(seen.now.as_ref())
            .and_then(|(a, b)| rates(a, b));
        Row { seen, rates }
    };
    now.into_iter().map(row).collect()
}

/// The streams of the application: the first is that of the collectives.
pub fn own_streams(moment: &Moment) -> &[StreamSeen] {
    moment.streams.split_first().map_or(&[], |(_, own)| own)
}

/// The same stream at an earlier moment: one that was closed and opened anew counts from 0.
fn earlier<'a>(moment: &'a Moment, stream: &StreamSeen) -> Option<&'a StreamSeen> {
    let mut streams = moment.streams.iter();
    streams.find(|other| {
        (other.number, &other.name) == (stream.number, &stream.name)
            && other.totals.sent <= stream.totals.sent
            && other.totals.frames_received <= stream.totals.frames_received
    })
}

fn rates(before: &Moment, now: &Moment) -> Option<Rates> {
    let ns = now.at_ns.checked_sub(before.at_ns).filter(|ns| *ns > 0)?;
    let seconds = ns as f64 / 1e9;
    let mut rates = Rates {
        seconds,
        ..Rates::default()
    };
    for stream in own_streams(now) {
        let before = earlier(before, stream);
        let grown = |counter: fn(&StreamSeen) -> u64| {
            let before = before.map_or(0, counter);
            counter(stream).saturating_sub(before) as f64 / seconds
        };
        rates.sent_per_s += grown(|stream| stream.totals.sent);
        rates.delivered_per_s += grown(|stream| stream.totals.delivered);
        rates.sent_bytes_per_s += grown(|stream| stream.totals.sent_bytes);
        rates.batches_sent_per_s += grown(|stream| stream.totals.batches_sent);
        rates.wire_bytes_per_s += grown(|stream| stream.totals.wire_bytes);
        for stage in &stream.stages {
            let before = before.and_then(|before| {
                let mut stages = before.stages.iter();
                stages.find(|other| other.name == stage.name)
            });
            let grown = |counter: fn(&QueueStats) -> u64| {
                let before = before.map_or(0, |stage| counter(&stage.all));
                counter(&stage.all).saturating_sub(before) as f64 / seconds
            };
            let of_stage = StageRates {
                name: stage.name.clone(),
                runs_per_s: grown(|all| all.own_runs.saturating_add(all.forwarded_runs)),
                sends_per_s: grown(|all| all.sends),
                waits_per_s: grown(|all| all.waits),
            };
            add_stage(&mut rates.stages, &of_stage);
        }
    }
    Some(rates)
}

fn add_stage(stages: &mut Vec<StageRates>, more: &StageRates) {
    let at = stages.iter().position(|stage| stage.name == more.name);
    let at = at.unwrap_or_else(|| {
        stages.push(StageRates {
            name: more.name.clone(),
            ..StageRates::default()
        });
        stages.len() - 1
    });
    let stage = &mut stages[at];
    stage.runs_per_s += more.runs_per_s;
    stage.sends_per_s += more.sends_per_s;
    stage.waits_per_s += more.waits_per_s;
}

impl Rates {
    /// Takes those of another endpoint in.
    pub fn add(&mut self, other: &Self) {
        self.seconds = self.seconds.max(other.seconds);
        self.sent_per_s += other.sent_per_s;
        self.delivered_per_s += other.delivered_per_s;
        self.sent_bytes_per_s += other.sent_bytes_per_s;
        self.batches_sent_per_s += other.batches_sent_per_s;
        self.wire_bytes_per_s += other.wire_bytes_per_s;
        for stage in &other.stages {
            add_stage(&mut self.stages, stage);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trihop::Stats;
    use trihop::observe::StageSeen;

    fn moment(at_s: u64, sent: u64, sends: u64) -> Moment {
        let stage = StageSeen {
            name: "origin".into(),
            queues: 1,
            all: QueueStats {
                sends,
                ..QueueStats::default()
            },
            waiting_bytes: 0,
            ready_batches: 0,
            in_flight_batches: 0,
            credits: 0,
        };
        let stream = |number, sent| StreamSeen {
            number,
            name: "items".into(),
            waiting_records: 0,
            totals: Stats {
                sent,
                ..Stats::default()
            },
            memory: Vec::new(),
            stages: vec![stage.clone()],
        };
        Moment {
            at_ns: at_s * 1_000_000_000,
            age_ns: 0,
            rounds: 0,
            waits: Vec::new(),
            open_streams: 2,
            streams: vec![stream(0, 1_000_000), stream(1, sent)],
        }
    }

    #[test]
    fn growth_is_per_second_and_without_the_collectives() {
        let grown = rates(&moment(1, 100, 3), &moment(3, 500, 13)).unwrap();
        assert_eq!((grown.seconds, grown.sent_per_s), (2.0, 200.0));
        assert_eq!(grown.stages[0].sends_per_s, 5.0);
        let mut twice = grown.clone();
        twice.add(&grown);
        assert_eq!(
            (twice.sent_per_s, twice.stages[0].sends_per_s),
            (400.0, 10.0)
        );
        assert_eq!(rates(&moment(3, 500, 13), &moment(3, 500, 13)), None);
        // Another stream in the same place.
        let anew = rates(&moment(1, 100, 3), &moment(3, 50, 1)).unwrap();
        assert_eq!(anew.sent_per_s, 25.0);
    }
}

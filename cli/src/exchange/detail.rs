//! What each queue and each thread of every rank has done, for those who ask.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::value::RawValue;
use trihop::DetailedStats;
use trihop::threaded::ThreadUse;

use super::error::{Error, Result};
use super::seat::Seat;

/// One rank's, as JSON and as text: rank 0 prints what others have written.
#[derive(Debug)]
pub struct RankDetail {
    json: Box<RawValue>,
    text: String,
}

impl Serialize for RankDetail {
    fn serialize<S: serde::Serializer>(
        &self,
        serializer: S,
    ) -> std::result::Result<S::Ok, S::Error> {
        self.json.serialize(serializer)
    }
}

#[derive(Serialize)]
struct Own<'a> {
    #[serde(flatten)]
    queues: &'a DetailedStats,
    threads: &'a [ThreadUse],
}

impl RankDetail {
    /// Those of all ranks; collective.
    ///
    /// # Errors
    /// The engine's.
    pub fn gather(job: &Seat, queues: &DetailedStats) -> Result<Vec<Self>> {
        let threads = job.threads();
        let written = |source: serde_json::Error| Error::System {
            what: "writing JSON",
            source: source.into(),
        };
        let own = Own {
            queues,
            threads: &threads,
        };
        // On one line; the text is what follows.
        let mut told = serde_json::to_string(&own).map_err(written)?;
        let _ = write!(told, "\n{queues}");
        for thread in &threads {
            let _ = writeln!(told, "  thread {thread}");
        }
        let read = |bytes: Vec<u8>| {
            let told = String::from_utf8_lossy(&bytes);
            let (json, text) = told.split_once('\n').unwrap_or((&told, ""));
            let json = RawValue::from_string(json.to_owned()).map_err(|source| Error::System {
                what: "reading what a rank told",
                source: source.into(),
            })?;
            let text = text.to_owned();
            Ok(Self { json, text })
        };
        job.allgather(told.as_bytes())?
            .into_iter()
            .map(read)
            .collect()
    }

    /// One paragraph for each rank.
    pub fn text(ranks: &[Self]) -> String {
        ranks.iter().map(|rank| rank.text.as_str()).collect()
    }
}

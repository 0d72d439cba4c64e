//! Contests of ours alone, of ranks that are threads and of channels with an agent: their goals are
//! yardsticks of the same run and absolute figures.

use std::time::Duration;

use crate::entries::Setting;
use crate::mpi::Form;
use crate::plan::{Contest, Work};

/// Sizes of messages of channels.
pub const CHANNEL_SIZES: [usize; 2] = [8, 1 << 20];

/// Two mini-ranks beside a cache line, and channels.
pub fn contests(setting: &Setting) -> [Contest; 2] {
    [minirank(setting), channel(setting)]
}

/// The work of `ring` between two mini-ranks of a process.
pub const fn threads() -> Work {
    Work::new("minirank", 2, 1, 0, 8)
}

/// The work of `channel` between two ranks of a node.
pub const fn channels(size: usize) -> Work {
    Work::new("channel", 2, 1, 0, size)
}

fn minirank(setting: &Setting) -> Contest {
    let options = ["--seat", "minirank", "--size", "8"].map(str::to_owned);
    let way = ("two mini-ranks of one process", false);
    Contest {
        goals: &["T1"],
        work: threads().sized(0),
        reference: "trihop, handler",
        sizes: vec![8],
        entries: vec![setting.ours("trihop", "ring", way, options)],
        within: Duration::from_secs(20),
    }
}

fn channel(setting: &Setting) -> Contest {
    let ours = |system: &str, seat: &str| {
        let sizes = CHANNEL_SIZES.iter();
        let sizes = sizes.flat_map(|size| ["--size".to_owned(), size.to_string()]);
        let options = ["--seat".to_owned(), seat.to_owned()];
        let options = options.into_iter().chain(sizes);
        setting.ours(system, "channel", (Form::Shared.text(), false), options)
    };
    Contest {
        goals: &["T2"],
        work: channels(0),
        reference: "trihop agent, bytes",
        sizes: CHANNEL_SIZES.to_vec(),
        entries: vec![
            ours("trihop agent", "agent"),
            ours("trihop", "inline"),
            ours("trihop threaded", "threaded"),
        ],
        within: Duration::from_secs(30),
    }
}

//! Rails: the links between two nodes, of which the final rank of a run picks one.

use std::fmt;
use std::str::FromStr;

use trihop_transport::topology::Topology;

/// How many links there are between any two nodes.
///
/// With one, a node of 64 ranks that speaks with seven others has seven ranks that carry
/// everything, and 57 that carry nothing. With more, the links of a node are dealt out to its
/// ranks in turn, and the final rank of a run picks the link: what one rank sends to another keeps
/// its order. With as many as a node has ranks, each link ends at the final rank itself, and the
/// last hop is gone.
///
/// Where nodes have several relays, `2+1` has each link between the relays that follow those of `2`
/// on their nodes, the first one following the last. So what goes by `three-hop:+1` goes by other
/// relays than what goes by `three-hop`, from whichever rank to whichever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Rails {
    number: u32,
    turn: u32,
}

impl Rails {
    /// How much of the mean the busiest rank may carry where rails are chosen.
    pub const SHARED_OUT: f64 = 1.25;

    /// One link between two nodes, between the ranks that nexus would choose.
    pub const ONE: Self = Self { number: 1, turn: 0 };

    /// How many; 0 while they are to be chosen.
    pub fn number(self) -> u32 {
        self.number
    }

    /// How many relays further their ends are, on each node.
    pub fn turn(self) -> u32 {
        self.turn
    }

    /// The same, so many relays further.
    pub fn turned(self, turn: u32) -> Self {
        Self { turn, ..self }
    }

    /// The rails of a job. Where they are to be chosen, they are the fewest with which each rank
    /// of nodes of one size has a link, and none carries more than 1.25 times the mean. No more
    /// count between two nodes than the smaller of them has ranks: no two rails share an end.
    ///
    /// # Errors
    /// None; other routes refuse what does not suit the job.
    pub fn for_job(self, topology: &Topology) -> Result<Self, String> {
        let most = topology.smaller_of_most();
        let number = match self.number {
            0 => (1..most)
                .find(|&rails| is_balanced(rails, topology))
                .unwrap_or(most),
            given => given.min(most),
        };
        Ok(Self { number, ..self })
    }
}

/// Whether so many rails are dealt out well enough, also on the node that has most ranks. What a
/// rank carries is the number of its links by the number of ranks that pick one of them.
fn is_balanced(rails: u32, topology: &Topology) -> bool {
    let (rails, ranks) = (u64::from(rails), u64::from(topology.most_local()));
    let nodes = u64::from(topology.nodes());
    let busiest = (nodes * rails).div_ceil(ranks) * ranks.div_ceil(rails);
    // Of what is dealt out in turn, the own node's part is left out, which is once a rank at most.
    let all_have_one = nodes * rails / ranks > 1;
    nodes < 2 || all_have_one && busiest as f64 <= Rails::SHARED_OUT * (nodes - 1) as f64
}

impl fmt::Display for Rails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.number > 0 {
            self.number.fmt(f)?;
        }
        if self.turn > 0 {
            write!(f, "+{}", self.turn)?;
        }
        Ok(())
    }
}

impl FromStr for Rails {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // `parse` takes a sign.
        let number = |digits: &str| match digits.starts_with('+') {
            true => None,
            false => digits.parse().ok().filter(|&number: &u32| number > 0),
        };
        let (rails, turn) = text.split_once('+').unwrap_or((text, ""));
        let is_turned = rails.len() < text.len();
        let parsed = match (rails, is_turned) {
            ("", true) => Some(0),
            (rails, _) => number(rails),
        };
        let turn = if is_turned { number(turn) } else { Some(0) };
        let rails = parsed.zip(turn);
        let rails = rails.map(|(number, turn)| Self { number, turn });
        rails.ok_or_else(|| {
            format!("`{text}` is no number of links between two nodes, `2`, or with relays `2+1`")
        })
    }
}

#[cfg(test)]
mod tests {
    use trihop_transport::topology::Rank;

    use super::*;

    #[test]
    fn rails_are_the_fewest_that_leave_no_rank_without_work() {
        for (shape, rails) in [
            ((1, 8), 1),        // there are no other nodes
            ((2, 1), 1),        // there is one pair of ranks
            ((2, 2), 2),        // the last hop is gone
            ((2, 64), 64),      // one link for each rank
            ((8, 64), 16),      // two for each, less one for some
            ((64, 64), 2),      // two for each, less two for one of them
            ((1024, 64), 1),    // 16 links for each rank
            ((10_000, 192), 1), // 52 or 53 links for each rank
        ] {
            let sizes = vec![shape.1; shape.0];
            let topology = Topology::from_node_sizes(&sizes, Rank(0)).unwrap();
            let chosen = Rails::default().for_job(&topology).unwrap();
            assert_eq!(chosen.number(), rails, "{shape:?}");
        }
    }

    #[test]
    fn rails_are_a_number_and_a_turn_or_refused() {
        for (text, number, turn) in [("2", 2, 0), ("2+1", 2, 1), ("+3", 0, 3)] {
            let rails: Rails = text.parse().unwrap();
            assert_eq!((rails.number(), rails.turn()), (number, turn), "{text}");
            assert_eq!(rails.to_string(), text);
        }
        assert_eq!(Rails::ONE.turned(2).to_string(), "1+2");
        for text in [
            "",
            "0",
            "+",
            "2+",
            "2+0",
            "++1",
            "1++1",
            "-1",
            "1 ",
            "4294967296",
        ] {
            assert!(text.parse::<Rails>().is_err(), "{text}");
        }
    }

    #[test]
    fn rails_are_no_more_than_any_two_nodes_can_have() {
        let most = |sizes: &[u32]| {
            let topology = Topology::from_node_sizes(sizes, Rank(0)).unwrap();
            let rails: Rails = "1000".parse().unwrap();
            rails.for_job(&topology).unwrap().number()
        };
        assert_eq!(most(&[1, 64]), 1);
        assert_eq!(most(&[1, 2, 64]), 2);
        assert_eq!(most(&[1, 1, 64, 32]), 32);
        assert_eq!(most(&[5, 5, 5]), 5);
        assert_eq!(most(&[7]), 7, "there are none, and it does not matter");
    }
}

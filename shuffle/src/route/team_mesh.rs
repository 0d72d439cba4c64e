//! Along a grid of nodes whose ranks are teams: what TRAM calls node-aware routing.
//!
//! The ranks of a node are dealt out in turn to as many teams as the grid has dimensions. Only the
//! team of a dimension sends along it, so each rank fills buffers for the `s - 1` neighbours in one
//! dimension of `s` nodes, and not in all. Members of a team are numbered. What a rank sends goes
//! inside its node to the member with its own number of the team of the first dimension that
//! differs. A hop to another node lands on the member with the sender's number of the team of the
//! next dimension, so it goes on from there at once where that dimension differs too. After the
//! last dimension it lands on the team of the first one, and a hop inside the node leads to the
//! target. So a way has two hops more than the grid has dimensions, at most: a dimension that does
//! not differ costs one inside at most, where between representatives there is one before and one
//! behind each.
//!
//! A rank sends along its own dimension and hears those of the one before, so it has a link for
//! each neighbour in both. Between two nodes all members of a team have links, and share what goes
//! there. TRAM's ranks of a node are a last dimension with a team of its own; here lanes lead from
//! each rank of a node to each, so no team is needed for it, and no rank is left without one.
//!
//! A number beyond those of a team counts on from its first: where nodes have different numbers of
//! ranks, or these are no multiple of the dimensions. Where a node has fewer ranks than there are
//! dimensions, its ranks have several teams. With one dimension each rank has links to those with
//! its own local rank.

use super::along_nodes::{AlongNodes, AlongRow, Speakers};
use super::grid::Row;
use trihop_transport::topology::Topology;

/// The route along a grid of nodes whose ranks are teams.
pub type TeamMesh = AlongNodes<Teams>;

/// A team for each row.
#[derive(Debug, Clone)]
pub struct Teams {
    /// How many there are.
    number: u32,
}

impl Teams {
    /// The members of a team on a node with so many ranks.
    #[inline]
    fn size(&self, team: u32, ranks: u32) -> u32 {
        ranks.saturating_sub(team).div_ceil(self.number).max(1)
    }

    /// The member with a number, which counts on from the first one.
    #[inline]
    fn member(&self, team: u32, ranks: u32, number: u32) -> u32 {
        let number = number % self.size(team, ranks);
        (team + number * self.number) % ranks
    }

    /// Number of a rank within its team.
    #[inline]
    fn number_of(&self, rank: u32) -> u32 {
        rank / self.number
    }

    /// The team on which hops along a row land.
    #[inline]
    fn next(&self, row: usize) -> u32 {
        match row as u32 + 1 {
            next if next < self.number => next,
            _ => 0,
        }
    }
}

impl Speakers for Teams {
    fn new(lengths: impl Iterator<Item = u32>) -> Self {
        let number = lengths.count() as u32;
        Self { number }
    }

    #[inline]
    fn sender(&self, here: AlongRow, holder: u32, _: u32) -> u32 {
        self.member(here.row as u32, here.ranks, self.number_of(holder))
    }

    #[inline]
    fn landing(&self, there: AlongRow, sender: u32, _: u32) -> u32 {
        let team = self.next(there.row);
        self.member(team, there.ranks, self.number_of(sender))
    }

    fn heard(
        &self,
        here: AlongRow,
        listener: u32,
        from: AlongRow,
    ) -> impl Iterator<Item = u32> + use<> {
        let (team, next) = (from.row as u32, self.next(from.row));
        let (first, step) = (self.number_of(listener), self.size(next, here.ranks));
        let is_on_team = self.member(next, here.ranks, first) == listener;
        let senders = self.size(team, from.ranks) * u32::from(is_on_team);
        let teams = self.clone();
        let numbers = (first..senders).step_by(step as usize);
        numbers.map(move |number| teams.member(team, from.ranks, number))
    }

    fn most(&self, number: usize, row: &Row, topology: &Topology) -> u32 {
        let (fewest, most) = (topology.fewest_local(), topology.most_local());
        let senders = self.size(number as u32, most);
        let each = senders.div_ceil(self.size(self.next(number), fewest));
        let heard = row.most.saturating_mul(each);
        // Who is of both teams shares its links where nodes are equal.
        let has_both = self.number == 1 || fewest < self.number;
        let sent = match has_both && fewest < most {
            true => row.most.min(row.size() - 1),
            false => 0,
        };
        let others = topology.size() - fewest;
        heard.saturating_add(sent).min(others)
    }
}

#[cfg(test)]
mod tests {
    use super::super::along_nodes::stages;
    use super::super::{EndpointId, JobRoute, Next, Reach, Route, Stage};
    use super::*;
    use trihop_transport::topology::Rank;

    fn at(rank: u32, sizes: &[u32], grid: &str) -> TeamMesh {
        let topology = Topology::from_node_sizes(sizes, Rank(rank)).unwrap();
        TeamMesh::new(topology, grid.parse().unwrap())
    }

    fn edges(route: &TeamMesh, stage: u8) -> Vec<u32> {
        let stage = Stage(stage);
        let number = route.edges(stage, Reach::Beyond);
        (0..number)
            .map(|number| route.edge(stage, Reach::Beyond, number).0)
            .collect()
    }

    /// The ranks that a message from one rank to another comes to, with its stages.
    fn way(sizes: &[u32], grid: &str, from: u32, to: u32) -> Vec<(u32, u8)> {
        let mut way = vec![(from, 0)];
        loop {
            let (here, stage) = way[way.len() - 1];
            match at(here, sizes, grid).next(Stage(stage), Rank(to)).unwrap() {
                Next::Deliver => return way.split_off(1),
                Next::To(next, stage) => way.push((next.0, stage.0)),
            }
        }
    }

    /// Nine nodes of four ranks, 3 x 3: the even ones send along the last dimension, the odd ones
    /// along the other.
    #[test]
    fn a_message_lands_on_the_team_that_sends_it_on() {
        let way = |from, to| way(&[4; 9], "3x3", from, to);
        // Rank 3 is the second of the odd ones, and asks the second of the even ones. That sends to
        // node 2, where it lands on the second of the odd ones, and from there to node 8.
        assert_eq!(way(3, 33), [(2, 1), (11, 2), (34, 4), (33, 5)]);
        // Where the last dimension does not differ, the first hop is saved.
        assert_eq!(way(3, 24), [(26, 4), (24, 5)]);
        // Where only the last one does, the hop behind leads to the target.
        assert_eq!(way(0, 9), [(9, 2)]);
        assert_eq!(way(0, 11), [(9, 2), (11, 3)]);
        assert_eq!(way(0, 0), [(0, 1)]);
    }

    #[test]
    fn a_rank_sends_along_one_dimension_and_hears_another() {
        let route = at(3, &[4; 9], "3x3");
        // Node 0 hears nodes 1 and 2 along the last dimension, and sends to nodes 3 and 6.
        assert_eq!(edges(&route, 2), [6, 10]);
        assert_eq!(edges(&route, 4), [14, 26]);
        assert!(
            route.has_edge(Stage(4), EndpointId(14)) && !route.has_edge(Stage(2), EndpointId(14))
        );
    }

    /// As many hops inside of nodes as one before and one behind, whatever differs.
    #[test]
    fn a_way_has_two_hops_more_than_dimensions() {
        for (sizes, grid) in [
            (&[2; 8][..], "2x2x2"),
            (&[3, 1, 4, 2, 6, 5, 1, 2], "2x2x2"),
            (&[1; 12], "2x3x2"),
            (&[5; 7], "2x2x3"),
            (&[4, 7, 3, 5], "4"),
        ] {
            let ranks = sizes.iter().sum();
            let dimensions = grid.split('x').count();
            for (from, to) in (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to))) {
                let way = way(sizes, grid, from, to);
                assert!(
                    way.len() <= dimensions + 2,
                    "{from} to {to} of {sizes:?}: {way:?}"
                );
            }
        }
    }

    /// What one rank sends and all of its team send is what the node sends.
    #[test]
    fn all_ranks_of_a_node_have_as_many_links_where_teams_are_equal() {
        let grid = "team-mesh:8x8".parse().unwrap();
        for rank in 0..6 {
            let topology = Topology::from_node_sizes(&[6; 64], Rank(rank)).unwrap();
            let route = JobRoute::new(grid, &topology).unwrap();
            assert_eq!((route.links(), route.most_links()), (14, 14));
        }
        assert_eq!(stages("8x8".parse().unwrap()).len(), 5);
    }

    /// A node of five has three even ranks and two odd ones, of which the first hears two numbers.
    #[test]
    fn a_number_that_a_team_does_not_have_counts_on_from_its_first() {
        assert_eq!(edges(&at(1, &[5, 5], "1x2"), 2), [5, 9]);
        assert_eq!(edges(&at(3, &[5, 5], "1x2"), 2), [7]);
        assert_eq!(edges(&at(4, &[5, 5], "1x2"), 2), [6]);
        // On nodes of one rank it has both teams, and one link for both ways.
        assert_eq!(edges(&at(0, &[1, 1], "1x2"), 2), [1]);
        // A small node hears all of a larger one, and sends to one of them.
        assert_eq!(edges(&at(0, &[1, 4], "2"), 2), [1, 2, 3, 4]);
        assert_eq!(edges(&at(2, &[1, 4], "2"), 2), [0]);
    }
}

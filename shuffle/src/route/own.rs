//! Routes that a program brings itself.

use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use super::{EndpointId, Next, Reach, Route, RouteName, STAGE_NAME_BYTES, Stage, StageSpec};
use crate::error::{Error, Result};
use trihop_transport::topology::{Rank, Topology};

/// A rule as a rank of a job has it.
type Shared = Arc<dyn Route + Send + Sync>;

/// Makes the rule of a rank, which the topology is seen from.
type Build = dyn Fn(&Topology) -> Shared + Send + Sync;

/// Most ranks of a job of which each one's ways are all followed; of a larger one, so many of each.
const FOLLOWED: u32 = 1024;

/// What is known of a route that a program has registered.
struct Registered {
    name: &'static str,
    stages: &'static [StageSpec],
    build: Box<Build>,
}

/// A route that this program has registered.
#[derive(Clone, Copy)]
pub struct OwnRoute(&'static Registered);

/// All of them. They stay as long as the process: names of routes are copied into options.
static REGISTERED: Mutex<Vec<OwnRoute>> = Mutex::new(Vec::new());

/// Makes a route of this program known under a name, which `TRIHOP_ROUTE` and the options of
/// streams then take as well, on all ranks alike. It is checked whenever a stream with it is
/// opened: each rank follows its ways to all ranks (to 1,024 of them in larger jobs), and up to
/// 1,024 ranks its broadcasts too. So a way that does not end at its target, that goes back to an
/// earlier stage, or of whose edges one end does not know is refused, and no message goes astray;
/// and so are broadcasts that go other ways than messages to one rank, and would not keep their
/// order with those.
///
/// `build` is called for the rank that the topology is seen from, and while a route is checked for
/// others too.
///
/// # Errors
/// [`Error::Config`]: the name is no word of letters, digits, `-` and `_`, is longer than 63 bytes,
/// or is taken; stages are none, more than 64, or two with one name; or the first is not called
/// `origin`.
pub fn register<R: Route + Send + Sync + 'static>(
    name: &str,
    stages: &[StageSpec],
    build: impl Fn(&Topology) -> R + Send + Sync + 'static,
) -> Result<RouteName> {
    let refuse = |why: String| Err(Error::config("route", why));
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    if name.is_empty() || name.len() > 63 || !name.chars().all(is_part) {
        let why = format!("`{name}` is no name: up to 63 letters, digits, `-` and `_`");
        return refuse(why);
    }
    let mut names: Vec<&str> = stages.iter().map(|stage| stage.name).collect();
    names.sort_unstable();
    names.dedup();
    let is_origin = |first: &StageSpec| first.name == super::stage::ORIGIN;
    if stages.len() > 64 || names.len() != stages.len() || !stages.first().is_some_and(is_origin) {
        return refuse(format!(
            "the stages of `{name}` are {} with {} names; 1 to 64 are needed, each with a name of its own, the first \
             called `origin`",
            stages.len(),
            names.len()
        ));
    }
    if let Some(long) = names.iter().find(|name| name.len() > STAGE_NAME_BYTES) {
        return refuse(format!(
            "the stage `{long}` of `{name}` has a name of {} bytes, and {STAGE_NAME_BYTES} are the most",
            long.len()
        ));
    }
    let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    if is_of_table(name) || registered.iter().any(|own| own.name() == name) {
        return refuse(format!("there is a route `{name}` already"));
    }
    let own = OwnRoute(Box::leak(Box::new(Registered {
        name: String::leak(name.to_owned()),
        stages: Vec::leak(stages.to_vec()),
        build: Box::new(move |topology| Arc::new(build(topology))),
    })));
    registered.push(own);
    Ok(RouteName::Own(own))
}

fn is_of_table(name: &str) -> bool {
    RouteName::all().iter().any(|route| route.name() == name)
}

impl OwnRoute {
    /// The one with this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        let registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
        registered.iter().copied().find(|own| own.name() == name)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// The stages of its edges, in order.
    pub fn stages(self) -> &'static [StageSpec] {
        self.0.stages
    }

    pub(super) fn rule(self, topology: &Topology) -> OwnRule {
        OwnRule((self.0.build)(topology))
    }

    /// Follows the ways from this rank.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(super) fn check(self, topology: &Topology) -> Result<(), String> {
        let mut check = Check {
            own: self,
            topology,
            rules: HashMap::new(),
        };
        let (size, me) = (topology.size(), topology.rank());
        check.edges()?;
        let targets = size.min(FOLLOWED);
        for number in 0..targets {
            let spread = u64::from(number) * u64::from(size) / u64::from(targets);
            // Each rank begins at itself, so that all pairs of a large job have the same chance.
            let target = (u64::from(me.0) + spread) % u64::from(size);
            check.way(Rank(target as u32))?;
        }
        match size <= FOLLOWED {
            true => check.broadcast(),
            false => Ok(()),
        }
    }
}

impl PartialEq for OwnRoute {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for OwnRoute {}

impl Hash for OwnRoute {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}

impl fmt::Debug for OwnRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The rule of such a route.
#[derive(Clone)]
pub(super) struct OwnRule(pub Shared);

impl fmt::Debug for OwnRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a rule of the program's own")
    }
}

/// A check of a route, from one rank's place.
struct Check<'a> {
    own: OwnRoute,
    topology: &'a Topology,
    /// Of the ranks that ways led to.
    rules: HashMap<EndpointId, Shared>,
}

impl Check<'_> {
    fn rule(&mut self, end: EndpointId) -> Result<Shared, String> {
        if let Some(rule) = self.rules.get(&end) {
            return Ok(Arc::clone(rule));
        }
        let seen = self.topology.seen_from(Rank(end.0));
        let seen = seen.map_err(|_| format!("it leads to rank {end}, which is not in the job"))?;
        let rule = (self.own.0.build)(&seen);
        // Each way of a large job has other ends.
        if self.rules.len() < 4 * FOLLOWED as usize {
            self.rules.insert(end, Arc::clone(&rule));
        }
        Ok(rule)
    }

    fn stages(&self) -> impl Iterator<Item = Stage> + use<> {
        (1..=self.own.stages().len() as u8).map(Stage)
    }

    /// Whether a step is possible: to a later stage, over an edge that both ends know.
    fn hop(&mut self, here: EndpointId, at: Stage, to: (EndpointId, Stage)) -> Result<(), String> {
        let (next, over) = to;
        let is_stage = self.stages().any(|stage| stage == over);
        if over <= at || !is_stage {
            let stages = self.own.stages().len();
            return Err(format!(
                "from rank {here} it goes from stage {at} to stage {over} of {stages}"
            ));
        }
        let rules = [
            (self.rule(here)?, here, next),
            (self.rule(next)?, next, here),
        ];
        for (rule, one, other) in rules {
            if !rule.has_edge(over, other) {
                return Err(format!(
                    "it goes from rank {here} to rank {next} over an edge of stage {over} that rank {one} does not know"
                ));
            }
        }
        Ok(())
    }

    fn edges(&mut self) -> Result<(), String> {
        let me = self.topology.endpoint();
        let rule = self.rule(me)?;
        for stage in self.stages() {
            for reach in Reach::BOTH {
                let (edges, most) = (rule.edges(stage, reach), rule.most_edges(stage, reach));
                if edges > most {
                    return Err(format!(
                        "rank {me} has {edges} edges of stage {stage}, where {most} are said to be the most"
                    ));
                }
                for number in 0..edges {
                    let peer = rule.edge(stage, reach, number);
                    let back = self.rule(peer)?;
                    let is_there = self.topology.is_here(peer) == (reach == Reach::Node);
                    let known = rule.has_edge(stage, peer) && back.has_edge(stage, me);
                    if peer == me || !is_there || !known {
                        return Err(format!(
                            "the edge of stage {stage} between ranks {me} and {peer} is not the same at both ends"
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// The edges on the way to a rank.
    fn way(&mut self, target: Rank) -> Result<Vec<(EndpointId, Stage)>, String> {
        let source = self.topology.rank();
        let (mut here, mut at) = (self.topology.endpoint(), Stage::SOURCE);
        let mut passed = Vec::new();
        let astray = |here: EndpointId, at: Stage| {
            format!("from rank {source} to rank {target} it ends at rank {here}, stage {at}")
        };
        loop {
            match self.rule(here)?.next(at, target) {
                Some(Next::Deliver) if here == target.into() && at > Stage::SOURCE => {
                    return Ok(passed);
                }
                Some(Next::To(next, Stage::FIRST))
                    if next == here && at == Stage::SOURCE && target == source =>
                {
                    at = Stage::FIRST;
                }
                Some(Next::To(next, over)) if next != here => {
                    self.hop(here, at, (next, over))?;
                    (here, at) = (next, over);
                    passed.push((here, at));
                }
                _ => return Err(astray(here, at)),
            }
        }
    }

    fn broadcast(&mut self) -> Result<(), String> {
        let source = self.topology.rank();
        let mut got = vec![0u32; self.topology.size() as usize];
        let me = self.topology.endpoint();
        let mut under_way = vec![(me, Stage::SOURCE, Vec::new())];
        while let Some((here, at, passed)) = under_way.pop() {
            let rule = self.rule(here)?;
            if at > Stage::SOURCE {
                got[here.0 as usize] += 1;
                if got[here.0 as usize] > 1 || !rule.passes(at, source) {
                    return Err(format!(
                        "a broadcast of rank {source} comes to rank {here} twice, or unasked for"
                    ));
                }
                // Else one could overtake the other.
                if passed != self.way(Rank(here.0))? {
                    return Err(format!(
                        "broadcasts of rank {source} come to rank {here} by another way than \
                         other messages"
                    ));
                }
            }
            for number in 0..rule.copies(at, source) {
                let copy = rule.copy(at, source, number);
                self.hop(here, at, copy)?;
                let (next, over) = copy;
                under_way.push((next, over, [&passed[..], &[copy]].concat()));
            }
        }
        got[source.0 as usize] += 1;
        match got.iter().position(|&times| times != 1) {
            Some(rank) => Err(format!(
                "a broadcast of rank {source} comes to rank {rank} {} times",
                got[rank]
            )),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::{Direct, JobRoute, Rails, ThreeHop};

    /// A rule of the house that does one thing otherwise.
    struct Wrong {
        topology: Topology,
        rule: ThreeHop,
        how: u32,
    }

    impl Route for Wrong {
        fn next(&self, at: Stage, target: Rank) -> Option<Next> {
            let next = self.rule.next(at, target)?;
            let last = Rank(self.topology.size() - 1);
            match (self.how, next) {
                (1, Next::Deliver) if target == last => None,
                (2, Next::To(end, stage)) if stage.number() == 3 && target == last => {
                    Some(Next::To(end, at))
                }
                (3, Next::To(_, stage)) if target == last && stage.number() == 2 => {
                    Some(Next::To(EndpointId(77), stage))
                }
                _ => Some(next),
            }
        }

        fn edges(&self, stage: Stage, reach: Reach) -> u32 {
            self.rule.edges(stage, reach)
        }

        fn edge(&self, stage: Stage, reach: Reach, number: u32) -> EndpointId {
            self.rule.edge(stage, reach, number)
        }

        fn has_edge(&self, stage: Stage, peer: EndpointId) -> bool {
            let is_last = self.topology.rank().0 == self.topology.size() - 1;
            self.rule.has_edge(stage, peer) && !(self.how == 4 && is_last)
        }

        fn most_edges(&self, stage: Stage, reach: Reach) -> u32 {
            match self.how {
                5 => 0,
                _ => self.rule.most_edges(stage, reach),
            }
        }

        fn copies(&self, at: Stage, source: Rank) -> u32 {
            match self.how {
                6 if at.number() == 2 => 0,
                _ => self.rule.copies(at, source),
            }
        }

        fn copy(&self, at: Stage, source: Rank, number: u32) -> (EndpointId, Stage) {
            let copy = self.rule.copy(at, source, number);
            let last = EndpointId(self.topology.size() - 1);
            // Over another lane to the same rank.
            match (self.how, copy) {
                (8, (end, stage)) if end == last && stage == Stage::FIRST => {
                    (end, Stage::numbered(3))
                }
                _ => copy,
            }
        }

        fn passes(&self, at: Stage, source: Rank) -> bool {
            let is_last = self.topology.rank().0 == self.topology.size() - 1;
            match self.how {
                7 => false,
                8 if is_last && self.topology.is_local(source) => at.number() == 3,
                _ => self.rule.passes(at, source),
            }
        }
    }

    fn registered(how: u32) -> RouteName {
        let name = format!("wrong-{how}");
        let build = move |topology: &Topology| Wrong {
            topology: topology.clone(),
            rule: ThreeHop::new(topology.clone(), Rails::ONE),
            how,
        };
        register(&name, RouteName::default().stages(), build).unwrap()
    }

    #[test]
    fn a_route_that_would_lead_astray_is_refused_with_the_reason() {
        let opened = |how: u32| {
            let route = registered(how);
            let of = |rank| {
                let topology = Topology::from_node_sizes(&[2, 3], Rank(rank)).unwrap();
                JobRoute::new(route, &topology).map(drop)
            };
            let refused: Vec<String> = (0..5)
                .filter_map(|r| Some(of(r).err()?.to_string()))
                .collect();
            refused
        };
        assert_eq!(opened(0), [""; 0]);
        for (how, why) in [
            (1, "it ends at rank 4"),
            (2, "it goes from stage 2 to stage 2 of 3"),
            (3, "it leads to rank 77, which is not in the job"),
            (4, "is not the same at both ends"),
            (5, "where 0 are said to be the most"),
            (6, "0 times"),
            (7, "unasked for"),
            (8, "by another way than other messages"),
        ] {
            let refused = opened(how);
            assert!(
                refused.iter().any(|said| said.contains(why)),
                "{how}: {refused:?}"
            );
        }
    }

    #[test]
    fn names_and_stages_that_do_not_do_are_refused() {
        let direct = |topology: &Topology| Direct::new(topology.clone());
        let stages = RouteName::Direct.stages();
        let long = "x".repeat(65).leak();
        let (longest, too_long) = (StageSpec::shared(&long[1..]), StageSpec::shared(long));
        for (name, stages, why) in [
            ("", stages, "is no name"),
            ("a b", stages, "is no name"),
            ("mesh:2", stages, "is no name"),
            ("direct", stages, "already"),
            ("none", &[], "1 to 64 are needed"),
            ("first", &stages[1..], "the first called `origin`"),
            ("long", &[stages[0], too_long], "a name of 65 bytes"),
        ] {
            let refused = register(name, stages, direct).unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        }
        register("longest", &[stages[0], longest], direct).unwrap();
        let own = register("my-direct", stages, direct).unwrap();
        assert_eq!("my-direct".parse(), Ok(own));
        assert_eq!(
            (own.to_string(), own.stages()),
            ("my-direct".to_owned(), stages)
        );
        let again = register("my-direct", stages, direct).unwrap_err();
        assert!(again.to_string().contains("already"));
        assert!(
            "my-direct:3"
                .parse::<RouteName>()
                .unwrap_err()
                .contains("given nothing")
        );
    }
}

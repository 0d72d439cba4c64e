//! All figures of all rounds, by work and system, and why some are missing.

use std::collections::BTreeMap;

use crate::entries::Entry;
use crate::plan::{Contest, Work};
use crate::rows::{Figures, Measure, Row};
use crate::statistics::Spread;

/// What is known about a system besides its figures.
#[derive(Debug, Clone)]
pub struct System {
    /// Its name, with the variant.
    pub name: String,
    /// Whether it is ours.
    pub ours: bool,
    /// How its ranks reach each other.
    pub way: String,
    /// Whether its messages cross simulated nodes.
    pub crosses: bool,
    /// Messages per rank and repetition, where it said so.
    pub count: u64,
    /// Figures of each round; nothing where it gave none.
    rounds: Vec<Figures>,
    /// Why figures are missing, the first time.
    pub missing: Option<String>,
}

/// One work, and the systems that did it in the order in which they are listed.
#[derive(Debug, Clone)]
pub struct Case {
    /// The work, with its size.
    pub work: Work,
    /// System that the others are compared with.
    pub reference: &'static str,
    /// Ours first.
    pub systems: Vec<System>,
}

/// Everything.
#[derive(Debug, Default)]
pub struct Results {
    /// Rounds begun.
    pub rounds: usize,
    cases: BTreeMap<Work, Case>,
    order: Vec<Work>,
}

impl Results {
    /// The next round begins.
    pub fn begin_round(&mut self) {
        self.rounds += 1;
    }

    /// Notes what an entry gave in this round.
    pub fn note(&mut self, contest: &Contest, entry: &Entry, outcome: Result<Vec<Row>, String>) {
        match outcome {
            Ok(rows) => rows
                .into_iter()
                .for_each(|row| self.note_row(contest, entry, row)),
            Err(why) => {
                for &size in &contest.sizes {
                    let round = self.rounds;
                    let case = self.case(contest, size);
                    // Its variants are not known yet where it never gave a row.
                    let known = case.systems.iter().position(|s| {
                        s.name == entry.system
                            || s.name
                                .strip_prefix(&*entry.system)
                                .is_some_and(|v| v.starts_with(", ") && s.ours)
                    });
                    let at = known.unwrap_or_else(|| case.add(entry, entry.system.clone()));
                    let system = &mut case.systems[at];
                    system
                        .missing
                        .get_or_insert_with(|| format!("round {round}: {why}"));
                }
            }
        }
    }

    fn note_row(&mut self, contest: &Contest, entry: &Entry, row: Row) {
        let round = self.rounds;
        let case = self.case(contest, row.size);
        let name = if row.variant.is_empty() {
            entry.system.clone()
        } else {
            format!("{}, {}", entry.system, row.variant.replace('_', " "))
        };
        case.put(entry, name, round, row.count, row.figures);
        for (name, figures) in row.yardsticks {
            // A yardstick that ran beside two variants counts once: beside the first, with which it
            // is compared.
            let here = case.systems.iter().find(|s| s.name == name);
            if here.is_some_and(|s| s.rounds.len() >= round) {
                continue;
            }
            let rival = Entry {
                ours: false,
                ..entry.clone()
            };
            case.put(&rival, name.to_owned(), round, 0, figures);
        }
    }

    fn case(&mut self, contest: &Contest, size: usize) -> &mut Case {
        let work = contest.work.sized(size);
        if !self.cases.contains_key(&work) {
            self.order.push(work.clone());
        }
        self.cases.entry(work.clone()).or_insert_with(|| Case {
            work,
            reference: contest.reference,
            systems: Vec::new(),
        })
    }

    /// All works in the order in which they were begun, smaller messages first.
    pub fn cases(&self) -> impl Iterator<Item = &Case> {
        let mut order: Vec<(usize, &Work)> = self.order.iter().enumerate().collect();
        let place = |work: &Work| self.order.iter().position(|o| o.sized(0) == work.sized(0));
        order.sort_by_key(|(_, work)| (place(work), work.size));
        order.into_iter().map(|(_, work)| &self.cases[work])
    }

    /// Which of ours did not give what they should, each with its work and the first reason.
    pub fn ours_that_failed(&self) -> Vec<String> {
        let ours = self.cases().flat_map(|case| {
            case.systems
                .iter()
                .filter(|s| s.ours)
                .map(move |s| (case, s))
        });
        ours.filter_map(|(case, system)| {
            let why = system.missing.as_deref()?;
            Some(format!("{} in {}, {why}", system.name, case.work.text()))
        })
        .collect()
    }

    /// One figure of one round.
    ///
    /// # Errors
    /// Why there is none.
    pub fn figure(
        &self,
        round: usize,
        work: &Work,
        system: &str,
        measure: Measure,
    ) -> Result<f64, String> {
        let missing = |why: &str| format!("no figure of {system} in {}: {why}", work.text());
        let case = self
            .cases
            .get(work)
            .ok_or_else(|| missing("it was not run"))?;
        let Some(found) = case.systems.iter().find(|s| s.name == system) else {
            let why = case
                .systems
                .iter()
                .find(|s| system.starts_with(&s.name))
                .and_then(|s| s.missing.as_deref());
            return Err(missing(why.unwrap_or("it was not run")));
        };
        let value = found
            .rounds
            .get(round)
            .and_then(|figures| figures.get(&measure));
        value
            .copied()
            .ok_or_else(|| missing(found.missing.as_deref().unwrap_or("it gave none")))
    }

    /// The best figure of several systems in one round: the smallest of times, the largest of
    /// rates.
    ///
    /// # Errors
    /// When none of them has one.
    pub fn best(
        &self,
        round: usize,
        work: &Work,
        systems: &[&str],
        measure: Measure,
    ) -> Result<Best, String> {
        let (mut found, mut missing, mut without) = (Vec::new(), Vec::new(), Vec::new());
        for system in systems {
            match self.figure(round, work, system, measure) {
                Ok(figure) => found.push(figure),
                Err(why) => {
                    missing.push(why);
                    without.push((*system).to_owned());
                }
            }
        }
        let pick = |a: f64, b: f64| {
            if smaller_is_better(measure) {
                a.min(b)
            } else {
                a.max(b)
            }
        };
        match found.into_iter().reduce(pick) {
            Some(figure) => Ok(Best { figure, without }),
            None => Err(missing
                .into_iter()
                .next()
                .unwrap_or_else(|| "no system was named".into())),
        }
    }
}

/// The best of several figures.
#[derive(Debug, PartialEq)]
pub struct Best {
    /// The figure.
    pub figure: f64,
    /// Systems that have none, and might have had a better one.
    pub without: Vec<String>,
}

/// Whether less of it is better.
pub fn smaller_is_better(measure: Measure) -> bool {
    !matches!(measure, Measure::Rate | Measure::Bandwidth)
}

impl Case {
    fn add(&mut self, entry: &Entry, name: String) -> usize {
        self.systems.push(System {
            name,
            ours: entry.ours,
            way: entry.way.clone(),
            crosses: entry.crosses,
            count: 0,
            rounds: Vec::new(),
            missing: None,
        });
        self.systems.len() - 1
    }

    fn put(&mut self, entry: &Entry, name: String, round: usize, count: u64, figures: Figures) {
        let known = self.systems.iter().position(|s| s.name == name);
        let at = known.unwrap_or_else(|| self.add(entry, name));
        let system = &mut self.systems[at];
        system.count = count;
        system.rounds.resize(round, Figures::new());
        system.rounds[round - 1] = figures;
    }

    /// The system that the others are compared with, if it gave figures.
    pub fn reference(&self) -> Option<&System> {
        self.systems.iter().find(|s| s.name == self.reference)
    }

    /// Our reference over `system`, formed within each round.
    pub fn ratio(&self, system: &System, measure: Measure) -> Option<Spread> {
        let ours = self.reference()?;
        let pairs = ours.rounds.iter().zip(&system.rounds);
        Spread::of(
            pairs.filter_map(|(ours, theirs)| Some(ours.get(&measure)? / theirs.get(&measure)?)),
        )
    }
}

impl System {
    /// A figure over the rounds.
    pub fn spread(&self, measure: Measure) -> Option<Spread> {
        Spread::of(
            self.rounds
                .iter()
                .filter_map(|figures| figures.get(&measure).copied()),
        )
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::entries::How;
    use std::time::Duration;

    fn entry(system: &str, ours: bool) -> Entry {
        Entry {
            system: system.into(),
            ours,
            way: "one node, shared memory".into(),
            crosses: false,
            memory_groups: None,
            how: How::Absent(String::new()),
        }
    }

    fn row(variant: &str, rate: f64) -> Row {
        Row {
            size: 8,
            count: 5,
            variant: variant.into(),
            memory_groups: None,
            figures: Figures::from([(Measure::Rate, rate)]),
            yardsticks: Vec::new(),
        }
    }

    fn contest() -> Contest {
        Contest {
            goals: &["S1"],
            work: Work::new("histo", 2, 1, 5_000_000, 0),
            reference: "trihop, typed",
            sizes: vec![8],
            entries: Vec::new(),
            within: Duration::from_secs(1),
        }
    }

    /// Two rounds of a histogram: ours 300 and 200, theirs 100 and 200 M/s, and one that never ran.
    pub fn sample() -> Results {
        let contest = contest();
        let mut results = Results::default();
        for (ours, theirs) in [(300e6, 100e6), (200e6, 200e6)] {
            results.begin_round();
            results.note(
                &contest,
                &entry("trihop", true),
                Ok(vec![row("typed", ours)]),
            );
            results.note(
                &contest,
                &entry("MPICH aggregate", false),
                Ok(vec![row("", theirs)]),
            );
            results.note(
                &contest,
                &entry("UCX", false),
                Err("ucx_perftest is not installed".into()),
            );
        }
        results
    }

    /// A round of a ring, 60 M/s beside 10: Open MPI was not run, and UCX gave nothing.
    pub fn ring_sample() -> Results {
        let mut contest = contest();
        contest.reference = "trihop, copy";
        contest.work = Work::new("ring", 2, 1, 0, 0);
        let mut results = Results::default();
        results.begin_round();
        results.note(
            &contest,
            &entry("trihop", true),
            Ok(vec![row("copy", 60e6)]),
        );
        results.note(&contest, &entry("MPICH", false), Ok(vec![row("", 10e6)]));
        results.note(&contest, &entry("UCX", false), Err("no luck".into()));
        results
    }

    #[test]
    fn ratios_are_formed_within_a_round() {
        let results = sample();
        let case = results.cases().next().expect("a case");
        let ratio = case
            .ratio(&case.systems[1], Measure::Rate)
            .expect("both gave figures");
        assert_eq!((ratio.median, ratio.min, ratio.max), (3.0, 1.0, 3.0));
        assert_eq!(
            case.systems[0].spread(Measure::Rate).map(|s| s.max),
            Some(300e6)
        );
    }

    #[test]
    fn a_system_that_never_ran_stays_with_its_reason() {
        let results = sample();
        let case = results.cases().next().expect("a case");
        assert_eq!(case.systems.len(), 3);
        assert_eq!(
            case.systems[2].missing.as_deref(),
            Some("round 1: ucx_perftest is not installed")
        );
        let error = results
            .figure(0, &case.work, "UCX", Measure::Rate)
            .expect_err("it has none");
        assert!(error.contains("not installed"), "{error}");
    }

    /// A rival may be absent; one of ours is there, and works.
    #[test]
    fn one_of_ours_that_fails_is_told_once_with_its_first_reason() {
        let mut results = sample();
        assert_eq!(results.ours_that_failed(), Vec::<String>::new());
        let contest = contest();
        for why in ["rank 1 received too much", "no luck"] {
            results.begin_round();
            results.note(&contest, &entry("trihop", true), Err(why.into()));
        }
        assert_eq!(
            results.ours_that_failed(),
            [
                "trihop, typed in histo, P=2 on one node, 8 B, 5000 k items a rank, round 3: rank 1 received too much"
            ]
        );
    }

    #[test]
    fn the_best_is_the_largest_rate() {
        let results = sample();
        let work = results.cases().next().expect("a case").work.clone();
        let best = |systems: &[&str]| results.best(0, &work, systems, Measure::Rate);
        let of_two = best(&["UCX", "MPICH aggregate", "trihop, typed"]);
        let expected = Best {
            figure: 300e6,
            without: vec!["UCX".to_owned()],
        };
        assert_eq!(of_two, Ok(expected));
        assert!(best(&["UCX"]).is_err());
    }
}

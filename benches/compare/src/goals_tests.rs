use super::*;

fn of<'a>(all: &'a [Judgement], what: &str) -> &'a Judgement {
    all.iter()
        .find(|j| j.what.starts_with(what))
        .expect("a goal")
}

#[test]
fn a_goal_is_met_or_missed_by_its_median_or_says_why_it_cannot_be_judged() {
    let results = crate::results::tests::sample();
    let all = judge(&results, &[]);
    assert_eq!(all.len(), GOALS.len());
    let s1 = of(&all, "histo / aggregation by hand");
    assert_eq!(
        (s1.figure.as_str(), s1.verdict.as_str()),
        ("3.00 x", "met without Open MPI aggregate")
    );
    assert_eq!(
        (s1.spread.as_str(), s1.bound.as_str()),
        ("1.00 x to 3.00 x", ">= 1.10 x")
    );
    let share = of(&all, "histo / the same loop without messages");
    assert!(
        share.verdict.contains("no figure of the same loop"),
        "{}",
        share.verdict
    );
    let s6 = of(&all, "histo on one node, P=8");
    assert!(
        s6.verdict
            .contains("no figure of trihop, typed in histo, P=8"),
        "{}",
        s6.verdict
    );
    assert_eq!(s6.figure, "-");
}

#[test]
fn rivals_that_gave_no_figure_are_named_beside_the_verdict() {
    let results = crate::results::tests::ring_sample();
    let all = judge(&results, &["R2".into()]);
    let stream = of(&all, "ring, 8 B stream");
    assert_eq!(
        (stream.figure.as_str(), stream.verdict.as_str()),
        ("6.00 x", "met without Open MPI and UCX")
    );
    let by_bench = judge(&results, &["ring".into()]);
    assert_eq!(by_bench.len(), 1, "{by_bench:?}");
}

#[test]
fn a_word_chooses_goals_or_what_can_be_judged() {
    let results = crate::results::tests::sample();
    assert!(
        judge(&results, &["s2".into()])
            .iter()
            .all(|j| j.goal == "S2")
    );
    let histo = judge(&results, &["histo".into()]);
    assert_eq!(histo.len(), 1, "{histo:?}");
}

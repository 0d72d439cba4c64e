//! Drawings in SVG: curves, bars, and squares for each pair.

use std::fmt::Write;

use super::html::Text;
use crate::look::short;

pub const COLOURS: [&str; 8] = [
    "#1b6ca8", "#c8553d", "#3a7d44", "#7b4b94", "#b8860b", "#2a9d8f", "#8d5524", "#555555",
];

/// Width and height of a drawing with axes, and what is left free for their texts.
pub const WIDTH: f64 = 620.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 64.0;
const BELOW: f64 = 42.0;
pub const EDGE: f64 = 20.0;

/// Most squares of a side: more are too small to see.
pub const MOST_SQUARES: usize = 256;

/// A line through points, with its name.
pub struct Curve {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// From the first power of `base` that is not above a number to the last that is not below.
fn powers(base: f64, low: f64, high: f64) -> Vec<f64> {
    let first = low.log(base).floor() as i32;
    let last = (high.log(base).ceil() as i32).max(first + 1);
    (first..=last).map(|power| base.powi(power)).collect()
}

/// Curves over logarithmic axes; points at 0 are left out, and nothing is drawn where none is left.
pub fn curves(out: &mut String, title: &str, x_name: &str, curves: &[Curve]) {
    let is_seen = |&(x, y): &(f64, f64)| x > 0.0 && y > 0.0 && x.is_finite() && y.is_finite();
    let all = curves.iter().flat_map(|curve| &curve.points);
    let all: Vec<(f64, f64)> = all.copied().filter(is_seen).collect();
    let Some(&first) = all.first() else { return };
    let bounds = |of: fn(&(f64, f64)) -> f64| {
        let all = all.iter().map(of);
        all.fold((of(&first), of(&first)), |(low, high), n| {
            (low.min(n), high.max(n))
        })
    };
    let (x_low, x_high) = bounds(|point| point.0);
    let (y_low, y_high) = bounds(|point| point.1);
    let (xs, ys) = (powers(2.0, x_low, x_high), powers(10.0, y_low, y_high));
    let place = |value: f64, marks: &[f64], from: f64, to: f64| {
        let (low, high) = (marks[0].ln(), marks[marks.len() - 1].ln());
        from + (value.ln() - low) / (high - low) * (to - from)
    };
    let x_at = |x| place(x, &xs, LEFT, WIDTH - EDGE);
    let y_at = |y| place(y, &ys, HEIGHT - BELOW, EDGE);
    begin(out, title, WIDTH, HEIGHT);
    let every = xs.len().div_ceil(12);
    for &x in xs.iter().step_by(every) {
        let at = x_at(x);
        let (top, bottom) = (EDGE, HEIGHT - BELOW);
        let _ = write!(
            out,
            "<line class=g x1='{at:.1}' y1='{top}' x2='{at:.1}' y2='{bottom}'/>\
             <text x='{at:.1}' y='{:.1}' text-anchor='middle'>{}</text>",
            bottom + 16.0,
            if x < 1e5 { x.to_string() } else { short(x) }
        );
    }
    for &y in &ys {
        let at = y_at(y);
        let _ = write!(
            out,
            "<line class=g x1='{LEFT}' y1='{at:.1}' x2='{}' y2='{at:.1}'/>\
             <text x='{}' y='{:.1}' text-anchor='end'>{}</text>",
            WIDTH - EDGE,
            LEFT - 6.0,
            at + 4.0,
            short(y)
        );
    }
    let _ = write!(
        out,
        "<text x='{}' y='{}' text-anchor='middle'>{}</text>",
        (LEFT + WIDTH) / 2.0,
        HEIGHT - 6.0,
        Text(x_name)
    );
    for (number, curve) in curves.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let dashes = if number < COLOURS.len() {
            ""
        } else {
            " stroke-dasharray='6 4'"
        };
        let points: Vec<(f64, f64)> = curve.points.iter().copied().filter(is_seen).collect();
        let line: String = points
            .iter()
            .map(|&(x, y)| format!("{:.1},{:.1} ", x_at(x), y_at(y)))
            .collect();
        let _ = write!(
            out,
            "<polyline fill='none' stroke='{colour}' stroke-width='2'{dashes} points='{}'/>",
            line.trim_end()
        );
        for &(x, y) in &points {
            let _ = write!(
                out,
                "<circle cx='{:.1}' cy='{:.1}' r='3' fill='{colour}'><title>{}: {} at {}</title></circle>",
                x_at(x),
                y_at(y),
                Text(&curve.name),
                short(y),
                short(x)
            );
        }
    }
    out.push_str("</svg>\n<ul class=legend>");
    for (number, curve) in curves.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let _ = write!(out, "<li style='color:{colour}'>{}</li>", Text(&curve.name));
    }
    out.push_str("</ul></figure>\n");
}

/// A bar for each name.
pub fn bars(out: &mut String, title: &str, bars: &[(String, f64)]) {
    let most = bars
        .iter()
        .fold(0.0_f64, |most, (_, count)| most.max(*count));
    if most <= 0.0 {
        return;
    }
    let bar = 16.0;
    let longest = bars.iter().map(|(name, _)| name.chars().count()).max();
    let names = (longest.unwrap_or(0) as f64 * 6.2 + 12.0).clamp(110.0, 300.0);
    begin(out, title, WIDTH, bars.len() as f64 * bar + EDGE);
    for (number, (name, count)) in bars.iter().enumerate() {
        let top = number as f64 * bar + EDGE / 2.0;
        let width = count / most * (WIDTH - names - 70.0);
        let _ = write!(
            out,
            "<text x='{}' y='{:.1}' text-anchor='end'>{}</text>\
             <rect x='{names}' y='{:.1}' width='{width:.1}' height='{:.1}' fill='{}'/>\
             <text x='{:.1}' y='{:.1}'>{}</text>",
            names - 6.0,
            top + 11.0,
            Text(name),
            top,
            bar - 3.0,
            COLOURS[0],
            names + width + 5.0,
            top + 11.0,
            short(*count)
        );
    }
    out.push_str("</svg></figure>\n");
}

/// A square for each pair of a row and a column, darker where there is more.
pub fn squares(out: &mut String, title: &str, names: (&str, &str), rows: &[Vec<f64>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let most = rows
        .iter()
        .flatten()
        .fold(0.0_f64, |most, count| most.max(*count));
    if most <= 0.0 || columns > MOST_SQUARES || rows.len() > MOST_SQUARES {
        return;
    }
    let side = (512.0 / columns.max(rows.len()) as f64).clamp(2.0, 40.0);
    let (left, above) = (40.0, 24.0);
    let (width, height) = (
        left + columns as f64 * side + EDGE,
        above + rows.len() as f64 * side + EDGE,
    );
    begin(out, title, width.max(240.0), height);
    let _ = write!(
        out,
        "<text x='{left}' y='14'>{} &#8594;</text>\
         <text transform='translate(14 {above}) rotate(90)'>{} &#8594;</text>",
        Text(names.1),
        Text(names.0)
    );
    for (row, counts) in rows.iter().enumerate() {
        for (column, count) in counts.iter().enumerate() {
            let share = if *count > 0.0 {
                0.12 + 0.88 * count / most
            } else {
                0.0
            };
            let _ = write!(
                out,
                "<rect x='{:.1}' y='{:.1}' width='{:.1}' height='{:.1}' fill='{}' fill-opacity='{share:.3}' \
                 stroke='#ccc' stroke-width='0.5'><title>{} {row}, {} {column}: {}</title></rect>",
                left + column as f64 * side,
                above + row as f64 * side,
                side,
                side,
                COLOURS[0],
                Text(names.0),
                Text(names.1),
                short(*count)
            );
        }
    }
    out.push_str("</svg></figure>\n");
}

/// Begins a drawing, which its figure ends.
pub fn begin(out: &mut String, title: &str, width: f64, height: f64) {
    let title = Text(title);
    let _ = write!(
        out,
        "<figure><figcaption>{title}</figcaption>\
         <svg role='img' aria-label='{title}' width='{width:.0}' height='{height:.0}' \
         viewBox='0 0 {width:.0} {height:.0}'>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_hold_all_points() {
        assert_eq!(powers(2.0, 8.0, 64.0), [8.0, 16.0, 32.0, 64.0]);
        assert_eq!(powers(10.0, 5.0, 5.0), [1.0, 10.0]);
        assert_eq!(powers(10.0, 10.0, 10.0), [10.0, 100.0]);
    }

    #[test]
    fn what_cannot_be_drawn_is_left_out() {
        let curve = |points| Curve {
            name: "<a>".into(),
            points,
        };
        let mut out = String::new();
        curves(
            &mut out,
            "t",
            "x",
            &[curve(vec![(0.0, 5.0), (1.0, f64::NAN)])],
        );
        bars(&mut out, "t", &[("a".into(), 0.0)]);
        squares(&mut out, "t", ("a", "b"), &[vec![0.0]]);
        squares(
            &mut out,
            "t",
            ("a", "b"),
            &vec![vec![1.0]; MOST_SQUARES + 1],
        );
        assert_eq!(out, "");
        curves(
            &mut out,
            "t",
            "x",
            &[curve(vec![(8.0, 5.0), (0.0, 1.0), (64.0, 500.0)])],
        );
        assert_eq!(out.matches("<circle").count(), 2);
        assert!(out.contains("&lt;a&gt;") && !out.contains("NaN"), "{out}");
    }
}

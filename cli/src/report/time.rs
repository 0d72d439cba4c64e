//! Drawings over time: strips in which something is more or less busy, and curves.

use std::fmt::Write;

use super::chart::{COLOURS, EDGE, WIDTH, begin};
use super::html::Text;
use crate::look::short;

/// Room for names to the left.
const LEFT: f64 = 64.0;

/// Height of a strip, and of the curves.
const STRIP: f64 = 9.0;
const HEIGHT: f64 = 180.0;
const BELOW: f64 = 34.0;

/// Darknesses that are told apart, so that neighbours that are alike are drawn as one.
const DARKNESSES: f64 = 8.0;

/// Equal pieces of a time.
#[derive(Debug, Clone, Copy)]
pub struct Pieces {
    /// When the first begins, in microseconds.
    pub begin_us: f64,
    /// How long each is.
    pub each_us: f64,
    /// How many there are.
    pub count: usize,
}

impl Pieces {
    /// From `begin_us` to `end_us`.
    pub fn of(begin_us: f64, end_us: f64, count: usize) -> Self {
        let each_us = ((end_us - begin_us) / count as f64).max(1e-3);
        Self {
            begin_us,
            each_us,
            count,
        }
    }

    /// The one that a moment is in.
    pub fn at(&self, us: f64) -> usize {
        (((us - self.begin_us) / self.each_us) as usize).min(self.count - 1)
    }

    /// Adds a span to what the pieces have of it, as shares of each.
    pub fn add(&self, shares: &mut [f64], begin_us: f64, end_us: f64) {
        let (first, last) = (self.at(begin_us), self.at(end_us));
        for (piece, share) in shares.iter_mut().enumerate().take(last + 1).skip(first) {
            let begins = self.begin_us + piece as f64 * self.each_us;
            let inside = end_us.min(begins + self.each_us) - begin_us.max(begins);
            *share += inside.max(0.0) / self.each_us;
        }
    }
}

/// A strip: whose it is, in which colour, and the share of each piece, from 0 to 1.
pub struct Strip {
    pub name: String,
    pub colour: &'static str,
    pub shares: Vec<f64>,
    /// Whether it begins a group, which has a gap above.
    pub is_first: bool,
}

/// Strips below each other, over the time of the pieces.
pub fn strips(out: &mut String, title: &str, pieces: Pieces, strips: &[Strip]) {
    let gaps = strips.iter().filter(|strip| strip.is_first).count();
    let height = strips.len() as f64 * STRIP + gaps as f64 * 4.0;
    begin(out, title, WIDTH, height + EDGE + BELOW);
    axis(out, pieces, EDGE / 2.0, height + EDGE);
    let width = (WIDTH - EDGE - LEFT) / pieces.count as f64;
    let mut top = EDGE / 2.0;
    for strip in strips {
        if strip.is_first {
            top += 4.0;
            let _ = write!(
                out,
                "<text x='{}' y='{:.1}' text-anchor='end'>{}</text>",
                LEFT - 6.0,
                top + STRIP,
                Text(&strip.name)
            );
        }
        let darkness = |share: &f64| (share.min(1.0) * DARKNESSES).ceil();
        let mut piece = 0;
        for alike in strip.shares.chunk_by(|a, b| darkness(a) == darkness(b)) {
            if darkness(&alike[0]) > 0.0 {
                let _ = write!(
                    out,
                    "<rect x='{:.1}' y='{top:.1}' width='{:.1}' height='{:.1}' fill='{}' fill-opacity='{:.2}'/>",
                    LEFT + piece as f64 * width,
                    alike.len() as f64 * width,
                    STRIP - 1.0,
                    strip.colour,
                    darkness(&alike[0]) / DARKNESSES
                );
            }
            piece += alike.len();
        }
        top += STRIP;
    }
    out.push_str("</svg></figure>\n");
}

/// Curves of what happened in each piece, per second, from 0 up.
pub fn rates(out: &mut String, title: &str, pieces: Pieces, curves: &[(&str, Vec<f64>)]) {
    let seconds = pieces.each_us / 1e6;
    let all = curves.iter().flat_map(|(_, counts)| counts);
    let most = all.fold(0.0_f64, |most, count| most.max(count / seconds));
    if most <= 0.0 {
        return;
    }
    begin(out, title, WIDTH, HEIGHT + BELOW);
    axis(out, pieces, EDGE, HEIGHT);
    for (share, rate) in [(0.0, 0.0), (0.5, most / 2.0), (1.0, most)] {
        let y = HEIGHT - share * (HEIGHT - EDGE);
        let _ = write!(
            out,
            "<line class=g x1='{LEFT}' y1='{y:.1}' x2='{}' y2='{y:.1}'/>\
             <text x='{}' y='{:.1}' text-anchor='end'>{}</text>",
            WIDTH - EDGE,
            LEFT - 6.0,
            y + 4.0,
            short(rate)
        );
    }
    let width = (WIDTH - EDGE - LEFT) / pieces.count as f64;
    for (number, (_, counts)) in curves.iter().enumerate() {
        let point = |(piece, count): (usize, &f64)| {
            let y = HEIGHT - count / seconds / most * (HEIGHT - EDGE);
            format!("{:.1},{y:.1} ", LEFT + (piece as f64 + 0.5) * width)
        };
        let points: String = counts.iter().enumerate().map(point).collect();
        let _ = write!(
            out,
            "<polyline fill='none' stroke='{}' stroke-width='1.5' points='{}'/>",
            COLOURS[number % COLOURS.len()],
            points.trim_end()
        );
    }
    out.push_str("</svg>\n");
    let names = curves.iter().enumerate();
    legend(
        out,
        names.map(|(number, (name, _))| (COLOURS[number % COLOURS.len()], *name)),
    );
    out.push_str("</figure>\n");
}

/// What colours stand for.
pub fn legend<'a>(out: &mut String, names: impl Iterator<Item = (&'static str, &'a str)>) {
    out.push_str("<ul class=legend>");
    for (colour, name) in names {
        let _ = write!(out, "<li style='color:{colour}'>{}</li>", Text(name));
    }
    out.push_str("</ul>");
}

/// Milliseconds since the begin, below what stands between `top` and `bottom`.
fn axis(out: &mut String, pieces: Pieces, top: f64, bottom: f64) {
    let all_ms = pieces.each_us * pieces.count as f64 / 1e3;
    for part in 0..=5 {
        let x = LEFT + (WIDTH - EDGE - LEFT) * f64::from(part) / 5.0;
        let anchor = if part < 5 { "middle" } else { "end" };
        let _ = write!(
            out,
            "<line class=g x1='{x:.1}' y1='{top}' x2='{x:.1}' y2='{bottom}'/>\
             <text x='{x:.1}' y='{:.1}' text-anchor='{anchor}'>{:.1} ms</text>",
            bottom + 16.0,
            all_ms * f64::from(part) / 5.0
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_shared_among_pieces() {
        let pieces = Pieces::of(100.0, 140.0, 4);
        let mut shares = vec![0.0; 4];
        pieces.add(&mut shares, 105.0, 125.0);
        assert_eq!(shares, [0.5, 1.0, 0.5, 0.0]);
        pieces.add(&mut shares, 139.0, 140.0);
        assert_eq!(shares[3], 0.1);
        // A time of nothing is no division by nothing.
        assert_eq!(Pieces::of(5.0, 5.0, 4).at(5.0), 0);
    }

    #[test]
    fn pieces_that_are_alike_are_one_rectangle() {
        let strip = |shares: &[f64]| Strip {
            name: "<r>".into(),
            colour: COLOURS[0],
            shares: shares.to_vec(),
            is_first: true,
        };
        let pieces = Pieces::of(0.0, 6.0, 6);
        let mut out = String::new();
        strips(
            &mut out,
            "t",
            pieces,
            &[strip(&[0.0, 0.5, 0.5, 1.0, 9.0, 0.0])],
        );
        assert_eq!(out.matches("<rect").count(), 2, "{out}");
        assert!(out.contains("&lt;r&gt;"));
        let mut out = String::new();
        rates(&mut out, "t", pieces, &[("nothing", vec![0.0; 6])]);
        assert_eq!(out, "");
    }
}

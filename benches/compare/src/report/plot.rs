//! Plots as SVG: lines over message sizes for pairs, bars for many-to-many works.

use std::collections::BTreeMap;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::results::Case;
use crate::rows::Measure;
use crate::statistics::Spread;

/// Width of every plot in pixels.
const WIDTH: u32 = 900;

/// Height of a plot of lines, and of one bar.
const LINES_HEIGHT: u32 = 420;
const BAR_HEIGHT: u32 = 26;

/// Height of a title, and of the axis below.
const FRAME_HEIGHT: u32 = 90;

/// Room for names left of bars.
const NAMES_WIDTH: u32 = 250;

/// One plot, or why it could not be drawn.
type Picture = Result<String, String>;

/// Everything that there are figures for.
pub(super) fn all(cases: &[&Case]) -> Vec<Picture> {
    let mut pictures = Vec::new();
    for (bench, measure, title) in [
        (
            "ring",
            Measure::LatencyUs,
            "Two processes of one node: one-way latency in us",
        ),
        (
            "ring",
            Measure::Rate,
            "Two processes of one node: messages per second",
        ),
        ("threads", Measure::Rate, "Two threads: messages per second"),
        (
            "p2p",
            Measure::LatencyUs,
            "Two nodes over loopback: one-way latency in us",
        ),
        (
            "p2p",
            Measure::Bandwidth,
            "Two nodes over loopback: bytes per second",
        ),
    ] {
        let lines = by_size(cases, bench, measure);
        if lines.values().any(|points| points.len() > 1) {
            pictures.push(draw((WIDTH, LINES_HEIGHT), |area| {
                size_lines(area, title, &lines)
            }));
        }
    }
    for case in cases {
        let measure = match case.work.bench {
            "histo" | "ig" => Measure::Rate,
            "a2a" => Measure::Bandwidth,
            _ => continue,
        };
        let bars: Vec<(String, bool, Spread)> = case
            .systems
            .iter()
            .filter_map(|s| Some((s.name.clone(), s.ours, s.spread(measure)?)))
            .collect();
        if !bars.is_empty() {
            let title = format!("{}: {}", case.work.text(), measure.text());
            let height = FRAME_HEIGHT + BAR_HEIGHT * bars.len() as u32;
            pictures.push(draw((WIDTH, height), |area| {
                systems_bars(area, &title, measure, &bars)
            }));
        }
    }
    pictures
}

/// Points of each system over the sizes.
fn by_size(cases: &[&Case], bench: &str, measure: Measure) -> BTreeMap<String, Vec<(f64, f64)>> {
    let mut lines: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for case in cases.iter().filter(|case| case.work.bench == bench) {
        for system in &case.systems {
            if let Some(spread) = system.spread(measure) {
                lines
                    .entry(system.name.clone())
                    .or_default()
                    .push((case.work.size as f64, spread.median));
            }
        }
    }
    lines
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn draw<E: std::fmt::Display>(
    size: (u32, u32),
    with: impl FnOnce(&Area<'_>) -> Result<(), E>,
) -> Picture {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&WHITE).map_err(|error| error.to_string())?;
        with(&area).map_err(|error| error.to_string())?;
        area.present().map_err(|error| error.to_string())?;
    }
    // Inside a page, the name of the namespace is neither needed nor wanted: nothing leads outside.
    // Smaller in width than a window, it shrinks by its viewBox.
    Ok(svg.replace(" xmlns=\"http://www.w3.org/2000/svg\"", ""))
}

type Failure<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

fn size_lines<'a>(
    area: &Area<'a>,
    title: &str,
    lines: &BTreeMap<String, Vec<(f64, f64)>>,
) -> Result<(), Failure<'a>> {
    let points = || lines.values().flatten();
    let range = |of: fn(&(f64, f64)) -> f64| {
        let least = points().map(of).fold(f64::INFINITY, f64::min);
        let most = points().map(of).fold(f64::NEG_INFINITY, f64::max);
        least / 1.3..most * 1.3
    };
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(80)
        .build_cartesian_2d(range(|p| p.0).log_scale(), range(|p| p.1).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc("message size in bytes")
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| short(*y))
        .draw()?;
    for (index, (name, points)) in lines.iter().enumerate() {
        let color = if name.starts_with("trihop") {
            RED.to_rgba()
        } else {
            Palette99::pick(index + 1).to_rgba()
        };
        let style = ShapeStyle {
            color,
            filled: true,
            stroke_width: if name.starts_with("trihop") { 3 } else { 2 },
        };
        let drawn =
            chart.draw_series(LineSeries::new(points.iter().copied(), style).point_size(3))?;
        drawn
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.2))
        .draw()
}

fn systems_bars<'a>(
    area: &Area<'a>,
    title: &str,
    measure: Measure,
    bars: &[(String, bool, Spread)],
) -> Result<(), Failure<'a>> {
    let most = bars
        .iter()
        .map(|(_, _, spread)| spread.max)
        .fold(0.0, f64::max)
        * 1.25;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .margin_left(NAMES_WIDTH)
        .x_label_area_size(30)
        .build_cartesian_2d(0.0..most, 0.0..bars.len() as f64)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .x_label_formatter(&|x| short(*x))
        .draw()?;
    for (index, (name, ours, spread)) in bars.iter().enumerate() {
        let middle = bars.len() as f64 - index as f64 - 0.5;
        let color = if *ours { RED.mix(0.75) } else { BLUE.mix(0.45) };
        let bar = Rectangle::new(
            [(0.0, middle - 0.32), (spread.median, middle + 0.32)],
            color.filled(),
        );
        let range = PathElement::new(
            [(spread.min, middle), (spread.max, middle)],
            BLACK.stroke_width(2),
        );
        chart.draw_series([bar])?;
        chart.draw_series([range])?;
        let font = ("sans-serif", 13).into_font();
        let value = Text::new(
            measure.show(spread.median),
            (spread.max + most * 0.01, middle + 0.2),
            font.clone(),
        );
        chart.draw_series([value])?;
        let (_, y) = chart.backend_coord(&(0.0, middle));
        area.draw(&Text::new(name.clone(), (16, y - 7), font))?;
    }
    Ok(())
}

/// A number for an axis.
fn short(value: f64) -> String {
    match value {
        v if v >= 1e9 => format!("{:.0} G", v / 1e9),
        v if v >= 1e6 => format!("{:.0} M", v / 1e6),
        v if v >= 1e3 => format!("{:.0} k", v / 1e3),
        v if v >= 10.0 => format!("{v:.0}"),
        v => format!("{v:.2}"),
    }
}

//! Tables of figures: each under its name, to the right, in lines that fit a terminal.

use super::Error;
use crate::look::short;
use crate::output::{self, COLUMNS};

/// Name of a column, how wide it is, and what stands in it.
pub type Cell = (&'static str, usize, String);

/// Prints a line of a table; `head` also prints the names above it.
///
/// # Errors
/// Standard output's.
pub fn print(cells: &[Cell], head: bool) -> Result<(), Error> {
    if head {
        output::line(format_args!("{}", names(cells)))?;
    }
    let figures = cells
        .iter()
        .map(|(_, width, figure)| format!("{:>width$}", fitted(figure, *width)));
    let figures = figures.collect::<Vec<_>>().join(" ");
    Ok(output::line(format_args!("{figures}"))?)
}

/// A number for a column of a width: one that is too long for it has fewer decimals, or else a
/// unit.
pub fn fitted(figure: &str, width: usize) -> String {
    if figure.len() <= width {
        return figure.to_owned();
    }
    let Ok(number) = figure.parse::<f64>() else {
        return figure.to_owned();
    };
    let decimals = figure
        .split_once('.')
        .map_or(0, |(_, decimals)| decimals.len());
    let mut fewer = (0..decimals)
        .rev()
        .map(|decimals| format!("{number:.decimals$}"));
    fewer
        .find(|text| text.len() <= width)
        .unwrap_or_else(|| short(number))
}

/// The names, behind a `#`, as those who draw such tables expect.
fn names(cells: &[Cell]) -> String {
    let names = cells
        .iter()
        .map(|(name, width, _)| format!("{name:>width$}"));
    let names = names.collect::<Vec<_>>().join(" ");
    debug_assert!(names.len() <= COLUMNS, "{names}");
    debug_assert!(names.starts_with(' '), "{names}");
    names.replacen(' ', "#", 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_numbers_fit_their_columns() {
        let fitted = ["12.5", "1234.567", "1234567.25", "5577000000", "segments*"]
            .map(|figure| super::fitted(figure, 6));
        assert_eq!(fitted, ["12.5", "1234.6", "1.23M", "5.58G", "segments*"]);
    }

    #[test]
    fn names_stand_above_their_figures() {
        let cells = [("Size", 6, "8".to_owned()), ("Rate", 5, "1.0".to_owned())];
        assert_eq!(names(&cells), "# Size  Rate");
    }
}

//! Results in files: a JSON object on each line, or one over several lines.

use std::path::Path;

use serde_json::{Map, Value};

use super::ReportError;

/// A result, or an event of a trace.
pub type Object = Map<String, Value>;

/// What a file has.
#[derive(Debug)]
pub enum Found {
    /// What commands print with `--json`.
    Results(Vec<Object>),
    /// What `TRIHOP_TRACE` has written.
    Trace(Vec<Object>),
}

/// The objects of a file. `trihop run` puts the rank before each line; tables and comments are no
/// results.
///
/// # Errors
/// [`ReportError::Line`].
pub fn objects(path: &Path, text: &str) -> Result<Found, ReportError> {
    if let Ok(Value::Object(object)) = serde_json::from_str(text) {
        return Ok(Found::Results(vec![object]));
    }
    let inside = text.trim_start().strip_prefix('[').map(str::trim_start);
    if inside.is_some_and(|inside| inside.is_empty() || inside.starts_with(['{', ']'])) {
        return events(path, text).map(Found::Trace);
    }
    let mut objects = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = without_rank(line.trim());
        if !line.is_empty() {
            objects.push(object(path, number, line)?);
        }
    }
    Ok(Found::Results(objects))
}

/// The events of a trace: an array, also of a rank that was killed, whose file lacks its end and
/// may end inside a line.
fn events(path: &Path, text: &str) -> Result<Vec<Object>, ReportError> {
    if let Ok(events) = serde_json::from_str(text) {
        return Ok(events);
    }
    let mut events = Vec::new();
    let last = text.lines().count();
    for (number, line) in (1..).zip(text.lines()) {
        let event = line.trim().trim_start_matches('[').trim_end_matches(',');
        if event.is_empty() || event == "]" {
            continue;
        }
        match object(path, number, event) {
            Err(_) if number == last => {}
            event => events.push(event?),
        }
    }
    Ok(events)
}

fn object(path: &Path, line: usize, text: &str) -> Result<Object, ReportError> {
    serde_json::from_str(text).map_err(|error| {
        let text = error.to_string();
        let cut = text.rfind(" at line ").unwrap_or(text.len());
        ReportError::Line {
            path: path.to_owned(),
            line,
            why: text[..cut].to_owned(),
        }
    })
}

/// Without the `[3] ` of a launcher.
fn without_rank(line: &str) -> &str {
    let behind = line
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("] "));
    match behind {
        Some((rank, rest)) if !rank.is_empty() && rank.bytes().all(|b| b.is_ascii_digit()) => rest,
        _ => line,
    }
}

/// A field as text for people.
pub fn text(object: &Object, name: &str) -> String {
    match object.get(name) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => match number.as_u64() {
            Some(whole) => whole.to_string(),
            None => significant(number.as_f64().unwrap_or(0.0)),
        },
        Some(Value::Null) | None => "-".to_owned(),
        Some(other) => other.to_string(),
    }
}

/// A field as a number, where it is one.
pub fn number(object: &Object, name: &str) -> Option<f64> {
    object.get(name)?.as_f64()
}

/// A number with four digits that count.
pub fn significant(number: f64) -> String {
    if number == 0.0 || !number.is_finite() {
        return number.to_string();
    }
    let whole_digits = number.abs().log10().floor() as i32 + 1;
    let decimals = (4 - whole_digits).clamp(0, 9) as usize;
    format!("{number:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_lines_with_or_without_a_rank_or_a_whole_file() {
        let path = Path::new("f");
        let objects = |path, text| match objects(path, text) {
            Ok(Found::Results(objects)) => Ok(objects),
            Ok(Found::Trace(_)) => panic!("no trace"),
            Err(why) => Err(why),
        };
        let lines = "{\"a\":1}\n\n[12] {\"a\":2}\n";
        let found = objects(path, lines).unwrap();
        assert_eq!(
            (number(&found[0], "a"), number(&found[1], "a")),
            (Some(1.0), Some(2.0))
        );
        assert_eq!(objects(path, "{\n\"a\":\n3}").unwrap().len(), 1);
        let why = objects(path, "{\"a\":1}\n[x] {}").unwrap_err().to_string();
        assert!(
            why.contains("f, line 2") && !why.contains("at line"),
            "{why}"
        );
        assert!(objects(path, "[1]\n").is_err(), "an array is no result");
    }

    #[test]
    fn a_trace_may_lack_its_end() {
        let path = Path::new("f");
        let count = |text| match objects(path, text) {
            Ok(Found::Trace(events)) => events.len(),
            other => panic!("{other:?}"),
        };
        assert_eq!(count("[\n{\"ph\":\"X\"},\n{\"ph\":\"I\"}\n]\n"), 2);
        assert_eq!(count("[\n{\"ph\":\"X\"},\n{\"ph\":\"I\"},\n"), 2);
        assert_eq!(count("[\n{\"ph\":\"X\"},\n{\"ph\":\"I"), 1);
        assert_eq!(count("[{\"ph\":\"X\"}, {\"ph\":\"I\"}]"), 2);
        assert_eq!(count("[\n"), 0);
        let why = objects(path, "[\n{\"ph\":\n{\"ph\":\"I\"}\n]").unwrap_err();
        assert!(why.to_string().contains("f, line 2"), "{why}");
    }

    #[test]
    fn numbers_have_four_digits() {
        let texts = [
            (333_050.49, "333050"),
            (4.303_19, "4.303"),
            (0.001_234_56, "0.001235"),
            (0.0, "0"),
        ];
        for (number, text) in texts {
            assert_eq!(significant(number), text);
        }
    }
}

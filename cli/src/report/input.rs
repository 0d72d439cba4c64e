//! Results in files: a JSON object on each line, or one over several lines.

use std::path::Path;

use serde_json::{Map, Value};

use super::ReportError;

/// A result.
pub type Object = Map<String, Value>;

/// The objects of a file. `trihop run` puts the rank before each line; tables and comments are no
/// results.
///
/// # Errors
/// [`ReportError::Line`].
pub fn objects(path: &Path, text: &str) -> Result<Vec<Object>, ReportError> {
    if let Ok(Value::Object(object)) = serde_json::from_str(text) {
        return Ok(vec![object]);
    }
    let mut objects = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = without_rank(line.trim());
        if line.is_empty() {
            continue;
        }
        objects.push(serde_json::from_str(line).map_err(|error| {
            let text = error.to_string();
            let cut = text.rfind(" at line ").unwrap_or(text.len());
            ReportError::Line {
                path: path.to_owned(),
                line: number,
                why: text[..cut].to_owned(),
            }
        })?);
    }
    Ok(objects)
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

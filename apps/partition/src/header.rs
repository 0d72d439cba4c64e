//! The header of tables: the same in all files.

use trihop::log::Escaped;

use super::record::Dialect;
use super::route::without_bom;
use super::split::without_line_end;

/// The header of all files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Column names, unquoted.
    pub names: Vec<Vec<u8>>,
    /// As it stands in the first file, with its line end, without byte order mark.
    pub line: Vec<u8>,
}

impl Header {
    /// Takes the first record of a file.
    ///
    /// # Errors
    /// A sentence about a blank or torn header.
    pub fn parse(record: &[u8], dialect: Dialect) -> Result<Self, String> {
        let line = without_bom(record);
        let content = without_line_end(line);
        if content.is_empty() {
            return Err("the header line is blank".to_owned());
        }
        let names = dialect
            .fields(content)
            .map_err(|flaw| format!("header: {flaw}"))?;
        let mut line = line.to_vec();
        if !line.ends_with(b"\n") {
            line.truncate(content.len());
            line.push(b'\n');
        }
        Ok(Self { names, line })
    }

    /// Number (from 0) of the column that a user means: the one of that name, else the one of that
    /// number.
    ///
    /// # Errors
    /// A sentence that lists the columns.
    pub fn column(&self, meant: &str) -> Result<usize, String> {
        let mut named =
            (0..self.names.len()).filter(|&column| self.names[column] == meant.as_bytes());
        match (named.next(), named.next()) {
            (Some(column), None) => return Ok(column),
            (Some(first), Some(second)) => {
                return Err(format!(
                    "columns {} and {} are both named `{meant}`; give the number",
                    first + 1,
                    second + 1
                ));
            }
            (None, _) => {}
        }
        match meant.parse::<usize>() {
            Ok(number) if (1..=self.names.len()).contains(&number) => Ok(number - 1),
            Ok(number) => Err(format!(
                "there is no column {number}: the header has {}, {}",
                self.names.len(),
                self.listed()
            )),
            Err(_) => Err(format!(
                "there is no column `{meant}`; the header has {}",
                self.listed()
            )),
        }
    }

    fn listed(&self) -> String {
        let names: Vec<_> = self
            .names
            .iter()
            .take(40)
            .map(|name| Escaped(name).to_string())
            .collect();
        format!(
            "{}{}",
            names.join(", "),
            if self.names.len() > 40 { ", ..." } else { "" }
        )
    }

    /// How `other`, the header of another file, differs from this one of `first`.
    pub fn difference(&self, other: &Self, first: &str) -> Option<String> {
        let text = |name: &[u8]| Escaped(name).to_string();
        for (index, (ours, theirs)) in self.names.iter().zip(&other.names).enumerate() {
            if ours != theirs {
                let (number, theirs, ours) = (index + 1, text(theirs), text(ours));
                return Some(format!(
                    "header differs: column {number} is `{theirs}`, in {first} it is `{ours}`"
                ));
            }
        }
        if self.names.len() == other.names.len() {
            return None;
        }
        let (found, expected) = (other.names.len(), self.names.len());
        let (which, name) = if found < expected {
            ("missing", text(&self.names[found]))
        } else {
            ("additional", text(&other.names[expected]))
        };
        Some(format!(
            "header differs: {found} columns, {expected} in {first}; `{name}` is {which}"
        ))
    }
}

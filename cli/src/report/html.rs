//! Text in a page of HTML.

use std::fmt::{self, Write};

/// Text as it may stand anywhere in a page, in attributes too.
pub struct Text<T>(pub T);

impl<T: fmt::Display> fmt::Display for Text<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.to_string().chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c if c.is_control() => f.write_str("\u{fffd}")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// A table with a head; cells that are numbers stand to the right.
pub fn table(out: &mut String, head: &[&str], rows: &[Vec<String>]) {
    out.push_str("<table><thead><tr>");
    for name in head {
        let _ = write!(out, "<th>{}</th>", Text(name));
    }
    out.push_str("</tr></thead><tbody>\n");
    for row in rows {
        out.push_str("<tr>");
        for cell in row {
            let is_number = cell.starts_with(|c: char| c.is_ascii_digit() || c == '-');
            let class = if is_number { " class=n" } else { "" };
            let _ = write!(out, "<td{class}>{}</td>", Text(cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_is_no_markup() {
        let text = Text("<a href=\"x\">'&\u{7}").to_string();
        assert_eq!(text, "&lt;a href=&quot;x&quot;&gt;&#39;&amp;\u{fffd}");
        let mut out = String::new();
        table(&mut out, &["<"], &[vec!["1".into(), "<b>".into()]]);
        assert!(out.contains("<th>&lt;</th>") && out.contains("<td class=n>1</td><td>&lt;b&gt;"));
    }
}

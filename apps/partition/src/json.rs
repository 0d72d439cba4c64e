//! The key of a JSON record, found without building the record in memory.

use std::borrow::Cow;
use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::value::RawValue;

/// Where the key of a JSON record is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// As given on the command line.
    text: String,
    /// Member names, or positions in arrays where `in_arrays`.
    steps: Vec<String>,
    in_arrays: bool,
}

/// A key as it is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key<'r> {
    /// Its text.
    pub bytes: Cow<'r, [u8]>,
    /// It is JSON's `null`, not a string of that text.
    pub is_null: bool,
}

impl Path {
    /// A JSON pointer (RFC 6901) if `text` starts with `/`, else the name of a top-level member.
    ///
    /// # Errors
    /// A sentence about a bad escape.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(pointer) = text.strip_prefix('/') else {
            return Ok(Self {
                text: text.to_owned(),
                steps: vec![text.to_owned()],
                in_arrays: false,
            });
        };
        let mut steps = Vec::new();
        for step in pointer.split('/') {
            let bad = step.replace("~0", "").replace("~1", "").contains('~');
            if bad {
                return Err(format!(
                    "{text}: `~` in a JSON pointer is followed by 0 or 1"
                ));
            }
            steps.push(step.replace("~1", "/").replace("~0", "~"));
        }
        Ok(Self {
            text: text.to_owned(),
            steps,
            in_arrays: true,
        })
    }

    /// The key in `record`: a string's text without escapes, or a number, `true`, `false`, `null` as
    /// it stands.
    ///
    /// Of equal member names the last counts.
    ///
    /// # Errors
    /// A sentence about what is no JSON, missing, or no key.
    pub fn key<'r>(&self, record: &'r [u8]) -> Result<Key<'r>, String> {
        let mut found: Option<&'r RawValue> = None;
        let mut reader = serde_json::Deserializer::from_slice(record);
        let walk = Walk {
            steps: &self.steps,
            in_arrays: self.in_arrays,
            top: true,
            found: &mut found,
        };
        walk.deserialize(&mut reader)
            .and_then(|()| reader.end())
            .map_err(|error| format!("not a JSON record: {}", without_line(&error)))?;
        let Some(value) = found else {
            return Err(format!("the record has no `{}`", self.text));
        };
        let bytes = match value.get().as_bytes() {
            [b'"', plain @ .., b'"'] if !plain.contains(&b'\\') => Ok(Cow::Borrowed(plain)),
            [b'"', ..] => serde_json::from_str::<String>(value.get())
                .map(|text| Cow::Owned(text.into_bytes()))
                .map_err(|error| {
                    format!("`{}` is not a string: {}", self.text, without_line(&error))
                }),
            [b'{', ..] => Err(format!(
                "`{}` is an object, which is no key; point into it with /{0}/NAME",
                self.text
            )),
            [b'[', ..] => Err(format!("`{}` is an array, which is no key", self.text)),
            other => Ok(Cow::Borrowed(other)),
        }?;
        let is_null = value.get() == "null";
        Ok(Key { bytes, is_null })
    }
}

/// serde_json's text; its "line 1" would be taken for the file's.
fn without_line(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let cut = text.rfind(" at line ").unwrap_or(text.len());
    format!("{} (column {})", &text[..cut], error.column())
}

/// Walks down `steps`, checks everything else for being JSON, and keeps the value at the end of the
/// path.
struct Walk<'p, 'f, 'r> {
    steps: &'p [String],
    in_arrays: bool,
    top: bool,
    found: &'f mut Option<&'r RawValue>,
}

impl<'r> DeserializeSeed<'r> for Walk<'_, '_, 'r> {
    type Value = ();

    fn deserialize<D: Deserializer<'r>>(self, reader: D) -> Result<(), D::Error> {
        if self.steps.is_empty() {
            *self.found = Some(<&RawValue as serde::Deserialize>::deserialize(reader)?);
            return Ok(());
        }
        reader.deserialize_any(self)
    }
}

impl<'r> Walk<'_, '_, 'r> {
    fn scalar<E: serde::de::Error>(self) -> Result<(), E> {
        if self.top {
            Err(E::custom("an object is expected"))
        } else {
            Ok(())
        }
    }

    fn step<'s>(&'s mut self) -> Walk<'s, 's, 'r> {
        Walk {
            steps: &self.steps[1..],
            in_arrays: self.in_arrays,
            top: false,
            found: self.found,
        }
    }
}

impl<'r> Visitor<'r> for Walk<'_, '_, 'r> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON record")
    }

    fn visit_map<A: MapAccess<'r>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(is_step) = map.next_key_seed(NameIs(&self.steps[0]))? {
            if is_step {
                *self.found = None;
                map.next_value_seed(self.step())?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'r>>(mut self, mut sequence: A) -> Result<(), A::Error> {
        if self.top && !self.in_arrays {
            return Err(A::Error::custom("an object is expected, not an array"));
        }
        let position = self.steps[0]
            .parse::<usize>()
            .ok()
            .filter(|_| self.in_arrays);
        for index in 0.. {
            let more = if Some(index) == position {
                sequence.next_element_seed(self.step())?.is_some()
            } else {
                sequence.next_element::<IgnoredAny>()?.is_some()
            };
            if !more {
                break;
            }
        }
        Ok(())
    }

    fn visit_bool<E: serde::de::Error>(self, _: bool) -> Result<(), E> {
        self.scalar()
    }

    fn visit_i64<E: serde::de::Error>(self, _: i64) -> Result<(), E> {
        self.scalar()
    }

    fn visit_u64<E: serde::de::Error>(self, _: u64) -> Result<(), E> {
        self.scalar()
    }

    fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<(), E> {
        self.scalar()
    }

    fn visit_str<E: serde::de::Error>(self, _: &str) -> Result<(), E> {
        self.scalar()
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        self.scalar()
    }
}

/// Reads a member name and tells whether it is this one.
struct NameIs<'p>(&'p str);

impl<'r> DeserializeSeed<'r> for NameIs<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'r>>(self, reader: D) -> Result<bool, D::Error> {
        reader.deserialize_identifier(self)
    }
}

impl Visitor<'_> for NameIs<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a member name")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<bool, E> {
        Ok(name == self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(path: &str, record: &str) -> Result<String, String> {
        let path = Path::parse(path)?;
        path.key(record.as_bytes())
            .map(|key| String::from_utf8_lossy(&key.bytes).into_owned())
    }

    #[test]
    fn keys_by_name_and_pointer() {
        assert_eq!(key("id", r#"{"x":{"id":2},"id": 17 }"#).unwrap(), "17");
        assert_eq!(key("id", r#"{"id":"a\u00e9\n"}"#).unwrap(), "aé\n");
        assert_eq!(key("id", r#"{"\u0069d":true}"#).unwrap(), "true");
        assert_eq!(key("id", r#"{"id":1.50}"#).unwrap(), "1.50");
        assert_eq!(key("id", r#"{"id":null}"#).unwrap(), "null");
        assert_eq!(key("/user/id", r#"{"user":{"id":"u"}}"#).unwrap(), "u");
        assert_eq!(key("/a/1", r#"{"a":[5,6,7]}"#).unwrap(), "6");
        assert_eq!(key("/a~1b/m~0n", r#"{"a/b":{"m~n":"x"}}"#).unwrap(), "x");
        assert_eq!(key("id", r#"{"id":1,"id":2}"#).unwrap(), "2");
        assert_eq!(key("/1", r#"[1,"two"]"#).unwrap(), "two");
    }

    #[test]
    fn what_is_no_key_is_told() {
        assert!(key("id", r#"{"x":1}"#).unwrap_err().contains("no `id`"));
        assert!(key("/a/b", r#"{"a":1}"#).unwrap_err().contains("no `/a/b`"));
        assert!(
            key("id", r#"{"id":{}}"#)
                .unwrap_err()
                .contains("is an object")
        );
        assert!(
            key("id", r#"{"id":[]}"#)
                .unwrap_err()
                .contains("is an array")
        );
        assert!(
            key("id", r#"[1]"#)
                .unwrap_err()
                .contains("not a JSON record")
        );
        assert!(
            key("id", "7")
                .unwrap_err()
                .contains("an object is expected")
        );
        assert!(key("id", r#"{"id":1} x"#).unwrap_err().contains("trailing"));
        assert!(
            key("id", r#"{"id":1"#)
                .unwrap_err()
                .contains("not a JSON record")
        );
        assert!(key("id", "{\"id\":\"\u{1}\"}").is_err());
        assert!(Path::parse("/a~2").is_err());
    }
}

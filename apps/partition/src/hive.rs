//! Names of directories for values, `KEY=value`, as Hive, Spark, DuckDB and Arrow read them.

/// Stands for a value that is empty or null.
const EMPTY: &str = "__HIVE_DEFAULT_PARTITION__";

/// Longest name that file systems take, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// Appends `KEY=value` to `path`, behind a slash unless it is empty. What file systems or readers
/// could take for something else is percent-encoded, and so are bytes that are no UTF-8.
pub fn push(path: &mut Vec<u8>, key: &[u8], value: &[u8]) -> Result<(), TooLong> {
    if !path.is_empty() {
        path.push(b'/');
    }
    let start = path.len();
    escape(path, key);
    path.push(b'=');
    if value.is_empty() {
        path.extend_from_slice(EMPTY.as_bytes());
    } else {
        escape(path, value);
    }
    match path.len() - start {
        length if length > NAME_BYTES_MAX => Err(TooLong(length)),
        _ => Ok(()),
    }
}

/// Length of a name that no file system takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong(pub usize);

fn escape(path: &mut Vec<u8>, text: &[u8]) {
    for chunk in text.utf8_chunks() {
        for byte in chunk.valid().bytes() {
            let special = byte.is_ascii_control() || b"\"#%'*/:=?\\{}[]^".contains(&byte);
            push_byte(path, byte, special);
        }
        for &byte in chunk.invalid() {
            push_byte(path, byte, true);
        }
    }
}

fn push_byte(path: &mut Vec<u8>, byte: u8, encoded: bool) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    if encoded {
        let (high, low) = (byte >> 4, byte & 15);
        path.extend_from_slice(&[b'%', DIGITS[high as usize], DIGITS[low as usize]]);
    } else {
        path.push(byte);
    }
}

/// Whether a directory may be one of ours.
pub fn is_name(name: &[u8]) -> bool {
    name.contains(&b'=')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(pairs: &[(&[u8], &[u8])]) -> Result<String, TooLong> {
        let mut path = Vec::new();
        for (key, value) in pairs {
            push(&mut path, key, value)?;
        }
        Ok(String::from_utf8(path).unwrap())
    }

    #[test]
    fn values_become_names() {
        assert_eq!(path(&[(b"land", b"DE")]).unwrap(), "land=DE");
        assert_eq!(
            path(&[(b"a", b"1"), (b"b", b"")]).unwrap(),
            format!("a=1/b={EMPTY}")
        );
        assert_eq!(path(&[(b"/u/id", b"../x")]).unwrap(), "%2Fu%2Fid=..%2Fx");
        assert_eq!(
            path(&[(b"k", b"50% = \"\xFF\"\n")]).unwrap(),
            "k=50%25 %3D %22%FF%22%0A"
        );
        assert_eq!(path(&[(b"k", "Übung".as_bytes())]).unwrap(), "k=Übung");
    }

    #[test]
    fn a_name_that_no_file_system_takes_is_told() {
        assert!(path(&[(b"k", &[b'x'; 253])]).is_ok());
        assert_eq!(path(&[(b"k", &[b'x'; 254])]), Err(TooLong(256)));
        assert_eq!(path(&[(b"k", &[0; 100])]), Err(TooLong(302)));
    }
}

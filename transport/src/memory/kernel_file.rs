//! Files of the kernel, such as those of `/proc`: short, made as they are read, of a size that
//! nobody says. Each job reads some at its start, so they are read by as few calls as will do.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// More than most of them have.
const FIRST_BYTES: usize = 4096;

/// All of a file: opened, read, found to end, closed.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let (mut bytes, mut filled) = (vec![0; FIRST_BYTES], 0);
    loop {
        match file.read(&mut bytes[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if filled == bytes.len() {
            bytes.resize(4 * filled, 0);
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// As [`read`], of text; empty where it cannot be read.
pub(crate) fn text(path: &str) -> String {
    let bytes = read(Path::new(path)).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_any_length_is_read_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for length in [
            0,
            1,
            FIRST_BYTES - 1,
            FIRST_BYTES,
            FIRST_BYTES + 1,
            9 * FIRST_BYTES,
        ] {
            let written: Vec<u8> = (0..length).map(|byte| byte as u8).collect();
            std::fs::write(&path, &written).unwrap();
            assert_eq!(read(&path).unwrap(), written);
        }
        assert!(read(&folder.path().join("none")).is_err());
        assert!(read(folder.path()).is_err(), "a folder");
        assert_eq!(text("/proc/self/none"), "");
    }
}

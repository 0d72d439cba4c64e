//! The file with the secret that the ranks of a job share: read once, and only where nobody else
//! can read it.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::ENV_SECRET_FILE;
use crate::error::{Error, Result};
use crate::secret::Secret;

/// Fewest bytes, without white space at the end.
const BYTES_MIN: usize = 16;
/// Most bytes.
const BYTES_MAX: usize = 4096;

/// The secret in the file at `path`.
///
/// # Errors
/// When it cannot be read, others than its owner may read it, or it is too short or too long.
pub(super) fn read(path: &Path) -> Result<Secret> {
    let wrong = |why: String| Error::config(ENV_SECRET_FILE, format!("{path:?} {why}"));
    let failed = |e| Error::system(format!("{ENV_SECRET_FILE}: reading {path:?}"), e);
    // What was opened is checked, whatever the name stands for a moment later.
    // A named pipe, which nobody may write to, is not waited for.
    let opened = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path);
    let file = opened.map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    check(&metadata, rustix::process::geteuid().as_raw()).map_err(wrong)?;
    let mut text = Vec::new();
    file.take(BYTES_MAX as u64 + 1)
        .read_to_end(&mut text)
        .map_err(failed)?;
    let secret = text.trim_ascii_end();
    if secret.len() < BYTES_MIN || text.len() > BYTES_MAX {
        return Err(wrong(format!(
            "has {} bytes without white space at its end; a secret has {BYTES_MIN} to {BYTES_MAX}, \
             as `head -c 32 /dev/urandom | base64` makes it",
            secret.len()
        )));
    }
    Ok(Secret::of_text(secret))
}

/// Only the user may read it, or, of a file of root's, a group that root has chosen.
fn check(metadata: &Metadata, user: u32) -> Result<(), String> {
    if !metadata.is_file() {
        return Err("is no file".into());
    }
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o777);
    if owner != user && owner != 0 {
        return Err(format!(
            "belongs to user {owner}; it has to be this user's ({user}) or root's"
        ));
    }
    let open_to_others = if owner == 0 { 0o037 } else { 0o077 };
    if mode & open_to_others != 0 {
        return Err(format!(
            "has mode {mode:03o}, so others than its owner may use it; `chmod 600` it"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn read_of(text: &[u8], mode: u32) -> Result<Secret> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        read(&path)
    }

    #[test]
    fn what_only_the_owner_may_read_is_a_secret() {
        let one = read_of(b"0123456789abcdef\n", 0o600).unwrap();
        let same = read_of(b"0123456789abcdef", 0o400).unwrap();
        let other = read_of(b"0123456789abcdeg", 0o600).unwrap();
        assert_eq!(one.expose(), same.expose());
        assert_ne!(one.expose(), other.expose());
    }

    #[test]
    fn what_others_may_read_or_write_is_none() {
        for mode in [0o604, 0o602, 0o620, 0o644, 0o666] {
            let text = read_of(b"0123456789abcdef", mode).unwrap_err().to_string();
            assert!(
                text.contains("chmod 600") && text.contains("secret"),
                "{text}"
            );
        }
    }

    #[test]
    fn an_impossible_length_is_refused() {
        for text in [&b""[..], b"0123456789abcde\n\n", &[b'x'; BYTES_MAX + 1]] {
            let text = read_of(text, 0o600).unwrap_err().to_string();
            assert!(text.contains("/dev/urandom"), "{text}");
        }
        assert!(
            read(Path::new("/"))
                .unwrap_err()
                .to_string()
                .contains("no file")
        );
        let text = read(Path::new("/nowhere/secret")).unwrap_err().to_string();
        assert!(
            text.contains("TRIHOP_SECRET_FILE") && text.contains("/nowhere"),
            "{text}"
        );
    }
}

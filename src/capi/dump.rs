//! Where dumps of a C program go.

use std::fs::File;
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;

use super::status::Failure;
use crate::log;

/// Writes to a descriptor of the caller, which stays open.
pub(crate) fn to_descriptor(
    descriptor: i32,
    dump: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    if descriptor < 0 {
        return Err(Failure::argument(format!(
            "{descriptor} is no file descriptor"
        )));
    }
    // SAFETY: not negative; it is the caller's, who keeps it open during the call, and is never
    // closed here.
    let mut file = ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) });
    write(&mut file, dump)
        .map_err(|e| Failure::system(format_args!("writing to descriptor {descriptor}"), &e))
}

/// Writes to a new file, or replaces one.
pub(crate) fn to_file(
    path: &str,
    dump: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    File::create(path)
        .and_then(|mut file| write(&mut file, dump))
        .map_err(|e| Failure::system(format_args!("writing {path}"), &e))
}

/// What dumps end with: the last lines of the log, where logs are installed and keep some in
/// memory.
pub(crate) fn write_recent(out: &mut dyn Write) -> io::Result<()> {
    let recent = log::recent();
    match recent.is_empty() {
        true => Ok(()),
        false => write!(out, "last lines of the log:\n{recent}"),
    }
}

/// The whole text first: a descriptor that takes no more keeps nothing of the library waiting.
fn write(file: &mut File, dump: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut text = Vec::new();
    dump(&mut text)?;
    file.write_all(&text)
}

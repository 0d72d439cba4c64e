//! Logs for C: what is recorded, and where it goes.

use std::ffi::{CString, c_char, c_void};

use super::argument;
use super::callback::Context;
use super::sized::{check_size, load_sized, store_sized};
use super::status::{Failure, guard, trihop_status_t};
use crate::log::{self, Filter};

/// Takes each message that is recorded. `level` is 1 for errors, 2 warnings, 3 information, 4 and 5
/// details; `facility` is the part of the library that it comes from. Both texts are valid during
/// the call only.
///
/// Threads: any thread that has something to say calls it, several at once. It calls nothing of a
/// job, such as a send, a step or a dump: this thread may be inside of a call of that job, which
/// would wait for itself. It may log; what that says does not come here.
pub type trihop_log_callback_t = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        level: i32,
        facility: *const c_char,
        text: *const c_char,
    ),
>;

/// What is recorded and where it goes. Later versions add fields at the end. Fill it with
/// `trihop_log_options_init`; all texts have to live until `trihop_log_install` has returned.
///
/// A filter is a list of levels and of `FACILITY=LEVEL` with commas, later ones win, such as
/// `info,fabric=debug`. Levels are `off`, `error`, `warn`, `info`, `debug`, `trace`; facilities
/// `client`, `route`, `queue`, `link`, `deliver`, `bootstrap`, `fabric`, `memory`, `other`.
#[repr(C)]
pub struct trihop_log_options_t {
    /// Bytes of this struct as the caller knows it; set by `trihop_log_options_init`.
    pub size: usize,
    /// Filter for what is recorded at all; null for what `TRIHOP_LOG` says, or warnings.
    pub record: *const c_char,
    /// Filter for what of it goes to standard error; null for everything.
    pub to_stderr: *const c_char,
    /// As `record`, on ranks below `detailed_ranks`; null for the same.
    pub detailed_record: *const c_char,
    /// As `to_stderr`, on ranks below `detailed_ranks`; null for the same.
    pub detailed_to_stderr: *const c_char,
    /// File that lines are appended to; null for what `TRIHOP_LOG_FILE` says, or none.
    pub file: *const c_char,
    /// Called for everything that is recorded; null for nothing.
    pub callback: trihop_log_callback_t,
    /// Handed to `callback`.
    pub context: *mut c_void,
    /// Number of first ranks that log in more detail.
    pub detailed_ranks: u64,
    /// 1 if each rank has a file of its own, with `.` and the rank added to its name; 0 if all
    /// append to one.
    pub file_per_rank: u64,
    /// 1 if only ranks below `detailed_ranks` write to a file, else 0.
    pub file_of_detailed_only: u64,
    /// Memory in bytes for the last lines, which `trihop_log_recent` and a core dump show; 0 for
    /// none.
    pub ring_bytes: u64,
}

impl trihop_log_options_t {
    fn defaults() -> Self {
        let log::Options {
            all: _,
            detailed_ranks,
            detailed: _,
            file: _,
            file_per_rank,
            ring_bytes,
            rank: _,
            callback: _,
        } = log::Options::default();
        Self {
            size: size_of::<Self>(),
            record: std::ptr::null(),
            to_stderr: std::ptr::null(),
            detailed_record: std::ptr::null(),
            detailed_to_stderr: std::ptr::null(),
            file: std::ptr::null(),
            callback: None,
            context: std::ptr::null_mut(),
            detailed_ranks: u64::from(detailed_ranks),
            file_per_rank: u64::from(file_per_rank),
            file_of_detailed_only: 0,
            ring_bytes: ring_bytes as u64,
        }
    }

    /// # Safety
    /// Texts are null, or end with NUL.
    unsafe fn to_rust(&self) -> Result<log::Options, Failure> {
        let mut options = log::Options::from_env()?;
        // SAFETY: as the caller promises.
        unsafe {
            change(&mut options.all.record, self.record, "record")?;
            change(&mut options.all.stderr, self.to_stderr, "to_stderr")?;
            options.detailed = options.all.clone();
            change(
                &mut options.detailed.record,
                self.detailed_record,
                "detailed_record",
            )?;
            let stderr = &mut options.detailed.stderr;
            change(stderr, self.detailed_to_stderr, "detailed_to_stderr")?;
            if !self.file.is_null() {
                options.file = Some(argument::text(self.file, "file")?.into());
            }
        }
        options.all.file = !flag("file_of_detailed_only", self.file_of_detailed_only)?;
        options.file_per_rank = flag("file_per_rank", self.file_per_rank)?;
        options.detailed_ranks = u32::try_from(self.detailed_ranks).unwrap_or(u32::MAX);
        options.ring_bytes = usize::try_from(self.ring_bytes).unwrap_or(usize::MAX);
        if let Some(function) = self.callback {
            let context = Context::new(self.context);
            options.callback = Some(Box::new(move |level, facility, text| {
                let facility = CString::new(facility.name()).unwrap_or_default();
                let text = CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default();
                // SAFETY: the header says how it is called, and this is how.
                unsafe {
                    function(
                        context.get(),
                        level as i32,
                        facility.as_ptr(),
                        text.as_ptr(),
                    )
                }
            }));
        }
        Ok(options)
    }
}

/// # Safety
/// The text is null, or ends with NUL.
unsafe fn change(filter: &mut Filter, text: *const c_char, name: &str) -> Result<(), Failure> {
    if !text.is_null() {
        // SAFETY: as the caller promises.
        *filter = filter.changed_by(unsafe { argument::text(text, name)? })?;
    }
    Ok(())
}

fn flag(name: &str, value: u64) -> Result<bool, Failure> {
    match value {
        0 | 1 => Ok(value == 1),
        _ => Err(Failure::argument(format!(
            "`{name}` is {value}, and neither 0 nor 1"
        ))),
    }
}

/// Fills `options` with the defaults. `size` is `sizeof(trihop_log_options_t)` as the caller knows
/// it.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_log_options_init(
    options: *mut trihop_log_options_t,
    size: usize,
) -> trihop_status_t {
    guard(|| {
        check_size(size)?;
        let mut filled = trihop_log_options_t::defaults();
        filled.size = size;
        // SAFETY: the header asks for null or `size` bytes that nobody else uses; all fields have
        // eight bytes.
        unsafe { store_sized(&filled, options, size, "options") }
    })
}

/// Takes the library's messages from now on, once per process and before its first job. `options`
/// null stands for those of the environment. Without this call the library says nothing but what
/// its calls return, and, on standard error, warnings about how the process was started (unless
/// `TRIHOP_LOG` is `off` or `error`).
///
/// Fails with `TRIHOP_ERR_CONFIG` on a filter that is none and where it was called before, and with
/// `TRIHOP_ERR_SYSTEM` where the file cannot be opened.
/// Threads: any, but none that changes the environment meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_log_install(
    options: *const trihop_log_options_t,
) -> trihop_status_t {
    guard(|| {
        if options.is_null() {
            return Ok(log::install(log::Options::from_env()?)?);
        }
        // SAFETY: not null, so the header asks for initialised options and for texts that end with
        // NUL.
        let options =
            unsafe { load_sized(options, trihop_log_options_t::defaults(), "options")?.to_rust()? };
        Ok(log::install(options)?)
    })
}

/// Writes the last lines that were recorded, oldest first, as a text that ends with NUL, and its
/// length without that. Where `capacity` is too small (`text` may be null where it is 0), the call
/// fails with `TRIHOP_ERR_BUFFER_TOO_SMALL` and only stores the length; more may have been recorded
/// when it is called again.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_log_recent(
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> trihop_status_t {
    // SAFETY: the header asks for a buffer of `capacity` bytes and a place for the length.
    guard(|| unsafe { argument::give_text(&log::recent(), text, capacity, length) })
}

//! `shuffle_cfglog`: the original's priorities, masks and facilities as options of our logs.

use std::ffi::{c_char, c_int};

use super::mercury::say;
use crate::capi::argument;
use crate::capi::status::{Failure, guard_or};
use crate::log::{self, Detail, Facility, Filter, Level};

/// What is logged where nothing else is said.
const DEFAULT_PRIORITY: &str = "WARN";

/// A priority of the original as a level; several of its priorities are one of ours.
fn level(priority: &str) -> Result<Level, Failure> {
    Ok(match priority.trim().to_ascii_uppercase().as_str() {
        "EMERG" | "ALERT" | "CRIT" | "ERR" => Level::Error,
        "WARN" => Level::Warn,
        "NOTE" | "INFO" => Level::Info,
        "DBG" | "DBG0" => Level::Debug,
        "DBG1" | "DBG2" | "DBG3" => Level::Trace,
        other => {
            let why = format!(
                "`{other}` is no priority; there are EMERG, ALERT, CRIT, ERR, WARN, NOTE, INFO, DBG, DBG0, DBG1, DBG2 and DBG3"
            );
            return Err(Failure::argument(why));
        }
    })
}

/// Facilities of ours that a facility of the original stands for.
fn facilities(name: &str) -> Result<&'static [Facility], Failure> {
    Ok(match name.trim().to_ascii_uppercase().as_str() {
        "CLNT" => &[Facility::Client],
        "DLIV" => &[Facility::Deliver],
        "SHUF" => &[Facility::Route, Facility::Queue, Facility::Link],
        "UTIL" => &[Facility::Bootstrap, Facility::Fabric, Facility::Memory],
        other => {
            let why = format!("`{other}` is no facility; there are CLNT, DLIV, SHUF and UTIL");
            return Err(Failure::argument(why));
        }
    })
}

/// `[FACILITY=]PRIORITY,...` over what `default` says; a priority alone is for all facilities.
fn filter(default: Level, mask: &str) -> Result<Filter, Failure> {
    let mut filter = Filter::uniform(default);
    for word in mask.split(',').filter(|word| !word.trim().is_empty()) {
        match word.split_once('=') {
            Some((name, priority)) => {
                let level = level(priority)?;
                for &facility in facilities(name)? {
                    filter.set(facility, level);
                }
            }
            None => filter = Filter::uniform(level(word)?),
        }
    }
    Ok(filter)
}

/// The arguments of `shuffle_cfglog`, as C gives them.
struct Asked<'a> {
    max_xtra_rank: c_int,
    defpri: Option<&'a str>,
    stderrpri: Option<&'a str>,
    mask: Option<&'a str>,
    xmask: Option<&'a str>,
    logfile: Option<&'a str>,
    alllogs: bool,
    msgbufsz: c_int,
    stderrlog: bool,
    xtra_stderrlog: bool,
}

impl Asked<'_> {
    fn options(&self) -> Result<log::Options, Failure> {
        let default = level(self.defpri.unwrap_or(DEFAULT_PRIORITY))?;
        let mask = self.mask.unwrap_or_default();
        let to_stderr = level(self.stderrpri.unwrap_or(DEFAULT_PRIORITY))?;
        let detail = |mask: &str, everything: bool, file: bool| -> Result<Detail, Failure> {
            Ok(Detail {
                record: filter(default, mask)?,
                stderr: Filter::uniform(if everything { Level::Trace } else { to_stderr }),
                file,
            })
        };
        let ring_bytes = usize::try_from(self.msgbufsz)
            .map_err(|_| Failure::argument(format!("msgbufsz {} is below 0", self.msgbufsz)))?;
        Ok(log::Options {
            all: detail(mask, self.stderrlog, self.alllogs)?,
            // Rank 0 is the first: -1 means none.
            detailed_ranks: u32::try_from(i64::from(self.max_xtra_rank) + 1).unwrap_or(0),
            detailed: detail(self.xmask.unwrap_or(mask), self.xtra_stderrlog, true)?,
            file: self.logfile.map(Into::into),
            ring_bytes,
            ..log::Options::from_env()?
        })
    }
}

/// A text that may be missing or empty, which is the same.
///
/// # Safety
/// The pointer is null or a text that ends with NUL.
unsafe fn optional<'a>(text: *const c_char, name: &str) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, and otherwise as the caller promises.
    let text = unsafe { argument::text(text, name)? };
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// Says what is logged.
///
/// # Safety
/// Each text is null or ends with NUL.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "they are those of the interface")]
pub unsafe extern "C" fn shuffle_cfglog(
    max_xtra_rank: c_int,
    defpri: *const c_char,
    stderrpri: *const c_char,
    mask: *const c_char,
    xmask: *const c_char,
    logfile: *const c_char,
    alllogs: c_int,
    msgbufsz: c_int,
    stderrlog: c_int,
    xtra_stderrlog: c_int,
) -> c_int {
    let configured = guard_or(|| {
        // SAFETY: as the caller promises.
        let asked = unsafe {
            Asked {
                max_xtra_rank,
                defpri: optional(defpri, "defpri")?,
                stderrpri: optional(stderrpri, "stderrpri")?,
                mask: optional(mask, "mask")?,
                xmask: optional(xmask, "xmask")?,
                logfile: optional(logfile, "logfile")?,
                alllogs: alllogs != 0,
                msgbufsz,
                stderrlog: stderrlog != 0,
                xtra_stderrlog: xtra_stderrlog != 0,
            }
        };
        let install = || Ok(log::install(asked.options()?)?);
        install().inspect_err(|failure: &Failure| say("shuffle_cfglog", &failure.text))
    });
    configured.map_or(-1, |()| 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Asked<'static> {
        Asked {
            max_xtra_rank: -1,
            defpri: Some("INFO"),
            stderrpri: Some("WARN"),
            mask: None,
            xmask: None,
            logfile: Some("shuffle.log"),
            alllogs: true,
            msgbufsz: 0,
            stderrlog: false,
            xtra_stderrlog: false,
        }
    }

    #[test]
    fn what_a_preload_library_asks_is_a_file_for_each_rank() {
        let options = asked().options().unwrap();
        assert_eq!(options.all.record, Filter::uniform(Level::Info));
        assert_eq!(options.all.stderr, Filter::uniform(Level::Warn));
        assert!(options.all.file && options.file_per_rank);
        assert_eq!(options.file.as_deref(), Some("shuffle.log".as_ref()));
        assert_eq!((options.detailed_ranks, options.ring_bytes), (0, 0));
    }

    #[test]
    fn masks_name_facilities_and_first_ranks_have_their_own() {
        let options = Asked {
            max_xtra_rank: 3,
            mask: Some("ERR, SHUF=DBG0"),
            xmask: Some("CLNT=DBG3"),
            alllogs: false,
            stderrlog: true,
            msgbufsz: 4096,
            ..asked()
        }
        .options()
        .unwrap();
        let all = &options.all.record;
        assert_eq!(all.level(Facility::Link), Level::Debug);
        assert_eq!(all.level(Facility::Client), Level::Error);
        assert_eq!(options.detailed.record.level(Facility::Client), Level::Trace);
        assert_eq!(
            options.detailed.record.level(Facility::Deliver),
            Level::Info,
            "defpri"
        );
        assert_eq!(options.detailed_ranks, 4);
        assert!(!options.all.file && options.detailed.file);
        assert_eq!(options.all.stderr, Filter::uniform(Level::Trace));
        assert_eq!(options.detailed.stderr, Filter::uniform(Level::Warn));
        assert_eq!(options.ring_bytes, 4096);
    }

    #[test]
    fn without_a_mask_of_their_own_first_ranks_log_as_the_others() {
        let options = Asked {
            mask: Some("DLIV=DBG"),
            max_xtra_rank: 0,
            defpri: None,
            ..asked()
        };
        let options = options.options().unwrap();
        assert_eq!(options.detailed.record, options.all.record);
        assert_eq!(options.all.record.level(Facility::Deliver), Level::Debug);
        assert_eq!(options.all.record.level(Facility::Client), Level::Warn);
    }

    #[test]
    fn unknown_words_are_refused_with_what_is_possible() {
        let refused = |asked: Asked<'_>| asked.options().map(|_| ()).unwrap_err().text;
        let priority = refused(Asked {
            defpri: Some("LOUD"),
            ..asked()
        });
        assert!(
            priority.contains("LOUD") && priority.contains("DBG3"),
            "{priority}"
        );
        let facility = refused(Asked {
            mask: Some("NET=ERR"),
            ..asked()
        });
        assert!(
            facility.contains("NET") && facility.contains("SHUF"),
            "{facility}"
        );
        assert!(
            refused(Asked {
                msgbufsz: -1,
                ..asked()
            })
            .contains("-1")
        );
    }
}

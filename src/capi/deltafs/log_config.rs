//! `shuffle_cfglog`: the original's priorities, masks and facilities as options of our logs.

use std::collections::BTreeSet;
use std::ffi::{c_char, c_int};

use super::mercury::say;
use crate::capi::argument;
use crate::capi::status::{Failure, guard_or};
use crate::log::{self, Detail, Facility, Filter, Level};
use crate::{Error, Rank};

/// What is logged where nothing else is said.
const DEFAULT_PRIORITY: &str = "WARN";

/// Priorities as messages name them.
const PRIORITIES: &str = "EMERG, ALERT, CRIT, ERR, WARN, NOTE, INFO, DBG, DBG0, DBG1, DBG2, DBG3, EMRG, ALRT, DEBUG, DBUG, D0, D1, D2 and D3";

/// A priority of the original as a level: what its header names, and what its code takes. Several
/// of its priorities are one of ours.
fn level(priority: &str) -> Option<Level> {
    let word = priority.trim().to_ascii_uppercase();
    Some(match word.as_str() {
        "EMERG" | "EMRG" | "ALERT" | "ALRT" | "CRIT" | "ERR" => Level::Error,
        "WARN" => Level::Warn,
        "NOTE" | "INFO" => Level::Info,
        "DBG" | "DBG0" => Level::Debug,
        // All four streams of debug messages.
        "DBG1" | "DBG2" | "DBG3" | "DEBUG" | "DBUG" => Level::Trace,
        word => return streams(word),
    })
}

/// Streams of debug messages, as the original's code has them: D and the numbers of streams in
/// ascending order, filled up to four characters with dashes or not.
fn streams(word: &str) -> Option<Level> {
    let numbers = word.strip_prefix('D')?.trim_end_matches('-');
    let ascend = numbers.as_bytes().is_sorted_by(|one, next| one < next);
    if word.len() > 4 || !ascend || !numbers.bytes().all(|byte| (b'0'..=b'3').contains(&byte)) {
        return None;
    }
    Some(match numbers {
        "" => Level::Info,
        "0" => Level::Debug,
        _ => Level::Trace,
    })
}

/// Facilities of ours that a facility of the original stands for; DLVR is how its documentation
/// spells one of them.
fn facilities(name: &str) -> Option<&'static [Facility]> {
    Some(match name.trim().to_ascii_uppercase().as_str() {
        "CLNT" => &[Facility::Client],
        "DLIV" | "DLVR" => &[Facility::Deliver],
        "SHUF" => &[Facility::Route, Facility::Queue, Facility::Link],
        "UTIL" => &[Facility::Bootstrap, Facility::Fabric, Facility::Memory],
        _ => return None,
    })
}

/// `[FACILITY=]PRIORITY,...` over what `default` says; a priority alone is for all facilities. What
/// is unknown is passed over, and named in `unknown`.
fn filter(default: Level, mask: &str, unknown: &mut BTreeSet<String>) -> Filter {
    let mut filter = Filter::uniform(default);
    for word in mask
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
    {
        let (name, priority) = word
            .split_once('=')
            .map_or((None, word), |(f, p)| (Some(f), p));
        let Some(level) = level(priority) else {
            let why = format!(
                "`{word}` of the mask is passed over: `{}` is no priority; there are {PRIORITIES}",
                priority.escape_debug()
            );
            unknown.insert(why);
            continue;
        };
        match name.map(|name| (name, facilities(name))) {
            None => filter = Filter::uniform(level),
            Some((_, Some(facilities))) => facilities.iter().for_each(|&f| filter.set(f, level)),
            Some((name, None)) => {
                let why = format!(
                    "`{word}` of the mask is passed over: `{}` is no facility; there are CLNT, DLIV, SHUF and UTIL",
                    name.escape_debug()
                );
                unknown.insert(why);
            }
        }
    }
    filter
}

/// Tells the logs this process's rank. Where its file cannot be opened the logs end, as the
/// original's do.
pub(super) fn set_rank(rank: Rank) {
    if let Err(error) = log::set_rank(rank.0) {
        log::turn_off();
        say_off(&error);
    }
}

fn say_off(error: &Error) {
    say("shuffle_cfglog", &format!("{error}; nothing is logged"));
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
    /// Options of ours, and what in the masks is unknown.
    fn options(&self) -> Result<(log::Options, BTreeSet<String>), Failure> {
        let priority = |name: &str, given: Option<&str>| {
            let text = given.unwrap_or(DEFAULT_PRIORITY);
            level(text).ok_or_else(|| {
                let text = text.escape_debug();
                Failure::argument(format!(
                    "{name}: `{text}` is no priority; there are {PRIORITIES}"
                ))
            })
        };
        let default = priority("defpri", self.defpri)?;
        let mask = self.mask.unwrap_or_default();
        let to_stderr = priority("stderrpri", self.stderrpri)?;
        let mut unknown = BTreeSet::new();
        let mut detail = |mask: &str, everything: bool, file: bool| Detail {
            record: filter(default, mask, &mut unknown),
            stderr: Filter::uniform(if everything { Level::Trace } else { to_stderr }),
            file,
        };
        let ring_bytes = usize::try_from(self.msgbufsz)
            .map_err(|_| Failure::argument(format!("msgbufsz {} is below 0", self.msgbufsz)))?;
        let options = log::Options {
            all: detail(mask, self.stderrlog, self.alllogs),
            // Rank 0 is the first: -1 means none.
            detailed_ranks: u32::try_from(i64::from(self.max_xtra_rank) + 1).unwrap_or(0),
            detailed: detail(self.xmask.unwrap_or(mask), self.xtra_stderrlog, true),
            file: self.logfile.map(Into::into),
            ring_bytes,
            ..log::Options::from_env()?
        };
        Ok((options, unknown))
    }

    fn install(&self) -> Result<(), Failure> {
        let (options, unknown) = self.options()?;
        match log::install(options) {
            Ok(()) => {}
            // The file: everything else is a wrong option.
            Err(error @ Error::System { .. }) => say_off(&error),
            Err(error) => return Err(error.into()),
        }
        unknown.iter().for_each(|why| say("shuffle_cfglog", why));
        Ok(())
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
        asked
            .install()
            .inspect_err(|failure| say("shuffle_cfglog", &failure.text))
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
        let (options, unknown) = asked().options().unwrap();
        assert!(unknown.is_empty());
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
        .unwrap()
        .0;
        let all = &options.all.record;
        assert_eq!(all.level(Facility::Link), Level::Debug);
        assert_eq!(all.level(Facility::Client), Level::Error);
        assert_eq!(
            options.detailed.record.level(Facility::Client),
            Level::Trace
        );
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
        let options = options.options().unwrap().0;
        assert_eq!(options.detailed.record, options.all.record);
        assert_eq!(options.all.record.level(Facility::Deliver), Level::Debug);
        assert_eq!(options.all.record.level(Facility::Client), Level::Warn);
    }

    #[test]
    fn every_spelling_of_the_header_and_of_the_code_is_a_priority() {
        for (words, expected) in [
            (
                &["EMERG", "EMRG", "ALERT", "ALRT", "CRIT", "ERR", "err"][..],
                Level::Error,
            ),
            (&["WARN", "warn"], Level::Warn),
            (&["NOTE", "INFO", "D---", "D"], Level::Info),
            (&["DBG", "DBG0", "D0", "D0-", "D0--", "d0"], Level::Debug),
            (
                &["DBG1", "DBG2", "DBG3", "DEBUG", "DBUG", "D1", "D2", "D3"],
                Level::Trace,
            ),
            (&["D3--", "D23-", "D123", "D03", "D013"], Level::Trace),
        ] {
            for word in words {
                assert_eq!(level(word), Some(expected), "{word}");
            }
        }
        for word in [
            "", "LOUD", "D4", "D0123", "D21", "D1-2", "DEBUGS", "WARNING", "D00",
        ] {
            assert_eq!(level(word), None, "{word}");
        }
    }

    #[test]
    fn priorities_by_facility_are_taken_as_the_originals_documentation_has_them() {
        let mut unknown = BTreeSet::new();
        let filter = filter(
            Level::Warn,
            "SHUF=INFO,UTIL=ERR,CLNT=DEBUG,DLVR=D0",
            &mut unknown,
        );
        assert!(unknown.is_empty(), "{unknown:?}");
        assert_eq!(filter.level(Facility::Link), Level::Info);
        assert_eq!(filter.level(Facility::Fabric), Level::Error);
        assert_eq!(filter.level(Facility::Client), Level::Trace);
        assert_eq!(filter.level(Facility::Deliver), Level::Debug);
    }

    #[test]
    fn what_is_unknown_in_a_mask_is_passed_over_and_named() {
        let (options, unknown) = Asked {
            mask: Some("NET=ERR,CLNT=LOUD,=ERR,,DLIV=D0, QUIET ,SHUF=ERR"),
            ..asked()
        }
        .options()
        .unwrap();
        let all = &options.all.record;
        assert_eq!(all.level(Facility::Client), Level::Info, "defpri");
        assert_eq!(all.level(Facility::Deliver), Level::Debug);
        assert_eq!(all.level(Facility::Queue), Level::Error);
        assert_eq!(unknown.len(), 4, "{unknown:?}");
        for word in ["NET=ERR", "CLNT=LOUD", "=ERR", "QUIET"] {
            let named = format!("`{word}` of the mask is passed over");
            assert!(
                unknown.iter().any(|why| why.starts_with(&named)),
                "{unknown:?}"
            );
        }
    }

    #[test]
    fn a_default_that_is_no_priority_is_refused_with_what_is_possible() {
        let refused = |asked: Asked<'_>| asked.options().map(|_| ()).unwrap_err().text;
        let default = refused(Asked {
            defpri: Some("LOUD"),
            ..asked()
        });
        assert!(
            default.contains("defpri") && default.contains("LOUD") && default.contains("D3"),
            "{default}"
        );
        let stderr = refused(Asked {
            stderrpri: Some("LOUD"),
            ..asked()
        });
        assert!(stderr.contains("stderrpri"), "{stderr}");
        let size = refused(Asked {
            msgbufsz: -1,
            ..asked()
        });
        assert!(size.contains("-1"), "{size}");
    }
}

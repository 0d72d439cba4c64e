//! What an endpoint with links may take for what is on its way between nodes, beside what each
//! stream asks for.

use crate::error::{Error, Result};

/// Variable of the bound of what is sent.
pub const ENV_INJECTION: &str = "TRIHOP_MAX_INJECTION_MB";

/// Variable of the bound of what is received.
pub const ENV_EJECTION: &str = "TRIHOP_MAX_EJECTION_MB";

/// Variable of the bound of what a rank's channels have handed out.
const ENV_GETMSG: &str = "TRIHOP_MAX_GETMSG_MB";

/// Bytes of messages that a rank has handed out of its channels, and that have not arrived where
/// they were got: `TRIHOP_MAX_GETMSG_MB`, in MiB; `None` where that is not set.
///
/// # Errors
/// [`Error::Environment`]: it is no number from 1 to 1,048,576.
pub(crate) fn getmsg_bytes_from_env() -> Result<Option<u64>> {
    let text = std::env::var_os(ENV_GETMSG).map(|text| text.to_string_lossy().into_owned());
    let bytes = parse(ENV_GETMSG, text)?;
    Ok((bytes != usize::MAX).then_some(bytes as u64))
}

/// Largest value of these variables, in MiB.
const MOST_MB: usize = 1 << 20;

/// Bounds of the pools of all streams of a job at an endpoint that has links: an agent, the relay
/// of mini-ranks, or a rank. Those of the environment are `TRIHOP_MAX_INJECTION_MB` and
/// `TRIHOP_MAX_EJECTION_MB`, in MiB; there are none where these are not set. Batches to other nodes
/// are in them from the time that they are filled until they are acknowledged, and batches from
/// other nodes from the time that a receive is posted for them, a read of a long one included, until
/// the ranks' lanes have them.
///
/// A stream gets half of what others leave of them at most, and more only where its links need that
/// at least. So it may have fewer buffers: its links have less under way, and ranks that send wait.
/// Where the least that its links need does not fit, opening it is refused. A stream that was
/// closed keeps its pools, for the next one with the same options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolLimits {
    /// Bytes of batches that are sent.
    pub injection_bytes: usize,
    /// Bytes of slots that receive.
    pub ejection_bytes: usize,
}

impl Default for PoolLimits {
    /// None.
    fn default() -> Self {
        Self {
            injection_bytes: usize::MAX,
            ejection_bytes: usize::MAX,
        }
    }
}

impl PoolLimits {
    /// Takes a variable of the environment, where it is one of these.
    ///
    /// # Errors
    /// [`Error::Environment`]: it is no number from 1 to 1,048,576.
    pub(super) fn set_variable(&mut self, name: &str, value: &str) -> Result<bool> {
        let (key, bytes) = match name {
            ENV_INJECTION => (ENV_INJECTION, &mut self.injection_bytes),
            ENV_EJECTION => (ENV_EJECTION, &mut self.ejection_bytes),
            _ => return Ok(false),
        };
        *bytes = parse(key, Some(value.to_owned()))?;
        Ok(true)
    }

    /// Whether there are any.
    pub fn any(&self) -> bool {
        *self != Self::default()
    }

    /// What is left of them beside pools of so many bytes.
    pub(crate) fn beside(&self, [sent, received]: [usize; 2]) -> Self {
        let left = |limit: usize, held| match limit {
            usize::MAX => usize::MAX,
            limit => limit.saturating_sub(held),
        };
        Self {
            injection_bytes: left(self.injection_bytes, sent),
            ejection_bytes: left(self.ejection_bytes, received),
        }
    }

    /// Half of them.
    pub(crate) fn halved(&self) -> Self {
        let half = |limit: usize| match limit {
            usize::MAX => usize::MAX,
            limit => limit / 2,
        };
        Self {
            injection_bytes: half(self.injection_bytes),
            ejection_bytes: half(self.ejection_bytes),
        }
    }

    /// At least so many.
    pub(crate) fn at_least(&self, [sent, received]: [usize; 2]) -> Self {
        Self {
            injection_bytes: self.injection_bytes.max(sent),
            ejection_bytes: self.ejection_bytes.max(received),
        }
    }

    /// Whether pools of so many bytes fit.
    pub(crate) fn hold(&self, [sent, received]: [usize; 2]) -> bool {
        sent <= self.injection_bytes && received <= self.ejection_bytes
    }

    /// Whether pools of a stream, which have what is left of `all`, fit.
    ///
    /// # Errors
    /// [`Error::Config`], which names the variable, what the stream needs at least, and what is
    /// left.
    pub(crate) fn check(&self, all: &Self, stream: &str, needed: [usize; 2]) -> Result<()> {
        let parts = [
            (
                ENV_INJECTION,
                self.injection_bytes,
                all.injection_bytes,
                needed[0],
                "send",
            ),
            (
                ENV_EJECTION,
                self.ejection_bytes,
                all.ejection_bytes,
                needed[1],
                "receive",
            ),
        ];
        let passed = parts
            .into_iter()
            .find(|(_, left, _, needed, _)| needed > left);
        let Some((key, left, limit, needed, what)) = passed else {
            return Ok(());
        };
        let why = format!(
            "the links of `{stream}` need {needed} bytes at least to {what}, and \
             {left} of {limit} are left beside other streams, closed ones included; raise it, give \
             streams that follow each other the same options, or lower remote_buftarget_bytes"
        );
        Err(Error::config(key, why))
    }
}

fn parse(key: &str, text: Option<String>) -> Result<usize> {
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        return Ok(usize::MAX);
    };
    let number = text.parse().ok().filter(|mb| (1..=MOST_MB).contains(mb));
    number
        .map(|mb: usize| mb << 20)
        .ok_or_else(|| Error::Environment {
            key: key.to_owned(),
            why: format!("{text:?} is no number of MiB from 1 to {MOST_MB}"),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_limit_is_refused() {
        let of = |text: &str| parse(ENV_EJECTION, Some(text.to_owned()));
        assert_eq!(parse(ENV_EJECTION, None), Ok(usize::MAX));
        assert_eq!((of(""), of("64")), (Ok(usize::MAX), Ok(64 << 20)));
        for bad in ["0", "-1", "64M", "1048577", "99999999999999999999"] {
            let text = of(bad).unwrap_err().to_string();
            assert!(text.contains(ENV_EJECTION) && text.contains(bad), "{text}");
        }
    }

    #[test]
    fn variables_of_the_environment_are_bounds() {
        let mut limits = PoolLimits::default();
        assert!(limits.set_variable(ENV_EJECTION, "3").unwrap());
        assert!(!limits.set_variable(ENV_GETMSG, "4").unwrap());
        assert_eq!(limits.ejection_bytes, 3 << 20);
        assert_eq!(limits.injection_bytes, usize::MAX);
        assert!(limits.set_variable(ENV_INJECTION, "0").is_err());
    }

    #[test]
    fn what_is_left_of_a_limit_is_what_others_do_not_hold() {
        let none = PoolLimits::default();
        assert_eq!(none.beside([1 << 40; 2]), none);
        let all = PoolLimits {
            injection_bytes: 100,
            ..none
        };
        assert_eq!(all.beside([60, 60]).injection_bytes, 40);
        assert_eq!(all.beside([101, 0]).injection_bytes, 0);
        assert_eq!((none.halved(), all.halved().injection_bytes), (none, 50));
        assert!(all.halved().hold([50, usize::MAX]) && !all.halved().hold([51, 0]));
        let left = all.beside([60, 60]);
        assert_eq!(left.check(&all, "facts", [40, usize::MAX]), Ok(()));
        let text = left.check(&all, "facts", [41, 0]).unwrap_err().to_string();
        for part in [
            ENV_INJECTION,
            "`facts` need 41 bytes at least",
            "40 of 100 are left",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
}

//! Who sends which messages to whom.

use super::args::{Pattern, Sizes, below};
use super::error::{Error, Result};
use super::payload::{Contents, EVERYONE, Identity, NUMBER_MASK, mixed};

/// Targets of one rank's messages, one after the other.
#[derive(Debug)]
pub struct Targets {
    choice: Choice,
    rank: u32,
    size: u32,
    exclude_self: bool,
    /// Each message is for all.
    broadcast: bool,
    state: u64,
}

#[derive(Debug)]
enum Choice {
    Nobody,
    One(u32),
    Turns(u32),
    Random,
    Everyone,
}

impl Targets {
    /// Targets of `rank` in a job of `size` ranks.
    ///
    /// # Errors
    /// [`Error::Usage`], on every rank alike, when the options do not fit the job.
    pub fn new(pattern: &Pattern, seed: u64, rank: u32, size: u32) -> Result<Self> {
        let known = |option: &str, given: u32| match given < size {
            true => Ok(()),
            false => Err(Error::Usage(format!(
                "{option} {given}: the job has the ranks 0 to {}",
                size - 1
            ))),
        };
        known("--min-sender", pattern.min_sender)?;
        pattern
            .max_sender
            .map_or(Ok(()), |max| known("--max-sender", max))?;
        pattern
            .only_to
            .map_or(Ok(()), |only| known("--only-to", only))?;
        if pattern.exclude_self && size == 1 {
            return Err(Error::Usage(
                "--exclude-self leaves no target in a job of one rank".to_owned(),
            ));
        }
        let sends = rank >= pattern.min_sender && pattern.max_sender.is_none_or(|max| rank <= max);
        let choice = match pattern.only_to {
            _ if !sends => Choice::Nobody,
            _ if pattern.broadcast => Choice::Everyone,
            Some(only) if pattern.exclude_self && only == rank => Choice::Nobody,
            Some(only) => Choice::One(only),
            None if pattern.round_robin => Choice::Turns(rank),
            None => Choice::Random,
        };
        let state = mixed(seed ^ mixed(u64::from(rank) + 1));
        Ok(Self {
            choice,
            rank,
            size,
            exclude_self: pattern.exclude_self,
            broadcast: pattern.broadcast,
            state,
        })
    }

    /// Whether this rank sends at all.
    pub fn any(&self) -> bool {
        !matches!(self.choice, Choice::Nobody)
    }

    /// The next target, or [`EVERYONE`].
    pub fn next(&mut self) -> u32 {
        match &mut self.choice {
            Choice::Nobody => self.rank,
            Choice::Everyone => EVERYONE,
            Choice::One(target) => *target,
            Choice::Turns(last) => {
                *last = (*last + 1) % self.size;
                if self.exclude_self && *last == self.rank {
                    *last = (*last + 1) % self.size;
                }
                *last
            }
            Choice::Random => {
                self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let others = self.size - u32::from(self.exclude_self);
                let target = below(mixed(self.state), u64::from(others)) as u32;
                target + u32::from(self.exclude_self && target >= self.rank)
            }
        }
    }
}

/// The messages of one rank, one after the other.
#[derive(Debug)]
pub struct Messages<'a> {
    contents: &'a Contents,
    sizes: &'a Sizes,
    targets: Targets,
    /// Messages so far, by target; of broadcasts, one number.
    numbers: Vec<u64>,
    scratch: Vec<u8>,
}

impl<'a> Messages<'a> {
    /// Messages for these targets.
    pub fn new(contents: &'a Contents, sizes: &'a Sizes, targets: Targets) -> Self {
        Self {
            contents,
            sizes,
            numbers: match targets.broadcast {
                true => vec![0],
                false => vec![0; targets.size as usize],
            },
            scratch: vec![0; sizes.largest()],
            targets,
        }
    }

    /// Whether this rank sends at all.
    pub fn any(&self) -> bool {
        self.targets.any()
    }

    /// Target, kind and bytes of the next message.
    pub fn next(&mut self) -> (u32, u32, &[u8]) {
        let target = self.targets.next();
        let place = if target == EVERYONE { 0 } else { target };
        let number = &mut self.numbers[place as usize];
        let message = Identity {
            source: self.targets.rank,
            target,
            number: *number,
        };
        *number += 1;
        let bytes = &mut self.scratch[..self.sizes.pick(self.contents.key(message))];
        self.contents.write(message, bytes);
        (target, message.number as u32 & NUMBER_MASK, bytes)
    }

    /// How many messages there were for each rank: what its last message, of the kind
    /// [`TALLY`](super::ledger::TALLY), tells it.
    pub fn tallies(&self) -> impl Iterator<Item = (u32, [u8; 8])> {
        let target = move |place| {
            if self.targets.broadcast {
                EVERYONE
            } else {
                place
            }
        };
        (0..)
            .map(target)
            .zip(self.numbers.iter().map(|number| number.to_le_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        pattern: Pattern,
    }

    fn targets(line: &str, rank: u32, size: u32) -> Result<Targets> {
        let words = std::iter::once("exchange").chain(line.split_whitespace());
        Targets::new(&Cli::try_parse_from(words).unwrap().pattern, 5, rank, size)
    }

    fn first(line: &str, rank: u32, size: u32, count: usize) -> Vec<u32> {
        let mut targets = targets(line, rank, size).unwrap();
        assert!(targets.any());
        (0..count).map(|_| targets.next()).collect()
    }

    #[test]
    fn turns_begin_behind_the_sender_and_can_leave_it_out() {
        assert_eq!(first("--round-robin", 1, 3, 5), [2, 0, 1, 2, 0]);
        assert_eq!(
            first("--round-robin --exclude-self", 1, 3, 5),
            [2, 0, 2, 0, 2]
        );
        assert_eq!(first("--round-robin", 0, 1, 2), [0, 0]);
    }

    #[test]
    fn random_targets_are_all_ranks_evenly() {
        for (line, rank, others) in [("", 2, 4), ("--exclude-self", 2, 3)] {
            let mut counts = [0usize; 4];
            for target in first(line, rank, 4, 40_000) {
                counts[target as usize] += 1;
            }
            let expected = 40_000 / others;
            for (target, &count) in counts.iter().enumerate() {
                let wanted = if others == 3 && target == 2 {
                    0
                } else {
                    expected
                };
                assert!(count.abs_diff(wanted) < 1000, "{line}: {counts:?}");
            }
        }
        assert_ne!(
            first("", 0, 8, 50),
            first("", 1, 8, 50),
            "ranks draw independently"
        );
    }

    #[test]
    fn senders_and_one_target() {
        assert_eq!(first("--only-to 3", 1, 4, 2), [3, 3]);
        assert!(!targets("--only-to 3 --exclude-self", 3, 4).unwrap().any());
        let senders = |rank| {
            targets("--min-sender 1 --max-sender 2", rank, 4)
                .unwrap()
                .any()
        };
        assert_eq!([0, 1, 2, 3].map(senders), [false, true, true, false]);
    }

    #[test]
    fn broadcasts_are_numbered_once_and_so_is_their_tally() {
        let (contents, sizes) = (Contents::new(1), Sizes::List(vec![20]));
        let mut messages = Messages::new(&contents, &sizes, targets("--broadcast", 1, 4).unwrap());
        let mut next = || {
            let (target, kind, _) = messages.next();
            (target, kind)
        };
        let sent = [next(), next(), next()];
        assert_eq!(sent, [(EVERYONE, 0), (EVERYONE, 1), (EVERYONE, 2)]);
        assert_eq!(
            messages.tallies().collect::<Vec<_>>(),
            [(EVERYONE, 3u64.to_le_bytes())]
        );
        let silent = targets("--broadcast --max-sender 0", 1, 4).unwrap();
        assert!(!silent.any());
        let messages = Messages::new(&contents, &sizes, silent);
        assert_eq!(messages.tallies().collect::<Vec<_>>(), [(EVERYONE, [0; 8])]);
    }

    #[test]
    fn what_does_not_fit_the_job_is_refused_on_every_rank() {
        for line in ["--only-to 4", "--min-sender 4", "--max-sender 9"] {
            for rank in 0..4 {
                let text = targets(line, rank, 4).unwrap_err().to_string();
                assert!(
                    text.contains("0 to 3") && text.contains(&line[..8]),
                    "{text}"
                );
            }
        }
        assert!(targets("--exclude-self", 0, 1).is_err());
    }
}

//! What a rank and rank 0 say to each other before the first frame: both show that they know the
//! secret, and neither says it. No I/O: arrays of fixed length in and out.
//!
//! ```text
//!   rank 0 -> rank   magic 8, version u32, challenge 16
//!   rank -> rank 0   magic 8, version u32, rank u32, size u32, challenge 16, proof 16
//!   rank 0 -> rank   verdict 1, proof 16
//! ```
//!
//! Numbers are little-endian. A proof is over both challenges, rank and size.

use crate::bootstrap::local::wire::VERSION;
use crate::secret::Secret;
use crate::topology::Rank;

const MAGIC: [u8; 8] = *b"trihopm1";

const CONNECTING: &str = "master, a rank connects";
const ACCEPTING: &str = "master, rank 0 accepts";

/// Length of rank 0's first word.
pub(in crate::bootstrap) const HELLO_BYTES: usize = 28;
/// Length of the answer to it.
pub(in crate::bootstrap) const ANSWER_BYTES: usize = 52;
/// Length of rank 0's last word before frames.
pub(in crate::bootstrap) const VERDICT_BYTES: usize = 17;

const WELCOME: u8 = 0;
const WRONG_SECRET: u8 = 1;
const WRONG_VERSION: u8 = 2;

pub(in crate::bootstrap) type Challenge = [u8; 16];

/// Who a connection says to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::bootstrap) struct Claim {
    pub rank: Rank,
    pub size: u32,
}

/// Why the two do not speak with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::bootstrap) enum Refusal {
    /// These bytes are of something else.
    NotOurs,
    /// The other side speaks this version of the launcher's protocol; none: it does not say which.
    Version(Option<u32>),
    /// The other side does not know the secret, or knows another one.
    Secret,
}

/// Rank 0's first word.
pub(in crate::bootstrap) fn hello(challenge: &Challenge) -> [u8; HELLO_BYTES] {
    joined(&[&MAGIC, &VERSION.to_le_bytes(), challenge])
}

/// A rank's answer to rank 0's first word, with a challenge of its own.
pub(in crate::bootstrap) fn answer(
    hello: &[u8; HELLO_BYTES],
    secret: &Secret,
    claim: Claim,
    own: &Challenge,
) -> Result<[u8; ANSWER_BYTES], Refusal> {
    let theirs = challenge_of(hello)?;
    let proof = secret.prove(CONNECTING, &proven(&theirs, own, claim));
    Ok(joined(&[
        &MAGIC,
        &VERSION.to_le_bytes(),
        &claim.rank.0.to_le_bytes(),
        &claim.size.to_le_bytes(),
        own,
        &proof,
    ]))
}

/// What rank 0, whose challenge was `own`, makes of an answer: its last word, and who it is that
/// has shown to know the secret.
pub(in crate::bootstrap) fn judge(
    answer: &[u8; ANSWER_BYTES],
    secret: &Secret,
    own: &Challenge,
) -> ([u8; VERDICT_BYTES], Result<Claim, Refusal>) {
    let refused = |code: u8, why| (joined(&[&[code], &[0; 16]]), Err(why));
    match version_of(answer) {
        None => return refused(WRONG_VERSION, Refusal::NotOurs),
        Some(VERSION) => {}
        Some(version) => return refused(WRONG_VERSION, Refusal::Version(Some(version))),
    }
    let claim = Claim {
        rank: Rank(number(answer, 12)),
        size: number(answer, 16),
    };
    let (theirs, proof) = (piece::<16>(answer, 20), piece::<16>(answer, 36));
    let proven = proven(own, &theirs, claim);
    if !secret.verify(CONNECTING, &proven, &proof) {
        return refused(WRONG_SECRET, Refusal::Secret);
    }
    let proof = secret.prove(ACCEPTING, &proven);
    (joined(&[&[WELCOME], &proof]), Ok(claim))
}

/// What a rank, whose challenge was `own`, makes of rank 0's last word.
pub(in crate::bootstrap) fn check_verdict(
    verdict: &[u8; VERDICT_BYTES],
    hello: &[u8; HELLO_BYTES],
    secret: &Secret,
    claim: Claim,
    own: &Challenge,
) -> Result<(), Refusal> {
    match verdict[0] {
        WELCOME => {
            let proven = proven(&challenge_of(hello)?, own, claim);
            match secret.verify(ACCEPTING, &proven, &piece(verdict, 1)) {
                true => Ok(()),
                false => Err(Refusal::Secret),
            }
        }
        WRONG_SECRET => Err(Refusal::Secret),
        WRONG_VERSION => Err(Refusal::Version(None)),
        _ => Err(Refusal::NotOurs),
    }
}

fn challenge_of(hello: &[u8; HELLO_BYTES]) -> Result<Challenge, Refusal> {
    match version_of(hello) {
        Some(VERSION) => Ok(piece(hello, 12)),
        Some(version) => Err(Refusal::Version(Some(version))),
        None => Err(Refusal::NotOurs),
    }
}

/// The version behind the magic word; none of other bytes.
fn version_of(bytes: &[u8]) -> Option<u32> {
    bytes.starts_with(&MAGIC).then(|| number(bytes, 8))
}

/// Rank 0's challenge first.
fn proven(accepting: &Challenge, connecting: &Challenge, claim: Claim) -> [u8; 40] {
    joined(&[
        accepting,
        connecting,
        &claim.rank.0.to_le_bytes(),
        &claim.size.to_le_bytes(),
    ])
}

/// Callers know the lengths: those of all parts sum up to `N`.
fn joined<const N: usize>(parts: &[&[u8]]) -> [u8; N] {
    let mut bytes = [0; N];
    let mut at = 0;
    for part in parts {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    debug_assert_eq!(at, N);
    bytes
}

fn piece<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut piece = [0; N];
    piece.copy_from_slice(&bytes[at..at + N]);
    piece
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(piece(bytes, at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CLAIM: Claim = Claim {
        rank: Rank(3),
        size: 7,
    };

    fn secret(byte: u8) -> Secret {
        Secret::from_bytes([byte; Secret::BYTES])
    }

    /// Both sides' outcome: of rank 0, and of the rank.
    fn meet(of_0: &Secret, of_rank: &Secret) -> (Result<Claim, Refusal>, Result<(), Refusal>) {
        let (ours, theirs) = ([1; 16], [2; 16]);
        let hello = hello(&ours);
        let answer = answer(&hello, of_rank, CLAIM, &theirs).unwrap();
        let (verdict, claim) = judge(&answer, of_0, &ours);
        let accepted = check_verdict(&verdict, &hello, of_rank, CLAIM, &theirs);
        (claim, accepted)
    }

    #[test]
    fn who_knows_the_secret_is_known_by_rank_and_size() {
        assert_eq!(meet(&secret(5), &secret(5)), (Ok(CLAIM), Ok(())));
    }

    #[test]
    fn another_secret_is_refused_by_both() {
        let refused = (Err(Refusal::Secret), Err(Refusal::Secret));
        assert_eq!(meet(&secret(5), &secret(6)), refused);
        // Whoever listens in rank 0's place can say welcome, but not prove it.
        let hello = hello(&[1; 16]);
        let welcome = [WELCOME; VERDICT_BYTES];
        let heard = check_verdict(&welcome, &hello, &secret(5), CLAIM, &[2; 16]);
        assert_eq!(heard, Err(Refusal::Secret));
    }

    #[test]
    fn an_answer_serves_once_and_nobody_else() {
        let (secret, own) = (secret(5), [1; 16]);
        let answer = answer(&hello(&own), &secret, CLAIM, &[2; 16]).unwrap();
        assert_eq!(judge(&answer, &secret, &[9; 16]).1, Err(Refusal::Secret));
        for at in 12..ANSWER_BYTES {
            let mut other = answer;
            other[at] ^= 1;
            assert_eq!(judge(&other, &secret, &own).1, Err(Refusal::Secret), "{at}");
        }
    }

    #[test]
    fn other_versions_and_other_services_are_told_apart() {
        let secret = secret(5);
        let mut newer = hello(&[1; 16]);
        newer[8] += 1;
        let refused = answer(&newer, &secret, CLAIM, &[2; 16]).unwrap_err();
        assert_eq!(refused, Refusal::Version(Some(VERSION + 1)));
        let mut newer = answer(&hello(&[1; 16]), &secret, CLAIM, &[2; 16]).unwrap();
        newer[8] += 1;
        let (verdict, refused) = judge(&newer, &secret, &[1; 16]);
        assert_eq!(refused, Err(Refusal::Version(Some(VERSION + 1))));
        let hello = hello(&[1; 16]);
        let heard = check_verdict(&verdict, &hello, &secret, CLAIM, &[2; 16]);
        assert_eq!(heard, Err(Refusal::Version(None)));
        let banner = *b"SSH-2.0-OpenSSH_9.2p1 Debian";
        assert_eq!(
            answer(&banner, &secret, CLAIM, &[2; 16]),
            Err(Refusal::NotOurs)
        );
    }

    proptest! {
        #![proptest_config(crate::seed::properties())]

        #[test]
        fn no_bytes_of_strangers_are_taken(
            bytes in any::<[u8; 26]>(),
            more in any::<[u8; 26]>(),
            verdict in any::<[u8; VERDICT_BYTES]>(),
        ) {
            let secret = secret(5);
            let mut garbage: [u8; ANSWER_BYTES] = joined(&[&bytes, &more]);
            prop_assert_eq!(judge(&garbage, &secret, &[1; 16]).1, Err(Refusal::NotOurs));
            garbage[..8].copy_from_slice(&MAGIC);
            garbage[8..12].copy_from_slice(&VERSION.to_le_bytes());
            prop_assert_eq!(judge(&garbage, &secret, &[1; 16]).1, Err(Refusal::Secret));
            let heard = check_verdict(&verdict, &hello(&[1; 16]), &secret, CLAIM, &[2; 16]);
            prop_assert!(heard.is_err());
        }
    }
}

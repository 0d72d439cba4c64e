//! The job's secret: 128 bits that its members share and nobody else knows.
//!
//! Rank 0 makes it, and it reaches the first rank of each node through the launcher's store, and the
//! others through memory that the first rank shares with processes of its user: never by a command
//! line, an environment variable or a log. It is never sent over a fabric either. What must
//! be shown to a peer is derived from it, by SipHash-2-4, and tells nothing of the rest.

use std::fmt;
use std::hash::Hasher;

use siphasher::sip::SipHasher24;
use siphasher::sip128::{self, Hasher128};

use crate::error::Result;
use crate::random::random_bytes;

/// 128 bits that only the members of a job know. `Debug` shows nothing of them, and there is no
/// `Display`.
#[derive(Clone)]
pub struct Secret([u8; Secret::BYTES]);

impl Secret {
    /// Length of a secret.
    pub const BYTES: usize = 16;

    /// A new secret, of the kernel's randomness.
    ///
    /// # Errors
    /// When the kernel has none to give.
    pub fn random() -> Result<Self> {
        random_bytes().map(Self)
    }

    /// The secret that another member made.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// The secret that a text stands for which its members share: 16 bytes or more that nobody can
    /// guess.
    pub fn of_text(text: &[u8]) -> Self {
        let mut hasher = sip128::SipHasher24::new_with_key(b"trihop of a text");
        hasher.write(text);
        Self(hasher.finish128().as_bytes())
    }

    /// The secret itself: for the launcher's store and the node's shared memory, and for nothing else.
    pub fn expose(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// A word for one use, named by `label`, that only members can know. Words of different labels
    /// tell nothing of each other, and none tells anything of the secret.
    pub fn derive(&self, label: &str) -> u64 {
        SipHasher24::new_with_key(&self.0).hash(label.as_bytes())
    }

    /// What shows to who asked with `challenge` that this side knows the secret. A challenge is to
    /// be used once, and each side and use has a `label` of its own, so that nobody's answer serves
    /// anybody else.
    pub fn prove(&self, label: &str, challenge: &[u8]) -> [u8; 16] {
        let mut hasher = sip128::SipHasher24::new_with_key(&self.0);
        // The length keeps label and challenge apart.
        hasher.write(&(label.len() as u64).to_le_bytes());
        hasher.write(label.as_bytes());
        hasher.write(challenge);
        hasher.finish128().as_bytes()
    }

    /// Whether `proof` is what [`Secret::prove`] gives. Takes the same time wherever they differ,
    /// so that nobody can find a proof byte by byte.
    pub fn verify(&self, label: &str, challenge: &[u8], proof: &[u8; 16]) -> bool {
        let expected = self.prove(label, challenge);
        let differing = expected
            .iter()
            .zip(proof)
            .fold(0, |seen, (a, b)| seen | (a ^ b));
        std::hint::black_box(differing) == 0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key of the published vectors: the bytes 0 to 15.
    fn published() -> Secret {
        Secret::from_bytes(std::array::from_fn(|at| at as u8))
    }

    #[test]
    fn words_are_those_of_the_published_vectors() {
        // Outputs of SipHash-2-4 for the first 0, 1, 7, 8 and 15 bytes of 0, 1, 2, ...
        let vectors = [
            (0, 0x726f_db47_dd0e_0e31),
            (1, 0x74f8_39c5_93dc_67fd),
            (7, 0xab02_00f5_8b01_d137),
            (8, 0x93f5_f579_9a93_2462),
            (15, 0xa129_ca61_49be_45e5),
        ];
        for (length, word) in vectors {
            let label: String = (0..length).map(|byte: u8| char::from(byte)).collect();
            assert_eq!(published().derive(&label), word, "{length} bytes");
        }
    }

    #[test]
    fn secrets_differ_and_so_do_their_words() {
        let (one, other) = (Secret::random().unwrap(), Secret::random().unwrap());
        assert_ne!(one.expose(), other.expose());
        assert_ne!(one.derive("a"), other.derive("a"));
        assert_ne!(one.derive("a"), one.derive("b"));
        let copy = Secret::from_bytes(*one.expose());
        assert_eq!(copy.derive("a"), one.derive("a"));
    }

    #[test]
    fn a_secret_is_not_shown() {
        let secret = published();
        assert_eq!(format!("{secret:?} {secret:#?}"), "Secret Secret");
    }

    #[test]
    fn only_the_answer_to_this_challenge_of_this_secret_is_a_proof() {
        let secret = published();
        let proof = secret.prove("hello", b"challenge");
        assert!(secret.verify("hello", b"challenge", &proof));
        assert!(!secret.verify("hello", b"challengf", &proof));
        assert!(!secret.verify("helloc", b"hallenge", &proof));
        assert!(
            !Secret::random()
                .unwrap()
                .verify("hello", b"challenge", &proof)
        );
        for bit in 0..128 {
            let mut wrong = proof;
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(!secret.verify("hello", b"challenge", &wrong), "bit {bit}");
        }
    }
}

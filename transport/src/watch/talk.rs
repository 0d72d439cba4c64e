//! What two watches say to each other over a connection. No I/O: bytes in, words heard and bytes to
//! send out.
//!
//! A frame is its length (u16), a kind and a body, all little-endian. Who was connected to
//! challenges first; both sides show that they know the job's secret before anything else is heard
//! of them.

use crate::secret::Secret;
use crate::topology::NodeId;

use super::news::{MAX_TEXT_BYTES, News};

/// First bytes of both sides, with the version of what follows.
const MAGIC: [u8; 8] = *b"trihopw2";

const CHALLENGE: usize = 16;
const PROOF: usize = 16;

/// Longest frame behind its length.
const MAX_FRAME_BYTES: usize = 1 + 4 + 1 + MAX_TEXT_BYTES;

/// Kinds of frames.
const HELLO: u8 = 1;
const ANSWER: u8 = 2;
const WELCOME: u8 = 3;
const READY: u8 = 4;
const NEWS: u8 = 5;
const GOODBYE: u8 = 6;

const CONNECTING: &str = "watch connects";
const ACCEPTING: &str = "watch accepts";

/// What was heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Heard {
    /// The other side is the watch of this node of our job.
    Joined(NodeId),
    News(News),
    /// All ranks of the job have arrived at its end; the other side leaves.
    Goodbye,
}

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    AwaitsHello,
    AwaitsAnswer,
    AwaitsWelcome,
    /// Proofs are exchanged, but the side that connects may have given up before it read ours.
    AwaitsReady,
    Talks,
}

/// One connection's conversation.
#[derive(Debug)]
pub(super) struct Talk {
    secret: Secret,
    own: NodeId,
    peer: Option<NodeId>,
    stage: Stage,
    /// That of the side that was connected to, then that of the other.
    challenges: [[u8; CHALLENGE]; 2],
    input: Vec<u8>,
    /// To be sent.
    pub output: Vec<u8>,
}

impl Talk {
    /// `own` has connected to the watch of `peer`; `challenge` is random.
    pub fn connecting(
        secret: &Secret,
        own: NodeId,
        peer: NodeId,
        challenge: [u8; CHALLENGE],
    ) -> Self {
        let challenges = [[0; CHALLENGE], challenge];
        Self::new(secret, own, Some(peer), Stage::AwaitsHello, challenges)
    }

    /// Somebody has connected to `own`; `challenge` is random.
    pub fn accepting(secret: &Secret, own: NodeId, challenge: [u8; CHALLENGE]) -> Self {
        let challenges = [challenge, [0; CHALLENGE]];
        let mut talk = Self::new(secret, own, None, Stage::AwaitsAnswer, challenges);
        talk.say(HELLO, &[&MAGIC, &challenge]);
        talk
    }

    fn new(
        secret: &Secret,
        own: NodeId,
        peer: Option<NodeId>,
        stage: Stage,
        challenges: [[u8; CHALLENGE]; 2],
    ) -> Self {
        Self {
            secret: secret.clone(),
            own,
            peer,
            stage,
            challenges,
            input: Vec::new(),
            output: Vec::new(),
        }
    }

    /// The node at the other end, once it has shown who it is.
    pub fn peer(&self) -> Option<NodeId> {
        self.peer.filter(|_| self.stage == Stage::Talks)
    }

    /// Whether the other end has still to show that it is of this job. One that waits for the last
    /// word is known: it may be stopped meanwhile.
    pub fn is_stranger(&self) -> bool {
        !matches!(self.stage, Stage::AwaitsReady | Stage::Talks)
    }

    pub fn say_news(&mut self, news: &News) {
        let (cause, text) = news.parts();
        self.say(
            NEWS,
            &[&news.rank.0.to_le_bytes(), &[cause], text.as_bytes()],
        );
    }

    pub fn say_goodbye(&mut self) {
        self.say(GOODBYE, &[]);
    }

    fn say(&mut self, kind: u8, parts: &[&[u8]]) {
        let length = 1 + parts.iter().map(|part| part.len()).sum::<usize>();
        debug_assert!(length <= MAX_FRAME_BYTES, "{length} bytes");
        self.output.extend((length as u16).to_le_bytes());
        self.output.push(kind);
        parts
            .iter()
            .for_each(|part| self.output.extend_from_slice(part));
    }

    /// Takes bytes of the other side.
    ///
    /// # Errors
    /// What no watch of this job says; the connection is to be dropped.
    pub fn receive(&mut self, bytes: &[u8], heard: &mut Vec<Heard>) -> Result<(), &'static str> {
        self.input.extend_from_slice(bytes);
        let mut at = 0;
        while let Some((length, rest)) = self.input[at..].split_first_chunk::<2>() {
            let length = usize::from(u16::from_le_bytes(*length));
            if length == 0 || length > MAX_FRAME_BYTES {
                return Err("a frame of an impossible length");
            }
            let Some(frame) = rest.get(..length) else {
                break;
            };
            let frame = frame.to_vec();
            at += 2 + length;
            self.hear(frame[0], &frame[1..], heard)?;
        }
        self.input.drain(..at);
        Ok(())
    }

    fn hear(&mut self, kind: u8, body: &[u8], heard: &mut Vec<Heard>) -> Result<(), &'static str> {
        match (self.stage, kind) {
            (Stage::AwaitsHello, HELLO) => {
                let challenge = body
                    .strip_prefix(&MAGIC)
                    .and_then(|rest| rest.try_into().ok());
                self.challenges[0] = challenge.ok_or("a hello of another version")?;
                let proof = self.secret.prove(CONNECTING, &self.proven());
                let (own, challenge) = (self.own.0.to_le_bytes(), self.challenges[1]);
                self.say(ANSWER, &[&MAGIC, &own, &challenge, &proof]);
                self.stage = Stage::AwaitsWelcome;
            }
            (Stage::AwaitsAnswer, ANSWER) => {
                let rest = body
                    .strip_prefix(&MAGIC)
                    .ok_or("an answer of another version")?;
                let (node, rest) = rest
                    .split_first_chunk::<4>()
                    .ok_or("an answer that is too short")?;
                let (challenge, proof) = rest
                    .split_first_chunk::<CHALLENGE>()
                    .ok_or("an answer that is too short")?;
                let proof: &[u8; PROOF] = proof
                    .try_into()
                    .map_err(|_| "an answer of a wrong length")?;
                let peer = NodeId(u32::from_le_bytes(*node));
                self.peer = Some(peer);
                self.challenges[1] = *challenge;
                if !self.secret.verify(CONNECTING, &self.proven(), proof) {
                    return Err("a proof that is none");
                }
                let proof = self.secret.prove(ACCEPTING, &self.proven());
                self.say(WELCOME, &[&proof]);
                self.stage = Stage::AwaitsReady;
            }
            (Stage::AwaitsReady, READY) => {
                self.stage = Stage::Talks;
                heard.extend(self.peer.map(Heard::Joined));
            }
            (Stage::AwaitsWelcome, WELCOME) => {
                let proof: &[u8; PROOF] =
                    body.try_into().map_err(|_| "a welcome of a wrong length")?;
                if !self.secret.verify(ACCEPTING, &self.proven(), proof) {
                    return Err("a proof that is none");
                }
                self.say(READY, &[]);
                self.stage = Stage::Talks;
                heard.extend(self.peer.map(Heard::Joined));
            }
            (Stage::Talks, NEWS) => {
                let (rank, rest) = body
                    .split_first_chunk::<4>()
                    .ok_or("news that are too short")?;
                let (&cause, text) = rest.split_first().ok_or("news that are too short")?;
                let news = News::of_parts(u32::from_le_bytes(*rank), cause, text);
                heard.push(Heard::News(news.ok_or("news of no known cause")?));
            }
            (Stage::Talks, GOODBYE) => heard.push(Heard::Goodbye),
            _ => return Err("a word that does not belong here"),
        }
        Ok(())
    }

    /// What both sides prove to know the secret for: their challenges and who they are, who
    /// connects first.
    fn proven(&self) -> Vec<u8> {
        let peer = self.peer.unwrap_or(self.own);
        let nodes = match self.stage {
            Stage::AwaitsAnswer => [peer, self.own],
            _ => [self.own, peer],
        };
        let nodes = nodes.map(|node| node.0.to_le_bytes());
        [
            &self.challenges[0][..],
            &self.challenges[1],
            &nodes[0],
            &nodes[1],
        ]
        .concat()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::seed;
    use crate::topology::Rank;
    use crate::watch::Cause;

    /// Carries bytes both ways until nothing is left to say.
    fn carry(talks: &mut [Talk; 2]) -> Result<[Vec<Heard>; 2], &'static str> {
        let mut heard = [Vec::new(), Vec::new()];
        loop {
            let said = [0, 1].map(|side: usize| std::mem::take(&mut talks[side].output));
            if said.iter().all(Vec::is_empty) {
                return Ok(heard);
            }
            for side in [0, 1] {
                // Byte by byte: frames come in any pieces.
                for byte in &said[1 - side] {
                    talks[side].receive(&[*byte], &mut heard[side])?;
                }
            }
        }
    }

    fn pair(connecting: &Secret, accepting: &Secret) -> [Talk; 2] {
        [
            Talk::connecting(connecting, NodeId(3), NodeId(7), [1; 16]),
            Talk::accepting(accepting, NodeId(7), [2; 16]),
        ]
    }

    #[test]
    fn watches_of_one_job_join_and_hear_each_others_news() {
        let secret = Secret::from_bytes([9; 16]);
        let mut talks = pair(&secret, &secret);
        let heard = carry(&mut talks).unwrap();
        assert_eq!(
            heard,
            [
                vec![Heard::Joined(NodeId(7))],
                vec![Heard::Joined(NodeId(3))]
            ]
        );
        assert_eq!(
            (talks[0].peer(), talks[1].peer()),
            (Some(NodeId(7)), Some(NodeId(3)))
        );
        let news = [
            News::failed(Rank(5), "why"),
            News {
                rank: Rank(1),
                cause: Cause::Silent,
            },
        ];
        news.iter().for_each(|news| talks[0].say_news(news));
        talks[1].say_goodbye();
        let heard = carry(&mut talks).unwrap();
        assert_eq!(
            heard,
            [vec![Heard::Goodbye], news.map(Heard::News).to_vec()]
        );
    }

    #[test]
    fn strangers_without_the_secret_never_join() {
        let (ours, theirs) = (Secret::from_bytes([9; 16]), Secret::from_bytes([8; 16]));
        for (connecting, accepting) in [(&ours, &theirs), (&theirs, &ours)] {
            let mut talks = pair(connecting, accepting);
            assert!(carry(&mut talks).is_err());
            assert_eq!((talks[0].peer(), talks[1].peer()), (None, None));
        }
    }

    /// Each side finds out by itself, whatever the other one says.
    #[test]
    fn an_answer_without_the_secret_gets_no_welcome() {
        let (ours, theirs) = (Secret::from_bytes([9; 16]), Secret::from_bytes([8; 16]));
        let [mut connecting, mut accepting] = pair(&theirs, &ours);
        let mut heard = Vec::new();
        let hello = std::mem::take(&mut accepting.output);
        connecting.receive(&hello, &mut heard).unwrap();
        let answer = std::mem::take(&mut connecting.output);
        let refused = accepting.receive(&answer, &mut heard);
        assert_eq!(refused, Err("a proof that is none"));
        assert!(accepting.output.is_empty(), "and nothing more is said");
    }

    /// Who sends our own words back knows nothing.
    #[test]
    fn an_echo_is_no_watch() {
        let secret = Secret::from_bytes([9; 16]);
        let mut talk = Talk::accepting(&secret, NodeId(7), [2; 16]);
        let said = std::mem::take(&mut talk.output);
        assert!(talk.receive(&said, &mut Vec::new()).is_err());
    }

    #[test]
    fn any_bytes_are_refused_or_waited_for_without_a_panic() {
        let secret = Secret::from_bytes([9; 16]);
        let bytes = proptest::collection::vec(any::<u8>(), 0..700);
        let run = |talk: Talk, bytes: &[u8]| {
            let (mut talk, mut heard) = (talk, Vec::new());
            let outcome = talk.receive(bytes, &mut heard);
            // What is refused is dropped with its connection; what is waited for is no more than a
            // frame.
            assert!(outcome.is_err() || talk.input.len() < MAX_FRAME_BYTES + 2);
            talk
        };
        proptest!(seed::properties(), |(bytes in bytes, kind in 0..8u8)| {
            let short = [&(bytes.len() as u16 + 1).to_le_bytes()[..], &[kind], &bytes].concat();
            for bytes in [&bytes, &short] {
                prop_assert_eq!(run(Talk::accepting(&secret, NodeId(1), [0; 16]), bytes).peer(), None);
                prop_assert_eq!(run(Talk::connecting(&secret, NodeId(1), NodeId(2), [0; 16]), bytes).peer(), None);
                let mut joined = pair(&secret, &secret);
                carry(&mut joined).unwrap();
                let [_, talk] = joined;
                run(talk, bytes);
            }
        });
    }
}

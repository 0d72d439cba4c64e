//! Frames between a rank and `trihop run`: length u32, kind u8, body; little-endian, everything
//! checked.

use std::fmt;

/// Version of these frames, said in the first one.
pub const VERSION: u32 = 6;

/// Largest value in the store, in bytes.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// Largest frame without its length word, in bytes.
pub const FRAME_BYTES_MAX: usize = VALUE_BYTES_MAX + 4096;

/// Longest text that is carried (an abort's reason, the names of missing ranks), in bytes; longer
/// ones are cut.
pub const TEXT_BYTES_MAX: usize = 4000;

/// What a rank asks of the launcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// First frame: who speaks, in which version.
    Hello {
        /// [`VERSION`] of the rank.
        version: u32,
        /// The rank, against mixed-up descriptors.
        rank: u32,
    },
    /// Publish a value; answered by `Done`.
    Put {
        /// Key within this rank's keys.
        key: String,
        /// Raw bytes, at most [`VALUE_BYTES_MAX`].
        value: Vec<u8>,
    },
    /// Arrive at the fence; answered by `Done` once all have.
    Fence,
    /// Fetch a value; answered by `Value`.
    Get {
        /// Whose value.
        rank: u32,
        /// Its key.
        key: String,
    },
    /// Ask who has not arrived at the pending fence; answered by `Missing`.
    Missing,
    /// End the job; answered by `Done`, then by signals.
    Abort {
        /// Exit status for the whole job.
        status: i32,
        /// The reason that the launcher prints.
        why: String,
    },
    /// Take leave; answered by `Done`.
    Finalize,
    /// Of the first agent of a node: come to a job of several, for all that follows; answered, once
    /// all agents of it have, by the `Value` of [`encode_agents`].
    Join {
        /// How many nodes the job has ranks on; 0 for all.
        nodes: u32,
        /// Name of the job.
        job: String,
    },
    /// Of an agent: for how long no agent has had a job; answered by a `Value`, of so many
    /// milliseconds, and of nothing while one has.
    Quiet,
    /// Of another agent of a node: come to the next job to which the first one there comes;
    /// answered as [`Request::Join`].
    Follow,
    /// Ask whether all processes of the job may still come; answered by `Done` if so.
    Check,
}

/// What the launcher answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// It is done.
    Done,
    /// The value asked for, or that there is none.
    Value(Option<Vec<u8>>),
    /// Ranks that have not arrived, as text.
    Missing(String),
    /// It cannot be done.
    Failed(String),
}

/// The value by which an agent hears of the agents of its job, whose numbers are given in order:
/// runs of numbers, each by its first one and how many they are.
pub fn encode_agents(agents: &[u32]) -> Vec<u8> {
    let runs = agents.chunk_by(|one, next| next - one == 1);
    let words = runs.flat_map(|run| [run[0], run.len() as u32]);
    words.flat_map(u32::to_le_bytes).collect()
}

/// What [`encode_agents`] has written, of at least one agent, and of `all` at most.
pub fn decode_agents(value: &[u8], all: u32) -> Option<Vec<u32>> {
    let (words, []) = value.as_chunks() else {
        return None;
    };
    let words: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let (runs, []) = words.as_chunks() else {
        return None;
    };
    let mut agents = Vec::new();
    for &[first, count] in runs {
        let end = first.checked_add(count).filter(|&end| end <= all)?;
        let is_behind = agents.last().is_none_or(|&last| last < first);
        (is_behind && count > 0).then(|| agents.extend(first..end))?;
    }
    (!agents.is_empty()).then_some(agents)
}

/// Bytes that are no frame, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadFrame(pub String);

impl fmt::Display for BadFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Request {
    /// Appends the frame to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello { version, rank } => {
                frame(out, 1, &[&version.to_le_bytes(), &rank.to_le_bytes()]);
            }
            Self::Put { key, value } => {
                frame(
                    out,
                    2,
                    &[&(key.len() as u32).to_le_bytes(), key.as_bytes(), value],
                );
            }
            Self::Fence => frame(out, 3, &[]),
            Self::Get { rank, key } => frame(out, 4, &[&rank.to_le_bytes(), key.as_bytes()]),
            Self::Missing => frame(out, 5, &[]),
            Self::Abort { status, why } => {
                frame(out, 6, &[&status.to_le_bytes(), cut(why).as_bytes()])
            }
            Self::Finalize => frame(out, 7, &[]),
            Self::Join { nodes, job } => frame(out, 8, &[&nodes.to_le_bytes(), job.as_bytes()]),
            Self::Quiet => frame(out, 9, &[]),
            Self::Follow => frame(out, 10, &[]),
            Self::Check => frame(out, 11, &[]),
        }
    }

    /// The request in a frame that [`Frames`] cut out.
    ///
    /// # Errors
    /// When the bytes are no request.
    pub fn parse(frame: &[u8]) -> Result<Self, BadFrame> {
        let mut body = Body::of(frame)?;
        let request = match body.kind {
            1 => Self::Hello {
                version: body.number()?,
                rank: body.number()?,
            },
            2 => {
                let length = body.number()? as usize;
                Self::Put {
                    key: body.text(length)?,
                    value: body.rest().to_vec(),
                }
            }
            3 => Self::Fence,
            4 => Self::Get {
                rank: body.number()?,
                key: body.rest_text()?,
            },
            5 => Self::Missing,
            6 => Self::Abort {
                status: body.number()? as i32,
                why: body.rest_text()?,
            },
            7 => Self::Finalize,
            8 => Self::Join {
                nodes: body.number()?,
                job: body.rest_text()?,
            },
            9 => Self::Quiet,
            10 => Self::Follow,
            11 => Self::Check,
            kind => return Err(BadFrame(format!("request of unknown kind {kind}"))),
        };
        body.end()?;
        Ok(request)
    }
}

impl Reply {
    /// Appends the frame to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Done => frame(out, 1, &[]),
            Self::Value(Some(value)) => frame(out, 2, &[value]),
            Self::Value(None) => frame(out, 3, &[]),
            Self::Missing(ranks) => frame(out, 4, &[cut(ranks).as_bytes()]),
            Self::Failed(why) => frame(out, 5, &[cut(why).as_bytes()]),
        }
    }

    /// The reply in a frame that [`Frames`] cut out.
    ///
    /// # Errors
    /// When the bytes are no reply.
    pub fn parse(frame: &[u8]) -> Result<Self, BadFrame> {
        let mut body = Body::of(frame)?;
        let reply = match body.kind {
            1 => Self::Done,
            2 => Self::Value(Some(body.rest().to_vec())),
            3 => Self::Value(None),
            4 => Self::Missing(body.rest_text()?),
            5 => Self::Failed(body.rest_text()?),
            kind => return Err(BadFrame(format!("reply of unknown kind {kind}"))),
        };
        body.end()?;
        Ok(reply)
    }
}

/// Cuts a byte stream into frames; holds at most one frame and what arrived with it.
#[derive(Debug, Default)]
pub struct Frames {
    bytes: Vec<u8>,
    start: usize,
}

impl Frames {
    /// Where arriving bytes are appended.
    pub fn tail(&mut self) -> &mut Vec<u8> {
        self.bytes.drain(..self.start);
        self.start = 0;
        &mut self.bytes
    }

    /// The next whole frame without its length word, if it has arrived.
    ///
    /// # Errors
    /// When the length is impossible; the stream cannot be read on.
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, BadFrame> {
        let Some((length, rest)) = self.bytes[self.start..].split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length == 0 || length > FRAME_BYTES_MAX {
            return Err(BadFrame(format!(
                "frame of {length} bytes, possible are 1 to {FRAME_BYTES_MAX}"
            )));
        }
        if rest.len() < length {
            return Ok(None);
        }
        let begin = self.start + 4;
        self.start = begin + length;
        Ok(Some(&self.bytes[begin..begin + length]))
    }
}

/// Kind and unread rest of a frame.
struct Body<'a> {
    kind: u8,
    rest: &'a [u8],
}

impl<'a> Body<'a> {
    fn of(frame: &'a [u8]) -> Result<Self, BadFrame> {
        let (kind, rest) = frame
            .split_first()
            .ok_or_else(|| BadFrame("empty frame".into()))?;
        Ok(Self { kind: *kind, rest })
    }

    fn number(&mut self) -> Result<u32, BadFrame> {
        let (number, rest) = self
            .rest
            .split_first_chunk::<4>()
            .ok_or_else(|| BadFrame(format!("frame {} is cut off", self.kind)))?;
        self.rest = rest;
        Ok(u32::from_le_bytes(*number))
    }

    fn text(&mut self, length: usize) -> Result<String, BadFrame> {
        let (text, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or_else(|| BadFrame(format!("frame {} is cut off", self.kind)))?;
        self.rest = rest;
        String::from_utf8(text.to_vec())
            .map_err(|_| BadFrame(format!("text of frame {} is not UTF-8", self.kind)))
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    fn rest_text(&mut self) -> Result<String, BadFrame> {
        self.text(self.rest.len())
    }

    fn end(&self) -> Result<(), BadFrame> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(BadFrame(format!(
            "{} bytes too many in frame {}",
            self.rest.len(),
            self.kind
        )))
    }
}

fn frame(out: &mut Vec<u8>, kind: u8, parts: &[&[u8]]) {
    let length = 1 + parts.iter().map(|p| p.len()).sum::<usize>();
    out.extend_from_slice(&(length as u32).to_le_bytes());
    out.push(kind);
    for part in parts {
        out.extend_from_slice(part);
    }
}

fn cut(text: &str) -> &str {
    let end = (0..=TEXT_BYTES_MAX.min(text.len()))
        .rev()
        .find(|i| text.is_char_boundary(*i));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request() -> impl Strategy<Value = Request> {
        prop_oneof![
            any::<(u32, u32)>().prop_map(|(version, rank)| Request::Hello { version, rank }),
            (".{0,30}", any::<Vec<u8>>()).prop_map(|(key, value)| Request::Put { key, value }),
            Just(Request::Fence),
            (any::<u32>(), ".{0,30}").prop_map(|(rank, key)| Request::Get { rank, key }),
            Just(Request::Missing),
            (any::<i32>(), ".{0,50}").prop_map(|(status, why)| Request::Abort { status, why }),
            Just(Request::Finalize),
            (any::<u32>(), ".{0,50}").prop_map(|(nodes, job)| Request::Join { nodes, job }),
            Just(Request::Quiet),
            Just(Request::Follow),
            Just(Request::Check),
        ]
    }

    fn reply() -> impl Strategy<Value = Reply> {
        prop_oneof![
            Just(Reply::Done),
            any::<Option<Vec<u8>>>().prop_map(Reply::Value),
            ".{0,50}".prop_map(Reply::Missing),
            ".{0,50}".prop_map(Reply::Failed),
        ]
    }

    proptest! {
        #![proptest_config(crate::seed::properties())]

        #[test]
        fn frames_survive_any_cutting(
            requests in prop::collection::vec(request(), 1..8),
            pieces in prop::collection::vec(1_usize..9, 1..6),
        ) {
            let mut stream = Vec::new();
            requests.iter().for_each(|r| r.encode(&mut stream));
            let (mut frames, mut seen, mut at) = (Frames::default(), Vec::new(), 0);
            for size in pieces.iter().cycle() {
                let end = (at + size).min(stream.len());
                frames.tail().extend_from_slice(&stream[at..end]);
                at = end;
                while let Some(frame) = frames.next_frame().unwrap() {
                    seen.push(Request::parse(frame).unwrap());
                }
                if at == stream.len() {
                    break;
                }
            }
            prop_assert_eq!(seen, requests);
        }

        #[test]
        fn replies_come_back(reply in reply()) {
            let mut bytes = Vec::new();
            reply.encode(&mut bytes);
            prop_assert_eq!(Reply::parse(&bytes[4..]), Ok(reply));
        }

        #[test]
        fn numbers_of_agents_come_back(agents in prop::collection::btree_set(0..40_u32, 1..40)) {
            let agents: Vec<u32> = agents.into_iter().collect();
            let last = agents[agents.len() - 1];
            let encoded = encode_agents(&agents);
            prop_assert_eq!(decode_agents(&encoded, last), None, "one is too many");
            prop_assert_eq!(decode_agents(&encoded, last + 1), Some(agents));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in any::<Vec<u8>>()) {
            let agents = decode_agents(&bytes, 1000).unwrap_or_default();
            prop_assert!(agents.len() <= 1000 && agents.is_sorted_by(|a, b| a < b));
            let _ = Request::parse(&bytes);
            let _ = Reply::parse(&bytes);
            let mut frames = Frames::default();
            frames.tail().extend_from_slice(&bytes);
            while let Ok(Some(frame)) = frames.next_frame() {
                let _ = Request::parse(frame);
            }
        }
    }

    #[test]
    fn a_reason_is_cut_at_a_character() {
        let mut bytes = Vec::new();
        Reply::Failed("é".repeat(TEXT_BYTES_MAX)).encode(&mut bytes);
        assert_eq!(
            Reply::parse(&bytes[4..]),
            Ok(Reply::Failed("é".repeat(TEXT_BYTES_MAX / 2)))
        );
    }
}

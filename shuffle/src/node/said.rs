//! What ranks say to their agent, and the agent to them, as bytes.
//!
//! Both are processes of one user and, as they have compared when they met, of one library.

use super::requests::{Answer, Request, Way};
use crate::config::{Options, Shares, StreamOptions};
use crate::error::{Error, Result};
use crate::queue::limits::LinkTerms;

/// What passes between a rank and its agent beside inboxes.
#[derive(Debug)]
pub(super) enum Said {
    /// A rank makes its request of this number.
    Request(u64, Request),
    /// The agent answers it.
    Answer(u64, Answer),
    /// The agent cannot go on, or a process without one cannot start.
    GivenUp(Error),
}

/// How an error reads that another process has met.
fn told(why: String) -> Error {
    Error::Environment {
        key: "the agent of this node".to_owned(),
        why,
    }
}

impl Said {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Request(number, request) => {
                out.push(0);
                put(&mut out, *number);
                encode_request(request, &mut out);
            }
            Self::Answer(number, answer) => {
                out.push(1);
                put(&mut out, *number);
                encode_answer(answer, &mut out);
            }
            Self::GivenUp(error) => {
                out.push(2);
                put_error(&mut out, error);
            }
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut bytes = Bytes(bytes);
        let said = match bytes.byte()? {
            0 => Self::Request(bytes.word()?, decode_request(&mut bytes)?),
            1 => Self::Answer(bytes.word()?, decode_answer(&mut bytes)?),
            2 => Self::GivenUp(bytes.error()?),
            _ => return None,
        };
        bytes.0.is_empty().then_some(said)
    }
}

fn encode_request(request: &Request, out: &mut Vec<u8>) {
    match request {
        Request::Begin {
            name,
            options,
            item_bytes,
            again,
        } => {
            out.push(0);
            put_text(out, name);
            put(out, *item_bytes as u64);
            put_closed(out, *again);
            encode_options(options, out);
        }
        Request::Open(Way::Again(number)) => {
            out.push(1);
            put(out, u64::from(*number));
        }
        Request::Open(Way::New(terms)) => {
            out.push(2);
            put_terms(out, *terms);
        }
        Request::Forget => out.push(3),
        Request::GiveUp => out.push(4),
        Request::Retire(number) => {
            out.push(5);
            put(out, u64::from(*number));
        }
        Request::Count(number) => {
            out.push(7);
            put(out, u64::from(*number));
        }
        Request::Arrive { alone } => out.extend([6, u8::from(*alone)]),
    }
}

fn decode_request(bytes: &mut Bytes<'_>) -> Option<Request> {
    Some(match bytes.byte()? {
        0 => Request::Begin {
            name: bytes.text()?,
            item_bytes: usize::try_from(bytes.word()?).ok()?,
            again: bytes.closed()?,
            options: Box::new(decode_options(bytes)?),
        },
        1 => Request::Open(Way::Again(bytes.number()?)),
        2 => Request::Open(Way::New(bytes.terms()?)),
        3 => Request::Forget,
        4 => Request::GiveUp,
        5 => Request::Retire(bytes.number()?),
        6 => Request::Arrive {
            alone: bytes.byte()? != 0,
        },
        7 => Request::Count(bytes.number()?),
        _ => return None,
    })
}

fn put_terms(out: &mut Vec<u8>, terms: LinkTerms) {
    put(out, terms.receives);
    put(out, terms.longest_offer);
}

fn encode_answer(answer: &Answer, out: &mut Vec<u8>) {
    let (kind, outcome) = match answer {
        Answer::Counted(number) => {
            out.extend([3, 1]);
            put(out, *number);
            return;
        }
        Answer::Begun(outcome) => (0, outcome.as_ref().map(Some)),
        Answer::Opened(outcome) => (1, outcome.as_ref().map(|()| None)),
        Answer::Arrived(outcome) => (2, outcome.as_ref().map(|()| None)),
    };
    out.extend([kind, u8::from(outcome.is_ok())]);
    match outcome {
        Ok(Some((terms, again))) => {
            put_terms(out, *terms);
            put_closed(out, *again);
        }
        Ok(None) => {}
        Err(error) => put_error(out, error),
    }
}

fn decode_answer(bytes: &mut Bytes<'_>) -> Option<Answer> {
    let (kind, is_well) = (bytes.byte()?, bytes.byte()? != 0);
    let mut outcome: Result<()> = Ok(());
    if !is_well {
        outcome = Err(bytes.error()?);
    }
    Some(match (kind, outcome) {
        (0, Ok(())) => Answer::Begun(Ok((bytes.terms()?, bytes.closed()?))),
        (0, Err(error)) => Answer::Begun(Err(error)),
        (1, outcome) => Answer::Opened(outcome),
        (2, outcome) => Answer::Arrived(outcome),
        (3, Ok(())) => Answer::Counted(bytes.word()?),
        _ => return None,
    })
}

/// By their names, as the table has them; what only a rank itself has use for is left out.
fn encode_options(options: &StreamOptions, out: &mut Vec<u8>) {
    let all = Options {
        stream: options.clone(),
        ..Options::default()
    };
    let rows = Options::TABLE.iter().filter(|row| row.of_stream);
    for row in rows {
        put_text(out, row.name);
        put_text(out, &all.get(row.name).unwrap_or_default());
    }
    put_text(out, "");
    let words = options
        .given_shares
        .map_or_else(Vec::new, |shares| shares.words());
    put(out, words.len() as u64);
    words.into_iter().for_each(|word| put(out, word));
}

fn decode_options(bytes: &mut Bytes<'_>) -> Option<StreamOptions> {
    let mut all = Options::default();
    loop {
        let name = bytes.text()?;
        if name.is_empty() {
            break;
        }
        all.set(&name, &bytes.text()?).ok()?;
    }
    let count = bytes.word()?;
    if count > bytes.0.len() as u64 / 8 {
        return None;
    }
    let words: Option<Vec<u64>> = (0..count).map(|_| bytes.word()).collect();
    let words = words?;
    if !words.is_empty() {
        all.stream.given_shares = Some(Shares::of_words(&words)?);
    }
    Some(all.stream)
}

fn put(out: &mut Vec<u8>, word: u64) {
    out.extend_from_slice(&word.to_le_bytes());
}

/// Longest text, in bytes: a message has room for a few of them.
const TEXT_BYTES: usize = 4 << 10;

fn put_text(out: &mut Vec<u8>, text: &str) {
    let mut end = text.len().min(TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    put(out, end as u64);
    out.extend_from_slice(&text.as_bytes()[..end]);
}

/// What is about a rank stays so, since programs tell such errors apart; of others the text is
/// said.
fn put_error(out: &mut Vec<u8>, error: &Error) {
    let (kind, rank, text) = match error {
        Error::PeerDead { rank, how } => (1, *rank, how.clone()),
        Error::LinkFailed { rank, why } => (2, *rank, why.clone()),
        Error::AgentDead { rank, how } => (3, *rank, how.clone()),
        Error::PeerFailed { rank, why } => (4, *rank, why.clone()),
        error => (0, 0, error.to_string()),
    };
    out.push(kind);
    put(out, rank.into());
    put_text(out, &text);
}

fn put_closed(out: &mut Vec<u8>, number: Option<u16>) {
    put(out, number.map_or(u64::MAX, u64::from));
}

/// What is still to be read.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    /// The number of a stream.
    fn number(&mut self) -> Option<u16> {
        u16::try_from(self.word()?).ok()
    }

    fn terms(&mut self) -> Option<LinkTerms> {
        Some(LinkTerms {
            receives: self.word()?,
            longest_offer: self.word()?,
        })
    }

    fn closed(&mut self) -> Option<Option<u16>> {
        match self.word()? {
            u64::MAX => Some(None),
            number => u16::try_from(number).ok().map(Some),
        }
    }

    fn error(&mut self) -> Option<Error> {
        let (kind, rank) = (self.byte()?, u32::try_from(self.word()?).ok()?);
        let text = self.text()?;
        Some(match kind {
            0 => told(text),
            1 => Error::PeerDead { rank, how: text },
            2 => Error::LinkFailed { rank, why: text },
            3 => Error::AgentDead { rank, how: text },
            4 => Error::PeerFailed { rank, why: text },
            _ => return None,
        })
    }

    fn text(&mut self) -> Option<String> {
        let length = usize::try_from(self.word()?).ok()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use trihop_transport::link::Mover;

    use super::*;

    fn all() -> Vec<Said> {
        let mut options = StreamOptions {
            priority: 7,
            max_message_bytes: 12345,
            given_shares: Some(Shares::default()),
            ..StreamOptions::default()
        };
        let begin = |options: &StreamOptions, again| Request::Begin {
            name: "facts".to_owned(),
            options: Box::new(options.clone()),
            item_bytes: 24,
            again,
        };
        let with_shares = begin(&options, Some(3));
        options.given_shares = None;
        let requests = [
            with_shares,
            begin(&options, None),
            Request::Open(Way::Again(9)),
            Request::Open(Way::New(LinkTerms::of(7, Mover::Segments))),
            Request::Open(Way::New(LinkTerms::ANY)),
            Request::Forget,
            Request::GiveUp,
            Request::Retire(u16::MAX),
            Request::Count(7),
            Request::Arrive { alone: true },
        ];
        let answers = [
            Answer::Begun(Ok((LinkTerms::of(5, Mover::Segments), Some(1)))),
            Answer::Begun(Ok((LinkTerms::ANY, None))),
            Answer::Begun(Err(told("no".to_owned()))),
            Answer::Opened(Ok(())),
            Answer::Opened(Err(told("memory".to_owned()))),
            Answer::Counted(u64::MAX),
            Answer::Arrived(Ok(())),
        ];
        let requests = (0..).zip(requests).map(|(n, r)| Said::Request(n, r));
        let answers = (0..).zip(answers).map(|(n, a)| Said::Answer(n, a));
        let given_up = Said::GivenUp(told("gone".to_owned()));
        requests.chain(answers).chain([given_up]).collect()
    }

    #[test]
    fn errors_about_ranks_come_back_as_what_they_are() {
        let (rank, text) = (7, || "gone".to_owned());
        for error in [
            Error::PeerDead { rank, how: text() },
            Error::LinkFailed { rank, why: text() },
            Error::AgentDead { rank, how: text() },
            Error::PeerFailed { rank, why: text() },
        ] {
            let bytes = Said::Answer(0, Answer::Arrived(Err(error.clone()))).encode();
            let Some(Said::Answer(0, Answer::Arrived(Err(said)))) = Said::decode(&bytes) else {
                panic!("{error}: {bytes:?}");
            };
            assert_eq!(said, error);
            let bytes = Said::GivenUp(error.clone()).encode();
            let said = Said::decode(&bytes);
            assert!(matches!(said, Some(Said::GivenUp(said)) if said == error));
        }
    }

    #[test]
    fn what_is_said_comes_back() {
        for said in all() {
            let bytes = said.encode();
            // Errors come as what the agent tells.
            let plain = |said: &Said| format!("{said:?}").replace("the agent of this node: ", "");
            let text = plain(&said);
            assert_eq!(plain(&Said::decode(&bytes).unwrap()), text);
            for cut in 0..bytes.len() {
                assert!(Said::decode(&bytes[..cut]).is_none(), "{text} cut to {cut}");
            }
        }
    }

    proptest! {
        #![proptest_config(crate::seed::properties())]

        #[test]
        fn arbitrary_bytes_never_panic(bytes in any::<Vec<u8>>()) {
            let _ = Said::decode(&bytes);
        }
    }
}

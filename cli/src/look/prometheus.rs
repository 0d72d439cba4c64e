//! Counters in the text format that Prometheus scrapes.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use trihop::observe::{Seen, StageSeen, StreamSeen};
use trihop::{QueueStats, Stats};

use super::LookError;
use super::choice::Choice;
use crate::output;

/// A scraper that has not asked and taken its answer by then is left: others wait.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a stage has beside its counters: name, what it is, and the number.
type Gauge<T> = (&'static str, &'static str, fn(&T) -> u64);

const STAGE_GAUGES: [Gauge<StageSeen>; 5] = [
    ("open_queues", "Queues that are open.", |stage| stage.queues),
    (
        "queued_bytes",
        "Bytes that the next hop has not taken.",
        |stage| stage.waiting_bytes,
    ),
    ("ready_batches", "Batches that wait for credit.", |stage| {
        stage.ready_batches
    }),
    (
        "in_flight_batches",
        "Batches that are not acknowledged.",
        |stage| stage.in_flight_batches,
    ),
    ("credits", "Batches that may be sent at once.", |stage| {
        stage.credits
    }),
];

type EndpointGauge = (&'static str, &'static str, fn(&Seen) -> f64);

/// What an endpoint has itself: name, what it is, and the number.
const ENDPOINT_GAUGES: [EndpointGauge; 4] = [
    (
        "trihop_waited_seconds",
        "How long the oldest call has waited, 0 where none does.",
        |seen| {
            let waited_ns = seen.longest_wait().map_or(0, |wait| wait.waited_ns);
            waited_ns as f64 / 1e9
        },
    ),
    (
        "trihop_age_seconds",
        "How old these numbers of the endpoint are.",
        |seen| seen.now.as_ref().map_or(0, |now| now.age_ns) as f64 / 1e9,
    ),
    (
        "trihop_open_streams",
        "Streams that are open, also those that have no room on the page.",
        |seen| seen.now.as_ref().map_or(0, |now| now.open_streams) as f64,
    ),
    (
        "trihop_missing_streams",
        "Open streams that have no room on the page of the endpoint: no series counts them.",
        |seen| seen.now.as_ref().map_or(0, |now| now.missing_streams()) as f64,
    ),
];

/// Those of a queue's counters that may fall again.
const FALLING: [&str; 2] = ["waiting_ns", "longest_wait_ns"];

/// All counters of these endpoints.
pub fn text(all: &[Seen]) -> String {
    let mut out = String::new();
    let head = |out: &mut String, name: &str, kind: &str, help: &str| {
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        let _ = writeln!(out, "# HELP {name} {}", help.replace('\\', "\\\\"));
        let _ = writeln!(out, "# TYPE {name} {kind}");
    };
    for row in Stats::TABLE {
        let name = format!("trihop_stream_{}_total", row.name);
        head(&mut out, &name, "counter", row.doc());
        for (labels, stream) in streams(all) {
            let count = stream
                .totals
                .rows()
                .find(|(other, _)| other.name == row.name);
            let _ = writeln!(
                out,
                "{name}{{{labels}}} {}",
                count.map_or(0, |(_, count)| count)
            );
        }
    }
    for row in QueueStats::TABLE {
        let falls = FALLING.contains(&row.name);
        let (kind, end) = if falls {
            ("gauge", "")
        } else {
            ("counter", "_total")
        };
        let name = format!("trihop_queue_{}{end}", row.name);
        head(&mut out, &name, kind, row.doc());
        for (labels, stage) in stages(all) {
            let count = stage.all.rows().find(|(other, _)| other.name == row.name);
            let _ = writeln!(
                out,
                "{name}{{{labels}}} {}",
                count.map_or(0, |(_, count)| count)
            );
        }
    }
    for (name, help, of) in STAGE_GAUGES {
        let name = format!("trihop_stage_{name}");
        head(&mut out, &name, "gauge", help);
        for (labels, stage) in stages(all) {
            let _ = writeln!(out, "{name}{{{labels}}} {}", of(stage));
        }
    }
    for (name, help, of) in [
        (
            "used",
            "Memory in use.",
            (|pool| pool.used_bytes) as fn(&trihop::observe::PoolSeen) -> u64,
        ),
        ("most", "Memory that may be in use.", |pool| pool.most_bytes),
    ] {
        let name = format!("trihop_memory_{name}_bytes");
        head(&mut out, &name, "gauge", help);
        for (labels, stream) in streams(all) {
            for pool in &stream.memory {
                let _ = writeln!(
                    out,
                    "{name}{{{labels},pool=\"{}\"}} {}",
                    pool.name,
                    of(pool)
                );
            }
        }
    }
    for (name, help, of) in ENDPOINT_GAUGES {
        head(&mut out, name, "gauge", help);
        for seen in all {
            let _ = writeln!(out, "{name}{{{}}} {}", labels(seen), of(seen));
        }
    }
    out
}

fn labels(seen: &Seen) -> String {
    let about = &seen.about;
    format!(
        "job=\"{}\",endpoint=\"{}\",node=\"{}\"",
        quoted(&about.job),
        about.endpoint,
        about.node
    )
}

fn streams(all: &[Seen]) -> impl Iterator<Item = (String, &StreamSeen)> {
    all.iter().flat_map(|seen| {
        let streams = seen.now.iter().flat_map(|now| &now.streams);
        streams.map(|stream| {
            let (number, name) = (stream.number, quoted(&stream.name));
            let labels = format!("{},stream=\"{number}\",name=\"{name}\"", labels(seen));
            (labels, stream)
        })
    })
}

fn stages(all: &[Seen]) -> impl Iterator<Item = (String, &StageSeen)> {
    streams(all).flat_map(|(labels, stream)| {
        stream
            .stages
            .iter()
            .map(move |stage| (format!("{labels},stage=\"{}\"", quoted(&stage.name)), stage))
    })
}

fn quoted(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"");
    text.replace('\n', "\\n")
}

/// Answers each request with the counters of that moment.
///
/// # Errors
/// An address that cannot be listened at, or is not of loopback.
pub fn answer(address: SocketAddr, choice: &Choice) -> Result<(), LookError> {
    if !address.ip().is_loopback() {
        return Err(LookError::NotLoopback(address));
    }
    let refused = |source| LookError::Listen { address, source };
    let listener = TcpListener::bind(address).map_err(refused)?;
    let own = listener.local_addr().map_err(refused)?;
    output::line(format_args!("answering at http://{own}/metrics"))?;
    loop {
        let Ok((stream, _)) = listener.accept() else {
            continue;
        };
        // A scraper that goes away is its own affair.
        let _ = answer_one(stream, choice, PATIENCE);
    }
}

/// A connection that fails once its time is over, however often something came before.
struct Timed {
    stream: TcpStream,
    end: Instant,
}

impl Timed {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.end.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(Some(left)),
        }
    }
}

impl Read for Timed {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(bytes)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn answer_one(stream: TcpStream, choice: &Choice, patience: Duration) -> io::Result<()> {
    let end = Instant::now() + patience;
    let mut stream = Timed { stream, end };
    // Whatever it asks for, there is one answer; what it says must be read before it gets that.
    let mut asked = Vec::new();
    let mut some = [0; 1024];
    while !asked.windows(4).any(|end| end == b"\r\n\r\n") && asked.len() < 64 << 10 {
        match stream.read(&mut some)? {
            0 => return Ok(()),
            count => asked.extend_from_slice(&some[..count]),
        }
    }
    let (status, body) = match choice.look() {
        Ok(all) => ("200 OK", text(&all)),
        Err(error) => ("503 Service Unavailable", format!("{error}\n")),
    };
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(answer.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        choice: Choice,
    }

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn what_cannot_be_looked_at_is_an_error_of_the_server() {
        let (mut client, server) = pair();
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let words = Words::parse_from(["top", "--job", "fffffffffffffffffff"]);
        answer_one(server, &words.choice, PATIENCE).unwrap();
        let answer = io::read_to_string(client).unwrap();
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        let why = "\r\n\r\nno job on this machine has a number that begins with";
        assert!(answer.contains(why), "{answer}");
    }

    #[test]
    fn a_scraper_that_asks_byte_by_byte_is_left() {
        let (mut client, server) = pair();
        let slow = std::thread::spawn(move || {
            while client.write_all(b"a").is_ok() {
                std::thread::sleep(Duration::from_millis(1)); // its pace
            }
        });
        let choice = Words::parse_from(["top"]).choice;
        // What is read without an end would be answered after 64 KiB.
        let left = answer_one(server, &choice, Duration::from_millis(100)).unwrap_err();
        let is_time = [io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock].contains(&left.kind());
        assert!(is_time, "{left}");
        slow.join().unwrap();
    }
}

//! libfabric's own ping-pong as the yardstick: two processes of it over loopback, started and ended
//! by us.

use std::io::{self, Read};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::bench::pair::Cores;

/// Longest run of one size.
const DEADLINE: Duration = Duration::from_secs(60);

/// Between two looks at processes that run: they have both cores.
pub const PAUSE: Duration = Duration::from_millis(10);

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
pub enum Missing {
    /// The program is not there.
    #[error("fi_pingpong is not installed (Debian: libfabric-bin)")]
    NotInstalled,
    /// It ran and gave nothing.
    #[error("fi_pingpong gave no figure: {0}")]
    Failed(String),
}

impl From<io::Error> for Missing {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::NotInstalled,
            _ => Self::Failed(error.to_string()),
        }
    }
}

/// A process that ends with its owner.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        // Both fail only where the process has ended and was waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Microseconds per transfer (half a round trip) of tagged messages of `size` over `provider`.
///
/// Moves the calling thread between the cores on which it starts the two.
///
/// # Errors
/// [`Missing`].
pub fn run(
    provider: &str,
    cores: Option<&Cores>,
    size: usize,
    iterations: u64,
) -> Result<f64, Missing> {
    // Free a moment ago; a neighbour that takes it meanwhile makes this one run fail.
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
        .local_addr()?
        .port()
        .to_string();
    let command = |which| {
        if let Some(cores) = cores {
            cores.keep_to(which);
        }
        let mut command = Command::new("fi_pingpong");
        command
            .args(["-p", provider, "-e", "rdm", "-m", "tagged"])
            .args(["-I", &iterations.to_string(), "-S", &size.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    };
    let deadline = Instant::now() + DEADLINE;
    let mut server = Started(command(0).args(["-B", &port]).spawn()?);
    // The client gives up at once where nobody listens yet.
    let printed = loop {
        let mut client = Started(command(1).args(["-P", &port, "127.0.0.1"]).spawn()?);
        match finished(&mut client, deadline)? {
            Ok(printed) => break printed,
            Err(_) if server.0.try_wait()?.is_none() && Instant::now() < deadline => sleep(PAUSE),
            Err(why) => return Err(Missing::Failed(why)),
        }
    };
    finished(&mut server, deadline)?.map_err(Missing::Failed)?;
    parse(&printed).ok_or_else(|| Missing::Failed(format!("it printed {printed:?}")))
}

/// Waits for the end; what was printed, or what went wrong in it. Its output is far smaller than a
/// pipe.
fn finished(process: &mut Started, deadline: Instant) -> io::Result<Result<String, String>> {
    let status = loop {
        if let Some(status) = process.0.try_wait()? {
            break status;
        }
        if Instant::now() >= deadline {
            return Ok(Err(format!(
                "it did not end within {} s",
                DEADLINE.as_secs()
            )));
        }
        sleep(PAUSE);
    };
    let (mut printed, mut complaint) = (String::new(), String::new());
    if let Some(mut pipe) = process.0.stdout.take() {
        pipe.read_to_string(&mut printed)?;
    }
    if let Some(mut pipe) = process.0.stderr.take() {
        pipe.read_to_string(&mut complaint)?;
    }
    Ok(if status.success() {
        Ok(printed)
    } else {
        Err(format!("{status}: {}", complaint.trim()))
    })
}

/// The figure in the column `usec/xfer` of the only row.
fn parse(printed: &str) -> Option<f64> {
    let mut lines = printed.lines();
    let column =
        lines.find_map(|line| line.split_whitespace().position(|name| name == "usec/xfer"))?;
    let figure: f64 = lines.next()?.split_whitespace().nth(column)?.parse().ok()?;
    (figure > 0.0).then_some(figure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figure_is_found_by_its_column() {
        let printed = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                       64k     100     =100     12m         0.10s      0.17      48.05       0.02\n";
        assert_eq!(parse(printed), Some(48.05));
        assert_eq!(parse("no table"), None);
        assert_eq!(parse("usec/xfer\n-\n"), None);
    }
}

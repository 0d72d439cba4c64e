//! Messages that travel in fragments.

use super::*;
use crate::channel::Return;

const LIMITS: ChannelLimits = ChannelLimits {
    messages: 4,
    bytes: 1 << 20,
    ports: 16,
    window_messages: 4,
    window_bytes: 1 << 20,
};

fn message(bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| (at * 31 + at / 256 + bytes) as u8)
        .collect()
}

/// Rank 1 sends into a channel of rank 0's, which gets each message and puts it back; rank 1 gets
/// that from there.
fn there_and_back<S: Seat>(job: &over::Job<S>, channels: &over::Channels<S>) -> Result<()> {
    let [first, second] = [0, 1].map(|_| shared(job, channels, 0, LIMITS));
    let (first, second) = (first?, second?);
    let returns = [
        Return::WhenBuffered,
        Return::WhenDeposited,
        Return::WhenReceived,
    ];
    // What stands behind a message begins at each place of a frame and of a page.
    let near = |of: usize| (0..12).map(move |step| of - 8 * step);
    let lengths = [4096, 8192, 16_384, 32_768, 49_152, 65_536, 300_000];
    for (number, bytes) in lengths.into_iter().flat_map(near).enumerate() {
        if job.rank().0 == 1 {
            let mut sent = message(bytes);
            first.send(7, &sent, returns[number % 3], Timeout::Never)?;
            sent.fill(0);
            let got = second.get(Timeout::Never)?;
            assert_eq!((got.kind, got.source), (8, Rank(0)));
            assert!(got.bytes == message(bytes), "{bytes} bytes");
        } else {
            let got = first.get(Timeout::Never)?;
            assert_eq!((got.kind, got.source), (7, Rank(1)));
            assert!(got.bytes == message(bytes), "{bytes} bytes");
            second.send(8, &got.bytes, Return::WhenDeposited, Timeout::Never)?;
            let kept = got.bytes.into_vec();
            assert!(kept == message(bytes), "{bytes} bytes");
        }
    }
    job.barrier()
}

#[test]
fn long_messages_come_as_they_were_sent_within_a_node() {
    on_both!(2, |_| 0, there_and_back);
}

#[test]
fn long_messages_come_as_they_were_sent_between_nodes() {
    on_both!(2, |rank| rank, there_and_back);
}

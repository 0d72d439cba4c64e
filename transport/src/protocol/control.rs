//! Control messages of one link: how many may be on their way, and when one is owed.
//!
//! A receiver posts [`PER_LINK`] receives per link for them. Counters are absolute, so that one
//! message says all that several would have said, and few on their way are enough. What frees a
//! receive for the sender again is the count of control messages seen, which every header carries.
//!
//! Two ends never wait for each other: the last of the three is only for an end that has something
//! to confirm. For both to be stuck, each would have had to hear from the other what only its own
//! last message told. Nor do they answer answers for ever: one message is owed for two.

/// Receives that each end posts for the control messages of a link.
pub const PER_LINK: u32 = 3;

/// Messages beyond these that the provider may have to keep for an end that takes none: of one that
/// presses, over a connection that may have taken some with it.
const PRESSING: u32 = 15;

/// Control messages of a link, both directions, as one end counts them (modulo 2^32).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Controls {
    sent: u32,
    seen_by_peer: u32,
    received: u32,
    told: u32,
}

impl Controls {
    /// Messages received that the peer has not been told of.
    fn owed(&self) -> u32 {
        self.received.wrapping_sub(self.told)
    }

    /// Whether the peer has a receive for another message.
    pub fn may_send(&self) -> bool {
        let on_their_way = self.sent.wrapping_sub(self.seen_by_peer);
        on_their_way < PER_LINK - 1 || on_their_way < PER_LINK && self.owed() > 0
    }

    /// As [`Controls::may_send`], for a message that is sent seldom and tells the peer that it is
    /// waited for: what went before it may be lost, and so never confirmed.
    pub fn may_press(&self) -> bool {
        self.sent.wrapping_sub(self.seen_by_peer) < PER_LINK + PRESSING
    }

    /// Messages that the peer has confirmed, where it has not confirmed so many that none may
    /// follow.
    pub fn unconfirmed(&self) -> Option<u32> {
        let on_their_way = self.sent.wrapping_sub(self.seen_by_peer);
        (on_their_way >= PER_LINK).then_some(self.seen_by_peer)
    }

    /// Whether the peer may be waiting for us to confirm what it sent.
    pub fn must_send(&self) -> bool {
        self.owed() >= PER_LINK - 1
    }

    /// A message was sent.
    pub fn sent(&mut self) {
        self.sent = self.sent.wrapping_add(1);
    }

    /// A message came.
    pub fn received(&mut self) {
        self.received = self.received.wrapping_add(1);
    }

    /// The count of messages seen, for a header that is about to be sent.
    pub fn announce(&mut self) -> u32 {
        self.told = self.received;
        self.told
    }

    /// What the peer was told last, for [`Controls::take_back`].
    pub fn told(&self) -> u32 {
        self.told
    }

    /// The header that [`Controls::announce`] was for has not been sent; `told` is what was told
    /// before.
    pub fn take_back(&mut self, told: u32) {
        self.told = told;
    }

    /// The peer says how many it has seen; an older count, or one that cannot be true, changes
    /// nothing.
    pub fn heard(&mut self, seen: u32) {
        if self.sent.wrapping_sub(seen) <= self.sent.wrapping_sub(self.seen_by_peer) {
            self.seen_by_peer = seen;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[derive(Default)]
    struct End {
        controls: Controls,
        news: u32,
        /// Receives of this end that are posted: what may be on its way to it.
        arriving: VecDeque<u32>,
        heard: u32,
    }

    /// Sends what is due from `ends[from]`; whether anything was.
    fn speak(ends: &mut [End; 2], from: usize) -> bool {
        let end = &mut ends[from];
        if (end.news == 0 && !end.controls.must_send()) || !end.controls.may_send() {
            return false;
        }
        end.news = 0;
        let seen = end.controls.announce();
        end.controls.sent();
        ends[1 - from].arriving.push_back(seen);
        assert!(
            ends[1 - from].arriving.len() <= PER_LINK as usize,
            "a message without a receive"
        );
        true
    }

    fn hear(end: &mut End) -> bool {
        let Some(seen) = end.arriving.pop_front() else {
            return false;
        };
        end.controls.received();
        end.controls.heard(seen);
        end.heard += 1;
        true
    }

    #[test]
    fn who_presses_goes_on_until_the_provider_may_keep_no_more() {
        let mut end = Controls::default();
        for sent in 0..PER_LINK + PRESSING {
            assert!(end.may_press());
            assert_eq!(end.may_send(), sent < PER_LINK - 1);
            assert_eq!(end.unconfirmed().is_some(), sent >= PER_LINK);
            end.sent();
        }
        assert!(!end.may_press());
        end.heard(PRESSING + PER_LINK - 1);
        assert!(end.may_press() && end.may_send() && end.unconfirmed().is_none());
    }

    proptest! {
        #![proptest_config(crate::seed::properties())]

        /// Whatever crosses whatever: never more on its way than receives, all news is told, and
        /// the talk ends.
        #[test]
        fn all_news_is_told_and_the_talk_ends(steps in proptest::collection::vec((0usize..2, 0u8..3), 0..300)) {
            let mut ends: [End; 2] = Default::default();
            let mut news = 0;
            for (end, step) in steps {
                match step {
                    0 => { ends[end].news += 1; news += 1; }
                    1 => { speak(&mut ends, end); }
                    _ => { hear(&mut ends[end]); }
                }
            }
            let mut rounds = 0;
            loop {
                let spoke = speak(&mut ends, 0) | speak(&mut ends, 1);
                let heard = hear(&mut ends[0]) | hear(&mut ends[1]);
                if !spoke && !heard {
                    break;
                }
                rounds += 1;
                prop_assert!(rounds < 1000, "the talk does not end");
            }
            prop_assert!(ends.iter().all(|e| e.news == 0), "news is stuck");
            let said: u32 = ends.iter().map(|e| e.heard).sum();
            prop_assert!(said <= 2 * news + 2, "{said} messages for {news} pieces of news");
        }
    }

    #[test]
    fn counts_that_cannot_be_true_change_nothing() {
        let mut controls = Controls::default();
        controls.sent();
        controls.heard(5);
        controls.heard(u32::MAX);
        assert_eq!(controls.seen_by_peer, 0);
        controls.heard(1);
        assert_eq!(controls.seen_by_peer, 1);
    }
}

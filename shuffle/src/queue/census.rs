//! A rank's part in the censuses of its node, by which the fences of a stream end.
//!
//! Each fence is a census. What it needs is in the inboxes, so that nobody of the node sends
//! anything for it, and nobody is woken but by its end.
//!
//! Where the job has several nodes, one rank of each speaks for it: who finds that all of the node
//! have come and nothing waits on any wakes the speaker, which adds what they have together to a
//! [count of all nodes](crate::terminate::collective), and tells them of the end.
//!
//! The fence of all streams of a job is a census of the job's own stream, for which each rank shows
//! what it has of all of them together. Whichever of them sends hides that. Their messages have no
//! colour of it, so all nodes count twice: all is done where as many records were delivered by the
//! first count as were sent by the second (Mattern's four counters).

use std::sync::Arc;

use trihop_transport::memory::segment::Segment;
use trihop_transport::ring::census::{
    COLOURS, Come, Counts, Shown, begin_count, counted, together,
};
use trihop_transport::ring::{Bell, CensusLine, InboxLayout, Orderings, Shipped};
use trihop_transport::sync::{MappedU64, Ordering, Word};

/// Where a rank of the node stands with a fence that another one waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stand {
    /// It has not come to it.
    Away,
    /// It has, and had messages to send or to handle when it last looked.
    Busy,
    /// Nothing waited there.
    Done,
}

/// How often, at most, a rank that waits looks for others that have called something else.
const LOOK_NS: u64 = 1_000_000;

/// Counts of all nodes in a row in which a node had the same, after which it takes its time.
const SAME_COUNTS: u32 = 8;

/// Its pause between two counts, unless its ranks have something new: what is under way then waits
/// for a rank that makes no progress, and nobody knows when that goes on.
const PAUSE_NS: u64 = 1_000_000;

/// How a rank hears of the end of a fence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Role {
    /// By another rank of its node, unless it finds that itself.
    #[default]
    Told,
    /// By the count of all nodes: other nodes speak through it, and not its own.
    Passes,
    /// By the count of all nodes, in which it speaks for its node.
    Speaks,
}

/// A rank's part, wherever that lies what all show.
#[derive(Debug, Clone, Default)]
pub(crate) struct Part {
    pub come: Come,
    /// Times that this rank has shown its counts.
    shown: u64,
    /// What it shows now, if it does.
    counts: Option<Counts>,
    /// All were looked at since then.
    looked: bool,
    /// The census that was begun last is not over.
    waits: bool,
    role: Role,
    /// The count of all nodes waits for what this rank adds.
    owes: bool,
    /// Counts of all nodes for which this rank's node was looked at, or is about to be: what it
    /// sends has the colour of the last.
    counted: u64,
    /// For who speaks, what its node had heard at the last of them.
    heard: [u64; COLOURS],
    /// It is of all streams together.
    of_all: bool,
    /// For who speaks, then, what its node had delivered at the last count for this census.
    before: Option<u64>,
}

/// What a look at a census has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// It is not over, as far as this rank knows.
    Nothing,
    /// It is, as another rank has said.
    Heard,
    /// All have come to it, and nothing waits on any: this they have together.
    All(Counts),
}

/// What a node adds to the count of all nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Share {
    /// Records sent.
    pub sent: u64,
    /// Records delivered.
    pub delivered: u64,
    /// Nodes to which something has come that was sent behind this count, or may have been; for
    /// all streams together those that count for the first time.
    pub ahead: u64,
}

impl Share {
    /// Adds that of another node.
    pub fn add(&mut self, more: Self) {
        let add = |sum: &mut u64, more| *sum = sum.wrapping_add(more);
        add(&mut self.sent, more.sent);
        add(&mut self.delivered, more.delivered);
        add(&mut self.ahead, more.ahead);
    }

    /// Whether all is done, where this is what all nodes have together.
    pub fn is_all(&self) -> bool {
        self.sent == self.delivered && self.ahead == 0
    }
}

impl Part {
    /// A part in the censuses of all streams together.
    pub fn of_all() -> Self {
        Self {
            of_all: true,
            ..Self::default()
        }
    }

    /// The next census begins.
    pub fn begin(&mut self, role: Role) {
        self.come.censuses += 1;
        (self.counts, self.looked, self.waits) = (None, false, true);
        self.before = None;
        (self.role, self.owes) = (role, role != Role::Told);
    }

    /// Shows these counts, where nothing waits on this rank, and looks at all, unless it has
    /// looked since it showed them. This rank shows what it has as `own`, and was told that the
    /// census `ended` is over; `all` show something, unless somebody is missing; where there are
    /// other nodes, `speaker` says which count of theirs has begun here.
    pub fn poll<'a, W: Word + 'a, O: Orderings>(
        &mut self,
        counts: Option<Counts>,
        own: Shown<'_, W>,
        ended: u64,
        all: Option<impl Iterator<Item = Shown<'a, W>> + Clone>,
        speaker: Option<&W>,
    ) -> Found {
        if self.has_ended(ended) {
            self.rest::<_, O>(own, speaker);
            return Found::Heard;
        }
        if own.number.load(Ordering::Relaxed) == 0 {
            self.counts = None; // another stream's may have hidden it
        }
        let Some(counts) = counts else {
            if self.is_shown() {
                self.hide::<_, O>(own, speaker); // so that others see for whom they wait
            }
            return Found::Nothing;
        };
        if self.counts != Some(counts) {
            self.shown += 1;
            own.show::<O>(self.shown, self.come.censuses, counts);
            (self.counts, self.looked) = (Some(counts), false);
        }
        // Who shows more looks again, and wakes the one that speaks for all.
        if self.looked && !(self.owes && self.role == Role::Speaks) {
            return Found::Nothing;
        }
        let Some(all) = all else {
            return Found::Nothing;
        };
        self.looked = true;
        let mut found = together::<W, O>(all.clone(), self.come.censuses);
        if let (Some(_), Role::Speaks, true, Some(word)) = (found, self.role, self.owes, speaker) {
            begin_count::<W, O>(word, self.counted + 1);
            found = together::<W, O>(all, self.come.censuses);
        }
        found.map_or(Found::Nothing, Found::All)
    }

    /// It waits no more, and shows nothing: others that have not heard of the end see that it may
    /// have gone on. `own` and `speaker` as above.
    pub fn rest<W: Word, O: Orderings>(&mut self, own: Shown<'_, W>, speaker: Option<&W>) {
        (self.waits, self.owes) = (false, false);
        self.hide::<_, O>(own, speaker);
    }

    /// What this rank sends from now on has the colour that goes with the last count.
    fn colour_anew<W: Word, O: Orderings>(&mut self, speaker: Option<&W>) {
        if let Some(word) = speaker.filter(|_| self.role != Role::Speaks) {
            self.counted = counted::<W, O>(word);
        }
    }

    /// The colour of what this rank sends.
    #[inline]
    pub fn colour(&self) -> usize {
        (self.counted % COLOURS as u64) as usize
    }

    /// What this rank adds to the count of all nodes, where that waits for it, after a look that
    /// has found this.
    pub fn owed(&mut self, found: Found) -> Option<Share> {
        if !self.owes {
            return None;
        }
        let share = match (self.role, found) {
            (Role::Speaks, Found::All(counts)) => {
                self.counted += 1;
                let colour = self.colour();
                let heard = std::mem::replace(&mut self.heard, counts.heard);
                let before = self.before.replace(counts.delivered);
                match self.of_all {
                    true => Share {
                        sent: counts.sent,
                        delivered: before.unwrap_or(0),
                        ahead: u64::from(before.is_none()),
                    },
                    false => Share {
                        sent: counts.sent,
                        delivered: counts.delivered,
                        ahead: u64::from(heard[colour] != counts.heard[colour]),
                    },
                }
            }
            (Role::Passes, _) => Share::default(),
            _ => return None,
        };
        self.owes = false;
        Some(share)
    }

    /// The count of all nodes begins again.
    pub fn count_again(&mut self) {
        self.owes = true;
    }

    /// Whether this rank waits for the end of the census with this number, to be told of it.
    #[inline]
    pub fn has_ended(&self, census: u64) -> bool {
        self.waits && self.role == Role::Told && census == self.come.censuses
    }

    /// Whether this rank shows its counts: it hides them before it sends.
    #[inline]
    pub fn is_shown(&self) -> bool {
        self.counts.is_some()
    }

    /// It is about to send, or has something to handle; `speaker` as above.
    pub fn hide<W: Word, O: Orderings>(&mut self, own: Shown<'_, W>, speaker: Option<&W>) {
        self.counts = None;
        own.hide::<O>();
        self.colour_anew::<W, O>(speaker);
    }
}

/// The census of a stream on a node, as one of its ranks sees it.
pub(crate) struct Census {
    part: Part,
    /// By place, those of the ranks; none where the inbox there has not come, or was not looked
    /// at. Empty until the first is looked at.
    lines: Vec<Option<CensusLine>>,
    ranks: usize,
    layout: InboxLayout,
    me: usize,
    /// The place of the rank that speaks for the node, where there are others.
    speaker: Option<usize>,
    /// For that one, what the node had at the last count of all nodes, and at how many in a row.
    same: (Option<Counts>, u32),
    /// It is to count again, at this time or once the node has something else.
    paused_until_ns: Option<u64>,
    /// The place of a rank that has called something else than this one before the fence.
    odd: Option<u32>,
    /// When it last looked for others that have called something else.
    looked_at_ns: u64,
    /// The place of an inbox that is damaged, and how.
    pub damage: Option<(u32, String)>,
    /// Of a stream: where this rank shows what it has of all streams together, to be hidden with
    /// what it shows of this one.
    job_line: Option<CensusLine>,
}

impl Census {
    /// Of a node of so many ranks, whose inboxes have this layout; `speaker` speaks for it where
    /// there are others.
    pub fn new(ranks: u32, me: u32, layout: InboxLayout, speaker: Option<u32>) -> Self {
        Self {
            part: Part::default(),
            lines: Vec::new(),
            ranks: ranks as usize,
            layout,
            me: me as usize,
            speaker: speaker.map(|place| place as usize),
            same: (None, 0),
            paused_until_ns: None,
            odd: None,
            looked_at_ns: 0,
            damage: None,
            job_line: None,
        }
    }

    /// It is of all streams together, and not of the one whose inboxes it is in.
    pub fn of_all(self) -> Self {
        Self {
            part: Part::of_all(),
            ..self
        }
    }

    /// Where this rank shows what it has.
    pub fn own_line(&mut self, segments: &[Option<Arc<Segment>>]) -> Option<CensusLine> {
        self.line(self.me, segments).cloned()
    }

    /// What this stream sends from now on hides, once, what is shown of all streams together.
    pub fn hide_with(&mut self, job_line: &CensusLine) {
        self.job_line.get_or_insert_with(|| job_line.clone());
    }

    /// How far this rank has come.
    pub fn come(&self) -> Come {
        self.part.come
    }

    /// All of its part, for when it leaves and joins again.
    pub fn part(&self) -> &Part {
        &self.part
    }

    /// It joins again, with the part that it had.
    pub fn join_again(&mut self, part: Part, segments: &[Option<Arc<Segment>>]) {
        let come = part.come;
        let count = part.counted;
        self.part = part;
        // In its new inbox it shows nothing yet.
        self.part.counts = None;
        self.set_come(come, segments);
        if self.speaker == Some(self.me)
            && let Some(line) = &self.lines[self.me]
        {
            begin_count::<_, Shipped>(line.counted(), count);
        }
    }

    /// The colour of what this rank sends.
    #[inline]
    pub fn colour(&self) -> usize {
        self.part.colour()
    }

    /// So many calls of the stream, other than fences, have begun here. While a fence is under way
    /// that is not said: it stands for those before it.
    pub fn set_calls(&mut self, calls: u64, segments: &[Option<Arc<Segment>>]) {
        if !self.part.waits {
            let come = Come {
                calls,
                ..self.part.come
            };
            self.set_come(come, segments);
        }
    }

    /// The place of a rank that has come to this fence, and has called something else than this
    /// rank before.
    pub fn odd(&self) -> Option<u32> {
        self.odd
    }

    /// It has come so far, as it says from now on.
    pub fn set_come(&mut self, come: Come, segments: &[Option<Arc<Segment>>]) {
        self.part.come = come;
        if let Some(line) = self.line(self.me, segments) {
            line.say(come);
        }
    }

    /// The line of the rank at a place.
    fn line(&mut self, place: usize, segments: &[Option<Arc<Segment>>]) -> Option<&CensusLine> {
        if self.lines.is_empty() {
            self.lines.resize_with(self.ranks, || None);
        }
        let line = &mut self.lines[place];
        if line.is_none() {
            let segment = segments[place].as_ref()?;
            match CensusLine::new(Arc::clone(segment), self.layout) {
                Ok(new) => *line = Some(new),
                Err(error) => self.damage = Some((place as u32, error.to_string())),
            }
        }
        line.as_ref()
    }

    /// The endpoint at a place has left; it may join again, with another inbox.
    pub fn forget(&mut self, place: u32) {
        if self.speaker == Some(place as usize) && self.part.is_shown() {
            // While it says how far it has counted: when it joins again it counts on.
            self.hide();
        }
        if let Some(line) = self.lines.get_mut(place as usize) {
            *line = None;
            self.part.looked = false;
            self.damage.take_if(|(at, _)| *at == place);
        }
    }

    /// The next fence begins; this rank may be in a count of all nodes for it.
    pub fn begin(&mut self, is_in_count: bool, segments: &[Option<Arc<Segment>>]) {
        self.part
            .begin(match (is_in_count, self.speaker == Some(self.me)) {
                (false, _) => Role::Told,
                (true, false) => Role::Passes,
                (true, true) => Role::Speaks,
            });
        (self.same, self.paused_until_ns) = ((None, 0), None);
        self.set_come(self.part.come, segments);
    }

    /// Looks how the fence stands that was begun last. `counts` are those of this rank, where
    /// nothing waits on it. `bells`, by place, wake those who sleep.
    pub fn look(
        &mut self,
        counts: Option<Counts>,
        segments: &[Option<Arc<Segment>>],
        bells: &[Option<Arc<Bell>>],
        now_ns: u64,
    ) -> Found {
        let mut has_all = true;
        for place in 0..self.ranks {
            has_all &= self.line(place, segments).is_some();
        }
        let has_others = self.speaker.is_some();
        // Who shows something where others are has to see which count its speaker has begun.
        let counts = counts.filter(|_| has_all || !has_others);
        if self.paused_until_ns.is_some_and(|until| until <= now_ns) || self.has_changed() {
            self.paused_until_ns = None;
            self.part.count_again();
        }
        let Some(own) = &self.lines[self.me] else {
            return Found::Nothing;
        };
        let shown = |line| shown(line, has_others);
        let all = has_all.then(|| self.lines.iter().flatten().map(shown));
        let (own, ended) = (shown(own), own.ended());
        let speaker = speaker(&self.lines, self.speaker);
        let part = &mut self.part;
        let found = part.poll::<MappedU64, Shipped>(counts, own, ended, all, speaker);
        if let (Found::All(_), Some(speaker)) = (found, self.speaker)
            && speaker != self.me
        {
            bells[speaker].iter().for_each(|bell| bell.ring());
        }
        if let Found::All(_) = found
            && let Some(odd) = self.odd_one()
        {
            self.odd = Some(odd);
            return Found::Nothing;
        }
        found
    }

    /// The place of a rank that has come to this fence, and to other calls before it than this
    /// rank.
    fn odd_one(&self) -> Option<u32> {
        let calls = self.part.come.calls;
        let is_odd = |line: &CensusLine| line.come().calls != calls;
        let at = self.lines.iter().flatten().position(is_odd)?;
        // Unless it has heard of the end meanwhile, and goes on.
        self.together().map(|_| at as u32)
    }

    /// What all of the node show together.
    fn together(&self) -> Option<Counts> {
        let has_all = self.lines.iter().all(Option::is_some);
        let shown = |line| shown(line, self.speaker.is_some());
        let all = self.lines.iter().flatten().map(shown);
        let all = has_all.then(|| together::<_, Shipped>(all, self.part.come.censuses));
        all.flatten()
    }

    /// Whether the node has something else than at the last count, and is to count again.
    fn has_changed(&self) -> bool {
        self.paused_until_ns.is_some()
            && self.part.is_shown()
            && self.together().is_some_and(|now| Some(now) != self.same.0)
    }

    /// What a census of a node alone has come to: whether it is over, after a look that has found
    /// this.
    pub fn is_over(&self, found: Found) -> bool {
        match found {
            Found::Nothing => false,
            Found::Heard => true,
            Found::All(counts) => self.speaker.is_none() && counts.sent == counts.delivered,
        }
    }

    /// See [`Part::owed`].
    pub fn owed(&mut self, found: Found) -> Option<Share> {
        let share = self.part.owed(found)?;
        if let (Role::Speaks, Found::All(now)) = (self.part.role, found) {
            self.same = match self.same {
                (before, times) if before == Some(now) => (before, times + 1),
                _ => (Some(now), 0),
            };
        }
        Some(share)
    }

    /// The count of all nodes begins again.
    pub fn count_again(&mut self, now_ns: u64) {
        match self.same.1 < SAME_COUNTS {
            true => self.part.count_again(),
            false => self.paused_until_ns = Some(now_ns + PAUSE_NS),
        }
    }

    /// Whether this rank waits for time to count again.
    pub fn is_paused(&self) -> bool {
        self.paused_until_ns.is_some()
    }

    /// The fence is over. Where others of the node may not have heard of that, this tells them.
    pub fn end(&mut self, found: Found, bells: &[Option<Arc<Bell>>]) {
        if found != Found::Heard && self.part.role != Role::Passes {
            let lines = self.lines.iter().flatten();
            lines.for_each(|line| line.end(self.part.come.censuses));
            let others = bells.iter().take(self.ranks).enumerate();
            let others = others.filter(|(place, _)| *place != self.me);
            others.for_each(|(_, bell)| bell.iter().for_each(|bell| bell.ring()));
        }
        self.rest();
    }

    fn rest(&mut self) {
        (self.paused_until_ns, self.odd) = (None, None);
        if let Some(Some(own)) = self.lines.get(self.me) {
            let speaker = speaker(&self.lines, self.speaker);
            self.part.rest::<_, Shipped>(own.shown(), speaker);
        }
    }

    /// Whether the fence that this rank waits for has come further, so that it is to look: it is
    /// over, or the node has what the count of all nodes waits for.
    #[inline]
    pub fn has_news(&self) -> bool {
        let part = &self.part;
        match part.role {
            _ if !part.waits => false,
            Role::Told => {
                let line = self.lines[self.me].as_ref();
                line.is_some_and(|line| part.has_ended(line.ended()))
            }
            Role::Passes => false,
            Role::Speaks => {
                part.owes && part.is_shown() && self.together().is_some() || self.has_changed()
            }
        }
    }

    /// This rank waits no more for the fence that it has begun, which may never be over.
    pub fn give_up(&mut self) {
        self.rest();
    }

    /// Whether something may be shown that is to be hidden before the stream sends.
    #[inline]
    pub fn must_hide(&self) -> bool {
        self.part.is_shown() && !self.part.of_all || self.job_line.is_some()
    }

    #[cfg(test)]
    pub fn is_shown(&self) -> bool {
        self.part.is_shown()
    }

    /// It is about to send.
    #[cold]
    pub fn hide(&mut self) {
        if let Some(job_line) = self.job_line.take() {
            job_line.shown().hide::<Shipped>();
        }
        if self.part.is_shown()
            && let Some(own) = &self.lines[self.me]
        {
            let speaker = speaker(&self.lines, self.speaker);
            self.part.hide::<_, Shipped>(own.shown(), speaker);
        }
    }

    /// Where the ranks stand with the fence that this one waits for, by place; nowhere where it
    /// waits for none.
    pub fn stands(&self) -> impl Iterator<Item = Stand> {
        let censuses = self.part.come.censuses;
        let lines = self.lines.iter().filter(|_| self.part.waits);
        lines.map(move |line| match line {
            Some(line) if line.shown().is_of(censuses) => Stand::Done,
            Some(line) if line.come().censuses >= censuses => Stand::Busy,
            _ => Stand::Away,
        })
    }

    /// Places of the ranks that have come to a fence to which this one has not.
    pub fn ahead(&self, segments: &[Option<Arc<Segment>>]) -> impl Iterator<Item = u32> {
        let (censuses, layout) = (self.part.come.censuses, self.layout);
        let segments = (0..).zip(segments).take(self.ranks);
        segments.filter_map(move |(place, segment)| {
            let line = CensusLine::new(Arc::clone(segment.as_ref()?), layout).ok()?;
            (line.come().censuses > censuses).then_some(place)
        })
    }

    /// The place of a rank that has begun another collective call of the stream where this one,
    /// and others perhaps, have begun the fence; looked for now and then.
    pub fn elsewhere(&mut self, now_ns: u64) -> Option<u32> {
        if now_ns.saturating_sub(self.looked_at_ns) < LOOK_NS {
            return None;
        }
        self.looked_at_ns = now_ns;
        let mine = self.part.come;
        let is_elsewhere = |line: &CensusLine| {
            let come = line.come();
            come.censuses < mine.censuses && come.calls > mine.calls
        };
        let lines = (0..).zip(self.lines.iter().map(Option::as_ref));
        let at = lines.filter(|(_, line)| line.is_some_and(is_elsewhere));
        at.map(|(place, _)| place).next()
    }
}

/// What a rank shows, to other nodes too where there are any.
fn shown(line: &CensusLine, has_others: bool) -> Shown<'_, MappedU64> {
    match has_others {
        true => line.shown_to_nodes(),
        false => line.shown(),
    }
}

/// What the rank that speaks for the node says of counts of all nodes.
fn speaker(lines: &[Option<CensusLine>], speaker: Option<usize>) -> Option<&MappedU64> {
    Some(lines.get(speaker?)?.as_ref()?.counted())
}

#[cfg(test)]
mod tests;

//! Memory for open runs: frames of any power of two between a shortest and a longest one, cut out
//! of longer ones and joined again (buddies).

/// No free frame begins here.
const TAKEN: u8 = u8::MAX;
/// Frames that were given back since they were joined for the last time, before they are again.
const JOINED_AFTER: usize = 64;

/// So many units are little memory.
const SMALL: usize = 512;

/// Frames by their class: those of class 0 are the shortest, each class twice as long.
#[derive(Debug)]
pub(super) struct Frames {
    unit_bytes: usize,
    classes: usize,
    /// Longest frames that may be made.
    most: usize,
    /// Memory of all that were made.
    pub memory: Vec<u8>,
    /// By unit, the class of the free frame that begins there.
    free_at: Vec<u8>,
    /// By class, where free frames begin.
    free: Vec<Vec<u32>>,
    in_use_bytes: usize,
    /// Frames given back since free ones were joined.
    returned: usize,
}

impl Frames {
    /// Frames from `shortest` bytes to `longest`, which take at most `bytes`, but one of the
    /// longest always.
    pub fn new(shortest: usize, longest: usize, bytes: usize) -> Self {
        let classes = 1 + longest.div_ceil(shortest).next_power_of_two().ilog2() as usize;
        let longest = shortest << (classes - 1);
        Self {
            unit_bytes: shortest,
            classes,
            most: (bytes / longest).max(1),
            memory: Vec::new(),
            free_at: Vec::new(),
            free: vec![Vec::new(); classes],
            in_use_bytes: 0,
            returned: 0,
        }
    }

    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Bytes of a frame of a class.
    pub fn bytes_of(&self, class: usize) -> usize {
        self.unit_bytes << class
    }

    fn longest(&self) -> usize {
        self.bytes_of(self.classes - 1)
    }

    /// The class whose frames hold so many bytes, none of which are longer than the longest.
    pub fn class_for(&self, bytes: usize) -> usize {
        let units = bytes.div_ceil(self.unit_bytes).max(1);
        units.next_power_of_two().ilog2() as usize
    }

    /// Memory that all frames may take.
    pub fn bytes(&self) -> usize {
        self.most * self.longest()
    }

    /// Of that, what frames in use take.
    pub fn in_use_bytes(&self) -> usize {
        self.in_use_bytes
    }

    /// Whether a quarter of the memory would be free behind another longest frame.
    pub fn are_plenty(&self) -> bool {
        self.in_use_bytes + self.longest() <= self.bytes() / 4 * 3
    }

    /// Where a frame of a class begins; `None` where none can be had.
    pub fn take(&mut self, class: usize) -> Option<u32> {
        let mut found = self.pop_from(class);
        let is_due = match self.free_at.len() {
            // Of little memory no more may come back before this is taken, and it takes no time.
            ..SMALL => self.returned > 0,
            _ => self.returned >= JOINED_AFTER || self.in_use_bytes == 0,
        };
        if found.is_none() && is_due {
            self.join();
            found = self.pop_from(class);
        }
        let (from, unit) = found?;
        // The rest of what is too long is free.
        for half in (class..from).rev() {
            self.put(unit + (1 << half), half);
        }
        self.in_use_bytes += self.bytes_of(class);
        Some((unit * self.unit_bytes) as u32)
    }

    /// A frame is free again.
    pub fn give_back(&mut self, start: u32, class: usize) {
        self.in_use_bytes -= self.bytes_of(class);
        self.returned += 1;
        self.put(start as usize / self.unit_bytes, class);
    }

    /// A frame of this class or a longer one, and which it is.
    fn pop_from(&mut self, class: usize) -> Option<(usize, usize)> {
        for from in class..self.classes {
            if let Some(unit) = self.free[from].pop() {
                let unit = unit as usize;
                self.free_at[unit] = TAKEN;
                return Some((from, unit));
            }
        }
        self.make(class)
    }

    fn put(&mut self, unit: usize, class: usize) {
        self.free_at[unit] = class as u8;
        self.free[class].push(unit as u32);
    }

    /// Joins free frames with their other halves, where those are free too. Not each time one is
    /// given back: what was cut once is mostly needed again.
    #[cold]
    fn join(&mut self) {
        self.returned = 0;
        for class in 0..self.classes - 1 {
            let half = 1 << class;
            // Memory that has not grown to a longest frame yet may lack the other half.
            let pairs = self.free_at.len() / (2 * half);
            for unit in (0..pairs).map(|pair| pair * 2 * half) {
                if [unit, unit + half].map(|at| usize::from(self.free_at[at])) == [class; 2] {
                    self.free_at[unit] = class as u8 + 1;
                    self.free_at[unit + half] = TAKEN;
                }
            }
        }
        self.free.iter_mut().for_each(Vec::clear);
        for (unit, &class) in self.free_at.iter().enumerate() {
            if class != TAKEN {
                self.free[usize::from(class)].push(unit as u32);
            }
        }
    }

    /// A frame of this class or longer, of memory that there was not before. Memory begins with
    /// the first frame and doubles up to a longest one: who sends little touches little. Then it
    /// grows by longest ones.
    fn make(&mut self, class: usize) -> Option<(usize, usize)> {
        loop {
            let (start, bound) = (self.memory.len(), self.bytes());
            let bytes = match start {
                0 => self.unit_bytes << class,
                _ => start.min(self.longest()),
            };
            if start + bytes > bound {
                return None;
            }
            if start + bytes > self.memory.capacity() {
                // Doubled, but never beyond the bound.
                self.memory.reserve_exact(start.clamp(bytes, bound - start));
            }
            self.memory.resize(start + bytes, 0);
            let units = self.memory.len() / self.unit_bytes;
            self.free_at.resize(units, TAKEN);
            let made = (bytes / self.unit_bytes).ilog2() as usize;
            let unit = start / self.unit_bytes;
            if made >= class {
                return Some((made, unit));
            }
            self.put(unit, made);
            // What lies before it may be free too: worth a look when no frame is found.
            self.returned = JOINED_AFTER;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Of little memory, what a few have given back is one longer frame again.
    #[test]
    fn little_memory_is_joined_as_soon_as_it_is_wanted() {
        let mut frames = Frames::new(64, 1024, 1024);
        let mut short: Vec<u32> = (0..16).map(|_| frames.take(0).unwrap()).collect();
        assert_eq!((frames.take(0), frames.take(3)), (None, None));
        let kept = short.remove(0);
        short
            .into_iter()
            .for_each(|start| frames.give_back(start, 0));
        let long = frames.take(3).expect("eight of them lie side by side");
        assert!(long >= 512 && kept == 0);
    }

    /// Who sends little touches little.
    #[test]
    fn memory_begins_with_the_first_frame() {
        let mut frames = Frames::new(64, 8192, 1 << 19);
        for (class, bytes) in [(0, 64), (0, 128), (1, 256), (7, 16_384), (6, 16_384)] {
            frames.take(class).unwrap();
            assert_eq!(frames.memory.len(), bytes);
        }
    }

    proptest! {
        #![proptest_config(crate::seed::properties())]

        /// Frames in use never overlap, lie in memory, and all memory can be had again.
        #[test]
        fn frames_lie_apart_and_are_joined_again(
            shortest in prop_oneof![Just(24usize), Just(64)],
            longest in 64usize..5000,
            bytes in 64usize..40_000,
            calls in proptest::collection::vec((any::<bool>(), any::<u32>()), 0..400),
        ) {
            let mut frames = Frames::new(shortest, longest, bytes);
            prop_assert!(frames.longest() >= longest);
            prop_assert!(frames.longest() < 2 * longest.max(shortest));
            let mut taken: Vec<(u32, usize)> = Vec::new();
            for (takes, number) in calls {
                let class = number as usize % frames.classes();
                match takes || taken.is_empty() {
                    true => match frames.take(class) {
                        Some(start) => taken.push((start, class)),
                        None => prop_assert!(frames.in_use_bytes() > 0),
                    },
                    false => {
                        let (start, class) = taken.swap_remove(number as usize % taken.len());
                        frames.give_back(start, class);
                    }
                }
                let mut spans: Vec<(usize, usize)> = taken
                    .iter()
                    .map(|&(start, class)| (start as usize, class))
                    .map(|(start, class)| (start, start + frames.bytes_of(class)))
                    .collect();
                spans.sort_unstable();
                let bytes = frames.memory.len();
                prop_assert!(spans.iter().all(|&(start, end)| start % 8 == 0 && end <= bytes));
                prop_assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{spans:?}");
                let in_use: usize = spans.iter().map(|(start, end)| end - start).sum();
                prop_assert_eq!(in_use, frames.in_use_bytes());
                prop_assert!(frames.memory.len() <= frames.bytes());
            }
            for (start, class) in taken.drain(..) {
                frames.give_back(start, class);
            }
            frames.join();
            let longest = frames.classes() - 1;
            let all: Vec<u32> = std::iter::from_fn(|| frames.take(longest)).collect();
            prop_assert_eq!(all.len() * frames.longest(), frames.bytes());
        }
    }
}

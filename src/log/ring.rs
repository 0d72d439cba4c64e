//! The last lines in memory, where a core dump has them too.
//!
//! Behind a header that can be found by its first bytes: 16 bytes of name and version, then as
//! little-endian 64-bit integers the capacity, its complement, and how many bytes were written
//! since the start; the text follows, the byte that was written as number `n` at `n % capacity`.

const MAGIC: [u8; 16] = *b"trihop log ring\x01";
const HEADER_BYTES: usize = 40;

/// A ring of text that is never freed, so that it is there whenever the process ends.
pub(super) struct Ring {
    memory: &'static mut [u8],
    written: u64,
}

impl Ring {
    /// An empty ring for `capacity` bytes of text, at least one.
    pub fn leak(capacity: usize) -> Self {
        let mut memory = vec![0; HEADER_BYTES + capacity];
        memory[..16].copy_from_slice(&MAGIC);
        memory[16..24].copy_from_slice(&(capacity as u64).to_le_bytes());
        memory[24..32].copy_from_slice(&(!(capacity as u64)).to_le_bytes());
        Self {
            memory: memory.leak(),
            written: 0,
        }
    }

    /// Adds a line over the oldest ones.
    pub fn write(&mut self, line: &str) {
        let (header, text) = self.memory.split_at_mut(HEADER_BYTES);
        let skipped = line.len().saturating_sub(text.len());
        let mut rest = &line.as_bytes()[skipped..];
        self.written += skipped as u64;
        while !rest.is_empty() {
            let at = (self.written % text.len() as u64) as usize;
            let (now, later) = rest.split_at(rest.len().min(text.len() - at));
            text[at..at + now.len()].copy_from_slice(now);
            self.written += now.len() as u64;
            rest = later;
        }
        header[32..40].copy_from_slice(&self.written.to_le_bytes());
    }

    /// The lines that are still there.
    pub fn text(&self) -> String {
        text_of(self.memory).unwrap_or_default()
    }
}

/// The lines of every ring in a core file or another image of a process's memory.
pub fn recent_in(image: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = image;
    while let Some(at) = rest.windows(MAGIC.len()).position(|window| window == MAGIC) {
        found.extend(text_of(&rest[at..]));
        rest = &rest[at + 1..];
    }
    found
}

/// The text of the ring that begins here; `None` where only its name stands.
fn text_of(memory: &[u8]) -> Option<String> {
    let (header, rest) = memory.split_at_checked(HEADER_BYTES)?;
    let word =
        |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("within the header"));
    let (capacity, written) = (word(16), word(32));
    if capacity != !word(24) || capacity == 0 {
        return None;
    }
    let text = rest.get(..usize::try_from(capacity).ok()?)?;
    if written <= capacity {
        return Some(String::from_utf8_lossy(&text[..written as usize]).into_owned());
    }
    let (newer, older) = text.split_at((written % capacity) as usize);
    let bytes = [older, newer].concat();
    // The first line was written over, save where it ends.
    let whole = bytes
        .iter()
        .position(|b| *b == b'\n')
        .map_or(0, |end| end + 1);
    Some(String::from_utf8_lossy(&bytes[whole..]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_whole_lines_stay() {
        for capacity in [16, 17, 30, 31, 32] {
            let mut ring = Ring::leak(capacity);
            let mut all = String::new();
            for number in 0..50 {
                let line = format!("{:x<1$}\n", number, number % 9 + 2);
                ring.write(&line);
                all.push_str(&line);
                let text = ring.text();
                assert!(all.ends_with(&text) && text.len() <= capacity);
                if all.len() <= capacity {
                    assert_eq!(text, all);
                } else {
                    assert!(
                        all[..all.len() - text.len()].ends_with('\n'),
                        "a part of a line: {text:?}"
                    );
                    assert!(text.len() + 11 >= capacity, "{text:?}");
                }
            }
        }
    }

    #[test]
    fn a_line_longer_than_the_ring_leaves_its_end() {
        let mut ring = Ring::leak(8);
        ring.write("0123456789abc");
        assert_eq!(ring.text(), "56789abc");
        ring.write("x");
        assert_eq!(ring.text(), "6789abcx");
    }

    #[test]
    fn rings_are_found_in_an_image_and_names_alone_are_not() {
        let mut ring = Ring::leak(64);
        ring.write("one\n");
        ring.write("two\n");
        let mut image = vec![7; 100];
        image.extend_from_slice(&MAGIC);
        image.extend_from_slice(&[9; 300]);
        image.extend_from_slice(ring.memory);
        image.extend_from_slice(&MAGIC);
        assert_eq!(recent_in(&image), ["one\ntwo\n"]);
        // Cut off, or with a capacity that cannot be.
        assert!(recent_in(&ring.memory[..HEADER_BYTES + 63]).is_empty());
        let mut broken = ring.memory.to_vec();
        broken[16..32].copy_from_slice(&[[255; 8], [0; 8]].concat());
        assert!(recent_in(&broken).is_empty());
        broken[16..32].copy_from_slice(&[[0; 8], [255; 8]].concat());
        assert!(recent_in(&broken).is_empty());
    }
}

//! What stands before a record in its message, where the number of its part does not say all.

/// Where a record goes, and its place among the records there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label<'m> {
    /// Directory of the part in a split by value, else empty.
    pub name: &'m [u8],
    /// Sorts as bytes; empty where records come as they come.
    pub order: &'m [u8],
}

impl<'m> Label<'m> {
    /// Appends a label: both lengths, then both texts.
    pub fn write(name: &[u8], order: &[u8], to: &mut Vec<u8>) {
        for text in [name, order] {
            to.extend_from_slice(&(text.len() as u32).to_le_bytes());
        }
        to.extend_from_slice(name);
        to.extend_from_slice(order);
    }

    /// The label of a message, and the record behind it; `None` if the lengths are wrong.
    pub fn parse(message: &'m [u8]) -> Option<(Self, &'m [u8])> {
        let (name_length, rest) = message.split_first_chunk()?;
        let (order_length, rest) = rest.split_first_chunk()?;
        let (name, rest) = rest.split_at_checked(u32::from_le_bytes(*name_length) as usize)?;
        let (order, record) = rest.split_at_checked(u32::from_le_bytes(*order_length) as usize)?;
        Some((Self { name, order }, record))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_found_again_and_wrong_lengths_refused() {
        let mut message = Vec::new();
        Label::write(b"k=v", b"\0\x01", &mut message);
        message.extend_from_slice(b"record\n");
        let (label, record) = Label::parse(&message).unwrap();
        assert_eq!(
            (label.name, label.order, record),
            (&b"k=v"[..], &b"\0\x01"[..], &b"record\n"[..])
        );
        for length in 0..13 {
            assert_eq!(Label::parse(&message[..length]), None, "{length} bytes");
        }
        message[3] = 0xFF;
        assert_eq!(Label::parse(&message), None);
    }
}

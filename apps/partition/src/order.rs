//! Keys that sort as bytes: what a record carries where the records of its part are sorted.

/// Appends `field` so that bytes compare as fields do, one after the other: an empty field comes
/// first, and what follows a field never decides between two fields of different lengths.
pub fn push_field(order: &mut Vec<u8>, field: &[u8]) {
    let mut rest = field;
    while let Some(at) = memchr::memchr(0, rest) {
        order.extend_from_slice(&rest[..at]);
        order.extend_from_slice(&[0, 0xFF]);
        rest = &rest[at + 1..];
    }
    order.extend_from_slice(rest);
    order.extend_from_slice(&[0, 0]);
}

/// Appends where the record was found, so that no two are equal.
pub fn push_place(order: &mut Vec<u8>, file: usize, offset: u64) {
    order.extend_from_slice(&(file as u64).to_be_bytes());
    order.extend_from_slice(&offset.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Keys = (Vec<Vec<u8>>, usize, u64);

    fn keys() -> impl Strategy<Value = Keys> {
        let field = prop::collection::vec(prop::sample::select(b"\0\x01a\xFE\xFF".to_vec()), 0..4);
        (prop::collection::vec(field, 2..=2), 0usize..300, 0u64..1000)
    }

    proptest! {
        #[test]
        fn bytes_compare_as_the_fields_and_then_the_places(one in keys(), other in keys()) {
            let order = |(fields, file, offset): &Keys| {
                let mut order = Vec::new();
                fields.iter().for_each(|field| push_field(&mut order, field));
                push_place(&mut order, *file, *offset);
                order
            };
            prop_assert_eq!(order(&one).cmp(&order(&other)), one.cmp(&other));
        }
    }
}

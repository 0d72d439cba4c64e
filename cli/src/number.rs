//! Numbers on the command line: what is refused is told what would be taken, in words.

use std::net::SocketAddr;
use std::ops::{Bound, RangeBounds};

/// Reads a whole number of those that are `allowed`.
pub fn whole<T>(
    allowed: impl RangeBounds<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: TryFrom<u64> + 'static,
{
    let low = match allowed.start_bound() {
        Bound::Included(&low) => low,
        Bound::Excluded(&below) => below.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let most = u64::MAX >> (u64::BITS as usize - 8 * size_of::<T>());
    let high = match allowed.end_bound() {
        Bound::Included(&high) => high.min(most),
        Bound::Excluded(&above) => above.saturating_sub(1).min(most),
        Bound::Unbounded => most,
    };
    move |text| {
        let number = text.parse().ok().filter(|at| (low..=high).contains(at));
        number
            .and_then(|number: u64| number.try_into().ok())
            .ok_or_else(|| format!("a whole number from {low} to {high} is needed"))
    }
}

/// Reads an address and a port.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| "an address and a port are needed, such as 127.0.0.1:9464".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_held_to_what_is_allowed_and_to_their_type() {
        let some = whole::<u32>(1..=60_000);
        assert_eq!(some("1"), Ok(1));
        assert_eq!(some("60000"), Ok(60_000));
        for text in [
            "0",
            "60001",
            "-1",
            "x",
            "",
            "1.5",
            "99999999999999999999999",
        ] {
            let refused = some(text).unwrap_err();
            assert_eq!(
                refused, "a whole number from 1 to 60000 is needed",
                "{text}"
            );
        }
        assert_eq!(whole::<u16>(..)("65535"), Ok(65_535));
        let refused = whole::<u16>(..)("65536").unwrap_err();
        assert_eq!(refused, "a whole number from 0 to 65535 is needed");
        assert_eq!(whole::<u64>(..)("18446744073709551615"), Ok(u64::MAX));
        let refused = whole::<u64>(3..)("2").unwrap_err();
        let expected = "a whole number from 3 to 18446744073709551615 is needed";
        assert_eq!(refused, expected);
        assert_eq!(whole::<u32>(2..4)("3"), Ok(3));
        assert!(whole::<u32>(2..4)("4").is_err());
    }
}

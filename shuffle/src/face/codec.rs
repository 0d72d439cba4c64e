//! How values become bytes.

use std::cell::Cell;

use super::stream::Item;
use crate::error::{self, Error};

/// Writes values of a type as bytes, and reads them back on another rank. All ranks of a stream
/// have the same codec.
pub trait Codec<V> {
    /// Appends the bytes of a value to `bytes`, which may hold something already.
    ///
    /// # Errors
    /// Why it has none. Then nobody looks at `bytes` any more.
    fn encode(&self, value: &V, bytes: &mut Vec<u8>) -> Result<(), String>;

    /// The value that [`Codec::encode`] has written as exactly these bytes. They come from another
    /// process: whatever they are, it may fail, but not panic.
    ///
    /// # Errors
    /// Why they are no value.
    fn decode(&self, bytes: &[u8]) -> Result<V, String>;
}

/// The codec of plain data: its bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Plain;

impl<T: Item> Codec<T> for Plain {
    fn encode(&self, value: &T, bytes: &mut Vec<u8>) -> Result<(), String> {
        bytes.extend_from_slice(value.as_bytes());
        Ok(())
    }

    fn decode(&self, bytes: &[u8]) -> Result<T, String> {
        T::read_from_bytes(bytes).map_err(|_| {
            let (got, size) = (bytes.len(), size_of::<T>());
            format!("{got} bytes where a value has {size}")
        })
    }
}

/// The codec for all that [serde](https://serde.rs) can write and read, by
/// [postcard](https://docs.rs/postcard): short, and without names of fields. Feature `postcard`.
#[cfg(feature = "postcard")]
#[derive(Debug, Clone, Copy, Default)]
pub struct Postcard;

#[cfg(feature = "postcard")]
impl<V: serde::Serialize + serde::de::DeserializeOwned> Codec<V> for Postcard {
    fn encode(&self, value: &V, bytes: &mut Vec<u8>) -> Result<(), String> {
        let taken = std::mem::take(bytes);
        *bytes = postcard::to_extend(value, taken).map_err(|error| error.to_string())?;
        Ok(())
    }

    fn decode(&self, bytes: &[u8]) -> Result<V, String> {
        match postcard::take_from_bytes(bytes) {
            Ok((value, [])) => Ok(value),
            Ok((_, rest)) => Err(format!("{} bytes behind the value", rest.len())),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// The bytes of a value, behind what is there.
pub(super) fn encode<V>(
    codec: &impl Codec<V>,
    value: &V,
    bytes: &mut Vec<u8>,
) -> error::Result<()> {
    let written = codec.encode(value, bytes);
    written.map_err(|why| Error::config("value", why))
}

thread_local! {
    /// Memory that values are written to, kept for the next one.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Memory of more bytes is not kept.
const MOST_KEPT: usize = 1 << 20;

/// Hands out memory that is empty, to write to and to send from.
pub(super) fn with_scratch<R>(use_it: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    // Who comes in between, as a handler does, has memory of its own; and so has who sends at the
    // exit of the process, when that of the thread is gone.
    let mut bytes = SCRATCH.try_with(Cell::take).unwrap_or_default();
    bytes.clear();
    let used = use_it(&mut bytes);
    if bytes.capacity() <= MOST_KEPT {
        let _ = SCRATCH.try_with(|scratch| scratch.set(bytes));
    }
    used
}

//! The options of a stream that concern deliveries.

pub struct StreamOptions {
    pub deliverq_max: usize,
    pub shim: ShimOptions,
}

#[derive(Default)]
pub struct ShimOptions {
    pub deliverq_threshold: usize,
}

pub struct Shares {
    pub deliverq_bytes: usize,
}

impl StreamOptions {
    pub fn shares(&self) -> Shares {
        Shares {
            deliverq_bytes: 1 << 20,
        }
    }
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self {
            deliverq_max: 2,
            shim: ShimOptions::default(),
        }
    }
}

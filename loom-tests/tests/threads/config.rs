//! The options of a stream that concern deliveries.

pub struct StreamOptions {
    pub deliverq_max: usize,
    pub deliverq_bytes: usize,
    pub deliverq_threshold: usize,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self {
            deliverq_max: 2,
            deliverq_bytes: 1 << 20,
            deliverq_threshold: 0,
        }
    }
}

//! iceoryx2: publish-subscribe over shared memory, as between processes; here both ends are
//! threads.

use std::sync::{Mutex, PoisonError};

use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;

use super::Error;
use super::measure::Queue;

/// Messages that a subscriber's buffer holds; more slots of one size cost it much memory.
const BUFFER: usize = 256;

/// A service with one publisher and one subscriber.
pub struct Service;

type Ends<const N: usize> = (
    Publisher<ipc_threadsafe::Service, [u8; N], ()>,
    Subscriber<ipc_threadsafe::Service, [u8; N], ()>,
);

fn open<const N: usize>() -> Result<Ends<N>, Box<dyn std::error::Error>> {
    static OPENED: Mutex<u64> = Mutex::new(0);
    set_log_level(LogLevel::Error);
    let number = {
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        *opened += 1;
        *opened
    };
    let name = format!("trihop-compare/{}/{number}", std::process::id());
    let node = NodeBuilder::new().create::<ipc_threadsafe::Service>()?;
    let service = node
        .service_builder(&name.as_str().try_into()?)
        .publish_subscribe::<[u8; N]>()
        .enable_safe_overflow(false)
        .history_size(0)
        .subscriber_max_buffer_size(BUFFER)
        .max_publishers(1)
        .max_subscribers(1)
        .create()?;
    let subscriber = service.subscriber_builder().buffer_size(BUFFER).create()?;
    let publisher = service
        .publisher_builder()
        .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
        .create()?;
    Ok((publisher, subscriber))
}

impl<const N: usize> Queue<N> for Service {
    type Sender = Publisher<ipc_threadsafe::Service, [u8; N], ()>;
    type Receiver = Subscriber<ipc_threadsafe::Service, [u8; N], ()>;

    fn open() -> Result<(Self::Sender, Self::Receiver), Error> {
        open().map_err(|error| Error::Open {
            queue: "an iceoryx2 service",
            why: error.to_string(),
        })
    }

    #[inline]
    fn try_send(sender: &mut Self::Sender, message: &[u8; N]) -> Result<bool, Error> {
        let sample = sender
            .loan_uninit()
            .map_err(|error| Error::Wrong(format!("iceoryx2 loan: {error}")))?;
        let sample = sample.write_payload(*message);
        sample
            .send()
            .map_err(|error| Error::Wrong(format!("iceoryx2 send: {error}")))?;
        Ok(true)
    }

    #[inline]
    fn try_receive(receiver: &mut Self::Receiver, message: &mut [u8; N]) -> Result<bool, Error> {
        let sample = receiver
            .receive()
            .map_err(|error| Error::Wrong(format!("iceoryx2 receive: {error}")))?;
        Ok(sample.map(|sample| *message = *sample).is_some())
    }
}

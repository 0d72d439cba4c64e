//! Several reads in flight through io_uring, delivered in order.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::Duration;

use io_uring::{IoUring, opcode, types};

use super::reader::{Extent, Extents, Inputs, Unreadable, read_whole};

/// Reads in flight.
const DEPTH: usize = 6;
/// Calls of `idle` before the thread sleeps for a completion.
const SPINS: u32 = 32;
/// Longest sleep between two calls of `idle`, so that messages keep flowing through this rank while
/// its disk is slow.
const NAP: Duration = Duration::from_micros(200);

/// One read and its memory.
#[derive(Debug)]
struct Slot {
    extent: Extent,
    file: Rc<File>,
    /// Never resized or moved to other memory while `in_flight`.
    buffer: Vec<u8>,
    /// Bytes read so far.
    filled: usize,
    in_flight: bool,
    /// The kernel refused; the bytes are read by `pread` when their turn comes, which tells the
    /// true reason.
    refused: bool,
}

/// A ring that works, without work yet.
pub struct Idle {
    ring: IoUring,
    block: usize,
}

/// Reads extents in order, some of them ahead.
pub struct Uring {
    ring: IoUring,
    inputs: Inputs,
    extents: std::iter::Peekable<Extents>,
    /// In the order of delivery; the front one is being read or has been handed out.
    slots: VecDeque<Slot>,
    /// Memory of no slot.
    spare: Vec<Vec<u8>>,
    /// The front slot has been handed out.
    delivered: bool,
    /// Number of the front slot since the start; `user_data` of a read counts on from it.
    front: u64,
    /// Reads that wait for the first delivery error to be told.
    unopened: Option<Unreadable>,
}

impl std::fmt::Debug for Uring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uring")
            .field("slots", &self.slots.len())
            .field("front", &self.front)
            .finish_non_exhaustive()
    }
}

impl Uring {
    /// Sets a ring up and checks that it can read.
    ///
    /// # Errors
    /// The operating system's answer: EPERM or ENOSYS where io_uring is switched off, ENOSYS too
    /// where it knows no plain reads.
    pub fn set_up(block: usize) -> io::Result<Idle> {
        let ring = IoUring::new(DEPTH as u32)?;
        let mut probe = io_uring::Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) {
            return Err(io::Error::from_raw_os_error(libc::ENOSYS));
        }
        Ok(Idle { ring, block })
    }

    /// As [`super::reader::Reader::next`].
    pub fn next<E: From<Unreadable>>(
        &mut self,
        idle: &mut impl FnMut() -> Result<(), E>,
    ) -> Result<Option<(Extent, &[u8])>, E> {
        if self.delivered {
            self.delivered = false;
            if let Some(slot) = self.slots.pop_front() {
                self.front += 1;
                self.spare.push(slot.buffer);
            }
        }
        self.top_up();
        let mut spins = 0;
        while self.slots.front().is_some_and(|slot| slot.in_flight) {
            self.reap();
            if self.slots.front().is_some_and(|slot| slot.in_flight) {
                idle()?;
                spins += 1;
                if spins > SPINS {
                    self.nap();
                }
            }
        }
        let Some(slot) = self.slots.front_mut() else {
            return match self.unopened.take() {
                Some(unreadable) => Err(unreadable.into()),
                None => Ok(None),
            };
        };
        if slot.refused {
            let extent = slot.extent;
            read_whole(&slot.file, &mut slot.buffer[..extent.length], &extent)?;
        }
        self.delivered = true;
        Ok(self
            .slots
            .front()
            .map(|slot| (slot.extent, &slot.buffer[..slot.extent.length])))
    }

    /// Starts reads while there is memory; behind the last piece only one at a time.
    fn top_up(&mut self) {
        while self.unopened.is_none() {
            let tail_queued = self.slots.back().is_some_and(|slot| slot.extent.is_tail);
            let wanted = self
                .extents
                .peek()
                .is_some_and(|next| !(next.is_tail && tail_queued));
            let (true, Some(buffer)) = (wanted, self.spare.pop()) else {
                break;
            };
            let Some(extent) = self.extents.next() else {
                break;
            };
            match self.inputs.open(extent.file) {
                Ok(file) => {
                    let slot = Slot {
                        extent,
                        file,
                        buffer,
                        filled: 0,
                        in_flight: false,
                        refused: false,
                    };
                    self.slots.push_back(slot);
                    self.start(self.slots.len() - 1);
                }
                Err(unreadable) => {
                    self.spare.push(buffer);
                    self.unopened = Some(unreadable);
                }
            }
        }
        // A ring that cannot submit now (EAGAIN, EBUSY) is asked again in `nap` and `reap`.
        let _ = self.ring.submit();
    }

    /// Queues the rest of slot `index`.
    fn start(&mut self, index: usize) {
        let number = self.front + index as u64;
        let slot = &mut self.slots[index];
        let rest = &mut slot.buffer[slot.filled..slot.extent.length];
        let read = opcode::Read::new(
            types::Fd(slot.file.as_raw_fd()),
            rest.as_mut_ptr(),
            rest.len() as u32,
        )
        .offset(slot.extent.offset + slot.filled as u64)
        .build()
        .user_data(number);
        // SAFETY: the memory and the descriptor belong to the slot, which is kept, its buffer
        // untouched, until the completion has been reaped (`next` hands out and drops only slots
        // that are not in flight, `drop` waits for all).
        let queued = unsafe { self.ring.submission().push(&read) };
        slot.in_flight = queued.is_ok();
        slot.refused = queued.is_err();
    }

    /// Takes completions.
    fn reap(&mut self) {
        let completions: Vec<(u64, i32)> = self
            .ring
            .completion()
            .map(|entry| (entry.user_data(), entry.result()))
            .collect();
        let mut again = false;
        for (number, result) in completions {
            let Some(index) = number.checked_sub(self.front).map(|index| index as usize) else {
                continue;
            };
            let Some(slot) = self.slots.get_mut(index) else {
                continue;
            };
            slot.in_flight = false;
            match result {
                read @ 1.. => slot.filled += read as usize,
                error if error == -libc::EAGAIN || error == -libc::EINTR => {}
                _ => slot.refused = true,
            }
            if !slot.refused && slot.filled < slot.extent.length {
                self.start(index);
                again = true;
            }
        }
        if again {
            let _ = self.ring.submit();
        }
    }

    /// Sleeps until a completion, for at most [`NAP`].
    fn nap(&mut self) {
        let limit = types::Timespec::from(NAP);
        let wait = types::SubmitArgs::new().timespec(&limit);
        if let Err(error) = self.ring.submitter().submit_with_args(1, &wait)
            && error.raw_os_error() != Some(libc::ETIME)
        {
            std::thread::sleep(NAP);
        }
    }
}

impl Idle {
    /// Begins to read; memory is [`DEPTH`] blocks.
    pub fn start(self, inputs: Inputs, extents: Extents) -> Uring {
        Uring {
            ring: self.ring,
            inputs,
            extents: extents.peekable(),
            slots: VecDeque::with_capacity(DEPTH),
            spare: (0..DEPTH).map(|_| vec![0; self.block]).collect(),
            delivered: false,
            front: 0,
            unopened: None,
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        // Memory that the kernel still writes to must not be freed.
        while self.slots.iter().any(|slot| slot.in_flight) {
            for slot in &mut self.slots {
                // A short read is not continued.
                slot.extent.length = slot.filled;
            }
            self.nap();
            self.reap();
        }
    }
}

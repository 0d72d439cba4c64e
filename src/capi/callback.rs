//! Functions of a C program that the library calls.

use std::ffi::c_void;
use std::sync::mpsc::{Receiver, Sender, channel};

/// What a caller wants its function to be called with. Opaque to the library.
#[derive(Clone, Copy)]
pub(crate) struct Context(*mut c_void);

// SAFETY: the library only hands the pointer back; the header says on which thread, and whoever gave it sees to it that it
// may be used there.
unsafe impl Send for Context {}

impl Context {
    pub fn new(context: *mut c_void) -> Self {
        Self(context)
    }

    /// A method, so that closures take the whole context and not just the pointer in it.
    pub fn get(&self) -> *mut c_void {
        self.0
    }
}

/// Holds back the first delivery until the caller has the handle that its handler may want to use: messages can come
/// before the function that opens a stream has returned.
pub(crate) struct Gate {
    opened: Option<Receiver<()>>,
}

/// Opens the [`Gate`] when it is dropped.
pub(crate) struct Opened {
    _dropped: Sender<()>,
}

impl Gate {
    pub fn closed() -> (Self, Opened) {
        let (sender, receiver) = channel();
        let opened = Some(receiver);
        (Self { opened }, Opened { _dropped: sender })
    }

    #[inline]
    pub fn pass(&mut self) {
        if let Some(opened) = self.opened.take() {
            // Nothing is ever sent: this returns when the other end is dropped.
            let _ = opened.recv();
        }
    }
}

//! Functions of a C program that the library calls.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::UntypedOutbox;

/// What a caller wants its function to be called with. Opaque to the library.
#[derive(Clone, Copy)]
pub(crate) struct Context(*mut c_void);

// SAFETY: the library only hands the pointer back; the header says on which thread, and the program
// that gave the pointer sees to it that it may be used there.
unsafe impl Send for Context {}

// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub fn new(context: *mut c_void) -> Self {
        Self(context)
    }

    /// A method, so that closures take the whole context and not just the pointer in it.
    pub fn get(&self) -> *mut c_void {
        self.0
    }
}

/// Holds back the first delivery until the caller has the handle that its handler may want to use:
/// messages can come before the function that opens a stream has returned.
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

thread_local! {
    /// What the handler of an inline job that is being called on this thread sends with.
    static OUTBOX: Cell<Option<NonNull<UntypedOutbox<'static>>>> = const { Cell::new(None) };
}

/// Calls a handler of an inline job, which sends by the same functions as its program does: they
/// find `outbox`, which is dropped before the state of the job is used again.
pub(crate) fn with_outbox<R>(outbox: &mut UntypedOutbox<'_>, call: impl FnOnce() -> R) -> R {
    /// Puts back what was there before, also when a panic ends the call.
    struct Before(Option<NonNull<UntypedOutbox<'static>>>);

    impl Drop for Before {
        fn drop(&mut self) {
            OUTBOX.set(self.0);
        }
    }

    let here = NonNull::from(outbox).cast();
    let _before = Before(OUTBOX.replace(Some(here)));
    call()
}

/// Sends with the outbox of the handler that is being called on this thread, if one is.
pub(crate) fn send_by_outbox<R>(send: impl FnOnce(&mut UntypedOutbox<'_>) -> R) -> Option<R> {
    let mut outbox = OUTBOX.take()?;
    // SAFETY: `with_outbox` put it there and is up the stack, so that it lives, and nobody else
    // uses it: its borrower waits for the handler, and it was taken out for the time of this call.
    let sent = send(unsafe { outbox.as_mut() });
    OUTBOX.set(Some(outbox));
    Some(sent)
}

//! What safe code tries in order to get at the same bytes twice.

use std::sync::Arc;

use crate::memory::segment::Segment;
use crate::ring::{Bell, Doorbell, Inbox, InboxLayout, Producer};

/// Two layouts of one size whose lanes lie across each other.
fn layouts() -> [InboxLayout; 2] {
    [(2, 4096), (1, 8192)].map(|(lanes, bytes)| InboxLayout::new(lanes, bytes).unwrap())
}

/// A producer over the first layout lives while an inbox of the second one is made in `again`.
///
/// # Panics
/// When that is refused: good. Or when a frame of each lies in the same bytes.
fn lay_out_twice(segment: Arc<Segment>, again: Arc<Segment>) {
    let [first, second] = layouts();
    let inbox = Inbox::new(Arc::clone(&segment), first).unwrap();
    let mut producer = Producer::new(segment, first, 1, Doorbell::private().bell()).unwrap();
    drop(inbox);
    let inbox = match Inbox::new(Arc::clone(&again), second) {
        Ok(inbox) => inbox,
        Err(error) => panic!("refused: {error}"),
    };
    let mut other =
        Producer::new(Arc::clone(&again), second, 0, Doorbell::private().bell()).unwrap();
    let frame = producer.reserve(512).unwrap();
    frame.fill(1);
    for _ in 0..16 {
        let Some(theirs) = other.reserve(512) else {
            break;
        };
        theirs.fill(2);
        other.commit(512);
    }
    drop((inbox, other));
    assert!(
        frame.iter().all(|&byte| byte == 1),
        "a frame that was ours alone has changed"
    );
    panic!("a segment was laid out twice");
}

#[test]
#[should_panic(expected = "refused: inbox: the owner laid out 2 lanes of 4096 bytes")]
fn a_second_layout_of_a_segment_is_refused_while_lanes_of_the_first_are_in_use() {
    let segment = Segment::on_heap(layouts()[0].segment_bytes());
    lay_out_twice(Arc::clone(&segment), segment);
}

#[test]
#[cfg_attr(miri, ignore = "maps files")]
#[should_panic(expected = "refused: inbox: the owner laid out 2 lanes of 4096 bytes")]
fn a_second_layout_is_refused_in_another_mapping_too() {
    let segment = Segment::create(layouts()[0].segment_bytes()).unwrap();
    let file = segment.descriptor().unwrap().try_clone_to_owned().unwrap();
    let again = Segment::attach(file, layouts()[0].segment_bytes()).unwrap();
    lay_out_twice(segment, again);
}

/// What a peer writes into the header must not make our own process lay a segment out twice.
fn forget_the_header(segment: &Segment) {
    // SAFETY: a segment begins with the header's magic and shape, and no other thread runs.
    unsafe { segment.as_ptr().cast::<[u64; 2]>().write([0; 2]) };
}

#[test]
fn a_header_that_a_peer_cleared_does_not_let_a_segment_be_laid_out_anew() {
    let [first, second] = layouts();
    let segment = Segment::on_heap(first.segment_bytes());
    drop(Inbox::new(Arc::clone(&segment), first).unwrap());
    forget_the_header(&segment);
    let text = Inbox::new(Arc::clone(&segment), second)
        .unwrap_err()
        .to_string();
    assert!(text.contains("laid out 2 lanes of 4096 bytes"), "{text}");
    // A layout that was refused leaves nothing behind.
    forget_the_header(&segment);
    let _inbox = Inbox::new(Arc::clone(&segment), first).unwrap();
    assert!(Producer::new(Arc::clone(&segment), second, 0, Doorbell::private().bell()).is_err());
    assert!(Producer::new(segment, first, 0, Doorbell::private().bell()).is_ok());
}

#[test]
#[cfg_attr(miri, ignore = "maps files")]
fn a_mapping_of_a_header_that_a_peer_cleared_is_the_same_segment() {
    let [first, second] = layouts();
    let segment = Segment::create(first.segment_bytes()).unwrap();
    drop(Inbox::new(Arc::clone(&segment), first).unwrap());
    forget_the_header(&segment);
    let file = segment.descriptor().unwrap().try_clone_to_owned().unwrap();
    let again = Segment::attach(file, first.segment_bytes()).unwrap();
    assert!(Inbox::new(again, second).is_err());
    // A new file of the same size is another segment, whatever the old one was.
    drop(segment);
    for layout in [second, first] {
        let segment = Segment::create(layout.segment_bytes()).unwrap();
        assert!(Inbox::new(segment, layout).is_ok());
    }
}

#[test]
#[cfg_attr(miri, ignore = "maps files")]
fn a_segment_is_an_inbox_or_a_bell() {
    let layout = layouts()[0];
    let segment = Segment::create(layout.segment_bytes()).unwrap();
    let _inbox = Inbox::new(Arc::clone(&segment), layout).unwrap();
    let doorbell = Doorbell::create().unwrap();
    let eventfd = doorbell.descriptor().unwrap().try_clone_to_owned().unwrap();
    let text = Bell::attach(segment, eventfd).unwrap_err().to_string();
    assert!(text.contains("doorbell"), "{text}");
    // Where a page is large enough for an inbox, the bell's word would be its header.
    let segment = Segment::create(layout.segment_bytes()).unwrap();
    let eventfd = doorbell.descriptor().unwrap().try_clone_to_owned().unwrap();
    let _bell = Bell::attach(Arc::clone(&segment), eventfd).unwrap();
    assert!(Inbox::new(segment, layout).is_err());
}

//! The table of counters: each row is all that is known of one.
//!
//! Fields, sums, texts, JSON keys, the C structs and the tables of `docs/DIAGNOSTICS.md` follow
//! from it. The build script of the C interface includes this file too, so there is nothing in it
//! but the rows.

/// Hands the rows to the macro `then`: first those of streams, then those of queues. A row is
///
/// ```text
/// /// What it counts.
/// name "unit" "; {} as people read it";
/// ```
///
/// and of a queue `sum` or `max` stands before it: what the queues of a stage come to. A text that
/// begins with `?` is left out where the counter is 0.
#[doc(hidden)]
#[macro_export]
macro_rules! counters_table {
    ($then:ident) => {
        $then! {
            stream {
                /// Records that this rank sent, from the application and from handlers.
                sent "records" "{} records sent";
                /// Payload bytes of what this rank sent: records and items, and each copy of a
                /// broadcast.
                sent_bytes "bytes" " ({} bytes)";
                /// Records delivered here.
                delivered "records" ", {} delivered";
                /// Runs delivered here.
                runs_delivered "runs" " ({} runs)";
                /// Runs forwarded as source representative.
                runs_to_fabric "runs" "; {} runs forwarded to other nodes";
                /// Runs forwarded as target representative.
                runs_from_fabric "runs" ", {} from them";
                /// Frames put into origin queues by this rank.
                origin_frames "frames" "; frames: {} origin";
                /// Frames put into relay queues by this rank.
                relay_frames "frames" ", {} relay";
                /// Frames put into remote queues by this rank.
                remote_frames "frames" ", {} remote";
                /// Batches sealed for other nodes.
                batches_sent "batches" "; {} batches sent";
                /// Batches received from other nodes.
                batches_received "batches" ", {} received";
                /// Batches, and long records in memory that nodes share, that came by rendezvous.
                announced "batches" ", {} by rendezvous";
                /// Control messages sent.
                controls_sent "messages" "; {} control messages";
                /// Bytes handed to the fabric, headers and control messages included.
                wire_bytes "bytes" "; {} bytes on the wire";
                /// Sends refused for want of room (a waiting send counts each try).
                would_block "sends" "; {} sends refused for want of room";
                /// Frames that found their queue full.
                queue_waits "frames" ", {} waits";
                /// Times that a delivery had to wait for the application.
                blocked_deliveries "times" ", {} deliveries blocked";
                /// Messages dropped because they were broken, or none of this job's; the first of a
                /// stream is told at level warn.
                bad_headers "messages" ", {} bad headers";
                /// Frames taken from lanes, and from the links that `fabric-only` has in their
                /// place.
                frames_received "frames" "; {} frames received";
                /// Broadcasts that this rank sent; their copies are in `sent`, one for each rank
                /// that gets it.
                broadcasts "broadcasts" "; {} broadcasts";
                /// Copies of broadcasts that this rank put into its queues, of its own and as a
                /// representative. Records longer than a frame are not among them.
                broadcast_copies "copies" ", {} copies";
                /// Records that arrived and were dropped on purpose, as clients of DeltaFS may ask
                /// for.
                discarded "records" "; {} records discarded";
                /// Times that own sends met a limit over all queues of a stage, which clients of
                /// DeltaFS set.
                limit_hits "times" ", {} limit hits";
                /// Records that arrived and were never delivered because the job failed, or was
                /// dropped without being shut down.
                undelivered "records" ", {} undelivered";
                /// Bytes of the runs that this rank forwarded, in `runs_to_fabric` and
                /// `runs_from_fabric`.
                forwarded_bytes "bytes" "; {} bytes forwarded";
            }
            queue {
                /// Runs of this rank's own (its application's and its handlers'): records for one
                /// rank that were gathered, or a single one.
                sum own_runs "runs" "{} runs own";
                /// Runs that came over a lane or a link and go on.
                sum forwarded_runs "runs" ", {} forwarded";
                /// Batches sealed; for a lane, times that it was shown to its consumer.
                sum sends "batches" "; {} sends";
                /// Of `sends`, those because of age, or because nothing else moved.
                sum aged_sends "batches" " ({} by age";
                /// Of `sends`, those because of a flush or a fence.
                sum flush_sends "batches" ", {} by flush)";
                /// Times that the queue became full: runs that wait behind one that waits are not
                /// counted again.
                sum waits "times" "; {} waits";
                /// The longest of `waits`, as seen by rounds of progress.
                max longest_wait_ns "nanoseconds" ", longest {} ns";
                /// How long one of `waits` has lasted that is not over; 0 where none is.
                max waiting_ns "nanoseconds" "?, one for {} ns by now";
                /// Times that the consumer of a lane slept and was woken for what was shown to it.
                sum wakes "times" "?; woke the consumer {} times";
                /// Bytes of `forwarded_runs`.
                sum forwarded_bytes "bytes" "?; {} bytes forwarded";
                /// Of the runs, those that were dropped, since the other end is gone and the job goes
                /// on without it.
                sum dropped_runs "runs" "?; {} runs dropped";
            }
        }
    };
}

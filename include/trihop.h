/*
 * trihop: many-to-many messaging for HPC jobs. Any rank sends small messages to any rank, over shared-memory rings inside a
 * node and libfabric between nodes.
 *
 * Every function returns a status unless it says otherwise; trihop_last_error() has the whole sentence about a failure.
 * Pointers may be null only where the comment of a function says so; a null pointer is refused with
 * TRIHOP_ERR_INVALID_ARGUMENT. Texts are UTF-8 and end with NUL. A handle is valid until the function that gives it back.
 * After fork() the child uses none of them.
 *
 * This file is generated: see CONTRIBUTING.md.
 */


#ifndef TRIHOP_H
#define TRIHOP_H

#include <stddef.h>
#include <stdint.h>

#define TRIHOP_VERSION_MAJOR 0
#define TRIHOP_VERSION_MINOR 1
#define TRIHOP_VERSION_PATCH 0

// Chars that the text of a descriptor needs at most, with its NUL.
#define TRIHOP_CHANNEL_DESCRIPTOR_CHARS 65

// A call on a channel takes as long as it takes.
#define TRIHOP_NO_TIMEOUT -1

// A call on a channel is tried once: what cannot be done at once is `TRIHOP_ERR_WOULD_BLOCK`. The
// channel's owner tries it: where that is another rank on the inline seat, the call waits until it
// makes progress.
#define TRIHOP_ONCE 0

// What a call returns. The numbers are stable; new ones may be added.
enum trihop_status_t
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Done.
  TRIHOP_OK = 0,
  // No room now. A send has taken nothing; a flush, fence, barrier or close goes on at the next
  // call. Make progress, take what waits on streams without a handler, and call again.
  TRIHOP_ERR_WOULD_BLOCK = 1,
  // A rank outside of the job.
  TRIHOP_ERR_RANK = 2,
  // A record above `max_message_bytes`.
  TRIHOP_ERR_TOO_LARGE = 3,
  // A call that waits for others, from inside a handler.
  TRIHOP_ERR_NESTED = 4,
  // The job, the stream or the channel was shut down.
  TRIHOP_ERR_CLOSED = 5,
  // The ranks do not agree about a stream or a collective.
  TRIHOP_ERR_MISMATCH = 6,
  // An option that is unknown, impossible, or contradicts another.
  TRIHOP_ERR_CONFIG = 7,
  // A libfabric call failed for good.
  TRIHOP_ERR_FABRIC = 8,
  // No provider of libfabric meets the needs.
  TRIHOP_ERR_NO_PROVIDER = 9,
  // A call of the operating system failed.
  TRIHOP_ERR_SYSTEM = 10,
  // The launcher, or the allgather of `trihop_init_custom`, failed or a rank did not arrive.
  TRIHOP_ERR_BOOTSTRAP = 11,
  // A peer runs another version of the wire format.
  TRIHOP_ERR_WIRE_VERSION = 12,
  // A peer sent bytes that cannot be true.
  TRIHOP_ERR_BAD_PEER = 13,
  // A peer died or stopped answering.
  TRIHOP_ERR_PEER_DEAD = 14,
  // An argument that cannot be: a null pointer, a text that is not UTF-8, an unknown number.
  TRIHOP_ERR_INVALID_ARGUMENT = 15,
  // The caller's buffer does not hold the result; the length that is needed was stored.
  TRIHOP_ERR_BUFFER_TOO_SMALL = 16,
  // No memory.
  TRIHOP_ERR_NO_MEMORY = 17,
  // A defect of the library: please report the text. The object that was called is in no known
  // state.
  TRIHOP_ERR_PANIC = 18,
  // A failure that this interface has no number for yet; the text says what it is.
  TRIHOP_ERR_OTHER = 19,
  // A peer lives, but its part of the job has failed; the text has its error.
  TRIHOP_ERR_PEER_FAILED = 20,
  // A call that makes no sense after those before it: two ends of a step at once, or the end of
  // none; a mini-rank that was taken before; what belongs to an inline job, on another thread
  // than the one that started that. Nothing was done.
  TRIHOP_ERR_MISUSE = 21,
  // A call on a channel has taken as long as it may, with nothing done.
  TRIHOP_ERR_TIMED_OUT = 22,
  // A text that names no channel: no descriptor, or one of another job or of a channel that is
  // gone.
  TRIHOP_ERR_NO_CHANNEL = 23,
  // A barrier was aborted, or was reset while this call waited in it.
  TRIHOP_ERR_BROKEN = 24,
  // The agent of this node is gone.
  TRIHOP_ERR_AGENT_DEAD = 25,
  // What served a guest has ended, or can serve it no longer. What was sent and not waited for
  // may be lost. Attach at the next server.
  TRIHOP_ERR_SERVER_FAILED = 26,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum trihop_status_t trihop_status_t;
#else
typedef int32_t trihop_status_t;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Who gets a broadcast.
enum trihop_broadcast_t
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // All ranks but this one.
  TRIHOP_TO_OTHERS = 0,
  // All ranks.
  TRIHOP_TO_EVERYONE = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum trihop_broadcast_t trihop_broadcast_t;
#else
typedef int32_t trihop_broadcast_t;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What a channel is.
enum trihop_channel_kind_t
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // A bounded queue of messages.
  TRIHOP_CHANNEL_MESSAGES = 0,
  // A number that is taken from and given back to: `trihop_channel_create_semaphore`.
  TRIHOP_CHANNEL_SEMAPHORE = 1,
  // Where so many wait for each other: `trihop_channel_create_barrier`.
  TRIHOP_CHANNEL_BARRIER = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum trihop_channel_kind_t trihop_channel_kind_t;
#else
typedef int32_t trihop_channel_kind_t;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Whose contributors end a step.
enum trihop_contributors_t
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Those of this rank: other ranks have their own, and a rank with none is done at once.
  TRIHOP_LOCAL_CONTRIBUTORS = 0,
  // Those of all ranks together, wherever they are: each rank says the same number.
  TRIHOP_ALL_CONTRIBUTORS = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum trihop_contributors_t trihop_contributors_t;
#else
typedef int32_t trihop_contributors_t;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How far a step has come on this rank.
enum trihop_conveyor_state_t
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // It may push.
  TRIHOP_WORKING = 0,
  // It pushes no more, and others may.
  TRIHOP_ENDGAME = 1,
  // Nobody pushes any more, and all that was pushed to this rank is here to be pulled.
  TRIHOP_CLEANUP = 2,
  // All of it has been pulled.
  TRIHOP_COMPLETE = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum trihop_conveyor_state_t trihop_conveyor_state_t;
#else
typedef int32_t trihop_conveyor_state_t;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How the ranks find out that a step of a stream is over: all call the same.
enum trihop_end_t
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // As `trihop_stream_round`.
  TRIHOP_ROUND = 0,
  // As `trihop_stream_fence`.
  TRIHOP_FENCE = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum trihop_end_t trihop_end_t;
#else
typedef int32_t trihop_end_t;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How long a channel is there that a guest has made.
enum trihop_lifetime_t
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Until the port that it was made with is freed, or the guest ends: it is closed then, and what
  // is in it may still be got by those that are attached.
  TRIHOP_OF_GUEST = 0,
  // Until it is closed, by any guest of that server, or the server ends.
  TRIHOP_OF_SERVER = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum trihop_lifetime_t trihop_lifetime_t;
#else
typedef int32_t trihop_lifetime_t;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What `trihop_channel_poll` waits for, asks, or does. Each is of one kind of channel, and
// `TRIHOP_POLL_CLOSED` of all: others are `TRIHOP_ERR_MISUSE`.
enum trihop_poll_t
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Until there is a message; how many there are.
  TRIHOP_POLL_IN = 0,
  // Until there is room for a message of one byte; for how many messages.
  TRIHOP_POLL_OUT = 1,
  // Until one of both: 1 for a message, 2 for room, 3 for both.
  TRIHOP_POLL_IN_OR_OUT = 2,
  // Until there is no message, and no send waits; 0.
  TRIHOP_POLL_EMPTY = 3,
  // Until there is no room for a message; how many messages there are.
  TRIHOP_POLL_FULL = 4,
  // Until the channel is closed; how many messages are left.
  TRIHOP_POLL_CLOSED = 5,
  // How many messages there are, at once.
  TRIHOP_POLL_SIZE = 6,
  // How many messages it may hold, at once.
  TRIHOP_POLL_CAPACITY = 7,
  // Of a semaphore, P: until its value is above 0, and takes one from it; what is left.
  TRIHOP_POLL_ACQUIRE = 8,
  // Of a semaphore, V: adds one to its value, at once; what that is before anybody who waits
  // takes from it. `TRIHOP_ERR_MISUSE` where it is the most that the semaphore may be.
  TRIHOP_POLL_RELEASE = 9,
  // Of a semaphore, Z: until its value is 0; 0.
  TRIHOP_POLL_ZERO = 10,
  // Of a semaphore: its value, at once.
  TRIHOP_POLL_VALUE = 11,
  // Of a barrier: until as many calls have come as it has parties, this one among them; how many
  // came before this one, so that exactly one has 0. It may be used again at once. A call whose
  // time is over has not come.
  TRIHOP_POLL_ARRIVE = 12,
  // Of a barrier: breaks it, at once; how many waited. These, and who comes from now on, get
  // `TRIHOP_ERR_BROKEN`.
  TRIHOP_POLL_ABORT = 13,
  // Of a barrier: makes it whole and empty, at once; how many waited. These get
  // `TRIHOP_ERR_BROKEN`.
  TRIHOP_POLL_RESET = 14,
  // Of a barrier: how many wait in it, at once.
  TRIHOP_POLL_WAITING = 15,
  // Of a barrier: 1 where it is broken and 0 where not, at once.
  TRIHOP_POLL_BROKEN = 16,
  // Of a semaphore: until its value is above 0, of which it takes nothing; the value.
  TRIHOP_POLL_AVAILABLE = 17,
  // Of a barrier: until all of its parties but one wait in it; how many wait.
  // `TRIHOP_ERR_BROKEN` where it is broken.
  TRIHOP_POLL_ONE_MISSING = 18,
  // How many gets, peeks and pops wait, at once.
  TRIHOP_POLL_RECEIVERS = 19,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum trihop_poll_t trihop_poll_t;
#else
typedef int32_t trihop_poll_t;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Which queues a flush empties.
enum trihop_queues_t
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // What this rank sent: until the next hop has taken it, or it is in a remote queue (which is
  // where a representative's own sends go).
  TRIHOP_ORIGIN_QUEUES = 0,
  // Batches to other nodes: until the representatives there have taken them. On grids with several
  // stages between the first and the last those of all of them: so that all have passed, all ranks
  // flush, and wait for each other, once for each of these stages.
  TRIHOP_REMOTE_QUEUES = 1,
  // What came from other nodes for ranks of this node: until these have taken it.
  TRIHOP_RELAY_QUEUES = 2,
  // What has arrived here: until it was handled.
  TRIHOP_DELIVERY_QUEUE = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum trihop_queues_t trihop_queues_t;
#else
typedef int32_t trihop_queues_t;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How `trihop_allreduce` and its like join values.
enum trihop_reduce_t
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Sum; of integers it wraps around.
  TRIHOP_SUM = 0,
  // Smallest.
  TRIHOP_MIN = 1,
  // Largest.
  TRIHOP_MAX = 2,
  // Exclusive or; of integers, as the next two.
  TRIHOP_XOR = 3,
  // And, bit by bit.
  TRIHOP_AND = 4,
  // Or, bit by bit.
  TRIHOP_OR = 5,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum trihop_reduce_t trihop_reduce_t;
#else
typedef int32_t trihop_reduce_t;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// When `trihop_channel_send` returns.
enum trihop_return_t
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // At once; with `TRIHOP_ERR_WOULD_BLOCK` where the port has as much under way as it may. The
  // bytes are copied. What becomes of the message later is counted: `trihop_channel_failures`.
  TRIHOP_IMMEDIATELY = 0,
  // Once the port's window has room and the bytes are copied. Failures as above.
  TRIHOP_WHEN_BUFFERED = 1,
  // Once the message is in the channel.
  TRIHOP_WHEN_DEPOSITED = 2,
  // Once somebody has taken it out of the channel.
  TRIHOP_WHEN_RECEIVED = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum trihop_return_t trihop_return_t;
#else
typedef int32_t trihop_return_t;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Where the engine of a job runs, and who calls its handlers.
enum trihop_seat_t
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Any thread may call. A progress thread keeps traffic going while the program computes, and a
  // delivery thread calls the handlers of its streams, one call at a time, unless a call that
  // waits for the end of a step does; a stream with the option `own_thread` has a thread of its
  // own.
  TRIHOP_THREADED = 0,
  // One thread calls, the one that has started the job. Progress is made inside of its calls,
  // and handlers are called there too: no lock is taken per message, so that small ones cost
  // least. A program that computes for long forwards nothing meanwhile, unless it calls
  // `trihop_poll` now and then.
  TRIHOP_INLINE = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum trihop_seat_t trihop_seat_t;
#else
typedef int32_t trihop_seat_t;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Elements with keys of 64 bits, of which each rank of a job has some, and to which items are sent
// by key: the cells of a grid, the vertices of a graph, the patients of a simulation. An element
// may move to another rank, between steps or while items are on their way to it: they are sent on
// to where it is, each exactly once. What is sent to one element keeps its order as long as that
// stays.
//
// The owner of a key knows where its element is: what is sent to an element that is with its owner
// goes straight there. All ranks insert their elements and then call `trihop_array_fence`, before
// anybody sends to them. A rank keeps the broadcasts of a step and of the one before, for elements
// that come to it: steps end by the calls of the array, not by `trihop_fence` alone.
//
// ```c
// struct cell { double heat; };
//
// static void add(void *context, const trihop_array_item_t *item)
// {
//     struct cell *cell = item->element;
//     cell->heat += *(const double *)item->bytes;
//     if (cell->heat > 100)
//         trihop_array_migrate(item->array, item->key, (item->rank + 1) % item->size);
// }
//
// trihop_array_calls_t calls = {sizeof calls, add, .element_bytes = sizeof(struct cell)};
// trihop_array_open(job, "cells", NULL, &calls, &cells);
// for (uint64_t key = rank; key < 1000; key += size)
//     trihop_array_insert(cells, key, &(struct cell){0});
// trihop_array_fence(cells);
// trihop_array_push(cells, 17, &heat, sizeof heat);
// trihop_array_fence(cells);
// trihop_array_close(cells);
// ```
//
// Threads: as `trihop_stream_t`. While the handler works on what has come in a run, calls of other
// threads that use elements wait: insert, remove, migrate, each, count and late.
typedef struct trihop_array_t trihop_array_t;

// A call on a channel that was started and not waited for: a get, a poll or a send. It may be
// tested, waited for and slept on, and is given back by `trihop_asked_free`: before its end it is
// taken back so. It stays when the port that it was started by is freed. What a port may have
// under way is bounded by its window.
//
// ```c
// trihop_channel_start_get(tasks, TRIHOP_NO_TIMEOUT, &asked);
// do
//     compute();
// while ((status = trihop_asked_test(asked, &is_over)) == TRIHOP_OK && !is_over);
// if (status == TRIHOP_OK)
//     trihop_asked_received(asked, &task);
// trihop_asked_free(asked);
// ```
//
// Threads: as `trihop_channel_t`, and one call at a time on one request; that of a guest is any
// thread's, whatever its port does meanwhile.
typedef struct trihop_asked_t trihop_asked_t;

// A port of a channel: what a rank sends, gets and polls by. A channel is a bounded queue of
// messages on the rank that has made it, its owner; any rank of the job sends to it and gets from
// it. Semaphores and barriers are channels too, which are polled only. What one
// thread sends by a port comes into the channel in that order; there is no order between ports.
//
// The owner does what it is asked in the order in which that comes, and what cannot be done at once
// waits there: until it can, until its timeout, or until the channel is closed. Owners of inline
// jobs answer inside their calls that make progress, of whichever stream, and `trihop_poll`; those
// with threads at any time.
//
// ```c
// trihop_channels_open(job, "work", NULL, &channels);
// if (rank == 0) {
//     trihop_channel_create(channels, NULL, &tasks);
//     trihop_channel_descriptor(tasks, text, sizeof text, &length);
// }
// trihop_broadcast(job, 0, text, sizeof text);
// if (rank != 0)
//     trihop_channel_attach(channels, text, &tasks);
// trihop_channel_send(tasks, 0, "a task", 6, TRIHOP_WHEN_DEPOSITED, TRIHOP_NO_TIMEOUT);
// trihop_channel_get(tasks, TRIHOP_NO_TIMEOUT, &task);
// trihop_received_free(&task);
// ```
//
// Threads: as `trihop_job_t`. Of a job with threads several may use one port; in a handler only
// sends that return immediately may be made, and of an inline job no call at all
// (`TRIHOP_ERR_NESTED`). That of a guest is for one thread at a time, whichever: a call on it while
// another one is under way is `TRIHOP_ERR_MISUSE`.
typedef struct trihop_channel_t trihop_channel_t;

// The channels of a job on this rank. See `trihop_channel_t`.
//
// Threads: as `trihop_job_t`.
typedef struct trihop_channels_t trihop_channels_t;

// A stream by push, pull and advance: for programs that neither wait nor have handlers. None of
// its calls waits for others. Each step ends on all ranks once each has said that it pushes no
// more; nothing of a later step is pulled in an earlier one.
//
// ```c
// size_t next = 0;
// int goes_on = 1;
//
// while (trihop_conveyor_advance(conveyor, next == count, &goes_on) == TRIHOP_OK && goes_on) {
//     while (next < count && trihop_conveyor_push(conveyor, target[next], &item[next]) == TRIHOP_OK)
//         next++;
//     while (trihop_conveyor_pull(conveyor, &pulled, NULL) == TRIHOP_OK)
//         use(pulled);
// }
// ```
//
// Threads: one at a time; of an inline job that which has started it.
typedef struct trihop_conveyor_t trihop_conveyor_t;

// What a stream and each of its queues had done on this rank at one moment, of
// `trihop_stream_details`. It does not change, and outlives its stream.
//
// Threads: any thread may read it, several at once too.
typedef struct trihop_details_t trihop_details_t;

// A process that is no rank, and uses the channels of a job all the same, through a rank of its
// node that serves guests, or `trihop serve`. It needs no launcher and no other guest, and may come
// and go at any time. Its ports are used as those of ranks are.
//
// ```c
// trihop_guest_open(NULL, TRIHOP_NO_TIMEOUT, &guest);
// trihop_guest_attach(guest, descriptor, &tasks);
// trihop_channel_send(tasks, 0, "a task", 6, TRIHOP_WHEN_DEPOSITED, TRIHOP_NO_TIMEOUT);
// trihop_channel_free(tasks);
// trihop_guest_free(guest);
// ```
//
// Threads: any.
typedef struct trihop_guest_t trihop_guest_t;

// What serves guests, as long as it is there: see `trihop_guests_serve`.
//
// Threads: any, but one at a time.
typedef struct trihop_guests_t trihop_guests_t;

// One rank's part of a job, over the seat that `trihop_init` was given.
//
// Threads: of a job with threads (`TRIHOP_THREADED`), except where a function says otherwise, any
// thread may call at any time, several at once too. Of an inline job (`TRIHOP_INLINE`), and of its
// streams, all functions are called on the thread that has started it, whatever they say of
// threads themselves. Inside its handlers functions of streams send and no others; what never
// changes (ranks, nodes, names, errors) may be asked for there.
typedef struct trihop_job_t trihop_job_t;

// The channels of a rank, with the messages in them, between two jobs.
typedef struct trihop_kept_t trihop_kept_t;

// Items of a stream that are merged at their sender: a table keeps the last item for a rank and a
// key, and what comes for the same two joins it. An item leaves its place when another one needs
// that, and all do at `trihop_merging_flush`: memory is bounded, and what is common travels seldom.
// Items for one rank do not keep their order.
//
// Handlers may push to it too, also that of the stream it is before. What they push during a flush
// may stay in the table, so where handlers push, flush and fence until no rank holds an item:
//
// ```c
// do {
//     trihop_merging_flush(merging);
//     trihop_stream_fence(stream);
//     held = trihop_merging_held(merging);
//     trihop_allreduce(job, TRIHOP_SUM, &held, 1);
// } while (held > 0);
// ```
//
// Threads: any of a threaded job; of an inline job that which has started it.
typedef struct trihop_merging_t trihop_merging_t;

// The mini-ranks of this process: ranks of a job, each of which a thread of the program takes and
// has as a process has its own. A thread of the library's, the communication thread, speaks with
// other nodes for all of them; mini-ranks of one node reach each other without it.
//
// ```c
// static void *work(void *context)
// {
//     struct part *part = context;
//     trihop_job_t *job;
//     trihop_minirank_start(part->miniranks, part->index, &job);
//     ... as on a rank that is a process, with TRIHOP_INLINE
//     trihop_finalize(job);
//     return NULL;
// }
//
// trihop_minirank_init(4, NULL, &miniranks);
// for (i = 0; i < trihop_minirank_count(miniranks); i++)
//     pthread_create(&threads[i], NULL, work, &parts[i]);
// for (i = 0; i < trihop_minirank_count(miniranks); i++)
//     pthread_join(threads[i], NULL);
// trihop_minirank_finalize(miniranks);
// ```
//
// Threads: any, several at once too.
typedef struct trihop_miniranks_t trihop_miniranks_t;

// What an element is packed into: see `trihop_pack`.
typedef struct trihop_packer_t trihop_packer_t;

// Requests of one size to any rank, each answered there by a function, whose replies, of one size
// too, are pulled in the order of the requests: a look-up in a table that is spread over the ranks.
// Only of inline jobs; none of its calls waits but the fence and the close.
//
// ```c
// while (asked < count || trihop_replies_outstanding(replies) > 0) {
//     while (asked < count && trihop_replies_ask(replies, owner[asked], &index[asked]) == TRIHOP_OK)
//         asked++;
//     while (trihop_replies_pull(replies, &value[pulled]) == TRIHOP_OK)
//         pulled++;
// }
// ```
//
// Threads: that which has started the job.
typedef struct trihop_replies_t trihop_replies_t;

// A stream between all ranks of a job: of byte records, each of its own length and with a kind, or
// of items of one size, of which a run has one header, so that small ones cost less.
//
// Threads: except where a function says otherwise, any thread may call at any time, several at
// once too, and so may the handler of any stream; but of an inline job as `trihop_job_t` says.
typedef struct trihop_stream_t trihop_stream_t;

// Options of a job and of its streams, with the names, units, ranges and defaults of the library's
// documentation (docs/OPTIONS.md, or `Options` and `StreamOptions` of the Rust interface). 0 and empty texts
// stand for what is absent.
//
// Fill it with `trihop_options_init`, or with `trihop_job_options` for a stream that differs from its job; then
// change fields, or set them by name. Later versions add fields at the end. Those from `launcher` on are for jobs:
// a stream looks no further.
typedef struct trihop_options_t {
  // Bytes of this struct as the caller knows it; set by `trihop_options_init`.
  size_t size;
  // Batches of the origin stage that may be unconsumed per local queue.
  // They count as this times `origin_buftarget_bytes`; of a long record that lies in
  // shared memory 40 bytes do, which say where. Where the queue is a link
  // (`fabric-only`), no more than 1,024 count, all ranks need the same, and each
  // takes a buffer as long as those of other nodes.
  // Default 16; 1 to 65,535; in batches.
  uint64_t origin_maxrpc;
  // Bytes after which an origin lane is shown to its consumer.
  // A batch of an origin link (`fabric-only`) is sealed at them, and all ranks need
  // the same there. 1 means at every run.
  // Default 4,096; 1 to 1 MiB; in bytes.
  uint64_t origin_buftarget_bytes;
  // As `origin_maxrpc`, for relay queues.
  // Default 16; 1 to 65,535; in batches.
  uint64_t relay_maxrpc;
  // As `origin_buftarget_bytes`, for relay queues.
  // Default 4,096; 1 to 1 MiB; in bytes.
  uint64_t relay_buftarget_bytes;
  // Batches per link to another node that may be in flight, unacknowledged.
  // Default 4; 1 to 1,024; in batches. Equal on all ranks.
  uint64_t remote_maxrpc;
  // Bytes at which a batch between nodes is sealed.
  // Fewer where links are so many that an eighth of `memory_bytes` does not hold two
  // such batches for each: with the defaults above 32 links.
  // Default 64 KiB; 1 to 16 MiB; in bytes. Equal on all ranks.
  uint64_t remote_buftarget_bytes;
  // Records that may wait for a delivery thread, or for an application without a
  // handler. One run always may.
  // Default 65,536; 1 to 4,294,967,295; in records.
  uint64_t deliverq_max;
  // Whether the handler has a delivery thread of its own, where the job has threads.
  // Those of the other streams share one, on which a handler that blocks keeps the
  // others waiting.
  // Default 0; 0, 1.
  uint64_t own_thread;
  // Place of the stream among others: a higher one is served first in each round of
  // progress.
  // Default 0; 0 to 255.
  uint64_t priority;
  // Time that a partial run or batch waits while its rank makes progress.
  // A run that grows all the while has ten times as much, since it is full soon.
  // Default 100; 0 to 10,000,000; in microseconds.
  uint64_t linger_us;
  // Size of a run, header included.
  // At most a quarter of a lane counts.
  // Default 8,192; 24 to 16,384; in bytes.
  uint64_t run_bytes;
  // Memory of the stream's queues on a rank, in fixed shares.
  // Lanes, batches, receive slots, open runs and deliveries that wait are shares of
  // it. What each link must have, two batches and a small slot, comes on top where
  // links are many, and so do long records, the spill, and what arrays keep of
  // broadcasts, at most as much again. Channels have a quarter of it, 64 MiB at
  // most, for messages inside of a node, where streams have an eighth.
  // Default 32 MiB; 64 KiB to 64 GiB; in bytes. Equal on all ranks.
  uint64_t memory_bytes;
  // Bound of what handlers' sends may spill: what finds no room in a queue. 0 is a
  // quarter of the memory that the processes of a node may use, divided by its
  // ranks. Taken as it is needed, and given back. Beyond it a handler's send fails,
  // and the job ends with that error.
  // Default 0; 0 or 1,024 to 1 TiB; in bytes.
  uint64_t spill_bytes;
  // Longest record.
  // A rank puts together long records of twice this at a time.
  // Default 64 MiB; 0 to 4,294,967,295; in bytes. Equal on all ranks.
  uint64_t max_message_bytes;
  // How messages travel.
  // `three-hop` goes over representatives of both nodes, with as many links between
  // two nodes (rails) as give every rank its share of the work: the target of a
  // message picks one. `three-hop:1` has one, between the ranks that nexus would
  // choose, and `three-hop:4` four, or as many as the smaller node has ranks.
  // Where nodes have several relays (agents, or processes with mini-ranks),
  // `three-hop:4+1`, or `three-hop:+1`, goes over those that follow on their nodes.
  // `direct` has a link to each rank of other nodes; `fabric-only` goes the ways of
  // `three-hop`, with two links to each rank of the node in the place of lanes;
  // `mesh` corrects one coordinate of a grid per hop, the last one first. Lengths
  // are given (`mesh:4x4x8`; ranks may be fewer than places), or suit the nodes
  // (`mesh:3d`, and two dimensions where nothing is said); there are 20 dimensions
  // at most. `node-mesh` (`node-mesh:4x8`, `node-mesh:3d`) does so on a grid of
  // nodes, with three hops for each coordinate at most and the links divided among
  // the ranks of a node. `team-mesh` (`team-mesh:4x8`, `team-mesh:3d`) too, with a
  // team of a node's ranks for each dimension: two hops at most beside one for each
  // coordinate, and more links. For mini-ranks grids are of processes, for ranks
  // with agents of nodes, and `fabric-only` is refused. A Rust program may bring
  // its own. Where an eighth of `memory_bytes` does not hold two batches for each
  // link, all others than `three-hop` alone are refused.
  // Default three-hop; three-hop, direct, fabric-only, mesh, node-mesh, team-mesh, three-hop:K, three-hop:K+N, mesh:AxB..., mesh:Nd. Equal on all ranks.
  char route[64];
  // Who started the job.
  // `single` also where a launcher has several tasks and each is to be a job of one.
  // Default found out; master, pmix, pmi1, local, single, agent.
  char launcher[16];
  // libfabric provider between nodes.
  // `FI_PROVIDER` counts where this is not set and that names just one.
  // Default the best by score; a name as `trihop info` has it.
  char provider[64];
  // Network interfaces, domains or addresses, with commas between them.
  // Each rank takes the closest one (see `trihop info`). Those of a list have to
  // reach each other. Not together with `loopback`.
  // Default the provider's first that other nodes can reach, and those of its network; interfaces, domains or addresses.
  char interface[64];
  // Longest batch that is sent without asking.
  // 0 is the provider's own limit.
  // Default the provider's; 0 or 192 to 16 MiB; in bytes. Equal on all ranks.
  uint64_t eager_bytes;
  // How longer batches move.
  // Default what suits the provider; read, segments.
  char mover[16];
  // Whether nodes are simulated on one machine, so that only loopback is used.
  // `trihop run` sets it, unless `interface` is given.
  // Default 0; 0, 1.
  uint64_t loopback;
  // How long start-up waits for the other ranks.
  // Default 30,000; 1 to 86,400,000; in milliseconds.
  uint64_t bootstrap_timeout_ms;
  // How long another node may be out of reach before its ranks count as dead.
  // Its link is cut then, or its machine down. The kernels ask each other, in steps
  // of whole seconds: how long a rank computes, blocks or is stopped does not
  // matter. A process that ends is known at once.
  // Default 5,000; 100 to 86,400,000; in milliseconds.
  uint64_t watch_timeout_ms;
  // Whether the processes show their counters to others of the same user.
  // On a page of shared memory, which `trihop top` and `trihop dump` read.
  // Default 1; 0, 1.
  uint64_t counters_page;
  // Whether each mini-rank, and the communication thread of its process, keeps to a
  // core of its own.
  // They are cores that the thread which starts the mini-ranks may use, in order:
  // the first is mini-rank 0's, and the one behind those of the mini-ranks is the
  // communication thread's. Threads that one of them starts later stay on its core.
  // `own`: no other process uses them, since the launcher has bound each process.
  // `shared`: the processes of a machine may use the same ones, and each takes its
  // part, by its place on the machine. Refused where they are too few.
  // Default none; own, shared.
  char minirank_cores[16];
} trihop_options_t;

// Gathers `bytes` bytes of every rank, which are at `mine`, into `all`, in rank order, as
// `MPI_Allgather` does; returns 0, or a number of its own on failure. Every rank calls it equally
// often, with the same `bytes`.
//
// Threads: called by the thread that is in `trihop_init_custom` or `trihop_finalize`, during these
// calls only; of mini-ranks as `trihop_minirank_init_custom` says.
typedef int32_t (*trihop_allgather_t)(void *context, const void *mine, size_t bytes, void *all);

// What a handler is called with: a record, or the items of one source that arrived one after the
// other. Later versions add fields at the end.
typedef struct trihop_message_t {
  // Stream that it came by. A handler may answer on it.
  const struct trihop_stream_t *stream;
  // Rank that sent it.
  uint32_t source;
  // Of a record what its sender gave with it; 0 with items.
  uint32_t kind;
  // This rank.
  uint32_t rank;
  // Ranks of the job.
  uint32_t size;
  // How many items lie in `bytes`, one after the other; 1 for a record.
  size_t count;
  // Bytes of the record, or of all the items.
  size_t length;
  // Valid during the call only, and never null. A record is aligned to 8 bytes, and so are items
  // where their size is a multiple of 8.
  const void *bytes;
  // The library's, for `trihop_message_next`.
  void *run;
} trihop_message_t;

// Called for every record, or for every run of items, that arrives, with the `context` that the
// stream was opened with.
//
// Threads: of an inline job in calls that make progress, on the thread that makes them, and not
// before the one that opens the stream has returned. Of a job with threads on a delivery thread, or
// by a call that waits for the end of a step, of this stream or another one (a fence, a round, a
// close), one call at a time, the first one after the handle was stored. It may block, but neither
// for what the program does behind such a call, nor for a lock that the program keeps meanwhile.
// Its senders then wait, and so do the other streams of the same thread: with the option
// `own_thread` a stream has one of its own.
//
// It may send on any stream of the job, its own one too, to any rank, any number of times: see
// `trihop_stream_send`. It may not wait for others: no flush, fence, collective, open or close. It
// must return: no exception and no longjmp across it.
typedef void (*trihop_handler_t)(void *context, const struct trihop_message_t *message);

// Fills the `length` zeroed bytes of a record in place: see `trihop_stream_reserve`.
typedef void (*trihop_filler_t)(void *context, void *bytes, size_t length);

// What a stream has done on this rank since it was opened. Later versions add fields at the end.
typedef struct trihop_stats_t {
  // Bytes of this struct as the caller knows it; set by the library.
  size_t size;
  // Records that this rank sent, from the application and from handlers.
  uint64_t sent;
  // Payload bytes of what this rank sent: records and items, and each copy of a
  // broadcast.
  uint64_t sent_bytes;
  // Records delivered here.
  uint64_t delivered;
  // Runs delivered here.
  uint64_t runs_delivered;
  // Runs forwarded as source representative.
  uint64_t runs_to_fabric;
  // Runs forwarded as target representative.
  uint64_t runs_from_fabric;
  // Frames put into origin queues by this rank.
  uint64_t origin_frames;
  // Frames put into relay queues by this rank.
  uint64_t relay_frames;
  // Frames put into remote queues by this rank.
  uint64_t remote_frames;
  // Batches sealed for other nodes.
  uint64_t batches_sent;
  // Batches received from other nodes.
  uint64_t batches_received;
  // Batches, and long records in memory that nodes share, that came by rendezvous.
  uint64_t announced;
  // Control messages sent.
  uint64_t controls_sent;
  // Bytes handed to the fabric, headers and control messages included.
  uint64_t wire_bytes;
  // Sends refused for want of room (a waiting send counts each try).
  uint64_t would_block;
  // Frames that found their queue full.
  uint64_t queue_waits;
  // Times that a delivery had to wait for the application.
  uint64_t blocked_deliveries;
  // Messages dropped because they were broken, or none of this job's; the first of a
  // stream is told at level warn.
  uint64_t bad_headers;
  // Frames taken from lanes, and from the links that `fabric-only` has in their
  // place.
  uint64_t frames_received;
  // Broadcasts that this rank sent; their copies are in `sent`, one for each rank
  // that gets it.
  uint64_t broadcasts;
  // Copies of broadcasts that this rank put into its queues, of its own and as a
  // representative. Records longer than a frame are not among them.
  uint64_t broadcast_copies;
  // Records that arrived and were dropped on purpose, as clients of DeltaFS may ask
  // for.
  uint64_t discarded;
  // Times that own sends met a limit over all queues of a stage, which clients of
  // DeltaFS set.
  uint64_t limit_hits;
  // Records that arrived and were never delivered because the job failed, or was
  // dropped without being shut down.
  uint64_t undelivered;
  // Bytes of the runs that this rank forwarded, in `runs_to_fabric` and
  // `runs_from_fabric`.
  uint64_t forwarded_bytes;
} trihop_stats_t;

// Called when a step begins, or when it is over, with the `context` of its options and the stream:
// see `trihop_step_options_t`. It must return: no exception and no longjmp across it.
typedef void (*trihop_step_call_t)(void *context, const struct trihop_stream_t *stream);

// What a step has. Later versions add fields at the end. Fill it with `trihop_step_options_init`.
typedef struct trihop_step_options_t {
  // Bytes of this struct as the caller knows it; set by `trihop_step_options_init`.
  size_t size;
  // How many contributors there are. 0 at first.
  uint64_t count;
  // Whose they are, of `trihop_contributors_t`: those of this rank at first.
  int32_t of;
  // The stream's place among others while the step lasts, 0 to 255, in the place of its option
  // `priority`; -1, as at first, for that. Ranks need not have the same.
  int32_t priority;
  // Called once, before `trihop_stream_begin_step_with` returns and on the same thread, when
  // contributors of this rank may push: what they push from now on counts in this step. Of a
  // round or a fence, it is called before that starts: what it pushes counts. Other ranks may
  // not have begun it, and need not have. Null for nothing.
  trihop_step_call_t at_start;
  // Called once, when the step is over for this rank, whoever asks for that or nobody: on an
  // inline job inside of a call that makes progress, between two rounds of it; with threads on
  // the delivery thread of the stream, between two calls of handlers, or, without a handler, on
  // the one that the job's streams share. It may send, which never waits for room, call
  // `trihop_stream_done`, and begin the next step; what waits for others, or tests, fails with
  // `TRIHOP_ERR_NESTED`. It is not called where the job fails before, and no more once
  // `trihop_stream_close` has returned. Null for nothing.
  trihop_step_call_t at_end;
  // Handed to both.
  void *context;
} trihop_step_options_t;

// Answers a request of `source`: fills `reply`, which is zeroed. Both are aligned to 8. It may not
// call the library.
typedef void (*trihop_answer_t)(void *context, uint32_t source, const void *request, void *reply);

// Says what an item is about.
typedef uint64_t (*trihop_key_t)(void *context, const void *item);

// Joins `item` to `before`, an item of the same key; that stays the key of `before`.
typedef void (*trihop_merge_t)(void *context, void *before, const void *item);

// What the handler of an array is called with. Later versions add fields at the end.
typedef struct trihop_array_item_t {
  // The array. The handler may send to it.
  const struct trihop_array_t *array;
  // That the item was sent to.
  uint64_t key;
  // The element of the key, which the handler may change.
  void *element;
  // The item, aligned to 8 bytes; valid during the call only.
  const void *bytes;
  // Bytes of the item.
  size_t length;
  // This rank.
  uint32_t rank;
  // Ranks of the job.
  uint32_t size;
} trihop_array_item_t;

// Called for each item, with the element that it was sent to and the `context` of the array. It
// may push and broadcast, to its own array and others, send on any stream, have the element move
// (`trihop_array_migrate`), and call `trihop_array_done`.
//
// Threads: as `trihop_handler_t`.
typedef void (*trihop_array_handler_t)(void *context, const struct trihop_array_item_t *item);

// The rank that knows where the element of a key is: the same on all ranks, and for any key, since
// those of other ranks are asked for too. It may not call the library.
//
// Threads: any, several at once too.
typedef uint32_t (*trihop_owner_t)(void *context, uint64_t key);

// Writes an element as bytes by calls of `trihop_pack`, so that it can move; 0, or any other
// number where it cannot: then it stays. It may call nothing else of the library.
//
// Threads: called inside `trihop_array_migrate`, or behind a handler on its thread.
typedef int32_t (*trihop_pack_t)(void *context, const void *element, struct trihop_packer_t *packer);

// Makes an element of the `length` bytes that were packed on another rank, aligned to 8; null
// where they are none, which ends the job with `TRIHOP_ERR_BAD_PEER`. It may not call the library.
//
// Threads: as the handler.
typedef void *(*trihop_unpack_t)(void *context, const void *bytes, size_t length);

// Frees an element that has moved away, or is left when the array goes. It may not call the
// library.
//
// Threads: any.
typedef void (*trihop_free_t)(void *context, void *element);

// What an array calls, and what its elements are. Fields that are not named are zero: of elements
// that the library keeps, `element_bytes` is not; others are pointers of the program's, which move
// where there are `pack` and `unpack`. Later versions add fields at the end.
typedef struct trihop_array_calls_t {
  // Bytes of this struct as the caller knows it.
  size_t size;
  // Called for each item.
  trihop_array_handler_t handler;
  // Handed to all functions.
  void *context;
  // Who knows where an element is; null: the ranks in turn, by key.
  trihop_owner_t owner;
  // Bytes of an element, where the library keeps elements: they are aligned to 16, and move byte
  // by byte. 0: the program keeps them.
  size_t element_bytes;
  // Writes an element of the program's as bytes; null: elements do not move.
  trihop_pack_t pack;
  // Makes an element of the program's of these bytes.
  trihop_unpack_t unpack;
  // Frees an element of the program's; null: nobody does.
  trihop_free_t free;
} trihop_array_calls_t;

// Called for an element that is here: see `trihop_array_each`.
typedef void (*trihop_array_visitor_t)(void *context, uint64_t key, void *element);

// How channels are opened, by `trihop_channels_open_with`. Later versions add fields at the end.
// Fill it with `trihop_channels_options_init`.
typedef struct trihop_channels_options_t {
  // Bytes of this struct as the caller knows it; set by `trihop_channels_options_init`.
  size_t size;
  // Options of the channels' stream; null, as at first, for those of the job.
  const struct trihop_options_t *stream;
  // What this rank has kept of its channels, as of `trihop_channels_open_kept`; null, as at
  // first, for nothing.
  const struct trihop_kept_t *kept;
  // Bytes of messages that this rank hands out of its channels and that have not arrived at the
  // ranks which get them. Beyond these gets wait, and those that are tried once are
  // `TRIHOP_ERR_WOULD_BLOCK`. One message may be longer, so that with 1 they go one by one. It
  // is this rank's alone. 0, as at first, for that of the environment, `TRIHOP_MAX_GETMSG_MB`,
  // and for none where that is not set.
  uint64_t getmsg_bytes;
} trihop_channels_options_t;

// What a channel may hold, in the memory of its owner. Fields that are 0 have their defaults.
// Later versions add fields at the end.
typedef struct trihop_channel_limits_t {
  // Bytes of this struct as the caller knows it.
  size_t size;
  // Bytes of the messages that it holds; 1 MiB. A longer message is refused.
  uint64_t bytes;
  // Bytes of the sends of one port that are not yet in the channel; 256 KiB. A longer message
  // goes when nothing else of its port is under way.
  uint64_t window_bytes;
  // Messages that it holds; 100.
  uint32_t messages;
  // Ports that may be open at once; 1024.
  uint32_t ports;
  // Sends of one port that are not yet in the channel; as many of its other requests may wait.
  // 64.
  uint32_t window_messages;
  // 0.
  uint32_t reserved;
} trihop_channel_limits_t;

// A message that was got from a channel. Its memory is the caller's, until `trihop_received_free`.
// Later versions have other functions for more.
typedef struct trihop_received_t {
  // Its bytes; null where there are none.
  void *bytes;
  // How many.
  size_t length;
  // The library's.
  size_t capacity;
  // Rank that sent it.
  uint32_t source;
  // The 32 bits that the sender gave with it.
  uint32_t kind;
} trihop_received_t;

// A message whose bytes are in memory of the caller's: see `trihop_channel_get_into`.
typedef struct trihop_filled_t {
  // How many bytes it has.
  size_t length;
  // Rank that sent it.
  uint32_t source;
  // The 32 bits that the sender gave with it.
  uint32_t kind;
} trihop_filled_t;

// What the queues of one stage have done together. Later versions add fields at the end.
typedef struct trihop_stage_stats_t {
  // Bytes of this struct as the caller knows it; set by the library.
  size_t size;
  // Queues of the stage that were ever used: `trihop_details_queue` takes numbers below it.
  uint64_t queues;
  // Times that own sends met the stage's limit, which clients of DeltaFS set.
  uint64_t limit_hits;
  // Sum over the queues of `own_runs`.
  uint64_t own_runs;
  // Sum over the queues of `forwarded_runs`.
  uint64_t forwarded_runs;
  // Sum over the queues of `sends`.
  uint64_t sends;
  // Sum over the queues of `aged_sends`.
  uint64_t aged_sends;
  // Sum over the queues of `flush_sends`.
  uint64_t flush_sends;
  // Sum over the queues of `waits`.
  uint64_t waits;
  // Largest of the queues' `longest_wait_ns`.
  uint64_t longest_wait_ns;
  // Largest of the queues' `waiting_ns`.
  uint64_t waiting_ns;
  // Sum over the queues of `wakes`.
  uint64_t wakes;
  // Sum over the queues of `forwarded_bytes`.
  uint64_t forwarded_bytes;
  // Sum over the queues of `dropped_runs`.
  uint64_t dropped_runs;
} trihop_stage_stats_t;

// What one output queue has done. Later versions add fields at the end.
typedef struct trihop_queue_stats_t {
  // Bytes of this struct as the caller knows it; set by the library.
  size_t size;
  // Rank at the other end.
  uint64_t peer;
  // Runs of this rank's own (its application's and its handlers'): records for one
  // rank that were gathered, or a single one.
  uint64_t own_runs;
  // Runs that came over a lane or a link and go on.
  uint64_t forwarded_runs;
  // Batches sealed; for a lane, times that it was shown to its consumer.
  uint64_t sends;
  // Of `sends`, those because of age, or because nothing else moved.
  uint64_t aged_sends;
  // Of `sends`, those because of a flush or a fence.
  uint64_t flush_sends;
  // Times that the queue became full: runs that wait behind one that waits are not
  // counted again.
  uint64_t waits;
  // The longest of `waits`, as seen by rounds of progress.
  uint64_t longest_wait_ns;
  // How long one of `waits` has lasted that is not over; 0 where none is.
  uint64_t waiting_ns;
  // Times that the consumer of a lane slept and was woken for what was shown to it.
  uint64_t wakes;
  // Bytes of `forwarded_runs`.
  uint64_t forwarded_bytes;
  // Of the runs, those that were dropped, since the other end is gone and the job goes
  // on without it.
  uint64_t dropped_runs;
} trihop_queue_stats_t;

// What one thread of a job has used so far, as the kernel counts it. Later versions add fields at
// the end.
typedef struct trihop_thread_use_t {
  // Bytes of this struct as the caller knows it; set by the library.
  size_t size;
  // Processor time in user mode, in milliseconds (counted in clock ticks, mostly of 10 ms).
  uint64_t user_ms;
  // As `user_ms`, inside the kernel.
  uint64_t system_ms;
  // Times that it waited.
  uint64_t voluntary_switches;
  // Times that it had to give its core to others.
  uint64_t involuntary_switches;
  // Page faults that cost no reading.
  uint64_t minor_faults;
  // What the thread is for: `progress`, or `deliver` and the name of its stream, of which the
  // end may be missing. Ends with NUL.
  char name[64];
} trihop_thread_use_t;

// Takes each message that is recorded. `level` is 1 for errors, 2 warnings, 3 information, 4 and 5
// details; `facility` is the part of the library that it comes from. Both texts are valid during
// the call only.
//
// Threads: any thread that has something to say calls it, several at once. It calls nothing of a
// job, such as a send, a step or a dump: this thread may be inside of a call of that job, which
// would wait for itself. It may log; what that says does not come here.
typedef void (*trihop_log_callback_t)(void *context,
                                      int32_t level,
                                      const char *facility,
                                      const char *text);

// What is recorded and where it goes. Later versions add fields at the end. Fill it with
// `trihop_log_options_init`; all texts have to live until `trihop_log_install` has returned.
//
// A filter is a list of levels and of `FACILITY=LEVEL` with commas, later ones win, such as
// `info,fabric=debug`. Levels are `off`, `error`, `warn`, `info`, `debug`, `trace`; facilities
// `client`, `route`, `queue`, `link`, `deliver`, `bootstrap`, `fabric`, `memory`, `other`.
typedef struct trihop_log_options_t {
  // Bytes of this struct as the caller knows it; set by `trihop_log_options_init`.
  size_t size;
  // Filter for what is recorded at all; null for what `TRIHOP_LOG` says, or warnings.
  const char *record;
  // Filter for what of it goes to standard error; null for everything.
  const char *to_stderr;
  // As `record`, on ranks below `detailed_ranks`; null for the same.
  const char *detailed_record;
  // As `to_stderr`, on ranks below `detailed_ranks`; null for the same.
  const char *detailed_to_stderr;
  // File that lines are appended to; null for what `TRIHOP_LOG_FILE` says, or none.
  const char *file;
  // Called for everything that is recorded; null for nothing.
  trihop_log_callback_t callback;
  // Handed to `callback`.
  void *context;
  // Number of first ranks that log in more detail.
  uint64_t detailed_ranks;
  // 1 if each rank has a file of its own, with `.` and the rank added to its name; 0 if all
  // append to one.
  uint64_t file_per_rank;
  // 1 if only ranks below `detailed_ranks` write to a file, else 0.
  uint64_t file_of_detailed_only;
  // Memory in bytes for the last lines, which `trihop_log_recent` and a core dump show; 0 for
  // none.
  uint64_t ring_bytes;
} trihop_log_options_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// What a status means, in a few words; never null. Statuses that this version does not know have
// words too.
//
// Threads: any. The text lives as long as the library.
const char *trihop_strerror(int32_t status);

// The full sentence about the last call of this thread that failed: what, on which object, with
// which value, and the remedy. Empty where none has; never null. Successful calls leave it as it
// is.
//
// Threads: any, each sees its own. The text is valid until the next call of this thread that
// fails.
const char *trihop_last_error(void);

// Fills `options` with the defaults, overridden by the environment (`TRIHOP_<NAME>` for each
// field). `size` is `sizeof(trihop_options_t)` as the caller knows it.
//
// Fails with `TRIHOP_ERR_CONFIG` where the environment has a mistyped or impossible option.
// Threads: any, but none that changes the environment meanwhile.
trihop_status_t trihop_options_init(struct trihop_options_t *options, size_t size);

// Sets one option by its name, for instance `"remote_maxrpc"` to `"9"`. The name is that of the
// field.
//
// Fails with `TRIHOP_ERR_CONFIG` on an unknown name (`trihop_last_error` has the nearest) or an
// impossible value.
// Threads: any, one at a time for each struct.
trihop_status_t trihop_options_set(struct trihop_options_t *options,
                                   const char *name,
                                   const char *value);

// Version of the library that runs, for instance `0.1.0`.
//
// Threads: any.
const char *trihop_version(void);

// Joins the job that this process was started in by PMIx, PMI-1 or `trihop run`, or that
// `TRIHOP_MASTER` or an agent (`TRIHOP_AGENT`, `TRIHOP_LAUNCHER=agent`) brings together; without
// any, a job of one. Collective over all ranks; `seat`, of `trihop_seat_t`, may differ
// between them. `options` null stands for those of the environment.
//
// Fails on a bad option, where no provider can be used, where a rank does not arrive in time, and
// where this is one of several tasks of a launcher that offers neither PMI nor PMIx.
// Threads: any. A process can be in several jobs, if its launcher knows how: PMI-1 does
// where MPI is initialised.
trihop_status_t trihop_init(int32_t seat,
                            const struct trihop_options_t *options,
                            struct trihop_job_t **job);

// Fills `options` with those of the job, as a start for the options of one stream. `size` is
// `sizeof(trihop_options_t)` as the caller knows it.
//
// Threads: any.
trihop_status_t trihop_job_options(const struct trihop_job_t *job,
                                   struct trihop_options_t *options,
                                   size_t size);

// Leaves the job: every stream that is still open is fenced, and everyone is waited for. Records
// that wait for `trihop_stream_take`, or come for it until then, are given up; how many is said to
// logs, or on standard error where there are none. Collective over all ranks.
//
// The job is gone afterwards, whatever is returned, but where the call is refused: inside a
// handler with `TRIHOP_ERR_NESTED`; with `TRIHOP_ERR_MISUSE` while contributors of this rank are
// not done in a step of a stream, or an end of all streams that was started is not waited for, and
// on another thread than that which has started an inline job. Handles of its streams remain
// valid, answer `TRIHOP_ERR_CLOSED` or what has ended the job, and have to be closed for their
// memory.
// Threads: any, but no other call on the job may be under way or follow. After
// `trihop_init_custom` the allgather is called on this thread.
trihop_status_t trihop_finalize(struct trihop_job_t *job);

// Makes one round of progress of everything in the job: on an inline job handlers are called here.
// `moved` becomes 1 where anything moved, else 0; it may be null. A job with threads makes
// progress without it. Where nothing moved, others may run first: ranks may outnumber cores.
//
// Fails with `TRIHOP_ERR_NESTED` inside a handler of an inline job, and as every call where a peer
// is gone.
// Threads: as the job.
trihop_status_t trihop_poll(const struct trihop_job_t *job, int *moved);

// Ends the whole job: the calls of all ranks fail from then on, and say that this one has failed,
// and `why`, which may be null (in a job that goes on without ranks, that it has left). Its
// launcher ends it, where that can, and prints `why`. The caller still has to exit.
// `TRIHOP_ERR_WOULD_BLOCK` when the launcher could not be asked, because the job is being
// finalized, its engine does not come free, or this is a handler of an inline job: exiting is all
// that is left.
//
// Threads: any.
trihop_status_t trihop_abort(const struct trihop_job_t *job, int exit_status, const char *why);

// Who started the job: `master`, `pmix`, `pmi1`, `local`, `agent`, `custom` or `single`. Null where
// `job` is.
//
// Threads: any. The text lives as long as the job.
const char *trihop_launcher(const struct trihop_job_t *job);

// Provider that carries this rank's traffic to other nodes; null where it carries none, or where
// `job` is null.
//
// Threads: any. The text lives as long as the job.
const char *trihop_provider(const struct trihop_job_t *job);

// Writes the state of every stream to a file descriptor: queues with their use and bounds, the
// memory formula with its value; then the lines that `trihop_log_recent` gives. For people to
// read; the text may change.
//
// Threads: any; also while other threads wait in a call. It waits for nobody but the descriptor.
trihop_status_t trihop_dump(const struct trihop_job_t *job, int descriptor);

// As `trihop_dump`, into a file, which is made or replaced.
//
// Threads: any.
trihop_status_t trihop_dump_to_file(const struct trihop_job_t *job, const char *path);

// Dumps as `trihop_dump` does, without lines of logs, whenever the process gets signal `number`
// (`SIGUSR1`, say): to the file `<path>.<rank>`, behind what is in it, or to standard error where
// `path` is null. A job with threads does so within a tenth of a second, an inline one at its next
// call that makes progress. Whatever handled the signal before is called too. No
// signal is handled without this call.
//
// Fails with `TRIHOP_ERR_CONFIG` on a signal that cannot be handled.
// Threads: any.
trihop_status_t trihop_dump_on_signal(const struct trihop_job_t *job, int number, const char *path);

// This rank: 0 to `trihop_size` - 1. `UINT32_MAX` where `job` is null, as for the other numbers.
//
// Threads: any.
uint32_t trihop_rank(const struct trihop_job_t *job);

// Ranks of the job.
//
// Threads: any.
uint32_t trihop_size(const struct trihop_job_t *job);

// Node of this rank: 0 to `trihop_nodes` - 1.
//
// Threads: any.
uint32_t trihop_node(const struct trihop_job_t *job);

// Nodes of the job.
//
// Threads: any.
uint32_t trihop_nodes(const struct trihop_job_t *job);

// Number of this rank among the ranks of its node, from 0.
//
// Threads: any.
uint32_t trihop_local_rank(const struct trihop_job_t *job);

// Ranks of this rank's node.
//
// Threads: any.
uint32_t trihop_local_size(const struct trihop_job_t *job);

// Stores the node of a rank.
//
// Threads: any.
trihop_status_t trihop_node_of(const struct trihop_job_t *job, uint32_t rank, uint32_t *node);

// Stores the number of a rank among the ranks of its node.
//
// Threads: any.
trihop_status_t trihop_local_rank_of(const struct trihop_job_t *job,
                                     uint32_t rank,
                                     uint32_t *local_rank);

// Stores how many ranks a node has.
//
// Threads: any.
trihop_status_t trihop_local_size_of(const struct trihop_job_t *job,
                                     uint32_t node,
                                     uint32_t *local_size);

// Stores the rank with number `local_rank` on a node.
//
// Threads: any.
trihop_status_t trihop_rank_at(const struct trihop_job_t *job,
                               uint32_t node,
                               uint32_t local_rank,
                               uint32_t *rank);

// Stores the rank on node `of` that speaks with node `towards` where there is one link between
// two nodes: on the route `three-hop:1`.
//
// Threads: any.
trihop_status_t trihop_representative(const struct trihop_job_t *job,
                                      uint32_t of,
                                      uint32_t towards,
                                      uint32_t *rank);

// From now on the job goes on without ranks, or nodes, that are gone: else the first of them ends
// it for all. Collective over all ranks, as a barrier; for ranks that have an agent, which relay
// for nobody else.
//
// From then on what a call wants of a rank that is gone fails with the error that names it, as
// `TRIHOP_ERR_PEER_DEAD`: a send to it, and a call on a channel of its. So does what all ranks take
// part in: a fence, a round, a collective, the opening of a stream, `trihop_finalize`. All else
// goes on, as if that rank were silent; `trihop_lost` says who is gone. What had left the rank
// arrives, and what is on its way to it is dropped (`dropped_runs`). Where an agent is gone, or a
// node, so are for other nodes its ranks, and for these those of all other nodes
// (`TRIHOP_ERR_AGENT_DEAD`, or `TRIHOP_ERR_PEER_DEAD`). The 65th loss ends the job.
//
// Fails with `TRIHOP_ERR_MISUSE` for ranks without an agent.
// Threads: as `trihop_barrier`.
trihop_status_t trihop_survive(const struct trihop_job_t *job);

// Ranks that this one cannot reach any more, ascending: those that are gone since
// `trihop_survive`, and those behind an agent that is. `count` becomes their number, and `ranks`
// has the first `most` of them; it may be null where `most` is 0.
//
// Fails as every call where the job has failed.
// Threads: as the job.
trihop_status_t trihop_lost(const struct trihop_job_t *job,
                            uint32_t *ranks,
                            size_t most,
                            size_t *count);

// Waits until every rank has called this as often as this rank. It does not give way: where others
// wait for room that only `trihop_stream_take` makes here, it waits for ever. Collective over all
// ranks; not inside a handler.
//
// Threads: any, but all ranks have to call collectives in one order, so one at a time.
trihop_status_t trihop_barrier(const struct trihop_job_t *job);

// Returns on every rank when all that any rank sent before on any stream, and all that handlers
// sent because of it on whichever stream, has been handled. Where handlers of one stream send on
// another, fences of one after the other do not say that. Collective over all ranks; not inside a
// handler. Gives way with `TRIHOP_ERR_WOULD_BLOCK` as `trihop_stream_fence` does, and fails with
// `TRIHOP_ERR_MISUSE` while the end of a step of a stream is started.
//
// Threads: as `trihop_barrier`.
trihop_status_t trihop_fence(const struct trihop_job_t *job);

// Starts a fence of all streams, and does not wait: `trihop_test_fence` and `trihop_wait_fence`
// say when it is over. The program may send meanwhile, which that fence may cover or not. Other
// collective calls of the job go on beside it, but no step of a stream ends, and the job is not
// finalized: these fail with `TRIHOP_ERR_MISUSE`, as this does while one is under way, or a step
// of a stream. Collective; on the inline seat it moves on in the calls that make progress. Not
// inside a handler.
//
// Threads: as `trihop_barrier`.
trihop_status_t trihop_start_fence(const struct trihop_job_t *job);

// Makes one round of progress, and stores 1 where the fence that was started is over, else 0.
// That it is over is said once; without a start it fails with `TRIHOP_ERR_MISUSE`. Streams
// without a handler are taken from meanwhile: a delivery queue that is full keeps all ranks from
// the end. Not inside a handler.
//
// Threads: as `trihop_barrier`.
trihop_status_t trihop_test_fence(const struct trihop_job_t *job, int *is_over);

// Waits until the fence that was started is over; without a start it fails with
// `TRIHOP_ERR_MISUSE`. Gives way as `trihop_fence` does. Not inside a handler.
//
// Threads: as `trihop_barrier`.
trihop_status_t trihop_wait_fence(const struct trihop_job_t *job);

// Replaces each of `count` values by its reduction over all ranks. `reduce` is one of
// `trihop_reduce_t`. Collective over all ranks, each with as many values; not inside a handler.
//
// Threads: as `trihop_barrier`.
trihop_status_t trihop_allreduce(const struct trihop_job_t *job,
                                 int32_t reduce,
                                 uint64_t *values,
                                 size_t count);

// As `trihop_allreduce`, of signed integers.
//
// Threads: as `trihop_barrier`.
trihop_status_t trihop_allreduce_i64(const struct trihop_job_t *job,
                                     int32_t reduce,
                                     int64_t *values,
                                     size_t count);

// As `trihop_allreduce`, of floating-point numbers: their sum, smallest or largest. A sum is the
// same for the same values in the same placement, whatever came first.
//
// Threads: as `trihop_barrier`.
trihop_status_t trihop_allreduce_f64(const struct trihop_job_t *job,
                                     int32_t reduce,
                                     double *values,
                                     size_t count);

// Replaces each of `count` values by its reduction over the ranks before this one; rank 0 gets
// what changes no other value (0 of a sum). Otherwise as `trihop_allreduce`. The values of all
// ranks are gathered on each.
//
// Threads: as `trihop_barrier`.
trihop_status_t trihop_exscan(const struct trihop_job_t *job,
                              int32_t reduce,
                              uint64_t *values,
                              size_t count);

// As `trihop_exscan`, of signed integers.
//
// Threads: as `trihop_barrier`.
trihop_status_t trihop_exscan_i64(const struct trihop_job_t *job,
                                  int32_t reduce,
                                  int64_t *values,
                                  size_t count);

// As `trihop_exscan`, of floating-point numbers.
//
// Threads: as `trihop_barrier`.
trihop_status_t trihop_exscan_f64(const struct trihop_job_t *job,
                                  int32_t reduce,
                                  double *values,
                                  size_t count);

// Gives every rank the `length` bytes at `bytes` that the rank `root` has there. Collective over
// all ranks, each with the same root and length; not inside a handler.
//
// Fails with `TRIHOP_ERR_MISMATCH` where roots differ, and on a rank whose length is not the
// root's; with `TRIHOP_ERR_RANK` where all name the same root, which is no rank.
// Threads: as `trihop_barrier`.
trihop_status_t trihop_broadcast(const struct trihop_job_t *job,
                                 uint32_t root,
                                 void *bytes,
                                 size_t length);

// Gathers `length` bytes of every rank into `all`, which has `trihop_size` times as many, in rank
// order. Collective over all ranks, each with the same length; not inside a handler. `mine` may be
// this rank's place in `all`.
//
// Fails with `TRIHOP_ERR_MISMATCH` on every rank where lengths differ.
// Threads: as `trihop_barrier`.
trihop_status_t trihop_allgather(const struct trihop_job_t *job,
                                 const void *mine,
                                 size_t length,
                                 void *all);

// Gathers `length` bytes of every rank into `all`, one behind the other in rank order. `lengths`
// has `trihop_size` numbers, those of all ranks. Collective over all ranks; not inside a handler.
// `mine` may be this rank's place in `all`.
//
// Fails with `TRIHOP_ERR_MISMATCH` on a rank whose `lengths` are not what ranks have given.
// Threads: as `trihop_barrier`.
trihop_status_t trihop_allgatherv(const struct trihop_job_t *job,
                                  const void *mine,
                                  size_t length,
                                  void *all,
                                  const size_t *lengths);

// Starts a job among ranks that already know each other. Collective over all ranks. This one is
// number `rank` of `size`, on the node with label `node`: any number that is equal for the ranks
// of one node, and for them only. `context` is handed to `allgather`. `seat` and `options` are as
// of `trihop_init`.
//
// Fails as `trihop_init`, and with `TRIHOP_ERR_BOOTSTRAP` where `allgather` fails or the ranks
// contradict each other.
// Threads: any, and only on it `allgather` is called; so MPI may have been initialised for one
// thread.
trihop_status_t trihop_init_custom(int32_t seat,
                                   uint32_t rank,
                                   uint32_t size,
                                   uint64_t node,
                                   trihop_allgather_t allgather,
                                   void *context,
                                   const struct trihop_options_t *options,
                                   struct trihop_job_t **job);

// Stores the next record of `run`, which a handler was called with that `trihop_stream_open_runs`
// has installed, in `record`; 0, with nothing stored, where there is none left. It begins with the
// first one, and goes through them once:
//
// ```c
// trihop_message_t record;
// while (trihop_message_next(run, &record))
//     use(record.kind, record.bytes, record.length);
// ```
//
// 0 for any other message, where a pointer is null, and where both are the same.
// Threads: the one that the handler was called on.
int32_t trihop_message_next(const struct trihop_message_t *run, struct trihop_message_t *record);

// Opens a stream of items of `item_bytes` bytes, or of byte records where that is 0. Collective
// over all ranks: the same names in the same order, with the same size and options. `options` null
// stands for those of the job. `context` is handed to `handler`.
//
// Where `handler` is null, what arrives waits for `trihop_stream_take`, up to `deliverq_max`; then
// its senders wait. Calls on such a stream that wait (sends, flushes, fences, barriers, its close)
// give way with `TRIHOP_ERR_WOULD_BLOCK` where only taking makes room: take, and call again.
//
// An item has `max_message_bytes` at most. One of more than a frame (16,320 bytes; 4,032 with 64
// ranks on a node) travels in fragments, or inside of a node through memory that it shares, as a
// long record does.
//
// Fails on impossible options or sizes, naming the option that admits longer items, and on every
// rank with `TRIHOP_ERR_MISMATCH` where they do not agree.
// Threads: any, but one that opens at a time; not inside a handler.
trihop_status_t trihop_stream_open(const struct trihop_job_t *job,
                                   const char *name,
                                   size_t item_bytes,
                                   const struct trihop_options_t *options,
                                   trihop_handler_t handler,
                                   void *context,
                                   struct trihop_stream_t **stream);

// As `trihop_stream_open` of a stream of records, but `handler` is called for all records at once
// that arrived one after the other from one source, as many as a run has: for programs that take a
// lock, or look something up, once for all of them. The message has the first record and their
// `count`; `trihop_message_next` goes through them.
//
// A handler that sends is not kept waiting between the records of a run. Fails where `handler` is
// null, and as `trihop_stream_open`.
// Threads: as `trihop_stream_open`.
trihop_status_t trihop_stream_open_runs(const struct trihop_job_t *job,
                                        const char *name,
                                        const struct trihop_options_t *options,
                                        trihop_handler_t handler,
                                        void *context,
                                        struct trihop_stream_t **stream);

// From now on, what this rank sends to itself by this handle is handed to the handler in the call
// itself: a push or send, the own copy of a broadcast, a record that was filled in place. Called
// once, behind the opening; other ranks need not do the same. Of inline jobs.
//
// Order is kept: while something waits that was sent before (by handlers to this rank, or for want
// of room), the next one goes the usual way, and is handled in a later call that makes progress. So
// are what handlers send, what is sent inside of `trihop_stream_take`, and a broadcast that has to
// wait for room.
//
// Fails with `TRIHOP_ERR_CONFIG` on a job with threads, where a delivery thread calls the handler,
// and for a stream without one. Not inside a handler.
// Threads: the one of the job.
trihop_status_t trihop_stream_own_at_once(struct trihop_stream_t *stream);

// Sends a record of `length` bytes, which are copied; `kind` is handed to the handler. Waits while
// there is no room. What one rank sends to another arrives in the order in which it was sent, each
// exactly once.
//
// Inside a handler it never waits for room: what no queue takes is kept in memory, the spill of
// this stream, ahead of what the application sends. The next call of the handler waits while more
// than a 32nd of `memory_bytes` of it is kept and less and less are.
//
// Fails on a bad rank, a record that is too long, a stream of items, and a peer that is gone;
// inside a handler with `TRIHOP_ERR_NO_MEMORY` where `spill_bytes` are used up, or memory is: then
// the job fails too.
// Threads: any. There is no order between what different threads send.
trihop_status_t trihop_stream_send(const struct trihop_stream_t *stream,
                                   uint32_t target,
                                   uint32_t kind,
                                   const void *bytes,
                                   size_t length);

// As `trihop_stream_send`, but where there is no room now it fails with `TRIHOP_ERR_WOULD_BLOCK`
// and has taken nothing. It makes no progress: on an inline job call `trihop_poll` before it is
// tried again. Inside a handler of an inline job it is `trihop_stream_send`, which does not wait
// there either.
//
// Threads: any. It waits for the engine while another thread has it, never for room.
trihop_status_t trihop_stream_try_send(const struct trihop_stream_t *stream,
                                       uint32_t target,
                                       uint32_t kind,
                                       const void *bytes,
                                       size_t length);

// Sends a record of `length` bytes that `filler` fills, called once with `context`, on this
// thread, before this returns. It may not call the library. On an inline job, outside of its
// handlers, a record that fits a run of `run_bytes` is filled in the queue itself; elsewhere in
// memory that is made for it, and copied. Otherwise as `trihop_stream_send`.
//
// Threads: any.
trihop_status_t trihop_stream_reserve(const struct trihop_stream_t *stream,
                                      uint32_t target,
                                      uint32_t kind,
                                      size_t length,
                                      trihop_filler_t filler,
                                      void *context);

// Sends one item of the stream's size, which is copied. Otherwise as `trihop_stream_send`, inside
// a handler too.
//
// Fails on a bad rank, a stream of records, and a peer that is gone; inside a handler with
// `TRIHOP_ERR_NO_MEMORY` as `trihop_stream_send` does.
// Threads: any. There is no order between what different threads send.
trihop_status_t trihop_stream_push(const struct trihop_stream_t *stream,
                                   uint32_t target,
                                   const void *item);

// As `trihop_stream_push`, but where there is no room now it fails with `TRIHOP_ERR_WOULD_BLOCK`
// and has taken nothing. Inside a handler of an inline job it is `trihop_stream_push`, which does
// not wait there either.
//
// Threads: any. It waits for the engine while another thread has it, never for room.
trihop_status_t trihop_stream_try_push(const struct trihop_stream_t *stream,
                                       uint32_t target,
                                       const void *item);

// Sends `count` items, one after the other in memory, each to the rank in its place of `targets`:
// cheaper than one call for each, above all where several threads push at once. How many were
// taken goes to `sent`, which may be null: `count` unless the call fails, and else all those
// before the item that it has failed with. Otherwise as `trihop_stream_push`.
//
// Where it gives way with `TRIHOP_ERR_WOULD_BLOCK`, go on behind those that were taken.
// Threads: any.
trihop_status_t trihop_stream_push_many(const struct trihop_stream_t *stream,
                                        const uint32_t *targets,
                                        const void *items,
                                        size_t count,
                                        size_t *sent);

// Sends a record, or an item of `length` bytes and kind 0, to all other ranks or to every rank, as
// `to` says, one of `trihop_broadcast_t`: along the tree of the route, one copy to each node. A
// record that is longer than a frame (16 KiB with few ranks) goes to one rank after the other.
// Otherwise as `trihop_stream_send`; after a failure, some of the ranks may get it.
//
// Threads: any.
trihop_status_t trihop_stream_broadcast(const struct trihop_stream_t *stream,
                                        uint32_t kind,
                                        const void *bytes,
                                        size_t length,
                                        int32_t to);

// As `trihop_stream_broadcast`, but where there is no room now it fails with
// `TRIHOP_ERR_WOULD_BLOCK`, and no rank gets it. Inside a handler of an inline job it is
// `trihop_stream_broadcast`, which does not wait there either.
//
// Threads: as `trihop_stream_try_send`.
trihop_status_t trihop_stream_try_broadcast(const struct trihop_stream_t *stream,
                                            uint32_t kind,
                                            const void *bytes,
                                            size_t length,
                                            int32_t to);

// So many contributors of the step that has begun have sent what they have to send. Once all of
// this rank are done, or all of all ranks, sends of the program fail with `TRIHOP_ERR_MISUSE`
// until the step is over, as this does without a step, or for more than there are (where those
// of all ranks are counted, another rank may find that, and the job ends with
// `TRIHOP_ERR_MISMATCH`). What handlers say before the step has begun on this rank counts in it.
// That none is done, 0, may be said at any time.
//
// The call makes a round of progress where it is the last of this rank's, and, where those of
// all ranks are counted, if it is one of the first 16 of a step. Later ones are passed on by the
// next call that makes progress; with threads, by the progress thread.
//
// Threads: any, and inside handlers.
trihop_status_t trihop_stream_done(const struct trihop_stream_t *stream, uint64_t contributors);

// Makes a round of progress, then hands all that waits to `taker`, called with `context` as a
// handler is. How many records or items goes to `count`, which may be null. For streams that were
// opened without a handler.
//
// `taker` may send. Of an inline job that waits for no room there: it fails with
// `TRIHOP_ERR_WOULD_BLOCK` instead, with nothing taken. What `taker` cannot send it keeps, and
// sends after this has returned.
// Threads: any; `taker` is called on the thread that calls.
trihop_status_t trihop_stream_take(const struct trihop_stream_t *stream,
                                   trihop_handler_t taker,
                                   void *context,
                                   uint64_t *count);

// Waits until this rank's queues of one stage, of `trihop_queues_t`, have passed on what was in
// them. Not inside a handler.
//
// Threads: any.
trihop_status_t trihop_stream_flush(const struct trihop_stream_t *stream, int32_t queues);

// Returns on every rank when all that any rank sent before, and all that handlers sent because of
// it, has been handled. Collective over all ranks; not inside a handler.
//
// Threads: any, one fence of a stream at a time.
trihop_status_t trihop_stream_fence(const struct trihop_stream_t *stream);

// Returns on every rank when all that any rank sent before has been handled; nothing that a rank
// sends on the stream after its own call is handled earlier, on another stream it may be. Cheaper
// than a fence, for programs in which each rank sends and then all wait. Handlers do not send in
// such a program, nor other threads meanwhile: use a fence where they do. Collective over all
// ranks; not inside a handler.
//
// Threads: as `trihop_stream_fence`.
trihop_status_t trihop_stream_round(const struct trihop_stream_t *stream);

// Starts a fence or a round, of `trihop_end_t`, and does not wait: `trihop_stream_test` and
// `trihop_stream_wait` say when it is over. Until then only handlers send on the stream: a send,
// flush or other end of the program's fails with `TRIHOP_ERR_MISUSE`. Collective as these; on the
// inline seat it moves on in the calls that make progress. Not inside a handler.
//
// Threads: as `trihop_stream_fence`.
trihop_status_t trihop_stream_start(const struct trihop_stream_t *stream, int32_t end);

// Begins a step that its contributors end, and does not wait. A contributor is whatever the
// program likes: a thread, an object, a task. Each sends, and `trihop_stream_done` is called for
// it once it has sent what it has to send; handlers send too, and may do that. The step is over
// on all ranks when all contributors are done and all that was sent is handled, also what
// handlers sent because of it: `trihop_stream_test` and `trihop_stream_wait` say when. There are
// `count` contributors, of this rank or of all ranks, as `of` says (of `trihop_contributors_t`).
// Collective: each rank begins as many steps, in the same order as other ends. Not inside a
// handler.
//
// Threads: as `trihop_stream_fence`.
trihop_status_t trihop_stream_begin_step(const struct trihop_stream_t *stream,
                                         int32_t of,
                                         uint64_t count);

// Makes one round of progress, and stores 1 where what was started is over, else 0. That it is
// over is said once; without a start it fails with `TRIHOP_ERR_MISUSE`. Not inside a handler.
//
// Threads: as `trihop_stream_fence`.
trihop_status_t trihop_stream_test(const struct trihop_stream_t *stream, int *is_over);

// Waits until what was started is over; without a start it fails with `TRIHOP_ERR_MISUSE`. Not
// inside a handler.
//
// Threads: as `trihop_stream_fence`.
trihop_status_t trihop_stream_wait(const struct trihop_stream_t *stream);

// As `trihop_barrier`, of the job that the stream belongs to. Unlike that it gives way with
// `TRIHOP_ERR_WOULD_BLOCK`, as `trihop_stream_fence` does.
//
// Threads: as `trihop_barrier`.
trihop_status_t trihop_stream_barrier(const struct trihop_stream_t *stream);

// Fills `counters` with what the stream has done on this rank. `size` is `sizeof(trihop_stats_t)`
// as the caller knows it.
//
// Threads: any. Fails with `TRIHOP_ERR_WOULD_BLOCK` where the engine is in use and does not come
// free.
trihop_status_t trihop_stream_stats(const struct trihop_stream_t *stream,
                                    struct trihop_stats_t *counters,
                                    size_t size);

// Writes what the stream has done on this rank as a JSON object that ends with NUL, and its length
// without that. Where `capacity` is too small (`text` may be null where it is 0), the call fails
// with `TRIHOP_ERR_BUFFER_TOO_SMALL` and only stores the length.
//
// Threads: as `trihop_stream_stats`.
trihop_status_t trihop_stream_stats_json(const struct trihop_stream_t *stream,
                                         char *text,
                                         size_t capacity,
                                         size_t *length);

// Stores what the stream and each of its queues have done on this rank until now, to be read with
// `trihop_details_stage` and the like, and freed with `trihop_details_free`.
//
// Threads: as `trihop_stream_stats`.
trihop_status_t trihop_stream_details(const struct trihop_stream_t *stream,
                                      struct trihop_details_t **details);

// As `trihop_dump`, of this stream alone and without lines of the log.
//
// Threads: as `trihop_dump`.
trihop_status_t trihop_stream_dump(const struct trihop_stream_t *stream, int descriptor);

// Fences the stream and closes it. Collective over all ranks, unless the job has ended. The
// handler is not called any more once this has returned. What still waits for `trihop_stream_take`
// is given up; how much is said.
//
// The stream is gone afterwards, whatever is returned, with three exceptions: inside a handler
// the call is refused with `TRIHOP_ERR_NESTED`; where contributors of this rank are not done in
// a step, or a fence of the job is under way, with `TRIHOP_ERR_MISUSE`; and where it gives way
// with `TRIHOP_ERR_WOULD_BLOCK` (a stream without a handler, see `trihop_stream_open`), take what
// waits and close it again, with nothing but that in between: a fence would be the others' close.
// Threads: any, but no other call on the stream may be under way or follow.
trihop_status_t trihop_stream_close(struct trihop_stream_t *stream);

// Fills `options` with the defaults. `size` is `sizeof(trihop_step_options_t)` as the caller knows
// it.
//
// Threads: any.
trihop_status_t trihop_step_options_init(struct trihop_step_options_t *options, size_t size);

// As `trihop_stream_begin_step`, with all that a step can have. Where it fails, nothing is called.
// That it is over is told to `at_end`, and once by `trihop_stream_test` or `trihop_stream_wait`
// too, once that has returned, unless another step has begun meanwhile.
//
// Threads: as `trihop_stream_begin_step`, and what is called at the end of a step.
trihop_status_t trihop_stream_begin_step_with(const struct trihop_stream_t *stream,
                                              const struct trihop_step_options_t *options);

// As `trihop_stream_start`, with a priority, and with calls when what is to end has begun and when
// it is over: `at_end` may start the next. Nothing that others push behind a round is handled here
// before `at_end` has returned or starts the next end. `count` and `of` of its options are not
// used. Where it fails, nothing is called, unless another end has begun during `at_start`, or the
// job has failed.
//
// Threads: as `trihop_stream_begin_step_with`.
trihop_status_t trihop_stream_start_with(const struct trihop_stream_t *stream,
                                         int32_t end,
                                         const struct trihop_step_options_t *options);

// Makes a conveyor of a stream of items without a handler, on which nothing else is called until
// `trihop_conveyor_free`; then it is closed as any other.
//
// Fails with `TRIHOP_ERR_MISUSE` on a stream that has a handler, or records, or whose step ends.
// Threads: any.
trihop_status_t trihop_conveyor_over(const struct trihop_stream_t *stream,
                                     struct trihop_conveyor_t **conveyor);

// Sends an item, which is copied. Where there is no room now it fails with
// `TRIHOP_ERR_WOULD_BLOCK` and has taken nothing: advance and pull, then push it again.
//
// Fails with `TRIHOP_ERR_MISUSE` after an advance that announced the last push.
// Threads: as `trihop_conveyor_t` says.
trihop_status_t trihop_conveyor_push(struct trihop_conveyor_t *conveyor,
                                     uint32_t target,
                                     const void *item);

// Stores where the next item that is here lies, until the next call on the conveyor, and, where
// `source` is not null, who sent it. Where none is here it returns `TRIHOP_ERR_WOULD_BLOCK`:
// advance.
//
// Threads: as `trihop_conveyor_t` says.
trihop_status_t trihop_conveyor_pull(struct trihop_conveyor_t *conveyor,
                                     const void **item,
                                     uint32_t *source);

// As `trihop_conveyor_pull`, for items of one source that lie one behind the other: at most
// `most`. Stores how many in `count`. Fails with `TRIHOP_ERR_INVALID_ARGUMENT` where `most` is 0 or
// `count` null.
//
// Threads: as `trihop_conveyor_t` says.
trihop_status_t trihop_conveyor_pull_many(struct trihop_conveyor_t *conveyor,
                                          size_t most,
                                          const void **items,
                                          size_t *count,
                                          uint32_t *source);

// The next pull gives what the last one gave; once for each pull.
//
// Fails with `TRIHOP_ERR_MISUSE` where nothing was pulled since.
// Threads: as `trihop_conveyor_t` says.
trihop_status_t trihop_conveyor_unpull(struct trihop_conveyor_t *conveyor);

// Makes a round of progress, and fetches what has come once all that was fetched before has been
// pulled. `is_done` is not 0 where this rank pushes no more in this step. Stores 0 once no rank
// does and everything has been pulled, else 1. Where nothing has moved several times in a row,
// the last push was announced or found no room, and nothing is here on any stream, it sleeps
// until something comes, at most for a millisecond.
//
// Threads: as `trihop_conveyor_t` says.
trihop_status_t trihop_conveyor_advance(struct trihop_conveyor_t *conveyor,
                                        int is_done,
                                        int *goes_on);

// Stores how far the step has come, of `trihop_conveyor_state_t`.
//
// Threads: as `trihop_conveyor_t` says.
trihop_status_t trihop_conveyor_state(struct trihop_conveyor_t *conveyor, int32_t *state);

// Begins the next step, where one is complete: each rank at its own time.
//
// Fails with `TRIHOP_ERR_MISUSE` before that.
// Threads: as `trihop_conveyor_t` says.
trihop_status_t trihop_conveyor_reset(struct trihop_conveyor_t *conveyor);

// As `trihop_conveyor_reset`, with items of another size in the next step: of the same on all
// ranks. Items from a rank that has another one fail to be pulled, with `TRIHOP_ERR_BAD_PEER`,
// where so many cannot be in the bytes of their run; else they are taken for what they are not.
// When the conveyor is freed, its stream has its first size again.
//
// Fails with `TRIHOP_ERR_MISUSE` as that, and with `TRIHOP_ERR_CONFIG` on a size of none, or one
// that is longer than an item of the stream may be; nothing has changed then.
// Threads: as `trihop_conveyor_t` says.
trihop_status_t trihop_conveyor_reset_to(struct trihop_conveyor_t *conveyor, size_t item_bytes);

// Frees the conveyor; its stream goes on, and what nobody has pulled waits there for
// `trihop_stream_take`. Null is ignored. Where a step is ending, `trihop_stream_close` waits for
// that.
//
// Threads: any, but no other call on the conveyor may be under way or follow.
void trihop_conveyor_free(struct trihop_conveyor_t *conveyor);

// Opens a stream for requests of `request_bytes` bytes and replies of `reply_bytes`, one at least.
// Collective over all ranks, with the same sizes. `answer` is called with `context` for each request
// that comes, inside of other calls. At most `most` requests of this rank are under way, or have
// replies that were not pulled: 1 to 2^30, and memory for as many replies.
//
// Fails with `TRIHOP_ERR_CONFIG` on a threaded job and on impossible sizes, with
// `TRIHOP_ERR_TOO_LARGE` above `max_message_bytes`, with `TRIHOP_ERR_MISMATCH` where ranks have
// different sizes or one of them has failed, and as `trihop_stream_open`.
// Threads: that which has started the job; not inside a handler.
trihop_status_t trihop_replies_open(const struct trihop_job_t *job,
                                    const char *name,
                                    size_t request_bytes,
                                    size_t reply_bytes,
                                    size_t most,
                                    trihop_answer_t answer,
                                    void *context,
                                    struct trihop_replies_t **replies);

// Asks a rank; the request is copied. Where as many requests as may be are under way, or there is no
// room now, it fails with `TRIHOP_ERR_WOULD_BLOCK` and has asked nothing: pull, then ask again.
//
// Threads: as `trihop_replies_t` says.
trihop_status_t trihop_replies_ask(const struct trihop_replies_t *replies,
                                   uint32_t target,
                                   const void *request);

// Copies the reply to the oldest request that has none yet to `reply`. Where it is not here, a round
// of progress is made, and if that does not bring it the call returns `TRIHOP_ERR_WOULD_BLOCK`.
//
// Fails with `TRIHOP_ERR_MISUSE` where a rank has sent a request or a reply of another size, or a
// reply that nobody asked for.
// Threads: as `trihop_replies_t` says.
trihop_status_t trihop_replies_pull(const struct trihop_replies_t *replies,
                                    void *reply);

// How many requests have replies that were not pulled, or none yet; 0 for a null pointer.
//
// Threads: as `trihop_replies_t` says.
size_t trihop_replies_outstanding(const struct trihop_replies_t *replies);

// As `trihop_stream_fence`: afterwards all replies are here, to be pulled. Fails with
// `TRIHOP_ERR_MISUSE` as `trihop_replies_pull`.
//
// Threads: as `trihop_replies_t` says.
trihop_status_t trihop_replies_fence(const struct trihop_replies_t *replies);

// Fences the stream of the requests, and closes it. Collective over all ranks. Replies that were
// not pulled are given up. It is gone afterwards, whatever is returned, but where that is
// `TRIHOP_ERR_NESTED` or `TRIHOP_ERR_MISUSE` (beside a fence of all streams, for instance): it may
// be closed again then. Null is refused.
//
// Threads: as `trihop_replies_t` says.
trihop_status_t trihop_replies_close(struct trihop_replies_t *replies);

// Makes a table of `places` items, rounded up to a power of two and to four, before a stream of
// items, which is used as ever beside it. `key` and `merge` are called with `context`, inside of
// `trihop_merging_push`, and may not call the library.
//
// Fails with `TRIHOP_ERR_CONFIG` on a stream of records.
// Threads: any.
trihop_status_t trihop_merging_over(const struct trihop_stream_t *stream,
                                    size_t places,
                                    trihop_key_t key,
                                    trihop_merge_t merge,
                                    void *context,
                                    struct trihop_merging_t **merging);

// Sends an item, or merges it with one for the same rank and of the same key that has not left.
// Waits as `trihop_stream_push` does, inside a handler too.
//
// Fails on a bad rank, and as `trihop_stream_push`, of the item that has to leave for it: then that
// stays, and this one is not taken.
// Threads: as `trihop_merging_t` says.
trihop_status_t trihop_merging_push(const struct trihop_merging_t *merging,
                                    uint32_t target,
                                    const void *item);

// Lets the items leave that are in the table, place by place: before a fence, a round, a flush or the close of the
// stream, which know nothing of them.
//
// Fails as `trihop_stream_push`; what has not left then stays.
// Threads: as `trihop_merging_t` says.
trihop_status_t trihop_merging_flush(const struct trihop_merging_t *merging);

// How many items joined another one instead of travelling; 0 for a null pointer.
//
// Threads: as `trihop_merging_t` says.
uint64_t trihop_merging_merged(const struct trihop_merging_t *merging);

// How many items are in the table; 0 for a null pointer.
//
// Threads: as `trihop_merging_t` says.
uint64_t trihop_merging_held(const struct trihop_merging_t *merging);

// Frees the table; items that are still in it are given up. Its stream goes on. Null is ignored.
//
// Threads: any, but no other call on it may be under way or follow.
void trihop_merging_free(struct trihop_merging_t *merging);

// Makes this process host `ranks` ranks of the job that it was started in: as many as
// `TRIHOP_MINIS_PER_RANK` says where that is 0, and 1 where that says nothing. The ranks of a job
// are numbered process by process, and all processes host equally many, 1,024 at most. `options`
// null stands for those of the environment. Waits for the other processes.
//
// Lines of logs have the number of this process's first rank. Fails as `trihop_init`, and with
// `TRIHOP_ERR_CONFIG` on an impossible number, and where `minirank_cores` asks for more cores than
// there are.
// Threads: any.
trihop_status_t trihop_minirank_init(uint32_t ranks,
                                     const struct trihop_options_t *options,
                                     struct trihop_miniranks_t **miniranks);

// As `trihop_minirank_init`, in a process that knows the others already, inside MPI for instance:
// it is number `process` of `processes`, which all call this, on the node with label `node`.
// `allgather`, called with `context`, gathers among the processes; all as of `trihop_init_custom`.
//
// Fails as `trihop_minirank_init`, and with `TRIHOP_ERR_BOOTSTRAP` where `allgather` fails or the
// processes contradict each other. `allgather` has no deadline: where this or a mini-rank fails,
// end the whole job by other means, `MPI_Abort` for instance. Other processes may wait in
// `allgather` for ever, and so may `trihop_minirank_finalize`.
// Threads: any. `allgather` is called on it, and twice by the communication thread: from when all
// mini-ranks of the process are in `trihop_minirank_start` until these return, and from when all
// are in `trihop_finalize` until `trihop_minirank_finalize` returns. So MPI is initialised with
// `MPI_THREAD_SERIALIZED` at least, and nothing else of the program calls it meanwhile, or with
// `MPI_THREAD_MULTIPLE` and a communicator that nothing else uses.
trihop_status_t trihop_minirank_init_custom(uint32_t ranks,
                                            uint32_t process,
                                            uint32_t processes,
                                            uint64_t node,
                                            trihop_allgather_t allgather,
                                            void *context,
                                            const struct trihop_options_t *options,
                                            struct trihop_miniranks_t **miniranks);

// Mini-ranks of this process; 0 where `miniranks` is null.
//
// Threads: any.
uint32_t trihop_minirank_count(const struct trihop_miniranks_t *miniranks);

// Joins the job as mini-rank `index` of this process, from 0, and waits for all ranks of the job.
// `job` is an inline one (`TRIHOP_INLINE`) of the thread that calls: all that can be done with
// such a job of a process can be done with it, by this thread alone: its streams, arrays and
// channels are closed by it too, before it ends. A thread that ends without `trihop_finalize` has
// failed, and the job with it, with an error that names its rank; the main thread ends with
// `exit`, and with the return from `main`, before functions of `atexit` and destructors of
// statics are called.
//
// Once one mini-rank of a process is started, the others have `bootstrap_timeout_ms` for it; then
// all fail.
//
// Fails with `TRIHOP_ERR_INVALID_ARGUMENT` on an index that is not below `trihop_minirank_count`,
// with `TRIHOP_ERR_MISUSE` where the mini-rank was started before, and as `trihop_init`: then the
// mini-rank has failed. Threads: any, which has the job from then on, and keeps to a core where
// `minirank_cores` says so.
trihop_status_t trihop_minirank_start(const struct trihop_miniranks_t *miniranks,
                                      uint32_t index,
                                      struct trihop_job_t **job);

// Number of a job's rank among the ranks of its process, from 0: 0 where it is alone there, and
// `UINT32_MAX` where `job` is null.
//
// Threads: any.
uint32_t trihop_minirank_index(const struct trihop_job_t *job);

// Waits until each mini-rank of this process has called this as often as this one; other processes
// have no part in it. Makes progress meanwhile. Returns at once where the rank is alone in its
// process. Not inside a handler.
//
// Threads: as the job.
trihop_status_t trihop_minirank_barrier(const struct trihop_job_t *job);

// Waits until all mini-ranks of this process have ended their jobs, and ends the communication
// thread. One that was not started by now has failed, and the job with it.
//
// The mini-ranks are gone afterwards, whatever is returned, but where that is `TRIHOP_ERR_MISUSE`:
// on a thread that has not ended its own job. Returns what has ended the job, where that was no
// `trihop_finalize`.
// Threads: any, but no other call on them may be under way or follow.
trihop_status_t trihop_minirank_finalize(struct trihop_miniranks_t *miniranks);

// Appends `length` bytes to what an element is packed into.
//
// Threads: that which calls the function that packs.
trihop_status_t trihop_pack(struct trihop_packer_t *packer, const void *bytes, size_t length);

// Opens an array, without elements. Collective over all ranks: the same names in the same order,
// with the same owners, sizes and options. `options` null stands for those of the job. `calls` is
// copied. Items have any length up to `max_message_bytes` less 8.
//
// Fails with `TRIHOP_ERR_INVALID_ARGUMENT` on `calls` that contradict each other or lack a
// handler, and as `trihop_stream_open`.
// Threads: any, but one that opens at a time; not inside a handler.
trihop_status_t trihop_array_open(const struct trihop_job_t *job,
                                  const char *name,
                                  const struct trihop_options_t *options,
                                  const struct trihop_array_calls_t *calls,
                                  struct trihop_array_t **array);

// From now on, what this rank pushes to elements whose owner it is, is handed to the handler in
// the push itself, where the element is here; else it is sent on at once. Called once, behind the
// opening; other ranks need not do the same. Of inline jobs. Order is kept, as
// `trihop_stream_own_at_once` says; broadcasts go the usual way, and so does what handlers, and
// visitors of `trihop_array_each`, push.
//
// Fails with `TRIHOP_ERR_CONFIG` on a job with threads. Not inside a handler.
// Threads: the one of the job.
trihop_status_t trihop_array_own_at_once(struct trihop_array_t *array);

// Puts an element here, which everybody sends to after the next fence, not before. Where the
// library keeps elements (`element_bytes`) it is copied; else `element` is a pointer of the
// program's that the array has from now on.
//
// Fails with `TRIHOP_ERR_MISUSE` where this rank has the key, or knows where else it is (where
// only its owner finds that another rank has it, the job ends with `TRIHOP_ERR_BAD_PEER`), inside
// a handler of the array, or of an inline job, or a visitor with `TRIHOP_ERR_NESTED`; on an owner
// that is no rank; and as `trihop_stream_send`. Then the element stays the program's.
// Threads: any.
trihop_status_t trihop_array_insert(const struct trihop_array_t *array,
                                    uint64_t key,
                                    const void *element);

// Takes an element that is here away, and stores it in `element`: it is the program's then, and
// one that the library has kept is freed by `free`. Null is stored where it is not here. Where
// `element` is null it is freed. What is sent to it later ends the job with `TRIHOP_ERR_BAD_PEER`.
// Its key may be inserted again once three steps, or fences, are over.
//
// Fails with `TRIHOP_ERR_NESTED` as `trihop_array_insert`, and as `trihop_stream_send`.
// Threads: any.
trihop_status_t trihop_array_remove(const struct trihop_array_t *array,
                                    uint64_t key,
                                    void **element);

// Sends an item of `length` bytes, which are copied, to the element of a key, wherever that is.
// Waits while there is no room, but not inside a handler, as `trihop_stream_send`.
//
// Fails as that, and on an owner that is no rank. Where no rank has the element, the job ends with
// `TRIHOP_ERR_BAD_PEER`.
// Threads: any, and inside handlers. There is no order between what different threads send.
trihop_status_t trihop_array_push(const struct trihop_array_t *array,
                                  uint64_t key,
                                  const void *item,
                                  size_t length);

// As `trihop_array_push`, but where there is no room now it fails with `TRIHOP_ERR_WOULD_BLOCK`
// and has taken nothing. Inside a handler of an inline job it is `trihop_array_push`, which does
// not wait there either.
//
// Threads: any. It waits for the engine while another thread has it, never for room.
trihop_status_t trihop_array_try_push(const struct trihop_array_t *array,
                                      uint64_t key,
                                      const void *item,
                                      size_t length);

// Sends `count` items of `length` bytes each, one after the other in memory, each to the element
// of the key in its place of `keys`. How many were taken goes to `sent`, which may be null:
// `count` unless the call fails. Otherwise as `trihop_array_push`.
//
// Threads: any, and inside handlers.
trihop_status_t trihop_array_push_many(const struct trihop_array_t *array,
                                       const uint64_t *keys,
                                       const void *items,
                                       size_t length,
                                       size_t count,
                                       size_t *sent);

// Sends an item to every element, each of which gets it once, also one that moves meanwhile. It
// crosses the job as a broadcast of a stream does. Otherwise as `trihop_array_push`.
//
// Threads: any, and inside handlers.
trihop_status_t trihop_array_broadcast(const struct trihop_array_t *array,
                                       const void *item,
                                       size_t length);

// Has an element that is here move to another rank: it is packed here, freed, and unpacked there.
// Inside the array's handler it is the element that this is called for, and moves as soon as the
// handler has returned; what keeps it from moving then is said by the program's next call of the
// array, with the element still here.
//
// Fails with `TRIHOP_ERR_MISUSE` where it is not here, with `TRIHOP_ERR_RANK`, with
// `TRIHOP_ERR_CONFIG` where it cannot be packed, with `TRIHOP_ERR_NESTED` inside the array's
// handler for another element, and as `trihop_array_insert`; and as `trihop_stream_send`. Then it
// stays.
// Threads: any.
trihop_status_t trihop_array_migrate(const struct trihop_array_t *array, uint64_t key, uint32_t to);

// Calls `visitor` with `context` for every element that is here, in no order, before it returns.
// Handlers wait meanwhile, or on an inline job no progress is made. The visitor may push, but that
// waits for no room: where there is none it fails with `TRIHOP_ERR_WOULD_BLOCK`.
//
// Fails with `TRIHOP_ERR_NESTED` inside itself, and inside handlers of arrays.
// Threads: any; `visitor` is called on the thread that calls.
trihop_status_t trihop_array_each(const struct trihop_array_t *array,
                                  trihop_array_visitor_t visitor,
                                  void *context);

// Stores how many elements are here.
//
// Fails with `TRIHOP_ERR_NESTED` inside a visitor, and inside handlers of arrays.
// Threads: any.
trihop_status_t trihop_array_count(const struct trihop_array_t *array, size_t *count);

// Stores how many items have come here for elements elsewhere, and were sent on.
//
// Fails as `trihop_array_count`.
// Threads: any.
trihop_status_t trihop_array_late(const struct trihop_array_t *array, uint64_t *late);

// Returns on every rank when all that any rank sent before is handled, also what handlers sent
// because of it, and every element is where it was sent. Collective over all ranks; not inside a
// handler.
//
// Threads: any, one fence of an array at a time.
trihop_status_t trihop_array_fence(const struct trihop_array_t *array);

// Starts a fence, and does not wait: `trihop_array_test` and `trihop_array_wait` say when it is
// over. Until then only handlers push to the array. Collective over all ranks; not inside a
// handler.
//
// Threads: as `trihop_array_fence`.
trihop_status_t trihop_array_start_fence(const struct trihop_array_t *array);

// Begins a step of which each element is a contributor, wherever it is by then: a rank without any
// is done at once. Waits until all ranks do. The step is over when `trihop_array_done` was called
// for each of them and all that was sent is handled: `trihop_array_test` and `trihop_array_wait`
// say when. A rank that calls it for its own elements counts them before, behind the last fence or
// step: items of others may have some move as soon as the step has begun. Nobody inserts or
// removes elements meanwhile. See `trihop_stream_begin_step`. Collective over all ranks; not
// inside a handler.
//
// Threads: as `trihop_array_fence`.
trihop_status_t trihop_array_begin_step(const struct trihop_array_t *array);

// As `trihop_array_begin_step`, with all that a step can have, and of contributors that the program
// counts: it waits for nobody, and may begin at the end of the step before. What is called gets a
// null stream: the array is in its context. See `trihop_step_options_t`.
//
// Threads: as `trihop_stream_begin_step_with`.
trihop_status_t trihop_array_begin_step_with(const struct trihop_array_t *array,
                                             const struct trihop_step_options_t *options);

// As `trihop_array_start_fence`, with a priority and with calls: what `at_start` pushes, the fence
// waits for, and `at_end` may start the next. `count` and `of` of its options are not used.
//
// Threads: as `trihop_array_begin_step_with`.
trihop_status_t trihop_array_start_fence_with(const struct trihop_array_t *array,
                                              const struct trihop_step_options_t *options);

// So many elements have sent what they have to send in the step, on whichever rank they are.
// Otherwise as `trihop_stream_done`, of contributors of all ranks.
//
// Threads: any, and inside handlers.
trihop_status_t trihop_array_done(const struct trihop_array_t *array, uint64_t elements);

// Makes one round of progress, and stores 1 where the step is over, else 0. That it is over is
// said once; without a step it fails with `TRIHOP_ERR_MISUSE`. Not inside a handler.
//
// Threads: as `trihop_array_fence`.
trihop_status_t trihop_array_test(const struct trihop_array_t *array, int *is_over);

// Waits until the step is over; without a step it fails with `TRIHOP_ERR_MISUSE`. Not inside a
// handler.
//
// Threads: as `trihop_array_fence`.
trihop_status_t trihop_array_wait(const struct trihop_array_t *array);

// Fences the array and closes it; elements that are here are freed. Collective over all ranks,
// unless the job has ended. The handler is not called any more once this has returned. The array
// is gone afterwards, whatever is returned, but where that is `TRIHOP_ERR_NESTED`, inside a
// handler or a visitor, or `TRIHOP_ERR_MISUSE`, in a step whose contributors of this rank are not
// done, or beside a fence of all streams: it may be closed again then.
//
// Threads: any, but no other call on the array may be under way or follow.
trihop_status_t trihop_array_close(struct trihop_array_t *array);

// Opens the channels of a job, of which there are none yet. Collective over all ranks: the same
// names in the same order. `options` null stands for those of the job.
//
// Fails as `trihop_stream_open`.
// Threads: any, but one that opens at a time; not inside a handler.
trihop_status_t trihop_channels_open(const struct trihop_job_t *job,
                                     const char *name,
                                     const struct trihop_options_t *options,
                                     struct trihop_channels_t **channels);

// As `trihop_channels_open`, and goes on with what this rank has kept of its channels in an earlier
// job: `trihop_channel_attach` finds them again by their descriptors, with the messages in them.
// Ranks that have kept nothing, since they are new processes, call `trihop_channels_open` instead:
// what they had is `TRIHOP_ERR_NO_CHANNEL`. The job has as many ranks as that, and each process its
// old number; otherwise, and where `kept` is open already, it is `TRIHOP_ERR_CONFIG` on all ranks.
// After a failure `kept` has what it had; after a success nothing. Either way it has to be freed.
//
// Fails as `trihop_channels_open`.
// Threads: as that.
trihop_status_t trihop_channels_open_kept(const struct trihop_job_t *job,
                                          const char *name,
                                          const struct trihop_options_t *options,
                                          const struct trihop_kept_t *kept,
                                          struct trihop_channels_t **channels);

// Fills `options` with the defaults. `size` is `sizeof(trihop_channels_options_t)` as the caller
// knows it.
//
// Threads: any.
trihop_status_t trihop_channels_options_init(struct trihop_channels_options_t *options,
                                             size_t size);

// As `trihop_channels_open`, or `trihop_channels_open_kept`, with all that an opening can have.
// `options` null stands for the defaults.
//
// Fails as these.
// Threads: as `trihop_channels_open`.
trihop_status_t trihop_channels_open_with(const struct trihop_job_t *job,
                                          const char *name,
                                          const struct trihop_channels_options_t *options,
                                          struct trihop_channels_t **channels);

// Makes a channel of this rank's, and a port of it. `limits` null stands for the defaults. The
// channel is there until it is closed, or this rank closes its channels.
//
// Fails with `TRIHOP_ERR_CONFIG` on limits that cannot be.
// Threads: as the job; not inside a handler.
trihop_status_t trihop_channel_create(const struct trihop_channels_t *channels,
                                      const struct trihop_channel_limits_t *limits,
                                      struct trihop_channel_t **channel);

// Makes a semaphore of this rank's, and a port of it: a channel with a value, that
// `TRIHOP_POLL_ACQUIRE` takes one from and `TRIHOP_POLL_RELEASE` adds one to. It is never above
// `most`: `UINT64_MAX` is no bound. Of `limits`, of which null stands for the defaults, `ports` and
// `window_messages` count, the calls of a port that may wait at once.
//
// Fails with `TRIHOP_ERR_CONFIG` on a value above `most`, and on limits that cannot be.
// Threads: as the job; not inside a handler.
trihop_status_t trihop_channel_create_semaphore(const struct trihop_channels_t *channels,
                                                uint64_t value,
                                                uint64_t most,
                                                const struct trihop_channel_limits_t *limits,
                                                struct trihop_channel_t **channel);

// Makes a barrier of this rank's, and a port of it: a channel in which `parties` calls with
// `TRIHOP_POLL_ARRIVE` wait for each other, of whichever ranks and ports. `limits` as of
// `trihop_channel_create_semaphore`: 1024 ports by default.
//
// Fails with `TRIHOP_ERR_CONFIG` where `parties` are none, or more than may wait by all ports, and
// on limits that cannot be.
// Threads: as the job; not inside a handler.
trihop_status_t trihop_channel_create_barrier(const struct trihop_channels_t *channels,
                                              uint32_t parties,
                                              const struct trihop_channel_limits_t *limits,
                                              struct trihop_channel_t **channel);

// Makes a port of the channel with this descriptor, whatever its kind, by asking its owner.
//
// Fails with `TRIHOP_ERR_NO_CHANNEL` where that is no descriptor, or one of another job, or of a
// channel that is gone; with `TRIHOP_ERR_CONFIG` where the channel has as many ports as it may.
// Threads: as the job; not inside a handler.
trihop_status_t trihop_channel_attach(const struct trihop_channels_t *channels,
                                      const char *descriptor,
                                      struct trihop_channel_t **channel);

// Fills `limits` with what the channel may hold, as its owner has made it, at any port of it.
// `size` is `sizeof(trihop_channel_limits_t)` as the caller knows it. What is filled so makes
// another channel like it.
//
// Threads: any.
trihop_status_t trihop_channel_limits(const struct trihop_channel_t *channel,
                                      struct trihop_channel_limits_t *limits,
                                      size_t size);

// Fills `counters` with what the stream of the channels, by which requests and answers go, has
// done on this rank, as `trihop_stream_stats` of other streams. Each request to another rank and
// each answer is a record, with 32 or 56 bytes beside its message; calls of a rank on its own
// channels are none. Parts of long messages that go by other relays are not counted. `size` is
// `sizeof(trihop_stats_t)` as the caller knows it.
//
// Threads: any. Fails with `TRIHOP_ERR_WOULD_BLOCK` where the engine is in use and does not come
// free.
trihop_status_t trihop_channels_stats(const struct trihop_channels_t *channels,
                                      struct trihop_stats_t *counters,
                                      size_t size);

// As `trihop_channels_stats`, as a JSON object that ends with NUL, as `trihop_stream_stats_json`
// writes it.
//
// Threads: as `trihop_channels_stats`.
trihop_status_t trihop_channels_stats_json(const struct trihop_channels_t *channels,
                                           char *text,
                                           size_t capacity,
                                           size_t *length);

// Closes the channels of this rank, whose messages are dropped, and waits until all ranks have
// called this. Collective. Others who wait in them hear that they are closed. Ports that are left
// answer `TRIHOP_ERR_CLOSED`, and have to be freed for their memory. The handle is gone afterwards,
// whatever is returned, but where that is `TRIHOP_ERR_NESTED` or `TRIHOP_ERR_MISUSE` (beside a
// fence of all streams): it may be closed again then. Null is refused.
//
// Threads: as the job; not inside a handler.
trihop_status_t trihop_channels_close(struct trihop_channels_t *channels);

// Closes the channels of this rank as `trihop_channels_close` does, and keeps them with the
// messages in them for a job that takes the place of this one, because an agent or another rank is
// gone: see `trihop_channels_open_kept`. Where the job goes on it waits until all ranks have
// called this or that: collective. Sends that have failed with the job may or may not be in a
// channel; what was deposited is. A message that was under way to a get is gone with the get.
//
// Fails with `TRIHOP_ERR_NESTED` inside a handler, with `TRIHOP_ERR_MISUSE` where a fence of them
// is under way, and as the job. Where it fails `channels` is to be closed still.
// Threads: as the job; not inside a handler.
trihop_status_t trihop_channels_keep(struct trihop_channels_t *channels,
                                     struct trihop_kept_t **kept);

// Frees what `trihop_channels_keep` has given: channels that no job has gone on with are gone, and
// so are their messages. Null is ignored.
//
// Threads: any.
void trihop_kept_free(struct trihop_kept_t *kept);

// Sends `length` bytes, with 32 bits that mean what the program wants them to mean, and returns
// when `when`, of `trihop_return_t`, says. `timeout_ns` is in nanoseconds, `TRIHOP_NO_TIMEOUT` or
// `TRIHOP_ONCE`: that of the message's way into the channel (of `TRIHOP_WHEN_RECEIVED`, to a
// receiver), also where the call returns before. The owner keeps it, to about a millisecond.
//
// With nothing sent it fails with `TRIHOP_ERR_WOULD_BLOCK`, `TRIHOP_ERR_TIMED_OUT`,
// `TRIHOP_ERR_CLOSED` where the channel is, `TRIHOP_ERR_TOO_LARGE` above the channel's bytes and
// `max_message_bytes` less 56, and `TRIHOP_ERR_INVALID_ARGUMENT` for another time below zero.
// Threads: as `trihop_channel_t`.
trihop_status_t trihop_channel_send(const struct trihop_channel_t *channel,
                                    uint32_t kind,
                                    const void *bytes,
                                    size_t length,
                                    int32_t when,
                                    int64_t timeout_ns);

// Memory for a message of `length` bytes that is to be sent by this port: `message` is filled,
// with zeros where the call fails. The program writes to its `bytes`, and gives it away by
// `trihop_channel_send_buffer`, or back by `trihop_received_free`. Of a long one, for an owner on
// this node, it is memory that the ranks of the node share, as long as there is some: then the
// message is not copied at all. What is in it at first means nothing. Of a guest it is its own.
//
// Fails with `TRIHOP_ERR_TOO_LARGE` above what a message of the channel may have,
// `TRIHOP_ERR_MISUSE` where it has no messages, and `TRIHOP_ERR_NO_MEMORY`.
// Threads: as `trihop_channel_t`.
trihop_status_t trihop_channel_buffer(const struct trihop_channel_t *channel,
                                      size_t length,
                                      struct trihop_received_t *message);

// As `trihop_channel_send`, of a message whose memory is given away: one of
// `trihop_channel_buffer`, or one that was got, from whichever channel. Inside of a node nothing
// of it is copied where it is in shared memory, and on the owner's rank in any case; for another
// node it is sent as all others.
//
// `message` has no bytes once its memory is given away, and has them still where the call fails
// with nothing sent; give it back by `trihop_received_free` then. The owner may refuse what has
// left, as for want of room when it is tried once: then it is gone with the call.
// Threads: as `trihop_channel_t`.
trihop_status_t trihop_channel_send_buffer(const struct trihop_channel_t *channel,
                                           uint32_t kind,
                                           struct trihop_received_t *message,
                                           int32_t when,
                                           int64_t timeout_ns);

// Takes the first message out of the channel, and waits for one as long as `timeout_ns` says (see
// `trihop_channel_send`). `received` is filled, with zeros where the call fails; give its memory
// back by `trihop_received_free`.
//
// Fails with `TRIHOP_ERR_WOULD_BLOCK` and `TRIHOP_ERR_TIMED_OUT` where there is none, and with
// `TRIHOP_ERR_CLOSED` once the channel is closed and empty. Where as many calls of the port wait
// as its window has places, it is `TRIHOP_ERR_WOULD_BLOCK` at once, whatever `timeout_ns` says; an
// event that is armed has a place, too.
// Threads: as `trihop_channel_t`.
trihop_status_t trihop_channel_get(const struct trihop_channel_t *channel,
                                   int64_t timeout_ns,
                                   struct trihop_received_t *received);

// As `trihop_channel_get`, and the bytes of the message are copied to `bytes`, which has room for
// `capacity` of them, once, out of the memory in which they came; nothing has to be given back.
// `filled` says what they are, with zeros where the call fails.
//
// Where the first message is longer it fails with `TRIHOP_ERR_BUFFER_TOO_SMALL`, and the length in
// `filled` is that of the message: it stays where it is, as if nobody had asked for it, and what
// is in `bytes` is as it was. Else as `trihop_channel_get`.
// Threads: as `trihop_channel_t`.
trihop_status_t trihop_channel_get_into(const struct trihop_channel_t *channel,
                                        int64_t timeout_ns,
                                        void *bytes,
                                        size_t capacity,
                                        struct trihop_filled_t *filled);

// As `trihop_channel_get`, and the message stays where it is: a copy is got.
//
// Threads: as `trihop_channel_t`.
trihop_status_t trihop_channel_peek(const struct trihop_channel_t *channel,
                                    int64_t timeout_ns,
                                    struct trihop_received_t *received);

// As `trihop_channel_get`, and the bytes of the message are dropped.
//
// Threads: as `trihop_channel_t`.
trihop_status_t trihop_channel_pop(const struct trihop_channel_t *channel, int64_t timeout_ns);

// Gives the memory of a message back, and makes it one of no bytes. Null is fine.
//
// Threads: any.
void trihop_received_free(struct trihop_received_t *received);

// How many sends of this port have failed after they had returned, and, where `last` is not null,
// the status of the last of them: `TRIHOP_OK` where none has.
//
// Threads: any; of a guest's port one at a time.
trihop_status_t trihop_channel_failures(const struct trihop_channel_t *channel,
                                        uint64_t *count,
                                        int32_t *last);

// Writes what names the channel on all ranks as a text, of at most
// `TRIHOP_CHANNEL_DESCRIPTOR_CHARS` with its NUL, and its length without that. It may go by
// messages, files or arguments.
//
// Threads: any.
trihop_status_t trihop_channel_descriptor(const struct trihop_channel_t *channel,
                                          char *text,
                                          size_t capacity,
                                          size_t *length);

// The rank that has made the channel, and has its messages.
//
// Threads: any.
trihop_status_t trihop_channel_owner(const struct trihop_channel_t *channel, uint32_t *owner);

// Closes the channel: what is sent from now on, or waits to be, fails with `TRIHOP_ERR_CLOSED`, and
// so do gets once it is empty. On its owner only, or by that one's guests, else
// `TRIHOP_ERR_MISUSE`. The port stays, for what is left.
//
// Threads: as `trihop_channel_t`.
trihop_status_t trihop_channel_close(const struct trihop_channel_t *channel);

// Gives a port back. What it has sent still comes into the channel as there is room. A channel
// that is closed goes with its last port. Null is fine.
//
// Threads: as `trihop_channel_t`, and no other call on it may be under way or follow.
trihop_status_t trihop_channel_free(struct trihop_channel_t *channel);

// Waits until `what`, of `trihop_poll_t`, holds, asks for a number, or uses a semaphore or a
// barrier; `value` is set to what that says, and may be null. `timeout_ns` as of
// `trihop_channel_send`.
//
// Fails with `TRIHOP_ERR_WOULD_BLOCK` and `TRIHOP_ERR_TIMED_OUT` where it does not hold, with
// nothing done, with `TRIHOP_ERR_CLOSED` where it never will, with `TRIHOP_ERR_BROKEN` of a barrier
// that is, and with `TRIHOP_ERR_MISUSE` for what channels of this kind do not know. Where the
// port's window is full it is `TRIHOP_ERR_WOULD_BLOCK` at once, as `trihop_channel_get` is.
// Threads: as `trihop_channel_t`.
trihop_status_t trihop_channel_poll(const struct trihop_channel_t *channel,
                                    int32_t what,
                                    int64_t timeout_ns,
                                    uint64_t *value);

// What the channel is, of `trihop_channel_kind_t`.
//
// Threads: any.
trihop_status_t trihop_channel_kind(const struct trihop_channel_t *channel, int32_t *kind);

// Gives a file descriptor for `poll`, `epoll` and their like, which is readable while something
// may be had from the channel without waiting: a message; one of a semaphore
// (`TRIHOP_POLL_ACQUIRE`); of a barrier, the place of the last one to come (`TRIHOP_POLL_ARRIVE`),
// or the error that it is broken; or the error that the channel is closed or the job has failed.
// It is the port's: the same at each call, closed by `trihop_channel_free`, and neither to be
// read, written nor closed. Who comes to a barrier before the last one starts that, and sleeps on
// `trihop_asked_event`.
//
// It is armed by the first call of this, and again by each get, peek, pop, acquisition and arrival
// of this port that finds nothing (`TRIHOP_ERR_WOULD_BLOCK`, `TRIHOP_ERR_TIMED_OUT`): whoever is
// woken takes until nothing is found, and then sleeps. Until then it stays readable. While it is
// armed it counts as one request of the port's that waits.
//
// Of a job with threads it becomes readable by itself. Of an inline job it does so only inside
// calls that make progress: whoever sleeps on it there calls `trihop_poll` now and then. Of a guest
// it becomes readable by itself, and where the server is gone.
//
// Fails with `TRIHOP_ERR_WOULD_BLOCK` where as many requests of the port wait as may.
// Threads: as `trihop_channel_t`.
trihop_status_t trihop_channel_event(const struct trihop_channel_t *channel, int32_t *descriptor);

// Starts a get, as `trihop_channel_get`, and does not wait: `trihop_asked_test` and
// `trihop_asked_wait` say when it is over, and `trihop_asked_received` gives the message. A guest's
// waits for the server, which begins it behind all that the port has asked for before, and a test
// of one that is over for the answer, with the message.
//
// Fails with `TRIHOP_ERR_WOULD_BLOCK` where as many requests of the port wait as may.
// Threads: as `trihop_channel_t`.
trihop_status_t trihop_channel_start_get(const struct trihop_channel_t *channel,
                                         int64_t timeout_ns,
                                         struct trihop_asked_t **asked);

// Starts a poll, as `trihop_channel_poll`, and does not wait; `trihop_asked_value` gives what that
// says.
//
// Fails with `TRIHOP_ERR_WOULD_BLOCK` where as many requests of the port wait as may, and with
// `TRIHOP_ERR_MISUSE` for what channels of this kind do not know.
// Threads: as `trihop_channel_t`.
trihop_status_t trihop_channel_start_poll(const struct trihop_channel_t *channel,
                                          int32_t what,
                                          int64_t timeout_ns,
                                          struct trihop_asked_t **asked);

// Starts a send, as `trihop_channel_send`, and does not wait: it is over when that would return.
// The bytes are copied.
//
// Fails with `TRIHOP_ERR_WOULD_BLOCK`, and nothing sent, where the port's window has no room, and
// with `TRIHOP_ERR_TOO_LARGE` as `trihop_channel_send`.
// Threads: as `trihop_channel_t`.
trihop_status_t trihop_channel_start_send(const struct trihop_channel_t *channel,
                                          uint32_t kind,
                                          const void *bytes,
                                          size_t length,
                                          int32_t when,
                                          int64_t timeout_ns,
                                          struct trihop_asked_t **asked);

// Starts a send of a message whose memory is given away, as `trihop_channel_send_buffer`, and does
// not wait: it is over when that would return.
//
// Fails as `trihop_channel_start_send`: `message` has its bytes then.
// Threads: as `trihop_channel_t`.
trihop_status_t trihop_channel_start_send_buffer(const struct trihop_channel_t *channel,
                                                 uint32_t kind,
                                                 struct trihop_received_t *message,
                                                 int32_t when,
                                                 int64_t timeout_ns,
                                                 struct trihop_asked_t **asked);

// Makes one round of progress, and stores 1 where the request is over, else 0. Where it is over
// the status is that of the call that waits: `TRIHOP_ERR_TIMED_OUT`, `TRIHOP_ERR_CLOSED` and its
// like too, and the same however often it is asked for. Other failures leave 0: the job has
// failed, or it is `TRIHOP_ERR_NESTED` inside a handler of an inline job.
//
// Threads: as `trihop_asked_t`.
trihop_status_t trihop_asked_test(struct trihop_asked_t *asked, int *is_over);

// Waits until the request is over; the status is that of the call that waits at once, the same
// however often it is asked for. Not inside a handler.
//
// Threads: as `trihop_asked_t`.
trihop_status_t trihop_asked_wait(struct trihop_asked_t *asked);

// The message of a get that is over, once; give its memory back by `trihop_received_free`. It is
// filled with zeros where the call fails: `TRIHOP_ERR_MISUSE` where there is none, or no more.
//
// Threads: as `trihop_asked_t`.
trihop_status_t trihop_asked_received(struct trihop_asked_t *asked,
                                      struct trihop_received_t *received);

// What a poll that is over says; `TRIHOP_ERR_MISUSE` of any other request.
//
// Threads: as `trihop_asked_t`.
trihop_status_t trihop_asked_value(struct trihop_asked_t *asked, uint64_t *value);

// Gives a file descriptor for `poll`, `epoll` and their like, which is readable once the request
// has ended, or the job has failed: `trihop_asked_test` then says how. It is the request's: one
// for each, made by the first call, closed by `trihop_asked_free`, and neither to be read, written
// nor closed.
//
// Of a job with threads it becomes readable by itself. Of an inline job it does so only inside
// calls that make progress: whoever sleeps on it there calls `trihop_poll` now and then. Where the
// request has a timeout, who sleeps on it wakes when that is over, and tests: the owner may have
// no clock that runs. Of a guest it becomes readable by itself, at a timeout too, and where the
// server is gone.
// Threads: as `trihop_asked_t`.
trihop_status_t trihop_asked_event(struct trihop_asked_t *asked, int32_t *descriptor);

// Gives a request back. One that is not over is taken back: a message that comes all the same goes
// back to its place in the channel, what was acquired goes back too, and what was sent may be sent
// all the same. A message that was not taken by `trihop_asked_received` is dropped. Null is fine.
//
// Threads: as `trihop_asked_t`, and no other call on it may be under way or follow.
trihop_status_t trihop_asked_free(struct trihop_asked_t *asked);

// Serves guests under an abstract name of this node, from a thread of its own, until
// `trihop_guests_free`. They are processes of the same user, and use the channels of all ranks
// through this one: what they make is this rank's, and what they send comes from it. `name` null
// is where guests look that are told no name: the variable `TRIHOP_GUESTS`, else `trihop-guests-`
// and the number of the user.
//
// Fails with `TRIHOP_ERR_MISUSE` for the channels of an inline job, which answer nobody while the
// program does something else, and with `TRIHOP_ERR_SYSTEM` where another process has the name.
// Threads: as the job; not inside a handler.
trihop_status_t trihop_guests_serve(const struct trihop_channels_t *channels,
                                    const char *name,
                                    struct trihop_guests_t **guests);

// Serves guests no longer: those that there are find their connections closed
// (`TRIHOP_ERR_SERVER_FAILED`). What they have sent before, and there was room for, is in the
// channels. Call it before the channels are closed. Null is fine.
//
// Threads: as `trihop_guests_t`.
void trihop_guests_free(struct trihop_guests_t *guests);

// Asks who serves guests under this name, and waits for `timeout_ns` until somebody does
// (`TRIHOP_NO_TIMEOUT`: as long as it takes). `name` as of `trihop_guests_serve`.
//
// Fails with `TRIHOP_ERR_SERVER_FAILED` where nobody has come to serve in time, or the server is of
// another version, and with `TRIHOP_ERR_SYSTEM` where another user has the name.
// Threads: any.
trihop_status_t trihop_guest_open(const char *name,
                                  int64_t timeout_ns,
                                  struct trihop_guest_t **guest);

// The rank that serves the guest, in `rank`, and how many ranks its job has, in `size`: the rank
// is the owner of the channels that the guest makes, and the source of what it sends. Either may
// be null.
//
// Threads: any.
trihop_status_t trihop_guest_server(const struct trihop_guest_t *guest,
                                    uint32_t *rank,
                                    uint32_t *size);

// Makes a channel of the server's rank, and a port of it. `limits` null stands for the defaults;
// `lifetime` is of `trihop_lifetime_t`.
//
// Fails as `trihop_channel_create`, and with `TRIHOP_ERR_SERVER_FAILED`.
// Threads: any.
trihop_status_t trihop_guest_create(const struct trihop_guest_t *guest,
                                    const struct trihop_channel_limits_t *limits,
                                    int32_t lifetime,
                                    struct trihop_channel_t **channel);

// Makes a semaphore of the server's rank, and a port of it, as `trihop_channel_create_semaphore`.
// What a guest has acquired when it ends stays acquired.
//
// Fails as that, and with `TRIHOP_ERR_SERVER_FAILED`.
// Threads: any.
trihop_status_t trihop_guest_create_semaphore(const struct trihop_guest_t *guest,
                                              uint64_t value,
                                              uint64_t most,
                                              const struct trihop_channel_limits_t *limits,
                                              int32_t lifetime,
                                              struct trihop_channel_t **channel);

// Makes a barrier of the server's rank, and a port of it, as `trihop_channel_create_barrier`.
//
// Fails as that, and with `TRIHOP_ERR_SERVER_FAILED`.
// Threads: any.
trihop_status_t trihop_guest_create_barrier(const struct trihop_guest_t *guest,
                                            uint32_t parties,
                                            const struct trihop_channel_limits_t *limits,
                                            int32_t lifetime,
                                            struct trihop_channel_t **channel);

// Makes a port of the channel with this descriptor, whichever rank owns it.
//
// Fails as `trihop_channel_attach`, and with `TRIHOP_ERR_SERVER_FAILED`.
// Threads: any.
trihop_status_t trihop_guest_attach(const struct trihop_guest_t *guest,
                                    const char *descriptor,
                                    struct trihop_channel_t **channel);

// Frees a guest. Its ports stay, and so do its channels. Null is fine.
//
// Threads: any, and no other call on it may be under way or follow.
void trihop_guest_free(struct trihop_guest_t *guest);

// Fills `counters` with those of the whole stream. `size` is `sizeof(trihop_stats_t)` as the
// caller knows it.
//
// Threads: any.
trihop_status_t trihop_details_totals(const struct trihop_details_t *details,
                                      struct trihop_stats_t *counters,
                                      size_t size);

// Fills `counters` with those of the queues of one stage, of `trihop_queues_t`: what this rank
// sent (`TRIHOP_ORIGIN_QUEUES`), what goes to other nodes (`TRIHOP_REMOTE_QUEUES`), what came from
// there (`TRIHOP_RELAY_QUEUES`). `size` is `sizeof(trihop_stage_stats_t)` as the caller knows it.
//
// Threads: any.
trihop_status_t trihop_details_stage(const struct trihop_details_t *details,
                                     int32_t queues,
                                     struct trihop_stage_stats_t *counters,
                                     size_t size);

// Fills `counters` with those of one queue of a stage, of `trihop_queues_t`. `index` is below the
// `queues` of the stage. `size` is `sizeof(trihop_queue_stats_t)` as the caller knows it.
//
// Threads: any.
trihop_status_t trihop_details_queue(const struct trihop_details_t *details,
                                     int32_t queues,
                                     uint64_t index,
                                     struct trihop_queue_stats_t *counters,
                                     size_t size);

// Writes all of it as a JSON object that ends with NUL, and its length without that: `stream`,
// `rank`, `totals`, and for each stage of the route (`origin`, `remote` and `relay` with three
// hops) an object with `all`, `limit_hits` and an array `queues`, with the names of the structs'
// fields. Where `capacity` is too small (`text` may be null where it is 0), the call fails with
// `TRIHOP_ERR_BUFFER_TOO_SMALL` and only stores the length.
//
// Threads: any.
trihop_status_t trihop_details_json(const struct trihop_details_t *details,
                                    char *text,
                                    size_t capacity,
                                    size_t *length);

// As `trihop_details_json`, as lines for people to read; they may change.
//
// Threads: any.
trihop_status_t trihop_details_text(const struct trihop_details_t *details,
                                    char *text,
                                    size_t capacity,
                                    size_t *length);

// Frees the details; null is fine.
//
// Threads: any, but no other call on them may be under way or follow.
void trihop_details_free(struct trihop_details_t *details);

// Fills `threads` with what each thread of the job has used so far: the progress thread, and
// delivery threads (the common one, and those of streams with `own_thread`) once there are streams
// with handlers; none for an inline job. There is room for `capacity` structs,
// of `size` bytes each: `sizeof(trihop_thread_use_t)` as the caller knows it. The number of
// threads goes to `count`. Where `capacity` is too small (`threads` may be null where it is 0),
// the call fails with `TRIHOP_ERR_BUFFER_TOO_SMALL` and only stores that.
//
// Threads: any.
trihop_status_t trihop_threads(const struct trihop_job_t *job,
                               struct trihop_thread_use_t *threads,
                               size_t size,
                               size_t capacity,
                               size_t *count);

// As `trihop_threads`, as a JSON array that ends with NUL, an object for each thread with the
// names of the struct's fields; its length without the NUL goes to `length`. Where `capacity` is
// too small (`text` may be null where it is 0), the call fails with `TRIHOP_ERR_BUFFER_TOO_SMALL`
// and only stores the length; numbers may have grown when it is called again.
//
// Threads: any.
trihop_status_t trihop_threads_json(const struct trihop_job_t *job,
                                    char *text,
                                    size_t capacity,
                                    size_t *length);

// Fills `options` with the defaults. `size` is `sizeof(trihop_log_options_t)` as the caller knows
// it.
//
// Threads: any.
trihop_status_t trihop_log_options_init(struct trihop_log_options_t *options, size_t size);

// Takes the library's messages from now on, once per process and before its first job. `options`
// null stands for those of the environment. Without this call the library says nothing but what
// its calls return, and, on standard error, warnings about how the process was started (unless
// `TRIHOP_LOG` is `off` or `error`).
//
// Fails with `TRIHOP_ERR_CONFIG` on a filter that is none and where it was called before, and with
// `TRIHOP_ERR_SYSTEM` where the file cannot be opened.
// Threads: any, but none that changes the environment meanwhile.
trihop_status_t trihop_log_install(const struct trihop_log_options_t *options);

// Writes the last lines that were recorded, oldest first, as a text that ends with NUL, and its
// length without that. Where `capacity` is too small (`text` may be null where it is 0), the call
// fails with `TRIHOP_ERR_BUFFER_TOO_SMALL` and only stores the length; more may have been recorded
// when it is called again.
//
// Threads: any.
trihop_status_t trihop_log_recent(char *text, size_t capacity, size_t *length);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

// What follows are the calls of single records and items, for streams and conveyors in a form that
// needs no call for most of them: macros that stand in the place of the functions of the same
// names. `(trihop_stream_push)(stream, target, item)` is the function; programs that define
// TRIHOP_NO_INLINE before they include this file have functions alone, as they need who declare or
// replace them, or call them in C functions that are `inline` and not `static`. A program uses none
// of the structs itself.
#ifndef TRIHOP_NO_INLINE

#include <string.h>

#ifdef __cplusplus
#define TRIHOP_IN_HEADER inline
#define TRIHOP_AS(type, value) static_cast<type>(value)
#else
#define TRIHOP_IN_HEADER static inline
#define TRIHOP_AS(type, value) ((type)(value))
#endif

// Without it, compilers warn of copies that are never made.
#ifdef __GNUC__
#define TRIHOP_MAY_HOLD(item, bytes) (__builtin_object_size(item, 0) >= (bytes))
#else
#define TRIHOP_MAY_HOLD(item, bytes) 1
#endif

// A call with an item of this size gets a copy of it: the program's own, of which no call has the
// address, can so stay in a register.
#ifdef __GNUC__
#define TRIHOP_CALL_WITH_COPY(push, handle, target, item, bytes)                                   \
  if (__builtin_object_size(item, 0) == (bytes) && __builtin_object_size(item, 2) == (bytes)) {    \
    uint64_t copy[((bytes) + 7) / 8];                                                              \
    memcpy(copy, item, bytes);                                                                     \
    return push(handle, target, copy);                                                             \
  }
#else
#define TRIHOP_CALL_WITH_COPY(push, handle, target, item, bytes)
#endif
#define TRIHOP_CALL_PUSH(push, handle, target, item)                                               \
  TRIHOP_CALL_WITH_COPY(push, handle, target, item, 4)                                             \
  TRIHOP_CALL_WITH_COPY(push, handle, target, item, 8)                                             \
  TRIHOP_CALL_WITH_COPY(push, handle, target, item, 16)                                            \
  return push(handle, target, item);

// Records or items for one rank that leave together.
typedef struct trihop_open_run_t {
  uint32_t target;
  uint32_t start;
  uint16_t used;
  uint16_t room;
  uint16_t count;
  uint16_t place;
} trihop_open_run_t;

// The runs of a stream, while it takes records or items without a call. Of a threaded job one
// thread has them, until another one recalls them.
typedef struct trihop_push_window_t {
  uint32_t left;
  uint32_t mask;
  trihop_open_run_t *runs;
  unsigned char *memory;
  size_t item_bytes; // of records SIZE_MAX / 2
  size_t holder; // 0: of an inline job, nobody else is there
  uint32_t in_use[64];
  size_t users[64];
  size_t longest; // record
  size_t bytes;   // of records that it took
} trihop_push_window_t;

// Items that have come and can be pulled without a call.
typedef struct trihop_pull_window_t {
  const unsigned char *next;
  const unsigned char *end;
  uint32_t item_bytes;
  uint32_t source;
} trihop_pull_window_t;

// How a stream begins.
typedef struct trihop_stream_windows_t {
  trihop_push_window_t *push;
} trihop_stream_windows_t;

// How a conveyor begins.
typedef struct trihop_conveyor_windows_t {
  trihop_push_window_t *push;
  trihop_pull_window_t pull;
} trihop_conveyor_windows_t;

// Others look how many are left, without using the window.
#ifdef __GNUC__
#define TRIHOP_SET_LEFT(window, value) __atomic_store_n(&(window)->left, value, __ATOMIC_RELAXED)
#else
#define TRIHOP_SET_LEFT(window, value) ((window)->left = (value))
#endif

// So many bytes more of the run for a rank, or NULL, from a window that nobody else uses meanwhile.
TRIHOP_IN_HEADER unsigned char *trihop_take_alone(trihop_push_window_t *window, uint32_t target,
                                                  size_t bytes) {
  trihop_open_run_t *run;
  unsigned char *place;

  if (window->left == 0)
    return NULL;
  run = &window->runs[target & window->mask];
  if (run->target != target || run->used + bytes > run->room || run->count == UINT16_MAX)
    return NULL;
  place = window->memory + run->start + run->used;
  run->used = TRIHOP_AS(uint16_t, run->used + bytes);
  run->count++;
  TRIHOP_SET_LEFT(window, window->left - 1);
  return place;
}

// Whether the window, which nobody else uses meanwhile, took the item.
TRIHOP_IN_HEADER int trihop_push_alone(trihop_push_window_t *window, uint32_t target,
                                       const void *item) {
  unsigned char *place = trihop_take_alone(window, target, window->item_bytes);

  if (place == NULL)
    return 0;
  if (window->item_bytes == 8 && TRIHOP_MAY_HOLD(item, 8))
    memcpy(place, item, 8);
  else if (window->item_bytes == 4 && TRIHOP_MAY_HOLD(item, 4))
    memcpy(place, item, 4);
  else if (window->item_bytes == 16 && TRIHOP_MAY_HOLD(item, 16))
    memcpy(place, item, 16);
  else
    memcpy(place, item, window->item_bytes);
  return 1;
}

// As for an item, for a record: its kind, its length, itself, and zeros up to a multiple of 8.
TRIHOP_IN_HEADER int trihop_send_alone(trihop_push_window_t *window, uint32_t target, uint32_t kind,
                                       const void *bytes, size_t length) {
  size_t padded = (length + 7) & ~TRIHOP_AS(size_t, 7);
  uint32_t header[2];
  unsigned char *place;

  if (window->item_bytes != SIZE_MAX / 2 || length > window->longest)
    return 0;
  place = trihop_take_alone(window, target, sizeof header + padded);
  if (place == NULL)
    return 0;
  header[0] = kind;
  header[1] = TRIHOP_AS(uint32_t, length);
  memcpy(place, header, sizeof header);
  place += sizeof header;
  if (length < padded)
    memset(place + padded - 8, 0, 8);
  if (length > 0)
    memcpy(place, bytes, length);
  window->bytes += length;
  return 1;
}

// The number by which the library knows a thread. Where a program cannot find it out as fast,
// threads push by calls.
#if defined(__GNUC__) && defined(__LP64__) && (defined(__x86_64__) || defined(__aarch64__))
TRIHOP_IN_HEADER size_t trihop_this_thread(void) {
  size_t thread;

#ifdef __x86_64__
  __asm__ volatile("{movq %%fs:0, %0|mov %0, qword ptr fs:0}" : "=r"(thread));
#else
  __asm__ volatile("mrs %0, tpidr_el0" : "=r"(thread));
#endif
  return thread;
}

// Begins to use the window, if this thread has it; what says so until it is set to 0, or NULL.
TRIHOP_IN_HEADER uint32_t *trihop_enter_window(trihop_push_window_t *window) {
  size_t holder = __atomic_load_n(&window->holder, __ATOMIC_RELAXED);
  uint32_t *in_use;

  // The lowest bits say which word this thread has.
  if (holder >> 8 != trihop_this_thread())
    return NULL;
  in_use = &window->in_use[holder % 64];
  __atomic_store_n(in_use, 1, __ATOMIC_RELAXED);
  // An order for the compiler: a thread that recalls the window has a fence on all processors.
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
  if (__atomic_load_n(&window->holder, __ATOMIC_RELAXED) == holder)
    return in_use;
  __atomic_store_n(in_use, 0, __ATOMIC_RELEASE);
  return NULL;
}

// Whether this thread has the window, and it took the item.
TRIHOP_IN_HEADER int trihop_push_by_lease(trihop_push_window_t *window, uint32_t target,
                                          const void *item) {
  uint32_t *in_use = trihop_enter_window(window);
  int taken;

  if (in_use == NULL)
    return 0;
  taken = trihop_push_alone(window, target, item);
  __atomic_store_n(in_use, 0, __ATOMIC_RELEASE);
  return taken;
}

// As for an item, for a record.
TRIHOP_IN_HEADER int trihop_send_by_lease(trihop_push_window_t *window, uint32_t target,
                                          uint32_t kind, const void *bytes, size_t length) {
  uint32_t *in_use = trihop_enter_window(window);
  int taken;

  if (in_use == NULL)
    return 0;
  taken = trihop_send_alone(window, target, kind, bytes, length);
  __atomic_store_n(in_use, 0, __ATOMIC_RELEASE);
  return taken;
}
#else
#define trihop_push_by_lease(window, target, item) 0
#define trihop_send_by_lease(window, target, kind, bytes, length) 0
#endif

// Whether the window took the item.
TRIHOP_IN_HEADER int trihop_push_here(trihop_push_window_t *window, uint32_t target,
                                      const void *item) {
  if (window == NULL || item == NULL)
    return 0;
  if (window->holder == 0)
    return trihop_push_alone(window, target, item);
  return trihop_push_by_lease(window, target, item);
}

// Whether the window took the record. Its header is little-endian, wherever that is.
TRIHOP_IN_HEADER int trihop_send_here(trihop_push_window_t *window, uint32_t target, uint32_t kind,
                                      const void *bytes, size_t length) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  if (window == NULL || (bytes == NULL && length > 0))
    return 0;
  if (window->holder == 0)
    return trihop_send_alone(window, target, kind, bytes, length);
  return trihop_send_by_lease(window, target, kind, bytes, length);
#else
  (void)window, (void)target, (void)kind, (void)bytes, (void)length;
  return 0;
#endif
}

TRIHOP_IN_HEADER int trihop_stream_send_here(const trihop_stream_t *stream, uint32_t target,
                                             uint32_t kind, const void *bytes, size_t length) {
  const void *begin = stream;

  return begin != NULL && trihop_send_here(TRIHOP_AS(const trihop_stream_windows_t *, begin)->push,
                                           target, kind, bytes, length);
}

TRIHOP_IN_HEADER trihop_status_t trihop_stream_send_inline(const trihop_stream_t *stream,
                                                           uint32_t target, uint32_t kind,
                                                           const void *bytes, size_t length) {
  if (trihop_stream_send_here(stream, target, kind, bytes, length))
    return TRIHOP_OK;
  return trihop_stream_send(stream, target, kind, bytes, length);
}

TRIHOP_IN_HEADER trihop_status_t trihop_stream_try_send_inline(const trihop_stream_t *stream,
                                                               uint32_t target, uint32_t kind,
                                                               const void *bytes, size_t length) {
  if (trihop_stream_send_here(stream, target, kind, bytes, length))
    return TRIHOP_OK;
  return trihop_stream_try_send(stream, target, kind, bytes, length);
}

TRIHOP_IN_HEADER int trihop_stream_push_here(const trihop_stream_t *stream, uint32_t target,
                                             const void *item) {
  const void *begin = stream;

  return begin != NULL &&
         trihop_push_here(TRIHOP_AS(const trihop_stream_windows_t *, begin)->push, target, item);
}

TRIHOP_IN_HEADER trihop_status_t trihop_stream_push_inline(const trihop_stream_t *stream,
                                                           uint32_t target, const void *item) {
  if (trihop_stream_push_here(stream, target, item))
    return TRIHOP_OK;
  TRIHOP_CALL_PUSH(trihop_stream_push, stream, target, item)
}

TRIHOP_IN_HEADER trihop_status_t trihop_stream_try_push_inline(const trihop_stream_t *stream,
                                                               uint32_t target, const void *item) {
  if (trihop_stream_push_here(stream, target, item))
    return TRIHOP_OK;
  TRIHOP_CALL_PUSH(trihop_stream_try_push, stream, target, item)
}

TRIHOP_IN_HEADER trihop_status_t trihop_conveyor_push_inline(trihop_conveyor_t *conveyor,
                                                             uint32_t target, const void *item) {
  const void *begin = conveyor;

  if (begin != NULL &&
      trihop_push_here(TRIHOP_AS(const trihop_conveyor_windows_t *, begin)->push, target, item))
    return TRIHOP_OK;
  TRIHOP_CALL_PUSH(trihop_conveyor_push, conveyor, target, item)
}

TRIHOP_IN_HEADER trihop_status_t trihop_conveyor_pull_inline(trihop_conveyor_t *conveyor,
                                                             const void **item, uint32_t *source) {
  void *begin = conveyor;
  trihop_pull_window_t *window;
  const unsigned char *next;

  if (begin == NULL || item == NULL) {
    (void)trihop_conveyor_pull(conveyor, NULL, NULL); // for its text
    return TRIHOP_ERR_INVALID_ARGUMENT;
  }
  window = &TRIHOP_AS(trihop_conveyor_windows_t *, begin)->pull;
  next = window->next;
  if (next == window->end) {
    // The call gets places of its own: those of the caller, which it may so keep in registers, are
    // written by this code alone.
    const void *called_item = NULL;
    uint32_t called_source = 0;
    trihop_status_t status = trihop_conveyor_pull(conveyor, &called_item, &called_source);

    if (status != TRIHOP_OK)
      return status;
    next = TRIHOP_AS(const unsigned char *, called_item);
  }
  // Behind a call it is there already. Written on both ways, a compiler knows it in a loop of pulls,
  // and does not load it back, which takes as long as an item does.
  window->next = next + window->item_bytes;
  *item = next;
  if (source != NULL)
    *source = window->source;
  return TRIHOP_OK;
}

// With any arguments, so that those may have commas in braces.
#define trihop_stream_send(...) trihop_stream_send_inline(__VA_ARGS__)
#define trihop_stream_try_send(...) trihop_stream_try_send_inline(__VA_ARGS__)
#define trihop_stream_push(...) trihop_stream_push_inline(__VA_ARGS__)
#define trihop_stream_try_push(...) trihop_stream_try_push_inline(__VA_ARGS__)
#define trihop_conveyor_push(...) trihop_conveyor_push_inline(__VA_ARGS__)
#define trihop_conveyor_pull(...) trihop_conveyor_pull_inline(__VA_ARGS__)

#endif

#endif  /* TRIHOP_H */

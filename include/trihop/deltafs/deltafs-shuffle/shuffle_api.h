/*
 * shuffle_api.h: the DeltaFS shuffle's interface, over trihop.
 *
 *   SRC  --shared memory-->  SRCREP  --fabric-->  DSTREP  --shared memory-->  DST
 *
 * A client of the original compiles unchanged with -I<prefix>/include/trihop/deltafs and -ltrihop.
 *
 * What differs from the original
 *   - shuffle_opts_init() gives options that one can run with: batches, several in flight (table below). The original's are 1, 1, ...
 *   - A message of no bytes is a message, whatever its type: it is delivered, in its turn.
 *   - A rank outside the job is HG_INVALID_ARG.
 *   - Options with which nothing could ever move are refused: shuffle_init() returns NULL and says why.
 *   - What was taken is delivered, or the next flush, and every one after it, says that it was not
 *     (HG_HOSTUNREACH: a rank is gone); shuffle_statedump() shows the reason. Nothing is dropped without that, but
 *     what comes for a rank that has shut a shuffle down before the others, and what waits for ranks that never open
 *     it: the log says so.
 *   - No call ends the process and no call gives up after a time of its own: a call that waits for others returns
 *     when they have moved, or with an error when one of them is gone. shuffle_init() and shuffle_shutdown() need not
 *     wait for others, and go on without those that do not come soon.
 *   - Per source, destination and shuffle, messages are delivered in the order in which they were enqueued, always.
 *   - All counters have 64 bits. Messages of a rank to itself travel in a queue too, and count as local batches.
 *   - What a call cannot return, such as why it returned NULL, is in the log, on stderr where shuffle_cfglog() was not called.
 *   - Partial batches do not wait for ever: the progress thread sends them on when they are 100 microseconds old.
 *   - shuffle_init() and shuffle_shutdown() are calls of one rank, in any order: shuffles meet by name. What is enqueued
 *     before all ranks have opened a shuffle is kept until then, up to 16 MiB; then its senders wait. Flushes wait.
 *   - As in the original, a callback may be called before its shuffle_init() has returned. One that uses the handle
 *     needs a barrier behind shuffle_init(), before which no rank enqueues.
 *   - shuffle_shutdown() first delivers everything that any rank enqueued, where all ranks call it within two seconds.
 *   - A message is at most TRIHOP_MAX_MESSAGE_BYTES long (64 MiB); a longer one is HG_MSGSIZE.
 *   - SHUFFLE_RTYPE_BCAST is unsigned here. A type with that bit in an enqueue is HG_INVALID_ARG.
 *   - shuffle_statedump() may be called by a signal handler: it asks for a dump, never waits, and a
 *     thread writes it.
 *
 * Threads. Every call may be made by any thread. Callbacks run on a thread of the shuffle's own (the last ones, within
 * shuffle_shutdown(), on another one), one at a time, may block (the senders then wait, hop by hop), and may enqueue, into
 * their own shuffle too, and ask for statistics and dumps; the other calls return HG_OPNOTSUPPORTED there. What a
 * callback enqueues never waits for room: up to TRIHOP_SPILL_BYTES are kept, and beyond that the job ends with HG_NOMEM,
 * since no bounded memory helps a program whose messages multiply without end.
 *
 * Flushes. Each waits for what was in those queues of this rank when it was called, and for nobody else's. All that was
 * enqueued anywhere is delivered after: flush_originqs, barrier, flush_remoteqs, barrier, flush_relayqs, barrier,
 * flush_delivery. The barriers may be MPI's: messages move on while a rank waits in MPI or computes.
 */
#ifndef TRIHOP_DELTAFS_SHUFFLE_API_H
#define TRIHOP_DELTAFS_SHUFFLE_API_H

#include <stddef.h>
#include <stdint.h>

#include <deltafs-nexus/deltafs-nexus_api.h>
#include <mercury_types.h>

/*
 * Options. Impossible ones are refused, see the last column; larger ones than trihop has count as the largest.
 *
 *   field               default   trihop's name              meaning                                          refused
 *   localsenderlimit    0         origin_sender_limit        batches that shuffle_enqueue may have under way  below 0
 *                                                            to ranks of this node, 0: no limit
 *   remotesenderlimit   0         remote_sender_limit        the same towards other nodes                     below 0
 *   lomaxrpc            16        origin_maxrpc              batches of the first hop under way to a rank     below 1
 *   lobuftarget         4096      origin_buftarget_bytes     bytes of such a batch; up to 1: it waits for     -
 *                                                            no others
 *   lrmaxrpc            16        relay_maxrpc               batches of the third hop under way to a rank     below 1
 *   lrbuftarget         4096      relay_buftarget_bytes      bytes of such a batch; up to 1: as above         -
 *   rmaxrpc             4         remote_maxrpc              batches under way to a node                      below 1
 *   rbuftarget          65536     remote_buftarget_bytes     bytes of such a batch; up to 1: as above         -
 *   deliverq_max        65536     deliverq_max               messages that wait for the callback before       0
 *                                                            senders wait; below 0: arriving messages are
 *                                                            discarded and counted, for measuring
 *   deliverq_threshold  0         deliverq_threshold         messages that wait before the callback's         below 0,
 *                                                            thread is woken; fewer wait a millisecond, or    deliverq_max
 *                                                            until a flush of the deliveries                  or above
 *
 * With lobuftarget and rbuftarget up to 1 each round sends another node what there is, up to 64 KiB.
 * However small these are, 256 KiB may be under way to a rank of this node, and 64 messages wait for the callback.
 * Where lobuftarget is 1 or less, messages wait for nothing (linger_us is 0), and the shuffle is served before those that batch
 * (its priority is one higher). Everything else is as TRIHOP_* variables say.
 */
struct shuffle_opts {
    int localsenderlimit;
    int remotesenderlimit;
    int lomaxrpc;
    int lobuftarget;
    int lrmaxrpc;
    int lrbuftarget;
    int rmaxrpc;
    int rbuftarget;
    int deliverq_max;
    int deliverq_threshold;
};

typedef struct shuffle *shuffle_t;

/* Bits of a message's type: whether it was broadcast, and those of the user. */
#define SHUFFLE_RTYPE_BCAST 0x80000000u
#define SHUFFLE_RTYPE_USRBITS 0x7fffffff

/* Flag of a broadcast: to this rank as well. */
#define SHUFFLE_BCAST_SELF 1

/* Queues to flush: to other nodes; of the first hop; of the third. */
#define SHUFFLE_REMOTE_QUEUES 0
#define SHUFFLE_ORIGIN_QUEUES 1
#define SHUFFLE_RELAY_QUEUES 2

#ifdef __cplusplus
extern "C" {
#endif

/* Takes a message. d belongs to the callback until it returns, may be written to, and is aligned for any type. */
typedef void (*shuffle_deliverfn_t)(int src, int dst, uint32_t type, void *d, uint32_t datalen);

/* Sets the defaults of the table. NULL does nothing. */
void shuffle_opts_init(struct shuffle_opts *sopt);

/*
 * Opens the shuffle of this name, with the same options on all ranks. Shuffles have queues, credits and a callback thread of
 * their own each, so that one never waits for another's. Returns when all ranks have opened it, or after half a second.
 *
 * sopt NULL: the defaults. NULL is returned for impossible options and a name that is open, and for ranks that
 * disagree, a rank that is gone and a want of memory where that shows in time; later, each call returns it. In a
 * delivery callback it is refused.
 */
shuffle_t shuffle_init(nexus_ctx_t nxp, char *funname, shuffle_deliverfn_t delivercb, struct shuffle_opts *sopt);

/*
 * Copies a message into the queue of its next hop; waits while that is full. d may be NULL if datalen is 0.
 *
 * HG_INVALID_ARG: no such rank, a type with SHUFFLE_RTYPE_BCAST, or no data; HG_MSGSIZE: too long; HG_HOSTUNREACH: a rank is gone.
 */
hg_return_t shuffle_enqueue(shuffle_t sh, int dst, uint32_t type, void *d, uint32_t datalen);

/*
 * The same to all other ranks (and to this one with SHUFFLE_BCAST_SELF). Callbacks see the type with SHUFFLE_RTYPE_BCAST.
 * It goes along the tree of the three hops, one copy to each node; one that is longer than a frame (16 KiB with few ranks)
 * goes to one rank after the other. A failure may leave it with some of the ranks.
 */
hg_return_t shuffle_enqueue_broadcast(shuffle_t sh, uint32_t type, void *d, uint32_t datalen, int flags);

/* Waits until the callback has returned for everything that had arrived at this rank. */
hg_return_t shuffle_flush_delivery(shuffle_t sh);

/* Waits until the next hops have taken what is in these queues of this rank. Several threads may flush at once. */
hg_return_t shuffle_flush_qs(shuffle_t sh, int whichqs);

#define shuffle_flush_originqs(S) shuffle_flush_qs((S), SHUFFLE_ORIGIN_QUEUES)
#define shuffle_flush_relayqs(S) shuffle_flush_qs((S), SHUFFLE_RELAY_QUEUES)
#define shuffle_flush_remoteqs(S) shuffle_flush_qs((S), SHUFFLE_REMOTE_QUEUES)

/*
 * Delivers what is under way and closes the shuffle. A rank whose shutdown the others do not join within two seconds goes
 * on: what still comes for it is counted and dropped, and it relays until all have shut the shuffle down. The callback is
 * not called after it. The handle is gone whatever is returned, except for HG_OPNOTSUPPORTED in a callback.
 */
hg_return_t shuffle_shutdown(shuffle_t sh);

/*
 * Says what is logged, for all shuffles of the process; call it before shuffle_init(), before or
 * after nexus_bootstrap(). Where the file cannot be opened, now or when nexus_bootstrap() learns
 * the rank, that is said on stderr, nothing is logged, and the job goes on.
 *
 * Priorities are those of the original's header, EMERG, ALERT, CRIT, ERR, WARN, NOTE, INFO and DBG0
 * to DBG3 (DBG is DBG0), and of its code: EMRG, ALRT, D0 to D3, several streams at once such as
 * D13, and DEBUG or DBUG for all of them. Masks are lists like "WARN,SHUF=DBG0" of facilities CLNT,
 * DLIV (or DLVR), SHUF and UTIL; what a mask names beyond that is passed over, and the log says so.
 * NULL and "" mean the default.
 *   max_xtra_rank   ranks up to this one log as xmask says, the others as mask does
 *   defpri          what is logged of facilities that the mask does not name
 *   stderrpri       what of that goes to stderr too; everything with stderrlog (xtra_stderrlog on the former ranks)
 *   logfile         each rank appends its number; alllogs 0: the former ranks only
 *   msgbufsz        bytes of the log that stay in memory, for core files and for dumps to stderr, which end with them
 * 0, or -1: a defpri or stderrpri that is no priority, msgbufsz below 0, or a process that logs
 * already.
 */
int shuffle_cfglog(int max_xtra_rank, const char *defpri, const char *stderrpri, const char *mask, const char *xmask,
                   const char *logfile, int alllogs, int msgbufsz, int stderrlog, int xtra_stderrlog);

/*
 * Batches that this rank sent so far: first hop, third hop, to other nodes. Inside a node the messages that travel under
 * one header count as a batch. Each pointer may be NULL.
 *
 * What each queue did (own and forwarded, flushes, waits, limits) and what each thread used is in shuffle_statedump(),
 * and shuffle_shutdown() logs it with priority NOTE.
 */
hg_return_t shuffle_send_stats(shuffle_t sh, uint64_t *local_origin, uint64_t *local_relay, uint64_t *remote);

/* Batches that it received so far: from ranks of this node, from other nodes. Each pointer may be NULL. */
hg_return_t shuffle_recv_stats(shuffle_t sh, uint64_t *local, uint64_t *remote);

/*
 * Asks for the state of all queues to be written to the log, whatever its priorities (to the file,
 * without one to the memory of msgbufsz), and where tostderr is not 0 to stderr, with the last
 * lines of the log.
 *
 * A signal handler may call this, whatever it has interrupted: the call never waits and takes no
 * lock; a thread of nexus's writes, soon, what is the case then. Dumps are written in the order in
 * which they were asked for; one may answer several equal calls that came before it. What was asked
 * for is written before shuffle_shutdown() and nexus_destroy() return, and before a process ends by
 * exit(), also one that a handler calls, unless writing takes longer than two seconds; a process
 * that ends otherwise may lose it. Where the engine does not come free within a tenth of a second,
 * the dump says so.
 */
void shuffle_statedump(shuffle_t sh, int tostderr);

#ifdef __cplusplus
}
#endif

#endif /* TRIHOP_DELTAFS_SHUFFLE_API_H */

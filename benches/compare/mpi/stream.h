/* The streaming engines: an isend per buffer, and as many items in a buffer as the caller likes.
 *
 * With one item per buffer this is "isend per item", with 32 KiB per buffer it is aggregation as one writes it by hand:
 * four buffers per target, no flow control but theirs, termination by counts (each sender says at the end how many items
 * it has sent; trusting the order of messages loses items where eager and rendezvous mix). */
#ifndef STREAM_H
#define STREAM_H

#include "work.h"

/* How a channel works: items per buffer, buffers per target, receives posted, buffers sent between two looks at receives. */
struct shape {
    int items, depth, receives, patience;
    int self_directly; /* a buffer for oneself is taken instead of sent */
};

struct lane {
    int current, filled; /* buffer being filled, and items in it */
    char *bytes;         /* `depth` buffers */
    MPI_Request *sending;
    long long sent; /* items */
};

struct channel {
    int tag;
    size_t item, buffer; /* bytes */
    struct shape shape;
    struct lane *to;
    char *in;
    MPI_Request *receiving;
    int *which;
    MPI_Status *status;
    int unlooked; /* buffers sent since the last look at receives */
    long long received;
    long long *said; /* items that each rank has sent to us, once it said so */
    MPI_Request *saying, *telling;
};

static void post_receive(struct channel *c, int which)
{
    MPI_Irecv(c->in + (size_t)which * c->buffer, (int)c->buffer, MPI_BYTE, MPI_ANY_SOURCE, c->tag, MPI_COMM_WORLD,
              &c->receiving[which]);
}

static void open_channel(struct channel *c, int tag, size_t item, struct shape shape)
{
    memset(c, 0, sizeof *c);
    c->tag = tag;
    c->item = item;
    c->buffer = item * (size_t)shape.items;
    c->shape = shape;
    c->to = allocate((size_t)ranks * sizeof *c->to);
    for (int target = 0; target < ranks; target++) {
        c->to[target].bytes = allocate((size_t)shape.depth * c->buffer);
        c->to[target].sending = allocate((size_t)shape.depth * sizeof(MPI_Request));
        for (int buffer = 0; buffer < shape.depth; buffer++)
            c->to[target].sending[buffer] = MPI_REQUEST_NULL;
    }
    c->in = allocate((size_t)shape.receives * c->buffer);
    c->receiving = allocate((size_t)shape.receives * sizeof *c->receiving);
    c->which = allocate((size_t)shape.receives * sizeof *c->which);
    c->status = allocate((size_t)shape.receives * sizeof *c->status);
    c->said = allocate((size_t)ranks * sizeof *c->said);
    c->saying = allocate((size_t)ranks * sizeof *c->saying);
    c->telling = allocate((size_t)ranks * sizeof *c->telling);
    for (int i = 0; i < shape.receives; i++)
        post_receive(c, i);
}

static void close_channel(struct channel *c)
{
    for (int i = 0; i < c->shape.receives; i++) {
        MPI_Cancel(&c->receiving[i]);
        MPI_Wait(&c->receiving[i], MPI_STATUS_IGNORE);
    }
    for (int target = 0; target < ranks; target++) {
        free(c->to[target].bytes);
        free(c->to[target].sending);
    }
    free(c->to);
    free(c->in);
    free(c->receiving);
    free(c->which);
    free(c->status);
    free(c->said);
    free(c->saying);
    free(c->telling);
}

static void begin_round(struct channel *c)
{
    c->received = 0;
    for (int other = 0; other < ranks; other++) {
        c->to[other].sent = 0;
        MPI_Irecv(&c->said[other], 1, MPI_LONG_LONG, other, c->tag + 1, MPI_COMM_WORLD, &c->saying[other]);
    }
}

/* Takes what has arrived; whether anything had. */
ALWAYS int drain(struct channel *c, struct work *w, size_t item, void (*take)(struct work *, const void *, int))
{
    int arrived;
    c->unlooked = 0;
    MPI_Testsome(c->shape.receives, c->receiving, &arrived, c->which, c->status);
    for (int k = 0; k < arrived; k++) {
        int bytes, source = c->status[k].MPI_SOURCE;
        const char *buffer = c->in + (size_t)c->which[k] * c->buffer;
        MPI_Get_count(&c->status[k], MPI_BYTE, &bytes);
        for (size_t at = 0; at < (size_t)bytes; at += item)
            take(w, buffer + at, source);
        c->received += bytes / (int)item;
        post_receive(c, c->which[k]);
    }
    return arrived > 0;
}

/* Where the next item for `target` is written. */
ALWAYS void *place(struct channel *c, int target, size_t item)
{
    struct lane *lane = &c->to[target];
    return lane->bytes + (size_t)lane->current * c->buffer + (size_t)lane->filled * item;
}

/* Sends the open buffer; the next one may still be on its way. */
static void post_send(struct channel *c, int target)
{
    struct lane *lane = &c->to[target];
    MPI_Isend(lane->bytes + (size_t)lane->current * c->buffer, lane->filled * (int)c->item, MPI_BYTE, target, c->tag,
              MPI_COMM_WORLD, &lane->sending[lane->current]);
    lane->sent += lane->filled;
    lane->filled = 0;
    lane->current = (lane->current + 1) % c->shape.depth;
    c->unlooked++;
}

static int is_free(struct channel *c, int target)
{
    int sent;
    struct lane *lane = &c->to[target];
    MPI_Test(&lane->sending[lane->current], &sent, MPI_STATUS_IGNORE);
    return sent;
}

/* Answers a request; the reply's own way is never blocked by requests. */
ALWAYS void reply(struct work *w, const void *request, int source)
{
    struct channel *c = w->replies;
    ig_answer(w, request, place(c, source, sizeof(struct slot_and_word)));
    if (++c->to[source].filled < c->shape.items)
        return;
    post_send(c, source);
    while (!is_free(c, source))
        if (!drain(c, w, sizeof(struct slot_and_word), ig_take))
            idle();
}

/* One look at everything that may have arrived. */
ALWAYS int progress(struct channel *c, struct work *w, const struct ops *ops, size_t item)
{
    if (!ops->answer)
        return drain(c, w, item, ops->take);
    int requests = drain(c, w, item, reply);
    return drain(w->replies, w, item, ops->take) | requests;
}

static void send_rest(struct channel *c)
{
    for (int target = 0; target < ranks; target++)
        if (c->to[target].filled > 0)
            post_send(c, target);
}

static void await_sent(struct channel *c)
{
    for (int target = 0; target < ranks; target++)
        MPI_Waitall(c->shape.depth, c->to[target].sending, MPI_STATUSES_IGNORE);
}

/* Takes what is in the open buffer for oneself. By buffer, not by item: a branch on the target is mispredicted too often. */
ALWAYS void take_own(struct channel *c, struct work *w, const struct ops *ops, size_t item)
{
    struct lane *lane = &c->to[rank];
    char *own = lane->bytes + (size_t)lane->current * c->buffer;
    for (char *at = own; at < own + (size_t)lane->filled * item; at += item) {
        if (ops->answer)
            ops->answer(w, at, at);
        ops->take(w, at, rank);
    }
    lane->filled = 0;
}

/* Sends all items of this rank and takes all that are for it. */
ALWAYS void stream(struct work *w, const struct ops *ops, size_t item, struct channel *c)
{
    begin_round(c);
    if (ops->answer)
        begin_round(w->replies);
    for (long number = 0; number < w->count; number++) {
        int target = ops->target(w, number);
        ops->fill(w, number, place(c, target, item));
        if (++c->to[target].filled < c->shape.items)
            continue;
        if (c->shape.self_directly && target == rank) {
            take_own(c, w, ops, item);
            continue;
        }
        post_send(c, target);
        if (c->unlooked >= c->shape.patience)
            progress(c, w, ops, item);
        while (!is_free(c, target))
            if (!progress(c, w, ops, item))
                idle();
    }
    if (c->shape.self_directly)
        take_own(c, w, ops, item);
    send_rest(c);
    for (int target = 0; target < ranks; target++)
        MPI_Isend(&c->to[target].sent, 1, MPI_LONG_LONG, target, c->tag + 1, MPI_COMM_WORLD, &c->telling[target]);
    for (int said = 0;;) {
        int moved = progress(c, w, ops, item);
        long long expected = 0;
        if (!said)
            MPI_Testall(ranks, c->saying, &said, MPI_STATUSES_IGNORE);
        for (int other = 0; said && other < ranks; other++)
            expected += c->said[other];
        if (said && c->received == expected)
            break;
        if (!moved)
            idle();
    }
    if (ops->answer) {
        /* All requests to us are answered; ours are when as many replies came as we sent requests. */
        struct channel *replies = w->replies;
        long long expected = 0;
        send_rest(replies);
        for (int target = 0; target < ranks; target++) {
            MPI_Isend(&replies->to[target].sent, 1, MPI_LONG_LONG, target, replies->tag + 1, MPI_COMM_WORLD,
                      &replies->telling[target]);
            expected += c->to[target].sent;
        }
        while (replies->received < expected)
            if (!drain(replies, w, item, ops->take))
                idle();
        MPI_Waitall(ranks, replies->saying, MPI_STATUSES_IGNORE);
        MPI_Waitall(ranks, replies->telling, MPI_STATUSES_IGNORE);
        await_sent(replies);
    }
    MPI_Waitall(ranks, c->telling, MPI_STATUSES_IGNORE);
    await_sent(c);
}

#endif

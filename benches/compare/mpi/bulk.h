/* The bulk engine: count, sort into one buffer, one MPI_Alltoallv. It holds everything at once. */
#ifndef BULK_H
#define BULK_H

#include "work.h"

/* Items per rank and where they begin, one way. */
struct plan {
    int *items, *begin, total;
};

static struct plan new_plan(void)
{
    struct plan plan = {allocate((size_t)ranks * sizeof(int)), allocate((size_t)ranks * sizeof(int)), 0};
    return plan;
}

static void lay_out(struct plan *plan)
{
    plan->total = 0;
    for (int other = 0; other < ranks; other++) {
        plan->begin[other] = plan->total;
        plan->total += plan->items[other];
    }
}

static void free_plan(struct plan *plan)
{
    free(plan->items);
    free(plan->begin);
}

/* What an exchange needs: made before the clock starts, touched by the warm-up. */
struct staging {
    struct plan out, in;
    int *at;
    char *outgoing, *incoming;
    MPI_Datatype type;
};

static void open_staging(struct staging *s, const struct work *w)
{
    s->out = new_plan();
    s->in = new_plan();
    s->at = allocate((size_t)ranks * sizeof *s->at);
    s->outgoing = allocate((size_t)w->count * w->item);
    s->incoming = allocate((size_t)w->expected_messages * w->item);
    MPI_Type_contiguous((int)w->item, MPI_BYTE, &s->type);
    MPI_Type_commit(&s->type);
}

static void close_staging(struct staging *s)
{
    free_plan(&s->out);
    free_plan(&s->in);
    free(s->at);
    free(s->outgoing);
    free(s->incoming);
    MPI_Type_free(&s->type);
}

ALWAYS void bulk(struct work *w, const struct ops *ops, size_t item, struct staging *s)
{
    struct plan *out = &s->out, *in = &s->in;
    memset(out->items, 0, (size_t)ranks * sizeof *out->items);
    for (long number = 0; number < w->count; number++)
        out->items[ops->target(w, number)]++;
    MPI_Alltoall(out->items, 1, MPI_INT, in->items, 1, MPI_INT, MPI_COMM_WORLD);
    lay_out(out);
    lay_out(in);
    if ((uint64_t)in->total != w->expected_messages)
        fail("number of items to come", in->total, (long long)w->expected_messages);
    memcpy(s->at, out->begin, (size_t)ranks * sizeof *s->at);
    for (long number = 0; number < w->count; number++)
        ops->fill(w, number, s->outgoing + (size_t)s->at[ops->target(w, number)]++ * item);
    MPI_Alltoallv(s->outgoing, out->items, out->begin, s->type, s->incoming, in->items, in->begin, s->type, MPI_COMM_WORLD);
    if (ops->answer) {
        /* Replies go back the way that the requests came. */
        for (int i = 0; i < in->total; i++)
            ops->answer(w, s->incoming + (size_t)i * item, s->incoming + (size_t)i * item);
        MPI_Alltoallv(s->incoming, in->items, in->begin, s->type, s->outgoing, out->items, out->begin, s->type,
                      MPI_COMM_WORLD);
        for (int i = 0; i < out->total; i++)
            ops->take(w, s->outgoing + (size_t)i * item, 0);
    } else {
        for (int i = 0; i < in->total; i++)
            ops->take(w, s->incoming + (size_t)i * item, 0);
    }
}

#endif

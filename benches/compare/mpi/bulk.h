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

ALWAYS void bulk(struct work *w, const struct ops *ops, size_t item)
{
    struct plan out = new_plan(), in = new_plan();
    int *at = allocate((size_t)ranks * sizeof *at);
    MPI_Datatype type;
    MPI_Type_contiguous((int)item, MPI_BYTE, &type);
    MPI_Type_commit(&type);
    for (long number = 0; number < w->count; number++)
        out.items[ops->target(w, number)]++;
    MPI_Alltoall(out.items, 1, MPI_INT, in.items, 1, MPI_INT, MPI_COMM_WORLD);
    lay_out(&out);
    lay_out(&in);
    /* Inside the clock: a call that is made once has to. malloc, so that no page is touched for nothing. */
    char *outgoing = malloc((size_t)out.total * item + 1), *incoming = malloc((size_t)in.total * item + 1);
    if (!outgoing || !incoming)
        fail("staging memory", 0, (long long)((size_t)(out.total + in.total) * item));
    memcpy(at, out.begin, (size_t)ranks * sizeof *at);
    for (long number = 0; number < w->count; number++)
        ops->fill(w, number, outgoing + (size_t)at[ops->target(w, number)]++ * item);
    MPI_Alltoallv(outgoing, out.items, out.begin, type, incoming, in.items, in.begin, type, MPI_COMM_WORLD);
    if (ops->answer) {
        /* Replies go back the way that the requests came. */
        for (int i = 0; i < in.total; i++)
            ops->answer(w, incoming + (size_t)i * item, incoming + (size_t)i * item);
        MPI_Alltoallv(incoming, in.items, in.begin, type, outgoing, out.items, out.begin, type, MPI_COMM_WORLD);
        for (int i = 0; i < out.total; i++)
            ops->take(w, outgoing + (size_t)i * item, 0);
    } else {
        for (int i = 0; i < in.total; i++)
            ops->take(w, incoming + (size_t)i * item, 0);
    }
    free(outgoing);
    free(incoming);
    free(at);
    free_plan(&out);
    free_plan(&in);
    MPI_Type_free(&type);
}

#endif

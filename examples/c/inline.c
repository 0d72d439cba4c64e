/*
 * A job without threads of the library's own: progress is made inside of calls, and handlers run
 * there. Every rank counts in a table of its own what the others send to it. Some of it asks for an
 * answer, which a handler sends and main takes.
 *
 *   cc inline.c $(pkg-config --cflags --libs trihop) -o inline
 *   trihop run -n 4 --nodes 2 -- ./inline [UPDATES]
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <trihop.h>

#define SLOTS 4096u /* of the table on each rank */
#define ASKS 64u    /* one update in so many asks for an answer */

static trihop_job_t *job;

static void check(trihop_status_t status, const char *what)
{
    if (status == TRIHOP_OK)
        return;
    fprintf(stderr, "%s: %s (%s)\n", what, trihop_strerror(status), trihop_last_error());
    if (job != NULL)
        trihop_abort(job, EXIT_FAILURE, what);
    exit(EXIT_FAILURE);
}

struct update {
    uint32_t slot;
    uint32_t asks; /* whether its sender wants to hear of it */
};

/* The handler and main are one thread: what one writes, the other reads. */
struct state {
    trihop_stream_t *answers;
    uint64_t table[SLOTS];
    uint64_t answered;
};

static void on_updates(void *context, const trihop_message_t *message)
{
    struct state *state = context;
    const struct update *updates = message->bytes;

    for (size_t i = 0; i < message->count; i++) {
        state->table[updates[i].slot]++;
        if (updates[i].asks)
            check(trihop_stream_push(state->answers, message->source, &updates[i].slot), "an answer");
    }
}

static void on_answers(void *context, const trihop_message_t *message)
{
    struct state *state = context;

    state->answered += message->count;
}

int main(int argc, char **argv)
{
    uint64_t updates = argc > 1 ? strtoull(argv[1], NULL, 0) : 1000000, random, asked = 0;
    struct state *state = calloc(1, sizeof *state);
    trihop_stream_t *stream = NULL;
    uint64_t sums[3] = {0};
    trihop_status_t status;
    uint32_t rank, size;
    int right;

    if (state == NULL)
        return EXIT_FAILURE;
    check(trihop_init(TRIHOP_INLINE, NULL, &job), "trihop_init");
    rank = trihop_rank(job);
    size = trihop_size(job);
    /* Without a handler: answers wait until main takes them. */
    check(trihop_stream_open(job, "answers", sizeof(uint32_t), NULL, NULL, NULL, &state->answers),
          "trihop_stream_open");
    check(trihop_stream_open(job, "updates", sizeof(struct update), NULL, on_updates, state,
                            &stream),
          "trihop_stream_open");
    random = (rank + 1) * UINT64_C(0x9e3779b97f4a7c15);
    for (uint64_t i = 0; i < updates; i++) {
        struct update update;

        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        update.slot = (uint32_t)(random >> 32) % SLOTS;
        update.asks = i % ASKS == 0;
        asked += update.asks;
        check(trihop_stream_push(stream, (uint32_t)((random & UINT32_MAX) % size), &update),
              "trihop_stream_push");
        if (i % 1024 == 0)
            check(trihop_stream_take(state->answers, on_answers, state, NULL),
                  "trihop_stream_take");
    }
    check(trihop_stream_fence(stream), "trihop_stream_fence");
    /* The fence of the answers gives way where taking them is all that makes room. */
    do {
        status = trihop_stream_fence(state->answers);
        check(trihop_stream_take(state->answers, on_answers, state, NULL), "trihop_stream_take");
    } while (status == TRIHOP_ERR_WOULD_BLOCK);
    check(status, "trihop_stream_fence");
    for (size_t slot = 0; slot < SLOTS; slot++)
        sums[0] += state->table[slot];
    sums[1] = state->answered;
    sums[2] = state->answered != asked;
    check(trihop_allreduce(job, TRIHOP_SUM, sums, 3), "trihop_allreduce");
    if (rank == 0)
        printf("%" PRIu32 " ranks: %" PRIu64 " updates, %" PRIu64 " answers, %" PRIu64 " wrong\n",
               size, sums[0], sums[1], sums[2]);
    check(trihop_stream_close(stream), "trihop_stream_close");
    check(trihop_stream_close(state->answers), "trihop_stream_close");
    check(trihop_finalize(job), "trihop_finalize");
    right = sums[2] == 0 && sums[0] == updates * size;
    free(state);
    return right ? EXIT_SUCCESS : EXIT_FAILURE;
}

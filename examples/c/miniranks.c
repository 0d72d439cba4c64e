/*
 * Ranks that are threads: this process hosts several ranks of the job, each on a thread of its own
 * with a job of its own, and one more thread, the library's, speaks with other nodes for them. Each
 * rank counts in a table of its own what all ranks send to it, as in inline.c.
 *
 *   cc miniranks.c $(pkg-config --cflags --libs trihop) -pthread -o miniranks
 *   trihop run -n 2 --nodes 2 --minis-per-rank 3 -- ./miniranks [UPDATES]
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <trihop.h>

#define SLOTS 4096u /* of the table of each rank */

static void check(trihop_status_t status, const char *what)
{
    if (status == TRIHOP_OK)
        return;
    fprintf(stderr, "%s: %s (%s)\n", what, trihop_strerror(status), trihop_last_error());
    exit(EXIT_FAILURE);
}

/* What one thread has; no other one looks at it. */
struct rank {
    trihop_miniranks_t *miniranks;
    uint64_t updates;
    uint32_t index;
    int right;
    pthread_t thread;
    uint64_t table[SLOTS];
};

static void on_slots(void *context, const trihop_message_t *message)
{
    struct rank *rank = context;
    const uint32_t *slots = message->bytes;

    for (size_t i = 0; i < message->count; i++)
        rank->table[slots[i]]++;
}

static void *work(void *context)
{
    struct rank *rank = context;
    trihop_job_t *job;
    trihop_stream_t *stream;
    uint64_t random, sum = 0;
    uint32_t me, size;

    check(trihop_minirank_start(rank->miniranks, rank->index, &job), "trihop_minirank_start");
    me = trihop_rank(job);
    size = trihop_size(job);
    check(trihop_stream_open(job, "slots", sizeof(uint32_t), NULL, on_slots, rank, &stream),
          "trihop_stream_open");
    random = (me + 1) * UINT64_C(0x9e3779b97f4a7c15);
    for (uint64_t i = 0; i < rank->updates; i++) {
        uint32_t slot;

        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        slot = (uint32_t)(random >> 32) % SLOTS;
        check(trihop_stream_push(stream, (uint32_t)((random & UINT32_MAX) % size), &slot),
              "trihop_stream_push");
    }
    check(trihop_stream_round(stream), "trihop_stream_round");
    for (size_t slot = 0; slot < SLOTS; slot++)
        sum += rank->table[slot];
    check(trihop_allreduce(job, TRIHOP_SUM, &sum, 1), "trihop_allreduce");
    rank->right = sum == rank->updates * size;
    /* The threads of this process alone; what they have in common could be read behind it. */
    check(trihop_minirank_barrier(job), "trihop_minirank_barrier");
    if (me == 0)
        printf("%" PRIu32 " ranks: %" PRIu64 " updates\n", size, sum);
    check(trihop_stream_close(stream), "trihop_stream_close");
    check(trihop_finalize(job), "trihop_finalize");
    return NULL;
}

int main(int argc, char **argv)
{
    uint64_t updates = argc > 1 ? strtoull(argv[1], NULL, 0) : 1000000;
    trihop_miniranks_t *miniranks;
    struct rank *ranks;
    uint32_t count;
    int right = 1;

    /* 0: as many as `trihop run --minis-per-rank` says. */
    check(trihop_minirank_init(0, NULL, &miniranks), "trihop_minirank_init");
    count = trihop_minirank_count(miniranks);
    ranks = calloc(count, sizeof *ranks);
    if (ranks == NULL)
        return EXIT_FAILURE;
    for (uint32_t index = 0; index < count; index++) {
        ranks[index].miniranks = miniranks;
        ranks[index].updates = updates;
        ranks[index].index = index;
        if (pthread_create(&ranks[index].thread, NULL, work, &ranks[index]) != 0)
            return EXIT_FAILURE;
    }
    for (uint32_t index = 0; index < count; index++) {
        pthread_join(ranks[index].thread, NULL);
        right &= ranks[index].right;
    }
    check(trihop_minirank_finalize(miniranks), "trihop_minirank_finalize");
    free(ranks);
    return right ? EXIT_SUCCESS : EXIT_FAILURE;
}

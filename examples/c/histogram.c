/*
 * A histogram whose table is spread over all ranks: each update is an 8-byte item for the rank that
 * owns its place, and the tables are compared with what every rank ought to have been sent.
 *
 *   cc histogram.c $(pkg-config --cflags --libs trihop) -o histogram
 *   trihop run -n 4 --nodes 2 -- ./histogram [UPDATES]
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <trihop.h>

#define PLACES 10000 /* of each rank's table */

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

struct table {
    uint64_t counts[PLACES];
    uint64_t outside; /* items that are no places */
};

/* The next place that a rank updates, anywhere: the same wherever it is asked. */
static uint64_t next_place(uint64_t *word, uint32_t size)
{
    *word ^= *word << 13;
    *word ^= *word >> 7;
    *word ^= *word << 17;
    return *word % ((uint64_t)PLACES * size);
}

static uint64_t first_word(uint32_t rank)
{
    return UINT64_C(0x9e3779b97f4a7c15) * (rank + UINT64_C(1));
}

/* The items of a run, in place. It runs on the delivery thread, and main looks after the fence. */
static void on_places(void *context, const trihop_message_t *message)
{
    struct table *table = context;
    const uint64_t *places = message->bytes;

    for (size_t i = 0; i < message->count; i++) {
        if (places[i] < PLACES)
            table->counts[places[i]]++;
        else
            table->outside++;
    }
}

/* Places of this rank's table that differ from what all ranks together have sent to it. */
static uint64_t wrong_places(const struct table *table, uint64_t updates)
{
    static uint64_t expected[PLACES];
    uint32_t rank = trihop_rank(job), size = trihop_size(job);
    uint64_t wrong = table->outside;

    for (uint32_t source = 0; source < size; source++) {
        uint64_t word = first_word(source);

        for (uint64_t i = 0; i < updates; i++) {
            uint64_t place = next_place(&word, size);

            if (place / PLACES == rank)
                expected[place % PLACES]++;
        }
    }
    for (size_t place = 0; place < PLACES; place++)
        wrong += table->counts[place] != expected[place];
    return wrong;
}

int main(int argc, char **argv)
{
    uint64_t updates = argc > 1 ? strtoull(argv[1], NULL, 10) : 100000;
    static struct table table;
    trihop_stream_t *stream;
    uint64_t totals[2] = {0, 0}; /* updates, places that are wrong */
    uint64_t word;
    uint32_t size;

    check(trihop_init(TRIHOP_THREADED, NULL, &job), "trihop_init");
    size = trihop_size(job);
    check(trihop_stream_open(job, "histogram", sizeof(uint64_t), NULL, on_places, &table, &stream),
          "trihop_stream_open");

    word = first_word(trihop_rank(job));
    for (uint64_t i = 0; i < updates; i++) {
        uint64_t place = next_place(&word, size);
        uint64_t item = place % PLACES;

        check(trihop_stream_push(stream, (uint32_t)(place / PLACES), &item), "trihop_stream_push");
    }
    check(trihop_stream_fence(stream), "trihop_stream_fence");

    for (size_t place = 0; place < PLACES; place++)
        totals[0] += table.counts[place];
    totals[1] = wrong_places(&table, updates);
    check(trihop_allreduce(job, TRIHOP_SUM, totals, 2), "trihop_allreduce");
    if (trihop_rank(job) == 0)
        printf("%" PRIu32 " ranks: %" PRIu64 " updates, %" PRIu64 " places are wrong\n", size,
               totals[0], totals[1]);

    check(trihop_stream_close(stream), "trihop_stream_close");
    check(trihop_finalize(job), "trihop_finalize");
    return totals[0] == updates * size && totals[1] == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/*
 * Walkers that go from rank to rank, in steps that end when all of them have arrived: each walker
 * is a contributor, counted by all ranks together, and is done wherever its way ends. What is
 * called when a step is over begins the next one.
 *
 *   cc walkers.c $(pkg-config --cflags --libs trihop) -o walkers
 *   trihop run -n 4 --nodes 2 -- ./walkers [WALKERS] [STEPS]
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <trihop.h>

struct walker {
    uint64_t random; /* where it goes next */
    uint64_t hops;   /* that it has before it */
};

static uint64_t walkers, steps;
static uint64_t arrivals, over;

static void check(trihop_status_t status, const char *call)
{
    if (status != TRIHOP_OK) {
        fprintf(stderr, "%s: %s\n", call, trihop_last_error());
        exit(EXIT_FAILURE);
    }
}

static uint64_t scramble(uint64_t number)
{
    number = (number ^ number >> 31) * 0x9e3779b97f4a7c15;
    return number ^ number >> 29;
}

/* Hops of a walker before it is at its end. */
static uint64_t hops_of(uint64_t walker)
{
    return 1 + walker % 7;
}

/* A walker goes on, or its way ends here. */
static void on_walkers(void *context, const trihop_message_t *items)
{
    const struct walker *walker = items->bytes;

    (void)context;
    for (size_t at = 0; at < items->count; at++) {
        struct walker next = {scramble(walker[at].random), walker[at].hops - 1};

        arrivals++;
        if (next.hops == 0)
            check(trihop_stream_done(items->stream, 1), "trihop_stream_done");
        else
            check(trihop_stream_push(items->stream, (uint32_t)(next.random % items->size), &next), "trihop_stream_push");
    }
}

static void begin_step(trihop_job_t *job, const trihop_stream_t *stream);

/* The walkers of this rank set out. */
static void set_out(void *context, const trihop_stream_t *stream)
{
    trihop_job_t *job = context;

    for (uint64_t number = 0; number < walkers; number++) {
        uint64_t name = number * trihop_size(job) + trihop_rank(job);
        struct walker walker = {scramble(name + over * 1000003), hops_of(name)};

        check(trihop_stream_push(stream, (uint32_t)(walker.random % trihop_size(job)), &walker), "trihop_stream_push");
    }
}

static void end_step(void *context, const trihop_stream_t *stream)
{
    if (++over < steps)
        begin_step(context, stream);
}

static void begin_step(trihop_job_t *job, const trihop_stream_t *stream)
{
    trihop_step_options_t options;

    check(trihop_step_options_init(&options, sizeof options), "trihop_step_options_init");
    options.of = TRIHOP_ALL_CONTRIBUTORS;
    options.count = walkers * trihop_size(job);
    options.at_start = set_out;
    options.at_end = end_step;
    options.context = job;
    check(trihop_stream_begin_step_with(stream, &options), "trihop_stream_begin_step_with");
}

int main(int argc, char **argv)
{
    trihop_job_t *job;
    trihop_stream_t *stream;
    uint64_t expected = 0;

    walkers = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000;
    steps = argc > 2 ? strtoull(argv[2], NULL, 10) : 100;
    check(trihop_init(TRIHOP_INLINE, NULL, &job), "trihop_init");
    check(trihop_stream_open(job, "walkers", sizeof(struct walker), NULL, on_walkers, NULL, &stream), "trihop_stream_open");
    begin_step(job, stream);
    while (over < steps)
        check(trihop_stream_wait(stream), "trihop_stream_wait");
    check(trihop_stream_close(stream), "trihop_stream_close");
    check(trihop_allreduce(job, TRIHOP_SUM, &arrivals, 1), "trihop_allreduce");
    for (uint64_t name = 0; name < walkers * trihop_size(job); name++)
        expected += hops_of(name) * steps;
    if (trihop_rank(job) == 0)
        printf("%" PRIu32 " ranks, %" PRIu64 " steps: %" PRIu64 " arrivals, %s\n", trihop_size(job), steps, arrivals,
               arrivals == expected ? "as many as there are" : "NOT as many as there are");
    check(trihop_finalize(job), "trihop_finalize");
    return arrivals == expected ? EXIT_SUCCESS : EXIT_FAILURE;
}

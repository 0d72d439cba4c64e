/*
 * Steps that follow each other by what is called when they are over, and messages of a rank to
 * itself that are handled at once.
 *
 *   chain inline|threaded [STEPS]
 */
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trihop.h>

#include "check.h"

static trihop_job_t *job;
static uint32_t rank, size;
static uint64_t steps, step;
static int is_inline;

static void fail(const char *what, uint64_t got, uint64_t wanted)
{
    fprintf(stderr, "rank %" PRIu32 ", step %" PRIu64 ": %s: %" PRIu64 ", not %" PRIu64 " (%s)\n", rank, step, what, got,
            wanted, trihop_last_error());
    trihop_abort(job, EXIT_FAILURE, what);
    exit(EXIT_FAILURE);
}

/* A chain of steps: the handler and what is called at ends are called by one thread. */
struct chain {
    uint64_t starts, ends;
    uint64_t *heard;
};

static void on_number(void *context, const trihop_message_t *items)
{
    const uint64_t *item = items->bytes;
    struct chain *chain = context;

    for (size_t at = 0; at < items->count; at++)
        chain->heard[item[at]]++;
}

static void begin(struct chain *chain, const trihop_stream_t *stream, uint64_t number);

static void on_start(void *context, const trihop_stream_t *stream)
{
    struct chain *chain = context;
    uint64_t number = chain->starts++;

    /* What is called may change how its stream sends. */
    if (is_inline && number == 0)
        OK(trihop_stream_own_at_once((trihop_stream_t *)stream));
    for (uint32_t target = 0; target < size; target++)
        OK(trihop_stream_push(stream, target, &number));
    OK(trihop_stream_done(stream, 1));
}

static void on_end(void *context, const trihop_stream_t *stream)
{
    struct chain *chain = context;
    uint64_t over = chain->ends;
    int is_over = 0;

    EQUAL(chain->heard[over], size);
    EQUAL(chain->starts, over + 1);
    EQUAL(trihop_stream_wait(stream), TRIHOP_ERR_NESTED);
    EQUAL(trihop_stream_test(stream, &is_over), TRIHOP_ERR_NESTED);
    EQUAL(trihop_stream_fence(stream), TRIHOP_ERR_NESTED);
    EQUAL(trihop_barrier(job), TRIHOP_ERR_NESTED);
    if (over + 1 < steps)
        begin(chain, stream, over + 1);
    __atomic_store_n(&chain->ends, over + 1, __ATOMIC_RELEASE);
}

static void begin(struct chain *chain, const trihop_stream_t *stream, uint64_t number)
{
    trihop_step_options_t options;

    OK(trihop_step_options_init(&options, sizeof options));
    options.of = number % 2 ? TRIHOP_ALL_CONTRIBUTORS : TRIHOP_LOCAL_CONTRIBUTORS;
    options.count = number % 2 ? size : 1;
    options.priority = number % 3 ? (int32_t)(number % 256) : -1;
    options.at_start = on_start;
    options.at_end = on_end;
    options.context = chain;
    OK(trihop_stream_begin_step_with(stream, &options));
}

/* Until all steps have followed each other: with threads nobody need ask. */
static void wait_for_all(const struct chain *chain, const trihop_stream_t *stream)
{
    while ((step = __atomic_load_n(&chain->ends, __ATOMIC_ACQUIRE)) < steps) {
        if (is_inline)
            OK(trihop_stream_wait(stream));
        else
            sched_yield();
    }
}

static void follow_steps(void)
{
    struct chain chain = {0, 0, calloc(steps, sizeof(uint64_t))};
    trihop_step_options_t options;
    trihop_stream_t *stream;

    OK(trihop_stream_open(job, "chain", sizeof(uint64_t), NULL, on_number, &chain, &stream));
    EQUAL(trihop_stream_begin_step_with(stream, NULL), TRIHOP_ERR_INVALID_ARGUMENT);
    OK(trihop_step_options_init(&options, sizeof options));
    options.priority = 256;
    EQUAL(trihop_stream_begin_step_with(stream, &options), TRIHOP_ERR_INVALID_ARGUMENT);
    options.priority = -1;
    options.of = 2;
    EQUAL(trihop_stream_begin_step_with(stream, &options), TRIHOP_ERR_INVALID_ARGUMENT);
    options.size = 0;
    EQUAL(trihop_stream_begin_step_with(stream, &options), TRIHOP_ERR_INVALID_ARGUMENT);
    begin(&chain, stream, 0);
    wait_for_all(&chain, stream);
    OK(trihop_stream_close(stream));
    EQUAL(chain.starts, steps);
    free(chain.heard);
}

/* Rounds and fences that follow each other in the same way. Of a round nothing is heard before its turn. */
static void end_next(struct chain *chain, const trihop_stream_t *stream);

static int32_t end_of(uint64_t number)
{
    return number % 3 == 2 ? TRIHOP_FENCE : TRIHOP_ROUND;
}

static void on_round_number(void *context, const trihop_message_t *items)
{
    const uint64_t *item = items->bytes;
    struct chain *chain = context;

    for (size_t at = 0; at < items->count; at++) {
        if (item[at] > 0 && end_of(item[at] - 1) == TRIHOP_ROUND)
            EQUAL(item[at], chain->ends);
        chain->heard[item[at]]++;
    }
}

static void push_number(void *context, const trihop_stream_t *stream)
{
    struct chain *chain = context;

    for (uint32_t target = 0; target < size; target++)
        OK(trihop_stream_push(stream, target, &chain->starts));
    chain->starts++;
}

static void on_round_end(void *context, const trihop_stream_t *stream)
{
    struct chain *chain = context;
    uint64_t over = chain->ends;

    EQUAL(chain->heard[over], size);
    EQUAL(chain->starts, over + 1);
    EQUAL(trihop_stream_round(stream), TRIHOP_ERR_NESTED);
    __atomic_store_n(&chain->ends, over + 1, __ATOMIC_RELEASE);
    if (over + 1 < steps)
        end_next(chain, stream);
}

static void end_next(struct chain *chain, const trihop_stream_t *stream)
{
    trihop_step_options_t options;

    OK(trihop_step_options_init(&options, sizeof options));
    options.at_start = push_number;
    options.at_end = on_round_end;
    options.context = chain;
    OK(trihop_stream_start_with(stream, end_of(chain->starts), &options));
}

static void follow_rounds(void)
{
    struct chain chain = {0, 0, calloc(steps, sizeof(uint64_t))};
    trihop_step_options_t options;
    trihop_stream_t *stream;

    OK(trihop_stream_open(job, "rounds", sizeof(uint64_t), NULL, on_round_number, &chain, &stream));
    EQUAL(trihop_stream_start_with(stream, TRIHOP_ROUND, NULL), TRIHOP_ERR_INVALID_ARGUMENT);
    OK(trihop_step_options_init(&options, sizeof options));
    EQUAL(trihop_stream_start_with(stream, 2, &options), TRIHOP_ERR_INVALID_ARGUMENT);
    end_next(&chain, stream);
    wait_for_all(&chain, stream);
    OK(trihop_stream_close(stream));
    EQUAL(chain.starts, steps);
    free(chain.heard);
}

/* What a rank sends to itself: how many, and how many were sent on. */
struct own {
    trihop_stream_t *stream;
    uint64_t own, others;
};

static void on_own(void *context, const trihop_message_t *items)
{
    const uint64_t *item = items->bytes;
    struct own *own = context;

    for (size_t at = 0; at < items->count; at++) {
        if (items->source != rank) {
            own->others++;
            continue;
        }
        EQUAL(item[at], own->own);
        own->own++;
    }
}

static void on_record(void *context, const trihop_message_t *record)
{
    struct own *own = context;

    if (record->source != rank)
        return;
    own->own++;
    if (record->kind > 0)
        OK(trihop_stream_send(own->stream, rank, record->kind - 1, record->bytes, record->length));
}

static void fill(void *context, void *bytes, size_t length)
{
    (void)context;
    memset(bytes, 1, length);
}

static void send_to_self(void)
{
    struct own own = {NULL, 0, 0};
    uint64_t numbers[4];
    uint32_t targets[4];
    size_t sent = 0;

    OK(trihop_stream_open(job, "own items", sizeof(uint64_t), NULL, on_own, &own, &own.stream));
    if (!is_inline) {
        EQUAL(trihop_stream_own_at_once(own.stream), TRIHOP_ERR_CONFIG);
        OK(trihop_stream_close(own.stream));
        return;
    }
    OK(trihop_stream_own_at_once(own.stream));
    /* Pushes without calls come between. */
    for (uint64_t number = 0; number < 3000; number++) {
        OK(number % 2 ? trihop_stream_push(own.stream, rank, &number)
                      : trihop_stream_try_push(own.stream, rank, &number));
        EQUAL(own.own, number + 1);
        for (int times = 0; size > 1 && times < 3; times++)
            OK(trihop_stream_push(own.stream, (rank + 1) % size, &number));
    }
    for (size_t at = 0; at < 4; at++) {
        numbers[at] = 3000 + at;
        targets[at] = rank;
    }
    OK(trihop_stream_push_many(own.stream, targets, numbers, 4, &sent));
    EQUAL(own.own, 3004);
    OK(trihop_stream_fence(own.stream));
    EQUAL(own.others, size > 1 ? 9000 : 0);
    OK(trihop_stream_close(own.stream));

    own.own = 0;
    OK(trihop_stream_open(job, "own records", 0, NULL, on_record, &own, &own.stream));
    OK(trihop_stream_own_at_once(own.stream));
    OK(trihop_stream_send(own.stream, rank, 0, "bytes", 5));
    EQUAL(own.own, 1);
    OK(trihop_stream_try_send(own.stream, rank, 0, "bytes", 5));
    OK(trihop_stream_reserve(own.stream, rank, 0, 5, fill, NULL));
    OK(trihop_stream_broadcast(own.stream, 0, "bytes", 5, TRIHOP_TO_EVERYONE));
    EQUAL(own.own, 4);
    /* What its handler sends to itself comes later. */
    OK(trihop_stream_send(own.stream, rank, 2, "bytes", 5));
    EQUAL(own.own, 5);
    OK(trihop_stream_fence(own.stream));
    EQUAL(own.own, 7);
    OK(trihop_stream_close(own.stream));
    OK(trihop_stream_open(job, "untaken", 0, NULL, NULL, NULL, &own.stream));
    EQUAL(trihop_stream_own_at_once(own.stream), TRIHOP_ERR_CONFIG);
    OK(trihop_stream_close(own.stream));
}

int main(int argc, char **argv)
{
    is_inline = argc < 2 || strcmp(argv[1], "threaded") != 0;
    steps = argc > 2 ? strtoull(argv[2], NULL, 10) : 1000;
    if (trihop_init(is_inline ? TRIHOP_INLINE : TRIHOP_THREADED, NULL, &job) != TRIHOP_OK) {
        fprintf(stderr, "trihop_init: %s\n", trihop_last_error());
        return EXIT_FAILURE;
    }
    rank = trihop_rank(job);
    size = trihop_size(job);
    follow_steps();
    follow_rounds();
    send_to_self();
    if (rank == 0)
        printf("%" PRIu32 " ranks, %" PRIu64 " steps\n", size, steps);
    OK(trihop_finalize(job));
    return EXIT_SUCCESS;
}

/*
 * Records of all lengths by the calls of trihop.h that need no call of the library for most of them:
 * beside the functions of the same names, between all that closes the way to the open runs, in
 * handlers, and by several threads.
 *
 *   records inline|threaded [RECORDS]
 */
#include <inttypes.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trihop.h>

#include "check.h"
#include "leases.h"

#define LONGEST 9000

/* What src/capi and shuffle/src/queue/window.rs say of them. */
_Static_assert(offsetof(trihop_push_window_t, users) == 8 + 64 * 4 + 4 * sizeof(size_t), "sends");
_Static_assert(offsetof(trihop_push_window_t, longest) == 8 + 64 * 4 + 68 * sizeof(size_t), "sends");
_Static_assert(offsetof(trihop_push_window_t, bytes) == 8 + 64 * 4 + 69 * sizeof(size_t), "sends");

static trihop_job_t *job;
static trihop_stream_t *stream, *answers, *items;
static uint32_t rank, size;
static uint64_t came, sent_bytes, *sent, *heard, *answered, *answers_heard, answers_without_calls, answers_sent;
static int is_inline;

static void fail(const char *what, uint64_t got, uint64_t wanted)
{
    fprintf(stderr, "rank %" PRIu32 ": %s: %" PRIu64 ", not %" PRIu64 " (%s)\n", rank, what, got, wanted,
            trihop_last_error());
    trihop_abort(job, EXIT_FAILURE, what);
    exit(EXIT_FAILURE);
}

/* The record that a rank sends as its `number`th to another: its kind, its length, and its bytes. */
static uint32_t kind_of(uint64_t number)
{
    return (uint32_t)(number * UINT64_C(2654435761));
}

static size_t length_of(uint64_t number)
{
    return number % 50 == 49 ? LONGEST - number % 977 : number % 7 == 6 ? number % 600 : number % 40;
}

/* In memory of a handler's, or of the program's: a handler may be called inside of a send. */
static const unsigned char *bytes_for(int in_handler, uint64_t number)
{
    static _Thread_local unsigned char memory[2][LONGEST + 1];
    unsigned char *bytes = memory[in_handler];
    size_t length = length_of(number);

    for (size_t at = 0; at < length; at++)
        bytes[at] = (unsigned char)(number * 31 + at);
    bytes[length] = 0xee; /* None of it. */
    return bytes;
}

static const unsigned char *bytes_of(uint64_t number)
{
    return bytes_for(0, number);
}

static void check_next(uint64_t *next, const trihop_message_t *record)
{
    uint64_t number = next[record->source]++;

    EQUAL(record->kind, kind_of(number));
    EQUAL(record->length, length_of(number));
    if (memcmp(record->bytes, bytes_for(1, number), record->length) != 0)
        fail("a record that is not the next of its source", number, record->source);
}

static uint32_t left_of(const trihop_stream_t *of)
{
    const trihop_push_window_t *window = ((const trihop_stream_windows_t *)(const void *)of)->push;

    return window != NULL ? window->left : 0;
}

static void on_answers(void *context, const trihop_message_t *record)
{
    (void)context;
    check_next(answers_heard, record);
}

/* Each record has two answers, one behind the other. */
static void on_records(void *context, const trihop_message_t *record)
{
    (void)context;
    check_next(heard, record);
    __atomic_fetch_add(&came, 1, __ATOMIC_RELAXED);
    for (int times = 0; times < 2; times++) {
        uint64_t number = answered[record->source]++;
        uint32_t left;

        switch (answers_sent++ % 16) {
        case 0:
            OK((trihop_stream_send)(answers, record->source, kind_of(number), bytes_for(1, number), length_of(number)));
            break;
        case 1:
            EQUAL(trihop_stream_send(answers, size, 0, NULL, 0), TRIHOP_ERR_RANK);
            EQUAL(trihop_stream_send(answers, rank, 0, NULL, 1), TRIHOP_ERR_INVALID_ARGUMENT);
            /* Falls through. */
        default:
            left = is_inline ? left_of(answers) : 0;
            OK(trihop_stream_send(answers, record->source, kind_of(number), bytes_for(1, number), length_of(number)));
            answers_without_calls += left > 0 && left_of(answers) == left - 1;
        }
    }
}

static void check_sent(uint64_t wanted)
{
    trihop_stats_t stats;

    OK(trihop_stream_stats(stream, &stats, sizeof stats));
    EQUAL(stats.sent, wanted);
    EQUAL(stats.sent_bytes, sent_bytes);
}

/* Behind the last record of a run there are zeros up to the next multiple of 8, and not what was there before. */
static void check_end(uint32_t target, size_t length)
{
    const trihop_push_window_t *window = ((const trihop_stream_windows_t *)(const void *)stream)->push;
    const trihop_open_run_t *run = &window->runs[target & window->mask];

    for (size_t at = 0; (length + at) % 8 != 0; at++)
        EQUAL(window->memory[run->start + run->used - 1 - at], 0);
}

static void send_some(uint64_t records)
{
    uint64_t random = rank + 1, done = 0, no_calls = 0, eight = 8;

    while (done < records) {
        uint32_t target;
        uint64_t number;
        trihop_status_t status;

        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        target = (uint32_t)((random >> 33) % size);
        number = sent[target];
        switch ((random >> 55) % 64) {
        case 0:
            status = (trihop_stream_send)(stream, target, kind_of(number), bytes_of(number), length_of(number));
            break;
        case 1:
            check_sent(done);
            status = trihop_stream_try_send(stream, target, kind_of(number), bytes_of(number), length_of(number));
            break;
        case 2:
            /* Neither takes what is the other's, whatever is open. */
            EQUAL(trihop_stream_push(stream, target, &eight), TRIHOP_ERR_CONFIG);
            OK(trihop_stream_push(items, rank, &eight));
            OK(trihop_stream_push(items, rank, &eight));
            EQUAL(trihop_stream_send(items, rank, 0, NULL, 0), TRIHOP_ERR_CONFIG);
            EQUAL(trihop_stream_send(items, rank, 0, &eight, sizeof eight), TRIHOP_ERR_CONFIG);
            status = TRIHOP_ERR_WOULD_BLOCK;
            break;
        case 3:
            EQUAL(trihop_stream_send(stream, size, 0, NULL, 0), TRIHOP_ERR_RANK);
            EQUAL(trihop_stream_send(stream, UINT32_MAX, 0, "x", 1), TRIHOP_ERR_RANK);
            EQUAL(trihop_stream_send(stream, target, 0, NULL, 1), TRIHOP_ERR_INVALID_ARGUMENT);
            EQUAL(trihop_stream_try_send(NULL, target, 0, "x", 1), TRIHOP_ERR_INVALID_ARGUMENT);
            EQUAL(trihop_stream_send(stream, target, 0, "x", SIZE_MAX / 2), TRIHOP_ERR_TOO_LARGE);
            status = TRIHOP_ERR_WOULD_BLOCK;
            break;
        case 4:
            OK(trihop_poll(job, NULL));
            status = TRIHOP_ERR_WOULD_BLOCK;
            break;
        case 5:
        case 6:
            status = trihop_stream_try_send(stream, target, kind_of(number), bytes_of(number), length_of(number));
            if (status == TRIHOP_ERR_WOULD_BLOCK)
                OK(trihop_poll(job, NULL));
            break;
        default:
            if (trihop_stream_send_here(stream, target, kind_of(number), bytes_of(number), length_of(number))) {
                no_calls++;
                status = TRIHOP_OK;
                if (is_inline)
                    check_end(target, length_of(number));
            } else
                status = trihop_stream_send(stream, target, kind_of(number), bytes_of(number), length_of(number));
        }
        if (status == TRIHOP_ERR_WOULD_BLOCK)
            continue;
        OK(status);
        sent_bytes += length_of(number);
        sent[target]++;
        done++;
    }
    check_sent(records);
    if (is_inline && records >= 1000)
        EQUAL(no_calls > records / 8, 1);
}

static void on_limited(void *context, const trihop_message_t *record)
{
    uint64_t *bytes = context;

    *bytes += record->length;
}

/* What the call refuses is not taken without it, and has nothing behind it. */
static void refusals(void)
{
    volatile size_t too_many[] = {101, SIZE_MAX / 2, SIZE_MAX - 8, SIZE_MAX - 7, SIZE_MAX - 1, SIZE_MAX};
    static unsigned char hundred[101];
    trihop_stream_t *limited;
    trihop_options_t options;
    uint64_t bytes = 0, times = sizeof too_many / sizeof *too_many, without = 0;

    OK(trihop_job_options(job, &options, sizeof options));
    OK(trihop_options_set(&options, "max_message_bytes", "100"));
    OK(trihop_stream_open(job, "limited", 0, &options, on_limited, &bytes, &limited));
    for (uint64_t time = 0; time < times; time++) {
        for (int at = 0; at < 4; at++)
            OK(trihop_stream_send(limited, rank, 0, "x", 1));
        without += trihop_stream_send_here(limited, rank, 0, "y", 1) != 0;
        OK(trihop_stream_send(limited, rank, 0, hundred, 100));
        OK(trihop_stream_send(limited, rank, 0, "x", 1));
        EQUAL(trihop_stream_send_here(limited, rank, 0, hundred, too_many[time]), 0);
        EQUAL(trihop_stream_send(limited, rank, 0, hundred, too_many[time]),
              too_many[time] > SIZE_MAX / 2 ? TRIHOP_ERR_INVALID_ARGUMENT : TRIHOP_ERR_TOO_LARGE);
    }
    if (is_inline)
        EQUAL(without, times);
    OK(trihop_stream_close(limited));
    EQUAL(bytes, 105 * times + without);
}

static void everything(uint64_t records)
{
    uint64_t all[5] = {0};

    OK(trihop_stream_open(job, "items", 8, NULL, NULL, NULL, &items));
    OK(trihop_stream_open(job, "answers", 0, NULL, on_answers, NULL, &answers));
    OK(trihop_stream_open(job, "records", 0, NULL, on_records, NULL, &stream));
    OK(trihop_barrier(job));
    send_some(records);
    OK(trihop_stream_start(stream, TRIHOP_FENCE));
    EQUAL(trihop_stream_send(stream, 0, 0, "x", 1), TRIHOP_ERR_MISUSE);
    OK(trihop_stream_wait(stream));
    OK(trihop_stream_fence(answers));
    all[0] = records;
    all[1] = __atomic_load_n(&came, __ATOMIC_RELAXED);
    for (uint32_t of = 0; of < size; of++) {
        all[2] += heard[of];
        all[3] += answered[of];
        all[4] += answers_heard[of];
    }
    OK(trihop_allreduce(job, TRIHOP_SUM, all, 5));
    EQUAL(all[1], all[0]);
    EQUAL(all[2], all[0]);
    EQUAL(all[3], 2 * all[0]);
    EQUAL(all[4], 2 * all[0]);
    if (is_inline && records >= 1000)
        EQUAL(answers_without_calls > 0, 1);
    OK(trihop_stream_close(stream));
    OK(trihop_stream_close(answers));
    OK(trihop_stream_close(items));
}

/* What each of several threads sends to each rank. */
#define THREADS 3
#define EACH 20000

static uint64_t *next_of[THREADS], sent_of[THREADS], without_calls;

static void on_numbered(void *context, const trihop_message_t *record)
{
    uint64_t *next = &next_of[record->kind][record->source], number = (*next)++;

    (void)context;
    if (record->length != number % 40 || memcmp(record->bytes, bytes_for(1, number), record->length) != 0)
        fail("a record that is not the next of its thread", record->length, number % 40);
}

static void *send_numbered(void *of_thread)
{
    uint64_t of = *(const uint64_t *)of_thread, first = sent_of[of], no_calls = 0;

    sent_of[of] += EACH;
    for (uint64_t number = first; number < first + EACH; number++)
        for (uint32_t target = 0; target < size; target++) {
            if (trihop_stream_send_here(stream, target, (uint32_t)of, bytes_of(number), number % 40))
                no_calls++;
            else
                OK((trihop_stream_send)(stream, target, (uint32_t)of, bytes_of(number), number % 40));
        }
    __atomic_fetch_add(&without_calls, no_calls, __ATOMIC_RELAXED);
    return NULL;
}

static void send_from_threads(void)
{
    uint64_t numbers[THREADS] = {0, 1, 2}, all[THREADS] = {0};
    pthread_t threads[THREADS];

    OK(trihop_stream_open(job, "numbered", 0, NULL, on_numbered, NULL, &stream));
    /* One alone, which does not need a call for each where its kernel and processor allow that. */
    send_numbered(&numbers[0]);
    if (threads_need_no_calls())
        EQUAL(without_calls > 0, 1);
    /* Then all at once. */
    for (uint64_t of = 0; of < THREADS; of++)
        if (pthread_create(&threads[of], NULL, send_numbered, &numbers[of]) != 0)
            fail("a thread", 0, 1);
    for (uint64_t of = 0; of < THREADS; of++)
        pthread_join(threads[of], NULL);
    OK(trihop_stream_fence(stream));
    for (uint64_t of = 0; of < THREADS; of++)
        for (uint32_t from = 0; from < size; from++)
            all[of] += next_of[of][from];
    OK(trihop_allreduce(job, TRIHOP_SUM, all, THREADS));
    for (uint64_t of = 0; of < THREADS; of++)
        EQUAL(all[of], sent_of[of] * size * size);
    OK(trihop_stream_close(stream));
}

int main(int argc, char **argv)
{
    uint64_t records = argc > 2 ? strtoull(argv[2], NULL, 10) : 5000;
    uint64_t **counts[] = {&sent, &heard, &answered, &answers_heard, &next_of[0], &next_of[1], &next_of[2]};

    is_inline = argc < 2 || strcmp(argv[1], "threaded") != 0;
    if (trihop_init(is_inline ? TRIHOP_INLINE : TRIHOP_THREADED, NULL, &job) != TRIHOP_OK) {
        fprintf(stderr, "trihop_init: %s\n", trihop_last_error());
        return EXIT_FAILURE;
    }
    rank = trihop_rank(job);
    size = trihop_size(job);
    for (size_t at = 0; at < sizeof counts / sizeof *counts; at++)
        if ((*counts[at] = calloc(size, sizeof **counts[at])) == NULL)
            fail("memory", 0, 1);
    refusals();
    everything(records);
    if (!is_inline)
        send_from_threads();
    for (size_t at = 0; at < sizeof counts / sizeof *counts; at++)
        free(*counts[at]);
    OK(trihop_finalize(job));
    if (rank == 0)
        printf("%" PRIu32 " ranks\n", size);
    return EXIT_SUCCESS;
}

/*
 * Items of many sizes by the calls of trihop.h that need no call of the library for most of them:
 * beside the functions of the same names, between all that closes the way to the open runs, in
 * handlers, and with conveyors. Every item has its source's number in its first bytes.
 *
 *   windows inline|threaded [ITEMS]
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trihop.h>

#include "check.h"
#include "leases.h"

#define LONGEST 9000

/* What src/capi and shuffle/src/queue/window.rs say of them. */
_Static_assert(sizeof(trihop_open_run_t) == 16 && offsetof(trihop_open_run_t, start) == 4, "open runs");
_Static_assert(offsetof(trihop_open_run_t, used) == 8 && offsetof(trihop_open_run_t, room) == 10, "open runs");
_Static_assert(offsetof(trihop_open_run_t, count) == 12, "open runs");
_Static_assert(offsetof(trihop_push_window_t, mask) == 4 && offsetof(trihop_push_window_t, runs) == 8, "pushes");
_Static_assert(offsetof(trihop_push_window_t, memory) == 8 + sizeof(size_t), "pushes");
_Static_assert(offsetof(trihop_push_window_t, item_bytes) == 8 + 2 * sizeof(size_t), "pushes");
_Static_assert(offsetof(trihop_push_window_t, holder) == 8 + 3 * sizeof(size_t), "pushes");
_Static_assert(offsetof(trihop_push_window_t, in_use) == 8 + 4 * sizeof(size_t), "pushes");
_Static_assert(offsetof(trihop_pull_window_t, end) == sizeof(size_t), "pulls");
_Static_assert(offsetof(trihop_pull_window_t, item_bytes) == 2 * sizeof(size_t), "pulls");
_Static_assert(offsetof(trihop_pull_window_t, source) == 2 * sizeof(size_t) + 4, "pulls");
_Static_assert(offsetof(trihop_conveyor_windows_t, pull) == sizeof(size_t), "conveyors");

static trihop_job_t *job;
static trihop_stream_t *stream, *other;
static uint32_t rank, size;
static size_t item_bytes;
static uint64_t came, passed_on, *sent, *heard;
static int is_inline;

static void fail(const char *what, uint64_t got, uint64_t wanted)
{
    fprintf(stderr, "rank %" PRIu32 ", %zu bytes: %s: %" PRIu64 ", not %" PRIu64 " (%s)\n", rank, item_bytes, what, got,
            wanted, trihop_last_error());
    trihop_abort(job, EXIT_FAILURE, what);
    exit(EXIT_FAILURE);
}

/* The item that a rank sends as its `number`th to another. */
static void fill(unsigned char *item, uint64_t number)
{
    for (size_t at = 0; at < item_bytes; at++)
        item[at] = (unsigned char)(at < 8 ? number >> 8 * at : number * 31 + at);
}

static void check_next(uint32_t source, const unsigned char *item)
{
    static unsigned char wanted[LONGEST];

    fill(wanted, heard[source]);
    if (memcmp(item, wanted, item_bytes) != 0)
        fail("an item that is not the next of its source", item[0], wanted[0]);
    heard[source]++;
}

static void on_items(void *context, const trihop_message_t *items)
{
    const unsigned char *item = items->bytes;

    (void)context;
    for (size_t at = 0; at < items->count; at++, item += item_bytes) {
        check_next(items->source, item);
        __atomic_fetch_add(&came, 1, __ATOMIC_RELAXED);
        /* A handler sends too, where the program does not: on the other stream. */
        if (item[0] % 8 == 0) {
            uint64_t note = 1;

            OK(trihop_stream_push(other, (rank + 1) % size, &note));
        }
    }
}

static void on_notes(void *context, const trihop_message_t *notes)
{
    (void)context;
    __atomic_fetch_add(&passed_on, notes->count, __ATOMIC_RELAXED);
}

static void check_sent(uint64_t wanted)
{
    trihop_stats_t stats;

    OK(trihop_stream_stats(stream, &stats, sizeof stats));
    EQUAL(stats.sent, wanted);
    EQUAL(stats.sent_bytes, wanted * item_bytes);
}

static void push(uint64_t items)
{
    static unsigned char item[LONGEST];
    uint64_t random = rank + 1, pushed = 0, no_calls;
    uint64_t zero = 0;

    came = passed_on = 0;
    memset(sent, 0, size * sizeof *sent);
    memset(heard, 0, size * sizeof *heard);
    OK(trihop_stream_open(job, "items", item_bytes, NULL, on_items, NULL, &stream));
    OK(trihop_barrier(job));
    while (pushed < items) {
        uint32_t target;
        trihop_status_t status;

        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        target = (uint32_t)((random >> 33) % size);
        fill(item, sent[target]);
        switch ((random >> 55) % 128) {
        case 0:
            status = (trihop_stream_push)(stream, target, item);
            break;
        case 1:
            check_sent(pushed);
            status = trihop_stream_try_push(stream, target, item);
            break;
        case 2:
            /* Between two items of the stream, one of another. */
            OK(trihop_stream_push(other, rank, &zero));
            status = trihop_stream_push(stream, target, item);
            break;
        case 3:
            EQUAL(trihop_stream_push(stream, size, item), TRIHOP_ERR_RANK);
            EQUAL(trihop_stream_push(stream, UINT32_MAX, item), TRIHOP_ERR_RANK);
            EQUAL(trihop_stream_push(stream, target, NULL), TRIHOP_ERR_INVALID_ARGUMENT);
            EQUAL(trihop_stream_push(NULL, target, item), TRIHOP_ERR_INVALID_ARGUMENT);
            status = TRIHOP_ERR_WOULD_BLOCK;
            break;
        case 4:
            OK(trihop_poll(job, NULL));
            status = TRIHOP_ERR_WOULD_BLOCK;
            break;
        case 5:
        case 6:
        case 7:
            status = trihop_stream_try_push(stream, target, item);
            if (status == TRIHOP_ERR_WOULD_BLOCK)
                OK(trihop_poll(job, NULL));
            break;
        default:
            status = trihop_stream_push(stream, target, item);
        }
        if (status == TRIHOP_ERR_WOULD_BLOCK)
            continue;
        OK(status);
        sent[target]++;
        pushed++;
    }
    check_sent(items);
    OK(trihop_stream_start(stream, TRIHOP_ROUND));
    EQUAL(trihop_stream_push(stream, 0, item), TRIHOP_ERR_MISUSE);
    OK(trihop_stream_wait(stream));
    /* The step is over, and the stream goes on. */
    fill(item, sent[rank]++);
    OK(trihop_stream_push(stream, rank, item));
    fill(item, sent[rank]++);
    OK(trihop_stream_push(stream, rank, item));
    fill(item, sent[rank]++);
    OK(trihop_stream_push(stream, rank, item));
    OK(trihop_fence(job));
    {
        uint64_t all[3];

        all[0] = items + 3;
        all[1] = __atomic_load_n(&came, __ATOMIC_RELAXED);
        all[2] = 0;
        for (uint32_t target = 0; target < size; target++)
            all[2] += heard[target];
        OK(trihop_allreduce(job, TRIHOP_SUM, all, 3));
        EQUAL(all[1], all[0]);
        EQUAL(all[2], all[0]);
        EQUAL(passed_on > 0 || items < 1000, 1);
    }
    /* Of the last step nothing is forgotten where the stream is closed at once. */
    OK(trihop_barrier(job));
    came = 0;
    no_calls = 0;
    for (int times = 0; times < 40; times++) {
        const trihop_push_window_t *window = ((const trihop_stream_windows_t *)(const void *)stream)->push;
        uint32_t left = window != NULL ? window->left : 0;

        fill(item, sent[rank]++);
        OK(trihop_stream_push(stream, rank, item));
        no_calls += left > 0 && window->left == left - 1;
    }
    /* On an inline job most need no call; on one with threads, others come in between. Of long items, all do. */
    if (item_bytes < 2000 && is_inline)
        EQUAL(no_calls >= 20, 1);
    OK(trihop_stream_close(stream));
    EQUAL(came, 40);
}

/* Handlers that answer, three times each, item by item. */
static trihop_stream_t *asked, *answers;
static uint64_t *answered, answers_sent, answers_heard, answers_without_calls;

static void on_answers(void *context, const trihop_message_t *items)
{
    const unsigned char *item = items->bytes;

    (void)context;
    for (size_t at = 0; at < items->count; at++, item += item_bytes)
        check_next(items->source, item);
    answers_heard += items->count;
}

static void answer(uint32_t target)
{
    static unsigned char item[LONGEST];
    const trihop_push_window_t *window = ((const trihop_stream_windows_t *)(const void *)answers)->push;
    uint32_t left = window != NULL ? window->left : 0;
    trihop_status_t status;
    uint64_t note = 2;

    fill(item, answered[target]++);
    switch (answers_sent % 64) {
    case 0:
        status = (trihop_stream_push)(answers, target, item);
        break;
    case 1:
        EQUAL(trihop_stream_push(answers, size, item), TRIHOP_ERR_RANK);
        EQUAL(trihop_stream_push(answers, target, NULL), TRIHOP_ERR_INVALID_ARGUMENT);
        status = trihop_stream_push(answers, target, item);
        break;
    case 2:
        OK(trihop_stream_push(other, target, &note));
        status = trihop_stream_push(answers, target, item);
        break;
    case 3:
        status = trihop_stream_try_push(answers, target, item);
        if (status == TRIHOP_ERR_WOULD_BLOCK)
            status = trihop_stream_push(answers, target, item);
        break;
    case 4:
        EQUAL(trihop_stream_fence(answers), TRIHOP_ERR_NESTED);
        status = trihop_stream_push(answers, target, item);
        break;
    default:
        status = trihop_stream_push(answers, target, item);
        answers_without_calls += left > 0 && window->left == left - 1;
    }
    OK(status);
    answers_sent++;
}

static void on_asked(void *context, const trihop_message_t *items)
{
    (void)context;
    for (size_t at = 0; at < items->count; at++)
        for (int times = 0; times < 3; times++)
            answer(items->source);
}

static void ask(uint64_t items)
{
    uint64_t all[2];
    trihop_stats_t stats;

    answers_sent = answers_heard = answers_without_calls = 0;
    memset(answered, 0, size * sizeof *answered);
    memset(heard, 0, size * sizeof *heard);
    OK(trihop_stream_open(job, "answers", item_bytes, NULL, on_answers, NULL, &answers));
    OK(trihop_stream_open(job, "asked", sizeof(uint64_t), NULL, on_asked, NULL, &asked));
    /* Nobody asks who has not opened both. */
    OK(trihop_barrier(job));
    for (uint64_t number = 0; number < items; number++)
        OK(trihop_stream_push(asked, (uint32_t)((rank + number / 100) % size), &number));
    OK(trihop_fence(job));
    OK(trihop_stream_stats(answers, &stats, sizeof stats));
    EQUAL(stats.sent, answers_sent);
    EQUAL(stats.sent_bytes, answers_sent * item_bytes);
    EQUAL(answers_heard, 3 * items);
    all[0] = answers_sent;
    all[1] = answers_heard;
    OK(trihop_allreduce(job, TRIHOP_SUM, all, 2));
    EQUAL(all[0], all[1]);
    /* Long items all need a call, and with threads others come in between. */
    if (item_bytes < 2000 && is_inline)
        EQUAL(answers_without_calls > answers_sent / 4, 1);
    OK(trihop_stream_close(asked));
    OK(trihop_stream_close(answers));
}

/* What each of several threads pushes to each rank. */
#define THREADS 3

static uint64_t came_of[THREADS], without_calls;

static void on_numbers(void *context, const trihop_message_t *numbers)
{
    const uint64_t *number = numbers->bytes;

    (void)context;
    for (size_t at = 0; at < numbers->count; at++)
        __atomic_fetch_add(&came_of[number[at] % THREADS], 1, __ATOMIC_RELAXED);
}

static void *push_numbers(void *of_thread)
{
    uint64_t of = *(const uint64_t *)of_thread, no_calls = 0;

    for (uint64_t number = 0; number < 30000; number++) {
        uint64_t item = number * THREADS + of;

        if (trihop_stream_push_here(stream, (uint32_t)(number % size), &item))
            no_calls++;
        else
            OK((trihop_stream_push)(stream, (uint32_t)(number % size), &item));
        if (of == 1 && number % 1000 == 0)
            OK(trihop_poll(job, NULL));
    }
    __atomic_fetch_add(&without_calls, no_calls, __ATOMIC_RELAXED);
    return NULL;
}

static void push_from_threads(void)
{
    uint64_t numbers[THREADS] = {0, 1, 2}, all[THREADS];
    pthread_t threads[THREADS];

    OK(trihop_stream_open(job, "numbers", sizeof(uint64_t), NULL, on_numbers, NULL, &stream));
    /* One alone, then all at once. */
    push_numbers(&numbers[0]);
    for (uint64_t of = 0; of < THREADS; of++)
        if (pthread_create(&threads[of], NULL, push_numbers, &numbers[of]) != 0)
            fail("a thread", 0, 1);
    for (uint64_t of = 0; of < THREADS; of++)
        pthread_join(threads[of], NULL);
    OK(trihop_stream_fence(stream));
    for (uint64_t of = 0; of < THREADS; of++)
        all[of] = came_of[of];
    OK(trihop_allreduce(job, TRIHOP_SUM, all, THREADS));
    for (uint64_t of = 0; of < THREADS; of++)
        EQUAL(all[of], UINT64_C(30000) * size * (of == 0 ? 2 : 1));
    /* One alone does not need a call for each, where its kernel and processor allow that. */
    if (threads_need_no_calls())
        EQUAL(without_calls > 0, 1);
    /* Items that a pointer walks over: the call gets no more than one. */
    came_of[0] = came_of[1] = 0;
    OK(trihop_barrier(job));
    for (const uint64_t *item = numbers; item != numbers + 2; item++)
        OK(trihop_stream_push(stream, rank, item));
    OK(trihop_stream_fence(stream));
    EQUAL(came_of[0], 1);
    EQUAL(came_of[1], 1);
    OK(trihop_stream_close(stream));
}

static trihop_conveyor_t *conveyor;

static void open_conveyor(void)
{
    OK(trihop_stream_open(job, "conveyed", item_bytes, NULL, NULL, NULL, &stream));
    OK(trihop_conveyor_over(stream, &conveyor));
}

static void close_conveyor(void)
{
    trihop_conveyor_free(conveyor);
    OK(trihop_stream_close(stream));
}

/* A step. */
static void convey(uint64_t items)
{
    static unsigned char item[LONGEST];
    uint64_t left = items, pulled = 0, sum[2];
    uint32_t target = rank;
    const trihop_pull_window_t *pulled_here = &((trihop_conveyor_windows_t *)(void *)conveyor)->pull;
    uint64_t no_calls = 0;
    int goes_on;

    memset(sent, 0, size * sizeof *sent);
    memset(heard, 0, size * sizeof *heard);
    for (;;) {
        const void *at, *again;
        uint32_t source, source_again;

        OK(trihop_conveyor_advance(conveyor, left == 0, &goes_on));
        if (!goes_on)
            break;
        while (left > 0) {
            trihop_status_t status;

            fill(item, sent[target]);
            status = left % 100 ? trihop_conveyor_push(conveyor, target, item)
                                : (trihop_conveyor_push)(conveyor, target, item);
            if (status == TRIHOP_ERR_WOULD_BLOCK)
                break;
            OK(status);
            sent[target]++;
            target = (target + 1) % size;
            left--;
        }
        /* Now and then some stay for the next advance. */
        for (int most = pulled % 3 ? 1000000 : 10; most > 0; most--) {
            trihop_status_t status = trihop_conveyor_pull(conveyor, &at, &source);

            if (status == TRIHOP_ERR_WOULD_BLOCK)
                break;
            OK(status);
            if (pulled % 7 == 0) {
                OK(trihop_conveyor_unpull(conveyor));
                EQUAL(trihop_conveyor_unpull(conveyor), TRIHOP_ERR_MISUSE);
                OK(trihop_conveyor_pull(conveyor, &again, &source_again));
                EQUAL(again == at && source_again == source, 1);
            }
            check_next(source, at);
            pulled++;
            no_calls += pulled_here->next != pulled_here->end;
            if (pulled % 50 == 0) {
                size_t count;

                status = trihop_conveyor_pull_many(conveyor, 0, &at, &count, &source);
                EQUAL(status, TRIHOP_ERR_INVALID_ARGUMENT);
                status = trihop_conveyor_pull_many(conveyor, 3, &at, NULL, &source);
                EQUAL(status, TRIHOP_ERR_INVALID_ARGUMENT);
                status = trihop_conveyor_pull_many(conveyor, 3, &at, &count, &source);
                if (status == TRIHOP_ERR_WOULD_BLOCK)
                    break;
                OK(status);
                for (size_t of = 0; of < count; of++)
                    check_next(source, (const unsigned char *)at + of * item_bytes);
                pulled += count;
            }
        }
    }
    sum[0] = pulled;
    sum[1] = items;
    OK(trihop_allreduce(job, TRIHOP_SUM, sum, 2));
    EQUAL(sum[0], sum[1]);
    if (item_bytes < 2000)
        EQUAL(no_calls > 0, 1);
    EQUAL(trihop_conveyor_push(conveyor, 0, item), TRIHOP_ERR_MISUSE);
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {1, 3, 4, 8, 12, 16, 24, 100, 4088, LONGEST};
    uint64_t items = argc > 2 ? strtoull(argv[2], NULL, 10) : 5000;

    is_inline = argc < 2 || strcmp(argv[1], "threaded") != 0;
    if (trihop_init(is_inline ? TRIHOP_INLINE : TRIHOP_THREADED, NULL, &job) != TRIHOP_OK) {
        fprintf(stderr, "trihop_init: %s\n", trihop_last_error());
        return EXIT_FAILURE;
    }
    rank = trihop_rank(job);
    size = trihop_size(job);
    sent = calloc(size, sizeof *sent);
    heard = calloc(size, sizeof *heard);
    answered = calloc(size, sizeof *answered);
    OK(trihop_stream_open(job, "notes", sizeof(uint64_t), NULL, on_notes, NULL, &other));
    for (size_t at = 0; at < sizeof sizes / sizeof *sizes; at++) {
        item_bytes = sizes[at];
        push(items);
        ask(items);
        open_conveyor();
        convey(items);
        close_conveyor();
    }
    /* The same sizes with one conveyor, and the other way round. */
    item_bytes = 8;
    open_conveyor();
    EQUAL(trihop_conveyor_reset_to(conveyor, 8), TRIHOP_ERR_MISUSE);
    convey(items);
    for (size_t at = sizeof sizes / sizeof *sizes; at-- > 0;) {
        item_bytes = sizes[at];
        OK(trihop_conveyor_reset_to(conveyor, item_bytes));
        convey(items);
    }
    EQUAL(trihop_conveyor_reset_to(conveyor, SIZE_MAX), TRIHOP_ERR_CONFIG);
    EQUAL(trihop_conveyor_reset_to(conveyor, 0), TRIHOP_ERR_CONFIG);
    close_conveyor();
    /* In the place of that one: of its own size. */
    item_bytes = 8;
    push(items);
    if (!is_inline)
        push_from_threads();
    OK(trihop_stream_close(other));
    free(sent);
    free(heard);
    free(answered);
    OK(trihop_finalize(job));
    if (rank == 0)
        printf("%" PRIu32 " ranks\n", size);
    return EXIT_SUCCESS;
}

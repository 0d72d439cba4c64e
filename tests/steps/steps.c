/*
 * Steps that end by rounds and fences, waited for and asked for, steps by push, pull and advance,
 * and every collective of the job.
 *
 *   steps inline|threaded [STEPS]
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trihop.h>

#include "check.h"

static trihop_job_t *job;
static uint32_t rank, size;

/* Items heard, by step: written where handlers run, read when the step is over. */
static uint64_t *heard;
static uint64_t steps, step;
static int is_inline;

static void fail(const char *what, uint64_t got, uint64_t wanted)
{
    fprintf(stderr, "rank %" PRIu32 ", step %" PRIu64 ": %s: %" PRIu64 ", not %" PRIu64 " (%s)\n", rank, step, what, got,
            wanted, trihop_last_error());
    trihop_abort(job, EXIT_FAILURE, what);
    exit(EXIT_FAILURE);
}

static void on_items(void *context, const trihop_message_t *items)
{
    const uint64_t *item = items->bytes;

    (void)context;
    for (size_t at = 0; at < items->count; at++) {
        /* Nothing of the next step comes in a round; a delivery thread may be ahead of `step`. */
        if (is_inline && step % 4 != 3)
            EQUAL(item[at], step);
        heard[item[at]]++;
    }
}

/* What a rank sends to each other in a step. */
static uint64_t items_of(uint32_t source, uint64_t of_step)
{
    return (source * 31 + of_step * 7) % 50;
}

static void take_steps(void)
{
    trihop_stream_t *stream;

    heard = calloc(steps, sizeof *heard);
    OK(trihop_stream_open(job, "steps", sizeof(uint64_t), NULL, on_items, NULL, &stream));
    /* Handlers look at `step`: nobody sends before everybody is ready. */
    OK(trihop_barrier(job));
    for (step = 0; step < steps; step++) {
        int is_over = 0;
        uint64_t wanted = 0;

        for (uint32_t target = 0; target < size; target++)
            for (uint64_t left = items_of(rank, step); left > 0; left--)
                OK(trihop_stream_push(stream, target, &step));
        switch (step % 4) {
        case 0:
            OK(trihop_stream_round(stream));
            break;
        case 1:
            OK(trihop_stream_start(stream, TRIHOP_ROUND));
            EQUAL(trihop_stream_start(stream, TRIHOP_FENCE), TRIHOP_ERR_MISUSE);
            OK(trihop_stream_wait(stream));
            EQUAL(trihop_stream_wait(stream), TRIHOP_ERR_MISUSE);
            break;
        case 2:
            OK(trihop_stream_start(stream, TRIHOP_ROUND));
            while (!is_over)
                OK(trihop_stream_test(stream, &is_over));
            break;
        default:
            /* Others may leave a fence, and begin the next step, before this rank does. */
            OK(trihop_stream_start(stream, TRIHOP_FENCE));
            while (!is_over)
                OK(trihop_stream_test(stream, &is_over));
            break;
        }
        for (uint32_t source = 0; source < size; source++)
            wanted += items_of(source, step);
        EQUAL(heard[step], wanted);
    }
    OK(trihop_stream_close(stream));
    free(heard);
}

/* What is sent on from rank to rank; where it ends, its receiver is a contributor too. */
struct going {
    uint32_t hops, counts;
};

static trihop_stream_t *going;
static uint64_t came;

static void on_going(void *context, const trihop_message_t *items)
{
    const struct going *item = items->bytes;

    (void)context;
    for (size_t at = 0; at < items->count; at++) {
        struct going next = {item[at].hops - 1, item[at].counts};

        __atomic_fetch_add(&came, 1, __ATOMIC_RELAXED);
        if (item[at].hops > 0)
            OK(trihop_stream_push(going, (rank + 1) % size, &next));
        else if (item[at].counts)
            OK(trihop_stream_done(going, 1));
    }
}

static void take_steps_of_contributors(void)
{
    uint64_t wanted = 0, sum[1];

    OK(trihop_stream_open(
        job, "contributors", sizeof(struct going), NULL, on_going, NULL, &going));
    EQUAL(trihop_stream_done(going, 1), TRIHOP_ERR_MISUSE);
    EQUAL(trihop_stream_begin_step(going, 2, 1), TRIHOP_ERR_INVALID_ARGUMENT);
    for (step = 0; step < steps; step++) {
        /* On even steps each rank has its own contributors, rank 0 has none; on odd ones all are
         * counted together. */
        uint32_t counts = step % 2, items = step % 7;
        uint64_t mine = counts ? size * (1 + items) : rank % 3;
        struct going item = {step % 4, counts};
        int is_over = 0;

        OK(trihop_stream_begin_step(
            going, counts ? TRIHOP_ALL_CONTRIBUTORS : TRIHOP_LOCAL_CONTRIBUTORS, mine));
        EQUAL(trihop_stream_fence(going), TRIHOP_ERR_MISUSE);
        if (counts || mine > 0)
            for (uint32_t number = 0; number < items; number++)
                OK(trihop_stream_push(going, (rank + number) % size, &item));
        for (uint32_t source = 0; source < size; source++)
            wanted += (counts || source % 3 > 0) ? items * (item.hops + 1) : 0;
        if (!counts) {
            EQUAL(trihop_stream_done(going, mine + 1), TRIHOP_ERR_MISUSE);
            if (mine > 0) {
                EQUAL(trihop_stream_close(going), TRIHOP_ERR_MISUSE);
                EQUAL(trihop_finalize(job), TRIHOP_ERR_MISUSE);
            }
            for (uint64_t left = mine; left > 0; left--)
                OK(trihop_stream_done(going, 1));
            EQUAL(trihop_stream_push(going, 0, &item), TRIHOP_ERR_MISUSE);
            EQUAL(trihop_stream_done(going, 1), TRIHOP_ERR_MISUSE);
        } else {
            OK(trihop_stream_done(going, 1));
        }
        if (step % 3 == 0)
            OK(trihop_stream_wait(going));
        else
            while (!is_over)
                OK(trihop_stream_test(going, &is_over));
        /* Others may be in the next step: what has come is counted in the end. */
        if (step % 5 == 4) {
            OK(trihop_barrier(job));
            sum[0] = __atomic_load_n(&came, __ATOMIC_RELAXED);
            OK(trihop_allreduce(job, TRIHOP_SUM, sum, 1));
            EQUAL(sum[0], wanted);
        }
    }
    OK(trihop_stream_close(going));
}

/* Steps by push, pull and advance; each item has its source's number and the step. */
static void convey(void)
{
    trihop_stream_t *stream;
    trihop_conveyor_t *conveyor;
    const void *pulled;
    uint64_t *sent = calloc(size, sizeof *sent), *from = calloc(size, sizeof *from);
    int32_t state;

    OK(trihop_stream_open(job, "conveyor", sizeof(uint64_t), NULL, NULL, NULL, &stream));
    OK(trihop_conveyor_over(stream, &conveyor));
    EQUAL(trihop_conveyor_unpull(conveyor), TRIHOP_ERR_MISUSE);
    EQUAL(trihop_conveyor_reset(conveyor), TRIHOP_ERR_MISUSE);
    for (step = 0; step < steps / 5; step++) {
        uint64_t left = size * items_of(rank, step), wanted = 0, heard_now = 0;
        uint32_t target = rank, source = 0;
        int goes_on = 1, gave_back = 0;

        if (step == 3)
            left *= 2000; /* More than queues hold, now and then. */
        memset(from, 0, size * sizeof *from);
        for (;;) {
            OK(trihop_conveyor_advance(conveyor, left == 0, &goes_on));
            if (!goes_on)
                break;
            while (left > 0) {
                uint64_t item = step << 32 | sent[target];
                trihop_status_t status;

                status = trihop_conveyor_push(conveyor, target, &item);
                if (status == TRIHOP_ERR_WOULD_BLOCK)
                    break;
                OK(status);
                sent[target]++;
                target = (target + 1) % size;
                left--;
            }
            if (heard_now % 3 == 0) {
                const void *items;
                size_t count;
                trihop_status_t status = trihop_conveyor_pull_many(conveyor, 10, &items, &count, &source);

                if (status != TRIHOP_ERR_WOULD_BLOCK) {
                    OK(status);
                    EQUAL(count >= 1 && count <= 10, 1);
                    for (size_t at = 0; at < count; at++)
                        EQUAL(((const uint64_t *)items)[at] >> 32, step);
                    OK(trihop_conveyor_unpull(conveyor));
                }
            }
            while (trihop_conveyor_pull(conveyor, &pulled, &source) == TRIHOP_OK) {
                uint64_t item = *(const uint64_t *)pulled;

                EQUAL(item >> 32, step);
                EQUAL(item & 0xffffffff, from[source]);
                if (!gave_back) {
                    gave_back = 1;
                    OK(trihop_conveyor_unpull(conveyor));
                    continue;
                }
                gave_back = heard_now % 5 != 0;
                from[source]++;
                heard_now++;
            }
        }
        OK(trihop_conveyor_state(conveyor, &state));
        EQUAL((uint64_t)state, TRIHOP_COMPLETE);
        EQUAL(trihop_conveyor_push(conveyor, 0, &left), TRIHOP_ERR_MISUSE);
        for (uint32_t other = 0; other < size; other++)
            wanted += items_of(other, step) * (step == 3 ? 2000 : 1);
        EQUAL(heard_now, wanted);
        memset(sent, 0, size * sizeof *sent);
        OK(trihop_conveyor_reset(conveyor));
    }
    /* A step that nobody pulls; what has come is given up. */
    for (uint64_t item = 0; item < 3 * size; item++)
        OK(trihop_conveyor_push(conveyor, (uint32_t)(item % size), &item));
    {
        trihop_conveyor_t *other;
        int goes_on;

        OK(trihop_conveyor_advance(conveyor, 1, &goes_on));
        OK(trihop_conveyor_state(conveyor, &state));
        if (state == TRIHOP_ENDGAME)
            EQUAL(trihop_conveyor_over(stream, &other), TRIHOP_ERR_MISUSE);
    }
    trihop_conveyor_free(conveyor);
    OK(trihop_stream_close(stream));
    free(sent);
    free(from);
}

/* A ball hops from stream to stream until its hops are used up; a fence of all streams waits. */
static trihop_stream_t *courts[2];
static uint64_t hops;

static void on_ball(void *context, const trihop_message_t *balls)
{
    const uint64_t *left = balls->bytes;
    size_t court = *(const size_t *)context;

    for (size_t at = 0; at < balls->count; at++) {
        uint64_t now = left[at] - 1;

        hops++;
        if (now > 0)
            OK(trihop_stream_push(courts[1 - court], (uint32_t)((rank + now) % size), &now));
    }
}

static void bounce(void)
{
    static const size_t numbers[2] = {0, 1};
    uint64_t all, wanted = 0;

    for (int court = 0; court < 2; court++)
        OK(trihop_stream_open(job, court ? "right" : "left", sizeof(uint64_t), NULL, on_ball, (void *)&numbers[court],
                              &courts[court]));
    OK(trihop_barrier(job));
    for (int times = 1; times <= 5; times++) {
        uint64_t left = (uint64_t)times * 37;

        wanted += left * size;
        OK(trihop_stream_push(courts[times % 2], (rank + 1) % size, &left));
        OK(trihop_fence(job));
        all = hops;
        OK(trihop_allreduce(job, TRIHOP_SUM, &all, 1));
        EQUAL(all, wanted);
    }
    for (int court = 0; court < 2; court++)
        OK(trihop_stream_close(courts[court]));
}

/* A table over all ranks: entry `n` of rank `r` is r * 1000 + n, its text three times that. */
struct entry {
    uint64_t number;
    char text[24];
};

static uint64_t answered;

static void answer(void *context, uint32_t source, const void *request, void *reply)
{
    const uint32_t *index = request;
    struct entry *entry = reply;
    trihop_stream_t *none = context;
    uint64_t item = 0;

    EQUAL(source < size, 1);
    EQUAL(entry->number, 0); /* It was zeroed. */
    entry->number = (uint64_t)rank * 1000 + *index;
    snprintf(entry->text, sizeof entry->text, "%" PRIu64, 3 * entry->number);
    if (answered++ == 0)
        EQUAL(trihop_stream_try_push(none, 0, &item), TRIHOP_ERR_NESTED);
}

static void ask_and_answer(void)
{
    const uint64_t count = 3000, most = 500;
    trihop_replies_t *replies;
    trihop_stream_t *other;
    uint64_t asked = 0, pulled = 0, all[2];
    uint32_t index = 0;

    OK(trihop_stream_open(job, "other", sizeof(uint64_t), NULL, NULL, NULL, &other));
    EQUAL(trihop_replies_open(job, "none", 4, 8, most, NULL, other, &replies), TRIHOP_ERR_INVALID_ARGUMENT);
    if (!is_inline) {
        EQUAL(trihop_replies_open(job, "none", 4, 8, most, answer, other, &replies), TRIHOP_ERR_CONFIG);
        OK(trihop_stream_close(other));
        return;
    }
    EQUAL(trihop_replies_open(job, "none", 4, 0, most, answer, other, &replies), TRIHOP_ERR_CONFIG);
    EQUAL(trihop_replies_open(job, "none", 4, 8, 0, answer, other, &replies), TRIHOP_ERR_CONFIG);
    EQUAL(trihop_replies_open(job, "none", 4, SIZE_MAX, 1, answer, other, &replies), TRIHOP_ERR_TOO_LARGE);
    EQUAL(trihop_replies_open(job, "none", SIZE_MAX, 8, 1, answer, other, &replies), TRIHOP_ERR_TOO_LARGE);
    if (size > 1) {
        EQUAL(trihop_replies_open(job, "none", 4, rank == 0 ? 8 : 16, most, answer, other, &replies), TRIHOP_ERR_MISMATCH);
        EQUAL(trihop_replies_open(job, "none", rank == 1, 8, most, answer, other, &replies), TRIHOP_ERR_MISMATCH);
        EQUAL(trihop_replies_open(job, "none", 4, 8, rank == 0 ? 0 : most, answer, other, &replies),
              rank == 0 ? TRIHOP_ERR_CONFIG : TRIHOP_ERR_MISMATCH);
    }
    OK(trihop_replies_open(job, "table", sizeof index, sizeof(struct entry), most, answer, other, &replies));
    EQUAL(trihop_replies_ask(replies, size, &index), TRIHOP_ERR_RANK);
    while (asked < count || trihop_replies_outstanding(replies) > 0) {
        struct entry entry;

        for (; asked < count; asked++) {
            trihop_status_t status;

            index = (uint32_t)(asked % 977);
            status = trihop_replies_ask(replies, (uint32_t)((rank + asked) % size), &index);
            if (status == TRIHOP_ERR_WOULD_BLOCK)
                break;
            OK(status);
        }
        EQUAL(trihop_replies_outstanding(replies) <= most, 1);
        EQUAL(trihop_replies_outstanding(replies), asked - pulled);
        for (;;) {
            trihop_status_t status = trihop_replies_pull(replies, &entry);
            uint64_t wanted = (rank + pulled) % size * 1000 + pulled % 977;

            if (status == TRIHOP_ERR_WOULD_BLOCK)
                break;
            OK(status);
            EQUAL(entry.number, wanted);
            EQUAL(strtoull(entry.text, NULL, 10), 3 * wanted);
            pulled++;
        }
    }
    EQUAL(pulled, count);
    OK(trihop_replies_ask(replies, rank, &index));
    OK(trihop_replies_fence(replies));
    EQUAL(trihop_replies_pull(replies, NULL), TRIHOP_ERR_INVALID_ARGUMENT);
    all[0] = answered;
    all[1] = count + 1;
    OK(trihop_allreduce(job, TRIHOP_SUM, all, 2));
    EQUAL(all[0], all[1]);
    OK(trihop_replies_close(replies));
    EQUAL(trihop_replies_close(NULL), TRIHOP_ERR_INVALID_ARGUMENT);
    EQUAL(trihop_replies_outstanding(NULL), 0);
    OK(trihop_stream_close(other));
}

/* A place and how often it was hit. */
struct hits {
    uint64_t place, times;
};

static uint64_t hit[100], travelled;

static void on_hits(void *context, const trihop_message_t *items)
{
    const struct hits *hits = items->bytes;

    (void)context;
    for (size_t at = 0; at < items->count; at++) {
        __atomic_fetch_add(&hit[hits[at].place], hits[at].times, __ATOMIC_RELAXED);
        __atomic_fetch_add(&travelled, 1, __ATOMIC_RELAXED);
    }
}

static uint64_t place_of(void *context, const void *item)
{
    EQUAL(context == hit, 1);
    return ((const struct hits *)item)->place;
}

static void add(void *context, void *before, const void *item)
{
    EQUAL(context == hit, 1);
    ((struct hits *)before)->times += ((const struct hits *)item)->times;
}

static void merge(void)
{
    const uint64_t count = 20000;
    struct hits one = {0, 1};

    /* Tables that hold all, and next to nothing. */
    for (size_t places = 4; places <= 4096; places *= 1024) {
        trihop_stream_t *stream, *records;
        trihop_merging_t *merging;
        uint64_t sums[3] = {0, 0, 0};

        memset(hit, 0, sizeof hit);
        travelled = 0;
        OK(trihop_stream_open(job, "hits", sizeof one, NULL, on_hits, NULL, &stream));
        OK(trihop_stream_open(job, "records", 0, NULL, NULL, NULL, &records));
        EQUAL(trihop_merging_over(records, places, place_of, add, hit, &merging), TRIHOP_ERR_CONFIG);
        OK(trihop_stream_close(records));
        EQUAL(trihop_merging_over(stream, places, NULL, add, hit, &merging), TRIHOP_ERR_INVALID_ARGUMENT);
        EQUAL(trihop_merging_over(stream, SIZE_MAX, place_of, add, hit, &merging), TRIHOP_ERR_NO_MEMORY);
        OK(trihop_merging_over(stream, places, place_of, add, hit, &merging));
        EQUAL(trihop_merging_push(merging, size, &one), TRIHOP_ERR_RANK);
        EQUAL(trihop_merging_push(merging, UINT32_MAX, &one), TRIHOP_ERR_RANK);
        for (uint64_t number = 0; number < count; number++) {
            one.place = number * number % 100;
            OK(trihop_merging_push(merging, (uint32_t)(number % size), &one));
        }
        OK(trihop_merging_flush(merging));
        OK(trihop_stream_fence(stream));
        OK(trihop_barrier(job));
        sums[0] = travelled;
        sums[1] = trihop_merging_merged(merging);
        for (size_t place = 0; place < 100; place++)
            sums[2] += hit[place];
        OK(trihop_allreduce(job, TRIHOP_SUM, sums, 3));
        EQUAL(sums[2], count * size);
        EQUAL(sums[0] + sums[1], count * size);
        if (places == 4096) /* At most 22 squares for each rank. */
            EQUAL(sums[0] <= (uint64_t)22 * size * size, 1);
        trihop_merging_free(merging);
        OK(trihop_stream_close(stream));
    }
    trihop_merging_free(NULL);
    EQUAL(trihop_merging_merged(NULL), 0);
}

/* What goes on from rank to rank, and is merged on its way with what is as far. */
struct wave {
    uint64_t place, left, times;
};

static trihop_merging_t *waves;
static uint64_t ended;

static void on_waves(void *context, const trihop_message_t *items)
{
    const struct wave *wave = items->bytes;

    (void)context;
    for (size_t at = 0; at < items->count; at++) {
        struct wave next = wave[at];

        if (next.left-- == 0) {
            __atomic_fetch_add(&ended, next.times, __ATOMIC_RELAXED);
            continue;
        }
        next.place = (next.place * 5 + 1) % 64;
        OK(trihop_merging_push(waves, (uint32_t)((rank + next.place) % size), &next));
    }
}

static uint64_t key_of_wave(void *context, const void *item)
{
    const struct wave *wave = item;

    (void)context;
    return wave->place << 8 | wave->left;
}

static void join_waves(void *context, void *before, const void *item)
{
    struct wave *joined = before;
    const struct wave *other = item;

    (void)context;
    if (joined->place != other->place || joined->left != other->left)
        fail("items of other keys are merged", joined->place, other->place);
    joined->times += other->times;
}

/* Handlers push to the table while an item leaves it, which finds no room in its queue now and then. */
static void merge_in_handlers(void)
{
    const uint64_t count = 20000;

    for (size_t places = 4; places <= 1024; places *= 16) {
        trihop_stream_t *stream;
        uint64_t all[2] = {0, 0}, held;

        ended = 0;
        OK(trihop_stream_open(job, "waves", sizeof(struct wave), NULL, on_waves, NULL, &stream));
        OK(trihop_merging_over(stream, places, key_of_wave, join_waves, NULL, &waves));
        OK(trihop_barrier(job));
        for (uint64_t number = 0; number < count; number++) {
            struct wave wave = {number % 64, 1 + number % 5, 1};

            OK(trihop_merging_push(waves, (uint32_t)(number % size), &wave));
        }
        do {
            OK(trihop_merging_flush(waves));
            OK(trihop_stream_fence(stream));
            held = trihop_merging_held(waves);
            EQUAL(held <= places, 1);
            OK(trihop_allreduce(job, TRIHOP_SUM, &held, 1));
        } while (held > 0);
        all[0] = ended;
        all[1] = count;
        OK(trihop_allreduce(job, TRIHOP_SUM, all, 2));
        EQUAL(all[0], all[1]);
        OK(trihop_stream_close(stream));
        trihop_merging_free(waves);
    }
    EQUAL(trihop_merging_held(NULL), 0);
}

static void join_values(void)
{
    uint64_t bits[2], before[2] = {rank + 1, 1}, given[3] = {0, 0, 0}, all_ranks = (UINT64_C(1) << size) - 1;
    int64_t numbers[2] = {-(int64_t)rank, (int64_t)rank - 1}, least[1] = {(int64_t)rank};
    double floats[2] = {1.0 / (rank + 3), -(double)rank}, same[2], above[1] = {rank + 0.5};
    size_t *lengths = calloc(size, sizeof *lengths), total = 0;
    char *all, mine[3];

    bits[0] = UINT64_C(1) << rank;
    bits[1] = ~(UINT64_C(1) << rank) & all_ranks;
    OK(trihop_allreduce(job, TRIHOP_OR, bits, 1));
    OK(trihop_allreduce(job, TRIHOP_AND, bits + 1, 1));
    EQUAL(bits[0], all_ranks);
    EQUAL(bits[1], 0);

    OK(trihop_allreduce_i64(job, TRIHOP_MIN, numbers, 2));
    EQUAL((uint64_t)numbers[0], (uint64_t)(1 - (int64_t)size));
    EQUAL((uint64_t)numbers[1], (uint64_t)-1);

    OK(trihop_allreduce_f64(job, TRIHOP_SUM, floats, 2));
    EQUAL((uint64_t)-floats[1], (uint64_t)size * (size - 1) / 2);
    EQUAL(trihop_allreduce_f64(job, TRIHOP_XOR, floats, 2), TRIHOP_ERR_CONFIG);
    /* All ranks have the same bits. */
    memcpy(same, floats, sizeof same);
    OK(trihop_broadcast(job, size - 1, same, sizeof same));
    EQUAL(memcmp(same, floats, sizeof same), 0);

    OK(trihop_exscan(job, TRIHOP_SUM, before, 2));
    EQUAL(before[0], (uint64_t)rank * (rank + 1) / 2);
    EQUAL(before[1], rank);
    OK(trihop_exscan_i64(job, TRIHOP_MAX, least, 1));
    EQUAL((uint64_t)least[0], rank == 0 ? (uint64_t)INT64_MIN : rank - 1);
    OK(trihop_exscan_f64(job, TRIHOP_MIN, above, 1));
    EQUAL(rank == 0 ? above[0] > 1e300 : above[0] < 0.6, 1);

    for (uint32_t root = 0; root < size; root++) {
        given[0] = given[2] = rank == root ? root + 7 : 0;
        OK(trihop_broadcast(job, root, given, sizeof given));
        EQUAL(given[0], root + 7);
        EQUAL(given[1], 0);
        EQUAL(given[2], root + 7);
    }
    EQUAL(trihop_broadcast(job, size, given, sizeof given), TRIHOP_ERR_RANK);

    for (uint32_t other = 0; other < size; other++) {
        lengths[other] = other % 3;
        total += lengths[other];
    }
    all = calloc(1, total + 1);
    memset(mine, 'a' + (int)rank, sizeof mine);
    OK(trihop_allgatherv(job, mine, lengths[rank], all, lengths));
    for (uint32_t other = 0, at = 0; other < size; other++)
        for (size_t left = lengths[other]; left > 0; left--, at++)
            EQUAL((uint64_t)all[at], 'a' + other);
    free(all);
    free(lengths);
}

int main(int argc, char **argv)
{
    is_inline = argc < 2 || strcmp(argv[1], "threaded") != 0;
    steps = argc > 2 ? strtoull(argv[2], NULL, 10) : 100;
    if (trihop_init(is_inline ? TRIHOP_INLINE : TRIHOP_THREADED, NULL, &job) != TRIHOP_OK) {
        fprintf(stderr, "trihop_init: %s\n", trihop_last_error());
        return EXIT_FAILURE;
    }
    rank = trihop_rank(job);
    size = trihop_size(job);
    take_steps();
    take_steps_of_contributors();
    convey();
    bounce();
    ask_and_answer();
    merge();
    merge_in_handlers();
    join_values();
    if (rank == 0)
        printf("%" PRIu32 " ranks, %" PRIu64 " steps\n", size, steps);
    OK(trihop_finalize(job));
    return EXIT_SUCCESS;
}

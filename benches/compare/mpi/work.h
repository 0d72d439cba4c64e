/* The three works: what an item is, whom it goes to, and what its receiver does with it. As `trihop bench` does them. */
#ifndef WORK_H
#define WORK_H

#include "measure.h"

#define ALWAYS static inline __attribute__((always_inline))
#define TABLE 1000000u /* entries per rank */

struct channel;

struct work {
    long count;        /* items that this rank sends */
    size_t item;       /* bytes */
    uint64_t *indices; /* one for each item: global index, or target */
    uint64_t *table;   /* histo: counts; ig: values */
    uint64_t *result;  /* ig: one for each request */
    char *message;     /* a2a: what is sent, but for its first word */
    uint64_t messages, sum;
    uint64_t expected_messages, expected_sum;
    struct channel *replies; /* ig by a streaming engine */
};

/* Functions of a work. `const` objects of this type are known where engines are instantiated, so that calls are inlined. */
struct ops {
    int (*target)(const struct work *, long number);
    void (*fill)(const struct work *, long number, void *place);
    void (*take)(struct work *, const void *item, int source);
    void (*answer)(const struct work *, const void *request, void *reply); /* ig: by the owner of the table */
};

struct slot_and_word {
    uint64_t slot, word;
};

ALWAYS int owner(const struct work *w, long number)
{
    return (int)(w->indices[number] % (unsigned)ranks);
}

ALWAYS uint64_t local_index(const struct work *w, long number)
{
    return w->indices[number] / (unsigned)ranks;
}

ALWAYS void histo_fill(const struct work *w, long number, void *place)
{
    uint64_t local = local_index(w, number);
    memcpy(place, &local, sizeof local);
}

ALWAYS void histo_take(struct work *w, const void *item, int source)
{
    uint64_t local;
    (void)source;
    memcpy(&local, item, sizeof local);
    w->table[local]++;
}

ALWAYS void ig_fill(const struct work *w, long number, void *place)
{
    struct slot_and_word request = {(uint64_t)number, local_index(w, number)};
    memcpy(place, &request, sizeof request);
}

ALWAYS void ig_answer(const struct work *w, const void *item, void *place)
{
    struct slot_and_word both;
    memcpy(&both, item, sizeof both);
    both.word = w->table[both.word];
    memcpy(place, &both, sizeof both);
}

ALWAYS void ig_take(struct work *w, const void *item, int source)
{
    struct slot_and_word reply;
    (void)source;
    memcpy(&reply, item, sizeof reply);
    w->result[reply.slot] = reply.word;
}

ALWAYS int a2a_target(const struct work *w, long number)
{
    return (int)w->indices[number];
}

/* A size of 8, 128 or 1024 is a constant by the time that this is compiled. */
ALWAYS void a2a_fill_bytes(const struct work *w, long number, void *place, size_t bytes)
{
    uint64_t word = (uint64_t)number;
    memcpy(place, w->message, bytes);
    memcpy(place, &word, sizeof word);
}

ALWAYS void a2a_take(struct work *w, const void *item, int source)
{
    uint64_t word;
    (void)source;
    memcpy(&word, item, sizeof word);
    w->messages++;
    w->sum += word;
}

ALWAYS void a2a_fill(const struct work *w, long number, void *place) { a2a_fill_bytes(w, number, place, w->item); }
ALWAYS void a2a_fill_8(const struct work *w, long number, void *place) { a2a_fill_bytes(w, number, place, 8); }
ALWAYS void a2a_fill_128(const struct work *w, long number, void *place) { a2a_fill_bytes(w, number, place, 128); }
ALWAYS void a2a_fill_1024(const struct work *w, long number, void *place) { a2a_fill_bytes(w, number, place, 1024); }

static const struct ops histo = {owner, histo_fill, histo_take, NULL};
static const struct ops ig = {owner, ig_fill, ig_take, ig_answer};
static const struct ops a2a = {a2a_target, a2a_fill, a2a_take, NULL};
static const struct ops a2a_8 = {a2a_target, a2a_fill_8, a2a_take, NULL};
static const struct ops a2a_128 = {a2a_target, a2a_fill_128, a2a_take, NULL};
static const struct ops a2a_1024 = {a2a_target, a2a_fill_1024, a2a_take, NULL};

/* What the entry of a global index holds in `ig`. */
static uint64_t table_value(uint64_t index)
{
    return next_random(&index);
}

/* Everything that is there before the clock starts; collective. */
static void prepare(struct work *w, const char *bench)
{
    int is_a2a = strcmp(bench, "a2a") == 0;
    uint64_t seed = (uint64_t)rank + (is_a2a ? 77 : 1);
    uint64_t *expected = allocate(2 * sizeof *expected * (size_t)ranks), mine[2];
    w->indices = allocate((size_t)w->count * sizeof *w->indices);
    for (long i = 0; i < w->count; i++) {
        w->indices[i] = next_random(&seed) % (is_a2a ? (unsigned)ranks : (uint64_t)TABLE * (unsigned)ranks);
        int target = is_a2a ? a2a_target(w, i) : owner(w, i);
        expected[2 * target]++;
        expected[2 * target + 1] += is_a2a ? (uint64_t)i : local_index(w, i);
    }
    MPI_Reduce_scatter_block(expected, mine, 2, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    w->expected_messages = mine[0];
    w->expected_sum = mine[1];
    free(expected);
    w->table = is_a2a ? NULL : allocate(TABLE * sizeof *w->table);
    w->result = allocate((size_t)w->count * sizeof *w->result);
    w->message = allocate(w->item);
    memset(w->message, 0x5a, w->item);
}

static void release(struct work *w)
{
    free(w->indices);
    free(w->table);
    free(w->result);
    free(w->message);
}

/* Before a repetition. */
static void reset(struct work *w, const char *bench)
{
    w->messages = w->sum = 0;
    memset(w->result, 0, (size_t)w->count * sizeof *w->result);
    if (w->table)
        for (uint64_t i = 0; i < TABLE; i++)
            w->table[i] = strcmp(bench, "ig") == 0 ? table_value(i * (unsigned)ranks + (unsigned)rank) : 0;
}

/* After it: a wrong result ends the program. */
static void verify(struct work *w, const char *bench)
{
    if (strcmp(bench, "ig") == 0) {
        for (long i = 0; i < w->count; i++)
            if (w->result[i] != table_value(w->indices[i]))
                fail("a gathered value", (long long)w->result[i], (long long)table_value(w->indices[i]));
        return;
    }
    for (uint64_t i = 0; w->table && i < TABLE; i++) {
        w->messages += w->table[i];
        w->sum += i * w->table[i];
    }
    if (w->messages != w->expected_messages)
        fail("number of messages", (long long)w->messages, (long long)w->expected_messages);
    if (w->sum != w->expected_sum)
        fail("sum", (long long)w->sum, (long long)w->expected_sum);
}

#endif

/* Arrays of a C program: `arrays inline|threaded [lost]`. Says how many ranks there are. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <trihop.h>

#include "check.h"

enum { KEYS = 24, ITEMS = 600, NEWS = 5, STEPS = 4 };

/* An item that is news to all; others are added up. */
static const uint64_t ALL = UINT64_C(1) << 40;

static trihop_job_t *job;
static uint32_t rank, size;
static int is_inline;

static void fail(const char *what, uint64_t got, uint64_t wanted)
{
    fprintf(stderr, "rank %" PRIu32 ": %s: %" PRIu64 ", not %" PRIu64 " (%s)\n", rank, what, got, wanted,
            trihop_last_error());
    trihop_abort(job, EXIT_FAILURE, what);
    exit(EXIT_FAILURE);
}

static uint64_t mixed(uint64_t number)
{
    return (number * UINT64_C(0x9e3779b97f4a7c15) >> 20) ^ (number >> 3);
}

/* Elements that the library keeps move about while items, and news for all, are on their way to them. */

struct wanderer {
    uint64_t sum, items, news, moves;
};

static void meet(void *context, const trihop_array_item_t *item)
{
    struct wanderer *had = item->element;
    uint64_t number;
    EQUAL(item->length, sizeof number);
    EQUAL((uintptr_t)item->bytes % 8, 0);
    number = *(const uint64_t *)item->bytes;
    EQUAL(context == &job, 1);
    EQUAL(item->rank, rank);
    EQUAL(item->size, size);
    if (number == ALL) {
        had->news++;
    } else {
        had->sum += number;
        had->items++;
    }
    if (mixed(item->key + had->items + had->news * 7) % 5 == 0) {
        had->moves++;
        OK(trihop_array_migrate(item->array, item->key, (uint32_t)(mixed(item->key ^ had->sum) % size)));
    }
    if (number % 7 == 1 && number < ALL) {
        number--;
        OK(trihop_array_push(item->array, (item->key + number + 1) % KEYS, &number, sizeof number));
    }
}

static void note_first(void *context, uint64_t key, void *element)
{
    (void)element;
    *(uint64_t *)context = key;
}

/* Ranks that send in steps: those with elements, which are their contributors. A step may be over for the others. */
static uint64_t senders;

static void check_news(void *context, uint64_t key, void *element)
{
    struct wanderer *had = element;
    (void)key;
    EQUAL(had->news, NEWS * senders);
    had->news = 0;
    ++*(size_t *)context;
}

static void add_up(void *context, uint64_t key, void *element)
{
    uint64_t *all = context;
    const struct wanderer *had = element;
    all[0] += had->sum;
    all[1] += had->items;
    all[2] += had->moves;
    all[3] += 1;
    all[4] += key;
}

/* Steps of an array that follow each other by what is called when they are over. */

struct chain {
    trihop_array_t *array;
    uint64_t left;
};

static void begin_next(struct chain *chain);

static void on_start(void *context, const trihop_stream_t *none)
{
    struct chain *chain = context;

    EQUAL(none != NULL, 0);
    OK(trihop_array_done(chain->array, 1));
}

static void on_end(void *context, const trihop_stream_t *none)
{
    struct chain *chain = context;
    uint64_t left = chain->left - 1;

    EQUAL(none != NULL, 0);
    if (left > 0)
        begin_next(chain);
    __atomic_store_n(&chain->left, left, __ATOMIC_RELEASE);
}

static void begin_next(struct chain *chain)
{
    trihop_step_options_t options;

    OK(trihop_step_options_init(&options, sizeof options));
    options.count = 1;
    options.at_start = on_start;
    options.at_end = on_end;
    options.context = chain;
    OK(trihop_array_begin_step_with(chain->array, &options));
}

static void follow_steps(trihop_array_t *array)
{
    struct chain chain = {array, 20};
    int moved;

    EQUAL(trihop_array_begin_step_with(array, NULL), TRIHOP_ERR_INVALID_ARGUMENT);
    begin_next(&chain);
    while (__atomic_load_n(&chain.left, __ATOMIC_ACQUIRE) > 0)
        OK(trihop_poll(job, &moved));
    /* The last end was told to its call, and is said once. */
    (void)trihop_array_test(array, &moved);
    OK(trihop_array_fence(array));
}

static void wander(void)
{
    trihop_array_t *array;
    trihop_array_calls_t calls = {sizeof calls, meet, .context = &job, .element_bytes = sizeof(struct wanderer)};
    uint64_t all[5] = {0}, per_sender[2] = {0}, late, mine = 0;
    const struct wanderer none = {0};
    size_t count = 0;
    OK(trihop_array_open(job, "wanderers", NULL, &calls, &array));
    for (uint64_t key = 0; key < KEYS; key++)
        if (mixed(key) % size == rank) {
            OK(trihop_array_insert(array, key, &none));
            EQUAL(trihop_array_insert(array, key, &none), TRIHOP_ERR_MISUSE);
            mine++;
        }
    OK(trihop_array_count(array, &count));
    EQUAL(count, mine);
    senders = mine > 0;
    OK(trihop_allreduce(job, TRIHOP_SUM, &senders, 1));
    OK(trihop_array_fence(array));
    for (uint64_t step = 0; step < STEPS; step++) {
        OK(trihop_array_begin_step(array));
        for (uint64_t number = 0; mine > 0 && number < ITEMS; number++) {
            const uint64_t item = number % 50;
            OK(trihop_array_push(array, mixed(number + step) % KEYS, &item, sizeof item));
            if (number % (ITEMS / NEWS) == 3)
                OK(trihop_array_broadcast(array, &ALL, sizeof ALL));
            if (number % 50 == 0) {
                uint64_t first = 0;
                trihop_status_t status;
                OK(trihop_array_each(array, note_first, &first));
                status = trihop_array_migrate(array, first, (rank + 1) % size);
                /* A handler may have had it move in between. */
                if (status != TRIHOP_ERR_MISUSE)
                    OK(status);
            }
        }
        /* For as many elements as the rank had first, wherever they are: some ranks have none. */
        OK(trihop_array_done(array, mine));
        if (step % 2 == 0) {
            OK(trihop_array_wait(array));
        } else {
            int is_over = 0;
            while (!is_over)
                OK(trihop_array_test(array, &is_over));
        }
        OK(trihop_barrier(job));
        count = 0;
        OK(trihop_array_each(array, check_news, &count));
        OK(trihop_barrier(job));
    }
    follow_steps(array);
    EQUAL(trihop_array_wait(array), TRIHOP_ERR_MISUSE);
    EQUAL(trihop_array_done(array, 1), TRIHOP_ERR_MISUSE);
    OK(trihop_array_each(array, add_up, all));
    OK(trihop_allreduce(job, TRIHOP_SUM, all, 5));
    OK(trihop_array_late(array, &late));
    OK(trihop_allreduce(job, TRIHOP_SUM, &late, 1));
    OK(trihop_array_close(array));
    /* What was sent, and what handlers made of it. */
    for (uint64_t number = 0; number < ITEMS; number++) {
        const uint64_t item = number % 50;
        per_sender[0] += item + (item % 7 == 1 ? item - 1 : 0);
        per_sender[1] += 1 + (item % 7 == 1);
    }
    EQUAL(all[0], per_sender[0] * STEPS * senders);
    EQUAL(all[1], per_sender[1] * STEPS * senders);
    EQUAL(all[2] > 100, 1);
    EQUAL(all[3], KEYS);
    EQUAL(all[4], KEYS * (KEYS - 1) / 2);
    EQUAL(size == 1 ? late == 0 : late > 0, 1);
}

/* Items in one call, to elements that this rank owns in the call itself, and fences with calls. */

struct sums {
    trihop_array_t *array;
    uint64_t heard, fences;
};

static void sum_up(void *context, const trihop_array_item_t *item)
{
    struct sums *sums = context;
    *(uint64_t *)item->element += *(const uint32_t *)item->bytes;
    sums->heard++;
}

static void push_to_all(void *context, const trihop_stream_t *none)
{
    struct sums *sums = context;
    uint64_t keys[KEYS];
    uint32_t items[KEYS];
    size_t sent = 0;
    (void)none;
    for (uint64_t key = 0; key < KEYS; key++) {
        keys[key] = key;
        items[key] = 2;
    }
    OK(trihop_array_push_many(sums->array, keys, items, sizeof *items, KEYS, &sent));
    EQUAL(sent, KEYS);
}

static void on_fence(void *context, const trihop_stream_t *none)
{
    struct sums *sums = context;
    (void)none;
    __atomic_add_fetch(&sums->fences, 1, __ATOMIC_RELEASE);
}

static void add_sum(void *context, uint64_t key, void *element)
{
    (void)key;
    *(uint64_t *)context += *(const uint64_t *)element;
}

static void add_at_once(void)
{
    struct sums sums = {0};
    trihop_array_calls_t calls = {sizeof calls, sum_up, .context = &sums, .element_bytes = sizeof(uint64_t)};
    trihop_step_options_t options;
    const uint64_t zero = 0, wrong_keys[2] = {0, 1};
    const uint32_t one = 1, ones[2] = {1, 1};
    uint64_t all = 0;
    OK(trihop_array_open(job, "sums", NULL, &calls, &sums.array));
    for (uint64_t key = rank; key < KEYS; key += size)
        OK(trihop_array_insert(sums.array, key, &zero));
    OK(trihop_array_fence(sums.array));
    EQUAL(trihop_array_own_at_once(sums.array), is_inline ? TRIHOP_OK : TRIHOP_ERR_CONFIG);
    if (is_inline) {
        OK(trihop_array_push(sums.array, rank, &one, sizeof one));
        EQUAL(sums.heard, 1);
        OK(trihop_array_try_push(sums.array, rank + size, &one, sizeof one));
        EQUAL(sums.heard, 2);
    } else {
        OK(trihop_array_push_many(sums.array, (uint64_t[]){rank, rank + size}, ones, sizeof one, 2, NULL));
    }
    OK(trihop_barrier(job)); /* from here on others push too */
    EQUAL(trihop_array_push_many(sums.array, wrong_keys, ones, SIZE_MAX, 2, NULL), TRIHOP_ERR_INVALID_ARGUMENT);
    EQUAL(trihop_array_push_many(sums.array, NULL, ones, sizeof one, 2, NULL), TRIHOP_ERR_INVALID_ARGUMENT);
    OK(trihop_array_push_many(sums.array, NULL, NULL, sizeof one, 0, NULL));
    OK(trihop_step_options_init(&options, sizeof options));
    options.at_start = push_to_all;
    options.at_end = on_fence;
    options.context = &sums;
    for (uint64_t fence = 1; fence <= 3; fence++) {
        OK(trihop_array_start_fence_with(sums.array, &options));
        OK(trihop_array_wait(sums.array));
        while (__atomic_load_n(&sums.fences, __ATOMIC_ACQUIRE) < fence) {
            int moved; /* with threads it may come after the wait */
            OK(trihop_poll(job, &moved));
        }
    }
    EQUAL(trihop_array_start_fence_with(sums.array, NULL), TRIHOP_ERR_INVALID_ARGUMENT);
    OK(trihop_array_each(sums.array, add_sum, &all));
    OK(trihop_allreduce(job, TRIHOP_SUM, &all, 1));
    EQUAL(all, (uint64_t)size * (2 + 3 * 2 * KEYS));
    OK(trihop_array_close(sums.array));
}

/* Elements of the program's, of any length, with owners of its own. */

struct list {
    uint64_t length;
    uint64_t *words;
};

static size_t packed, unpacked, freed;

static struct list *new_list(uint64_t length)
{
    struct list *list = malloc(sizeof *list);
    list->length = length;
    list->words = calloc(length + 1, sizeof *list->words);
    return list;
}

static void free_list(void *context, void *element)
{
    struct list *list = element;
    EQUAL(context == &size, 1);
    free(list->words);
    free(list);
    freed++;
}

static int pack_list(void *context, const void *element, trihop_packer_t *packer)
{
    const struct list *list = element;
    EQUAL(context == &size, 1);
    if (list->length == 13)
        return 13;
    OK(trihop_pack(packer, &list->length, sizeof list->length));
    OK(trihop_pack(packer, list->words, list->length * sizeof *list->words));
    EQUAL(trihop_pack(packer, NULL, 1), TRIHOP_ERR_INVALID_ARGUMENT);
    packed++;
    return 0;
}

static void *unpack_list(void *context, const void *bytes, size_t length)
{
    const uint64_t *words = bytes;
    struct list *list;
    EQUAL(context == &size, 1);
    EQUAL((uintptr_t)bytes % 8, 0);
    if (length != (words[0] + 1) * sizeof *words)
        return NULL;
    list = new_list(words[0]);
    memcpy(list->words, words + 1, length - sizeof *words);
    unpacked++;
    return list;
}

static uint32_t last_owns_all(void *context, uint64_t key)
{
    EQUAL(context == &size, 1);
    (void)key;
    return size - 1;
}

/* An item is a text, of any length, that is added up; it has the list grow, too. */
static void grow(void *context, const trihop_array_item_t *item)
{
    struct list *list = item->element;
    const char *text = item->bytes;
    EQUAL(context == &size, 1);
    for (size_t at = 0; at < item->length; at++)
        list->words[0] += (unsigned char)text[at];
    if (list->length < 20000 && list->length != 13) {
        list->length += 3000;
        list->words = realloc(list->words, (list->length + 1) * sizeof *list->words);
        for (uint64_t at = list->length - 3000; at < list->length; at++)
            list->words[at] = item->key;
        EQUAL(trihop_array_migrate(item->array, item->key, size), TRIHOP_ERR_RANK);
        EQUAL(trihop_array_migrate(item->array, item->key + size, 0), TRIHOP_ERR_NESTED);
        OK(trihop_array_migrate(item->array, item->key, (item->rank + 1) % size));
    }
}

static void check_list(void *context, uint64_t key, void *element)
{
    const struct list *list = element;
    uint64_t *all = context;
    for (uint64_t at = 5; at < list->length; at++)
        EQUAL(list->words[at], key);
    all[0] += list->words[0];
    all[1]++;
}

static void carry(void)
{
    trihop_array_t *array;
    trihop_array_calls_t calls = {.size = sizeof calls,
                                  .handler = grow,
                                  .context = &size,
                                  .owner = last_owns_all,
                                  .pack = pack_list,
                                  .unpack = unpack_list,
                                  .free = free_list};
    char text[1000];
    uint64_t all[2] = {0}, counts[3];
    size_t made = 0;
    int is_over = 0;
    void *removed;
    packed = unpacked = freed = 0;
    OK(trihop_array_open(job, "lists", NULL, &calls, &array));
    for (uint64_t key = rank; key < 10 * (uint64_t)size; key += size, made++)
        OK(trihop_array_insert(array, key, new_list(5)));
    OK(trihop_array_fence(array));
    memset(text, 1, sizeof text);
    for (int round = 0; round < 10; round++)
        for (uint64_t key = 0; key < 10 * (uint64_t)size; key++)
            OK(trihop_array_push(array, key, text, (size_t)round * 100));
    OK(trihop_array_start_fence(array));
    EQUAL(trihop_array_push(array, 0, text, 1), TRIHOP_ERR_MISUSE);
    EQUAL(trihop_array_fence(array), TRIHOP_ERR_MISUSE);
    while (!is_over)
        OK(trihop_array_test(array, &is_over));
    OK(trihop_array_each(array, check_list, all));
    OK(trihop_allreduce(job, TRIHOP_SUM, all, 2));
    EQUAL(all[0], UINT64_C(4500) * 10 * size * size);
    EQUAL(all[1], 10 * (uint64_t)size);

    /* One that cannot be packed stays; one that is removed is the program's. */
    removed = new_list(13);
    OK(trihop_array_insert(array, 1000 + rank, removed));
    if (size > 1)
        EQUAL(trihop_array_migrate(array, 1000 + rank, (rank + 1) % size), TRIHOP_ERR_CONFIG);
    OK(trihop_array_fence(array));
    OK(trihop_array_remove(array, 1000 + rank, &removed));
    EQUAL(((struct list *)removed)->length, 13);
    free_list(&size, removed);
    OK(trihop_array_remove(array, 1000 + rank, &removed));
    EQUAL(removed == NULL, 1);
    OK(trihop_array_insert(array, 2000 + rank, new_list(1)));
    made += 2;
    OK(trihop_array_remove(array, 2000 + rank, NULL));
    OK(trihop_array_close(array));
    /* All that were made or unpacked were freed. */
    counts[0] = freed, counts[1] = made + unpacked, counts[2] = packed - unpacked;
    EQUAL(counts[0], counts[1]);
    OK(trihop_allreduce(job, TRIHOP_SUM, counts, 3));
    EQUAL(counts[2], 0);
}

/* Handlers of streams push to arrays, and those of arrays to streams. */

static trihop_array_t *sums;
static trihop_stream_t *words;
static uint64_t answers;

static void hear(void *context, const trihop_message_t *message)
{
    const uint64_t number = message->kind;
    size_t count;
    (void)context;
    if (message->kind > 100) {
        answers++;
        return;
    }
    OK(trihop_array_push(sums, number, &number, sizeof number));
    if (trihop_array_try_push(sums, number, &number, sizeof number) != TRIHOP_OK)
        OK(trihop_array_push(sums, number, &number, sizeof number));
    if (is_inline)
        EQUAL(trihop_array_insert(sums, 1 << 20, &number), TRIHOP_ERR_NESTED);
    EQUAL(trihop_array_fence(sums), TRIHOP_ERR_NESTED);
    OK(trihop_array_count(sums, &count));
}

static void add(void *context, const trihop_array_item_t *item)
{
    uint64_t *sum = item->element;
    size_t count;
    void *removed;
    (void)context;
    *sum += *(const uint64_t *)item->bytes;
    OK(trihop_stream_send(words, (uint32_t)(item->key % size), 101, "", 0));
    EQUAL(trihop_array_count(item->array, &count), TRIHOP_ERR_NESTED);
    EQUAL(trihop_array_remove(item->array, item->key, &removed), TRIHOP_ERR_NESTED);
    EQUAL(trihop_array_insert(item->array, 1 << 20, sum), TRIHOP_ERR_NESTED);
    EQUAL(trihop_array_each(item->array, note_first, &count), TRIHOP_ERR_NESTED);
    EQUAL(trihop_array_close((trihop_array_t *)item->array), TRIHOP_ERR_NESTED);
}

static void refuse_nested(void *context, uint64_t key, void *element)
{
    size_t count;
    EQUAL(trihop_array_each(sums, refuse_nested, NULL), TRIHOP_ERR_NESTED);
    EQUAL(trihop_array_count(sums, &count), TRIHOP_ERR_NESTED);
    EQUAL(trihop_array_insert(sums, key + 1, element), TRIHOP_ERR_NESTED);
    EQUAL(trihop_array_migrate(sums, key, 0), TRIHOP_ERR_NESTED);
    EQUAL(trihop_array_fence(sums), TRIHOP_ERR_NESTED);
    EQUAL(trihop_array_close(sums), TRIHOP_ERR_NESTED);
    OK(trihop_array_push(sums, key, &key, sizeof key));
    ++*(uint64_t *)context;
}

static void send_across(void)
{
    trihop_array_calls_t calls = {sizeof calls, add, .element_bytes = sizeof(uint64_t)};
    uint64_t zero = 0, all[2] = {0}, visited = 0;
    OK(trihop_stream_open(job, "words", 0, NULL, hear, NULL, &words));
    OK(trihop_array_open(job, "sums", NULL, &calls, &sums));
    for (uint64_t key = rank; key < 100; key += size)
        OK(trihop_array_insert(sums, key, &zero));
    OK(trihop_array_fence(sums));
    for (uint32_t key = 0; key < 100; key++)
        OK(trihop_stream_send(words, key % size, key, "", 0));
    OK(trihop_fence(job));
    all[0] = answers;
    OK(trihop_array_each(sums, refuse_nested, &visited));
    all[1] = visited;
    OK(trihop_allreduce(job, TRIHOP_SUM, all, 2));
    EQUAL(all[0], UINT64_C(200) * size);
    EQUAL(all[1], 100);
    OK(trihop_start_fence(job));
    EQUAL(trihop_array_close(sums), TRIHOP_ERR_MISUSE);
    EQUAL(trihop_stream_close(words), TRIHOP_ERR_MISUSE);
    OK(trihop_wait_fence(job));
    /* Both are still there, and so are their handlers. */
    OK(trihop_stream_send(words, rank, rank, "", 0));
    OK(trihop_fence(job));
    all[0] = answers;
    OK(trihop_allreduce(job, TRIHOP_SUM, all, 1));
    EQUAL(all[0], UINT64_C(202) * size + 100);
    OK(trihop_array_close(sums));
    OK(trihop_stream_close(words));
}

static void refuse(void)
{
    trihop_array_t *array = NULL;
    trihop_array_calls_t calls = {0};
    uint64_t element = 0;
    int is_over;
    EQUAL(trihop_array_open(job, "none", NULL, &calls, &array), TRIHOP_ERR_INVALID_ARGUMENT);
    calls.size = sizeof calls;
    EQUAL(trihop_array_open(job, "none", NULL, &calls, &array), TRIHOP_ERR_INVALID_ARGUMENT);
    calls.handler = add;
    calls.pack = pack_list;
    EQUAL(trihop_array_open(job, "none", NULL, &calls, &array), TRIHOP_ERR_INVALID_ARGUMENT);
    calls.unpack = unpack_list;
    calls.element_bytes = 8;
    EQUAL(trihop_array_open(job, "none", NULL, &calls, &array), TRIHOP_ERR_INVALID_ARGUMENT);
    EQUAL(trihop_array_open(job, "none", NULL, NULL, &array), TRIHOP_ERR_INVALID_ARGUMENT);
    EQUAL(array == NULL, 1);
    EQUAL(trihop_array_push(NULL, 0, NULL, 0), TRIHOP_ERR_INVALID_ARGUMENT);
    EQUAL(trihop_array_close(NULL), TRIHOP_ERR_INVALID_ARGUMENT);

    calls.pack = NULL;
    calls.unpack = NULL;
    calls.element_bytes = 0;
    OK(trihop_array_open(job, "few", NULL, &calls, &array));
    EQUAL(trihop_array_insert(array, rank, NULL), TRIHOP_ERR_INVALID_ARGUMENT);
    EQUAL(trihop_array_push(array, rank, NULL, 8), TRIHOP_ERR_INVALID_ARGUMENT);
    OK(trihop_array_insert(array, rank, &element));
    EQUAL(trihop_array_migrate(array, rank, size), TRIHOP_ERR_RANK);
    EQUAL(trihop_array_migrate(array, rank + size, rank), TRIHOP_ERR_MISUSE);
    OK(trihop_array_migrate(array, rank, rank));
    if (size > 1)
        EQUAL(trihop_array_migrate(array, rank, (rank + 1) % size), TRIHOP_ERR_CONFIG);
    EQUAL(trihop_array_test(array, &is_over), TRIHOP_ERR_MISUSE);
    EQUAL(trihop_array_each(array, NULL, NULL), TRIHOP_ERR_INVALID_ARGUMENT);
    OK(trihop_array_close(array));
}

/* An item for an element that was removed is not lost without a word. */
static int lose(void)
{
    trihop_array_t *array;
    trihop_array_calls_t calls = {sizeof calls, add, .element_bytes = sizeof(uint64_t)};
    const uint64_t zero = 0;
    OK(trihop_array_open(job, "lost", NULL, &calls, &array));
    OK(trihop_array_insert(array, 7, &zero));
    OK(trihop_array_fence(array));
    OK(trihop_array_remove(array, 7, NULL));
    OK(trihop_array_push(array, 7, &zero, sizeof zero));
    EQUAL(trihop_array_fence(array), TRIHOP_ERR_BAD_PEER);
    EQUAL(trihop_array_close(array), TRIHOP_ERR_BAD_PEER);
    EQUAL(trihop_finalize(job), TRIHOP_ERR_BAD_PEER);
    puts("lost");
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    is_inline = argc < 2 || strcmp(argv[1], "threaded") != 0;
    if (trihop_init(is_inline ? TRIHOP_INLINE : TRIHOP_THREADED, NULL, &job) != TRIHOP_OK) {
        fprintf(stderr, "trihop_init: %s\n", trihop_last_error());
        return EXIT_FAILURE;
    }
    rank = trihop_rank(job);
    size = trihop_size(job);
    if (argc > 2)
        return lose();
    wander();
    carry();
    add_at_once();
    send_across();
    refuse();
    if (rank == 0)
        printf("%" PRIu32 " ranks\n", size);
    OK(trihop_finalize(job));
    return EXIT_SUCCESS;
}

/* Ranks that are threads: `miniranks MINIS`. Everything of the interface works on each as on a process's rank; the first
 * mini-rank of the first process says how many ranks there were. `miniranks MINIS WHAT` makes a mistake, or ends badly. */
#include <dirent.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trihop.h>
#include <unistd.h>

#define ITEMS 3000u

static void fail(const char *what, uint64_t got, uint64_t wanted)
{
    fprintf(stderr, "%s: %" PRIu64 ", expected %" PRIu64 " (%s)\n", what, got, wanted, trihop_last_error());
    exit(1);
}

#include "../steps/check.h"

static trihop_miniranks_t *miniranks;
static uint64_t at_barrier; /* read and written between barriers of the process */
static const char *mode = "";

struct rank {
    uint32_t index;
    trihop_job_t *job;
    trihop_stream_t *stream;
    uint64_t heard, sum, bytes;
    pthread_t thread;
};

static void on_items(void *context, const trihop_message_t *message)
{
    struct rank *rank = context;
    const uint64_t *items = message->bytes;
    size_t at;

    rank->heard += message->count;
    for (at = 0; at < message->count; at++)
        rank->sum += items[at];
}

/* Answers each record of kind 0 once. */
static void on_records(void *context, const trihop_message_t *message)
{
    struct rank *rank = context;

    rank->heard++;
    rank->bytes += message->length;
    if (message->kind == 0)
        OK(trihop_stream_send(message->stream, message->source, 1, message->bytes, message->length));
}

static void items(struct rank *rank, uint32_t me, uint32_t size)
{
    trihop_stats_t stats;
    uint64_t sent, sums[2];
    uint32_t step;

    rank->heard = rank->sum = 0;
    OK(trihop_stream_open(rank->job, "items", sizeof sent, NULL, on_items, rank, &rank->stream));
    for (step = 1; step <= 3; step++) {
        for (sent = 0; sent < ITEMS; sent++)
            OK(trihop_stream_push(rank->stream, (uint32_t)(sent + me) % size, &sent));
        OK(step == 3 ? trihop_stream_fence(rank->stream) : trihop_stream_round(rank->stream));
        sums[0] = rank->heard;
        sums[1] = rank->sum;
        OK(trihop_allreduce(rank->job, TRIHOP_SUM, sums, 2));
        EQUAL(sums[0], (uint64_t)step * ITEMS * size);
        EQUAL(sums[1], (uint64_t)step * size * (ITEMS * (ITEMS - 1) / 2));
    }
    OK(trihop_stream_stats(rank->stream, &stats, sizeof stats));
    EQUAL(stats.delivered, rank->heard);
    OK(trihop_stream_close(rank->stream));
}

static void records(struct rank *rank, uint32_t me, uint32_t size)
{
    static const size_t lengths[] = {0, 5, 700, 30000, 200000};
    char *bytes = calloc(1, 200000);
    uint64_t expected = 0;
    uint32_t to;
    size_t at;

    rank->heard = rank->bytes = 0;
    OK(trihop_stream_open(rank->job, "records", 0, NULL, on_records, rank, &rank->stream));
    for (at = 0; at < sizeof lengths / sizeof *lengths; at++) {
        for (to = 0; to < size; to++)
            OK(trihop_stream_send(rank->stream, (me + to) % size, 0, bytes, lengths[at]));
        expected += 2 * lengths[at] * size; /* asked by all, and answered by all */
    }
    OK(trihop_stream_fence(rank->stream));
    EQUAL(rank->heard, 2 * at * size);
    EQUAL(rank->bytes, expected);
    OK(trihop_stream_close(rank->stream));
    free(bytes);
}

static void conveyor(struct rank *rank, uint32_t me, uint32_t size)
{
    trihop_conveyor_t *conveyor;
    uint64_t next = 0, pulled = 0;
    const void *item;
    int goes_on;

    OK(trihop_stream_open(rank->job, "conveyor", sizeof next, NULL, NULL, NULL, &rank->stream));
    OK(trihop_conveyor_over(rank->stream, &conveyor));
    for (;;) {
        OK(trihop_conveyor_advance(conveyor, next == ITEMS, &goes_on));
        if (!goes_on)
            break;
        while (next < ITEMS && trihop_conveyor_push(conveyor, (uint32_t)(next + me) % size, &next) == TRIHOP_OK)
            next++;
        while (trihop_conveyor_pull(conveyor, &item, NULL) == TRIHOP_OK)
            pulled++;
    }
    trihop_conveyor_free(conveyor);
    OK(trihop_allreduce(rank->job, TRIHOP_SUM, &pulled, 1));
    EQUAL(pulled, (uint64_t)ITEMS * size);
    OK(trihop_stream_close(rank->stream));
}

static void add(void *context, const trihop_array_item_t *item)
{
    (void)context;
    *(uint64_t *)item->element += *(const uint64_t *)item->bytes;
}

static void sum_up(void *context, uint64_t key, void *element)
{
    (void)key;
    *(uint64_t *)context += *(uint64_t *)element;
}

static void array(struct rank *rank, uint32_t me, uint32_t size)
{
    trihop_array_calls_t calls = {.size = sizeof calls, .handler = add, .element_bytes = sizeof(uint64_t)};
    const uint64_t zero = 0, two = 2;
    uint64_t key, sum = 0;
    trihop_array_t *cells;

    OK(trihop_array_open(rank->job, "cells", NULL, &calls, &cells));
    for (key = me; key < 100; key += size)
        OK(trihop_array_insert(cells, key, &zero));
    OK(trihop_array_fence(cells));
    for (key = 0; key < 100; key++)
        OK(trihop_array_push(cells, key, &two, sizeof two));
    OK(trihop_array_fence(cells));
    OK(trihop_array_each(cells, sum_up, &sum));
    OK(trihop_allreduce(rank->job, TRIHOP_SUM, &sum, 1));
    EQUAL(sum, (uint64_t)200 * size);
    OK(trihop_array_close(cells));
}

static void channels(struct rank *rank, uint32_t me, uint32_t size)
{
    char text[TRIHOP_CHANNEL_DESCRIPTOR_CHARS] = "";
    trihop_channels_t *all;
    trihop_channel_t *tasks;
    trihop_received_t task;
    size_t length;
    uint32_t got;

    OK(trihop_channels_open(rank->job, "channels", NULL, &all));
    if (me == 0) {
        OK(trihop_channel_create(all, NULL, &tasks));
        OK(trihop_channel_descriptor(tasks, text, sizeof text, &length));
    }
    OK(trihop_broadcast(rank->job, 0, text, sizeof text));
    if (me != 0) {
        OK(trihop_channel_attach(all, text, &tasks));
        OK(trihop_channel_send(tasks, me, "a task", 6, TRIHOP_WHEN_DEPOSITED, TRIHOP_NO_TIMEOUT));
    }
    for (got = 1; me == 0 && got < size; got++) {
        OK(trihop_channel_get(tasks, TRIHOP_NO_TIMEOUT, &task));
        EQUAL(task.length, 6);
        trihop_received_free(&task);
    }
    OK(trihop_barrier(rank->job));
    OK(trihop_channel_free(tasks));
    OK(trihop_channels_close(all));
}

/* Each mini-rank of the process in its turn. */
static void barriers(struct rank *rank)
{
    uint32_t count = trihop_minirank_count(miniranks), turn;

    for (turn = 0; turn < 50 * count; turn++) {
        if (turn % count == rank->index)
            at_barrier++;
        OK(trihop_minirank_barrier(rank->job));
        EQUAL(at_barrier, turn + 1);
        OK(trihop_minirank_barrier(rank->job));
    }
}

static void *elsewhere(void *context)
{
    struct rank *rank = context;
    const uint64_t item = 0;
    uint64_t one = 1;

    EQUAL(trihop_barrier(rank->job), TRIHOP_ERR_MISUSE);
    EQUAL(trihop_minirank_barrier(rank->job), TRIHOP_ERR_MISUSE);
    EQUAL(trihop_allreduce(rank->job, TRIHOP_SUM, &one, 1), TRIHOP_ERR_MISUSE);
    EQUAL(trihop_finalize(rank->job), TRIHOP_ERR_MISUSE);
    EQUAL(trihop_stream_fence(rank->stream), TRIHOP_ERR_MISUSE);
    EQUAL(trihop_stream_close(rank->stream), TRIHOP_ERR_MISUSE);
    EQUAL(trihop_stream_send(rank->stream, 0, 0, &item, sizeof item), TRIHOP_ERR_MISUSE);
    EQUAL(strstr(trihop_last_error(), "the thread that has started it") != NULL, 1);
    EQUAL(trihop_rank(rank->job) < trihop_size(rank->job), 1);
    return NULL;
}

static void mistakes(struct rank *rank)
{
    uint32_t count = trihop_minirank_count(miniranks);
    const uint64_t item = 0;
    trihop_job_t *none;
    pthread_t other;

    EQUAL(trihop_minirank_start(miniranks, count, &none), TRIHOP_ERR_INVALID_ARGUMENT);
    EQUAL(trihop_minirank_start(miniranks, rank->index, &none), TRIHOP_ERR_MISUSE);
    EQUAL(none == NULL, 1);
    EQUAL(trihop_minirank_finalize(miniranks), TRIHOP_ERR_MISUSE);
    OK(trihop_stream_open(rank->job, "left", sizeof item, NULL, on_items, rank, &rank->stream));
    EQUAL(pthread_create(&other, NULL, elsewhere, rank), 0);
    EQUAL(pthread_join(other, NULL), 0);
}

/* What the calling thread may run on, read back; and what the communication thread may. */
static void cores(uint32_t me)
{
    char path[512], line[256];
    struct dirent *entry;
    cpu_set_t set;
    DIR *threads;
    FILE *file;
    int core;

    EQUAL(sched_getaffinity(0, sizeof set, &set), 0);
    printf("rank %" PRIu32 ":", me);
    for (core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &set))
            printf(" %d", core);
    printf("\n");
    threads = opendir("/proc/self/task");
    while (threads != NULL && (entry = readdir(threads)) != NULL) {
        snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
        file = fopen(path, "r");
        if (file == NULL)
            continue;
        if (fgets(line, sizeof line, file) != NULL && strstr(line, "trihop-relay") != NULL)
            while (fgets(line, sizeof line, file) != NULL)
                if (strncmp(line, "Cpus_allowed_list:", 18) == 0)
                    printf("relay: %s", line + 19);
        fclose(file);
    }
    closedir(threads);
    fflush(stdout);
}

static void *work(void *context)
{
    struct rank *rank = context;
    uint32_t me, size, count = trihop_minirank_count(miniranks);
    const uint64_t item = 0;

    if (strcmp(mode, "lacks") == 0) {
        /* The last one is never started: the others hear of it. */
        if (rank->index + 1 < count) {
            EQUAL(trihop_minirank_start(miniranks, rank->index, &rank->job) != TRIHOP_OK, 1);
            EQUAL(strstr(trihop_last_error(), "bootstrap_timeout_ms has passed") != NULL, 1);
        }
        return NULL;
    }
    OK(trihop_minirank_start(miniranks, rank->index, &rank->job));
    me = trihop_rank(rank->job);
    size = trihop_size(rank->job);
    EQUAL(trihop_minirank_index(rank->job), rank->index);
    EQUAL(me % count, rank->index);
    if (strcmp(mode, "cores") == 0) {
        uint32_t turn;

        for (turn = 0; turn < size; turn++) {
            if (turn == me)
                cores(me);
            OK(trihop_barrier(rank->job));
        }
    } else if (strcmp(mode, "leaves") == 0) {
        /* All have started, then; the others may hear of the end of rank 1 in it already. */
        trihop_status_t status = trihop_barrier(rank->job);

        if (me == 1)
            return NULL;
        if (status == TRIHOP_OK)
            status = trihop_barrier(rank->job);
        EQUAL(status, TRIHOP_ERR_PEER_FAILED);
        EQUAL(strstr(trihop_last_error(), "rank 1") != NULL, 1);
        EQUAL(strstr(trihop_last_error(), "without shutting it down") != NULL, 1);
        trihop_finalize(rank->job);
        return NULL;
    } else if (strcmp(mode, "exits") == 0) {
        /* While the communication thread and the other threads run. */
        items(rank, me, size);
        trihop_barrier(rank->job); /* of which others may hear that some have gone */
        if (rank->index == 0)
            exit(7);
        pause();
    } else {
        items(rank, me, size);
        records(rank, me, size);
        conveyor(rank, me, size);
        array(rank, me, size);
        channels(rank, me, size);
        barriers(rank);
        mistakes(rank);
    }
    OK(trihop_finalize(rank->job));
    if (rank->stream != NULL && *mode == 0) {
        EQUAL(trihop_stream_push(rank->stream, 0, &item), TRIHOP_ERR_CLOSED);
        OK(trihop_stream_close(rank->stream));
    }
    if (me == 0)
        printf("%" PRIu32 " ranks\n", size);
    return NULL;
}

int main(int argc, char **argv)
{
    uint32_t minis = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 0) : 0, count, index;
    trihop_status_t status;
    struct rank *ranks;

    mode = argc > 2 ? argv[2] : "";
    status = trihop_minirank_init(minis, NULL, &miniranks);
    if (strcmp(mode, "refused") == 0) {
        EQUAL(status, TRIHOP_ERR_CONFIG);
        EQUAL(miniranks == NULL, 1);
        printf("%s\n", trihop_last_error());
        return 0;
    }
    OK(status);
    count = trihop_minirank_count(miniranks);
    ranks = calloc(count, sizeof *ranks);
    for (index = 0; index < count; index++) {
        ranks[index].index = index;
        EQUAL(pthread_create(&ranks[index].thread, NULL, work, &ranks[index]), 0);
    }
    for (index = 0; index < count; index++)
        EQUAL(pthread_join(ranks[index].thread, NULL), 0);
    status = trihop_minirank_finalize(miniranks);
    if (strcmp(mode, "lacks") == 0) {
        EQUAL(status != TRIHOP_OK, 1);
        return 0;
    }
    EQUAL(status, strcmp(mode, "leaves") == 0 ? TRIHOP_ERR_PEER_FAILED : TRIHOP_OK);
    free(ranks);
    return 0;
}

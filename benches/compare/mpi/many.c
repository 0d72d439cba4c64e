/* many ENGINE BENCH SIZE REPS COUNT...: many to many over MPI, from barrier to barrier, every result verified.
 *
 *   ENGINE  isend      one MPI_Isend per item, 64 receives posted
 *           aggregate  four buffers of 32 KiB per target, filled by hand; those to oneself are not sent
 *           alltoallv  count, sort, one MPI_Alltoallv
 *   BENCH   histo, ig, a2a: the works of `trihop bench`
 *   SIZE    bytes of an item: 8 for histo, 16 for ig
 *   COUNT   items per rank and repetition; a row for each
 *
 * One warm-up, REPS repetitions, the rate by the slowest rank, the median of the repetitions. */

#include "bulk.h"
#include "stream.h"

#define BUFFER_BYTES (32 << 10)
#define REQUESTS 10 /* tags; each channel takes two */
#define REPLIES 20

/* One instance per engine and work, so that the work's functions are inlined. */
#define INSTANCE(name, bytes)                                                                                                \
    __attribute__((noinline)) static void stream_##name(struct work *w, struct channel *c) { stream(w, &name, bytes, c); }   \
    __attribute__((noinline)) static void bulk_##name(struct work *w, struct staging *s) { bulk(w, &name, bytes, s); }

INSTANCE(histo, 8)
INSTANCE(ig, 16)
INSTANCE(a2a, w->item)
INSTANCE(a2a_8, 8)
INSTANCE(a2a_128, 128)
INSTANCE(a2a_1024, 1024)

static const struct {
    const char *bench;
    size_t size; /* 0: any other */
    void (*stream)(struct work *, struct channel *);
    void (*bulk)(struct work *, struct staging *);
} instances[] = {
    {"histo", 8, stream_histo, bulk_histo},         {"ig", 16, stream_ig, bulk_ig},
    {"a2a", 8, stream_a2a_8, bulk_a2a_8},           {"a2a", 128, stream_a2a_128, bulk_a2a_128},
    {"a2a", 1024, stream_a2a_1024, bulk_a2a_1024},  {"a2a", 0, stream_a2a, bulk_a2a},
};

static int instance_of(const char *bench, size_t size)
{
    for (int i = 0; i < (int)(sizeof instances / sizeof *instances); i++)
        if (strcmp(instances[i].bench, bench) == 0 && (instances[i].size == size || (instances[i].size == 0 && size >= 8)))
            return i;
    return -1;
}

static void measure(const char *engine, int instance, size_t size, int reps, long count)
{
    const char *bench = instances[instance].bench;
    int bulk = strcmp(engine, "alltoallv") == 0, isend = strcmp(engine, "isend") == 0;
    int items = isend ? 1 : size < BUFFER_BYTES ? (int)(BUFFER_BYTES / size) : 1;
    struct shape by_item = {1, 32, 64, 16, 0}, by_buffer = {items, 4, 16, 1, 1};
    struct work w = {.count = count, .item = size};
    struct channel requests, replies;
    struct staging staging;
    struct row row = {.bench = bench, .engine = engine, .size = size, .count = count, .latency_us = -1, .reps = reps};
    prepare(&w, bench);
    if (bulk) {
        open_staging(&staging, &w);
    } else {
        open_channel(&requests, REQUESTS, size, isend ? by_item : by_buffer);
        open_channel(&replies, REPLIES, size, isend ? by_item : by_buffer);
        w.replies = &replies;
    }
    for (int rep = -1; rep < reps; rep++) {
        reset(&w, bench);
        MPI_Barrier(MPI_COMM_WORLD);
        double cpu = cpu_seconds(), start = MPI_Wtime();
        if (bulk)
            instances[instance].bulk(&w, &staging);
        else
            instances[instance].stream(&w, &requests);
        double seconds = MPI_Wtime() - start;
        cpu = cpu_seconds() - cpu;
        MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        MPI_Allreduce(MPI_IN_PLACE, &cpu, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        verify(&w, bench);
        if (rep >= 0) {
            row.seconds[rep] = seconds;
            row.cpu[rep] = cpu;
        }
    }
    if (bulk) {
        close_staging(&staging);
    } else {
        close_channel(&requests);
        close_channel(&replies);
    }
    release(&w);
    row.messages = (double)count * ranks;
    print_row(&row);
}

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    int known = argc > 5 && (!strcmp(argv[1], "isend") || !strcmp(argv[1], "aggregate") || !strcmp(argv[1], "alltoallv"));
    size_t size = known ? (size_t)number(argv[3]) : 0;
    int instance = known ? instance_of(argv[2], size) : -1;
    if (instance < 0) {
        if (rank == 0)
            fprintf(stderr, "usage: many isend|aggregate|alltoallv histo|ig|a2a SIZE REPS COUNT...; histo has 8 bytes, ig 16, "
                            "a2a 8 or more\n");
        MPI_Finalize();
        return 2;
    }
    long reps = number(argv[4]);
    for (int i = 5; i < argc; i++)
        measure(argv[1], instance, size, (int)(reps < MEDIAN_MAX ? reps : MEDIAN_MAX), number(argv[i]));
    MPI_Finalize();
    return 0;
}

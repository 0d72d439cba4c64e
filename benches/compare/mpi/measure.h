/* What the MPI programs share: random numbers, clocks, cores, and the row that they print. */
#ifndef MEASURE_H
#define MEASURE_H

#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MEDIAN_MAX 64 /* most repetitions */

static int rank, ranks;
static int crowded; /* more ranks than cores: who finds nothing to do lets others run */

/* The same sequence as ours has (splitmix64). */
static inline uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline void idle(void)
{
    if (crowded)
        sched_yield();
}

__attribute__((noreturn)) static void fail(const char *what, long long found, long long expected)
{
    fprintf(stderr, "rank %d: %s is %lld, expected %lld\n", rank, what, found, expected);
    MPI_Abort(MPI_COMM_WORLD, 1);
    abort();
}

static void *allocate(size_t bytes)
{
    void *memory = calloc(1, bytes ? bytes : 1);
    if (!memory)
        fail("bytes that could be allocated", 0, (long long)bytes);
    return memory;
}

static long number(const char *text)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (*text == 0 || *end != 0 || value <= 0) {
        fprintf(stderr, "%s is no positive number\n", text);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    return value;
}

static double cpu_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static long long peak_rss_bytes(void)
{
    long long kib = 0;
    char line[256];
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "VmHWM: %lld", &kib) == 1)
            break;
    if (status)
        fclose(status);
    return kib * 1024;
}

/* Starts MPI and keeps this rank on a core of its own, or shares the cores out evenly. */
static void begin(int *argc, char ***argv)
{
    cpu_set_t allowed, mine;
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int cores[CPU_SETSIZE], found = 0;
    /* The launcher may have bound us already: ask what this machine has. */
    CPU_ZERO(&allowed);
    for (int core = 0; core < CPU_SETSIZE; core++)
        CPU_SET(core, &allowed);
    sched_setaffinity(0, sizeof allowed, &allowed);
    sched_getaffinity(0, sizeof allowed, &allowed);
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &allowed))
            cores[found++] = core;
    crowded = ranks > found;
    CPU_ZERO(&mine);
    CPU_SET(cores[rank % found], &mine);
    sched_setaffinity(0, sizeof mine, &mine);
}

/* Groups of ranks that MPI takes to share memory. */
static int shared_memory_groups(void)
{
    MPI_Comm node;
    int in_node, leader, leaders;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &in_node);
    leader = in_node == 0;
    MPI_Allreduce(&leader, &leaders, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Comm_free(&node);
    return leaders;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *values, int count)
{
    double sorted[MEDIAN_MAX];
    memcpy(sorted, values, (size_t)count * sizeof *values);
    qsort(sorted, (size_t)count, sizeof *sorted, ascending);
    return sorted[count / 2];
}

/* One row of figures; collective, printed by rank 0 with the keys that `trihop bench --json` has. */
struct row {
    const char *bench, *engine;
    size_t size;
    long count;
    double messages;   /* of all ranks in one repetition */
    double latency_us; /* below 0: not measured */
    double round_us;   /* of rounds; 0: there are none */
    int reps;
    double seconds[MEDIAN_MAX], cpu[MEDIAN_MAX];
};

static void print_row(const struct row *row)
{
    long long mine = peak_rss_bytes(), peak;
    double seconds = median(row->seconds, row->reps), cpu = median(row->cpu, row->reps);
    int groups = shared_memory_groups();
    MPI_Reduce(&mine, &peak, 1, MPI_LONG_LONG, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank != 0)
        return;
    printf("{\"bench\":\"%s\",\"engine\":\"%s\",\"ranks\":%d,\"memory_groups\":%d,\"size\":%zu,\"count\":%ld,", row->bench,
           row->engine, ranks, groups, row->size, row->count);
    if (row->latency_us >= 0)
        printf("\"latency_us\":%.6f,", row->latency_us);
    if (row->round_us > 0)
        printf("\"us_per_round\":%.6f,", row->round_us);
    printf("\"msgs_per_s\":%.1f,\"bytes_per_s\":%.1f,\"cpu_us_per_msg\":%.6f,\"peak_rss_bytes_per_rank\":%lld,"
           "\"seconds\":%.9f,\"checked\":true}\n",
           row->messages / seconds, row->messages * (double)row->size / seconds, cpu * 1e6 / row->messages, peak, seconds);
    fflush(stdout);
}

#endif

/* pair REPS SIZE...: two ranks; half a round trip, and a stream one way with a bounded window. As `trihop bench ring` and
 * `p2p` measure it: the number in each message's first word is checked, and every byte of some messages. */

#include "measure.h"

#define STREAM_BYTES (256l << 20)
#define LATENCY_BYTES (64l << 20)
#define WINDOW_BYTES (4l << 20)
#define WHOLE 32 /* messages whose every byte is checked */
#define MESSAGE 1
#define DONE 2

static long clamp(long value, long least, long most)
{
    return value < least ? least : value > most ? most : value;
}

static void check_number(const char *message, uint64_t expected)
{
    uint64_t found;
    memcpy(&found, message, sizeof found);
    if (found != expected)
        fail("number of a message", (long long)found, (long long)expected);
}

/* Seconds of `rounds` round trips. */
static double ping_pong(char *message, size_t size, long rounds)
{
    int other = 1 - rank;
    double start = MPI_Wtime();
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        if (rank == 1) {
            MPI_Recv(message, (int)size, MPI_BYTE, other, MESSAGE, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            check_number(message, round);
        }
        memcpy(message, &round, sizeof round);
        MPI_Send(message, (int)size, MPI_BYTE, other, MESSAGE, MPI_COMM_WORLD);
        if (rank == 0) {
            MPI_Recv(message, (int)size, MPI_BYTE, other, MESSAGE, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            check_number(message, round);
        }
    }
    return MPI_Wtime() - start;
}

/* Rank 0 sends `count` messages to rank 1; a window of buffers is under way, in windows as the OSU benchmarks do it. */
static void one_way(char *buffers, size_t size, long window, long count, MPI_Request *requests)
{
    uint64_t number = 0;
    for (long left = count; left > 0; left -= window) {
        long now = left < window ? left : window;
        for (long i = 0; i < now; i++) {
            char *buffer = buffers + (size_t)i * size;
            if (rank == 0) {
                uint64_t word = number + (uint64_t)i;
                memcpy(buffer, &word, sizeof word);
                MPI_Isend(buffer, (int)size, MPI_BYTE, 1, MESSAGE, MPI_COMM_WORLD, &requests[i]);
            } else {
                MPI_Irecv(buffer, (int)size, MPI_BYTE, 0, MESSAGE, MPI_COMM_WORLD, &requests[i]);
            }
        }
        MPI_Waitall((int)now, requests, MPI_STATUSES_IGNORE);
        for (long i = 0; rank == 1 && i < now; i++)
            check_number(buffers + (size_t)i * size, number + (uint64_t)i);
        number += (uint64_t)now;
    }
    char word = 0;
    if (rank == 0)
        MPI_Recv(&word, 1, MPI_BYTE, 1, DONE, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else
        MPI_Send(&word, 1, MPI_BYTE, 0, DONE, MPI_COMM_WORLD);
}

static void check_whole(char *message, size_t size)
{
    for (uint64_t number = 0; number < WHOLE; number++) {
        uint64_t state = number;
        if (rank == 0) {
            for (size_t i = 0; i < size; i++)
                message[i] = (char)next_random(&state);
            MPI_Send(message, (int)size, MPI_BYTE, 1, MESSAGE, MPI_COMM_WORLD);
            continue;
        }
        MPI_Recv(message, (int)size, MPI_BYTE, 0, MESSAGE, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (size_t i = 0; i < size; i++) {
            char expected = (char)next_random(&state);
            if (message[i] != expected)
                fail("a byte of a message", message[i], expected);
        }
    }
}

static void measure(size_t size, int reps)
{
    long window = clamp(WINDOW_BYTES / (long)size, 4, 64);
    long count = clamp(STREAM_BYTES / (long)size, 128, 1000000), rounds = clamp(LATENCY_BYTES / (long)size, 100, 10000);
    char *buffers = allocate((size_t)window * size);
    MPI_Request *requests = allocate((size_t)window * sizeof *requests);
    double latency[MEDIAN_MAX];
    struct row row = {.bench = "pair", .engine = "send", .size = size, .count = count, .messages = (double)count, .reps = reps};
    for (int rep = -1; rep < reps; rep++) {
        MPI_Barrier(MPI_COMM_WORLD);
        ping_pong(buffers, size, rounds / 10 + 1);
        double trips = ping_pong(buffers, size, rounds);
        MPI_Barrier(MPI_COMM_WORLD);
        double cpu = cpu_seconds(), start = MPI_Wtime();
        one_way(buffers, size, window, count, requests);
        double seconds = MPI_Wtime() - start;
        cpu = cpu_seconds() - cpu;
        MPI_Allreduce(MPI_IN_PLACE, &cpu, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        /* The clock of rank 0, which ends with the other's word that it has everything. */
        MPI_Bcast(&seconds, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        if (rep >= 0) {
            latency[rep] = trips * 1e6 / (2.0 * (double)rounds);
            row.seconds[rep] = seconds;
            row.cpu[rep] = cpu;
        }
    }
    check_whole(buffers, size);
    row.latency_us = median(latency, reps);
    print_row(&row);
    free(buffers);
    free(requests);
}

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    if (argc < 3 || ranks != 2) {
        if (rank == 0)
            fprintf(stderr, "usage: pair REPS SIZE..., with two ranks; this job has %d\n", ranks);
        MPI_Finalize();
        return 2;
    }
    int reps = (int)clamp(number(argv[1]), 1, MEDIAN_MAX);
    for (int i = 2; i < argc; i++)
        measure((size_t)clamp(number(argv[i]), 8, 1l << 20), reps);
    MPI_Finalize();
    return 0;
}

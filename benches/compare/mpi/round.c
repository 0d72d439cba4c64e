/* round SIZE REPS ROUNDS: bulk-synchronous steps over MPI_Alltoallv: each rank sends an item of
 * SIZE bytes to each rank, itself included, and then all have theirs. What came is verified in
 * every round, as `trihop bench round` does.
 *
 * One warm-up, REPS repetitions of ROUNDS rounds, the time by the slowest rank, the median of the
 * repetitions. */

#include "measure.h"

static uint64_t word(int source, int target, long round)
{
    return (uint64_t)round << 40 | (uint64_t)source << 20 | (uint64_t)target;
}

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    if (argc != 4) {
        if (rank == 0)
            fprintf(stderr, "usage: round SIZE REPS ROUNDS; of 8 bytes or more\n");
        MPI_Finalize();
        return 2;
    }
    size_t size = (size_t)number(argv[1]);
    long reps = number(argv[2]), rounds = number(argv[3]), round = 0;
    if (size < 8 || size > 1 << 20)
        fail("bytes of an item", (long long)size, 8);
    if (reps > MEDIAN_MAX)
        reps = MEDIAN_MAX;
    unsigned char *out = allocate(size * (size_t)ranks), *in = allocate(size * (size_t)ranks);
    int *counts = allocate(sizeof(int) * (size_t)ranks);
    int *starts = allocate(sizeof(int) * (size_t)ranks);
    for (int peer = 0; peer < ranks; peer++) {
        counts[peer] = (int)size;
        starts[peer] = (int)size * peer;
    }
    struct row row = {
        .bench = "round",
        .engine = "alltoallv",
        .size = size,
        .latency_us = -1,
        .reps = (int)reps,
        .count = rounds * ranks,
    };
    for (int rep = -1; rep < reps; rep++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double cpu = cpu_seconds(), start = MPI_Wtime();
        for (long left = rounds; left > 0; left--) {
            round++;
            for (int peer = 0; peer < ranks; peer++) {
                uint64_t item = word(rank, peer, round);
                memcpy(out + (size_t)peer * size, &item, sizeof item);
            }
            MPI_Alltoallv(
                out, counts, starts, MPI_BYTE, in, counts, starts, MPI_BYTE, MPI_COMM_WORLD);
            for (int peer = 0; peer < ranks; peer++) {
                uint64_t item;
                memcpy(&item, in + (size_t)peer * size, sizeof item);
                if (item != word(peer, rank, round))
                    fail("an item", (long long)item, (long long)word(peer, rank, round));
            }
        }
        double seconds = MPI_Wtime() - start;
        cpu = cpu_seconds() - cpu;
        MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        MPI_Allreduce(MPI_IN_PLACE, &cpu, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        if (rep >= 0) {
            row.seconds[rep] = seconds;
            row.cpu[rep] = cpu;
        }
    }
    row.messages = (double)rounds * ranks * ranks;
    row.round_us = median(row.seconds, (int)reps) * 1e6 / (double)rounds;
    print_row(&row);
    free(out);
    free(in);
    free(counts);
    free(starts);
    MPI_Finalize();
    return 0;
}

/*
 * MPI's own MPI_Alltoall or MPI_Alltoallv beside that of libtrihop-alltoall, in one run and in turn, in the form of the OSU
 * benchmarks: the mean time of a call, of the rank for which it is longest.
 *
 *   LD_PRELOAD=./libtrihop-alltoall.so mpiexec -n 8 ./alltoall-bench [-v] [-m LARGEST] [-i CALLS]
 *
 * -v measures MPI_Alltoallv, -m is the largest block in bytes (65536), -i how often each size is called (1000, less above
 * 4,096 bytes).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trihop_alltoall.h"

struct buffers {
    char *sent, *received;
    int *counts, *displs;
    int is_v;
};

static void call(struct buffers *b, int bytes, int by_mpi)
{
    if (b->is_v)
        (by_mpi ? PMPI_Alltoallv : MPI_Alltoallv)(b->sent, b->counts, b->displs, MPI_BYTE, b->received, b->counts, b->displs,
                                                  MPI_BYTE, MPI_COMM_WORLD);
    else
        (by_mpi ? PMPI_Alltoall : MPI_Alltoall)(b->sent, bytes, MPI_BYTE, b->received, bytes, MPI_BYTE, MPI_COMM_WORLD);
}

/* Microseconds of a call. */
static double measure(struct buffers *b, int bytes, int calls, int by_mpi)
{
    double begin, mean, longest;

    PMPI_Barrier(MPI_COMM_WORLD);
    begin = PMPI_Wtime();
    for (int at = 0; at < calls; at++)
        call(b, bytes, by_mpi);
    mean = (PMPI_Wtime() - begin) * 1e6 / calls;
    PMPI_Allreduce(&mean, &longest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return longest;
}

int main(int argc, char **argv)
{
    void (*counts_of)(trihop_alltoall_counts_t *, size_t);
    struct buffers b = {0};
    trihop_alltoall_counts_t counts = {0};
    int rank, size, largest = 65536, most = 1000;

    MPI_Init(&argc, &argv);
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int at = 1; at < argc; at++) {
        if (strcmp(argv[at], "-v") == 0)
            b.is_v = 1;
        else if (strcmp(argv[at], "-m") == 0 && at + 1 < argc)
            largest = atoi(argv[++at]);
        else if (strcmp(argv[at], "-i") == 0 && at + 1 < argc)
            most = atoi(argv[++at]);
        else
            largest = 0;
    }
    *(void **)&counts_of = dlsym(RTLD_DEFAULT, "trihop_alltoall_counts");
    b.sent = calloc((size_t)size, (size_t)(largest > 0 ? largest : 1));
    b.received = calloc((size_t)size, (size_t)(largest > 0 ? largest : 1));
    b.counts = calloc((size_t)size, sizeof(int));
    b.displs = calloc((size_t)size, sizeof(int));
    if (largest < 1 || most < 1 || counts_of == NULL || !b.sent || !b.received || !b.counts || !b.displs) {
        if (rank == 0)
            fprintf(stderr, "%s\n", counts_of == NULL
                                         ? "libtrihop-alltoall is not loaded: start this with LD_PRELOAD"
                                         : "usage: alltoall-bench [-v] [-m LARGEST] [-i CALLS], with memory for all blocks");
        PMPI_Abort(MPI_COMM_WORLD, 2);
    }
    if (rank == 0)
        printf("# MPI_Alltoall%s, %d ranks\n# %8s %14s %14s %8s\n", b.is_v ? "v" : "", size, "Size", "MPI (us)",
               "trihop (us)", "MPI/ours");
    for (int bytes = 1; bytes <= largest; bytes *= 2) {
        int calls = bytes <= 4096 ? most : (most + 9) / 10;
        double times[2] = {0, 0};

        for (int at = 0; at < size; at++) {
            b.counts[at] = bytes;
            b.displs[at] = at * bytes;
        }
        /* In turn, in four parts each: what else goes on meanwhile meets both. */
        for (int part = -1; part < 4; part++)
            for (int by_mpi = 0; by_mpi < 2; by_mpi++) {
                double time = measure(&b, bytes, (calls + 3) / 4, by_mpi);

                times[by_mpi] += part < 0 ? 0 : time / 4; /* the first is to warm up */
            }
        counts_of(&counts, sizeof counts);
        if (rank == 0)
            printf("%10d %14.2f %14.2f %8.2f\n", bytes, times[1], times[0], times[1] / times[0]);
    }
    if (rank == 0)
        printf("# %llu calls went over trihop; longer blocks than TRIHOP_ALLTOALL_LIMIT go by MPI in both columns\n",
               (unsigned long long)counts.calls);
    MPI_Finalize();
    return 0;
}

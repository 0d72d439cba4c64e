/*
 * A program that lives inside MPI starts trihop without another launcher: MPI gathers the addresses, trihop carries the
 * messages, and MPI checks the result.
 *
 *   mpicc inside_mpi.c $(pkg-config --cflags --libs trihop) -o inside_mpi
 *   mpiexec -n 4 ./inside_mpi [ROUNDS [RANKS_PER_NODE]]
 *
 * With RANKS_PER_NODE and TRIHOP_LOOPBACK=1 the ranks of one machine play several nodes.
 */
#include <inttypes.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <trihop.h>

static void check(trihop_status_t status, const char *what)
{
    if (status == TRIHOP_OK)
        return;
    fprintf(stderr, "%s: %s (%s)\n", what, trihop_strerror(status), trihop_last_error());
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
}

/* Called by the thread that is in trihop_init_custom or trihop_finalize. */
static int32_t allgather(void *context, const void *mine, size_t bytes, void *all)
{
    MPI_Comm *world = context;

    return MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, *world);
}

/* The lowest rank of this rank's node names the node. */
static uint64_t node_label(int rank, int ranks_per_node)
{
    MPI_Comm node;
    int lowest = rank;

    if (ranks_per_node > 0)
        return (uint64_t)(rank / ranks_per_node);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
    MPI_Bcast(&lowest, 1, MPI_INT, 0, node);
    MPI_Comm_free(&node);
    return (uint64_t)lowest;
}

static void add(void *context, const trihop_message_t *message)
{
    *(uint64_t *)context += message->length == 0 ? message->kind : 1000000;
}

int main(int argc, char **argv)
{
    uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000;
    int ranks_per_node = argc > 2 ? atoi(argv[2]) : 0;
    MPI_Comm world = MPI_COMM_WORLD;
    trihop_job_t *job = NULL;
    trihop_stream_t *shuffle = NULL;
    uint64_t heard = 0, sum = 0, expected;
    int rank, size, provided;

    /* trihop has threads of its own, but only this one calls MPI. */
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &size);

    check(trihop_init_custom(TRIHOP_THREADED, (uint32_t)rank, (uint32_t)size,
                             node_label(rank, ranks_per_node), allgather, &world, NULL, &job),
          "trihop_init_custom");
    check(trihop_stream_open(job, "numbers", 0, NULL, add, &heard, &shuffle), "trihop_stream_open");
    for (uint64_t round = 0; round < rounds; round++)
        for (uint32_t target = 0; target < (uint32_t)size; target++)
            check(trihop_stream_send(shuffle, target, (uint32_t)rank + 1, NULL, 0), "trihop_stream_send");

    /* While every rank sits in MPI, trihop's threads go on: these flushes and barriers deliver everything. */
    check(trihop_stream_flush(shuffle, TRIHOP_ORIGIN_QUEUES), "trihop_stream_flush");
    MPI_Barrier(world);
    check(trihop_stream_flush(shuffle, TRIHOP_REMOTE_QUEUES), "trihop_stream_flush");
    MPI_Barrier(world);
    check(trihop_stream_flush(shuffle, TRIHOP_RELAY_QUEUES), "trihop_stream_flush");
    MPI_Barrier(world);
    check(trihop_stream_flush(shuffle, TRIHOP_DELIVERY_QUEUE), "trihop_stream_flush");

    /* Rank r heard from every rank s, in each round, the number s + 1. */
    expected = rounds * (uint64_t)size * ((uint64_t)size + 1) / 2;
    if (heard != expected)
        fprintf(stderr, "rank %d heard %" PRIu64 ", not %" PRIu64 "\n", rank, heard, expected);
    MPI_Allreduce(&heard, &sum, 1, MPI_UINT64_T, MPI_SUM, world);
    if (rank == 0)
        printf("%d ranks on %" PRIu32 " nodes by %s: heard %" PRIu64 " of %" PRIu64 "\n", size, trihop_nodes(job),
               trihop_launcher(job), sum, expected * (uint64_t)size);

    check(trihop_stream_close(shuffle), "trihop_stream_close");
    check(trihop_finalize(job), "trihop_finalize");
    MPI_Finalize();
    return sum == expected * (uint64_t)size ? EXIT_SUCCESS : EXIT_FAILURE;
}

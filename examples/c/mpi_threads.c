/*
 * An MPI program with few processes and many threads: each thread is a rank of a trihop job and sends to all threads of all
 * processes, which MPI itself cannot address. MPI gathers the addresses and checks the result.
 *
 *   mpicc mpi_threads.c $(pkg-config --cflags --libs trihop) -pthread -o mpi_threads
 *   mpiexec -n 2 ./mpi_threads [THREADS [ROUNDS]]
 *
 * With TRIHOP_LOOPBACK=1 each process plays a node of its own.
 */
#include <inttypes.h>
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <trihop.h>

static void check(trihop_status_t status, const char *what)
{
    if (status == TRIHOP_OK)
        return;
    fprintf(stderr, "%s: %s (%s)\n", what, trihop_strerror(status), trihop_last_error());
    abort(); /* which mpiexec sees; another thread may be in MPI */
}

/*
 * Called in trihop_minirank_init_custom, and by trihop's thread while the threads here are in trihop_minirank_start, and
 * when all are in trihop_finalize.
 */
static int32_t allgather(void *context, const void *mine, size_t bytes, void *all)
{
    MPI_Comm *world = context;

    return MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, *world);
}

/* The lowest process of this process's node names the node. */
static uint64_t node_label(int process)
{
    MPI_Comm node;
    int lowest = process;

    if (getenv("TRIHOP_LOOPBACK") != NULL)
        return (uint64_t)process;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, process, MPI_INFO_NULL, &node);
    MPI_Bcast(&lowest, 1, MPI_INT, 0, node);
    MPI_Comm_free(&node);
    return (uint64_t)lowest;
}

/* What one thread has; no other one looks at it until it has ended. */
struct rank {
    trihop_miniranks_t *miniranks;
    uint64_t rounds, heard;
    uint32_t index;
    pthread_t thread;
};

static void add(void *context, const trihop_message_t *message)
{
    struct rank *rank = context;
    const uint64_t *numbers = message->bytes;

    for (size_t i = 0; i < message->count; i++)
        rank->heard += numbers[i];
}

static void *work(void *context)
{
    struct rank *rank = context;
    trihop_job_t *job;
    trihop_stream_t *stream;
    uint64_t number;

    check(trihop_minirank_start(rank->miniranks, rank->index, &job), "trihop_minirank_start");
    check(trihop_stream_open(job, "numbers", sizeof number, NULL, add, rank, &stream), "trihop_stream_open");
    number = trihop_rank(job) + 1;
    for (uint64_t round = 0; round < rank->rounds; round++)
        for (uint32_t target = 0; target < trihop_size(job); target++)
            check(trihop_stream_push(stream, target, &number), "trihop_stream_push");
    check(trihop_stream_fence(stream), "trihop_stream_fence");
    check(trihop_stream_close(stream), "trihop_stream_close");
    check(trihop_finalize(job), "trihop_finalize");
    return NULL;
}

int main(int argc, char **argv)
{
    uint32_t threads = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 2;
    uint64_t rounds = argc > 2 ? strtoull(argv[2], NULL, 10) : 1000;
    MPI_Comm world = MPI_COMM_WORLD;
    trihop_miniranks_t *miniranks;
    struct rank *ranks;
    uint64_t heard = 0, sum = 0, all, expected;
    int process, processes, provided;

    /* One thread at a time calls MPI: this one, and trihop's while this one waits for it. */
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
    if (provided < MPI_THREAD_SERIALIZED) {
        fprintf(stderr, "this MPI is for one thread only\n");
        MPI_Abort(world, EXIT_FAILURE);
    }
    MPI_Comm_rank(world, &process);
    MPI_Comm_size(world, &processes);

    check(trihop_minirank_init_custom(threads, (uint32_t)process, (uint32_t)processes, node_label(process), allgather,
                                      &world, NULL, &miniranks),
          "trihop_minirank_init_custom");
    threads = trihop_minirank_count(miniranks);
    ranks = calloc(threads, sizeof *ranks);
    if (ranks == NULL)
        abort();
    for (uint32_t index = 0; index < threads; index++) {
        ranks[index].miniranks = miniranks;
        ranks[index].rounds = rounds;
        ranks[index].index = index;
        if (pthread_create(&ranks[index].thread, NULL, work, &ranks[index]) != 0)
            abort();
    }
    for (uint32_t index = 0; index < threads; index++) {
        pthread_join(ranks[index].thread, NULL);
        heard += ranks[index].heard;
    }
    check(trihop_minirank_finalize(miniranks), "trihop_minirank_finalize");
    free(ranks);

    /* Each of `all` threads heard from each thread t, in each round, the number t + 1. */
    all = (uint64_t)processes * threads;
    expected = rounds * all * all * (all + 1) / 2;
    MPI_Allreduce(&heard, &sum, 1, MPI_UINT64_T, MPI_SUM, world);
    if (process == 0)
        printf("%d processes of %" PRIu32 " threads: heard %" PRIu64 " of %" PRIu64 "\n", processes, threads, sum,
               expected);
    MPI_Finalize();
    return sum == expected ? EXIT_SUCCESS : EXIT_FAILURE;
}

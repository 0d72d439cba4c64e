/*
 * A program that knows nothing of trihop, run with libtrihop-alltoall before MPI: what MPI_Alltoallv and MPI_Alltoall give is
 * what PMPI_Alltoallv and PMPI_Alltoall give, byte by byte, and the library's counts say that blocks went over trihop.
 *
 *   alltoall LIMIT [single|serialized|multiple|mismatch]      with the environment's TRIHOP_ALLTOALL_LIMIT=LIMIT
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../doors/mpi/trihop_alltoall.h"

#define RANKS 16

static int rank, size;
static long limit;
static void (*counts_of)(trihop_alltoall_counts_t *, size_t);

static void check(int is_right, const char *what)
{
    if (is_right)
        return;
    fprintf(stderr, "rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static uint64_t mixed(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t x = a * 0x9e3779b97f4a7c15 + b * 0xc2b2ae3d27d4eb4f + c * 0x165667b19e3779f9 + 1;

    x = (x ^ (x >> 31)) * 0xd6e8feb86659fd93;
    x = (x ^ (x >> 29)) * 0xff51afd7ed558ccd;
    return x ^ (x >> 32);
}

static trihop_alltoall_counts_t counts(void)
{
    trihop_alltoall_counts_t counts;

    counts_of(&counts, sizeof counts);
    return counts;
}

/* A pair of types with one signature, for the sender and for the receiver. */
struct pair {
    MPI_Datatype send, receive;
    int is_packed; /* the sender's */
};

struct holes {
    char letter;
    double number;
    short last;
};

/* Numbers with a hole behind each; in one piece; with the second number first; a struct with holes; and MPI's own pair. */
static int make_pairs(struct pair *pairs)
{
    MPI_Datatype spaced, row, swapped, holes, sized, sparse;
    int lengths[3] = {1, 1, 1};
    MPI_Aint of_two[2] = {4, 0}, of_holes[3] = {offsetof(struct holes, letter), offsetof(struct holes, number),
                                                offsetof(struct holes, last)};
    MPI_Datatype two[2] = {MPI_INT, MPI_INT}, three[3] = {MPI_CHAR, MPI_DOUBLE, MPI_SHORT};

    MPI_Type_vector(2, 1, 2, MPI_INT, &sparse);
    MPI_Type_create_resized(sparse, 0, 20, &spaced);
    MPI_Type_contiguous(2, MPI_INT, &row);
    MPI_Type_create_struct(2, lengths, of_two, two, &swapped);
    MPI_Type_create_struct(3, lengths, of_holes, three, &holes);
    MPI_Type_create_resized(holes, 0, sizeof(struct holes), &sized);
    MPI_Type_free(&sparse);
    MPI_Type_free(&holes);
    MPI_Type_commit(&spaced);
    MPI_Type_commit(&row);
    MPI_Type_commit(&swapped);
    MPI_Type_commit(&sized);
    const struct pair all[] = {
        {MPI_BYTE, MPI_BYTE, 0}, {row, spaced, 0},    {spaced, row, 1},        {swapped, row, 1},
        {row, swapped, 0},       {sized, sized, 1},   {swapped, spaced, 1},    {MPI_DOUBLE_INT, MPI_DOUBLE_INT, 1},
    };
    int kinds = (int)(sizeof all / sizeof all[0]);

    memcpy(pairs, all, sizeof all);
#if MPI_VERSION >= 4
    /* Made by a call with large counts, of which the older ones do not tell. */
    MPI_Type_contiguous_c(2, MPI_INT, &pairs[kinds].send);
    MPI_Type_commit(&pairs[kinds].send);
    pairs[kinds].receive = row;
    pairs[kinds].is_packed = 1;
    kinds++;
#endif
    return kinds;
}

/* Elements of the block from one rank to another in a call: none, a few, about as many as the limit has, and more. */
static int elements(int from, int to, int number, int item, int only_to)
{
    uint64_t drawn = mixed((uint64_t)number, (uint64_t)from * RANKS + (uint64_t)to, 7);

    if (only_to >= 0 && to != only_to)
        return 0;
    switch (drawn % 5) {
    case 0: return 0;
    case 1: return (int)(limit / item);
    case 2: return (int)(limit / item) + 1 + (int)(drawn >> 8) % 50;
    default: return 1 + (int)((drawn >> 8) % 40);
    }
}

struct expected {
    uint64_t blocks, bytes, packed, long_blocks;
};

/* One call of MPI_Alltoallv, checked against MPI's own. */
static void one_v(MPI_Comm comm, const struct pair *pair, int number, int only_to, struct expected *expected)
{
    int sendcounts[RANKS], sdispls[RANKS], recvcounts[RANKS], rdispls[RANKS], me, all, item, sent = 0, received = 0;
    MPI_Aint lowest, send_extent, receive_extent;
    char *from, *mine, *theirs;

    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &all);
    MPI_Type_size(pair->send, &item);
    MPI_Type_get_extent(pair->send, &lowest, &send_extent);
    MPI_Type_get_extent(pair->receive, &lowest, &receive_extent);
    for (int at = 0; at < all; at++) {
        sendcounts[at] = elements(me, at, number, item, only_to);
        recvcounts[at] = elements(at, me, number, item, only_to);
        sdispls[at] = sent;
        sent += sendcounts[at] + 1; /* blocks apart */
    }
    for (int at = all - 1; at >= 0; at--) { /* in another order */
        rdispls[at] = received;
        received += recvcounts[at] + 1;
    }
    from = malloc((size_t)(sent * send_extent));
    mine = malloc((size_t)(received * receive_extent));
    theirs = malloc((size_t)(received * receive_extent));
    check(from && mine && theirs, "no memory");
    for (MPI_Aint at = 0; at < sent * send_extent; at++)
        from[at] = (char)mixed((uint64_t)at, (uint64_t)rank, (uint64_t)number);
    memset(mine, 0x5a, (size_t)(received * receive_extent));
    memset(theirs, 0x5a, (size_t)(received * receive_extent));
    check(MPI_Alltoallv(from, sendcounts, sdispls, pair->send, mine, recvcounts, rdispls, pair->receive, comm) ==
              MPI_SUCCESS, "MPI_Alltoallv");
    PMPI_Alltoallv(from, sendcounts, sdispls, pair->send, theirs, recvcounts, rdispls, pair->receive, comm);
    check(memcmp(mine, theirs, (size_t)(received * receive_extent)) == 0, "MPI_Alltoallv gave something else than MPI's own");
    for (int at = 0; at < all && expected != NULL; at++) {
        long bytes = (long)sendcounts[at] * item;

        if (at == me || bytes == 0)
            continue;
        expected->long_blocks += bytes > limit;
        expected->blocks += bytes <= limit;
        expected->bytes += bytes <= limit ? (uint64_t)bytes : 0;
        expected->packed += bytes <= limit && pair->is_packed;
    }
    free(from);
    free(mine);
    free(theirs);
}

/* One call of MPI_Alltoall, or of MPI_Alltoallv, in place where that is asked for. */
static void one(MPI_Comm comm, int bytes, int in_place, int number)
{
    size_t room = (size_t)size * (size_t)(bytes + 1);
    char *from = malloc(room), *mine = malloc(room), *theirs = malloc(room);

    check(from && mine && theirs, "no memory");
    for (size_t at = 0; at < room; at++)
        from[at] = mine[at] = theirs[at] = (char)mixed(at, (uint64_t)rank, (uint64_t)number);
    MPI_Alltoall(in_place ? MPI_IN_PLACE : from, bytes, MPI_BYTE, mine, bytes, MPI_BYTE, comm);
    PMPI_Alltoall(in_place ? MPI_IN_PLACE : from, bytes, MPI_BYTE, theirs, bytes, MPI_BYTE, comm);
    check(memcmp(mine, theirs, room) == 0, "MPI_Alltoall gave something else than MPI's own");
    free(from);
    free(mine);
    free(theirs);
}

/* Calls that follow each other with nothing in between, so that some ranks are ahead of others. */
static void back_to_back(void)
{
    enum { MOST = 8 };
    uint32_t from[RANKS * MOST], to[RANKS * MOST];
    int sendcounts[RANKS], recvcounts[RANKS], displs[RANKS];

    for (int at = 0; at < size; at++)
        displs[at] = at * MOST;
    for (int number = 0; number < 1000; number++) {
        for (int at = 0; at < size; at++) {
            sendcounts[at] = (int)(mixed((uint64_t)number, (uint64_t)rank, (uint64_t)at) % (MOST + 1));
            recvcounts[at] = (int)(mixed((uint64_t)number, (uint64_t)at, (uint64_t)rank) % (MOST + 1));
            for (int word = 0; word < sendcounts[at]; word++)
                from[at * MOST + word] = (uint32_t)(number * 1000 + rank * 50 + at + word);
        }
        memset(to, 0xff, sizeof to);
        MPI_Alltoallv(from, sendcounts, displs, MPI_UINT32_T, to, recvcounts, displs, MPI_UINT32_T, MPI_COMM_WORLD);
        for (int at = 0; at < size; at++)
            for (int word = 0; word < MOST; word++)
                check(to[at * MOST + word] == (word < recvcounts[at] ? (uint32_t)(number * 1000 + at * 50 + rank + word)
                                                                     : UINT32_MAX), "a call got what is another one's");
    }
}

/* Each rank in turn leaves a call and then only waits in MPI for all others, which have to get out of it without that rank. */
static void one_leaves(const struct pair *pair)
{
    for (int leaving = 0; leaving < 2 * size; leaving++) {
        int first = leaving % size, word = 0;

        one_v(MPI_COMM_WORLD, pair, 1000 + leaving, -1, NULL);
        if (rank != first)
            MPI_Send(&word, 1, MPI_INT, first, 3, MPI_COMM_WORLD);
        else
            for (int other = 1; other < size; other++)
                MPI_Recv(&word, 1, MPI_INT, MPI_ANY_SOURCE, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

/* A rank comes to a call only when MPI has moved a long message to another one, which waits in it. */
static void one_comes_by_mpi(const struct pair *pair)
{
    static char bytes[4 << 20];
    MPI_Request request;

    if (size < 2)
        return;
    for (int number = 2000; number < 2005; number++) {
        if (rank == 1)
            MPI_Irecv(bytes, sizeof bytes, MPI_BYTE, 0, 4, MPI_COMM_WORLD, &request);
        else if (rank == 0)
            MPI_Send(bytes, sizeof bytes, MPI_BYTE, 1, 4, MPI_COMM_WORLD);
        one_v(MPI_COMM_WORLD, pair, number, -1, NULL);
        if (rank == 1)
            MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
}

/* Rank 0 alone has something, and the others neither displacements nor a type. */
static void some_have_nothing(void)
{
    int some[RANKS], none[RANKS] = {0}, from_first[RANKS] = {1}, displs[RANKS], words[RANKS], mine;

    for (int at = 0; at < size; at++) {
        some[at] = 1;
        displs[at] = at;
        words[at] = 100 + at;
    }
    for (int number = 0; number < 3; number++) {
        mine = -1;
        MPI_Alltoallv(words, rank == 0 ? some : none, rank == 0 ? displs : NULL, rank == 0 ? MPI_INT : MPI_DATATYPE_NULL,
                      &mine, from_first, none, MPI_INT, MPI_COMM_WORLD);
        check(mine == 100 + rank, "a call in which most ranks send nothing");
    }
}

static void many(const struct pair *pairs, int kinds)
{
    trihop_alltoall_counts_t before = counts(), after;
    struct expected expected = {0};
    MPI_Comm dup, half, reversed;

    for (int number = 0; number < 40; number++)
        one_v(MPI_COMM_WORLD, &pairs[number % kinds], number, -1, &expected);
    for (int number = 100; number < 200; number++) /* towards one rank: others are soon ahead of it */
        one_v(MPI_COMM_WORLD, &pairs[0], number, number / 25 % size, &expected);
    after = counts();
    check(after.calls - before.calls == 140, "not all calls of MPI_Alltoallv went over trihop");
    check(after.blocks - before.blocks == expected.blocks && after.bytes - before.bytes == expected.bytes,
          "not all blocks up to the limit went over trihop");
    check(after.packed - before.packed == expected.packed, "other blocks were packed than those with holes");
    check(after.long_blocks - before.long_blocks == expected.long_blocks, "not all long blocks went by MPI");
    check(size == 1 || (expected.packed > 0 && expected.long_blocks > 0), "nothing was packed, or long");

    before = after;
    for (int number = 0; number < 20; number++) {
        one(MPI_COMM_WORLD, (int)(limit * number / 18), 0, number);
        one(MPI_COMM_WORLD, number, 1, number);
    }
    after = counts();
    check(after.calls - before.calls == 18 && after.passed - before.passed == 22, "MPI_Alltoall went another way");

    /* Of the same ranks in the same order; of fewer ranks; and in another order. */
    before = after;
    MPI_Comm_dup(MPI_COMM_WORLD, &dup);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
    MPI_Comm_split(MPI_COMM_WORLD, 0, size - rank, &reversed);
    for (int number = 400; number < 410; number++) {
        one_v(dup, &pairs[number % kinds], number, -1, NULL);
        one_v(half, &pairs[number % kinds], number, -1, NULL);
        one_v(reversed, &pairs[number % kinds], number, -1, NULL);
    }
    after = counts();
    check(after.calls - before.calls == (size == 1 ? 30 : 10), "calls of a communicator like MPI_COMM_WORLD went another way");
    check(after.passed - before.passed == (size == 1 ? 0 : 20), "calls of other communicators went over trihop");
    MPI_Comm_free(&dup);
    MPI_Comm_free(&half);
    MPI_Comm_free(&reversed);
    back_to_back();
    one_leaves(&pairs[0]);
    one_comes_by_mpi(&pairs[2]);
    some_have_nothing();
}

struct work {
    MPI_Comm comm;
    const struct pair *pairs;
};

static void *call_much(void *context)
{
    struct work *work = context;

    for (int number = 0; number < 30; number++)
        one_v(work->comm, &work->pairs[number % 3], number, -1, NULL);
    return NULL;
}

/* Calls on two communicators at once, on each rank by two threads. */
static void by_threads(const struct pair *pairs)
{
    trihop_alltoall_counts_t before = counts(), after;
    struct work world = {MPI_COMM_WORLD, pairs}, other = {MPI_COMM_NULL, pairs};
    pthread_t thread;

    MPI_Comm_dup(MPI_COMM_WORLD, &other.comm);
    check(pthread_create(&thread, NULL, call_much, &other) == 0, "no thread");
    call_much(&world);
    pthread_join(thread, NULL);
    MPI_Comm_free(&other.comm);
    after = counts();
    check(after.calls - before.calls == 30 && after.passed - before.passed == 30, "calls of threads went another way");
}

/* Calls of one thread after the other, none of which is the one that has started the job. */
static void by_another_thread(const struct pair *pairs)
{
    struct work world = {MPI_COMM_WORLD, pairs};

    for (int round = 0; round < 3; round++) {
        pthread_t thread;

        check(pthread_create(&thread, NULL, call_much, &world) == 0, "no thread");
        pthread_join(thread, NULL);
        call_much(&world);
    }
}

/* Rank 0 sends rank 1 less than that expects. */
static void mismatch(void)
{
    int sendcounts[RANKS] = {0}, recvcounts[RANKS] = {0}, displs[RANKS] = {0}, error, length;
    char from[16] = {0}, to[16] = {0}, text[MPI_MAX_ERROR_STRING];

    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    sendcounts[1] = rank == 0 ? 8 : 0;
    recvcounts[0] = rank == 1 ? 12 : 0;
    error = MPI_Alltoallv(from, sendcounts, displs, MPI_BYTE, to, recvcounts, displs, MPI_BYTE, MPI_COMM_WORLD);
    check((error != MPI_SUCCESS) == (rank == 1), "another rank has failed than the one that got less");
    if (rank == 1) {
        MPI_Error_string(error, text, &length);
        check(strstr(text, "do not match") != NULL, text);
        error = MPI_Alltoallv(from, sendcounts, displs, MPI_BYTE, to, recvcounts, displs, MPI_BYTE, MPI_COMM_WORLD);
        check(error != MPI_SUCCESS, "a call after a failure has not failed");
    }
}

int main(int argc, char **argv)
{
    const char *how = argc > 2 ? argv[2] : "single";
    int required = strcmp(how, "serialized") == 0 ? MPI_THREAD_SERIALIZED
                   : strcmp(how, "multiple") == 0 ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE;
    struct pair pairs[16];
    int provided, kinds;

    if (required == MPI_THREAD_SINGLE)
        MPI_Init(&argc, &argv);
    else
        MPI_Init_thread(&argc, &argv, required, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    limit = argc > 1 ? atol(argv[1]) : 0;
    *(void **)&counts_of = dlsym(RTLD_DEFAULT, "trihop_alltoall_counts");
    check(counts_of != NULL, "libtrihop-alltoall is not loaded");
    check(size <= RANKS && limit >= 64, "too many ranks, or no limit");
    kinds = make_pairs(pairs);
    if (strcmp(how, "mismatch") == 0)
        mismatch();
    else if (required == MPI_THREAD_MULTIPLE && provided == MPI_THREAD_MULTIPLE)
        by_threads(pairs);
    else if (required != MPI_THREAD_SINGLE)
        by_another_thread(pairs);
    else
        many(pairs, kinds);
    MPI_Type_free(&pairs[1].send); /* each once, of those that were made */
    MPI_Type_free(&pairs[1].receive);
    MPI_Type_free(&pairs[3].send);
    MPI_Type_free(&pairs[5].send);
    if (kinds > 8)
        MPI_Type_free(&pairs[8].send);
    if (rank == 0)
        printf("%s: %d ranks agree with MPI\n", how, size);
    MPI_Finalize();
    return 0;
}

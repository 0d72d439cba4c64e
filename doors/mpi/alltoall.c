/*
 * libtrihop-alltoall: MPI_Alltoallv and MPI_Alltoall of an unchanged program over trihop. It is loaded, or linked, before MPI,
 * and takes these calls by MPI's profiling interface; docs/DOORS.md says how it is built and used.
 *
 * How a call goes. A block, what one rank has for another, has as many bytes at its sender as at its receiver, by MPI's rule of
 * matching type signatures. So both know without a word which way it goes: up to the limit as a record over trihop, above it by
 * PMPI_Isend and PMPI_Irecv on a communicator of our own. The records of a call end by a round, so memory is bounded, and what
 * comes early for the next call is at most what trihop had in its own bounded queues when this one ended. Whether a
 * communicator's calls go this way follows from its group, which all of its ranks know.
 *
 * While it waits, a rank makes progress of trihop and of MPI in turn: another one may be on its way to this call, in a send that
 * this rank has begun to receive.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "door.h"

#define EXPORTED __attribute__((visibility("default")))

#define TAG 1

/* Requests of long blocks, twice as many as ranks; and the last call in which a rank was heard. */
static MPI_Request *requests;
static MPI_Status *statuses;
static uint32_t *heard;

/* Records of the next call that came early: each with this before it. */
struct early {
    uint32_t source, length;
};
static unsigned char *early;
static size_t early_used, early_room;

/* One call, under way. */
struct exchange {
    struct side send, receive;
    int missing;  /* blocks that are still to come over trihop */
    int error;    /* of MPI: the first; others do not wait for this rank, which goes on as far as the round needs it */
    int is_lost;  /* trihop has failed: there is nothing to go on with */
    unsigned waits; /* since anything was done */
};

static void note(struct exchange *exchange, int error)
{
    if (exchange->error == MPI_SUCCESS)
        exchange->error = error;
}

static void lose(struct exchange *exchange, const char *what, trihop_status_t status)
{
    exchange->is_lost = 1;
    note(exchange, door_fails(what, status));
}

static int is_short(int64_t bytes)
{
    return bytes > 0 && bytes <= door.limit;
}

/* Puts the block of a rank in place. */
static int put(struct exchange *exchange, uint32_t source, const void *bytes, size_t length)
{
    int64_t expected = side_bytes(&exchange->receive, (int)source);

    if ((int64_t)length != expected || !is_short(expected) || heard[source] == door.call)
        return door_breaks("rank %u has sent a block of %zu bytes where this rank expects %lld: counts or types of a call do "
                           "not match, or calls come in another order", source, length, (long long)expected);
    heard[source] = door.call;
    exchange->missing--;
    return side_scatter(&exchange->receive, (int)source, bytes, expected);
}

/* Keeps a block for the next call. */
static int keep(uint32_t source, const void *bytes, size_t length)
{
    struct early head = {source, (uint32_t)length};
    size_t used = early_used + sizeof head + length;

    if (used > early_room) {
        size_t room = used + used / 2;
        unsigned char *more = realloc(early, room);

        if (more == NULL)
            return door_breaks("no memory for %zu bytes that came early", used);
        early = more;
        early_room = room;
    }
    memcpy(early + early_used, &head, sizeof head);
    memcpy(early + early_used + sizeof head, bytes, length);
    early_used = used;
    door.counts.early_bytes += length;
    return MPI_SUCCESS;
}

static void on_record(void *context, const trihop_message_t *message)
{
    struct exchange *exchange = context;
    int error;

    if (message->kind == door.call)
        error = put(exchange, message->source, message->bytes, message->length);
    else if (message->kind == door.call + 1)
        error = keep(message->source, message->bytes, message->length);
    else
        error = door_breaks("rank %u is in call %u of this library, and this rank in call %u: calls come in another order",
                            message->source, message->kind, door.call);
    exchange->waits = 0;
    note(exchange, error);
}

/* What came early is this call's. */
static void put_early(struct exchange *exchange)
{
    for (size_t at = 0; at < early_used;) {
        struct early head;

        memcpy(&head, early + at, sizeof head);
        at += sizeof head;
        note(exchange, put(exchange, head.source, early + at, head.length));
        at += head.length;
    }
    early_used = 0;
}

static void take(struct exchange *exchange)
{
    trihop_status_t status = trihop_stream_take(door.stream, on_record, exchange, NULL);

    if (status != TRIHOP_OK && status != TRIHOP_ERR_WOULD_BLOCK)
        lose(exchange, "trihop_stream_take", status);
}

/* A round of progress of trihop, and now and then of MPI; others may need the core of a rank that waits for long. */
static void progress(struct exchange *exchange)
{
    const unsigned waits = exchange->waits++;
    int flag;

    take(exchange);
    if (waits % 8 == 7)
        note(exchange, PMPI_Iprobe(MPI_ANY_SOURCE, TAG, door.comm, &flag, MPI_STATUS_IGNORE));
    if (waits > 32)
        sched_yield();
}

static void send_block(struct exchange *exchange, int target)
{
    size_t length = (size_t)side_bytes(&exchange->send, target);
    trihop_status_t status;
    int error;
    const void *bytes = side_gather(&exchange->send, target, &error);

    note(exchange, error);
    if (bytes == NULL)
        return;
    while ((status = trihop_stream_try_send(door.stream, (uint32_t)target, door.call, bytes, length)) ==
           TRIHOP_ERR_WOULD_BLOCK) {
        progress(exchange);
        if (exchange->is_lost)
            return;
    }
    if (status != TRIHOP_OK) {
        lose(exchange, "trihop_stream_try_send", status);
        return;
    }
    exchange->waits = 0;
    door.counts.blocks++;
    door.counts.bytes += length;
    door.counts.packed += !exchange->send.is_plain;
}

/* What a rank has for itself, whatever its length. */
static int own_block(struct exchange *exchange)
{
    const struct side *send = &exchange->send, *receive = &exchange->receive;
    int64_t bytes = side_bytes(send, door.rank);

    if (bytes == 0 && side_bytes(receive, door.rank) == 0)
        return MPI_SUCCESS;
    if (send->is_plain && receive->is_plain && bytes == side_bytes(receive, door.rank)) {
        memmove(side_block(receive, door.rank), side_block(send, door.rank), (size_t)bytes);
        return MPI_SUCCESS;
    }
    return PMPI_Sendrecv(side_block(send, door.rank), side_count(send, door.rank), send->type, door.rank, TAG + 1,
                         side_block(receive, door.rank), side_count(receive, door.rank), receive->type, door.rank,
                         TAG + 1, door.comm, MPI_STATUS_IGNORE);
}

/* Ends the round of this call: all that was sent has come. */
static void end_round(struct exchange *exchange)
{
    trihop_status_t status = trihop_stream_start(door.stream, TRIHOP_ROUND);
    int is_over = 0;

    while (status == TRIHOP_OK && !exchange->is_lost) {
        status = trihop_stream_test(door.stream, &is_over);
        if (status != TRIHOP_OK || is_over)
            break;
        progress(exchange);
    }
    if (status != TRIHOP_OK)
        lose(exchange, "the end of a call", status);
    if (!exchange->is_lost && exchange->missing > 0)
        take(exchange);
    if (exchange->error != MPI_SUCCESS || exchange->missing == 0)
        return;
    for (int rank = 0; rank < door.size; rank++)
        if (rank != door.rank && is_short(side_bytes(&exchange->receive, rank)) && heard[rank] != door.call) {
            note(exchange, door_breaks("rank %d has sent nothing where this rank expects %lld bytes: counts or types of a call "
                                       "do not match", rank, (long long)side_bytes(&exchange->receive, rank)));
            return;
        }
}

/* Begins long blocks, receives first; how many. */
static int begin_long(struct exchange *exchange, int receives)
{
    struct side *side = receives ? &exchange->receive : &exchange->send;
    MPI_Request *first = requests + (receives ? 0 : door.size);
    int count = 0;

    for (int step = 1; step < door.size; step++) {
        int rank = receives ? (door.rank + door.size - step) % door.size : (door.rank + step) % door.size;

        if (side_bytes(side, rank) <= door.limit)
            continue;
        first[count] = MPI_REQUEST_NULL;
        note(exchange, receives ? PMPI_Irecv(side_block(side, rank), side_count(side, rank), side->type, rank, TAG, door.comm,
                                             &first[count])
                                : PMPI_Isend(side_block(side, rank), side_count(side, rank), side->type, rank, TAG, door.comm,
                                             &first[count]));
        count++;
    }
    return count;
}

static int wait_long(MPI_Request *first, int count)
{
    int error = count == 0 ? MPI_SUCCESS : PMPI_Waitall(count, first, statuses);

    for (int at = 0; error == MPI_ERR_IN_STATUS && at < count; at++)
        if (statuses[at].MPI_ERROR != MPI_SUCCESS && statuses[at].MPI_ERROR != MPI_ERR_PENDING)
            error = statuses[at].MPI_ERROR;
    return error;
}

/* After a failure nobody knows whether these come: the program's memory is left alone. */
static void give_up_long(MPI_Request *first, int count, int receives)
{
    for (int at = 0; at < count; at++) {
        if (first[at] == MPI_REQUEST_NULL)
            continue;
        if (!receives)
            PMPI_Request_free(&first[at]);
        else if (PMPI_Cancel(&first[at]) == MPI_SUCCESS)
            PMPI_Wait(&first[at], MPI_STATUS_IGNORE);
    }
}

static int run(struct exchange *exchange)
{
    int receives, sends;

    door.call++;
    exchange->missing = 0;
    exchange->waits = 0;
    for (int rank = 0; rank < door.size; rank++)
        exchange->missing += rank != door.rank && is_short(side_bytes(&exchange->receive, rank));
    receives = begin_long(exchange, 1);
    sends = begin_long(exchange, 0);
    door.counts.long_blocks += (uint64_t)sends;
    put_early(exchange);
    for (int step = 1; step < door.size && !exchange->is_lost; step++) {
        int target = (door.rank + step) % door.size;

        if (is_short(side_bytes(&exchange->send, target)))
            send_block(exchange, target);
    }
    note(exchange, own_block(exchange));
    if (!exchange->is_lost)
        end_round(exchange);
    if (exchange->error == MPI_SUCCESS)
        exchange->error = wait_long(requests, receives);
    if (exchange->error == MPI_SUCCESS)
        exchange->error = wait_long(requests + door.size, sends);
    if (exchange->error == MPI_SUCCESS) {
        door.counts.calls++;
        return MPI_SUCCESS;
    }
    give_up_long(requests, receives, 1);
    give_up_long(requests + door.size, sends, 0);
    if (door.state != DOOR_BROKEN) {
        char text[MPI_MAX_ERROR_STRING];
        int length;

        if (PMPI_Error_string(exchange->error, text, &length) != MPI_SUCCESS)
            text[0] = 0;
        door_breaks("MPI failed inside of a call: %s", text);
    }
    return exchange->error;
}

/* Opens the door, with memory for calls. */
static int open_door(void)
{
    size_t size = (size_t)door.size;

    requests = calloc(2 * size, sizeof *requests);
    statuses = calloc(size, sizeof *statuses);
    heard = calloc(size, sizeof *heard);
    if (requests == NULL || statuses == NULL || heard == NULL)
        return door_breaks("no memory for the requests of %d ranks", door.size);
    return door_open();
}

/* Whether the calls of a communicator go over trihop; all of its ranks say the same. */
static int is_ours(MPI_Comm comm)
{
    static char yes, no;
    void *known;
    int flag, order = MPI_UNEQUAL;

    if (door.state == DOOR_UNKNOWN || door.limit == 0 || comm == MPI_COMM_NULL)
        return 0;
    if (comm == MPI_COMM_WORLD)
        return 1;
    /* Threads may be in calls on several communicators at once, and on each rank in another order: then those of one alone go
     * over trihop, which the program itself makes one after the other. */
    if (door.world_only)
        return 0;
    if (door.keyval == MPI_KEYVAL_INVALID &&
        PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, MPI_COMM_NULL_DELETE_FN, &door.keyval, NULL) != MPI_SUCCESS)
        return 0;
    if (PMPI_Comm_get_attr(comm, door.keyval, &known, &flag) != MPI_SUCCESS)
        return 0;
    if (flag)
        return known == &yes;
    if (PMPI_Comm_test_inter(comm, &flag) != MPI_SUCCESS || flag ||
        PMPI_Comm_compare(comm, MPI_COMM_WORLD, &order) != MPI_SUCCESS)
        order = MPI_UNEQUAL;
    flag = order == MPI_IDENT || order == MPI_CONGRUENT;
    PMPI_Comm_set_attr(comm, door.keyval, flag ? &yes : &no);
    return flag;
}

/* Whether the counts of a side are there, and its displacements and type where one of them is not 0. A side without elements
 * needs neither, and only this rank knows that it has none: the call goes the same way as on the others. */
static int is_sound(const int *counts, const int *displs, MPI_Datatype *type)
{
    int is_empty = 1;

    if (counts == NULL)
        return 0;
    for (int rank = 0; rank < door.size; rank++) {
        if (counts[rank] < 0)
            return 0;
        is_empty &= counts[rank] == 0;
    }
    if (is_empty && *type == MPI_DATATYPE_NULL)
        *type = MPI_BYTE;
    return is_empty || (displs != NULL && *type != MPI_DATATYPE_NULL);
}

/* The call of two sides, on whichever communicator. */
static int exchange_on(MPI_Comm comm, struct exchange *exchange)
{
    if (exchange->error == MPI_SUCCESS && door.state == DOOR_AGREED)
        exchange->error = open_door();
    if (exchange->error == MPI_SUCCESS && door.state == DOOR_BROKEN)
        exchange->error = door.error_code;
    if (exchange->error == MPI_SUCCESS)
        run(exchange);
    if (exchange->error != MPI_SUCCESS)
        PMPI_Comm_call_errhandler(comm, exchange->error);
    return exchange->error;
}

EXPORTED int MPI_Alltoallv(const void *sent, const int sendcounts[], const int sdispls[], MPI_Datatype sendtype, void *received,
                           const int recvcounts[], const int rdispls[], MPI_Datatype recvtype, MPI_Comm comm)
{
    struct exchange exchange = {.error = MPI_SUCCESS};
    MPI_Datatype send = sendtype, receive = recvtype;

    /* What is wrong with arguments MPI says; in place is in place on all ranks. */
    if (!is_ours(comm) || sent == MPI_IN_PLACE || !is_sound(sendcounts, sdispls, &send) ||
        !is_sound(recvcounts, rdispls, &receive)) {
        door.counts.passed++;
        return PMPI_Alltoallv(sent, sendcounts, sdispls, sendtype, received, recvcounts, rdispls, recvtype, comm);
    }
    exchange.error = side_init(&exchange.send, sent, 0, sendcounts, sdispls, send);
    if (exchange.error == MPI_SUCCESS)
        exchange.error = side_init(&exchange.receive, received, 0, recvcounts, rdispls, receive);
    return exchange_on(comm, &exchange);
}

EXPORTED int MPI_Alltoall(const void *sent, int sendcount, MPI_Datatype sendtype, void *received, int recvcount,
                          MPI_Datatype recvtype, MPI_Comm comm)
{
    struct exchange exchange = {.error = MPI_SUCCESS};

    if (!is_ours(comm) || sent == MPI_IN_PLACE || sendtype == MPI_DATATYPE_NULL || recvtype == MPI_DATATYPE_NULL ||
        sendcount < 0 || recvcount < 0 ||
        (exchange.error = side_init(&exchange.send, sent, sendcount, NULL, NULL, sendtype)) != MPI_SUCCESS ||
        (exchange.error = side_init(&exchange.receive, received, recvcount, NULL, NULL, recvtype)) != MPI_SUCCESS ||
        !is_short(side_bytes(&exchange.send, 0))) {
        /* All blocks are of one length, so all ranks come here together. */
        door.counts.passed++;
        return PMPI_Alltoall(sent, sendcount, sendtype, received, recvcount, recvtype, comm);
    }
    return exchange_on(comm, &exchange);
}

EXPORTED int MPI_Init(int *argc, char ***argv)
{
    int error = PMPI_Init(argc, argv);

    if (error == MPI_SUCCESS)
        door_agree();
    return error;
}

EXPORTED int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    int error = PMPI_Init_thread(argc, argv, required, provided);

    if (error == MPI_SUCCESS)
        door_agree();
    return error;
}

EXPORTED int MPI_Finalize(void)
{
    door_close();
    free(requests);
    free(statuses);
    free(heard);
    free(early);
    requests = NULL;
    statuses = NULL;
    heard = NULL;
    early = NULL;
    early_used = early_room = 0;
    return PMPI_Finalize();
}

EXPORTED void trihop_alltoall_counts(trihop_alltoall_counts_t *counts, size_t size)
{
    memcpy(counts, &door.counts, size < sizeof door.counts ? size : sizeof door.counts);
}

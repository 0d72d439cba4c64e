/*
 * The trihop job behind the calls: one for all ranks of MPI_COMM_WORLD, which starts with the first call and ends in
 * MPI_Finalize.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "door.h"

#define LONGEST_LIMIT (16L << 20)
#define DEFAULT_LIMIT (8L << 10)
/* So few ranks of a node have little for another node that could travel together. */
#define FEW_RANKS 4

struct door door = {.comm = MPI_COMM_NULL, .keyval = MPI_KEYVAL_INVALID};

int door_breaks(const char *format, ...)
{
    va_list arguments;
    char why[1024], text[MPI_MAX_ERROR_STRING];
    int class;

    if (door.state == DOOR_BROKEN)
        return door.error_code;
    va_start(arguments, format);
    vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    door.state = DOOR_BROKEN;
    fprintf(stderr, "trihop-alltoall: rank %d: %s\n", door.rank, why);
    snprintf(text, sizeof text, "trihop-alltoall: %.200s", why);
    if (PMPI_Add_error_class(&class) != MPI_SUCCESS || PMPI_Add_error_code(class, &door.error_code) != MPI_SUCCESS ||
        PMPI_Add_error_string(door.error_code, text) != MPI_SUCCESS)
        door.error_code = MPI_ERR_OTHER;
    return door.error_code;
}

int door_fails(const char *what, trihop_status_t status)
{
    return door_breaks("%s: %s (%s)", what, trihop_strerror(status), trihop_last_error());
}

/* A number of bytes, K and M behind it. Negative where it is none. */
static long bytes_of(const char *text)
{
    char *end;
    long bytes;

    errno = 0;
    bytes = strtol(text, &end, 10);
    if (end == text || errno != 0 || bytes < 0 || bytes > LONGEST_LIMIT)
        return -1;
    if (*end == 'K')
        bytes <<= 10, end++;
    else if (*end == 'M')
        bytes <<= 20, end++;
    return *end == 0 && bytes <= LONGEST_LIMIT ? bytes : -1;
}

static int number_of(const char *name)
{
    const char *text = getenv(name);

    return text == NULL ? 0 : atoi(text);
}

/* Whether MPI's own calls are faster than those over trihop, as docs/DOORS.md has measured it: on one node, or on nodes of few
 * ranks, of which little can be gathered; but not where ranks outnumber the cores, and MPI's own waits do not give way to
 * others. All ranks say the same. */
static int mpi_is_faster(void)
{
    enum { RANKS, CROWDED, VALUES };
    int most[VALUES] = {0};
    MPI_Comm node;
    cpu_set_t cores;

    CPU_ZERO(&cores);
    if (sched_getaffinity(0, sizeof cores, &cores) != 0)
        memset(&cores, 0xff, sizeof cores); /* more cores than this set has places for */
    if (PMPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, door.rank, MPI_INFO_NULL, &node) != MPI_SUCCESS)
        return 0;
    PMPI_Comm_size(node, &most[RANKS]);
    /* Ranks may be bound to a core each: those of all. */
    PMPI_Allreduce(MPI_IN_PLACE, &cores, (int)sizeof cores, MPI_BYTE, MPI_BOR, node);
    PMPI_Comm_free(&node);
#ifndef OPEN_MPI
    most[CROWDED] = most[RANKS] > CPU_COUNT(&cores);
#endif
    if (PMPI_Allreduce(MPI_IN_PLACE, most, VALUES, MPI_INT, MPI_MAX, MPI_COMM_WORLD) != MPI_SUCCESS)
        return 0;
    return !most[CROWDED] && (most[RANKS] == door.size || most[RANKS] < FEW_RANKS);
}

void door_agree(void)
{
    enum { LIMIT, THREADS, COUNTS, NODE_RANKS, PLAIN, SETTINGS };
    const char *limit = getenv("TRIHOP_ALLTOALL_LIMIT");
    long values[SETTINGS], both[2 * SETTINGS];
    int provided, error, is_faster;

    PMPI_Comm_rank(MPI_COMM_WORLD, &door.rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &door.size);
    PMPI_Query_thread(&provided);
    is_faster = mpi_is_faster();
    if (limit != NULL && *limit != 0)
        values[LIMIT] = bytes_of(limit);
    else
        values[LIMIT] = is_faster && number_of("TRIHOP_ALLTOALL_NODE_RANKS") == 0 ? 0 : DEFAULT_LIMIT;
    values[THREADS] = provided;
    values[COUNTS] = number_of("TRIHOP_ALLTOALL_COUNTS") != 0;
    values[NODE_RANKS] = number_of("TRIHOP_ALLTOALL_NODE_RANKS");
    values[PLAIN] = packing_is_plain();
    for (int i = 0; i < SETTINGS; i++) {
        both[i] = values[i];
        both[SETTINGS + i] = -values[i];
    }
    error = PMPI_Allreduce(MPI_IN_PLACE, both, 2 * SETTINGS, MPI_LONG, MPI_MAX, MPI_COMM_WORLD);
    if (error != MPI_SUCCESS)
        return;
    door.state = DOOR_AGREED;
    door.limit = both[LIMIT];
    door.threaded = both[THREADS] >= MPI_THREAD_SERIALIZED;
    door.world_only = both[THREADS] >= MPI_THREAD_MULTIPLE;
    door.wants_counts = both[COUNTS] != 0;
    door.node_ranks = (int)both[NODE_RANKS];
    if (-both[SETTINGS + LIMIT] < 0)
        error = door_breaks("TRIHOP_ALLTOALL_LIMIT=%s on this rank, or what another one has, is no number of bytes of at "
                            "most %ldM", limit == NULL ? "" : limit, LONGEST_LIMIT >> 20);
    else if (-both[SETTINGS + LIMIT] != both[LIMIT] || -both[SETTINGS + NODE_RANKS] != both[NODE_RANKS])
        error = door_breaks("TRIHOP_ALLTOALL_LIMIT (here %ld bytes) or TRIHOP_ALLTOALL_NODE_RANKS is not the same on all "
                            "ranks: start them with one environment", values[LIMIT]);
    else if (-both[SETTINGS + PLAIN] == 0)
        error = door_breaks("this MPI does not pack elements one behind the other: it cannot be used with this library");
    if (error != MPI_SUCCESS)
        PMPI_Comm_call_errhandler(MPI_COMM_WORLD, error);
}

/* Called by the thread that is in trihop_init_custom or trihop_finalize. */
static int32_t allgather(void *context, const void *mine, size_t bytes, void *all)
{
    (void)context;
    return PMPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, door.comm);
}

/* The lowest rank of this rank's node names the node. */
static int node_label(uint64_t *label)
{
    MPI_Comm node;
    int lowest = door.rank, error;

    *label = (uint64_t)(door.node_ranks > 0 ? door.rank / door.node_ranks : 0);
    if (door.node_ranks > 0)
        return MPI_SUCCESS;
    error = PMPI_Comm_split_type(door.comm, MPI_COMM_TYPE_SHARED, door.rank, MPI_INFO_NULL, &node);
    if (error != MPI_SUCCESS)
        return error;
    error = PMPI_Bcast(&lowest, 1, MPI_INT, 0, node);
    PMPI_Comm_free(&node);
    *label = (uint64_t)lowest;
    return error;
}

static void take_nothing(void *context, const trihop_message_t *message)
{
    (void)context;
    (void)message;
}

static trihop_status_t open_stream(void)
{
    trihop_options_t options;
    trihop_status_t status = trihop_job_options(door.job, &options, sizeof options);

    if (status == TRIHOP_OK && options.max_message_bytes < (uint64_t)door.limit)
        options.max_message_bytes = (uint64_t)door.limit;
    if (status == TRIHOP_OK)
        status = trihop_stream_open(door.job, "trihop-alltoall", 0, &options, NULL, NULL, &door.stream);
    return status;
}

/*
 * One thread alone calls MPI where it was initialised for that, and the job is inline: no thread of its own, no lock, no wake
 * between cores. That a rank relays only inside of calls holds up nobody. A call ends by a round, which is over for a rank once
 * all that it relays has been taken by the next hop; and what others send in a later call needs this rank there anyhow.
 * Where several threads may call MPI, calls may come from any of them, and the job is one with threads.
 */
int door_open(void)
{
    uint64_t label;
    int is_open, all_open, error = PMPI_Comm_dup(MPI_COMM_WORLD, &door.comm);
    trihop_status_t status;

    if (error == MPI_SUCCESS)
        error = PMPI_Comm_set_errhandler(door.comm, MPI_ERRORS_RETURN);
    if (error == MPI_SUCCESS)
        error = node_label(&label);
    if (error != MPI_SUCCESS)
        return error;
    status = trihop_init_custom(door.threaded ? TRIHOP_THREADED : TRIHOP_INLINE, (uint32_t)door.rank,
                                (uint32_t)door.size, label, allgather, NULL, NULL, &door.job);
    /* Others may be in the exchange that this rank has not come to, so nothing is agreed on: MPI's error handler ends the job. */
    if (status != TRIHOP_OK)
        return door_fails("the job does not start", status);
    status = open_stream();
    if (status != TRIHOP_OK)
        door_fails("the stream is not opened", status);
    is_open = status == TRIHOP_OK;
    error = PMPI_Allreduce(&is_open, &all_open, 1, MPI_INT, MPI_MIN, door.comm);
    if (error != MPI_SUCCESS)
        return error;
    if (!is_open)
        return door.error_code;
    if (!all_open)
        return door_breaks("the job has not started on another rank, which says why");
    door.state = DOOR_OPEN;
    return MPI_SUCCESS;
}

static void print_counts(void)
{
    enum { FIELDS = sizeof door.counts / sizeof(uint64_t) };
    uint64_t sums[FIELDS];
    const uint64_t *calls = &door.counts.calls;

    if (PMPI_Reduce(calls, sums, FIELDS, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD) != MPI_SUCCESS || door.rank != 0)
        return;
    fprintf(stderr,
            "trihop-alltoall: %d ranks: %" PRIu64 " calls over trihop, %" PRIu64 " left to MPI; %" PRIu64
            " blocks of %" PRIu64 " bytes sent (%" PRIu64 " packed), %" PRIu64 " longer ones by MPI, limit %ld bytes\n",
            door.size, sums[0] / (unsigned)door.size, sums[1] / (unsigned)door.size, sums[2], sums[3], sums[4], sums[5],
            door.limit);
}

void door_close(void)
{
    trihop_status_t status = TRIHOP_OK;
    int is_sound = door.state != DOOR_BROKEN, all_sound = 0;

    if (door.state == DOOR_UNKNOWN)
        return;
    /* Also a barrier: what MPI still has under way to others needs its progress until they have it, and ours makes none.
     * Where a rank's part has failed, nobody waits for it in trihop. */
    if (PMPI_Allreduce(&is_sound, &all_sound, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD) != MPI_SUCCESS)
        all_sound = 0;
    if (all_sound && door.wants_counts)
        print_counts();
    if (all_sound && door.state == DOOR_OPEN) {
        while ((status = trihop_stream_close(door.stream)) == TRIHOP_ERR_WOULD_BLOCK)
            trihop_stream_take(door.stream, take_nothing, NULL, NULL);
        if (status == TRIHOP_OK)
            status = trihop_finalize(door.job);
        if (status != TRIHOP_OK)
            door_fails("the job does not end", status);
    }
    if (door.keyval != MPI_KEYVAL_INVALID)
        PMPI_Comm_free_keyval(&door.keyval);
    if (door.comm != MPI_COMM_NULL && all_sound)
        PMPI_Comm_free(&door.comm);
    blocks_free();
    door.state = DOOR_UNKNOWN;
}

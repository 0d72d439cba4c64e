/*
 * Inside of libtrihop-alltoall: what its three files know of each other. alltoall.c has the calls that programs make, job.c
 * the trihop job behind them, blocks.c the blocks of a call as MPI's datatypes describe them.
 */
#ifndef TRIHOP_ALLTOALL_DOOR_H
#define TRIHOP_ALLTOALL_DOOR_H

#include <mpi.h>
#include <stdint.h>
#include <trihop.h>

#include "trihop_alltoall.h"

/* How far the door is. */
enum door_state {
    DOOR_UNKNOWN, /* MPI_Init was not seen: MPI does everything */
    DOOR_AGREED,  /* all ranks have the same settings; the job starts with the first call */
    DOOR_OPEN,
    DOOR_BROKEN   /* something failed: each further call fails too, since ranks no longer agree on what has come */
};

struct door {
    enum door_state state;
    long limit;       /* longest block, in bytes, that goes over trihop */
    int world_only;   /* whether threads may be in calls on several communicators at once */
    int threaded;     /* whether any thread may call */
    int wants_counts; /* whether MPI_Finalize prints a line */
    int node_ranks;   /* ranks that play a node, for tests on one machine; 0: as MPI says */

    int rank, size;
    MPI_Comm comm;    /* ours alone, of all ranks */
    int keyval;       /* says of a communicator whether its ranks are those of MPI_COMM_WORLD, in order */
    trihop_job_t *job;
    trihop_stream_t *stream;
    uint32_t call;    /* number of the last call, which is the kind of its records */
    int error_code;   /* of MPI, once something has failed */
    trihop_alltoall_counts_t counts;
};

extern struct door door;

/* What one side of a call, sending or receiving, says of its blocks: `count` of each, or `counts` and `displs`. */
struct side {
    char *buffer;
    int count;
    const int *counts;
    const int *displs;
    MPI_Datatype type;
    MPI_Aint extent;
    int64_t item;   /* bytes of an element of the type without holes */
    int is_plain;   /* elements lie in memory as they travel */
};

/* After PMPI_Init: all ranks look at their settings, and whether they are the same. */
void door_agree(void);

/* Starts the job, with all ranks of MPI_COMM_WORLD. Returns an error of MPI where it cannot. */
int door_open(void);

/* Before PMPI_Finalize. */
void door_close(void);

/* Something of trihop's has failed: remembers why, and says so on standard error. Returns an error of MPI. */
int door_fails(const char *what, trihop_status_t status);

/* Something else has, in words. */
int door_breaks(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Fills what follows from the type. Returns an error of MPI. */
int side_init(struct side *side, const void *buffer, int count, const int *counts, const int *displs, MPI_Datatype type);

/* Bytes of the block for, or of, a rank: the same on both sides, by MPI's rule of matching signatures. */
int64_t side_bytes(const struct side *side, int rank);
int side_count(const struct side *side, int rank);
char *side_block(const struct side *side, int rank);

/* The bytes of a block as they travel, which stay until the next call: where they lie, or gathered. Null after an error,
 * which goes to `error`. */
const void *side_gather(const struct side *side, int rank, int *error);

/* Puts bytes that came into the block of a rank. Returns an error of MPI. */
int side_scatter(const struct side *side, int rank, const void *bytes, int64_t length);

/* Whether bytes that were gathered are the elements one behind the other, as this library takes for granted. */
int packing_is_plain(void);

void blocks_free(void);

#endif

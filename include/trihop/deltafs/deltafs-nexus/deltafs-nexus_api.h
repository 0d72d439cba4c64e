/*
 * deltafs-nexus_api.h: who is where and which way messages take, over trihop.
 *
 * nexus_bootstrap() starts the one job of this process: it learns rank, size and nodes from the launcher (the
 * mpiexec of MPICH or Open MPI, srun, `trihop run`), whether or not MPI_Init was called, and starts the progress thread. Ranks
 * are those of MPI_COMM_WORLD. Differences from the original:
 *   - a rank outside the job is NX_INVAL, never a crash; addr and rank may be NULL in nexus_next_hop();
 *   - nexus_global_barrier() and nexus_local_barrier() are trihop's own; MPI need not be thread safe for them. Neither may be
 *     called from a delivery callback (NX_ERROR);
 *   - nexus_local_barrier() involves nobody but the ranks of this node;
 *   - nothing is printed at start, and NEXUS_LOOKUP_LIMIT has no meaning: connections are made on first use;
 *   - a process has one nexus at a time: a second nexus_bootstrap() before nexus_destroy() is refused.
 *   - of a nexus that was made with a real mercury's class (trihop-deltafs/real_mercury.h),
 *     addresses are HG_ADDR_NULL.
 * Handles may be used by any thread. A call with a NULL handle returns an error (-1, NX_INVAL or NULL) and does nothing.
 */
#ifndef TRIHOP_DELTAFS_NEXUS_API_H
#define TRIHOP_DELTAFS_NEXUS_API_H

#ifdef __cplusplus
#include <map> /* clients in C++ had it from the original's header */
#endif

#include <mercury.h>
#include <mercury-progressor/mercury-progressor.h>

typedef struct nexus_ctx *nexus_ctx_t;
typedef struct nexus_iter *nexus_iter_t;

typedef enum {
    NX_SUCCESS = 0, /* done */
    NX_ERROR,       /* failed */
    NX_NOTFOUND,    /* no address */
    NX_ISLOCAL,     /* the next hop is the destination, on this node */
    NX_SRCREP,      /* the next hop is the representative of this node towards the destination's */
    NX_DESTREP,     /* the next hop is the representative of the destination's node towards this one */
    NX_INVAL,       /* an argument is wrong */
    NX_DONE         /* this rank is the destination */
} nexus_ret_t;

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Joins the job; collective. NULL, and the reason is said: no nethand, a launcher or fabric that fails, a rank that
 * does not come, or a nexus that exists already.
 *
 * localhand NULL: ranks of a node reach each other through shared memory. localhand another handle than nethand: the same,
 * whatever transport it was made for. localhand the same handle as nethand: a single transport, all hops between
 * ranks go over the fabric (TRIHOP_ROUTE=fabric-only); all ranks must do the same. TRIHOP_ROUTE=direct asks for
 * something else, and NULL is returned.
 */
nexus_ctx_t nexus_bootstrap(progressor_handle_t *nethand, progressor_handle_t *localhand);

/*
 * Leaves the job; collective. Shut down the shuffles first: what is still open is completed and closed, and shuffle_shutdown()
 * then only gives its memory back. The handle is gone afterwards. In a delivery callback it does nothing but say so.
 */
void nexus_destroy(nexus_ctx_t nctx);

/*
 * The next hop of a message to dest, as the rank that nexus_set_grank() named would see it. The out-parameters are set for
 * NX_ISLOCAL, NX_SRCREP and NX_DESTREP, each unless NULL.
 */
nexus_ret_t nexus_next_hop(nexus_ctx_t nctx, int dest, int *rank, hg_addr_t *addr);

/* Wait for all ranks of the job; for all ranks of this node. */
nexus_ret_t nexus_global_barrier(nexus_ctx_t nctx);
nexus_ret_t nexus_local_barrier(nexus_ctx_t nctx);

int nexus_global_rank(nexus_ctx_t nctx);
int nexus_global_size(nexus_ctx_t nctx);
int nexus_local_rank(nexus_ctx_t nctx);
int nexus_local_size(nexus_ctx_t nctx);

/* Lets nexus_global_rank(), nexus_next_hop() and nexus_dump() speak as another rank, for debugging. Messages do not change. */
nexus_ret_t nexus_set_grank(nexus_ctx_t nctx, int rank);

/* The progressors, as long as the nexus lives. The local one is nethand's in single-transport mode, localhand's where
 * one was given, else one of a class "na+sm" of nexus's own. */
progressor_handle_t *nexus_localprogressor(nexus_ctx_t nctx);
progressor_handle_t *nexus_remoteprogressor(nexus_ctx_t nctx);

/* Writes the tables to OUTFILE.RANK.id, .lmap and .rmap, to stderr if outfile is NULL. A file that fails is named. */
void nexus_dump(nexus_ctx_t nctx, char *outfile);

/* Walks the ranks of this node (local not 0; this one too) by rank, or the nodes that this rank represents, by node. */
nexus_iter_t nexus_iter(nexus_ctx_t nctx, int local);
void nexus_iter_free(nexus_iter_t *nitp);
int nexus_iter_atend(nexus_iter_t nit);
void nexus_iter_advance(nexus_iter_t nit);
/* At the end these are HG_ADDR_NULL and -1. The subrank is 0 for local ranks, else the node. */
hg_addr_t nexus_iter_addr(nexus_iter_t nit);
int nexus_iter_globalrank(nexus_iter_t nit);
int nexus_iter_subrank(nexus_iter_t nit);

#ifdef __cplusplus
}
#endif

#endif /* TRIHOP_DELTAFS_NEXUS_API_H */

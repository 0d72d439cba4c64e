/*
 * Nodes are those that MPI splits its world into, which the original asks for, whatever the
 * launcher says. An MPI program; it sends everybody something over the nodes that it finds.
 */
#include "job.h"

static volatile uint64_t came;

static void keep(int src, int dst, uint32_t type, void *d, uint32_t datalen) {
    (void) src, (void) dst, (void) type, (void) d, (void) datalen;
    __sync_fetch_and_add(&came, 1);
}

int main(int argc, char **argv) {
    int local_rank, local_size, target;
    shuffle_t sh;
    MPI_Comm node;
    begin(&argc, &argv, 0);
    CHECK(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node) == MPI_SUCCESS);
    MPI_Comm_rank(node, &local_rank);
    MPI_Comm_size(node, &local_size);
    MPI_Comm_free(&node);
    printf("rank %d: %d of %d\n", job.rank, local_rank, local_size);
    fflush(stdout);
    CHECK(nexus_local_rank(job.nexus) == local_rank && nexus_local_size(job.nexus) == local_size);
    CHECK(nexus_local_barrier(job.nexus) == NX_SUCCESS);
    sh = open_shuffle("everybody", keep, NULL);
    for (target = 0; target < job.size; target++)
        OK(shuffle_enqueue(sh, target, 0, &target, sizeof target));
    OK(shuffle_shutdown(sh));
    CHECK(came == (uint64_t) job.size);
    end();
    return 0;
}

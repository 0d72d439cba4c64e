/*
 * A process joins its job and leaves it again and again, as libraries do that are opened for each
 * phase of a program. Each time a message goes around, so that a job that is made of two times'
 * ranks shows.
 *
 *   restart TIMES
 */
#include "job.h"

static volatile uint32_t came;

static void keep(int src, int dst, uint32_t type, void *d, uint32_t datalen) {
    CHECK(dst == job.rank && datalen == sizeof type);
    CHECK(memcmp(d, &type, sizeof type) == 0);
    CHECK(src == (job.rank + job.size - 1) % job.size);
    came = type;
}

static void join(void) {
    job.nexus = nexus_bootstrap(job.net, NULL);
    CHECK(job.nexus != NULL);
    CHECK(nexus_global_rank(job.nexus) == job.rank && nexus_global_size(job.nexus) == job.size);
}

int main(int argc, char **argv) {
    uint32_t times, round;
    CHECK(argc == 2);
    times = (uint32_t) strtoul(argv[1], NULL, 10);
    begin(&argc, &argv, 0);
    for (round = 1; round <= times; round++) {
        shuffle_t sh;
        if (round > 1)
            join();
        sh = open_shuffle("around", keep, NULL);
        OK(shuffle_enqueue(sh, (job.rank + 1) % job.size, round, &round, sizeof round));
        OK(shuffle_shutdown(sh));
        CHECK(came == round);
        alarm(WATCHDOG_SECONDS); /* for each time anew */
        if (round < times)
            nexus_destroy(job.nexus);
    }
    end();
    printf("rank %d: %u times\n", job.rank, (unsigned) times);
    return 0;
}

/*
 * A client like an in-situ I/O library: a simulation's particles go through a batched shuffle to the ranks that own them;
 * a second, urgent shuffle carries a few small messages (ranks tell rank 0 of their load, and rank 0's callback tells all
 * of a new plan) that must not wait behind the bulk. Epochs end and begin with the relaxed flushes of such libraries:
 * local barriers, and nothing that waits for the other nodes.
 *
 *   preload [particles of each rank and epoch]
 */
#include "job.h"

#define EPOCHS 4
#define REPORT_EVERY 100

struct particle {
    uint64_t id;
    unsigned char state[48];
};

struct counts {
    hg_uint64_t local_sends, remote_sends, local_receives, remote_receives;
};

static shuffle_t bulk, urgent;
static uint32_t particles_per_epoch = 2000;

/* By source, written by the callback's thread only until the last flush. */
static uint64_t *bulk_next;
static uint64_t bulk_total, urgent_total, plans_seen, reports_seen;

enum { REPORT = 1, PLAN = 2 };

static void keep_particle(int src, int dst, uint32_t type, void *d, uint32_t datalen) {
    struct particle particle;
    CHECK(dst == job.rank && type == 0 && datalen == sizeof particle);
    memcpy(&particle, d, sizeof particle);
    /* Ids of a source rise, those of others are not mixed in. */
    CHECK(particle.id >> 40 == (uint64_t) src);
    CHECK((particle.id & 0xffffffffffu) >= bulk_next[src]);
    CHECK(particle.state[0] == (unsigned char) particle.id && particle.state[47] == (unsigned char) particle.id);
    bulk_next[src] = (particle.id & 0xffffffffffu) + 1;
    bulk_total++;
}

/* Rank 0 answers each report with a plan for everybody: from inside of the callback. */
static void take_urgent(int src, int dst, uint32_t type, void *d, uint32_t datalen) {
    uint32_t value;
    int rank;
    CHECK(dst == job.rank && datalen == sizeof value);
    memcpy(&value, d, sizeof value);
    urgent_total++;
    if (type == PLAN) {
        CHECK(src == 0);
        CHECK(value == plans_seen); /* in order */
        plans_seen++;
        return;
    }
    CHECK(type == REPORT && job.rank == 0);
    value = (uint32_t) reports_seen++;
    for (rank = 0; rank < job.size; rank++)
        OK(shuffle_enqueue(urgent, rank, PLAN, &value, sizeof value));
}

static int owner_of(uint64_t *state) {
    return (int) (draw(state) % (uint32_t) job.size);
}

static void local_barrier(void) {
    CHECK(nexus_local_barrier(job.nexus) == NX_SUCCESS);
}

static void end_epoch(void) {
    OK(shuffle_flush_originqs(urgent));
    OK(shuffle_flush_originqs(bulk));
    local_barrier();
    OK(shuffle_flush_remoteqs(urgent));
    OK(shuffle_flush_remoteqs(bulk));
}

static void read_counts(shuffle_t sh, struct counts *counts) {
    hg_uint64_t origin, relay;
    OK(shuffle_send_stats(sh, &origin, &relay, &counts->remote_sends));
    counts->local_sends = origin + relay;
    OK(shuffle_recv_stats(sh, &counts->local_receives, &counts->remote_receives));
}

static void begin_epoch(struct counts *counts) {
    struct counts last = *counts;
    OK(shuffle_flush_relayqs(urgent));
    OK(shuffle_flush_relayqs(bulk));
    local_barrier();
    read_counts(bulk, counts);
    CHECK(counts->local_sends >= last.local_sends && counts->remote_sends >= last.remote_sends);
    CHECK(counts->local_receives >= last.local_receives && counts->remote_receives >= last.remote_receives);
    OK(shuffle_flush_delivery(urgent));
    OK(shuffle_flush_delivery(bulk));
}

static void write_particles(int epoch, uint64_t *state) {
    struct particle particle;
    uint32_t at, load;
    for (at = 0; at < particles_per_epoch; at++) {
        particle.id = (uint64_t) job.rank << 40 | ((uint64_t) epoch * particles_per_epoch + at);
        memset(particle.state, (int) (particle.id & 0xff), sizeof particle.state);
        OK(shuffle_enqueue(bulk, owner_of(state), 0, &particle, sizeof particle));
        if (at % REPORT_EVERY == 0) {
            load = at;
            OK(shuffle_enqueue(urgent, 0, REPORT, &load, sizeof load));
        }
    }
}

/* What must have come to this rank from all. */
static uint64_t expected_particles(void) {
    uint64_t expected = 0;
    int source;
    for (source = 0; source < job.size; source++) {
        uint64_t state = (uint64_t) source, at;
        for (at = 0; at < (uint64_t) EPOCHS * particles_per_epoch; at++)
            expected += owner_of(&state) == job.rank;
    }
    return expected;
}

int main(int argc, char **argv) {
    struct shuffle_opts options;
    struct counts counts = {0, 0, 0, 0};
    uint64_t state, reports;
    int epoch;

    if (argc > 1)
        particles_per_epoch = (uint32_t) strtoul(argv[1], NULL, 10);
    begin(&argc, &argv, 0);
    bulk_next = (uint64_t *) calloc((size_t) job.size, sizeof *bulk_next);
    CHECK(bulk_next != NULL);

    /* As production runs have it. */
    shuffle_opts_init(&options);
    options.localsenderlimit = options.remotesenderlimit = 16;
    options.lomaxrpc = options.lrmaxrpc = options.rmaxrpc = 16;
    options.lobuftarget = options.lrbuftarget = options.rbuftarget = 32768;
    options.deliverq_max = 4096;
    options.deliverq_threshold = 1024;
    bulk = open_shuffle("preload_bulk", keep_particle, &options);
    options.lobuftarget = options.lrbuftarget = options.rbuftarget = 1;
    options.deliverq_threshold = 0;
    urgent = open_shuffle("preload_urgent", take_urgent, &options);
    barrier(); /* a callback may be called before its shuffle_init() has returned, and rank 0's sends */

    state = (uint64_t) job.rank;
    for (epoch = 0; epoch < EPOCHS; epoch++) {
        begin_epoch(&counts);
        write_particles(epoch, &state);
        end_epoch();
        nap(); /* the simulation computes */
    }

    flush_all(bulk);
    /* Reports arrive, then the plans that they caused. */
    flush_all(urgent);
    barrier();
    flush_all(urgent);
    reports = (uint64_t) job.size * EPOCHS * ((particles_per_epoch + REPORT_EVERY - 1) / REPORT_EVERY);
    CHECK(bulk_total == expected_particles());
    CHECK(plans_seen == reports);
    CHECK(urgent_total == reports + (job.rank == 0 ? reports : 0));
    read_counts(bulk, &counts);
    printf("rank %d: particles %" PRIu64 " plans %" PRIu64 " sends %" PRIu64 " %" PRIu64 "\n", job.rank, bulk_total,
           plans_seen, counts.local_sends, counts.remote_sends);
    fflush(stdout);
    OK(shuffle_shutdown(bulk));
    OK(shuffle_shutdown(urgent));
    free(bulk_next);
    end();
    return 0;
}

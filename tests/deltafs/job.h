/*
 * What the clients in this folder share: they start as clients of the DeltaFS shuffle do, check what they find, and
 * end with a message rather than hang.
 */
#ifndef TESTS_DELTAFS_JOB_H
#define TESTS_DELTAFS_JOB_H

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef WITH_MPI
#include <mpi.h>
#endif

#include <mercury.h>
#include <mercury_macros.h>

#include <deltafs-nexus/deltafs-nexus_api.h>
#include <deltafs-shuffle/shuffle_api.h>
#include <mercury-progressor/mercury-progressor.h>

/* A process that still runs after so many seconds hangs. */
#define WATCHDOG_SECONDS 120

struct job {
    hg_class_t *hg_class;
    hg_context_t *context;
    progressor_handle_t *net;
    nexus_ctx_t nexus;
    int rank;
    int size;
};

static struct job job;

static inline void fail(const char *file, int line, const char *what) {
    fprintf(stderr, "rank %d: %s:%d: not so: %s\n", job.rank, file, line, what);
    fflush(stderr);
    _exit(3);
}

#define CHECK(CONDITION) ((CONDITION) ? (void) 0 : fail(__FILE__, __LINE__, #CONDITION))

/* Why the last call of this thread failed; trihop.h has it. */
#ifdef __cplusplus
extern "C"
#endif
const char *trihop_last_error(void);

/* A call that succeeds. */
#define OK(CALL) succeeded(__FILE__, __LINE__, #CALL, (CALL))

static inline void succeeded(const char *file, int line, const char *call, int value) {
    if (value != 0) {
        fprintf(stderr, "%s returned %s: %s\n", call, HG_Error_to_string((hg_return_t) value), trihop_last_error());
        fail(file, line, call);
    }
}

static inline void watchdog(int signal_number) {
    static const char words[] = "still running after the watchdog's time\n";
    (void) signal_number;
    (void) !write(2, words, sizeof words - 1);
    _exit(4);
}

/* single: one transport for all hops. */
static inline void begin(int *argc, char ***argv, int single) {
    signal(SIGALRM, watchdog);
    alarm(WATCHDOG_SECONDS);
#ifdef WITH_MPI
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &job.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &job.size);
#else
    (void) argc;
    (void) argv;
#endif
    job.hg_class = HG_Init("ofi+tcp://127.0.0.1:0", HG_TRUE);
    CHECK(job.hg_class != NULL);
    job.context = HG_Context_create(job.hg_class);
    CHECK(job.context != NULL);
    job.net = mercury_progressor_init(job.hg_class, job.context);
    CHECK(job.net != NULL);
    job.nexus = nexus_bootstrap(job.net, single ? job.net : NULL);
    CHECK(job.nexus != NULL);
#ifdef WITH_MPI
    CHECK(nexus_global_rank(job.nexus) == job.rank);
    CHECK(nexus_global_size(job.nexus) == job.size);
#else
    job.rank = nexus_global_rank(job.nexus);
    job.size = nexus_global_size(job.nexus);
#endif
}

static inline void barrier(void) {
#ifdef WITH_MPI
    CHECK(MPI_Barrier(MPI_COMM_WORLD) == MPI_SUCCESS);
#else
    CHECK(nexus_global_barrier(job.nexus) == NX_SUCCESS);
#endif
}

static inline void end(void) {
    hg_class_t *hg_class = mercury_progressor_hgclass(job.net);
    hg_context_t *context = mercury_progressor_hgcontext(job.net);
    nexus_destroy(job.nexus);
    job.nexus = NULL;
    OK(mercury_progressor_freehandle(job.net));
    OK(HG_Context_destroy(context));
    OK(HG_Finalize(hg_class));
#ifdef WITH_MPI
    MPI_Finalize();
#endif
}

/* All that was enqueued anywhere before is delivered after; collective. REMOTE_STAGES in the environment: stages of the
 * route between the first and the last, where these are more than one. */
static inline void flush_all(shuffle_t sh) {
    const char *stages = getenv("REMOTE_STAGES");
    int left = stages == NULL ? 1 : atoi(stages);
    OK(shuffle_flush_originqs(sh));
    barrier();
    while (left-- > 0) {
        OK(shuffle_flush_remoteqs(sh));
        barrier();
    }
    OK(shuffle_flush_relayqs(sh));
    barrier();
    OK(shuffle_flush_delivery(sh));
}

static inline shuffle_t open_shuffle(const char *name, shuffle_deliverfn_t deliver, struct shuffle_opts *options) {
    char copy[64];
    shuffle_t sh;
    snprintf(copy, sizeof copy, "%s", name);
    sh = shuffle_init(job.nexus, copy, deliver, options);
    CHECK(sh != NULL);
    return sh;
}

static inline void nap(void) {
    struct timespec millisecond = {0, 1000000};
    nanosleep(&millisecond, NULL);
}

/* Numbers that differ by seed and are the same on all ranks. */
static inline uint32_t draw(uint64_t *state) {
    uint64_t mixed = (*state += 0x9e3779b97f4a7c15u);
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t) ((mixed ^ (mixed >> 31)) >> 16);
}

#endif /* TESTS_DELTAFS_JOB_H */

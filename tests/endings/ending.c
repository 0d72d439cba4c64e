/*
 * A program of short steps that ends in one of the ways in which programs end: `ending WAY`, on any
 * number of ranks. Each rank that has come to its results says so; whatever it leaves behind, its
 * process then has to end, with status 0.
 *
 * With -DWITH_MPI it is an MPI program too.
 */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef WITH_MPI
#include <mpi.h>
#endif

#include <trihop.h>

/* A process that still runs after so many seconds hangs. */
#define WATCHDOG_SECONDS 60
#define STEPS 20

static trihop_job_t *job;
static trihop_stream_t *shuffle;
static trihop_channels_t *channels;
static trihop_channel_t *channel;
static uint32_t rank, size;

static void fail(int line, const char *what) {
    fprintf(stderr, "rank %u: line %d: not so: %s: %s\n", (unsigned) rank, line, what, trihop_last_error());
    _exit(3);
}

#define CHECK(CONDITION) ((CONDITION) ? (void) 0 : fail(__LINE__, #CONDITION))
#define OK(CALL) CHECK((CALL) == TRIHOP_OK)

static void watchdog(int signal_number) {
    static const char words[] = "still running after the watchdog's time\n";
    (void) signal_number;
    (void) !write(2, words, sizeof words - 1);
    _exit(4);
}

static void count(void *context, const trihop_message_t *message) {
    (void) message;
    __atomic_fetch_add((uint64_t *) context, 1, __ATOMIC_RELAXED);
}

static void begin(int *argc, char ***argv, uint32_t seat) {
    static uint64_t delivered;
    signal(SIGALRM, watchdog);
    alarm(WATCHDOG_SECONDS);
#ifdef WITH_MPI
    MPI_Init(argc, argv);
#else
    (void) argc;
    (void) argv;
#endif
    OK(trihop_init(seat, NULL, &job));
    rank = trihop_rank(job);
    size = trihop_size(job);
    OK(trihop_stream_open(job, "steps", 0, NULL, count, &delivered, &shuffle));
}

static void send_steps(void) {
    uint32_t step, target;
    for (step = 0; step < STEPS; step++) {
        for (target = 0; target < size; target++)
            OK(trihop_stream_send(shuffle, target, 0, &step, sizeof step));
        OK(trihop_stream_fence(shuffle));
    }
}

static void steps(void) {
    send_steps();
    printf("rank %u: results\n", (unsigned) rank);
    fflush(stdout);
}

static void leave_trihop(void) {
    OK(trihop_stream_close(shuffle));
    OK(trihop_finalize(job));
}

static void open_a_channel(void) {
    OK(trihop_channels_open(job, "notes", NULL, &channels));
    OK(trihop_channel_create(channels, NULL, &channel));
    OK(trihop_channel_send(channel, 0, "a note", 6, TRIHOP_WHEN_BUFFERED, TRIHOP_NO_TIMEOUT));
}

/* What the thread of `main` has had for calls of its own is gone by then. */
static void work_late(void) {
    trihop_received_t note;
    send_steps();
    OK(trihop_channel_get(channel, TRIHOP_NO_TIMEOUT, &note));
    OK(trihop_channel_send(channel, 0, "another", 7, TRIHOP_WHEN_BUFFERED, TRIHOP_NO_TIMEOUT));
    trihop_received_free(&note);
    trihop_channel_free(channel);
    OK(trihop_channels_close(channels));
    leave_trihop();
}

static void leave_mpi(void) {
#ifdef WITH_MPI
    MPI_Finalize();
#endif
}

static void *send_for_ever(void *unused) {
    uint32_t target = 0;
    (void) unused;
    for (;;) { /* whatever is said: others may be gone */
        (void) trihop_stream_send(shuffle, target, 0, &target, sizeof target);
        target = (target + 1) % size;
    }
    return NULL;
}

static void *exit_here(void *unused) {
    (void) unused;
    exit(0);
    return NULL;
}

static int main_returned;

__attribute__((destructor)) static void leave_late(void) {
    if (main_returned)
        leave_trihop();
}

static void start(void *(*run)(void *) ) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, run, NULL) == 0);
    CHECK(pthread_detach(thread) == 0);
}

int main(int argc, char **argv) {
    const char *way = argc > 1 ? argv[1] : "";
    int at, is_inline;
    is_inline = strcmp(way, "nothing_is_left_inline") == 0;
    begin(&argc, &argv, is_inline ? TRIHOP_INLINE : TRIHOP_THREADED);
    steps();
    if (strcmp(way, "all_is_left") == 0) {
        leave_trihop();
        leave_mpi();
    } else if (strcmp(way, "mpi_is_left_first") == 0) {
        leave_mpi();
        leave_trihop();
    } else if (is_inline || strcmp(way, "nothing_is_left") == 0) {
        leave_mpi();
    } else if (strcmp(way, "works_by_atexit") == 0) {
        open_a_channel();
        leave_mpi();
        CHECK(atexit(work_late) == 0);
    } else if (strcmp(way, "left_by_atexit") == 0) {
        leave_mpi();
        CHECK(atexit(leave_trihop) == 0);
    } else if (strcmp(way, "left_by_a_destructor") == 0) {
        leave_mpi();
        main_returned = 1;
    } else if (strcmp(way, "a_thread_exits") == 0) {
        leave_mpi();
        start(exit_here);
        for (;;)
            pause();
    } else if (strcmp(way, "exit_while_others_send") == 0) {
        leave_mpi();
        for (at = 0; at < 3; at++)
            start(send_for_ever);
    } else {
        fprintf(stderr, "ending: there is no way `%s`\n", way);
        return 2;
    }
    return 0;
}

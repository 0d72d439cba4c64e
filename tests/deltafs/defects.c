/*
 * What the original got wrong, one test each: `defects NAME` on any number of ranks. They pass where the original lost
 * messages, hung, or crashed.
 */
#include "job.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>

static const struct shuffle_opts unbatched = {0, 0, 1, 0, 1, 0, 1, 0, 1, 0};

/* What callbacks saw; written by the threads of the shuffles, read after a flush of the deliveries or by nobody else's order. */
static volatile uint64_t delivered, delivered_bytes, empty_delivered;
static volatile uint32_t last_type;
static volatile int blocked, release_callback;

static void count(int src, int dst, uint32_t type, void *d, uint32_t datalen) {
    (void) src;
    (void) d;
    CHECK(dst == job.rank);
    last_type = type;
    __sync_fetch_and_add(&delivered, 1); /* two shuffles have two threads */
    __sync_fetch_and_add(&delivered_bytes, datalen);
    __sync_fetch_and_add(&empty_delivered, datalen == 0);
}

static int next_rank(void) {
    return (job.rank + 1) % job.size;
}

/* 3.8, 1: an empty message of type 0 ended the batch that it was in, and the messages behind it were lost. */
static void an_empty_message_among_others_is_delivered_and_so_are_they(void) {
    shuffle_t sh = open_shuffle("empty", count, NULL);
    char byte = 7;
    int at;
    for (at = 0; at < 21; at++)
        OK(shuffle_enqueue(sh, next_rank(), 0, at == 10 ? NULL : &byte, at == 10 ? 0 : 1));
    barrier();
    flush_all(sh);
    CHECK(delivered == 21 && empty_delivered == 1 && delivered_bytes == 20);
    OK(shuffle_shutdown(sh));
}

/* 3.8, 2: a queue of nothing but empty messages was never sent, and shutting down then freed them twice. */
static void empty_messages_alone_are_flushed(void) {
    shuffle_t sh = open_shuffle("only empty", count, NULL);
    int at;
    for (at = 0; at < 5; at++)
        OK(shuffle_enqueue(sh, next_rank(), (uint32_t) at, NULL, 0));
    barrier();
    flush_all(sh);
    CHECK(delivered == 5 && empty_delivered == 5 && last_type == 4);
    OK(shuffle_shutdown(sh));
}

static void empty_messages_alone_survive_a_shutdown(void) {
    struct shuffle_opts options = unbatched;
    shuffle_t sh;
    options.lobuftarget = options.lrbuftarget = options.rbuftarget = 4096;
    sh = open_shuffle("only empty", count, &options);
    OK(shuffle_enqueue(sh, next_rank(), 0, NULL, 0));
    barrier(); /* who is late by seconds is not waited for */
    OK(shuffle_shutdown(sh));
    CHECK(delivered == 1);
}

/* 3.8, 3: a threshold that the queue could not reach stopped everything. */
static void impossible_options_are_refused(void) {
    static const struct shuffle_opts impossible[] = {
        {0, 0, 1, 1, 1, 1, 1, 1, 4, 8}, {0, 0, 1, 1, 1, 1, 1, 1, 4, 4},  {0, 0, 1, 1, 1, 1, 1, 1, 0, 0},
        {0, 0, 0, 1, 1, 1, 1, 1, 4, 0}, {0, 0, 1, 1, 0, 1, 1, 1, 4, 0},  {0, 0, 1, 1, 1, 1, 0, 1, 4, 0},
        {0, 0, 1, 1, 1, 1, 1, 1, 4, -1}, {-1, 0, 1, 1, 1, 1, 1, 1, 4, 0}, {0, -1, 1, 1, 1, 1, 1, 1, 4, 0},
    };
    char name[] = "impossible";
    size_t at;
    for (at = 0; at < sizeof impossible / sizeof impossible[0]; at++) {
        struct shuffle_opts options = impossible[at];
        CHECK(shuffle_init(job.nexus, name, count, &options) == NULL);
    }
    CHECK(shuffle_init(NULL, name, count, NULL) == NULL);
    CHECK(shuffle_init(job.nexus, NULL, count, NULL) == NULL);
    CHECK(shuffle_init(job.nexus, name, NULL, NULL) == NULL);
    OK(shuffle_shutdown(open_shuffle(name, count, NULL))); /* and the name is still free */
}

static void messages_below_the_threshold_are_delivered_by_a_flush(void) {
    struct shuffle_opts options;
    shuffle_t sh;
    int at;
    shuffle_opts_init(&options);
    options.deliverq_max = 4;
    options.deliverq_threshold = 3;
    sh = open_shuffle("threshold", count, &options);
    for (at = 0; at < 5; at++)
        OK(shuffle_enqueue(sh, job.rank, 0, &at, sizeof at));
    OK(shuffle_flush_originqs(sh));
    OK(shuffle_flush_delivery(sh));
    CHECK(delivered == 5);
    OK(shuffle_shutdown(sh));
}

/* 3.8, 4: a rank that does not exist was a crash. */
static void a_rank_outside_the_job_is_an_invalid_argument(void) {
    shuffle_t sh = open_shuffle("bad rank", count, NULL);
    const int bad[] = {-1, job.size, job.size + 1, 100000000, INT_MAX, INT_MIN};
    hg_addr_t address;
    size_t at;
    int rank;
    for (at = 0; at < sizeof bad / sizeof bad[0]; at++) {
        CHECK(shuffle_enqueue(sh, bad[at], 0, &rank, sizeof rank) == HG_INVALID_ARG);
        CHECK(nexus_next_hop(job.nexus, bad[at], &rank, &address) == NX_INVAL);
        CHECK(nexus_set_grank(job.nexus, bad[at]) == NX_INVAL);
    }
    CHECK(nexus_global_rank(job.nexus) == job.rank);
    flush_all(sh);
    CHECK(delivered == 0);
    OK(shuffle_shutdown(sh));
}

static void null_handles_are_invalid_arguments(void) {
    hg_uint64_t number;
    shuffle_t sh;
    nexus_iter_t none = NULL;
    CHECK(shuffle_enqueue(NULL, 0, 0, &number, 8) == HG_INVALID_ARG);
    CHECK(shuffle_enqueue_broadcast(NULL, 0, &number, 8, 0) == HG_INVALID_ARG);
    CHECK(shuffle_flush_originqs(NULL) == HG_INVALID_ARG && shuffle_flush_delivery(NULL) == HG_INVALID_ARG);
    CHECK(shuffle_send_stats(NULL, &number, &number, &number) == HG_INVALID_ARG);
    CHECK(shuffle_recv_stats(NULL, &number, &number) == HG_INVALID_ARG);
    CHECK(shuffle_shutdown(NULL) == HG_INVALID_ARG);
    shuffle_opts_init(NULL);
    shuffle_statedump(NULL, 0);
    CHECK(nexus_bootstrap(NULL, NULL) == NULL);
    CHECK(nexus_bootstrap(job.net, NULL) == NULL); /* there is one already */
    nexus_destroy(NULL);
    CHECK(nexus_global_rank(NULL) == -1 && nexus_global_barrier(NULL) == NX_INVAL);
    CHECK(nexus_iter(NULL, 1) == NULL && nexus_iter_atend(NULL) != 0);
    nexus_iter_free(NULL);
    nexus_iter_free(&none);
    CHECK(mercury_progressor_init(NULL, NULL) == NULL);
    CHECK(mercury_progressor_freehandle(NULL) == HG_INVALID_ARG);
    CHECK(HG_Finalize(NULL) == HG_INVALID_ARG && HG_Context_destroy(NULL) == HG_INVALID_ARG);
    sh = open_shuffle("no data", count, NULL);
    CHECK(shuffle_enqueue(sh, 0, 0, NULL, 8) == HG_INVALID_ARG);
    CHECK(shuffle_enqueue(sh, 0, SHUFFLE_RTYPE_BCAST, &number, 8) == HG_INVALID_ARG);
    CHECK(shuffle_enqueue_broadcast(sh, 0, &number, 8, 2) == HG_INVALID_ARG);
    CHECK(shuffle_flush_qs(sh, 3) == HG_INVALID_ARG && shuffle_flush_qs(sh, -1) == HG_INVALID_ARG);
    OK(shuffle_send_stats(sh, NULL, NULL, NULL));
    OK(shuffle_shutdown(sh));
}

/* 3.8, 5: shutting down destroyed a lock twice; a dump mixed up what it showed, and could not be trusted when something hung. */
static void shuffles_are_opened_and_shut_down_again_and_again(void) {
    char same[] = "other";
    int round, at;
    for (round = 0; round < 8; round++) {
        shuffle_t sh = open_shuffle(round % 2 ? "odd" : "even", count, NULL);
        shuffle_t other = open_shuffle("other", count, NULL);
        for (at = 0; at < 10; at++)
            OK(shuffle_enqueue(at % 2 ? sh : other, next_rank(), 0, &at, sizeof at));
        CHECK(shuffle_init(job.nexus, same, count, NULL) == NULL); /* it is open */
        OK(shuffle_shutdown(sh));
        OK(shuffle_shutdown(other));
        CHECK(delivered == 10 * ((uint64_t) round + 1));
    }
}

static void block(int src, int dst, uint32_t type, void *d, uint32_t datalen) {
    (void) src, (void) dst, (void) type, (void) d, (void) datalen;
    __sync_synchronize();
    blocked = 1;
    while (!release_callback)
        nap();
    delivered++;
}

static shuffle_t volatile dumped;

static void dump_on_signal(int signal_number) {
    (void) signal_number;
    shuffle_statedump(dumped, 1);
}

static void dump_quietly_on_signal(int signal_number) {
    (void) signal_number;
    shuffle_statedump(dumped, 0);
}

/* A file in the place of stderr, so that this process can see what was written there. */
static FILE *caught;
static int real_stderr;

static void catch_stderr(void) {
    CHECK((caught = tmpfile()) != NULL);
    /* Others write while this process reads: at the end, wherever the position is. */
    CHECK(fcntl(fileno(caught), F_SETFL, O_APPEND) == 0);
    CHECK((real_stderr = dup(2)) >= 0);
    CHECK(dup2(fileno(caught), 2) == 2);
}

/* What a file holds; to be freed. */
static char *text_of(FILE *file) {
    char *text = NULL;
    long length = 0;
    if (fseek(file, 0, SEEK_END) == 0)
        length = ftell(file);
    CHECK(length >= 0 && (text = (char *) calloc(1, (size_t) length + 1)) != NULL);
    rewind(file);
    CHECK(fread(text, 1, (size_t) length, file) <= (size_t) length);
    return text;
}

/* Waits until the words stand there so often: dumps are written by another thread. The watchdog says whether they come. */
static void wait_for_words(FILE *file, const char *words, int times) {
    int found;
    for (;;) {
        char *text = text_of(file), *from = text;
        for (found = 0; (from = strstr(from, words)) != NULL; from++)
            found++;
        free(text);
        if (found >= times)
            return;
        nap();
    }
}

static void release_stderr(void) {
    char *text = text_of(caught);
    CHECK(dup2(real_stderr, 2) == 2);
    fputs(text, stderr);
    free(text);
    fclose(caught);
    close(real_stderr);
}

static void a_dump_does_not_wait_for_a_callback_that_blocks(void) {
    const char *dump = "stream 2 `blocked for the dump` on rank ";
    int at;
    catch_stderr();
    dumped = open_shuffle("blocked for the dump", block, NULL);
    for (at = 0; at < 10; at++)
        OK(shuffle_enqueue(dumped, job.rank, 0, &at, sizeof at));
    OK(shuffle_flush_originqs(dumped));
    while (!blocked)
        nap();
    errno = 77;
    shuffle_statedump(dumped, 1);
    CHECK(errno == 77);
    wait_for_words(caught, dump, 1);
    signal(SIGUSR1, dump_on_signal);
    raise(SIGUSR1);
    wait_for_words(caught, dump, 2);
    fprintf(stderr, "rank %d: the callback is released\n", job.rank);
    release_callback = 1;
    OK(shuffle_flush_delivery(dumped));
    CHECK(delivered == 10);
    OK(shuffle_shutdown(dumped));
    shuffle_statedump(dumped, 1); /* a handle that is gone is said to be so */
    wait_for_words(caught, "this shuffle is not open", 1);
    release_stderr();
}

/*
 * A handler may interrupt a thread that has the engine, or a lock: what it waited for then, that
 * thread could never give. So it only asks, and whatever the timer does, the threads below it come
 * to their end.
 */
enum { TIMED_SENDS = 20000 };
static shuffle_t timed;

static void *send_while_the_timer_runs(void *argument) {
    uint64_t state = (uint64_t) (uintptr_t) argument;
    int at;
    for (at = 0; at < TIMED_SENDS; at++)
        OK(shuffle_enqueue(timed, (int) (draw(&state) % (uint32_t) job.size), 0, &at, sizeof at));
    OK(shuffle_flush_originqs(timed));
    return NULL;
}

static void a_timer_that_dumps_keeps_no_thread_from_its_work(void) {
    struct itimerspec often = {{0, 2000000}, {0, 2000000}}, never = {{0, 0}, {0, 0}};
    pthread_t threads[4];
    struct sigevent event;
    timer_t timer;
    int at;
    dumped = timed = open_shuffle("timed", count, NULL);
    memset(&event, 0, sizeof event);
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGUSR1;
    signal(SIGUSR1, dump_quietly_on_signal);
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    barrier();
    CHECK(timer_settime(timer, 0, &often, NULL) == 0);
    for (at = 0; at < 4; at++)
        CHECK(pthread_create(&threads[at], NULL, send_while_the_timer_runs,
                             (void *) (uintptr_t) (job.rank * 4 + at)) == 0);
    for (at = 0; at < 4; at++)
        CHECK(pthread_join(threads[at], NULL) == 0);
    CHECK(timer_settime(timer, 0, &never, NULL) == 0);
    CHECK(timer_delete(timer) == 0);
    barrier();
    flush_all(timed);
    barrier();
    OK(shuffle_shutdown(timed));
}

/* What was asked for before is written when the process exits, from inside of the handler too. */
static void dump_and_exit_on_signal(int signal_number) {
    (void) signal_number;
    shuffle_statedump(dumped, 1);
    exit(0);
}

static void a_handler_that_dumps_and_exits_leaves_a_dump(void) {
    dumped = open_shuffle("asked for at the exit", count, NULL);
    barrier();
    signal(SIGUSR1, dump_and_exit_on_signal);
    raise(SIGUSR1);
}

/* A nexus may end while another thread dumps, and what it leaves open is closed: its name is free. One rank without a launcher. */
static volatile int enough_dumps;

static void *dump_all_the_time(void *unused) {
    (void) unused;
    while (!enough_dumps)
        shuffle_statedump(dumped, 0);
    return NULL;
}

static int descriptors(void) {
    DIR *open_ones = opendir("/proc/self/fd");
    int found = 0;
    CHECK(open_ones != NULL);
    while (readdir(open_ones) != NULL)
        found++;
    closedir(open_ones);
    return found;
}

static void a_nexus_ends_while_others_dump(void) {
    pthread_t thread;
    int round, at, after_the_first = 0;
    CHECK(pthread_create(&thread, NULL, dump_all_the_time, NULL) == 0);
    for (round = 0; round < 10; round++) {
        shuffle_t before = dumped;
        begin(NULL, NULL, 0);
        dumped = open_shuffle("left open", count, NULL);
        if (before != NULL)
            OK(shuffle_shutdown(before));
        for (at = 0; at < 10; at++)
            OK(shuffle_enqueue(dumped, job.rank, 0, &at, sizeof at));
        end();
        CHECK(delivered == 10 * ((uint64_t) round + 1));
        if (round == 0)
            after_the_first = descriptors();
    }
    enough_dumps = 1;
    CHECK(pthread_join(thread, NULL) == 0);
    OK(shuffle_shutdown(dumped));
    while (descriptors() > after_the_first)
        nap(); /* a dump may have a shuffle for a moment; the watchdog says whether it lets go */
}

/* Signals go to the program's own threads, never to the one that would have to write a dump: all others block them. */
static void a_signal_finds_no_thread_of_the_library(void) {
    shuffle_t sh = open_shuffle("signalled", count, NULL);
    DIR *threads = opendir("/proc/self/task");
    struct dirent *thread;
    int others = 0;
    CHECK(threads != NULL);
    while ((thread = readdir(threads)) != NULL) {
        char path[300], line[256], name[256] = "";
        unsigned long long blocked_signals = 0;
        FILE *status;
        if (thread->d_name[0] == '.' || atoi(thread->d_name) == (int) getpid())
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", thread->d_name);
        CHECK((status = fopen(path, "r")) != NULL);
        while (fgets(line, sizeof line, status) != NULL) {
            (void) sscanf(line, "Name: %255s", name);
            (void) sscanf(line, "SigBlk: %llx", &blocked_signals);
        }
        fclose(status);
        fprintf(stderr, "rank %d: thread %s blocks %llx\n", job.rank, name, blocked_signals);
        CHECK((blocked_signals >> (SIGUSR1 - 1) & 1) == 1);
        CHECK((blocked_signals >> (SIGALRM - 1) & 1) == 1);
        others++;
    }
    closedir(threads);
    CHECK(others >= 3); /* progress, deliveries, dumps */
    OK(shuffle_shutdown(sh));
}

/* 3.8, 6: counters and flushes raced. */
enum { THREADS = 4, EACH = 3000 };
static shuffle_t shared;

static void *enqueue_and_flush(void *argument) {
    uint64_t state = (uint64_t) (uintptr_t) argument;
    int at;
    for (at = 0; at < EACH; at++) {
        hg_uint64_t origin, relay, remote;
        OK(shuffle_enqueue(shared, (int) (draw(&state) % (uint32_t) job.size), 0, &at, sizeof at));
        if (at % 500 == 0) {
            OK(shuffle_flush_originqs(shared));
            OK(shuffle_flush_remoteqs(shared));
            OK(shuffle_flush_relayqs(shared));
            OK(shuffle_flush_delivery(shared));
        }
        if (at % 100 == 0) {
            hg_return_t outcome = shuffle_send_stats(shared, &origin, &relay, &remote);
            CHECK(outcome == HG_SUCCESS || outcome == HG_AGAIN);
        }
    }
    return NULL;
}

static void many_threads_enqueue_flush_and_read_counters(void) {
    pthread_t threads[THREADS];
    uint64_t expected = 0, state;
    int at, source;
    shared = open_shuffle("threads", count, NULL);
    barrier();
    for (at = 0; at < THREADS; at++)
        CHECK(pthread_create(&threads[at], NULL, enqueue_and_flush, (void *) (uintptr_t) (job.rank * THREADS + at)) == 0);
    for (at = 0; at < THREADS; at++)
        CHECK(pthread_join(threads[at], NULL) == 0);
    barrier();
    flush_all(shared);
    for (source = 0; source < job.size * THREADS; source++)
        for (state = (uint64_t) source, at = 0; at < EACH; at++)
            expected += draw(&state) % (uint32_t) job.size == (uint32_t) job.rank;
    CHECK(delivered == expected);
    OK(shuffle_shutdown(shared));
}

/*
 * 3.8, 7: counters had 32 bits. Here only that all of a 64-bit place is written; layout.c has the types, and a unit test of the
 * library has larger values.
 */
static void counters_fill_64_bits(void) {
    hg_uint64_t origin = UINT64_MAX, relay = UINT64_MAX, remote = UINT64_MAX, local = UINT64_MAX, received = UINT64_MAX;
    shuffle_t sh = open_shuffle("counters", count, NULL);
    flush_all(sh);
    OK(shuffle_send_stats(sh, &origin, &relay, &remote));
    OK(shuffle_recv_stats(sh, &local, &received));
    CHECK(origin == 0 && relay == 0 && remote == 0 && local == 0 && received == 0);
    barrier();
    OK(shuffle_enqueue(sh, next_rank(), 0, &origin, sizeof origin));
    barrier();
    flush_all(sh);
    OK(shuffle_send_stats(sh, &origin, &relay, &remote));
    OK(shuffle_recv_stats(sh, &local, &received));
    CHECK(delivered == 1);
    CHECK(origin <= 1 && origin + remote >= 1);
    CHECK(local + received >= 1 && local + received <= 3);
    OK(shuffle_shutdown(sh));
}

/* 3.5: with several batches under way, messages overtook each other. runner.c checks every pair; this is the smallest case. */
static uint32_t expected_number;

static void in_order(int src, int dst, uint32_t type, void *d, uint32_t datalen) {
    (void) src, (void) dst, (void) d, (void) datalen;
    CHECK(type == expected_number);
    expected_number++;
}

static void messages_of_a_pair_stay_in_order_with_many_batches_under_way(void) {
    static char bytes[20000];
    struct shuffle_opts options;
    shuffle_t sh;
    uint32_t at;
    shuffle_opts_init(&options);
    options.rmaxrpc = options.lomaxrpc = options.lrmaxrpc = 16;
    options.rbuftarget = 256;
    sh = open_shuffle("order", in_order, &options);
    for (at = 0; at < 4000; at++)
        OK(shuffle_enqueue(sh, (job.rank + job.size / 2) % job.size, at, bytes, at % 97 == 0 ? sizeof bytes : at % 32));
    barrier();
    flush_all(sh);
    CHECK(expected_number == 4000);
    OK(shuffle_shutdown(sh));
}

/* 3.4: a partial batch waited for ever, unless something flushed it. */
static void a_partial_batch_leaves_by_itself(void) {
    struct shuffle_opts options;
    shuffle_t sh;
    shuffle_opts_init(&options);
    options.lobuftarget = options.lrbuftarget = options.rbuftarget = 32768;
    options.deliverq_threshold = 1024;
    sh = open_shuffle("partial", count, &options);
    OK(shuffle_enqueue(sh, (job.rank + job.size / 2) % job.size, 0, &options, 8));
    while (delivered == 0)
        nap(); /* the watchdog says whether it comes */
    OK(shuffle_shutdown(sh));
}

/* 3.7: what was under way at the end was dropped with a warning. */
static void a_shutdown_delivers_what_is_under_way(void) {
    shuffle_t sh = open_shuffle("shutdown", count, NULL);
    int at;
    for (at = 0; at < 1000; at++)
        OK(shuffle_enqueue(sh, at % job.size, 0, &at, sizeof at));
    barrier(); /* who is late by seconds is not waited for */
    OK(shuffle_shutdown(sh));
    CHECK(delivered == (uint64_t) job.size * (1000 / (uint64_t) job.size) +
                           ((uint64_t) job.rank < 1000 % (uint64_t) job.size ? (uint64_t) job.size : 0));
}

/* 3.7: what came before a rank was ready was dropped without a word, and its sender waited for ever. */
static void nothing_is_lost_to_a_rank_that_opens_late(void) {
    shuffle_t sh;
    int at;
    if (job.rank == job.size - 1)
        for (at = 0; at < 200; at++)
            nap();
    sh = open_shuffle("late", count, NULL);
    for (at = 0; at < 100; at++)
        OK(shuffle_enqueue(sh, job.size - 1, 0, &at, sizeof at));
    barrier();
    flush_all(sh);
    CHECK(delivered == (job.rank == job.size - 1 ? 100 * (uint64_t) job.size : 0));
    OK(shuffle_shutdown(sh));
}

/* Opening is a call of one rank: some open before a barrier and send at once, the others after it. */
static void a_rank_may_open_before_a_barrier_and_another_one_after_it(void) {
    shuffle_t sh = NULL;
    int at, early = job.rank % 2 == 0;
    if (early) {
        sh = open_shuffle("early", count, NULL);
        for (at = 0; at < 1000; at++)
            OK(shuffle_enqueue(sh, at % job.size, (uint32_t) at, &at, sizeof at));
        OK(shuffle_enqueue_broadcast(sh, 7, &at, sizeof at, SHUFFLE_BCAST_SELF));
    }
    barrier();
    if (!early) {
        sh = open_shuffle("early", count, NULL);
        for (at = 0; at < 1000; at++)
            OK(shuffle_enqueue(sh, at % job.size, (uint32_t) at, &at, sizeof at));
        OK(shuffle_enqueue_broadcast(sh, 7, &at, sizeof at, SHUFFLE_BCAST_SELF));
    }
    barrier();
    flush_all(sh);
    CHECK(delivered == (uint64_t) job.size * (1000 / (uint64_t) job.size + 1) +
                           ((uint64_t) job.rank < 1000 % (uint64_t) job.size ? (uint64_t) job.size : 0));
    OK(shuffle_shutdown(sh));
}

/* What is sent before all ranks have opened a shuffle keeps its order with what is sent after it. */
static void what_is_sent_early_stays_in_order(void) {
    shuffle_t sh = NULL;
    uint32_t at = 0;
    int target = (job.rank + job.size / 2) % job.size;
    if (job.rank < job.size / 2)
        for (; at < 600; at++)
            nap();
    sh = open_shuffle("order", in_order, NULL);
    for (at = 0; at < 20000; at++)
        OK(shuffle_enqueue(sh, target, at, &at, at % 5));
    barrier();
    flush_all(sh);
    CHECK(job.size % 2 == 1 || expected_number == 20000);
    OK(shuffle_shutdown(sh));
}

/* Ranks open and shut down in whatever order they like, with a barrier in between or without. */
static void shuffles_are_opened_and_shut_down_in_any_order(void) {
    int round;
    for (round = 0; round < 3; round++) {
        const char *names[] = {"first", "second", "third"};
        shuffle_t shuffles[3];
        int at;
        for (at = 0; at < 3; at++) {
            int which = (at + job.rank + round) % 3;
            shuffles[which] = open_shuffle(names[which], count, NULL);
        }
        for (at = 0; at < 3; at++)
            OK(shuffle_enqueue(shuffles[at], next_rank(), 0, &at, sizeof at));
        for (at = 0; at < 3; at++) {
            barrier();
            flush_all(shuffles[at]);
        }
        CHECK(delivered == 3 * (uint64_t) (round + 1));
        if (job.rank == 0)
            OK(shuffle_shutdown(shuffles[0]));
        barrier(); /* the others shut theirs down behind it */
        for (at = 2; at >= 0; at--)
            if (at > 0 || job.rank != 0)
                OK(shuffle_shutdown(shuffles[at]));
    }
}

/* After a shutdown no callback is called, though others still send; nothing of theirs hangs. */
static volatile int is_shut_down;

static void count_until_the_shutdown(int src, int dst, uint32_t type, void *d, uint32_t datalen) {
    CHECK(!is_shut_down);
    count(src, dst, type, d, datalen);
}

static void a_rank_that_has_shut_down_hears_no_more(void) {
    shuffle_t sh = open_shuffle("deaf", count_until_the_shutdown, NULL);
    int at;
    OK(shuffle_enqueue(sh, next_rank(), 0, &at, 0));
    barrier();
    flush_all(sh);
    CHECK(delivered == 1);
    if (job.rank == 0) {
        OK(shuffle_shutdown(sh));
        is_shut_down = 1;
    }
    barrier();
    if (job.rank != 0) {
        for (at = 0; at < 5000; at++)
            OK(shuffle_enqueue(sh, at % job.size, 0, &at, sizeof at));
        OK(shuffle_shutdown(sh));
        CHECK(delivered > 1);
    }
    barrier();
    CHECK(job.rank != 0 || delivered == 1);
}

/* 3.7: no limit was checked, and sizes overflowed. */
static void a_message_that_is_too_long_is_refused(void) {
    const uint32_t limit = 64u << 20;
    char *bytes = (char *) calloc(1, limit + 1);
    shuffle_t sh = open_shuffle("long", count, NULL);
    CHECK(bytes != NULL);
    CHECK(shuffle_enqueue(sh, next_rank(), 0, bytes, limit + 1) == HG_MSGSIZE);
    CHECK(shuffle_enqueue(sh, next_rank(), 0, bytes, UINT32_MAX) == HG_MSGSIZE);
    OK(shuffle_enqueue(sh, next_rank(), 0, bytes, 1 << 20));
    barrier();
    flush_all(sh);
    CHECK(delivered == 1 && delivered_bytes == 1 << 20);
    OK(shuffle_shutdown(sh));
    free(bytes);
}

/* 3.6: a callback that sent could hang when queues were full. */
static shuffle_t answering;
static volatile uint64_t answers;

static void answer(int src, int dst, uint32_t type, void *d, uint32_t datalen) {
    CHECK(dst == job.rank);
    delivered++;
    if (type == 0)
        OK(shuffle_enqueue(answering, src, 1, d, datalen));
    else
        answers++;
    CHECK(shuffle_flush_delivery(answering) == HG_OPNOTSUPPORTED);
    CHECK(shuffle_flush_originqs(answering) == HG_OPNOTSUPPORTED);
    CHECK(shuffle_shutdown(answering) == HG_OPNOTSUPPORTED);
    CHECK(nexus_global_barrier(job.nexus) == NX_ERROR);
    CHECK(nexus_local_barrier(job.nexus) == NX_ERROR);
    if (type == 0)
        nexus_destroy(job.nexus);
    CHECK(nexus_global_size(job.nexus) == job.size); /* it is still there */
}

static void callbacks_answer_while_queues_are_full(void) {
    struct shuffle_opts options = unbatched;
    int at;
    options.lomaxrpc = options.lrmaxrpc = options.rmaxrpc = 2;
    options.deliverq_max = 2;
    answering = open_shuffle("answers", answer, &options);
    barrier();
    for (at = 0; at < 500; at++)
        OK(shuffle_enqueue(answering, at % job.size, 0, &at, sizeof at));
    barrier();
    flush_all(answering);
    barrier();
    flush_all(answering);
    CHECK(answers == 500);
    OK(shuffle_shutdown(answering));
}

/* deliverq_max below 0: what arrives is thrown away, on purpose and counted. */
static void a_negative_queue_discards_what_arrives(void) {
    struct shuffle_opts options;
    shuffle_t sh;
    int at;
    shuffle_opts_init(&options);
    options.deliverq_max = -1;
    sh = open_shuffle("discard", count, &options);
    for (at = 0; at < 100; at++)
        OK(shuffle_enqueue(sh, next_rank(), 0, &at, sizeof at));
    barrier();
    flush_all(sh);
    CHECK(delivered == 0);
    shuffle_statedump(sh, 1);
    OK(shuffle_shutdown(sh));
}

/* 3.7: a rank that died swallowed messages, or hung who sent to it, and nobody was told. DEFECTS_DEAD is the one that dies. */
static void die_at_the_tenth(int source, int target, uint32_t type, void *bytes, uint32_t length) {
    static int calls;
    (void)source, (void)target, (void)type, (void)bytes, (void)length;
    if (++calls == 10)
        raise(SIGKILL);
}

/* What is sent to a rank is acknowledged by its node, then it dies: nobody owes anything, and still everybody hears of it,
 * by flushes or, where DEFECTS_BARRIER is set, in a barrier. */
static void a_death_after_the_last_acknowledgement_is_noticed(void) {
    shuffle_t sh = open_shuffle("late", die_at_the_tenth, NULL);
    const int in_barrier = getenv("DEFECTS_BARRIER") != NULL;
    int at, failed = 0;
    signal(SIGTERM, SIG_IGN);
    barrier();
    for (at = 0; job.rank == 0 && at < 3000; at++)
        shuffle_enqueue(sh, job.size - 1, 0, &at, sizeof at);
    for (at = 0; at < 20000 && !failed; at++) {
        if (in_barrier)
            failed = nexus_global_barrier(job.nexus) != NX_SUCCESS;
        else
            failed = shuffle_flush_originqs(sh) == HG_HOSTUNREACH && shuffle_flush_remoteqs(sh) == HG_HOSTUNREACH &&
                     shuffle_flush_relayqs(sh) == HG_HOSTUNREACH && shuffle_flush_delivery(sh) == HG_HOSTUNREACH;
        nap();
    }
    fprintf(stderr, "rank %d: %s\n", job.rank, failed ? "has noticed" : "has not noticed");
    exit(0);
}

static void the_next_flush_tells_of_a_dead_rank(void) {
    shuffle_t sh = open_shuffle("dead", count, NULL);
    hg_return_t outcome = HG_SUCCESS;
    const char *chosen = getenv("DEFECTS_DEAD");
    int at, dead;
    CHECK(chosen != NULL);
    dead = atoi(chosen);
    signal(SIGTERM, SIG_IGN); /* the launcher's, on behalf of the dead */
    barrier();
    if (job.rank == dead)
        raise(SIGKILL);
    for (at = 0; outcome == HG_SUCCESS; at++) {
        /* To the last rank, whose node the dead one may represent. */
        outcome = shuffle_enqueue(sh, job.rank == job.size - 1 ? dead : job.size - 1, 0, &at, sizeof at);
        if (outcome == HG_SUCCESS && at % 100 == 0)
            nap();
    }
    fprintf(stderr, "rank %d: enqueue says %s\n", job.rank, HG_Error_to_string(outcome));
    fprintf(stderr, "rank %d: flushes say %s %s %s %s\n", job.rank, HG_Error_to_string(shuffle_flush_originqs(sh)),
            HG_Error_to_string(shuffle_flush_remoteqs(sh)), HG_Error_to_string(shuffle_flush_relayqs(sh)),
            HG_Error_to_string(shuffle_flush_delivery(sh)));
    shuffle_statedump(sh, 1);
    fprintf(stderr, "rank %d: shutdown says %s\n", job.rank, HG_Error_to_string(shuffle_shutdown(sh)));
    nexus_destroy(job.nexus);
    fprintf(stderr, "rank %d: goes on\n", job.rank);
    exit(0);
}

/* nexus: tables, iterators, addresses and progressors agree with each other. */
static void nexus_tables_agree(void) {
    progressor_handle_t *local = nexus_localprogressor(job.nexus), *remote = nexus_remoteprogressor(job.nexus);
    struct progressor_stats stats;
    nexus_iter_t iterator;
    hg_addr_t address;
    int rank, target, locals = 0, hops;
    CHECK(local != NULL && remote != NULL && mercury_progressor_hgclass(remote) == job.hg_class);
    CHECK(strcmp(HG_Class_get_protocol(mercury_progressor_hgclass(local)), "sm") == 0);
    for (iterator = nexus_iter(job.nexus, 1); !nexus_iter_atend(iterator); nexus_iter_advance(iterator)) {
        CHECK(nexus_iter_subrank(iterator) == 0);
        target = nexus_iter_globalrank(iterator);
        hops = nexus_next_hop(job.nexus, target, &rank, &address);
        CHECK(hops == (target == job.rank ? NX_DONE : NX_ISLOCAL));
        CHECK(target == job.rank || (rank == target && address == nexus_iter_addr(iterator)));
        locals++;
    }
    CHECK(nexus_iter_addr(iterator) == HG_ADDR_NULL && nexus_iter_globalrank(iterator) == -1);
    nexus_iter_free(&iterator);
    CHECK(iterator == NULL && locals == nexus_local_size(job.nexus));
    for (target = 0; target < job.size; target++) {
        hops = nexus_next_hop(job.nexus, target, &rank, &address);
        CHECK(hops == NX_DONE || hops == NX_ISLOCAL || hops == NX_SRCREP || hops == NX_DESTREP);
        if (hops == NX_SRCREP) { /* that representative talks to the destination's node */
            CHECK(nexus_next_hop(job.nexus, rank, NULL, NULL) == NX_ISLOCAL);
            CHECK(nexus_set_grank(job.nexus, rank) == NX_SUCCESS);
            CHECK(nexus_next_hop(job.nexus, target, NULL, NULL) == NX_NOTFOUND); /* in a table of its own */
            CHECK(nexus_set_grank(job.nexus, job.rank) == NX_SUCCESS);
        }
    }
    for (iterator = nexus_iter(job.nexus, 0); !nexus_iter_atend(iterator); nexus_iter_advance(iterator)) {
        target = nexus_iter_globalrank(iterator);
        CHECK(nexus_next_hop(job.nexus, target, &rank, &address) == NX_DESTREP);
        CHECK(rank == target && HG_Addr_cmp(job.hg_class, address, nexus_iter_addr(iterator)));
    }
    nexus_iter_free(&iterator);
    OK(mercury_progressor_getstats(job.net, &stats));
    CHECK(stats.is_running == 1 && stats.needed == 0 && stats.progressor_refcnt == 2);
    CHECK(nexus_local_barrier(job.nexus) == NX_SUCCESS);
    CHECK(nexus_global_barrier(job.nexus) == NX_SUCCESS);
    CHECK(job.size == 1 || mercury_progressor_nprogress(job.net) > 0);
    CHECK(mercury_progressor_addrstring(job.net) != NULL);
}

/* Ranks of a node meet without those of other nodes: node 0 may be 50 barriers ahead. */
static void a_local_barrier_involves_one_node_only(void) {
    shuffle_t sh = open_shuffle("nodes", count, NULL);
    int at, rank, first_node = 0;
    nexus_iter_t iterator = nexus_iter(job.nexus, 1);
    first_node = nexus_iter_globalrank(iterator) == 0;
    nexus_iter_free(&iterator);
    if (!first_node)
        while (delivered == 0) /* until node 0 is through */
            nap();
    for (at = 0; at < 50; at++)
        CHECK(nexus_local_barrier(job.nexus) == NX_SUCCESS);
    if (first_node && job.rank == 0)
        for (rank = 0; rank < job.size; rank++)
            OK(shuffle_enqueue(sh, rank, 0, &at, sizeof at));
    OK(shuffle_shutdown(sh));
    CHECK(delivered == 1);
}

/* What cannot be returned, and dumps, are in the log: here a file for each rank, named by the environment. */
static void configure_logs(const char *priority) {
    const char *file = getenv("DEFECTS_LOG");
    CHECK(file != NULL);
    CHECK(shuffle_cfglog(-1, "LOUD", NULL, NULL, NULL, NULL, 1, 0, 0, 0) == -1); /* no such priority */
    CHECK(shuffle_cfglog(-1, priority, "INFO", NULL, NULL, file, 1, 4096, 0, 0) == 0);
    CHECK(shuffle_cfglog(-1, priority, "INFO", NULL, NULL, file, 1, 4096, 0, 0) == -1); /* once */
}

static void leave_lines_in_the_log(void) {
    struct shuffle_opts options = {0, 0, 1, 1, 1, 1, 1, 1, 4, 8};
    char name[] = "refused", path[4096];
    FILE *log;
    shuffle_t sh = open_shuffle("logged", count, NULL);
    CHECK(shuffle_init(job.nexus, name, count, &options) == NULL);
    OK(shuffle_enqueue(sh, job.rank, 0, name, sizeof name));
    flush_all(sh);
    shuffle_statedump(sh, 0);
    snprintf(path, sizeof path, "%s.%d", getenv("DEFECTS_LOG") ? getenv("DEFECTS_LOG") : "", job.rank);
    if (getenv("DEFECTS_LOG") && (log = fopen(path, "r")) != NULL) { /* where it could be opened, the figures are those before the next message */
        wait_for_words(log, "`logged`", 1);
        fclose(log);
    }
    OK(shuffle_enqueue(sh, job.rank, 0, name, sizeof name));
    OK(shuffle_shutdown(sh));
}

static void logs_go_to_a_file_for_each_rank(void) {
    configure_logs("INFO");
    begin(NULL, NULL, 0);
    leave_lines_in_the_log();
}

/* The order of the preload library: a rank knows its number before there are logs. */
static void logs_begin_after_the_bootstrap(void) {
    begin(NULL, NULL, 0);
    configure_logs("INFO");
    leave_lines_in_the_log();
}

/* It may be known only when the job has started. Nothing is logged then, and what cannot be returned is on stderr. */
static void a_log_file_that_cannot_be_opened_ends_no_job(void) {
    CHECK(shuffle_cfglog(-1, "INFO", "INFO", NULL, NULL, "/nonexistent/folder/log", 1, 0, 1, 1) == 0);
    begin(NULL, NULL, 0);
    leave_lines_in_the_log();
}

/* What a mask names beyond what there is is passed over, with a line in the log; the rest of it counts. */
static void what_a_mask_names_in_vain_is_passed_over(void) {
    const char *file = getenv("DEFECTS_LOG");
    CHECK(file != NULL);
    CHECK(shuffle_cfglog(-1, "ERR", "EMRG", "NET=ERR,SHUF=LOUD,CLNT=INFO", NULL, file, 1, 0, 0, 0) == 0);
    begin(NULL, NULL, 0);
}

/* Whatever the priorities, and once: on stderr with the last lines of the log, in the file by itself. */
static void a_dump_is_in_the_log_whatever_is_logged(void) {
    struct shuffle_opts options = {0, 0, 1, 1, 1, 1, 1, 1, 4, 8};
    char name[] = "refused";
    shuffle_t sh;
    begin(NULL, NULL, 0);
    configure_logs("ERR");
    CHECK(shuffle_init(job.nexus, name, count, &options) == NULL);
    sh = open_shuffle("dumped", count, NULL);
    shuffle_statedump(sh, 1);
    shuffle_statedump(sh, 0);
    OK(shuffle_shutdown(sh));
}

#define TEST(NAME) {#NAME, NAME, 0}
#define TEST_THAT_BEGINS(NAME) {#NAME, NAME, 1}
static const struct {
    const char *name;
    void (*run)(void);
    int begins; /* the job, by itself */
} tests[] = {
    TEST(an_empty_message_among_others_is_delivered_and_so_are_they),
    TEST(empty_messages_alone_are_flushed),
    TEST(empty_messages_alone_survive_a_shutdown),
    TEST(impossible_options_are_refused),
    TEST(messages_below_the_threshold_are_delivered_by_a_flush),
    TEST(a_rank_outside_the_job_is_an_invalid_argument),
    TEST(null_handles_are_invalid_arguments),
    TEST(shuffles_are_opened_and_shut_down_again_and_again),
    TEST(a_dump_does_not_wait_for_a_callback_that_blocks),
    TEST(a_timer_that_dumps_keeps_no_thread_from_its_work),
    TEST(a_handler_that_dumps_and_exits_leaves_a_dump),
    TEST(many_threads_enqueue_flush_and_read_counters),
    TEST(counters_fill_64_bits),
    TEST(messages_of_a_pair_stay_in_order_with_many_batches_under_way),
    TEST(a_partial_batch_leaves_by_itself),
    TEST(a_shutdown_delivers_what_is_under_way),
    TEST(nothing_is_lost_to_a_rank_that_opens_late),
    TEST(a_rank_may_open_before_a_barrier_and_another_one_after_it),
    TEST(what_is_sent_early_stays_in_order),
    TEST(shuffles_are_opened_and_shut_down_in_any_order),
    TEST(a_rank_that_has_shut_down_hears_no_more),
    TEST(a_message_that_is_too_long_is_refused),
    TEST(callbacks_answer_while_queues_are_full),
    TEST(a_negative_queue_discards_what_arrives),
    TEST(the_next_flush_tells_of_a_dead_rank),
    TEST(a_death_after_the_last_acknowledgement_is_noticed),
    TEST(nexus_tables_agree),
    TEST(a_local_barrier_involves_one_node_only),
    TEST(a_signal_finds_no_thread_of_the_library),
    TEST_THAT_BEGINS(logs_go_to_a_file_for_each_rank),
    TEST_THAT_BEGINS(logs_begin_after_the_bootstrap),
    TEST_THAT_BEGINS(a_log_file_that_cannot_be_opened_ends_no_job),
    TEST_THAT_BEGINS(what_a_mask_names_in_vain_is_passed_over),
    TEST_THAT_BEGINS(a_nexus_ends_while_others_dump),
    TEST_THAT_BEGINS(a_dump_is_in_the_log_whatever_is_logged),
};

int main(int argc, char **argv) {
    size_t at;
    if (argc == 1) { /* the names, for the program that runs them */
        for (at = 0; at < sizeof tests / sizeof tests[0]; at++)
            puts(tests[at].name);
        return 0;
    }
    for (at = 0; at < sizeof tests / sizeof tests[0]; at++) {
        if (strcmp(argv[1], tests[at].name) == 0) {
            if (!tests[at].begins)
                begin(&argc, &argv, 0);
            tests[at].run();
            if (job.nexus != NULL)
                end();
            return 0;
        }
    }
    fprintf(stderr, "defects: there is no test `%s`\n", argv[1]);
    return 2;
}

/*
 * What a client of the DeltaFS shuffle gets, measured: an MPI program that sends messages to drawn ranks, never to itself,
 * and flushes hop by hop with MPI's barriers in between, or takes the times of round trips. Every byte of every message is
 * checked by the receiver. Rank 0 prints a row of JSON for each size, with the keys of `trihop bench --json`.
 *
 *   many [options]
 *     -o OPTIONS  production (the default): those of large runs; default: shuffle_opts_init()'s; single: one message each
 *     -s BYTES    length of a message, at least 24; may be given again (24, 256, 1024, 32768)
 *     -c COUNT    messages of each rank, or round trips
 *     -r REPS     measured repetitions after a first one that warms up (3)
 *     -l PAIR     round trips instead: node, between two ranks of a node; hops, over three hops each way
 *     -u          the shuffle is beside another one with the options of production, as an urgent one is
 */
#include "job.h"

#include <getopt.h>
#include <pthread.h>
#include <sys/resource.h>

#define MOST_SIZES 16
#define MOST_REPS 64
#define ROUND_TRIPS 400
#define WARM_UP_TRIPS 50
/* Longer messages are few, and need no repetition that warms up. */
#define LONG_BYTES (1 << 20)

struct message {
    uint64_t number; /* of its source, from 1 */
    uint32_t source;
    uint32_t target;
};

struct usage {
    double cpu_seconds;
    double faults;
    double switches;
};

static struct {
    const char *options_name;
    struct shuffle_opts options;
    int sizes[MOST_SIZES], number_of_sizes;
    int count, reps, urgent;
    const char *pair;
} args;

static shuffle_t sh;
static uint32_t bytes_now; /* of each message */
static unsigned char *pattern; /* what follows the head in a message of source s begins at byte s */
static int nodes, hops;
static uint8_t *hops_of; /* from, to */

/* By source; the callback's thread has them until the last flush. */
static uint64_t *received, *sum;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t came;
} turn = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};

enum { DATA, PING, PONG, STOP };

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double) now.tv_sec + (double) now.tv_nsec / 1e9;
}

static struct usage usage_now(void) {
    struct usage usage;
    struct rusage of_process;
    struct timespec cpu;
    getrusage(RUSAGE_SELF, &of_process);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    usage.cpu_seconds = (double) cpu.tv_sec + (double) cpu.tv_nsec / 1e9;
    usage.faults = (double) of_process.ru_minflt;
    usage.switches = (double) (of_process.ru_nvcsw + of_process.ru_nivcsw);
    return usage;
}

static void fill(unsigned char *bytes, uint64_t number, int target) {
    struct message head = {number, (uint32_t) job.rank, (uint32_t) target};
    memcpy(bytes, &head, sizeof head);
}

static void pass_turn(void) {
    pthread_mutex_lock(&turn.lock);
    turn.came++;
    pthread_cond_signal(&turn.changed);
    pthread_mutex_unlock(&turn.lock);
}

static void wait_for_turn(uint64_t number) {
    pthread_mutex_lock(&turn.lock);
    while (turn.came < number)
        pthread_cond_wait(&turn.changed, &turn.lock);
    pthread_mutex_unlock(&turn.lock);
}

static void deliver(int src, int dst, uint32_t type, void *d, uint32_t datalen) {
    struct message head;
    CHECK(dst == job.rank && src >= 0 && src < job.size && src != job.rank);
    CHECK(datalen == bytes_now);
    memcpy(&head, d, sizeof head);
    CHECK(head.source == (uint32_t) src && head.target == (uint32_t) dst);
    CHECK(memcmp((const unsigned char *) d + sizeof head, pattern + src, datalen - sizeof head) == 0);
    received[src]++;
    sum[src] += head.number;
    if (type == PING) {
        fill((unsigned char *) d, head.number, src);
        memcpy((unsigned char *) d + sizeof head, pattern + job.rank, datalen - sizeof head);
        OK(shuffle_enqueue(sh, src, PONG, d, datalen));
    } else if (type != DATA) {
        pass_turn();
    }
}

/* Any rank but the source. */
static int target_of(int source, uint64_t *state) {
    int target = (int) (draw(state) % (uint32_t) (job.size - 1));
    return target + (target >= source);
}

static unsigned char *prepare(int bytes) {
    size_t length = (size_t) bytes + (size_t) job.size, at;
    unsigned char *message = (unsigned char *) malloc((size_t) bytes);
    uint64_t state = 7;
    bytes_now = (uint32_t) bytes;
    pattern = (unsigned char *) realloc(pattern, length);
    CHECK(pattern != NULL && message != NULL);
    for (at = 0; at < length; at++)
        pattern[at] = (unsigned char) draw(&state);
    memcpy(message + sizeof(struct message), pattern + job.rank, (size_t) bytes - sizeof(struct message));
    return message;
}

static void reset(void) {
    memset(received, 0, (size_t) job.size * sizeof *received);
    memset(sum, 0, (size_t) job.size * sizeof *sum);
    turn.came = 0;
}

/* Everything has come, by numbers that are drawn again. */
static void verify(int count) {
    int source, at;
    for (source = 0; source < job.size; source++) {
        uint64_t state = (uint64_t) source, messages = 0, numbers = 0;
        for (at = 1; at <= count; at++) {
            if (target_of(source, &state) == job.rank && source != job.rank) {
                messages++;
                numbers += (uint64_t) at;
            }
        }
        CHECK(received[source] == messages);
        CHECK(sum[source] == numbers);
    }
}

static int ascending(const void *one, const void *other) {
    double a = *(const double *) one, b = *(const double *) other;
    return (a > b) - (a < b);
}

static double median(double *values, int count) {
    qsort(values, (size_t) count, sizeof *values, ascending);
    return values[count / 2];
}

static double peak_rss_bytes(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double) usage.ru_maxrss * 1024;
}

static double reduced(double value, MPI_Op op) {
    double result;
    MPI_Allreduce(&value, &result, 1, MPI_DOUBLE, op, MPI_COMM_WORLD);
    return result;
}

/* The keys that all rows have; collective. `seconds` are sorted. */
static void print_row(const char *bench, int count, double messages, const double *seconds, int reps, struct usage usage,
                      int longest, const char *more) {
    const char *provider = getenv("TRIHOP_PROVIDER");
    double median_seconds = seconds[reps / 2], peak = reduced(peak_rss_bytes(), MPI_MAX);
    if (job.rank != 0)
        return;
    printf("{\"bench\":\"%s\",\"api\":\"deltafs\",\"options\":\"%s%s\",\"ranks\":%d,\"nodes\":%d,\"route\":\"three-hop:1\","
           "\"hops\":%d,\"provider\":\"%s\",\"size\":%u,\"count\":%d,\"msgs_per_s\":%.3f,\"bytes_per_s\":%.1f,"
           "\"cpu_us_per_msg\":%.6f,\"peak_rss_bytes_per_rank\":%.0f,\"seconds\":%.9f,\"seconds_range\":[%.9f,%.9f],"
           "\"syscalls_per_1e6_msgs\":null,\"minor_faults\":%.0f,\"ctx_switches\":%.0f,%s\"checked\":true}\n",
           bench, args.options_name, args.urgent ? ", urgent" : "", job.size, nodes, longest,
           nodes == 1 ? "-" : provider ? provider : "default", bytes_now, count, messages / median_seconds,
           messages * bytes_now / median_seconds, usage.cpu_seconds * 1e6 / messages, peak, median_seconds, seconds[0],
           seconds[reps - 1], usage.faults, usage.switches, more);
    fflush(stdout);
}

static void measure_all_to_all(int bytes, int count) {
    unsigned char *message = prepare(bytes);
    int *targets = (int *) malloc((size_t) count * sizeof *targets);
    double seconds[MOST_REPS], cpu[MOST_REPS];
    uint64_t state = (uint64_t) job.rank;
    struct usage last = {0, 0, 0};
    int at, rep;
    CHECK(targets != NULL);
    for (at = 0; at < count; at++)
        targets[at] = target_of(job.rank, &state);
    for (rep = bytes >= LONG_BYTES ? 0 : -1; rep < args.reps; rep++) {
        struct usage from, to;
        double began, ended;
        reset();
        barrier();
        from = usage_now();
        began = seconds_now();
        for (at = 0; at < count; at++) {
            fill(message, (uint64_t) at + 1, targets[at]);
            OK(shuffle_enqueue(sh, targets[at], DATA, message, bytes_now));
        }
        flush_all(sh);
        ended = seconds_now();
        to = usage_now();
        verify(count);
        last.cpu_seconds = reduced(to.cpu_seconds - from.cpu_seconds, MPI_SUM);
        last.faults = reduced(to.faults - from.faults, MPI_SUM);
        last.switches = reduced(to.switches - from.switches, MPI_SUM);
        ended = reduced(ended - began, MPI_MAX);
        if (rep >= 0) {
            seconds[rep] = ended;
            cpu[rep] = last.cpu_seconds;
        }
    }
    last.cpu_seconds = median(cpu, args.reps);
    median(seconds, args.reps);
    print_row("a2a", count, (double) count * job.size, seconds, args.reps, last, hops, "");
    free(targets);
    free(message);
}

/* Rank 0 sends, the other one's callback answers; all others sleep until they are told that it is over. */
static void measure_round_trips(int bytes, int count, int partner) {
    unsigned char *message = prepare(bytes);
    double *trips = (double *) calloc((size_t) count, sizeof *trips);
    struct usage from, to, used;
    double total, both;
    char more[160];
    int at, rank;
    CHECK(trips != NULL);
    reset();
    barrier();
    from = usage_now();
    total = seconds_now();
    if (job.rank == 0) {
        for (at = -WARM_UP_TRIPS; at < count; at++) {
            double began = seconds_now();
            fill(message, 1, partner);
            OK(shuffle_enqueue(sh, partner, PING, message, bytes_now));
            wait_for_turn((uint64_t) (at + WARM_UP_TRIPS + 1));
            if (at >= 0)
                trips[at] = seconds_now() - began;
        }
        CHECK(received[partner] == (uint64_t) (count + WARM_UP_TRIPS));
        for (rank = 1; rank < job.size; rank++) {
            fill(message, 1, rank);
            OK(shuffle_enqueue(sh, rank, STOP, message, bytes_now));
        }
        OK(shuffle_flush_originqs(sh));
    } else {
        wait_for_turn(1);
    }
    total = seconds_now() - total;
    to = usage_now();
    flush_all(sh);
    used.cpu_seconds = reduced(to.cpu_seconds - from.cpu_seconds, MPI_SUM);
    used.faults = reduced(to.faults - from.faults, MPI_SUM);
    used.switches = reduced(to.switches - from.switches, MPI_SUM);
    used.cpu_seconds /= count + WARM_UP_TRIPS; /* of one */
    median(trips, count);
    both = trips[count / 2];
    snprintf(more, sizeof more, "\"latency_us\":%.3f,\"round_trip_p50_us\":%.3f,\"round_trip_p99_us\":%.3f,", both * 5e5,
             both * 1e6, trips[count - 1 - count / 100] * 1e6);
    print_row("round-trip", count, 2, trips, count, used, hops_of[partner], more);
    free(trips);
    free(message);
}

/* Hops of all pairs, by asking each rank for its next one. */
static void find_hops(void) {
    size_t size = (size_t) job.size;
    int *mine = (int *) malloc(size * sizeof *mine), *next = (int *) malloc(size * size * sizeof *next);
    int leads = nexus_local_rank(job.nexus) == 0, from, to;
    hops_of = (uint8_t *) calloc(size, size);
    CHECK(mine != NULL && next != NULL && hops_of != NULL);
    for (to = 0; to < job.size; to++) {
        hg_addr_t address;
        mine[to] = job.rank;
        CHECK(nexus_next_hop(job.nexus, to, &mine[to], &address) != NX_NOTFOUND);
    }
    MPI_Allgather(mine, job.size, MPI_INT, next, job.size, MPI_INT, MPI_COMM_WORLD);
    MPI_Allreduce(&leads, &nodes, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    for (from = 0; from < job.size; from++) {
        for (to = 0; to < job.size; to++) {
            int at = from, count = 0;
            for (; at != to; count++) {
                CHECK(count < job.size);
                at = next[(size_t) at * size + (size_t) to];
            }
            hops_of[(size_t) from * size + (size_t) to] = (uint8_t) count;
            hops = count > hops ? count : hops;
        }
    }
    free(mine);
    free(next);
}

/* A partner of rank 0; 0: there is none. Collective. */
static int find_partner(void) {
    int three = strcmp(args.pair, "hops") == 0, found = 0, to;
    for (to = 1; to < job.size && found == 0; to++) {
        hg_addr_t address;
        int next, is_local = nexus_next_hop(job.nexus, to, &next, &address) == NX_ISLOCAL;
        if (three ? hops_of[to] == 3 && hops_of[to * job.size] == 3 : is_local)
            found = to;
    }
    MPI_Bcast(&found, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return found;
}

static struct shuffle_opts production(void) {
    struct shuffle_opts options;
    shuffle_opts_init(&options);
    options.localsenderlimit = options.remotesenderlimit = 16;
    options.lomaxrpc = options.lrmaxrpc = options.rmaxrpc = 16;
    options.lobuftarget = options.lrbuftarget = options.rbuftarget = 32768;
    options.deliverq_max = 4096;
    options.deliverq_threshold = 1024;
    return options;
}

/* What the original's shuffle_opts_init() gives. */
static struct shuffle_opts single(void) {
    struct shuffle_opts options;
    memset(&options, 0, sizeof options);
    options.lomaxrpc = options.lrmaxrpc = options.rmaxrpc = 1;
    options.deliverq_max = 1;
    return options;
}

/* Messages of a rank that take about a second. */
static int usual_count(int bytes) {
    int many = strcmp(args.options_name, "single") != 0;
    if (args.pair != NULL)
        return ROUND_TRIPS;
    if (bytes >= LONG_BYTES)
        return 1;
    if (bytes > 4096)
        return many ? 1500 : 300;
    if (!many)
        return 1500;
    return bytes <= 64 ? 100000 : bytes <= 256 ? 50000 : 25000;
}

static void usage(const char *why) {
    fprintf(stderr, "many: %s; the options are at the beginning of tests/deltafs/many.c\n", why);
    exit(2);
}

static int number(const char *text, int least, int most) {
    char *rest;
    long value = strtol(text, &rest, 10);
    if (*rest != 0 || value < least || value > most)
        usage("a number is out of its range");
    return (int) value;
}

static void parse(int argc, char **argv) {
    static const int usual[] = {24, 256, 1024, 32768};
    int option;
    args.options_name = "production";
    args.reps = 3;
    while ((option = getopt(argc, argv, "o:s:c:r:l:u")) != -1) {
        switch (option) {
        case 'o': args.options_name = optarg; break;
        case 's':
            if (args.number_of_sizes == MOST_SIZES)
                usage("too many sizes");
            args.sizes[args.number_of_sizes++] = number(optarg, 24, 1 << 30);
            break;
        case 'c': args.count = number(optarg, 1, 1 << 30); break;
        case 'r': args.reps = number(optarg, 1, MOST_REPS); break;
        case 'l': args.pair = optarg; break;
        case 'u': args.urgent = 1; break;
        default: usage("an unknown option");
        }
    }
    if (args.number_of_sizes == 0) {
        memcpy(args.sizes, usual, sizeof usual);
        args.number_of_sizes = sizeof usual / sizeof *usual;
    }
    if (args.pair != NULL && strcmp(args.pair, "node") != 0 && strcmp(args.pair, "hops") != 0)
        usage("-l takes node or hops");
    shuffle_opts_init(&args.options);
    if (strcmp(args.options_name, "production") == 0)
        args.options = production();
    else if (strcmp(args.options_name, "single") == 0)
        args.options = single();
    else if (strcmp(args.options_name, "default") != 0)
        usage("-o takes production, default or single");
}

int main(int argc, char **argv) {
    struct shuffle_opts beside_options = production();
    shuffle_t beside = NULL;
    int at, partner = 0;

    parse(argc, argv);
    begin(&argc, &argv, 0);
    CHECK(job.size > 1);
    received = (uint64_t *) calloc((size_t) job.size, sizeof *received);
    sum = (uint64_t *) calloc((size_t) job.size, sizeof *sum);
    CHECK(received != NULL && sum != NULL);
    find_hops();
    if (args.pair != NULL) {
        partner = find_partner();
        CHECK(partner > 0);
    }
    if (args.urgent)
        beside = open_shuffle("beside", deliver, &beside_options);
    sh = open_shuffle("many", deliver, &args.options);
    for (at = 0; at < args.number_of_sizes; at++) {
        int bytes = args.sizes[at], count = args.count > 0 ? args.count : usual_count(bytes);
        alarm(WATCHDOG_SECONDS);
        if (partner > 0)
            measure_round_trips(bytes, count, partner);
        else
            measure_all_to_all(bytes, count);
        barrier();
    }
    OK(shuffle_shutdown(sh));
    if (beside != NULL)
        OK(shuffle_shutdown(beside));
    free(pattern);
    free(hops_of);
    free(received);
    free(sum);
    end();
    return 0;
}

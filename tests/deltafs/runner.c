/*
 * A client like the shuffle's own benchmark: every rank sends messages to drawn ranks, then all flush hop by hop with
 * barriers in between. What must have come to whom is drawn again by the receivers: every message comes once, whole and in order.
 *
 *   runner [options]     options without a value below keep those of shuffle_opts_init()
 *     -c COUNT           messages of each rank             -i BYTES  length of a message, at least 16
 *     -f RATE            flush all after every RATE sends   -l        round-robin instead of drawn targets
 *     -e                 nothing to oneself                -R RANK   to this rank only
 *     -A                 broadcasts, -k: to oneself too    -o MS     a delivery takes so long
 *     -a -b -B BYTES     buftarget: origin, relay, network  -m -y -M N  maxrpc: origin, relay, network
 *     -d N  -h N         delivery queue: most, threshold    -z -Z N    sender limits: local, remote
 *     -x                 one transport for all hops     -N SPEC   dump nexus
 */
#include "job.h"

#include <getopt.h>

struct message {
    uint32_t number; /* of its source, to this target */
    uint32_t source;
    uint32_t target;
    uint32_t filler; /* value of the bytes behind */
};

static struct {
    int count, bytes, flush_rate, in_turns, not_self, only, broadcast, broadcast_flags, delay_ms, single;
    char *dump;
    struct shuffle_opts options;
} args;

static uint32_t *next_number; /* by source */
static uint64_t deliveries;

static void deliver(int src, int dst, uint32_t type, void *d, uint32_t datalen) {
    struct message message;
    const unsigned char *bytes = (const unsigned char *) d;
    uint32_t at;

    CHECK(dst == job.rank);
    CHECK(src >= 0 && src < job.size);
    CHECK(datalen == (uint32_t) args.bytes);
    CHECK((uintptr_t) d % 8 == 0);
    memcpy(&message, d, sizeof message);
    CHECK(message.source == (uint32_t) src);
    CHECK(message.number == next_number[src]);
    CHECK((type & SHUFFLE_RTYPE_USRBITS) == message.number % 4);
    CHECK(((type & SHUFFLE_RTYPE_BCAST) != 0) == args.broadcast);
    CHECK(args.broadcast || message.target == (uint32_t) dst);
    for (at = sizeof message; at < datalen; at++)
        CHECK(bytes[at] == (unsigned char) message.filler);
    memset(d, 0, datalen); /* it is ours until we return */
    next_number[src]++;
    deliveries++;
    if (args.delay_ms > 0) {
        struct timespec delay = {args.delay_ms / 1000, args.delay_ms % 1000 * 1000000L};
        nanosleep(&delay, NULL);
    }
}

/* The target of message number `at` of a source; -1: not sent. */
static int target_of(int source, int at, uint64_t *state) {
    int target = args.in_turns ? (source + at) % job.size : (int) (draw(state) % (uint32_t) job.size);
    if ((args.only >= 0 && target != args.only) || (args.not_self && target == source))
        return -1;
    return target;
}

/* What must have come from a source. */
static uint32_t expected_from(int source) {
    uint64_t state = (uint64_t) source;
    uint32_t count = 0;
    int at;

    if (args.broadcast)
        return source != job.rank || args.broadcast_flags ? (uint32_t) args.count : 0;
    for (at = 0; at < args.count; at++)
        count += target_of(source, at, &state) == job.rank;
    return count;
}

static void send_all(shuffle_t sh) {
    uint32_t *numbers = (uint32_t *) calloc((size_t) job.size + 1, sizeof *numbers);
    unsigned char *bytes = (unsigned char *) malloc((size_t) args.bytes);
    uint64_t state = (uint64_t) job.rank;
    struct message message;
    int at, target;

    CHECK(numbers != NULL && bytes != NULL);
    for (at = 0; at < args.count; at++) {
        if (args.flush_rate > 0 && at > 0 && at % args.flush_rate == 0)
            flush_all(sh);
        target = args.broadcast ? job.size : target_of(job.rank, at, &state);
        if (target < 0)
            continue;
        message.number = numbers[target]++;
        message.source = (uint32_t) job.rank;
        message.target = (uint32_t) target;
        message.filler = message.number * 7 + message.source;
        memset(bytes, (int) (message.filler & 0xff), (size_t) args.bytes);
        memcpy(bytes, &message, sizeof message);
        if (args.broadcast)
            OK(shuffle_enqueue_broadcast(sh, message.number % 4, bytes, (uint32_t) args.bytes, args.broadcast_flags));
        else
            OK(shuffle_enqueue(sh, target, message.number % 4, bytes, (uint32_t) args.bytes));
    }
    free(numbers);
    free(bytes);
}

static int number(const char *text, int least) {
    char *rest;
    long value = strtol(text, &rest, 10);
    if (*rest != 0 || value < least) {
        fprintf(stderr, "runner: `%s` is not a number from %d\n", text, least);
        exit(2);
    }
    return (int) value;
}

static void parse(int argc, char **argv) {
    int option;

    args.count = 1000;
    args.bytes = 24;
    args.only = -1;
    shuffle_opts_init(&args.options);
    while ((option = getopt(argc, argv, "c:i:f:leR:Ako:a:b:B:m:y:M:d:h:z:Z:xN:")) != -1) {
        switch (option) {
        case 'c': args.count = number(optarg, 0); break;
        case 'i': args.bytes = number(optarg, (int) sizeof(struct message)); break;
        case 'f': args.flush_rate = number(optarg, 1); break;
        case 'l': args.in_turns = 1; break;
        case 'e': args.not_self = 1; break;
        case 'R': args.only = number(optarg, 0); break;
        case 'A': args.broadcast = 1; break;
        case 'k': args.broadcast_flags = SHUFFLE_BCAST_SELF; break;
        case 'o': args.delay_ms = number(optarg, 0); break;
        case 'a': args.options.lobuftarget = number(optarg, 1); break;
        case 'b': args.options.lrbuftarget = number(optarg, 1); break;
        case 'B': args.options.rbuftarget = number(optarg, 1); break;
        case 'm': args.options.lomaxrpc = number(optarg, 1); break;
        case 'y': args.options.lrmaxrpc = number(optarg, 1); break;
        case 'M': args.options.rmaxrpc = number(optarg, 1); break;
        case 'd': args.options.deliverq_max = number(optarg, -1); break;
        case 'h': args.options.deliverq_threshold = number(optarg, 0); break;
        case 'z': args.options.localsenderlimit = number(optarg, 0); break;
        case 'Z': args.options.remotesenderlimit = number(optarg, 0); break;
        case 'x': args.single = 1; break;
        case 'N': args.dump = optarg; break;
        default: exit(2);
        }
    }
}

int main(int argc, char **argv) {
    hg_uint64_t origin, relay, remote, local_received, remote_received;
    struct timespec from, to;
    uint64_t all = 0;
    double seconds;
    shuffle_t sh;
    int source;

    parse(argc, argv);
    begin(&argc, &argv, args.single);
    next_number = (uint32_t *) calloc((size_t) job.size, sizeof *next_number);
    CHECK(next_number != NULL);
    if (args.dump)
        nexus_dump(job.nexus, args.dump);
    sh = open_shuffle("runner", deliver, &args.options);
    barrier();
    clock_gettime(CLOCK_MONOTONIC, &from);
    send_all(sh);
    barrier();
    flush_all(sh);
    clock_gettime(CLOCK_MONOTONIC, &to);
    seconds = (double) (to.tv_sec - from.tv_sec) + (double) (to.tv_nsec - from.tv_nsec) / 1e9;

    for (source = 0; source < job.size; source++) {
        CHECK(next_number[source] == expected_from(source));
        all += next_number[source];
    }
    CHECK(all == deliveries);
    OK(shuffle_send_stats(sh, &origin, &relay, &remote));
    OK(shuffle_recv_stats(sh, &local_received, &remote_received));
    printf("rank %d: delivered %" PRIu64 " sent %" PRIu64 " %" PRIu64 " %" PRIu64 " received %" PRIu64 " %" PRIu64
           " seconds %.6f\n",
           job.rank, all, origin, relay, remote, local_received, remote_received, seconds);
    fflush(stdout);
    OK(shuffle_shutdown(sh));
    CHECK(all == deliveries);
    free(next_number);
    end();
    return 0;
}

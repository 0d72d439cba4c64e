/*
 * Prints what each queue and each thread of every rank did, after verifying that the figures agree: those of the queues add
 * up to those of their stage, and what came is what was sent.
 *
 *   cc statistics.c $(pkg-config --cflags --libs trihop) -o statistics
 *   trihop run -n 4 --nodes 2 -- ./statistics
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trihop.h>

#define THREADS 8

static trihop_job_t *job;

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    if (job != NULL)
        trihop_abort(job, EXIT_FAILURE, what);
    exit(EXIT_FAILURE);
}

static void check(trihop_status_t status, const char *what)
{
    if (status != TRIHOP_OK)
        fail(what, trihop_last_error());
}

static void ignore(void *context, const trihop_message_t *message)
{
    (void)context, (void)message;
}

/* Runs of this rank's own and runs forwarded by the queues of a stage, which it adds up. */
static void add_class(const trihop_details_t *details, int32_t which, const char *name, uint64_t runs[2])
{
    trihop_stage_stats_t stage_stats;
    trihop_queue_stats_t queue;
    uint64_t own = 0, forwarded = 0, sends = 0, waits = 0, longest_ns = 0;

    check(trihop_details_stage(details, which, &stage_stats, sizeof stage_stats), "trihop_details_stage");
    for (uint64_t index = 0; index < stage_stats.queues; index++) {
        check(trihop_details_queue(details, which, index, &queue, sizeof queue), "trihop_details_queue");
        if (queue.peer >= trihop_size(job))
            fail(name, "a queue leads to a rank that does not exist");
        if (queue.aged_sends + queue.flush_sends > queue.sends)
            fail(name, "more sends have a reason than there were");
        own += queue.own_runs;
        forwarded += queue.forwarded_runs;
        sends += queue.sends;
        waits += queue.waits;
        if (queue.longest_wait_ns > longest_ns)
            longest_ns = queue.longest_wait_ns;
    }
    if (own != stage_stats.own_runs || forwarded != stage_stats.forwarded_runs || sends != stage_stats.sends ||
        waits != stage_stats.waits || longest_ns != stage_stats.longest_wait_ns)
        fail(name, "the queues do not add up to their stage");
    runs[0] += own;
    runs[1] += forwarded;
}

static void print_details(const trihop_details_t *details)
{
    size_t length;
    char *text;

    if (trihop_details_text(details, NULL, 0, &length) != TRIHOP_ERR_BUFFER_TOO_SMALL)
        fail("trihop_details_text", "no room is enough");
    text = malloc(length + 1);
    if (text == NULL)
        fail("malloc", "no memory");
    check(trihop_details_text(details, text, length + 1, &length), "trihop_details_text");
    fputs(text, stdout);
    free(text);
}

static void print_threads(void)
{
    trihop_thread_use_t threads[THREADS];
    size_t count;

    check(trihop_threads(job, threads, sizeof threads[0], THREADS, &count), "trihop_threads");
    if (count != 2 || strcmp(threads[0].name, "progress") != 0 || strcmp(threads[1].name, "deliver") != 0)
        fail("trihop_threads", "not one for progress and one for deliveries");
    for (size_t i = 0; i < count; i++)
        printf("  thread %s: %" PRIu64 " ms, %" PRIu64 " context switches\n", threads[i].name,
               threads[i].user_ms + threads[i].system_ms,
               threads[i].voluntary_switches + threads[i].involuntary_switches);
}

int main(int argc, char **argv)
{
    uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000;
    uint64_t sums[4] = {0, 0, 0, 0}; /* sent, delivered, own runs, forwarded runs */
    trihop_stream_t *shuffle;
    trihop_details_t *details;
    trihop_stats_t totals;
    uint32_t size;

    check(trihop_init(TRIHOP_THREADED, NULL, &job), "trihop_init");
    size = trihop_size(job);
    check(trihop_stream_open(job, "numbers", 0, NULL, ignore, NULL, &shuffle), "trihop_stream_open");
    for (uint64_t number = 0; number < count; number++)
        for (uint32_t target = 0; target < size; target++)
            check(trihop_stream_send(shuffle, target, 0, &number, sizeof number), "trihop_stream_send");
    check(trihop_stream_fence(shuffle), "trihop_stream_fence");

    check(trihop_stream_details(shuffle, &details), "trihop_stream_details");
    check(trihop_details_totals(details, &totals, sizeof totals), "trihop_details_totals");
    sums[0] = totals.sent;
    sums[1] = totals.delivered;
    add_class(details, TRIHOP_ORIGIN_QUEUES, "origin queues", &sums[2]);
    add_class(details, TRIHOP_REMOTE_QUEUES, "remote queues", &sums[2]);
    add_class(details, TRIHOP_RELAY_QUEUES, "relay queues", &sums[2]);
    print_details(details);
    trihop_details_free(details);
    print_threads();

    check(trihop_allreduce(job, TRIHOP_SUM, sums, 4), "trihop_allreduce");
    if (sums[0] != count * size * size || sums[1] != sums[0])
        fail("totals", "not every record was sent and delivered once");
    if (sums[2] == 0 || (sums[3] == 0) != (trihop_nodes(job) == 1 || trihop_nodes(job) == size))
        fail("runs", "only ranks that speak for others forward");
    check(trihop_stream_close(shuffle), "trihop_stream_close");
    check(trihop_finalize(job), "trihop_finalize");
    return EXIT_SUCCESS;
}

/*
 * Every rank sends numbered greetings to every rank, then one goodbye to all, and verifies what it gets: each greeting exactly
 * once, in order, and the goodbye behind them.
 *
 *   cc hello.c $(pkg-config --cflags --libs trihop) -o hello
 *   trihop run -n 4 --nodes 2 -- ./hello
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trihop.h>

static trihop_job_t *job;

static void check(trihop_status_t status, const char *what)
{
    if (status == TRIHOP_OK)
        return;
    fprintf(stderr, "%s: %s (%s)\n", what, trihop_strerror(status), trihop_last_error());
    if (job != NULL)
        trihop_abort(job, EXIT_FAILURE, what);
    exit(EXIT_FAILURE);
}

struct greeting {
    uint64_t number;
    char text[24];
};

/* Kinds of records. */
enum { GREETING, GOODBYE };

/* What the handler has seen; it runs on the delivery thread, and main looks after the fence. */
struct heard {
    uint64_t *next; /* for each source the number that is due */
    uint64_t count; /* of greetings from each source */
    uint64_t goodbyes;
    uint64_t wrong;
};

static void on_greeting(void *context, const trihop_message_t *message)
{
    uint32_t source = message->source;
    struct heard *heard = context;
    struct greeting greeting;
    char expected[sizeof greeting.text];

    if (message->kind == GOODBYE) {
        heard->wrong += message->length != 0 || heard->next[source] != heard->count;
        heard->goodbyes++;
        return;
    }
    if (message->length != sizeof greeting) {
        heard->wrong++;
        return;
    }
    memcpy(&greeting, message->bytes, sizeof greeting);
    snprintf(expected, sizeof expected, "hello from %" PRIu32, source);
    if (greeting.number != heard->next[source] || strcmp(greeting.text, expected) != 0)
        heard->wrong++;
    heard->next[source]++;
}

int main(int argc, char **argv)
{
    uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000;
    trihop_stream_t *shuffle;
    struct greeting greeting;
    struct heard heard;
    uint64_t total[3] = {0, 0, 0}; /* greetings, goodbyes, wrong */
    uint32_t rank, size;

    check(trihop_init(TRIHOP_THREADED, NULL, &job), "trihop_init");
    rank = trihop_rank(job);
    size = trihop_size(job);
    heard.count = count;
    heard.goodbyes = heard.wrong = 0;
    heard.next = calloc(size, sizeof *heard.next);
    if (heard.next == NULL)
        return EXIT_FAILURE;
    check(trihop_stream_open(job, "greetings", 0, NULL, on_greeting, &heard, &shuffle), "trihop_stream_open");

    memset(&greeting, 0, sizeof greeting);
    snprintf(greeting.text, sizeof greeting.text, "hello from %" PRIu32, rank);
    for (greeting.number = 0; greeting.number < count; greeting.number++)
        for (uint32_t target = 0; target < size; target++)
            check(trihop_stream_send(shuffle, target, GREETING, &greeting, sizeof greeting), "trihop_stream_send");
    check(trihop_stream_broadcast(shuffle, GOODBYE, NULL, 0, TRIHOP_TO_EVERYONE), "trihop_stream_broadcast");
    check(trihop_stream_fence(shuffle), "trihop_stream_fence");

    for (uint32_t source = 0; source < size; source++)
        total[0] += heard.next[source];
    total[1] = heard.goodbyes;
    total[2] = heard.wrong;
    check(trihop_allreduce(job, TRIHOP_SUM, total, 3), "trihop_allreduce");
    if (rank == 0)
        printf("%" PRIu32 " ranks on %" PRIu32 " nodes: %" PRIu64 " greetings heard, %" PRIu64 " goodbyes, %" PRIu64
               " wrong\n",
               size, trihop_nodes(job), total[0], total[1], total[2]);

    check(trihop_stream_close(shuffle), "trihop_stream_close");
    check(trihop_finalize(job), "trihop_finalize");
    free(heard.next);
    return total[0] == count * size * size && total[1] == (uint64_t)size * size && total[2] == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/*
 * Handlers that send in ways that the examples do not show, for .ci/install:
 *
 *   handlers other [REQUESTS]   answers come by another shuffle, whose handler asks once more
 *   handlers sleepy [REQUESTS]  the handler sleeps now and then, and answers on its own shuffle
 *   handlers endless            each record becomes two, for ever: all ranks fail, and one says why
 */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <trihop.h>

#define BYTES 4000
#define SLEEP_EVERY 1000

enum { REQUEST, ANSWER, LAST_REQUEST, LAST_ANSWER, KINDS };

static trihop_job_t *job;
static trihop_stream_t *requests, *answers;
static int is_sleepy, is_endless;

/* Written by the one delivery thread that the kind comes to, read after the fences. */
static uint64_t heard[KINDS];
static char expected[BYTES];

static void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, trihop_last_error());
    if (job != NULL)
        trihop_abort(job, EXIT_FAILURE, what);
    exit(EXIT_FAILURE);
}

static void check(trihop_status_t status, const char *what)
{
    if (status != TRIHOP_OK)
        fail(what);
}

static void on_record(void *context, const trihop_message_t *message)
{
    uint32_t source = message->source, kind = message->kind;
    const void *bytes = message->bytes;
    size_t length = message->length;

    (void)context;
    if (is_endless) {
        /* A refused send is told by the fence, on every rank. */
        for (int copies = 0; copies < 2; copies++)
            (void)trihop_stream_send(requests, source, kind, bytes, length);
        return;
    }
    if (kind >= KINDS || length != sizeof expected || memcmp(bytes, expected, length) != 0) {
        fprintf(stderr, "a record of kind %" PRIu32 " and %zu bytes is not what was sent\n", kind,
                length);
        trihop_abort(job, EXIT_FAILURE, "a wrong record");
        exit(EXIT_FAILURE);
    }
    heard[kind]++;
    if (is_sleepy && kind == REQUEST && heard[kind] % SLEEP_EVERY == 0) {
        struct timespec nap = {0, 20 * 1000 * 1000};

        nanosleep(&nap, NULL);
    }
    if (kind == REQUEST || kind == LAST_REQUEST)
        check(trihop_stream_send(answers, source, kind + 1, bytes, length), "an answer");
    else if (kind == ANSWER && answers != requests)
        check(trihop_stream_send(requests, source, LAST_REQUEST, bytes, length),
              "a request of a handler");
}

static int end_endless(void)
{
    uint32_t rank = trihop_rank(job);
    trihop_status_t status;

    status = trihop_stream_send(requests, rank, REQUEST, expected, sizeof expected);
    if (status == TRIHOP_OK)
        status = trihop_stream_fence(requests);
    if (status == TRIHOP_OK) {
        fprintf(stderr, "records without end came to an end\n");
        return EXIT_FAILURE;
    }
    printf("rank %" PRIu32 ": %s\n", rank, trihop_last_error());
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    const char *way = argc > 1 ? argv[1] : "other";
    uint64_t count = argc > 2 ? strtoull(argv[2], NULL, 10) : 20000;
    uint64_t totals[KINDS], all, asked_again;
    uint32_t size;
    int is_right;

    is_sleepy = strcmp(way, "sleepy") == 0;
    is_endless = strcmp(way, "endless") == 0;
    memset(expected, 7, sizeof expected);
    check(trihop_init(TRIHOP_THREADED, NULL, &job), "trihop_init");
    size = trihop_size(job);
    check(trihop_stream_open(job, "requests", 0, NULL, on_record, NULL, &requests),
          "trihop_stream_open");
    answers = requests;
    if (is_endless)
        return end_endless();
    if (!is_sleepy)
        check(trihop_stream_open(job, "answers", 0, NULL, on_record, NULL, &answers),
              "trihop_stream_open");
    /* Handlers look at both handles: nobody sends before everybody has them. */
    check(trihop_barrier(job), "trihop_barrier");

    for (uint64_t number = 0; number < count; number++) {
        uint64_t word = (number + trihop_rank(job) + 1) * UINT64_C(0x9e3779b97f4a7c15);

        check(trihop_stream_send(requests, (uint32_t)((word >> 33) % size), REQUEST, expected,
                                  sizeof expected),
              "trihop_stream_send");
    }
    /* When no request is under way the answers are heard, and their handler asks once more. */
    for (int round = 0; round < 3; round++) {
        check(trihop_stream_fence(requests), "trihop_stream_fence");
        check(trihop_stream_fence(answers), "trihop_stream_fence");
    }

    memcpy(totals, heard, sizeof totals);
    check(trihop_allreduce(job, TRIHOP_SUM, totals, KINDS), "trihop_allreduce");
    all = count * size;
    asked_again = is_sleepy ? 0 : all;
    is_right = totals[REQUEST] == all && totals[ANSWER] == all &&
               totals[LAST_REQUEST] == asked_again && totals[LAST_ANSWER] == asked_again;
    if (trihop_rank(job) == 0)
        printf("%" PRIu32 " ranks on %" PRIu32 " nodes, %s: %" PRIu64 " and %" PRIu64
               " requests, %" PRIu64 " and %" PRIu64 " answers\n",
               size, trihop_nodes(job), way, totals[REQUEST], totals[LAST_REQUEST], totals[ANSWER],
               totals[LAST_ANSWER]);
    if (answers != requests)
        check(trihop_stream_close(answers), "trihop_stream_close");
    check(trihop_stream_close(requests), "trihop_stream_close");
    check(trihop_finalize(job), "trihop_finalize");
    return is_right ? EXIT_SUCCESS : EXIT_FAILURE;
}

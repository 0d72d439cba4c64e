/*
 * Every rank sends requests of 4,000 bytes to random ranks; the handler of each answers it on the
 * same stream. Every answer is verified, and each request has exactly one. Nothing is tuned: what
 * the queues have no room for waits in memory.
 *
 *   cc requests.c $(pkg-config --cflags --libs trihop) -o requests
 *   trihop run -n 4 --nodes 2 -- ./requests [REQUESTS [inline]]
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

/* Kinds of records. */
enum { REQUEST, ANSWER };

struct record {
    uint64_t number;      /* of the request at the rank that asks */
    uint64_t filler[499]; /* mixed from that rank and the number: 4,000 bytes together */
};

/* What the handler has seen; it runs on the delivery thread, and main looks after the fence. */
struct seen {
    uint64_t count;
    unsigned char *answered; /* for each request whether it has its answer */
    uint64_t requests, answers, wrong;
};

static uint64_t mix(uint64_t word)
{
    word = (word ^ (word >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    word = (word ^ (word >> 27)) * UINT64_C(0x94d049bb133111eb);
    return word ^ (word >> 31);
}

static void fill(struct record *record, uint32_t source)
{
    uint64_t word = mix(record->number << 20 | source);

    for (size_t i = 0; i < sizeof record->filler / sizeof record->filler[0]; i++)
        record->filler[i] = word + i;
}

static void on_record(void *context, const trihop_message_t *message)
{
    int is_request = message->kind == REQUEST;
    struct seen *seen = context;
    struct record got, expected;

    if (message->length != sizeof got) {
        seen->wrong++;
        return;
    }
    memcpy(&got, message->bytes, sizeof got);
    expected.number = got.number;
    fill(&expected, is_request ? message->source : message->rank);
    seen->wrong += memcmp(&got, &expected, sizeof got) != 0;
    if (is_request) {
        seen->requests++;
        /* Here a send never waits. */
        check(trihop_stream_send(message->stream, message->source, ANSWER, message->bytes,
                                 message->length),
              "trihop_stream_send in the handler");
    } else {
        seen->answers++;
        if (got.number >= seen->count || seen->answered[got.number]++ != 0)
            seen->wrong++;
    }
}

int main(int argc, char **argv)
{
    /* Inline, progress is made and handlers are called inside of the calls of this thread. */
    int is_inline = argc > 2 && strcmp(argv[2], "inline") == 0;
    trihop_seat_t seat = is_inline ? TRIHOP_INLINE : TRIHOP_THREADED;
    uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 200000;
    uint64_t totals[3]; /* requests, answers, wrong */
    struct seen seen = {0};
    struct record request;
    trihop_stream_t *stream;
    uint32_t rank, size;

    check(trihop_init(seat, NULL, &job), "trihop_init");
    size = trihop_size(job);
    rank = trihop_rank(job);
    seen.count = count;
    seen.answered = calloc(count + 1, 1);
    if (seen.answered == NULL)
        return EXIT_FAILURE;
    check(trihop_stream_open(job, "requests", 0, NULL, on_record, &seen, &stream),
          "trihop_stream_open");

    for (request.number = 0; request.number < count; request.number++) {
        uint32_t target = (uint32_t)(mix(request.number + (uint64_t)rank * count + 1) % size);

        fill(&request, rank);
        check(trihop_stream_send(stream, target, REQUEST, &request, sizeof request),
              "trihop_stream_send");
    }
    check(trihop_stream_fence(stream), "trihop_stream_fence");

    totals[0] = seen.requests;
    totals[1] = seen.answers;
    totals[2] = seen.wrong + (seen.answers != count);
    check(trihop_allreduce(job, TRIHOP_SUM, totals, 3), "trihop_allreduce");
    if (rank == 0)
        printf("%" PRIu32 " ranks on %" PRIu32 " nodes: %" PRIu64 " requests, %" PRIu64
               " answers, %" PRIu64 " wrong\n",
               size, trihop_nodes(job), totals[0], totals[1], totals[2]);

    check(trihop_stream_close(stream), "trihop_stream_close");
    check(trihop_finalize(job), "trihop_finalize");
    free(seen.answered);
    if (totals[0] != count * size || totals[1] != count * size || totals[2] != 0)
        return EXIT_FAILURE;
    return EXIT_SUCCESS;
}

/*
 * Streams that follow each other, each of another size of items: what one had serves the next.
 *
 *   sizes inline|threaded [STREAMS]
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trihop.h>

#include "check.h"

static trihop_job_t *job;
static uint32_t rank, size;
static size_t item_bytes;
static uint64_t heard;

static void fail(const char *what, uint64_t got, uint64_t wanted)
{
    fprintf(stderr, "rank %" PRIu32 ", items of %zu: %s: %" PRIu64 ", not %" PRIu64 " (%s)\n", rank, item_bytes, what,
            got, wanted, trihop_last_error());
    trihop_abort(job, EXIT_FAILURE, what);
    exit(EXIT_FAILURE);
}

static unsigned char byte_of(uint32_t source, uint32_t target, size_t at)
{
    return (unsigned char)(source * 31 + target * 7 + at + item_bytes);
}

static void on_items(void *context, const trihop_message_t *items)
{
    const unsigned char *bytes = items->bytes;

    (void)context;
    EQUAL(items->length, items->count * item_bytes);
    for (size_t at = 0; at < items->length; at++)
        EQUAL(bytes[at], byte_of(items->source, rank, at % item_bytes));
    heard += items->count;
}

int main(int argc, char **argv)
{
    int is_inline = argc > 1 && strcmp(argv[1], "inline") == 0;
    size_t streams = argc > 2 ? strtoul(argv[2], NULL, 10) : 300;
    static unsigned char item[1024];

    OK(trihop_init(is_inline ? TRIHOP_INLINE : TRIHOP_THREADED, NULL, &job));
    rank = trihop_rank(job);
    size = trihop_size(job);
    for (size_t number = 0; number < streams; number++) {
        trihop_stream_t *stream;

        /* Up and down, so that each is behind a longer one and a shorter one. */
        item_bytes = 1 + number * 389 % sizeof item;
        heard = 0;
        OK(trihop_stream_open(job, "of any size", item_bytes, NULL, on_items, NULL, &stream));
        for (uint32_t target = 0; target < size; target++) {
            for (size_t at = 0; at < item_bytes; at++)
                item[at] = byte_of(rank, target, at);
            OK(trihop_stream_push(stream, target, item));
            OK(trihop_stream_push(stream, target, item));
        }
        OK(trihop_stream_fence(stream));
        EQUAL(heard, 2 * (uint64_t)size);
        OK(trihop_stream_close(stream));
    }
    if (rank == 0)
        printf("%" PRIu32 " ranks, %zu sizes\n", size, streams);
    OK(trihop_finalize(job));
    return EXIT_SUCCESS;
}

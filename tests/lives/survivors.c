/* A job that goes on: `survivors inline|threaded` as each rank of an agent. Rank 1 sends a letter to all others and is killed;
 * the others say that they go on, wait for a line, and end. */
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <trihop.h>

enum { VICTIM = 1, MOST = 8, TURNS = 200 };

static trihop_job_t *job;

static void check(trihop_status_t is, trihop_status_t wanted, const char *what)
{
    if (is == wanted)
        return;
    fprintf(stderr, "rank %u: %s: %s, not %s (%s)\n", trihop_rank(job), what, trihop_strerror(is),
            trihop_strerror(wanted), trihop_last_error());
    exit(EXIT_FAILURE);
}

#define OK(call) check(call, TRIHOP_OK, #call)
#define GONE(call) check(call, TRIHOP_ERR_PEER_DEAD, #call)

static int is_closed;

/* Nobody calls it once its stream is closed, whatever that has come to. */
static void hear(void *context, const trihop_message_t *message)
{
    (void) message;
    if (*(int *) context) {
        fprintf(stderr, "rank %u: a handler is called whose stream is closed\n", trihop_rank(job));
        exit(EXIT_FAILURE);
    }
}

int main(int argc, char **argv)
{
    trihop_seat_t seat = argc > 1 && strcmp(argv[1], "inline") == 0 ? TRIHOP_INLINE : TRIHOP_THREADED;
    char names[MOST][TRIHOP_CHANNEL_DESCRIPTOR_CHARS] = {""};
    trihop_channels_t *channels;
    trihop_stream_t *notes;
    trihop_channel_t *mine, *to[MOST];
    trihop_received_t letter;
    uint32_t rank, size, lost[MOST], other;
    size_t count = 0, length;

    OK(trihop_init(seat, NULL, &job));
    rank = trihop_rank(job);
    size = trihop_size(job);
    OK(trihop_survive(job));
    OK(trihop_channels_open(job, "letters", NULL, &channels));
    OK(trihop_stream_open(job, "notes", 0, NULL, hear, &is_closed, &notes));
    OK(trihop_channel_create(channels, NULL, &mine));
    OK(trihop_channel_descriptor(mine, names[rank], sizeof names[rank], &length));
    OK(trihop_allgather(job, names[rank], sizeof names[rank], names));
    for (other = 0; other < size; other++)
        OK(trihop_channel_attach(channels, names[other], &to[other]));
    OK(trihop_barrier(job));
    if (rank == VICTIM) {
        for (other = 0; other < size; other++)
            OK(trihop_channel_send(to[other], 7, "a letter", 8, TRIHOP_WHEN_DEPOSITED, TRIHOP_NO_TIMEOUT));
        raise(SIGKILL);
    }
    OK(trihop_lost(job, NULL, 0, &count));
    while (count == 0) {
        OK(trihop_poll(job, NULL));
        OK(trihop_lost(job, lost, MOST, &count));
    }
    if (count != 1 || lost[0] != VICTIM)
        return fprintf(stderr, "rank %u has lost %zu ranks, rank %u first\n", rank, count, lost[0]), EXIT_FAILURE;
    OK(trihop_channel_get(mine, TRIHOP_NO_TIMEOUT, &letter));
    if (letter.source != VICTIM || letter.kind != 7 || letter.length != 8)
        return fprintf(stderr, "rank %u has a letter of rank %u\n", rank, letter.source), EXIT_FAILURE;
    trihop_received_free(&letter);
    GONE(trihop_channel_send(to[VICTIM], 7, "", 0, TRIHOP_WHEN_DEPOSITED, TRIHOP_NO_TIMEOUT));
    GONE(trihop_channel_get(to[VICTIM], TRIHOP_NO_TIMEOUT, &letter));
    if (rank == 0) {
        GONE(trihop_stream_close(notes));
        is_closed = 1;
    }
    for (int turn = 0; turn < TURNS; turn++) {
        if (rank != 0)
            OK(trihop_stream_send(notes, 0, 0, &turn, sizeof turn));
        for (other = 0; other < size; other++)
            if (other != VICTIM && other != rank)
                OK(trihop_channel_send(to[other], 8, &turn, sizeof turn, TRIHOP_WHEN_BUFFERED, TRIHOP_NO_TIMEOUT));
        for (other = 2; other < size; other++) {
            OK(trihop_channel_get(mine, TRIHOP_NO_TIMEOUT, &letter));
            trihop_received_free(&letter);
        }
    }
    GONE(trihop_barrier(job));
    if (rank != 0)
        GONE(trihop_stream_close(notes));
    puts("goes on");
    fflush(stdout);
    /* Who leaves is missed by the others; and what an inline rank has sent moves on by polls. */
    struct pollfd input = {.fd = 0, .events = POLLIN};
    while (poll(&input, 1, 1) == 0)
        OK(trihop_poll(job, NULL));
    for (other = 0; other < size; other++)
        OK(trihop_channel_free(to[other]));
    OK(trihop_channel_free(mine));
    if (trihop_channels_close(channels) == TRIHOP_OK || trihop_finalize(job) == TRIHOP_OK)
        return fprintf(stderr, "rank %u ends as if nobody were gone\n", rank), EXIT_FAILURE;
    return EXIT_SUCCESS;
}

/*
 * A rank of cli/tests/lives/kills.rs: says each phase that it comes to, and at its end `done` or
 * the error of the first call that has failed, with its status. One rank of the job is killed
 * meanwhile.
 *
 *   phases inline|threaded
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <trihop.h>

#define STREAMS 3
#define FENCES 20
#define LONG_BYTES (1 << 20)

/* As `busily` in kills.rs: a kill falls into the phase, whatever the machine's speed. */
#define PHASE_MS 40

static trihop_job_t *job;
static trihop_stream_t *streams[STREAMS];
static uint32_t size;

/* One write each, so that lines of ranks stay apart. */
static void say(const char *word, const char *rest)
{
    char line[4096];
    const char *rank = getenv("TRIHOP_RANK");
    int length = snprintf(line, sizeof line, "@@%s %ld %s%s\n", rank, (long)getpid(), word, rest);

    if (length >= (int)sizeof line) {
        length = sizeof line;
        line[length - 1] = '\n';
    }
    if (write(STDOUT_FILENO, line, (size_t)length) != length)
        _exit(2);
}

static void need(trihop_status_t status)
{
    char word[32];

    if (status == TRIHOP_OK)
        return;
    snprintf(word, sizeof word, "error %" PRId32 ": ", (int32_t)status);
    say(word, trihop_last_error());
    /* As a program that fails: nothing is taken apart. */
    exit(EXIT_FAILURE);
}

static void ignore(void *context, const trihop_message_t *message)
{
    (void)context;
    (void)message;
}

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void send_busily(trihop_stream_t *stream, const void *bytes, size_t length)
{
    int64_t until = now_ms() + PHASE_MS;
    uint32_t target = trihop_rank(job);

    do {
        need(trihop_stream_send(stream, target, 0, bytes, length));
        target = (target + 1) % size;
    } while (now_ms() < until);
}

int main(int argc, char **argv)
{
    static const char *const names[STREAMS] = {"a", "b", "c"};
    static unsigned char bytes[LONG_BYTES];
    int32_t seat;

    if (argc != 2 || (strcmp(argv[1], "inline") != 0 && strcmp(argv[1], "threaded") != 0)) {
        fprintf(stderr, "usage: phases inline|threaded\n");
        return 2;
    }
    seat = strcmp(argv[1], "inline") == 0 ? TRIHOP_INLINE : TRIHOP_THREADED;
    say("begins", "");
    need(trihop_init(seat, NULL, &job));
    size = trihop_size(job);

    say("opens", "");
    for (int at = 0; at < STREAMS; at++)
        need(trihop_stream_open(job, names[at], 0, NULL, ignore, NULL, &streams[at]));

    say("sends", "");
    send_busily(streams[0], bytes, 100);
    say("long", "");
    send_busily(streams[1], bytes, sizeof bytes);

    say("fences", "");
    for (int at = 0; at < STREAMS; at++)
        need(trihop_stream_fence(streams[at]));
    /* As many for all: a fence is everybody's. */
    for (int fence = 0; fence < FENCES; fence++) {
        need(trihop_stream_send(streams[2], (trihop_rank(job) + 1) % size, 0, bytes, 10));
        need(trihop_stream_fence(streams[2]));
    }
    for (int at = 0; at < STREAMS; at++)
        need(trihop_stream_close(streams[at]));

    say("ends", "");
    need(trihop_finalize(job));
    say("done", "");
    return EXIT_SUCCESS;
}

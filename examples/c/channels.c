/*
 * A queue of work. Rank 0 has two channels: numbers, which all other ranks take as they are free,
 * and answers. Both are short, so that nobody runs ahead. Each answer is verified.
 *
 *   cc channels.c $(pkg-config --cflags --libs trihop) -o channels
 *   trihop run -n 4 --nodes 2 -- ./channels [TASKS [inline]]
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

struct answer {
    uint64_t number, divisors;
};

static uint64_t divisors(uint64_t number)
{
    uint64_t count = 0;

    for (uint64_t of = 1; of <= number; of++)
        count += number % of == 0;
    return count;
}

/* What a rank does with the next number; 0 once there is none any more. */
static int work(const trihop_channel_t *tasks, const trihop_channel_t *answers)
{
    trihop_received_t task;
    trihop_status_t status = trihop_channel_get(tasks, TRIHOP_NO_TIMEOUT, &task);
    struct answer answer;

    if (status == TRIHOP_ERR_CLOSED)
        return 0;
    check(status, "get");
    memcpy(&answer.number, task.bytes, sizeof answer.number);
    trihop_received_free(&task);
    answer.divisors = divisors(answer.number);
    check(trihop_channel_send(answers, 0, &answer, sizeof answer, TRIHOP_WHEN_DEPOSITED, TRIHOP_NO_TIMEOUT),
          "answer");
    return 1;
}

/* Hands numbers out and takes the answers; how many of these are wrong. */
static uint64_t lead(uint64_t count, const trihop_channel_t *tasks, const trihop_channel_t *answers)
{
    unsigned char *heard = calloc(count + 1, 1);
    uint64_t sent = 0, wrong = 0;

    if (heard == NULL)
        check(TRIHOP_ERR_NO_MEMORY, "calloc");
    for (uint64_t left = count; left > 0; left--) {
        trihop_filled_t filled;
        struct answer answer;

        while (sent < count) {
            uint64_t number = sent + 1;
            trihop_status_t status =
                trihop_channel_send(tasks, 0, &number, sizeof number, TRIHOP_WHEN_DEPOSITED, TRIHOP_ONCE);

            if (status == TRIHOP_ERR_WOULD_BLOCK)
                break;
            check(status, "send");
            sent++;
        }
        if (trihop_size(job) == 1)
            work(tasks, answers);
        check(trihop_channel_get_into(answers, INT64_C(60000000000), &answer, sizeof answer, &filled),
              "get an answer");
        if (filled.length != sizeof answer)
            check(TRIHOP_ERR_OTHER, "an answer of another length");
        wrong += heard[answer.number]++ != 0 || answer.divisors != divisors(answer.number);
    }
    free(heard);
    return wrong;
}

int main(int argc, char **argv)
{
    uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 2000;
    int seat = argc > 2 && strcmp(argv[2], "inline") == 0 ? TRIHOP_INLINE : TRIHOP_THREADED;
    char text[2][TRIHOP_CHANNEL_DESCRIPTOR_CHARS] = {{0}};
    trihop_channel_limits_t limits = {.size = sizeof limits, .messages = 20};
    trihop_channels_t *channels;
    trihop_channel_t *channel[2], *none;
    uint64_t wrong = 0, failed;
    int32_t last;

    check(trihop_init(seat, NULL, &job), "init");
    check(trihop_channels_open(job, "work", NULL, &channels), "open");
    for (int i = 0; i < 2; i++) {
        size_t length;

        if (trihop_rank(job) == 0) {
            check(trihop_channel_create(channels, &limits, &channel[i]), "create");
            check(trihop_channel_descriptor(channel[i], text[i], sizeof text[i], &length), "descriptor");
        }
        check(trihop_broadcast(job, 0, text[i], sizeof text[i]), "broadcast");
        if (trihop_rank(job) != 0)
            check(trihop_channel_attach(channels, text[i], &channel[i]), "attach");
    }
    if (trihop_channel_attach(channels, "trihop-ch:elsewhere", &none) != TRIHOP_ERR_NO_CHANNEL || none != NULL)
        check(TRIHOP_ERR_OTHER, "a descriptor of nothing");
    if (trihop_rank(job) == 0) {
        wrong = lead(count, channel[0], channel[1]);
        check(trihop_channel_close(channel[0]), "close");
        printf("%u ranks: %" PRIu64 " tasks, %" PRIu64 " wrong\n", (unsigned)trihop_size(job), count, wrong);
    } else {
        while (work(channel[0], channel[1]))
            ;
    }
    check(trihop_channel_failures(channel[0], &failed, &last), "failures");
    if (failed != 0 || last != TRIHOP_OK)
        check(last, "a send that was not waited for");
    check(trihop_channel_free(channel[0]), "free");
    check(trihop_channel_free(channel[1]), "free");
    check(trihop_channels_close(channels), "close channels");
    check(trihop_finalize(job), "finalize");
    return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

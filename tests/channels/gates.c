/* Semaphores, barriers, events, started calls, buffers, bounds and the next job of channels:
 * `gates inline|threaded|minirank`. Says how many ranks there are. Agents have to linger: there are two jobs. */
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <trihop.h>

#include "../steps/check.h"

enum { TURNS = 20, MESSAGES = 50, ROUNDS = 10 };

static const int64_t SHORT = 50000; /* ns */

/* A rank that is a thread of this process, or the process, between its jobs. */
struct part {
    uint32_t index, rank;
    char text[TRIHOP_CHANNEL_DESCRIPTOR_CHARS];
    trihop_kept_t *kept;
    pthread_t thread;
};

static int is_inline, is_minirank;
static trihop_miniranks_t *miniranks;

/* Of the rank that this thread is. */
static _Thread_local trihop_job_t *job;
static _Thread_local trihop_channels_t *channels;
static _Thread_local uint32_t rank, size;

static void fail(const char *what, uint64_t got, uint64_t wanted)
{
    fprintf(stderr, "rank %" PRIu32 ": %s: %" PRIu64 ", not %" PRIu64 " (%s)\n", rank, what, got, wanted,
            trihop_last_error());
    if (job != NULL)
        trihop_abort(job, EXIT_FAILURE, what);
    exit(EXIT_FAILURE);
}

/* What rank 0 has made, on all ranks. */
static trihop_channel_t *shared(trihop_channel_t *mine, int32_t kind)
{
    char text[TRIHOP_CHANNEL_DESCRIPTOR_CHARS] = "";
    trihop_channel_t *channel = mine, *none;
    size_t length;
    int32_t is;

    if (rank == 0)
        OK(trihop_channel_descriptor(mine, text, sizeof text, &length));
    OK(trihop_broadcast(job, 0, text, sizeof text));
    if (rank != 0)
        OK(trihop_channel_attach(channels, text, &channel));
    OK(trihop_channel_kind(channel, &is));
    EQUAL(is, kind);
    text[strlen(text) - 1] ^= 1;
    EQUAL(trihop_channel_attach(channels, text, &none), TRIHOP_ERR_NO_CHANNEL);
    EQUAL(none == NULL, 1);
    return channel;
}

static uint64_t poll_for(const trihop_channel_t *channel, int32_t what)
{
    uint64_t value = UINT64_MAX;
    OK(trihop_channel_poll(channel, what, TRIHOP_NO_TIMEOUT, &value));
    return value;
}

/* A number lies in a channel while nobody has the semaphore: who has it finds it there, and adds one. */
static void lock(void)
{
    trihop_channel_t *semaphore = NULL, *numbers = NULL;
    trihop_received_t got;
    uint64_t number = 0, turn;

    if (rank == 0) {
        EQUAL(trihop_channel_create_semaphore(channels, 2, 1, NULL, &semaphore), TRIHOP_ERR_CONFIG);
        OK(trihop_channel_create_semaphore(channels, 1, 1, NULL, &semaphore));
        OK(trihop_channel_create(channels, NULL, &numbers));
        OK(trihop_channel_send(numbers, 0, &number, sizeof number, TRIHOP_WHEN_DEPOSITED, TRIHOP_NO_TIMEOUT));
    }
    semaphore = shared(semaphore, TRIHOP_CHANNEL_SEMAPHORE);
    numbers = shared(numbers, TRIHOP_CHANNEL_MESSAGES);
    for (turn = 0; turn < TURNS; turn++) {
        static const int64_t timeouts[] = {TRIHOP_NO_TIMEOUT, TRIHOP_ONCE, 50000};
        int64_t timeout = timeouts[turn % 3];
        trihop_status_t status;
        while ((status = trihop_channel_poll(semaphore, TRIHOP_POLL_ACQUIRE, timeout, &number)) != TRIHOP_OK)
            EQUAL(status, timeout == TRIHOP_ONCE ? TRIHOP_ERR_WOULD_BLOCK : TRIHOP_ERR_TIMED_OUT);
        EQUAL(number, 0);
        OK(trihop_channel_get(numbers, TRIHOP_ONCE, &got));
        EQUAL(got.length, sizeof number);
        memcpy(&number, got.bytes, sizeof number);
        trihop_received_free(&got);
        number++;
        OK(trihop_channel_send(numbers, 0, &number, sizeof number, TRIHOP_WHEN_DEPOSITED, TRIHOP_NO_TIMEOUT));
        EQUAL(poll_for(semaphore, TRIHOP_POLL_ZERO), 0);
        EQUAL(poll_for(semaphore, TRIHOP_POLL_RELEASE), 1);
    }
    OK(trihop_barrier(job));
    OK(trihop_channel_peek(numbers, TRIHOP_ONCE, &got));
    memcpy(&number, got.bytes, sizeof number);
    trihop_received_free(&got);
    EQUAL(number, (uint64_t)TURNS * size);
    EQUAL(poll_for(semaphore, TRIHOP_POLL_VALUE), 1);
    EQUAL(trihop_channel_poll(semaphore, TRIHOP_POLL_RELEASE, TRIHOP_ONCE, NULL), TRIHOP_ERR_MISUSE);
    EQUAL(trihop_channel_poll(semaphore, TRIHOP_POLL_ARRIVE, TRIHOP_ONCE, NULL), TRIHOP_ERR_MISUSE);
    EQUAL(trihop_channel_poll(semaphore, 20, TRIHOP_ONCE, NULL), TRIHOP_ERR_INVALID_ARGUMENT);
    EQUAL(poll_for(semaphore, TRIHOP_POLL_AVAILABLE), 1);
    EQUAL(trihop_channel_get(semaphore, TRIHOP_ONCE, &got), TRIHOP_ERR_MISUSE);
    EQUAL(trihop_channel_poll(numbers, TRIHOP_POLL_ACQUIRE, TRIHOP_ONCE, NULL), TRIHOP_ERR_MISUSE);
    OK(trihop_barrier(job));
    OK(trihop_channel_free(semaphore));
    OK(trihop_channel_free(numbers));
}

/* Each rank has a number of its own of those that came together. */
static void meet(void)
{
    trihop_channel_t *barrier = NULL, *last = NULL;
    uint64_t *came = calloc(size, sizeof *came), number, round;
    uint32_t i;

    if (rank == 0) {
        EQUAL(trihop_channel_create_barrier(channels, 0, NULL, &barrier), TRIHOP_ERR_CONFIG);
        OK(trihop_channel_create_barrier(channels, size, NULL, &barrier));
        OK(trihop_channel_create_barrier(channels, size + 1, NULL, &last));
    }
    barrier = shared(barrier, TRIHOP_CHANNEL_BARRIER);
    last = shared(last, TRIHOP_CHANNEL_BARRIER);
    for (round = 0; round < ROUNDS; round++) {
        uint64_t seen = 0;
        number = poll_for(barrier, TRIHOP_POLL_ARRIVE);
        OK(trihop_allgather(job, &number, sizeof number, came));
        for (i = 0; i < size; i++)
            seen |= UINT64_C(1) << came[i];
        EQUAL(seen, (UINT64_C(1) << size) - 1);
    }
    /* Of one nobody else comes to. */
    EQUAL(trihop_channel_poll(last, TRIHOP_POLL_ARRIVE, SHORT, NULL), TRIHOP_ERR_TIMED_OUT);
    OK(trihop_barrier(job));
    if (rank == 0) {
        while (poll_for(last, TRIHOP_POLL_WAITING) < size - 1)
            ;
        EQUAL(poll_for(last, TRIHOP_POLL_ABORT), size - 1);
    }
    EQUAL(trihop_channel_poll(last, TRIHOP_POLL_ARRIVE, TRIHOP_NO_TIMEOUT, NULL), TRIHOP_ERR_BROKEN);
    EQUAL(poll_for(last, TRIHOP_POLL_BROKEN), 1);
    OK(trihop_barrier(job));
    if (rank == size - 1)
        EQUAL(poll_for(last, TRIHOP_POLL_RESET), 0);
    OK(trihop_barrier(job));
    EQUAL(poll_for(last, TRIHOP_POLL_BROKEN), 0);
    OK(trihop_channel_free(barrier));
    OK(trihop_channel_free(last));
    free(came);
}

/* Sleeps until there is something: an inline job makes progress now and then. */
static void sleep_on(int event)
{
    struct pollfd polled = {.fd = event, .events = POLLIN};
    while (poll(&polled, 1, is_inline ? 1 : -1) == 0)
        OK(trihop_poll(job, NULL));
    EQUAL(polled.revents & POLLIN, POLLIN);
}

/* The last rank takes what all send to rank 0's channel, and sleeps between. */
static void wake(void)
{
    trihop_channel_t *inbox = NULL;
    trihop_received_t got;
    trihop_status_t status;
    uint32_t i, count = 0;
    int event = 0, again;

    if (rank == 0)
        OK(trihop_channel_create(channels, NULL, &inbox));
    inbox = shared(inbox, TRIHOP_CHANNEL_MESSAGES);
    if (rank == size - 1) {
        OK(trihop_channel_event(inbox, &event));
        OK(trihop_channel_event(inbox, &again));
        EQUAL(event, again);
    }
    for (i = 0; i < MESSAGES; i++)
        OK(trihop_channel_send(inbox, i, "news", 4, TRIHOP_WHEN_BUFFERED, TRIHOP_NO_TIMEOUT));
    while (rank == size - 1 && count < MESSAGES * size) {
        sleep_on(event);
        while ((status = trihop_channel_get(inbox, TRIHOP_ONCE, &got)) == TRIHOP_OK) {
            EQUAL(got.length, 4);
            trihop_received_free(&got);
            count++;
        }
        EQUAL(status, TRIHOP_ERR_WOULD_BLOCK);
    }
    OK(trihop_barrier(job));
    if (rank == 0)
        OK(trihop_channel_close(inbox));
    OK(trihop_barrier(job));
    if (rank == size - 1) {
        sleep_on(event);
        EQUAL(trihop_channel_get(inbox, TRIHOP_ONCE, &got), TRIHOP_ERR_CLOSED);
    }
    OK(trihop_channel_free(inbox));
}

/* The last rank acquires what all release, and comes to a barrier last, and sleeps before either. */
static void wake_at_gates(void)
{
    trihop_channel_t *semaphore = NULL, *barrier = NULL;
    trihop_asked_t *first;
    trihop_status_t status;
    uint64_t value, before;
    uint32_t count = 0;
    int event, started, is_over;

    if (rank == 0) {
        OK(trihop_channel_create_semaphore(channels, 0, UINT64_MAX, NULL, &semaphore));
        OK(trihop_channel_create_barrier(channels, size + 1, NULL, &barrier));
    }
    semaphore = shared(semaphore, TRIHOP_CHANNEL_SEMAPHORE);
    barrier = shared(barrier, TRIHOP_CHANNEL_BARRIER);
    OK(trihop_channel_poll(semaphore, TRIHOP_POLL_RELEASE, TRIHOP_NO_TIMEOUT, NULL));
    if (rank < size - 1) {
        EQUAL(poll_for(barrier, TRIHOP_POLL_ARRIVE) < size, 1);
    } else {
        OK(trihop_channel_event(semaphore, &event));
        while (count < size) {
            sleep_on(event);
            while ((status = trihop_channel_poll(semaphore, TRIHOP_POLL_ACQUIRE, TRIHOP_ONCE, &value)) == TRIHOP_OK)
                count++;
            EQUAL(status, TRIHOP_ERR_WOULD_BLOCK);
        }
        EQUAL(count, size);
        OK(trihop_channel_start_poll(barrier, TRIHOP_POLL_ARRIVE, TRIHOP_NO_TIMEOUT, &first));
        OK(trihop_asked_event(first, &started));
        OK(trihop_channel_event(barrier, &event));
        sleep_on(event);
        OK(trihop_asked_test(first, &is_over));
        EQUAL(is_over, 0);
        EQUAL(poll_for(barrier, TRIHOP_POLL_ONE_MISSING), size);
        OK(trihop_channel_poll(barrier, TRIHOP_POLL_ARRIVE, TRIHOP_ONCE, &value));
        EQUAL(value, size);
        sleep_on(started);
        OK(trihop_asked_test(first, &is_over));
        EQUAL(is_over, 1);
        OK(trihop_asked_value(first, &before));
        EQUAL(before < size, 1);
        OK(trihop_asked_free(first));
    }
    OK(trihop_barrier(job));
    OK(trihop_channel_free(semaphore));
    OK(trihop_channel_free(barrier));
}

/* The last rank starts gets of what rank 0 sends, whose sends end as they are taken. */
static void start(void)
{
    enum { GETS = 8 };
    trihop_channel_t *inbox = NULL;
    trihop_asked_t *gets[GETS], *sent;
    trihop_received_t got;
    uint32_t i;
    int event, is_over;

    if (rank == 0)
        OK(trihop_channel_create(channels, NULL, &inbox));
    inbox = shared(inbox, TRIHOP_CHANNEL_MESSAGES);
    for (i = 0; i < GETS && rank == size - 1; i++) {
        OK(trihop_channel_start_get(inbox, TRIHOP_NO_TIMEOUT, &gets[i]));
        OK(trihop_asked_test(gets[i], &is_over));
        EQUAL(is_over, 0);
    }
    OK(trihop_barrier(job));
    for (i = 0; i < GETS && rank == 0; i++) {
        OK(trihop_channel_start_send(inbox, i, &i, sizeof i, TRIHOP_WHEN_RECEIVED, TRIHOP_NO_TIMEOUT, &sent));
        OK(trihop_asked_event(sent, &event));
        sleep_on(event);
        OK(trihop_asked_test(sent, &is_over));
        EQUAL(is_over, 1);
        OK(trihop_asked_free(sent));
    }
    for (i = 0; i < GETS && rank == size - 1; i++) {
        if (i % 2 == 0) {
            OK(trihop_asked_event(gets[i], &event));
            sleep_on(event);
            OK(trihop_asked_test(gets[i], &is_over));
            EQUAL(is_over, 1);
        } else {
            OK(trihop_asked_wait(gets[i]));
        }
        OK(trihop_asked_received(gets[i], &got));
        EQUAL(got.kind, i);
        EQUAL(got.length, sizeof i);
        trihop_received_free(&got);
        EQUAL(trihop_asked_received(gets[i], &got), TRIHOP_ERR_MISUSE);
        OK(trihop_asked_free(gets[i]));
    }
    OK(trihop_barrier(job));
    OK(trihop_channel_free(inbox));
}

/* The last rank gets what rank 0 has into memory of its own; what has no room there stays. */
static void fill(void)
{
    unsigned char bytes[MESSAGES];
    trihop_channel_t *inbox = NULL;
    trihop_filled_t filled;
    uint32_t length, i;

    if (rank == 0) {
        OK(trihop_channel_create(channels, NULL, &inbox));
        for (length = 0; length < MESSAGES; length++) {
            memset(bytes, (int)length, sizeof bytes);
            OK(trihop_channel_send(inbox, length, bytes, length, TRIHOP_WHEN_DEPOSITED, TRIHOP_NO_TIMEOUT));
        }
    }
    inbox = shared(inbox, TRIHOP_CHANNEL_MESSAGES);
    for (length = 0; length < MESSAGES && rank == size - 1; length++) {
        memset(bytes, 0xff, sizeof bytes);
        if (length > 0) {
            int64_t timeout = length % 2 == 0 ? TRIHOP_ONCE : TRIHOP_NO_TIMEOUT;
            EQUAL(trihop_channel_get_into(inbox, timeout, bytes, length - 1, &filled), TRIHOP_ERR_BUFFER_TOO_SMALL);
            EQUAL(filled.length, length);
            EQUAL(bytes[0], 0xff);
        }
        OK(trihop_channel_get_into(inbox, TRIHOP_NO_TIMEOUT, bytes, sizeof bytes, &filled));
        EQUAL(filled.length, length);
        EQUAL(filled.kind, length);
        EQUAL(filled.source, 0);
        for (i = 0; i < MESSAGES; i++)
            EQUAL(bytes[i], i < length ? length : 0xff);
    }
    if (rank == size - 1) {
        EQUAL(trihop_channel_get_into(inbox, TRIHOP_ONCE, bytes, sizeof bytes, &filled), TRIHOP_ERR_WOULD_BLOCK);
        EQUAL(trihop_channel_get_into(inbox, SHORT, bytes, sizeof bytes, &filled), TRIHOP_ERR_TIMED_OUT);
        EQUAL(filled.length, 0);
    }
    OK(trihop_barrier(job));
    OK(trihop_channel_free(inbox));
}

/* Long messages go around all ranks, each of which gives them away with their memory. */
static void pass_on(void)
{
    enum { LONG = 100000 };
    trihop_channel_t *inbox[2] = {NULL, NULL}, *mine, *next;
    char names[TRIHOP_CHANNEL_DESCRIPTOR_CHARS * 64], name[TRIHOP_CHANNEL_DESCRIPTOR_CHARS] = "";
    trihop_received_t message;
    trihop_asked_t *asked = NULL;
    size_t length, i;
    uint32_t turn;

    OK(trihop_channel_create(channels, NULL, &inbox[0]));
    OK(trihop_channel_descriptor(inbox[0], name, sizeof name, &length));
    EQUAL(size <= 64, 1);
    OK(trihop_allgather(job, name, sizeof name, names));
    OK(trihop_channel_attach(channels, names + (rank + 1) % size * sizeof name, &inbox[1]));
    mine = inbox[0];
    next = inbox[1];
    for (turn = 0; turn < TURNS; turn++) {
        if (rank == 0) {
            OK(trihop_channel_buffer(next, LONG, &message));
            EQUAL(message.length, LONG);
            memset(message.bytes, (int)turn + 1, LONG);
        } else {
            OK(trihop_channel_get(mine, TRIHOP_NO_TIMEOUT, &message));
        }
        if (turn % 2 == 0) {
            OK(trihop_channel_send_buffer(next, turn, &message, TRIHOP_WHEN_DEPOSITED, TRIHOP_NO_TIMEOUT));
        } else {
            OK(trihop_channel_start_send_buffer(next, turn, &message, TRIHOP_WHEN_DEPOSITED, TRIHOP_NO_TIMEOUT, &asked));
            OK(trihop_asked_wait(asked));
            OK(trihop_asked_free(asked));
        }
        EQUAL(message.bytes == NULL, 1);
        EQUAL(message.length, 0);
        trihop_received_free(&message);
        if (rank != 0)
            continue;
        OK(trihop_channel_get(mine, TRIHOP_NO_TIMEOUT, &message));
        EQUAL(message.kind, turn);
        EQUAL(message.source, size - 1);
        EQUAL(message.length, LONG);
        for (i = 0; i < LONG; i++)
            EQUAL(((unsigned char *)message.bytes)[i], turn + 1);
        trihop_received_free(&message);
    }
    /* One that is not sent, and those that cannot be. */
    OK(trihop_channel_buffer(next, LONG, &message));
    trihop_received_free(&message);
    EQUAL(trihop_channel_buffer(next, (size_t)1 << 40, &message), TRIHOP_ERR_TOO_LARGE);
    EQUAL(message.bytes == NULL, 1);
    EQUAL(trihop_channel_buffer(next, LONG, NULL), TRIHOP_ERR_INVALID_ARGUMENT);
    EQUAL(trihop_channel_send_buffer(next, 0, NULL, TRIHOP_WHEN_DEPOSITED, TRIHOP_ONCE), TRIHOP_ERR_INVALID_ARGUMENT);
    OK(trihop_channel_buffer(next, 10, &message));
    EQUAL(trihop_channel_send_buffer(next, 0, &message, 77, TRIHOP_ONCE), TRIHOP_ERR_INVALID_ARGUMENT);
    EQUAL(message.length, 10);
    trihop_received_free(&message);
    OK(trihop_barrier(job));
    OK(trihop_channel_free(next));
    OK(trihop_channel_free(mine));
}

/* What each rank has made is known at all ports of it, and makes another one like it. */
static void ask_for_limits(void)
{
    trihop_channel_limits_t limits = {.size = sizeof limits, .messages = 3, .window_bytes = 1000}, known;
    trihop_channel_t *mine, *of_first = NULL;
    uint32_t owner;
    int turn;

    OK(trihop_channel_create(channels, &limits, &mine));
    OK(trihop_channel_owner(mine, &owner));
    EQUAL(owner, rank);
    OK(trihop_channel_free(mine));
    for (turn = 0; turn < 2; turn++) {
        if (rank == 0)
            OK(trihop_channel_create(channels, turn == 0 ? &limits : &known, &of_first));
        of_first = shared(of_first, TRIHOP_CHANNEL_MESSAGES);
        OK(trihop_channel_owner(of_first, &owner));
        EQUAL(owner, 0);
        OK(trihop_channel_limits(of_first, &known, sizeof known));
        EQUAL(known.size, sizeof known);
        EQUAL(known.messages, 3);
        EQUAL(known.window_bytes, 1000);
        EQUAL(known.bytes, 1 << 20);
        EQUAL(known.ports, 1024);
        EQUAL(known.window_messages, 64);
        OK(trihop_barrier(job));
        OK(trihop_channel_free(of_first));
    }
}

/* What this rank's stream of channels has sent. */
static uint64_t records_sent(void)
{
    trihop_status_t status = TRIHOP_ERR_WOULD_BLOCK;
    trihop_stats_t stats;
    int tries;

    for (tries = 0; tries < 1000 && status == TRIHOP_ERR_WOULD_BLOCK; tries++)
        status = trihop_channels_stats(channels, &stats, sizeof stats);
    OK(status);
    return stats.sent;
}

/* Gets of the last rank are a record each; with a bound of what rank 0 hands out there is one more for each that arrives. */
static void count_records(uint64_t getmsg_bytes)
{
    trihop_channels_t *usual = channels;
    trihop_channel_t *inbox = NULL;
    trihop_channels_options_t options;
    trihop_received_t got;
    uint64_t before;
    int turn;

    OK(trihop_channels_options_init(&options, sizeof options));
    options.getmsg_bytes = getmsg_bytes;
    OK(trihop_channels_open_with(job, "counted", &options, &channels));
    if (rank == 0) {
        OK(trihop_channel_create(channels, NULL, &inbox));
        for (turn = 0; turn < TURNS; turn++)
            OK(trihop_channel_send(inbox, 0, "news", 4, TRIHOP_WHEN_DEPOSITED, TRIHOP_NO_TIMEOUT));
    }
    inbox = shared(inbox, TRIHOP_CHANNEL_MESSAGES);
    if (rank == size - 1) {
        before = records_sent();
        for (turn = 0; turn < TURNS; turn++) {
            OK(trihop_channel_get(inbox, TRIHOP_NO_TIMEOUT, &got));
            trihop_received_free(&got);
        }
        EQUAL(records_sent() - before, size == 1 ? 0 : getmsg_bytes == 0 ? TURNS : 2 * TURNS);
    }
    OK(trihop_barrier(job));
    OK(trihop_channel_free(inbox));
    OK(trihop_channels_close(channels));
    channels = usual;
}

static void join(const struct part *part)
{
    int seat = is_inline ? TRIHOP_INLINE : TRIHOP_THREADED;

    OK(is_minirank ? trihop_minirank_start(miniranks, part->index, &job) : trihop_init(seat, NULL, &job));
    rank = trihop_rank(job);
    size = trihop_size(job);
}

static void *first_job(void *context)
{
    struct part *part = context;
    trihop_channels_t *refused = NULL;
    trihop_channel_t *mine = NULL;
    trihop_kept_t *none = NULL;
    size_t length;

    join(part);
    part->rank = rank;
    OK(trihop_channels_open(job, "gates", NULL, &channels));
    lock();
    meet();
    wake();
    wake_at_gates();
    start();
    fill();
    pass_on();
    ask_for_limits();
    count_records(0);
    count_records(1);
    OK(trihop_channel_create(channels, NULL, &mine));
    OK(trihop_channel_descriptor(mine, part->text, sizeof part->text, &length));
    OK(trihop_channel_send(mine, 7, &rank, sizeof rank, TRIHOP_WHEN_DEPOSITED, TRIHOP_NO_TIMEOUT));
    EQUAL(trihop_channels_keep(NULL, &none), TRIHOP_ERR_INVALID_ARGUMENT);
    EQUAL(trihop_channels_open_kept(job, "next", NULL, NULL, &refused), TRIHOP_ERR_INVALID_ARGUMENT);
    OK(trihop_channels_keep(channels, &part->kept));
    OK(trihop_channel_free(mine));
    OK(trihop_finalize(job));
    job = NULL;
    return NULL;
}

/* What is in the channel of each rank is there in the next job, under the same name. */
static void *second_job(void *context)
{
    struct part *part = context;
    trihop_channels_options_t options;
    trihop_channels_t *refused = NULL;
    trihop_channel_t *mine = NULL;
    trihop_received_t got;

    join(part);
    EQUAL(rank, part->rank);
    OK(trihop_channels_options_init(&options, sizeof options));
    options.kept = part->kept;
    /* Both are the same. */
    OK(rank % 2 == 0 ? trihop_channels_open_kept(job, "next", NULL, part->kept, &channels)
                     : trihop_channels_open_with(job, "next", &options, &channels));
    EQUAL(trihop_channels_open_kept(job, "again", NULL, part->kept, &refused), TRIHOP_ERR_CONFIG);
    EQUAL(refused == NULL, 1);
    trihop_kept_free(part->kept);
    trihop_kept_free(NULL);
    OK(trihop_channel_attach(channels, part->text, &mine));
    OK(trihop_channel_get(mine, TRIHOP_ONCE, &got));
    EQUAL(got.kind, 7);
    EQUAL(got.length, sizeof rank);
    EQUAL(memcmp(got.bytes, &rank, sizeof rank), 0);
    trihop_received_free(&got);
    OK(trihop_channel_free(mine));
    OK(trihop_channels_close(channels));
    if (rank == 0)
        printf("%" PRIu32 " ranks\n", size);
    OK(trihop_finalize(job));
    return NULL;
}

/* All ranks of this process, which are threads of it, in a job. */
static void start_threads(void *(*of)(void *), struct part *parts)
{
    uint32_t count_here = trihop_minirank_count(miniranks), i;

    for (i = 0; i < count_here; i++)
        EQUAL(pthread_create(&parts[i].thread, NULL, of, &parts[i]), 0);
    for (i = 0; i < count_here; i++)
        EQUAL(pthread_join(parts[i].thread, NULL), 0);
    OK(trihop_minirank_finalize(miniranks));
}

static void run_minirank(void)
{
    struct part *parts;
    uint32_t count_here, i;

    OK(trihop_minirank_init(0, NULL, &miniranks));
    count_here = trihop_minirank_count(miniranks);
    parts = calloc(count_here, sizeof *parts);
    for (i = 0; i < count_here; i++)
        parts[i].index = i;
    start_threads(first_job, parts);
    OK(trihop_minirank_init(count_here, NULL, &miniranks));
    start_threads(second_job, parts);
    free(parts);
}

int main(int argc, char **argv)
{
    struct part part = {.index = 0};

    is_minirank = argc > 1 && strcmp(argv[1], "minirank") == 0;
    is_inline = argc < 2 || strcmp(argv[1], "threaded") != 0;
    if (is_minirank) {
        run_minirank();
    } else {
        first_job(&part);
        second_job(&part);
    }
    return EXIT_SUCCESS;
}

/* A guest of `trihop serve`: `guest NAME`. Says what it has done, a line for each part. */
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <trihop.h>

#define OK(call) expect((call), TRIHOP_OK, #call)

static void expect(int status, int wanted, const char *call) {
    if (status != wanted) {
        fprintf(stderr, "%s: %d and not %d: %s\n", call, status, wanted, trihop_last_error());
        exit(1);
    }
}

static void is(int so, const char *what) {
    if (!so) {
        fprintf(stderr, "not so: %s\n", what);
        exit(1);
    }
}

#define IS(what) is((what), #what)

static int is_readable(int descriptor, int for_ms) {
    struct pollfd polled = {.fd = descriptor, .events = POLLIN};
    return poll(&polled, 1, for_ms) == 1 && (polled.revents & POLLIN) != 0;
}

enum { MESSAGES = 3000 };

/* What the other thread sends, by a port of its own. */
struct other {
    trihop_guest_t *guest;
    char descriptor[TRIHOP_CHANNEL_DESCRIPTOR_CHARS];
};

static void *send_all(void *given) {
    const struct other *other = given;
    trihop_channel_t *tasks;
    uint64_t failed = 1;
    int32_t last = 1;
    OK(trihop_guest_attach(other->guest, other->descriptor, &tasks));
    for (uint32_t number = 0; number < MESSAGES; number++)
        OK(trihop_channel_send(tasks, number, &number, sizeof number, TRIHOP_WHEN_BUFFERED, TRIHOP_NO_TIMEOUT));
    OK(trihop_channel_failures(tasks, &failed, &last));
    IS(failed == 0 && last == TRIHOP_OK);
    OK(trihop_channel_free(tasks));
    return NULL;
}

static void *wait_for_message(void *channel) {
    trihop_received_t received;
    trihop_status_t got = TRIHOP_ERR_MISUSE;
    /* The other thread may be looking just now. */
    for (int times = 0; times < 10000 && got == TRIHOP_ERR_MISUSE; times++) {
        got = trihop_channel_get(channel, TRIHOP_NO_TIMEOUT, &received);
        if (got == TRIHOP_ERR_MISUSE)
            usleep(100);
    }
    expect(got, TRIHOP_OK, "what the other thread sends");
    IS(received.length == 4 && memcmp(received.bytes, "late", 4) == 0);
    trihop_received_free(&received);
    return NULL;
}

int main(int count, char **words) {
    const char *name = count > 1 ? words[1] : NULL;
    trihop_guest_t *guest, *none;
    trihop_channel_t *tasks, *lock, *gate, *same;
    trihop_channel_limits_t limits = {.size = sizeof limits, .messages = 20, .window_messages = 8};
    trihop_channel_limits_t said;
    trihop_received_t received;
    trihop_filled_t filled;
    trihop_asked_t *asked, *sent;
    struct other other;
    pthread_t thread;
    char small[2], text[TRIHOP_CHANNEL_DESCRIPTOR_CHARS];
    uint64_t value = 9;
    uint32_t rank = 9, size = 0, owner = 9;
    int32_t kind = 9, event = 0, started = 0;
    int is_over = 1;
    size_t length;

    expect(trihop_guest_open("nobody-has-this-name", 1000000, &none), TRIHOP_ERR_SERVER_FAILED, "a server that is not there");
    IS(none == NULL);
    expect(trihop_guest_open(name, -7, &none), TRIHOP_ERR_INVALID_ARGUMENT, "a time below zero");
    OK(trihop_guest_open(name, TRIHOP_NO_TIMEOUT, &guest));
    OK(trihop_guest_server(guest, &rank, &size));
    IS(rank == 0 && size == 1);
    OK(trihop_guest_server(guest, NULL, NULL));

    OK(trihop_guest_create(guest, &limits, TRIHOP_OF_GUEST, &tasks));
    OK(trihop_channel_limits(tasks, &said, sizeof said));
    IS(said.messages == 20 && said.window_messages == 8 && said.ports == 1024);
    OK(trihop_channel_kind(tasks, &kind));
    OK(trihop_channel_owner(tasks, &owner));
    IS(kind == TRIHOP_CHANNEL_MESSAGES && owner == 0);
    other.guest = guest;
    OK(trihop_channel_descriptor(tasks, other.descriptor, sizeof other.descriptor, &length));
    IS(pthread_create(&thread, NULL, send_all, &other) == 0);
    for (uint32_t number = 0; number < MESSAGES; number++) {
        OK(trihop_channel_get(tasks, TRIHOP_NO_TIMEOUT, &received));
        IS(received.kind == number && received.source == 0 && memcmp(received.bytes, &number, sizeof number) == 0);
        trihop_received_free(&received);
    }
    IS(pthread_join(thread, NULL) == 0);
    printf("%d messages\n", MESSAGES);

    OK(trihop_channel_send(tasks, 1, "four", 4, TRIHOP_WHEN_DEPOSITED, TRIHOP_NO_TIMEOUT));
    expect(trihop_channel_get_into(tasks, TRIHOP_NO_TIMEOUT, small, sizeof small, &filled), TRIHOP_ERR_BUFFER_TOO_SMALL,
           "a small buffer");
    IS(filled.length == 4);
    OK(trihop_channel_get_into(tasks, TRIHOP_NO_TIMEOUT, text, sizeof text, &filled));
    IS(filled.length == 4 && filled.kind == 1 && memcmp(text, "four", 4) == 0);
    expect(trihop_channel_get(tasks, TRIHOP_ONCE, &received), TRIHOP_ERR_WOULD_BLOCK, "an empty channel");
    IS(received.bytes == NULL);
    expect(trihop_channel_pop(tasks, 1000000), TRIHOP_ERR_TIMED_OUT, "an empty channel for a while");

    /* Calls that are started, and descriptors to sleep on. */
    OK(trihop_channel_start_get(tasks, TRIHOP_NO_TIMEOUT, &asked));
    OK(trihop_asked_event(asked, &started));
    OK(trihop_asked_test(asked, &is_over));
    IS(!is_over && !is_readable(started, 0));
    OK(trihop_channel_start_send(tasks, 2, "five5", 5, TRIHOP_WHEN_RECEIVED, TRIHOP_NO_TIMEOUT, &sent));
    IS(is_readable(started, -1));
    OK(trihop_asked_test(asked, &is_over));
    IS(is_over);
    OK(trihop_asked_received(asked, &received));
    IS(received.kind == 2 && received.length == 5 && memcmp(received.bytes, "five5", 5) == 0);
    trihop_received_free(&received);
    expect(trihop_asked_received(asked, &received), TRIHOP_ERR_MISUSE, "a message that was taken");
    OK(trihop_asked_free(asked));
    OK(trihop_asked_wait(sent));
    OK(trihop_asked_free(sent));
    OK(trihop_channel_event(tasks, &event));
    IS(!is_readable(event, 0));
    OK(trihop_channel_send(tasks, 3, "", 0, TRIHOP_WHEN_DEPOSITED, TRIHOP_NO_TIMEOUT));
    IS(is_readable(event, -1));
    OK(trihop_channel_pop(tasks, TRIHOP_NO_TIMEOUT));
    expect(trihop_channel_pop(tasks, TRIHOP_ONCE), TRIHOP_ERR_WOULD_BLOCK, "an empty channel");
    IS(!is_readable(event, 0));
    OK(trihop_channel_start_get(tasks, 1000000, &asked));
    expect(trihop_asked_wait(asked), TRIHOP_ERR_TIMED_OUT, "an empty channel for a while");
    expect(trihop_asked_test(asked, &is_over), TRIHOP_ERR_TIMED_OUT, "the same again");
    OK(trihop_asked_free(asked));
    /* Taken back, it has taken nothing. */
    OK(trihop_channel_start_get(tasks, TRIHOP_NO_TIMEOUT, &asked));
    OK(trihop_asked_event(asked, &started));
    OK(trihop_channel_send(tasks, 4, "", 0, TRIHOP_WHEN_DEPOSITED, TRIHOP_NO_TIMEOUT));
    IS(is_readable(started, -1));
    OK(trihop_asked_free(asked));
    OK(trihop_channel_get(tasks, TRIHOP_NO_TIMEOUT, &received));
    IS(received.kind == 4);
    trihop_received_free(&received);
    OK(trihop_channel_start_poll(tasks, TRIHOP_POLL_SIZE, TRIHOP_NO_TIMEOUT, &asked));
    OK(trihop_asked_wait(asked));
    OK(trihop_asked_value(asked, &value));
    IS(value == 0);
    OK(trihop_asked_free(asked));
    printf("started and slept on\n");

    /* Another thread waits with this port: it is in use, and says what it is all the same. */
    IS(pthread_create(&thread, NULL, wait_for_message, tasks) == 0);
    OK(trihop_guest_attach(guest, other.descriptor, &same));
    do
        value = (uint64_t)trihop_channel_poll(tasks, TRIHOP_POLL_SIZE, TRIHOP_NO_TIMEOUT, NULL);
    while (value == TRIHOP_OK);
    IS(value == TRIHOP_ERR_MISUSE);
    OK(trihop_channel_owner(tasks, &owner));
    OK(trihop_channel_send(same, 0, "late", 4, TRIHOP_WHEN_RECEIVED, TRIHOP_NO_TIMEOUT));
    IS(pthread_join(thread, NULL) == 0);
    OK(trihop_channel_free(same));
    printf("one thread at a time\n");

    OK(trihop_guest_create_semaphore(guest, 1, 1, NULL, TRIHOP_OF_SERVER, &lock));
    OK(trihop_channel_poll(lock, TRIHOP_POLL_ACQUIRE, TRIHOP_NO_TIMEOUT, &value));
    IS(value == 0);
    expect(trihop_channel_poll(lock, TRIHOP_POLL_ACQUIRE, TRIHOP_ONCE, NULL), TRIHOP_ERR_WOULD_BLOCK, "a semaphore at 0");
    OK(trihop_channel_poll(lock, TRIHOP_POLL_RELEASE, TRIHOP_NO_TIMEOUT, NULL));
    OK(trihop_guest_create_barrier(guest, 1, NULL, TRIHOP_OF_GUEST, &gate));
    OK(trihop_channel_poll(gate, TRIHOP_POLL_ARRIVE, TRIHOP_NO_TIMEOUT, &value));
    IS(value == 0);
    expect(trihop_channel_send(gate, 0, "", 0, TRIHOP_IMMEDIATELY, TRIHOP_ONCE), TRIHOP_ERR_MISUSE, "a send to a barrier");
    expect(trihop_guest_create(guest, NULL, 7, &same), TRIHOP_ERR_INVALID_ARGUMENT, "no lifetime");
    expect(trihop_guest_create_semaphore(guest, 2, 1, NULL, TRIHOP_OF_GUEST, &same), TRIHOP_ERR_CONFIG, "a value above");
    expect(trihop_guest_attach(guest, "trihop-ch:what", &same), TRIHOP_ERR_NO_CHANNEL, "no descriptor");
    expect(trihop_guest_create(NULL, NULL, TRIHOP_OF_GUEST, &same), TRIHOP_ERR_INVALID_ARGUMENT, "no guest");
    printf("semaphore and barrier\n");

    /* A fork would take answers of its parent's. */
    const pid_t child = fork();
    IS(child >= 0);
    if (child == 0)
        _exit(trihop_channel_poll(lock, TRIHOP_POLL_VALUE, TRIHOP_NO_TIMEOUT, NULL) == TRIHOP_ERR_MISUSE ? 0 : 1);
    int status = 1;
    IS(waitpid(child, &status, 0) == child && status == 0);
    OK(trihop_channel_poll(lock, TRIHOP_POLL_VALUE, TRIHOP_NO_TIMEOUT, &value));
    IS(value == 1);

    OK(trihop_channel_close(tasks));
    expect(trihop_channel_send(tasks, 0, "", 0, TRIHOP_WHEN_DEPOSITED, TRIHOP_NO_TIMEOUT), TRIHOP_ERR_CLOSED, "a closed channel");
    OK(trihop_channel_free(tasks));
    OK(trihop_channel_free(lock));
    OK(trihop_channel_free(gate));
    trihop_guest_free(guest);
    trihop_guest_free(NULL);
    trihop_guests_free(NULL);
    return 0;
}

/*
 * Sorts the lines of a file, each rank a part. A sample of all lines says which rank gets which
 * range of them, so that all ranks get about equally many (lines that are equal stay together).
 * What is written is what `LC_ALL=C sort` writes; every rank compares its lines with those of a
 * sequential run.
 *
 *   cc sort.c $(pkg-config --cflags --libs trihop) -o sort
 *   trihop run -n 4 --nodes 2 -- ./sort [FILE [SORTED]]
 */
#include <inttypes.h>

#include "text.h"

#define SAMPLES 16u /* lines that each rank shows to all others, for each rank that there is */
#define SHOWN 64u   /* bytes of a line that are shown: a bound between ranks need not be a whole line */

struct line {
    const char *bytes;
    size_t length;
};

struct lines {
    struct line *all;
    size_t count, room;
};

static void append(struct lines *lines, const char *bytes, size_t length)
{
    if (lines->count == lines->room) {
        lines->room = 2 * lines->room + 64;
        lines->all = resized(lines->all, lines->room, sizeof *lines->all);
    }
    lines->all[lines->count++] = (struct line){bytes, length};
}

/* The lines of a text, which stay where they are. */
static struct lines split(const char *text, size_t length)
{
    struct lines lines = {0};
    const char *end = text + length;

    while (text < end) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        const char *stop = newline != NULL ? newline : end;

        append(&lines, text, (size_t)(stop - text));
        text = stop + 1;
    }
    return lines;
}

static int compared(const void *left, const void *right)
{
    const struct line *a = left, *b = right;
    int order = memcmp(a->bytes, b->bytes, a->length < b->length ? a->length : b->length);

    if (order != 0)
        return order;
    return (a->length > b->length) - (a->length < b->length);
}

static void sort(struct lines *lines)
{
    if (lines->count > 0)
        qsort(lines->all, lines->count, sizeof *lines->all, compared);
}

/* Samples of all ranks, sorted; `text` is what they stand in. */
static struct lines samples_of_all(const struct lines *sorted, char **text)
{
    size_t wanted = (size_t)SAMPLES * trihop_size(job);
    size_t count = wanted < sorted->count ? wanted : sorted->count;
    size_t *lengths = resized(NULL, trihop_size(job), sizeof *lengths);
    char *own = resized(NULL, count, SHOWN + 1);
    size_t length = 0, all = 0;
    struct lines samples;

    for (size_t sample = 0; sample < count; sample++) {
        const struct line *line = &sorted->all[sample * sorted->count / count];
        size_t shown = line->length < SHOWN ? line->length : SHOWN;

        memcpy(own + length, line->bytes, shown);
        length += shown;
        own[length++] = '\n';
    }
    check(trihop_allgather(job, &length, sizeof length, lengths), "trihop_allgather");
    for (uint32_t rank = 0; rank < trihop_size(job); rank++)
        all += lengths[rank];
    *text = resized(NULL, all, 1);
    check(trihop_allgatherv(job, own, length, *text, lengths), "trihop_allgatherv");
    samples = split(*text, all);
    sort(&samples);
    free(lengths);
    free(own);
    return samples;
}

/* Whose range a line is in. Samples at equal distances are where ranges end. */
static uint32_t target_of(const struct line *line, const struct lines *samples)
{
    uint32_t low = 0, high = trihop_size(job) - 1;

    while (low < high && samples->count > 0) {
        uint32_t middle = low + (high - low) / 2;
        size_t end = (size_t)(middle + 1) * samples->count / trihop_size(job);

        if (compared(&samples->all[end], line) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void on_line(void *context, const trihop_message_t *message)
{
    char *copy = resized(NULL, message->length, 1);

    memcpy(copy, message->bytes, message->length);
    append(context, copy, message->length);
}

/* Writes lines into the file, `place` bytes behind its begin. */
static void write_at(const char *path, const struct lines *lines, uint64_t place)
{
    FILE *file = NULL;

    if (trihop_rank(job) == 0 && ((file = fopen(path, "wb")) == NULL || fclose(file) != 0))
        fail(path, strerror(errno));
    /* The file is there, and empty, before anybody writes to it. */
    check(trihop_barrier(job), "trihop_barrier");
    file = fopen(path, "r+b");
    if (file == NULL || fseek(file, (long)place, SEEK_SET) != 0)
        fail(path, strerror(errno));
    for (size_t line = 0; line < lines->count; line++) {
        fwrite(lines->all[line].bytes, 1, lines->all[line].length, file);
        putc('\n', file);
    }
    if (ferror(file) || fclose(file) != 0)
        fail(path, "cannot be written");
}

static void make(FILE *file)
{
    uint64_t state = 1;

    for (int number = 0; number < 100000; number++) {
        next_random(&state);
        fprintf(file, "%" PRIx64 " was line %d\n", state >> state % 48, number);
    }
}

int main(int argc, char **argv)
{
    struct text text = text_named_or(argc > 1 ? argv[1] : NULL, "made lines", make);
    struct lines own, samples, expected, sorted = {0};
    char *part, *sampled, *whole;
    trihop_stream_t *stream;
    size_t length;
    uint64_t place[2] = {0}, count, most, wrong;

    check(trihop_init(TRIHOP_INLINE, NULL, &job), "trihop_init");
    check(trihop_stream_open(job, "lines", 0, NULL, on_line, &sorted, &stream), "trihop_stream_open");
    part = text_part(&text, trihop_rank(job), trihop_size(job), &length);
    own = split(part, length);
    sort(&own);
    samples = samples_of_all(&own, &sampled);
    for (size_t line = 0; line < own.count; line++)
        check(trihop_stream_send(stream, target_of(&own.all[line], &samples), 0, own.all[line].bytes,
                                 own.all[line].length),
              "trihop_stream_send");
    check(trihop_stream_round(stream), "trihop_stream_round");
    sort(&sorted);

    /* Lines and bytes that stand before those of this rank. */
    place[0] = count = most = sorted.count;
    for (size_t line = 0; line < sorted.count; line++)
        place[1] += sorted.all[line].length + 1;
    check(trihop_exscan(job, TRIHOP_SUM, place, 2), "trihop_exscan");
    check(trihop_allreduce(job, TRIHOP_SUM, &count, 1), "trihop_allreduce");
    check(trihop_allreduce(job, TRIHOP_MAX, &most, 1), "trihop_allreduce");
    if (argc > 2)
        write_at(argv[2], &sorted, place[1]);

    whole = text_part(&text, 0, 1, &length);
    expected = split(whole, length);
    sort(&expected);
    wrong = count != expected.count;
    for (size_t line = 0; wrong == 0 && line < sorted.count; line++)
        wrong = compared(&sorted.all[line], &expected.all[place[0] + line]) != 0;
    check(trihop_allreduce(job, TRIHOP_SUM, &wrong, 1), "trihop_allreduce");
    if (trihop_rank(job) == 0)
        printf("%s: %" PRIu32 " ranks: %" PRIu64 " lines, at most %" PRIu64 " at a rank, %" PRIu64
               " parts are wrong\n",
               text.name, trihop_size(job), count, most, wrong);
    check(trihop_stream_close(stream), "trihop_stream_close");
    check(trihop_finalize(job), "trihop_finalize");
    for (size_t line = 0; line < sorted.count; line++)
        free((void *)sorted.all[line].bytes);
    free(own.all), free(samples.all), free(expected.all), free(sorted.all);
    free(part), free(sampled), free(whole);
    fclose(text.file);
    return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

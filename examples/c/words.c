/*
 * Counts the words of a text: each rank reads a part of it, and each word is counted by the rank
 * that its hash names. A word is a run of letters, in whichever case; bytes above ASCII are letters.
 * Every rank compares its counts with those of a sequential run.
 *
 *   cc words.c $(pkg-config --cflags --libs trihop) -lm -o words
 *   trihop run -n 4 --nodes 2 -- ./words [FILE]
 */
#include <inttypes.h>
#include <math.h>

#include "text.h"

#define GATHERED 4096u    /* words whose counts are added up before they travel */
#define LONGEST 1000u     /* bytes of a word that count */

/* A record: a count, then the word. */
struct record {
    uint64_t count;
    char word[LONGEST];
};

struct entry {
    uint64_t count; /* 0 in an empty place */
    uint64_t hash;
    size_t length;
    char *word;
};

/* Words with their counts, by open addressing: `room` is a power of two, at most half of it used. */
struct counts {
    struct entry *entries;
    size_t room, used;
};

static uint64_t hash_of(const char *word, size_t length)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (size_t at = 0; at < length; at++)
        hash = (hash ^ (unsigned char)word[at]) * UINT64_C(0x100000001b3);
    return hash;
}

static struct entry *find(const struct counts *counts, uint64_t hash, const char *word, size_t length)
{
    /* The lower bits say which rank counts the word. */
    size_t at = hash >> 20 & (counts->room - 1);
    struct entry *entry = &counts->entries[at];

    while (entry->count != 0 && (entry->hash != hash || entry->length != length ||
                                 memcmp(entry->word, word, length) != 0)) {
        at = (at + 1) & (counts->room - 1);
        entry = &counts->entries[at];
    }
    return entry;
}

static void grow(struct counts *counts)
{
    struct counts old = *counts;

    counts->room = old.room > 0 ? 2 * old.room : 1024;
    counts->entries = resized(NULL, counts->room, sizeof *counts->entries);
    memset(counts->entries, 0, counts->room * sizeof *counts->entries);
    for (size_t at = 0; at < old.room; at++)
        if (old.entries[at].count != 0)
            *find(counts, old.entries[at].hash, old.entries[at].word, old.entries[at].length) = old.entries[at];
    free(old.entries);
}

static void add(struct counts *counts, const char *word, size_t length, uint64_t count)
{
    uint64_t hash = hash_of(word, length);
    struct entry *entry;

    if (2 * counts->used >= counts->room)
        grow(counts);
    entry = find(counts, hash, word, length);
    if (entry->count == 0) {
        *entry = (struct entry){0, hash, length, resized(NULL, length, 1)};
        memcpy(entry->word, word, length);
        counts->used++;
    }
    entry->count += count;
}

static void empty(struct counts *counts)
{
    for (size_t at = 0; at < counts->room; at++)
        if (counts->entries[at].count != 0)
            free(counts->entries[at].word);
    free(counts->entries);
    *counts = (struct counts){0};
}

/* The next word of a text, in small letters in `word`; its length, 0 at the end. */
static size_t next_word(const char **at, const char *end, char *word)
{
    size_t length = 0;

    for (; *at < end; ++*at) {
        unsigned char byte = (unsigned char)**at;

        if (byte >= 'A' && byte <= 'Z')
            byte = (unsigned char)(byte - 'A' + 'a');
        if ((byte >= 'a' && byte <= 'z') || byte >= 0x80) {
            if (length < LONGEST)
                word[length++] = (char)byte;
        } else if (length > 0) {
            break;
        }
    }
    return length;
}

static void send_all(struct counts *counts, const trihop_stream_t *stream)
{
    for (size_t at = 0; at < counts->room; at++) {
        const struct entry *entry = &counts->entries[at];
        struct record record = {.count = entry->count};

        if (entry->count == 0)
            continue;
        memcpy(record.word, entry->word, entry->length);
        check(trihop_stream_send(stream, (uint32_t)(entry->hash % trihop_size(job)), 0, &record,
                                 sizeof record.count + entry->length),
              "trihop_stream_send");
    }
    empty(counts);
}

static void on_record(void *context, const trihop_message_t *message)
{
    const struct record *record = message->bytes;

    add(context, record->word, message->length - sizeof record->count, record->count);
}

/* A text in which word n is as frequent as 1 / n. */
static void make(FILE *file)
{
    uint64_t state = 1;

    for (int place = 0; place < 200000; place++) {
        double random = (double)(next_random(&state) >> 11) / (double)(UINT64_C(1) << 53);

        for (unsigned number = (unsigned)pow(10000, random); number > 0; number /= 26)
            putc((int)('a' + number % 26), file);
        putc(place % 12 == 11 ? '\n' : ' ', file);
    }
}

int main(int argc, char **argv)
{
    struct counts gathered = {0}, counted = {0}, expected = {0};
    uint64_t totals[3] = {0}; /* words, different ones, and those with another count */
    struct text text = text_named_or(argc > 1 ? argv[1] : NULL, "a made text", make);
    char word[LONGEST];
    trihop_stream_t *stream;
    const char *at;
    char *lines;
    size_t length;

    check(trihop_init(TRIHOP_INLINE, NULL, &job), "trihop_init");
    check(trihop_stream_open(job, "words", 0, NULL, on_record, &counted, &stream), "trihop_stream_open");
    lines = text_part(&text, trihop_rank(job), trihop_size(job), &length);
    at = lines;
    for (size_t bytes; (bytes = next_word(&at, lines + length, word)) > 0;) {
        add(&gathered, word, bytes, 1);
        if (gathered.used == GATHERED)
            send_all(&gathered, stream);
    }
    free(lines);
    send_all(&gathered, stream);
    check(trihop_stream_round(stream), "trihop_stream_round");

    at = lines = text_part(&text, 0, 1, &length);
    for (size_t bytes; (bytes = next_word(&at, lines + length, word)) > 0;)
        if (hash_of(word, bytes) % trihop_size(job) == trihop_rank(job))
            add(&expected, word, bytes, 1);
    free(lines);
    for (size_t place = 0; place < counted.room; place++) {
        const struct entry *own = &counted.entries[place];

        totals[0] += own->count;
        if (own->count != 0 && find(&expected, own->hash, own->word, own->length)->count != own->count)
            totals[2]++;
    }
    totals[1] = counted.used;
    totals[2] += counted.used != expected.used;
    check(trihop_allreduce(job, TRIHOP_SUM, totals, 3), "trihop_allreduce");
    if (trihop_rank(job) == 0)
        printf("%s: %" PRIu32 " ranks: %" PRIu64 " words, %" PRIu64 " different, %" PRIu64 " wrong\n", text.name,
               trihop_size(job), totals[0], totals[1], totals[2]);
    check(trihop_stream_close(stream), "trihop_stream_close");
    check(trihop_finalize(job), "trihop_finalize");
    empty(&counted);
    empty(&expected);
    fclose(text.file);
    return totals[2] == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

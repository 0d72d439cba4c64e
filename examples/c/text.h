/*
 * A text that all ranks read together, each its own part, and how an example ends: what words.c,
 * sort.c and bfs.c begin with.
 */
#ifndef TEXT_H
#define TEXT_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trihop.h>

static trihop_job_t *job;

/* Ends the program, and the job. */
static void fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    if (job != NULL)
        trihop_abort(job, EXIT_FAILURE, what);
    exit(EXIT_FAILURE);
}

static void check(trihop_status_t status, const char *call)
{
    if (status != TRIHOP_OK)
        fail(call, trihop_last_error());
}

/* Room for so many elements, or the end. `old` may be null. */
static void *resized(void *old, size_t count, size_t bytes)
{
    void *memory = realloc(old, count * bytes + 1);

    if (memory == NULL)
        fail("memory", strerror(ENOMEM));
    return memory;
}

/* A file, or what an example makes where none is named. */
struct text {
    const char *name;
    FILE *file;
};

static struct text text_named_or(const char *path, const char *name, void (*make)(FILE *))
{
    struct text text = {path != NULL ? path : name, path != NULL ? fopen(path, "rb") : tmpfile()};

    if (text.file == NULL)
        fail(text.name, strerror(errno));
    if (path == NULL)
        make(text.file);
    return text;
}

/* Where the first line begins that does not begin before `at`. */
static long line_begin(FILE *file, long at)
{
    int byte;

    if (at == 0)
        return 0;
    /* A line begins at `at` where the byte before it ends one. */
    fseek(file, at - 1, SEEK_SET);
    do
        byte = getc(file);
    while (byte != EOF && byte != '\n');
    return ftell(file);
}

/* The lines that begin in part `part` of `parts` equally long ones; the caller frees them. */
static char *text_part(const struct text *text, uint32_t part, uint32_t parts, size_t *length)
{
    long all = fseek(text->file, 0, SEEK_END) == 0 ? ftell(text->file) : -1;
    long begin, end;
    char *lines;

    if (all < 0)
        fail(text->name, strerror(errno));
    begin = line_begin(text->file, (long)((double)all * part / parts));
    end = part + 1 == parts ? all : line_begin(text->file, (long)((double)all * (part + 1) / parts));
    *length = (size_t)(end - begin);
    lines = resized(NULL, *length, 1);
    fseek(text->file, begin, SEEK_SET);
    if (fread(lines, 1, *length, text->file) != *length)
        fail(text->name, "is shorter than it was");
    return lines;
}

/* Numbers that look random, for texts that are made. */
static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

#endif

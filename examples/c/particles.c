/*
 * Particles that move over a plane which the ranks share as a grid, and go to another rank where
 * they cross a border. The plane has 64 x 64 cells, and its ends meet. Where more than a few
 * particles are in one cell, they turn. Every rank compares its particles with those of a sequential
 * run.
 *
 *   cc particles.c $(pkg-config --cflags --libs trihop) -o particles
 *   trihop run -n 4 --nodes 2 -- ./particles [PARTICLES [STEPS]]
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trihop.h>

#define SIDE 64u                              /* cells of a side */
#define CELL (UINT32_MAX / SIDE + 1)          /* coordinates of a cell */

struct particle {
    uint32_t number;
    uint32_t x, y;           /* 2^32 is 0 again */
    uint32_t x_speed, y_speed; /* what is added to these in a step */
};

struct particles {
    struct particle *all;
    size_t count, room;
};

static trihop_job_t *job;
static uint32_t columns, rows; /* of the grid of ranks */

static void check(trihop_status_t status, const char *call)
{
    if (status == TRIHOP_OK)
        return;
    fprintf(stderr, "%s: %s\n", call, trihop_last_error());
    if (job != NULL)
        trihop_abort(job, EXIT_FAILURE, call);
    exit(EXIT_FAILURE);
}

static void append(struct particles *particles, const struct particle *particle)
{
    if (particles->count == particles->room) {
        particles->room = 2 * particles->room + 64;
        particles->all = realloc(particles->all, particles->room * sizeof *particles->all);
        if (particles->all == NULL)
            check(TRIHOP_ERR_NO_MEMORY, "realloc");
    }
    particles->all[particles->count++] = *particle;
}

static uint32_t random_word(uint64_t *word)
{
    *word = (*word ^ (*word >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    *word ^= *word >> 31;
    return (uint32_t)(*word >> 32);
}

static struct particle new_particle(uint32_t number)
{
    uint64_t word = ((uint64_t)number + 1) * UINT64_C(0x9e3779b97f4a7c15);
    struct particle particle = {.number = number};

    particle.x = random_word(&word);
    particle.y = random_word(&word);
    /* A few cells at most, either way. */
    particle.x_speed = (uint32_t)((int32_t)random_word(&word) / 11);
    particle.y_speed = (uint32_t)((int32_t)random_word(&word) / 11);
    return particle;
}

/* Who has the cell that a particle is in. */
static uint32_t owner(const struct particle *particle)
{
    uint32_t column = particle->x / CELL * columns / SIDE, row = particle->y / CELL * rows / SIDE;

    return row * columns + column;
}

/* A step of all particles that are together. Each cell is in one place only, with all that it has. */
static void step(struct particles *particles, uint32_t crowd)
{
    static uint32_t cells[SIDE][SIDE];

    memset(cells, 0, sizeof cells);
    for (size_t at = 0; at < particles->count; at++)
        cells[particles->all[at].y / CELL][particles->all[at].x / CELL]++;
    for (size_t at = 0; at < particles->count; at++) {
        struct particle *one = &particles->all[at];

        if (cells[one->y / CELL][one->x / CELL] > crowd) {
            uint32_t x_speed = one->x_speed;

            one->x_speed = 0 - one->y_speed;
            one->y_speed = x_speed;
        }
        one->x += one->x_speed;
        one->y += one->y_speed;
    }
}

static void on_particles(void *context, const trihop_message_t *items)
{
    const struct particle *particles = items->bytes;

    for (size_t at = 0; at < items->count; at++)
        append(context, &particles[at]);
}

static int by_number(const void *left, const void *right)
{
    const struct particle *a = left, *b = right;

    return (a->number > b->number) - (a->number < b->number);
}

int main(int argc, char **argv)
{
    uint32_t count = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 20000;
    uint32_t steps = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 50;
    /* A third more than there are in the mean. */
    uint32_t crowd = count / (SIDE * SIDE) * 4 / 3 + 1;
    struct particles own = {0}, arrived = {0}, all = {0};
    uint64_t totals[3] = {0}; /* particles, crossings, wrong ones */
    trihop_stream_t *borders;
    size_t kept;

    check(trihop_init(TRIHOP_INLINE, NULL, &job), "trihop_init");
    for (uint32_t wide = 1; wide * wide <= trihop_size(job); wide++)
        if (trihop_size(job) % wide == 0)
            columns = wide;
    rows = trihop_size(job) / columns;
    check(trihop_stream_open(job, "borders", sizeof(struct particle), NULL, on_particles, &arrived, &borders),
          "trihop_stream_open");
    for (uint32_t number = 0; number < count; number++) {
        struct particle particle = new_particle(number);

        append(&all, &particle);
        if (owner(&particle) == trihop_rank(job))
            append(&own, &particle);
    }
    for (uint32_t done = 0; done < steps; done++) {
        step(&own, crowd);
        kept = 0;
        for (size_t at = 0; at < own.count; at++) {
            if (owner(&own.all[at]) == trihop_rank(job)) {
                own.all[kept++] = own.all[at];
                continue;
            }
            check(trihop_stream_push(borders, owner(&own.all[at]), &own.all[at]), "trihop_stream_push");
            totals[1]++;
        }
        own.count = kept;
        check(trihop_stream_round(borders), "trihop_stream_round");
        /* Before any other call, in which those of the next step may arrive. */
        for (size_t at = 0; at < arrived.count; at++)
            append(&own, &arrived.all[at]);
        arrived.count = 0;
    }

    for (uint32_t done = 0; done < steps; done++)
        step(&all, crowd);
    if (own.count > 0)
        qsort(own.all, own.count, sizeof *own.all, by_number);
    kept = 0;
    for (size_t at = 0; at < all.count; at++)
        if (owner(&all.all[at]) == trihop_rank(job)) {
            totals[2] += kept >= own.count || memcmp(&own.all[kept], &all.all[at], sizeof *all.all) != 0;
            kept++;
        }
    totals[0] = own.count;
    totals[2] += kept != own.count;
    check(trihop_allreduce(job, TRIHOP_SUM, totals, 3), "trihop_allreduce");
    if (trihop_rank(job) == 0)
        printf("%" PRIu32 " ranks, %" PRIu32 " x %" PRIu32 ": %" PRIu64 " particles, %" PRIu64
               " crossings in %" PRIu32 " steps, %" PRIu64 " wrong\n",
               trihop_size(job), columns, rows, totals[0], totals[1], steps, totals[2]);
    check(trihop_stream_close(borders), "trihop_stream_close");
    check(trihop_finalize(job), "trihop_finalize");
    free(own.all), free(arrived.all), free(all.all);
    return totals[0] == count && totals[2] == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

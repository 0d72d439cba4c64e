/*
 * Label propagation: every vertex of a graph learns the smallest vertex that it is connected with.
 * A handler that hears of a smaller label tells all neighbours, on the stream that it came by, so
 * that one item may become many. The fence returns when no label is under way any more; then each
 * is compared with what one rank alone finds.
 *
 *   cc labels.c $(pkg-config --cflags --libs trihop) -o labels
 *   trihop run -n 4 --nodes 2 -- ./labels [VERTICES [inline]]
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trihop.h>

#define DEGREE 8u /* edges that are made for each vertex */
#define PARTS 4u  /* vertices of different parts have no path between them */

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

static void *allocate(size_t count, size_t bytes)
{
    void *memory = calloc(count + 1, bytes);

    if (memory == NULL) {
        fprintf(stderr, "no memory for %zu times %zu bytes\n", count, bytes);
        if (job != NULL)
            trihop_abort(job, EXIT_FAILURE, "no memory");
        exit(EXIT_FAILURE);
    }
    return memory;
}

struct news {
    uint32_t vertex;
    uint32_t label;
};

/*
 * The whole graph is made on every rank, so that the example stays short; a rank uses what its own
 * vertices need of it.
 */
struct graph {
    uint32_t vertices;
    size_t *begins;       /* of each vertex in `neighbours`, and the end */
    uint32_t *neighbours; /* of all vertices, one after the other */
};

/*
 * Vertex v is at rank v % size. The handler writes `labels`, `told`, `heard` and `wrong` while main
 * sends or waits for the fence; main looks after it.
 */
struct state {
    struct graph graph;
    uint32_t rank, size;
    uint32_t *labels;
    uint64_t sent_at_first, told, heard, wrong;
};

/* The other end of an edge of `vertex`, in the same part. */
static uint32_t other_end(uint32_t vertices, uint32_t vertex, uint32_t edge)
{
    uint64_t word = ((uint64_t)vertex * DEGREE + edge + 1) * UINT64_C(0x9e3779b97f4a7c15);
    uint32_t in_part = (vertices - vertex % PARTS + PARTS - 1) / PARTS;

    word = (word ^ (word >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    word = (word ^ (word >> 27)) * UINT64_C(0x94d049bb133111eb);
    return vertex % PARTS + PARTS * (uint32_t)((word >> 32) % in_part);
}

static void make_graph(struct graph *graph, uint32_t vertices)
{
    size_t *filled = allocate((size_t)vertices + 1, sizeof *filled);

    graph->vertices = vertices;
    graph->begins = allocate((size_t)vertices + 1, sizeof *graph->begins);
    graph->neighbours = allocate((size_t)vertices * DEGREE * 2, sizeof *graph->neighbours);
    for (uint32_t vertex = 0; vertex < vertices; vertex++)
        for (uint32_t edge = 0; edge < DEGREE; edge++) {
            graph->begins[vertex + 1]++;
            graph->begins[other_end(vertices, vertex, edge) + 1]++;
        }
    for (uint32_t vertex = 0; vertex < vertices; vertex++) {
        graph->begins[vertex + 1] += graph->begins[vertex];
        filled[vertex + 1] = graph->begins[vertex + 1];
    }
    for (uint32_t vertex = 0; vertex < vertices; vertex++)
        for (uint32_t edge = 0; edge < DEGREE; edge++) {
            uint32_t other = other_end(vertices, vertex, edge);

            graph->neighbours[filled[vertex]++] = other;
            graph->neighbours[filled[other]++] = vertex;
        }
    free(filled);
}

/* The sequential run: labels are passed on until none changes. */
static uint32_t *expected_labels(const struct graph *graph)
{
    uint32_t *labels = allocate(graph->vertices, sizeof *labels);
    int changed = 1;

    for (uint32_t vertex = 0; vertex < graph->vertices; vertex++)
        labels[vertex] = vertex;
    while (changed) {
        changed = 0;
        for (uint32_t vertex = 0; vertex < graph->vertices; vertex++)
            for (size_t at = graph->begins[vertex]; at < graph->begins[vertex + 1]; at++)
                if (labels[graph->neighbours[at]] < labels[vertex]) {
                    labels[vertex] = labels[graph->neighbours[at]];
                    changed = 1;
                }
    }
    return labels;
}

static uint64_t tell_neighbours(const struct state *state, const trihop_stream_t *stream,
                                uint32_t vertex, uint32_t label)
{
    const struct graph *graph = &state->graph;

    for (size_t at = graph->begins[vertex]; at < graph->begins[vertex + 1]; at++) {
        struct news news = {graph->neighbours[at], label};

        check(trihop_stream_push(stream, news.vertex % state->size, &news),
              "trihop_stream_push");
    }
    return graph->begins[vertex + 1] - graph->begins[vertex];
}

static void on_news(void *context, const trihop_message_t *message)
{
    struct state *state = context;
    const struct news *news = message->bytes;

    state->heard += message->count;
    for (size_t i = 0; i < message->count; i++) {
        uint32_t vertex = news[i].vertex;

        if (vertex >= state->graph.vertices || vertex % state->size != state->rank)
            state->wrong++;
        else if (news[i].label < state->labels[vertex]) {
            state->labels[vertex] = news[i].label;
            /* On the same stream: in a handler a push never waits. */
            state->told += tell_neighbours(state, message->stream, vertex, news[i].label);
        }
    }
}

int main(int argc, char **argv)
{
    /* Inline, progress is made and handlers are called inside of the calls of this thread. */
    int is_inline = argc > 2 && strcmp(argv[2], "inline") == 0;
    trihop_seat_t seat = is_inline ? TRIHOP_INLINE : TRIHOP_THREADED;
    uint32_t vertices = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 20000;
    struct state state = {0};
    uint64_t totals[3]; /* sent, heard, wrong */
    trihop_stream_t *stream;
    uint32_t *expected;

    if (vertices < PARTS) {
        fprintf(stderr, "at least %u vertices\n", PARTS);
        return EXIT_FAILURE;
    }
    check(trihop_init(seat, NULL, &job), "trihop_init");
    state.rank = trihop_rank(job);
    state.size = trihop_size(job);
    make_graph(&state.graph, vertices);
    expected = expected_labels(&state.graph);
    state.labels = allocate(vertices, sizeof *state.labels);
    for (uint32_t vertex = 0; vertex < vertices; vertex++)
        state.labels[vertex] = vertex;
    check(trihop_stream_open(job, "labels", sizeof(struct news), NULL, on_news, &state,
                            &stream),
          "trihop_stream_open");

    for (uint32_t vertex = state.rank; vertex < vertices; vertex += state.size)
        state.sent_at_first += tell_neighbours(&state, stream, vertex, vertex);
    check(trihop_stream_fence(stream), "trihop_stream_fence");

    totals[0] = state.sent_at_first + state.told;
    totals[1] = state.heard;
    totals[2] = state.wrong;
    for (uint32_t vertex = state.rank; vertex < vertices; vertex += state.size)
        totals[2] += state.labels[vertex] != expected[vertex];
    check(trihop_allreduce(job, TRIHOP_SUM, totals, 3), "trihop_allreduce");
    if (state.rank == 0)
        printf("%" PRIu32 " vertices on %" PRIu32 " ranks of %" PRIu32 " nodes: %" PRIu64
               " labels sent, %" PRIu64 " heard, %" PRIu64 " wrong\n",
               vertices, state.size, trihop_nodes(job), totals[0], totals[1], totals[2]);

    check(trihop_stream_close(stream), "trihop_stream_close");
    check(trihop_finalize(job), "trihop_finalize");
    free(expected);
    free(state.labels);
    free(state.graph.neighbours);
    free(state.graph.begins);
    return totals[0] == totals[1] && totals[2] == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/*
 * A search by breadth through a graph: how many edges away is each vertex?
 *
 * EDGES is a file with an edge a line, two numbers, as collections of graphs have them (SNAP,
 * Konect, networkrepository); lines that begin with # or % say something else. Edges go both ways.
 * FIRST is the vertex to begin at, otherwise the smallest. No rank has the whole graph before the
 * end, when every rank compares its vertices with a sequential run.
 *
 *   cc bfs.c $(pkg-config --cflags --libs trihop) -o bfs
 *   trihop run -n 4 --nodes 2 -- ./bfs [EDGES [FIRST]]
 */
#include <inttypes.h>

#include "text.h"

#define UNKNOWN UINT32_MAX

struct edge {
    uint32_t from, to;
};

struct edges {
    struct edge *all;
    size_t count, room;
};

/* Vertices v with v % of == first: vertex v is in place v / of of each array. */
struct graph {
    uint32_t first, of;
    size_t places;
    size_t *begins;       /* of each vertex in `neighbours`, and the end */
    uint32_t *neighbours; /* of all vertices, one after the other */
    uint32_t *distances;
    uint32_t *reached; /* vertices, in the order in which they are found */
    size_t known, told;
    uint32_t distance; /* what a vertex gets that is reached now */
};

static void append(struct edges *edges, struct edge edge)
{
    if (edges->count == edges->room) {
        edges->room = 2 * edges->room + 64;
        edges->all = resized(edges->all, edges->room, sizeof *edges->all);
    }
    edges->all[edges->count++] = edge;
}

/* The edges of some lines. */
static struct edges parsed(char *lines, size_t length)
{
    struct edges edges = {0};
    char *end = lines + length, *next;

    *end = '\0'; /* there is room for it */
    for (char *line = lines; line < end; line = next) {
        unsigned long long numbers[2] = {0};
        char *at = line;

        next = memchr(line, '\n', (size_t)(end - line));
        next = next != NULL ? next + 1 : end;
        if (*line == '#' || *line == '%' || strspn(line, " \t\r\n") >= (size_t)(next - line))
            continue;
        for (int number = 0; number < 2; number++) {
            char *behind;

            at += strspn(at, " \t,");
            errno = 0;
            numbers[number] = strtoull(at, &behind, 10);
            if (behind == at || *at == '-' || behind > next || numbers[number] >= UINT32_MAX)
                fail("an edge is two numbers below 2^32 - 1, not", (line[strcspn(line, "\n")] = '\0', line));
            at = behind;
        }
        append(&edges, (struct edge){(uint32_t)numbers[0], (uint32_t)numbers[1]});
    }
    return edges;
}

/* What the edges that begin at its own vertices make; the others are left out. */
static struct graph graph_of(const struct edges *edges, uint32_t first, uint32_t of, uint32_t largest)
{
    struct graph graph = {.first = first, .of = of, .places = (size_t)largest / of + 1};
    size_t *filled = resized(NULL, graph.places + 1, sizeof *filled);

    memset(filled, 0, (graph.places + 1) * sizeof *filled);
    for (size_t at = 0; at < edges->count; at++)
        if (edges->all[at].from % of == first)
            filled[edges->all[at].from / of + 1]++;
    for (size_t place = 0; place < graph.places; place++)
        filled[place + 1] += filled[place];
    graph.begins = resized(NULL, graph.places + 1, sizeof *graph.begins);
    memcpy(graph.begins, filled, (graph.places + 1) * sizeof *filled);
    graph.neighbours = resized(NULL, graph.begins[graph.places], sizeof *graph.neighbours);
    for (size_t at = 0; at < edges->count; at++)
        if (edges->all[at].from % of == first)
            graph.neighbours[filled[edges->all[at].from / of]++] = edges->all[at].to;
    free(filled);
    graph.distances = resized(NULL, graph.places, sizeof *graph.distances);
    graph.reached = resized(NULL, graph.places, sizeof *graph.reached);
    memset(graph.distances, 0xff, graph.places * sizeof *graph.distances);
    return graph;
}

static void release(struct graph *graph)
{
    free(graph->begins), free(graph->neighbours), free(graph->distances), free(graph->reached);
}

static size_t degree(const struct graph *graph, size_t place)
{
    return graph->begins[place + 1] - graph->begins[place];
}

static void reach(struct graph *graph, uint32_t vertex)
{
    size_t place = vertex / graph->of;

    if (place < graph->places && degree(graph, place) > 0 && graph->distances[place] == UNKNOWN) {
        graph->distances[place] = graph->distance;
        graph->reached[graph->known++] = vertex;
    }
}

/* The sequential run. */
static void search_alone(struct graph *graph, uint32_t first)
{
    reach(graph, first);
    while (graph->told < graph->known) {
        size_t place = graph->reached[graph->told++] / graph->of;

        graph->distance = graph->distances[place] + 1;
        for (size_t at = graph->begins[place]; at < graph->begins[place + 1]; at++)
            reach(graph, graph->neighbours[at]);
    }
}

static void on_edges(void *context, const trihop_message_t *items)
{
    const struct edge *edges = items->bytes;

    for (size_t at = 0; at < items->count; at++)
        append(context, edges[at]);
}

static void on_vertices(void *context, const trihop_message_t *items)
{
    const uint32_t *vertices = items->bytes;

    for (size_t at = 0; at < items->count; at++)
        reach(context, vertices[at]);
}

/* All vertices that one step more leads to, step by step; returns how many steps there were. */
static uint32_t search(struct graph *graph, const trihop_stream_t *stream)
{
    uint32_t steps = 0;

    for (;; steps++) {
        /* What others send in the next step may arrive as soon as this rank calls: so the graph is
         * ready for it before. */
        size_t end = graph->known;
        uint64_t all = end - graph->told;

        graph->distance++;
        check(trihop_allreduce(job, TRIHOP_SUM, &all, 1), "trihop_allreduce");
        if (all == 0)
            return steps;
        for (; graph->told < end; graph->told++) {
            size_t place = graph->reached[graph->told] / graph->of;

            for (size_t at = graph->begins[place]; at < graph->begins[place + 1]; at++)
                check(trihop_stream_push(stream, graph->neighbours[at] % graph->of, &graph->neighbours[at]),
                      "trihop_stream_push");
        }
        check(trihop_stream_round(stream), "trihop_stream_round");
    }
}

static uint32_t made_vertex(uint64_t *state)
{
    uint32_t vertex = 0;

    for (int bit = 0; bit < 12; bit++)
        vertex = 2 * vertex + (next_random(state) % 10 > 6);
    return vertex;
}

/* A graph in which few vertices have many edges, and some have none of the others. */
static void make(FILE *file)
{
    uint64_t state = 1;

    fputs("# made\n", file);
    for (int edge = 0; edge < 20000; edge++) {
        uint32_t from = made_vertex(&state);

        fprintf(file, "%" PRIu32 "\t%" PRIu32 "\n", from, made_vertex(&state));
    }
}

/* Both ways. */
static struct edges doubled(const struct edges *edges)
{
    struct edges both = {0};

    for (size_t at = 0; at < edges->count; at++) {
        append(&both, edges->all[at]);
        append(&both, (struct edge){edges->all[at].to, edges->all[at].from});
    }
    return both;
}

int main(int argc, char **argv)
{
    struct text text = text_named_or(argc > 1 ? argv[1] : NULL, "a made graph", make);
    struct edges read, both, arrived = {0};
    struct graph graph, alone;
    trihop_stream_t *edges, *vertices;
    uint64_t smallest = UINT64_MAX, largest = 0, totals[4] = {0}; /* vertices, ends of edges, found, wrong */
    uint32_t rank, size, first, steps;
    size_t length;
    char *lines;

    check(trihop_init(TRIHOP_INLINE, NULL, &job), "trihop_init");
    rank = trihop_rank(job);
    size = trihop_size(job);
    check(trihop_stream_open(job, "edges", sizeof(struct edge), NULL, on_edges, &arrived, &edges),
          "trihop_stream_open");
    lines = text_part(&text, rank, size, &length);
    read = parsed(lines, length);
    both = doubled(&read);
    for (size_t at = 0; at < both.count; at++) {
        const struct edge *edge = &both.all[at];

        smallest = edge->from < smallest ? edge->from : smallest;
        largest = edge->from > largest ? edge->from : largest;
        check(trihop_stream_push(edges, edge->from % size, edge), "trihop_stream_push");
    }
    check(trihop_stream_round(edges), "trihop_stream_round");
    free(lines), free(read.all), free(both.all);
    check(trihop_allreduce(job, TRIHOP_MIN, &smallest, 1), "trihop_allreduce");
    check(trihop_allreduce(job, TRIHOP_MAX, &largest, 1), "trihop_allreduce");
    first = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : (uint32_t)smallest;

    graph = graph_of(&arrived, rank, size, (uint32_t)largest);
    check(trihop_stream_open(job, "search", sizeof(uint32_t), NULL, on_vertices, &graph, &vertices),
          "trihop_stream_open");
    if (first % size == rank)
        reach(&graph, first);
    steps = search(&graph, vertices);

    lines = text_part(&text, 0, 1, &length);
    read = parsed(lines, length);
    both = doubled(&read);
    alone = graph_of(&both, 0, 1, (uint32_t)largest);
    search_alone(&alone, first);
    for (size_t vertex = rank; vertex < alone.places; vertex += size) {
        size_t place = vertex / size;

        totals[0] += degree(&graph, place) > 0;
        totals[1] += degree(&graph, place);
        totals[2] += graph.distances[place] != UNKNOWN;
        totals[3] += graph.distances[place] != alone.distances[vertex] ||
                     degree(&graph, place) != degree(&alone, vertex);
    }
    check(trihop_allreduce(job, TRIHOP_SUM, totals, 4), "trihop_allreduce");
    if (rank == 0)
        printf("%s: %" PRIu32 " ranks: %" PRIu64 " vertices, %" PRIu64 " edges; from %" PRIu32 " %" PRIu64
               " are reached in %" PRIu32 " steps, %" PRIu64 " wrong\n",
               text.name, size, totals[0], totals[1] / 2, first, totals[2], steps, totals[3]);
    check(trihop_stream_close(edges), "trihop_stream_close");
    check(trihop_stream_close(vertices), "trihop_stream_close");
    check(trihop_finalize(job), "trihop_finalize");
    free(lines), free(read.all), free(both.all), free(arrived.all);
    release(&graph);
    release(&alone);
    fclose(text.file);
    return totals[3] == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

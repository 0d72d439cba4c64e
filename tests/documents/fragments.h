/* What the fragments of docs/C.md speak of and do not declare. tests/documents.rs defines the names that follow IN_. */
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#ifdef __cplusplus
#include <functional>
#include <map>
#include <string>
#include <trihop.hpp>
#include <trihop/coded.hpp>
#include <vector>

struct Cell {
    double heat;
};

extern void *bytes;
extern std::size_t length;
void consume(const void *bytes, std::size_t length);
void compute();
#ifdef IN_CELLS
extern trihop::Job job;
#endif
#else
#ifdef IN_MPI
#include <mpi.h>
extern MPI_Comm communicator;
#endif
#include <trihop.h>

extern trihop_job_t *job;
extern trihop_miniranks_t *miniranks;
extern trihop_stream_t *stream;
extern trihop_conveyor_t *conveyor;
extern trihop_replies_t *replies;
extern trihop_merging_t *merging;
extern trihop_array_t *cells;
extern trihop_channels_t *channels;
extern trihop_guests_t *guests;
extern trihop_guest_t *guest;
extern trihop_channel_t *tasks, *lock, *gate;
extern trihop_asked_t *started;
extern trihop_received_t task;
extern trihop_filled_t filled;
extern trihop_handler_t taker;
extern trihop_status_t status;
extern trihop_step_options_t options;
extern int is_over, step, steps, event;
extern struct pollfd polled;
extern size_t objects_here, asked, length;
extern uint32_t rank, size, node, source, kind, i;
extern uint32_t target[], index[];
extern uint64_t item[], value[];
extern uint64_t held, mine, place, before;
extern double heat;
extern char text[65];
extern void *bytes, *context, *table;

#ifdef IN_RUNS
void count(void *context, uint32_t source, uint32_t kind, const void *bytes, size_t length);
#else
extern size_t count;
#endif
#ifdef IN_REPLIES
extern size_t pulled;
extern uint32_t owner[];
#else
extern const void *pulled;
extern uint32_t owner;
#endif

struct hits {
    uint64_t place, times;
};

void begin(void *context, const trihop_stream_t *stream);
void compute(int what);
uint32_t owner_of(uint32_t update);
uint64_t update(uint32_t number);
extern uint32_t updates;
void contribute(void *context, const trihop_stream_t *stream);
void send_what_it_has(const trihop_stream_t *stream, size_t object);
void use(const void *item, uint32_t source);
void work(const void *bytes, size_t length);
extern int something;
#endif

/* What push.rs asks of push.c. */

#ifndef BENCH_PUSH_H
#define BENCH_PUSH_H

#include "trihop.h"

/* A rank's table, and updates that came for entries outside of it. */
struct bench_table {
  uint64_t *entries;
  uint64_t length;
  uint64_t outside;
};

/* Adds the updates that have come; a handler, with the table as its context. */
void bench_on_items(void *context, const trihop_message_t *items);

/* Sends all updates, and waits until those of all ranks have been added. */
trihop_status_t bench_push(const trihop_stream_t *stream, const uint64_t *indices, size_t count, uint64_t ranks);

/* The same with a conveyor. */
trihop_status_t bench_push_and_pull(trihop_conveyor_t *conveyor, const uint64_t *indices, size_t count,
                                    uint64_t ranks, struct bench_table *table);

#endif

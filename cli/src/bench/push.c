/* The histogram as a program in C writes it: each update is one call that sends it, and one by which it is added. */

#include "push.h"

/* The owner of an update; its place there goes to `local`. By 32 bits where those are enough, as rustc makes it of the
 * same division: some processors need four times as long for 64. */
static uint32_t owner_of(uint64_t index, uint64_t ranks, uint64_t *local) {
  if (((index | ranks) >> 32) == 0) {
    *local = (uint32_t)index / (uint32_t)ranks;
    return (uint32_t)index % (uint32_t)ranks;
  }
  *local = index / ranks;
  return (uint32_t)(index % ranks);
}

/* Gets the table by value, so that loops of updates have its place and length in registers: an entry could be either for
 * all that a compiler knows, and processors too take a load for one of an entry that was stored shortly before where the
 * low bits of the addresses agree, and wait for it. */
static uint64_t update(const struct bench_table table, uint64_t local) {
  if (local >= table.length)
    return 1;
  table.entries[local]++;
  return 0;
}

void bench_on_items(void *context, const trihop_message_t *items) {
  struct bench_table *table = context;
  const struct bench_table here = *table;
  const uint64_t *locals = items->bytes;
  const size_t count = items->count;
  uint64_t outside = 0;
  size_t at;

  for (at = 0; at < count; at++)
    outside += update(here, locals[at]);
  table->outside += outside;
}

trihop_status_t bench_push(const trihop_stream_t *stream, const uint64_t *indices, size_t count, uint64_t ranks) {
  size_t at;

  for (at = 0; at < count; at++) {
    uint64_t local;
    uint32_t owner = owner_of(indices[at], ranks, &local);
    trihop_status_t status = trihop_stream_push(stream, owner, &local);

    if (status != TRIHOP_OK)
      return status;
  }
  return trihop_stream_fence(stream);
}

trihop_status_t bench_push_and_pull(trihop_conveyor_t *conveyor, const uint64_t *indices, size_t count,
                                    uint64_t ranks, struct bench_table *table) {
  const struct bench_table here = *table;
  trihop_status_t status;
  uint64_t outside = 0;
  size_t next = 0;
  int goes_on = 1;

  while ((status = trihop_conveyor_advance(conveyor, next == count, &goes_on)) == TRIHOP_OK && goes_on) {
    const void *item;

    for (; next < count; next++) {
      uint64_t local;
      uint32_t owner = owner_of(indices[next], ranks, &local);

      status = trihop_conveyor_push(conveyor, owner, &local);
      if (status == TRIHOP_ERR_WOULD_BLOCK)
        break;
      if (status != TRIHOP_OK)
        return status;
    }
    while ((status = trihop_conveyor_pull(conveyor, &item, NULL)) == TRIHOP_OK)
      outside += update(here, *(const uint64_t *)item);
    if (status != TRIHOP_ERR_WOULD_BLOCK)
      return status;
  }
  table->outside += outside;
  return status == TRIHOP_OK ? trihop_conveyor_reset(conveyor) : status;
}

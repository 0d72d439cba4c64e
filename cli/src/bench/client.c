/* All-to-all as a client of the DeltaFS shuffle writes it: messages to other ranks, then a flush of
 * each hop. */

#include "client.h"

#include <string.h>

#include <mercury.h>
#include <mercury-progressor/mercury-progressor.h>

/* The callback's, until the last flush. */
static struct bench_taken taken;
static uint32_t bytes_now;

static void deliver(int source, int target, uint32_t type, void *data, uint32_t length) {
  uint64_t number = 0;

  (void)source;
  (void)target;
  (void)type;
  if (length >= sizeof number)
    memcpy(&number, data, sizeof number);
  taken.messages++;
  taken.sum += number;
  taken.wrong += length != bytes_now;
}

nexus_ctx_t bench_client_join(void) {
  hg_class_t *hg_class = HG_Init("ofi+tcp", HG_TRUE);
  hg_context_t *context = HG_Context_create(hg_class);
  progressor_handle_t *progressor = mercury_progressor_init(hg_class, context);
  nexus_ctx_t nexus = nexus_bootstrap(progressor, NULL);

  /* The nexus has references of its own. */
  if (progressor != NULL) {
    mercury_progressor_freehandle(progressor);
    HG_Context_destroy(context);
    HG_Finalize(hg_class);
  }
  return nexus;
}

shuffle_t bench_client_open(nexus_ctx_t nexus, char *name) {
  struct shuffle_opts options;

  shuffle_opts_init(&options);
  return shuffle_init(nexus, name, deliver, &options);
}

const char *bench_client_send(shuffle_t shuffle, const uint32_t *targets, size_t count,
                              unsigned char *message, uint32_t bytes, bench_barrier_t barrier,
                              void *context, int *status) {
  uint64_t at;

  for (at = 0; at < count; at++) {
    memcpy(message, &at, sizeof at);
    *status = shuffle_enqueue(shuffle, (int)targets[at], 0, message, bytes);
    if (*status != HG_SUCCESS)
      return "shuffle_enqueue";
  }
  *status = shuffle_flush_originqs(shuffle);
  if (*status != HG_SUCCESS)
    return "shuffle_flush_originqs";
  *status = barrier(context);
  if (*status != 0)
    return "the barrier behind shuffle_flush_originqs";
  *status = shuffle_flush_remoteqs(shuffle);
  if (*status != HG_SUCCESS)
    return "shuffle_flush_remoteqs";
  *status = barrier(context);
  if (*status != 0)
    return "the barrier behind shuffle_flush_remoteqs";
  *status = shuffle_flush_relayqs(shuffle);
  if (*status != HG_SUCCESS)
    return "shuffle_flush_relayqs";
  *status = barrier(context);
  if (*status != 0)
    return "the barrier behind shuffle_flush_relayqs";
  *status = shuffle_flush_delivery(shuffle);
  return *status == HG_SUCCESS ? NULL : "shuffle_flush_delivery";
}

void bench_client_clear(uint32_t bytes) {
  memset(&taken, 0, sizeof taken);
  bytes_now = bytes;
}

struct bench_taken bench_client_taken(void) { return taken; }

/* What deltafs.rs asks of client.c. */

#ifndef BENCH_CLIENT_H
#define BENCH_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#include <deltafs-nexus/deltafs-nexus_api.h>
#include <deltafs-shuffle/shuffle_api.h>

/* What the callback has taken in. */
struct bench_taken {
  uint64_t messages;
  /* Of the numbers that the messages begin with. */
  uint64_t sum;
  /* Messages of another length than they should have. */
  uint64_t wrong;
};

/* Returns 0 once all ranks have come to it. */
typedef int (*bench_barrier_t)(void *context);

/* Joins the job that the environment names; NULL, with the reason on stderr, if that fails. */
nexus_ctx_t bench_client_join(void);

/* Opens a shuffle with the options of shuffle_opts_init(); NULL, with the reason on stderr, if that
 * fails. */
shuffle_t bench_client_open(nexus_ctx_t nexus, char *name);

/* Sends a message of so many bytes, at least 8, to each target, and flushes hop by hop with
 * barriers in between. The message gets a number at its beginning, from 0. Returns the name of a
 * call that failed, with what it returned in status, or NULL. */
const char *bench_client_send(shuffle_t shuffle, const uint32_t *targets, size_t count,
                              unsigned char *message, uint32_t bytes, bench_barrier_t barrier,
                              void *context, int *status);

/* The callback has taken in nothing, of messages of so many bytes; while nothing is under way. */
void bench_client_clear(uint32_t bytes);

/* After the last flush. */
struct bench_taken bench_client_taken(void);

#endif

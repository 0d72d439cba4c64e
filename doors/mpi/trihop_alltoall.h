/*
 * What libtrihop-alltoall tells of itself. A program needs none of this to run over it.
 */
#ifndef TRIHOP_ALLTOALL_H
#define TRIHOP_ALLTOALL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What this process has done since it started. Later versions add fields at the end. */
typedef struct trihop_alltoall_counts_t {
    uint64_t calls;        /* collective calls that went over trihop */
    uint64_t passed;       /* calls of the same functions that MPI was left with as a whole */
    uint64_t blocks;       /* blocks that this process has sent over trihop */
    uint64_t bytes;        /* their bytes */
    uint64_t packed;       /* of these blocks, those that PMPI_Pack has gathered */
    uint64_t long_blocks;  /* blocks above the limit, which PMPI_Isend has sent */
    uint64_t early_bytes;  /* bytes that came for a call before this process was in it, and were kept */
} trihop_alltoall_counts_t;

/* Fills `counts`; `size` is `sizeof(trihop_alltoall_counts_t)` as the caller knows it. */
void trihop_alltoall_counts(trihop_alltoall_counts_t *counts, size_t size);

#ifdef __cplusplus
}
#endif

#endif

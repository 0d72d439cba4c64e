/*
 * mercury_config.h: what mercury says of how it was built, for clients of the DeltaFS shuffle that
 * include it.
 *
 * The version is that of the interface that these headers follow.
 */
#ifndef TRIHOP_DELTAFS_MERCURY_CONFIG_H
#define TRIHOP_DELTAFS_MERCURY_CONFIG_H

#include <trihop-deltafs/real_mercury.h>

#if defined(TRIHOP_DELTAFS_BESIDE_MERCURY)

#if !defined(MERCURY_CONFIG_H) && __has_include_next(<mercury_config.h>)
#include_next <mercury_config.h>
#endif

#else

#include <stddef.h>
#include <stdint.h>

/* The interface that these headers follow. */
#define HG_VERSION_MAJOR 2
#define HG_VERSION_MINOR 4
#define HG_VERSION_PATCH 1

typedef int8_t hg_int8_t;
typedef uint8_t hg_uint8_t;
typedef int16_t hg_int16_t;
typedef uint16_t hg_uint16_t;
typedef int32_t hg_int32_t;
typedef uint32_t hg_uint32_t;
typedef int64_t hg_int64_t;
typedef uint64_t hg_uint64_t;
typedef uint64_t hg_ptr_t;
typedef uint8_t hg_bool_t;

#define HG_TRUE 1
#define HG_FALSE 0

/* How mercury's headers mark functions. */
#define HG_INLINE __inline__
#define HG_PUBLIC
#define HG_PRIVATE
#define HG_FALLTHROUGH __attribute__((fallthrough))

#endif

#endif /* TRIHOP_DELTAFS_MERCURY_CONFIG_H */

/*
 * mercury_types.h: the types of mercury that clients of the DeltaFS shuffle touch, over trihop.
 *
 * Names and values are those of mercury 2.4, so that a client compiles unchanged and may compare and print
 * what it is given. Nothing here is ABI compatible with a mercury library: objects made by one are no objects of the other.
 */
#ifndef TRIHOP_DELTAFS_MERCURY_TYPES_H
#define TRIHOP_DELTAFS_MERCURY_TYPES_H

#include <trihop-deltafs/real_mercury.h>

#if defined(TRIHOP_DELTAFS_BESIDE_MERCURY)

#if !defined(MERCURY_TYPES_H) && __has_include_next(<mercury_types.h>)
#include_next <mercury_types.h>
#endif

#else

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <mercury_config.h>

typedef uint64_t hg_size_t;

#define HG_SIZE_MAX UINT64_MAX

/* An instance of mercury: here what it was called with. */
typedef struct hg_class hg_class_t;
/* An execution context of a class. */
typedef struct hg_context hg_context_t;
/* An address: of this process, or of a rank that nexus knows. Compare with HG_Addr_cmp, print with HG_Addr_to_string. */
typedef struct hg_addr *hg_addr_t;

#define HG_ADDR_NULL ((hg_addr_t) 0)

/*
 * Names of what trihop does not have: remote procedure calls and bulk transfers. A client may
 * declare variables, members and functions with them, and compare them with their null values;
 * there is nothing that makes such an object.
 */
typedef uint64_t hg_id_t;
typedef struct hg_handle *hg_handle_t;
typedef struct hg_bulk *hg_bulk_t;
typedef struct hg_proc *hg_proc_t;
typedef struct hg_op_id *hg_op_id_t;
struct hg_info;
struct hg_cb_info;

#define HG_HANDLE_NULL ((hg_handle_t) 0)
#define HG_BULK_NULL ((hg_bulk_t) 0)
#define HG_PROC_NULL ((hg_proc_t) 0)
#define HG_OP_ID_NULL ((hg_op_id_t) 0)
#define HG_OP_ID_IGNORE ((hg_op_id_t *) 1)

/* The longest time that a call of mercury's waits, in milliseconds. */
#define HG_MAX_IDLE_TIME (3600 * 1000)

typedef enum { HG_BULK_PUSH, HG_BULK_PULL } hg_bulk_op_t;
typedef enum hg_cb_type { HG_CB_LOOKUP, HG_CB_FORWARD, HG_CB_RESPOND, HG_CB_BULK } hg_cb_type_t;
typedef enum { HG_ENCODE, HG_DECODE, HG_FREE } hg_proc_op_t;

/* What calls return. Values as in mercury 2.4. */
typedef enum hg_return {
    HG_SUCCESS = 0,
    HG_PERMISSION = 1,
    HG_NOENTRY = 2,
    HG_INTERRUPT = 3,
    HG_AGAIN = 4,
    HG_NOMEM = 5,
    HG_ACCESS = 6,
    HG_FAULT = 7,
    HG_BUSY = 8,
    HG_EXIST = 9,
    HG_NODEV = 10,
    HG_INVALID_ARG = 11,
    HG_PROTOCOL_ERROR = 12,
    HG_OVERFLOW = 13,
    HG_MSGSIZE = 14,
    HG_PROTONOSUPPORT = 15,
    HG_OPNOTSUPPORTED = 16,
    HG_ADDRINUSE = 17,
    HG_ADDRNOTAVAIL = 18,
    HG_HOSTUNREACH = 19,
    HG_TIMEOUT = 20,
    HG_CANCELED = 21,
    HG_IO_ERROR = 22,
    HG_CHECKSUM_ERROR = 23,
    HG_NA_ERROR = 24,
    HG_OTHER_ERROR = 25,
    HG_RETURN_MAX
} hg_return_t;

/* Functions that a client gives to mercury. */
typedef hg_return_t (*hg_cb_t)(const struct hg_cb_info *callback_info);
typedef hg_return_t (*hg_rpc_cb_t)(hg_handle_t handle);
typedef hg_return_t (*hg_proc_cb_t)(hg_proc_t proc, void *data);

/* Older spellings. */
#define HG_INVALID_PARAM HG_INVALID_ARG
#define HG_SIZE_ERROR HG_MSGSIZE
#define HG_NOMEM_ERROR HG_NOMEM
#define HG_NO_MATCH HG_NOENTRY

/* Flags of na_init_info.progress_mode. */
#define NA_DEFAULT 0x00
#define NA_NO_BLOCK 0x01
#define NA_NO_RETRY 0x02

/* Flags of na_init_info.thread_mode. */
#define NA_THREAD_MODE_SINGLE_CLS 0x01
#define NA_THREAD_MODE_SINGLE_CTX 0x02
#define NA_THREAD_MODE_SINGLE (NA_THREAD_MODE_SINGLE_CLS | NA_THREAD_MODE_SINGLE_CTX)

enum na_traffic_class {
    NA_TC_UNSPEC,
    NA_TC_BEST_EFFORT,
    NA_TC_LOW_LATENCY,
    NA_TC_BULK_DATA,
    NA_TC_DEDICATED_ACCESS,
    NA_TC_SCAVENGER,
    NA_TC_NETWORK_CTRL
};

enum na_addr_format { NA_ADDR_UNSPEC, NA_ADDR_IPV4, NA_ADDR_IPV6, NA_ADDR_NATIVE };

/*
 * Hints for a mercury transport. They are accepted and have no effect: trihop's transport is chosen by TRIHOP_PROVIDER and
 * TRIHOP_INTERFACE, its progress thread sleeps when there is nothing to do, and its buffers follow from shuffle_opts.
 */
struct na_init_info {
    const char *ip_subnet;
    const char *auth_key;
    size_t max_unexpected_size;
    size_t max_expected_size;
    uint8_t progress_mode;
    enum na_addr_format addr_format;
    uint8_t max_contexts;
    uint8_t thread_mode;
    bool request_mem_device;
    enum na_traffic_class traffic_class;
};

#define NA_INIT_INFO_INITIALIZER                                                                                       \
    { NULL, NULL, 0, 0, NA_DEFAULT, NA_ADDR_UNSPEC, 1, 0, false, NA_TC_UNSPEC }

typedef struct na_class na_class_t;

/* What of a remote procedure call is checked by a sum. */
typedef enum hg_checksum_level { HG_CHECKSUM_NONE, HG_CHECKSUM_RPC_HEADERS, HG_CHECKSUM_RPC_PAYLOAD } hg_checksum_level_t;

/* Hints for a mercury class: as na_init_info, without effect. */
struct hg_init_info {
    struct na_init_info na_init_info;
    na_class_t *na_class;
    uint32_t request_post_init;
    int32_t request_post_incr;
    hg_bool_t auto_sm;
    const char *sm_info_string;
    hg_checksum_level_t checksum_level;
    hg_bool_t no_bulk_eager;
    hg_bool_t no_loopback;
    hg_bool_t stats;
    hg_bool_t no_multi_recv;
    hg_bool_t release_input_early;
    enum na_traffic_class traffic_class;
    bool no_overflow;
    unsigned int multi_recv_op_max;
    unsigned int multi_recv_copy_threshold;
};

#define HG_INIT_INFO_INITIALIZER                                                                                       \
    {                                                                                                                  \
        NA_INIT_INFO_INITIALIZER, NULL, 0, 0, HG_FALSE, NULL, HG_CHECKSUM_NONE, HG_FALSE, HG_FALSE, HG_FALSE,          \
            HG_FALSE, HG_FALSE, NA_TC_UNSPEC, false, 0, 0                                                              \
    }

#endif

#endif /* TRIHOP_DELTAFS_MERCURY_TYPES_H */

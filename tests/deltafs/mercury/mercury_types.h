/*
 * A stand-in for a real mercury, of our own: the names that a program meets, and remote procedure
 * calls inside of one process. Its objects have nothing in common with those of trihop: a program
 * that takes one for the other is found out.
 */
#ifndef MERCURY_TYPES_H
#define MERCURY_TYPES_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t hg_size_t;
typedef uint64_t hg_id_t;
typedef uint8_t hg_bool_t;

#define HG_TRUE 1
#define HG_FALSE 0

typedef struct hg_class hg_class_t;
typedef struct hg_context hg_context_t;
typedef struct hg_addr *hg_addr_t;
typedef struct hg_handle *hg_handle_t;

#define HG_ADDR_NULL ((hg_addr_t) 0)

typedef enum hg_return {
    HG_SUCCESS,
    HG_PERMISSION,
    HG_NOENTRY,
    HG_INTERRUPT,
    HG_AGAIN,
    HG_NOMEM,
    HG_ACCESS,
    HG_FAULT,
    HG_BUSY,
    HG_EXIST,
    HG_NODEV,
    HG_INVALID_ARG,
    HG_RETURN_MAX
} hg_return_t;

struct hg_cb_info {
    void *arg;
    hg_return_t ret;
};

typedef hg_return_t (*hg_cb_t)(const struct hg_cb_info *callback_info);
typedef hg_return_t (*hg_rpc_cb_t)(hg_handle_t handle);

#endif /* MERCURY_TYPES_H */

/*
 * The headers' types are those of the original, where a client could tell: sizes, offsets, values, prototypes. Each
 * header compiles alone, in C and in C++.
 */
#include <deltafs-shuffle/shuffle_api.h>

#include <deltafs-nexus/deltafs-nexus_api.h>
#include <mercury-progressor/mercury-progressor.h>
#include <mercury.h>
#include <mercury_macros.h>
#include <mercury_types.h>

#ifndef __cplusplus
#define static_assert _Static_assert
#endif

#define AT(FIELD, OFFSET) static_assert(offsetof(struct shuffle_opts, FIELD) == (OFFSET), #FIELD)
AT(localsenderlimit, 0);
AT(remotesenderlimit, 4);
AT(lomaxrpc, 8);
AT(lobuftarget, 12);
AT(lrmaxrpc, 16);
AT(lrbuftarget, 20);
AT(rmaxrpc, 24);
AT(rbuftarget, 28);
AT(deliverq_max, 32);
AT(deliverq_threshold, 36);
static_assert(sizeof(struct shuffle_opts) == 40, "ten ints");

static_assert(SHUFFLE_RTYPE_BCAST == UINT32_C(0x80000000), "bit 31");
static_assert(SHUFFLE_RTYPE_BCAST > 0, "no signed overflow");
static_assert(SHUFFLE_RTYPE_USRBITS == 0x7fffffff, "all other bits");
static_assert((SHUFFLE_RTYPE_BCAST | SHUFFLE_RTYPE_USRBITS) == UINT32_MAX, "all bits");
static_assert(SHUFFLE_BCAST_SELF == 1, "flag");
static_assert(SHUFFLE_REMOTE_QUEUES == 0 && SHUFFLE_ORIGIN_QUEUES == 1 && SHUFFLE_RELAY_QUEUES == 2, "queues");

static_assert(NX_SUCCESS == 0 && NX_ERROR == 1 && NX_NOTFOUND == 2 && NX_ISLOCAL == 3, "nexus_ret_t");
static_assert(NX_SRCREP == 4 && NX_DESTREP == 5 && NX_INVAL == 6 && NX_DONE == 7, "nexus_ret_t");

static_assert(HG_SUCCESS == 0 && HG_NOMEM == 5 && HG_INVALID_ARG == 11 && HG_PROTOCOL_ERROR == 12, "hg_return_t");
static_assert(sizeof(hg_return_t) == 4, "an int");
static_assert(sizeof(hg_uint64_t) == 8 && sizeof(hg_size_t) == 8, "counters have 64 bits");
static_assert(sizeof(hg_bool_t) == 1, "a byte");

/* The order of the hints, which positional initialisers follow. */
#define BEFORE(STRUCT, FIRST, SECOND) static_assert(offsetof(struct STRUCT, FIRST) < offsetof(struct STRUCT, SECOND), #SECOND)
BEFORE(na_init_info, request_mem_device, traffic_class);
BEFORE(hg_init_info, request_post_incr, auto_sm);
BEFORE(hg_init_info, auto_sm, sm_info_string);
BEFORE(hg_init_info, sm_info_string, checksum_level);
BEFORE(hg_init_info, checksum_level, no_bulk_eager);
BEFORE(hg_init_info, no_bulk_eager, no_loopback);
BEFORE(hg_init_info, no_loopback, stats);
BEFORE(hg_init_info, stats, no_multi_recv);
BEFORE(hg_init_info, no_multi_recv, release_input_early);
BEFORE(hg_init_info, release_input_early, traffic_class);
BEFORE(hg_init_info, traffic_class, no_overflow);
BEFORE(hg_init_info, no_overflow, multi_recv_op_max);
BEFORE(hg_init_info, multi_recv_op_max, multi_recv_copy_threshold);
static_assert(HG_CHECKSUM_NONE == 0 && HG_CHECKSUM_RPC_HEADERS == 1 && HG_CHECKSUM_RPC_PAYLOAD == 2, "levels");
static_assert(NA_TC_UNSPEC == 0 && NA_TC_BULK_DATA == 3 && NA_TC_NETWORK_CTRL == 6, "traffic classes");

static_assert(offsetof(struct progressor_stats, needed) == sizeof(int), "progressor_stats");
static_assert(offsetof(struct progressor_stats, progressor_refcnt) == 2 * sizeof(int), "progressor_stats");
static_assert(offsetof(struct progressor_stats, runtime) == 16, "aligned");
static_assert(offsetof(struct progressor_stats, runusage) == 16 + sizeof(struct timeval), "progressor_stats");
static_assert(offsetof(struct progressor_stats, nprogress) == 16 + sizeof(struct timeval) + sizeof(struct rusage),
              "progressor_stats");
static_assert(offsetof(struct progressor_stats, ntrigger) == offsetof(struct progressor_stats, nprogress) + 8,
              "progressor_stats");
static_assert(sizeof(((struct progressor_stats *) 0)->nprogress) == 8, "counters have 64 bits");

/* The prototypes: a pointer of the original's type takes each function. */
#ifdef __cplusplus
extern "C" {
#endif
void (*const opts_init)(struct shuffle_opts *) = shuffle_opts_init;
shuffle_t (*const init)(nexus_ctx_t, char *, shuffle_deliverfn_t, struct shuffle_opts *) = shuffle_init;
hg_return_t (*const enqueue)(shuffle_t, int, uint32_t, void *, uint32_t) = shuffle_enqueue;
hg_return_t (*const enqueue_broadcast)(shuffle_t, uint32_t, void *, uint32_t, int) = shuffle_enqueue_broadcast;
hg_return_t (*const flush_delivery)(shuffle_t) = shuffle_flush_delivery;
hg_return_t (*const flush_qs)(shuffle_t, int) = shuffle_flush_qs;
hg_return_t (*const shut_down)(shuffle_t) = shuffle_shutdown;
int (*const cfglog)(int, const char *, const char *, const char *, const char *, const char *, int, int, int,
                    int) = shuffle_cfglog;
hg_return_t (*const send_stats)(shuffle_t, hg_uint64_t *, hg_uint64_t *, hg_uint64_t *) = shuffle_send_stats;
hg_return_t (*const recv_stats)(shuffle_t, hg_uint64_t *, hg_uint64_t *) = shuffle_recv_stats;
void (*const statedump)(shuffle_t, int) = shuffle_statedump;

nexus_ctx_t (*const bootstrap)(progressor_handle_t *, progressor_handle_t *) = nexus_bootstrap;
void (*const destroy)(nexus_ctx_t) = nexus_destroy;
nexus_ret_t (*const next_hop)(nexus_ctx_t, int, int *, hg_addr_t *) = nexus_next_hop;
nexus_ret_t (*const barriers[])(nexus_ctx_t) = {nexus_global_barrier, nexus_local_barrier};
int (*const numbers[])(nexus_ctx_t) = {nexus_global_rank, nexus_global_size, nexus_local_rank, nexus_local_size};
nexus_ret_t (*const set_grank)(nexus_ctx_t, int) = nexus_set_grank;
progressor_handle_t *(*const progressors[])(nexus_ctx_t) = {nexus_localprogressor, nexus_remoteprogressor};
void (*const dump)(nexus_ctx_t, char *) = nexus_dump;
nexus_iter_t (*const iterate)(nexus_ctx_t, int) = nexus_iter;
void (*const iter_free)(nexus_iter_t *) = nexus_iter_free;
void (*const iter_advance)(nexus_iter_t) = nexus_iter_advance;
hg_addr_t (*const iter_addr)(nexus_iter_t) = nexus_iter_addr;
int (*const iter_numbers[])(nexus_iter_t) = {nexus_iter_atend, nexus_iter_globalrank, nexus_iter_subrank};

progressor_handle_t *(*const progressor_init)(hg_class_t *, hg_context_t *) = mercury_progressor_init;
unsigned int (*const get_timeout)(progressor_handle_t *) = mercury_progressor_get_progtimeout;
void (*const set_timeout)(progressor_handle_t *, unsigned int) = mercury_progressor_set_progtimeout;
progressor_handle_t *(*const duplicate)(progressor_handle_t *) = mercury_progressor_duphandle;
hg_return_t (*const progressor_calls[])(progressor_handle_t *) = {
    mercury_progressor_freehandle, mercury_progressor_needed, mercury_progressor_idle};
hg_return_t (*const getstats)(progressor_handle_t *, struct progressor_stats *) = mercury_progressor_getstats;
uint64_t (*const counts[])(progressor_handle_t *) = {mercury_progressor_nprogress, mercury_progressor_ntrigger};
hg_class_t *(*const class_of)(progressor_handle_t *) = mercury_progressor_hgclass;
hg_context_t *(*const context_of)(progressor_handle_t *) = mercury_progressor_hgcontext;
char *(*const addrstring)(progressor_handle_t *) = mercury_progressor_addrstring;

hg_class_t *(*const hg_init)(const char *, hg_bool_t) = HG_Init;
hg_class_t *(*const hg_init_opt)(const char *, hg_bool_t, const struct hg_init_info *) = HG_Init_opt;
#ifdef __cplusplus
}
#endif

int main(void) {
    struct hg_init_info hints = HG_INIT_INFO_INITIALIZER;
    struct shuffle_opts options;
    hg_class_t *hg_class;
    int good;

    hints.na_init_info.progress_mode = NA_NO_BLOCK;
    hints.checksum_level = HG_CHECKSUM_RPC_HEADERS;
    hg_class = HG_Init_opt("ofi+tcp", HG_TRUE, &hints);
    good = HG_Class_is_listening(hg_class) == HG_TRUE && HG_Finalize(hg_class) == HG_SUCCESS;
    shuffle_opts_init(&options);
    /* Batches, and several of them under way. */
    good = good && options.lomaxrpc > 1 && options.lrmaxrpc > 1 && options.rmaxrpc > 1;
    good = good && options.lobuftarget > 1000 && options.lrbuftarget > 1000 && options.rbuftarget > 1000;
    good = good && options.deliverq_max == 65536 && options.deliverq_threshold == 0;
    good = good && options.localsenderlimit == 0 && options.remotesenderlimit == 0;
    return good ? 0 : 1;
}

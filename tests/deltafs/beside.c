/*
 * A program with a real mercury of its own, for remote procedure calls, and the shuffle beside it.
 * The real one is the stand-in of tests/deltafs/mercury. It is met in the three ways of
 * trihop-deltafs/real_mercury.h:
 *   -DREAL_FIRST        included by its own path, before the headers of trihop
 *   (a search path)     its folder comes first
 *   -DTRIHOP_DELTAFS_MERCURY=...
 */
#ifdef REAL_FIRST
#include "mercury/mercury.h"
#endif
#include <deltafs-shuffle/shuffle_api.h>

#include <deltafs-nexus/deltafs-nexus_api.h>
#include <mercury-progressor/mercury-progressor.h>
#include <mercury.h>
#include <mercury_config.h>
#include <mercury_macros.h>
#include <mercury_types.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(CONDITION) ((CONDITION) ? (void) 0 : fail(__LINE__, #CONDITION))

static void fail(int line, const char *what) {
    fprintf(stderr, "beside.c:%d: not so: %s\n", line, what);
    _exit(3);
}

static int called, answered;
static volatile int delivered;

static hg_return_t handler(hg_handle_t handle) {
    CHECK(handle != NULL);
    called++;
    return HG_SUCCESS;
}

static hg_return_t done(const struct hg_cb_info *info) {
    CHECK(info->ret == HG_SUCCESS && info->arg == &answered);
    answered++;
    return HG_SUCCESS;
}

static void deliver(int src, int dst, uint32_t type, void *d, uint32_t datalen) {
    (void) src, (void) dst, (void) type, (void) d, (void) datalen;
    __sync_fetch_and_add(&delivered, 1);
}

/* A remote procedure call of the real mercury. */
static void call(hg_context_t *context, hg_id_t id) {
    hg_handle_t handle;
    int before = answered;
    CHECK(HG_Create(context, HG_ADDR_NULL, id, &handle) == HG_SUCCESS);
    CHECK(HG_Forward(handle, done, &answered) == HG_SUCCESS);
    CHECK(HG_Trigger(context, 1) == HG_SUCCESS);
    CHECK(HG_Destroy(handle) == HG_SUCCESS);
    CHECK(answered == before + 1 && called == answered);
}

int main(void) {
    hg_class_t *hg_class = HG_Init("ofi+tcp", HG_TRUE);
    hg_context_t *context = HG_Context_create(hg_class);
    hg_id_t id = HG_Register_name(hg_class, "echo", handler);
    progressor_handle_t *net = mercury_progressor_init(hg_class, context);
    char name[] = "beside";
    uint64_t origin, relay, remote;
    hg_addr_t address = (hg_addr_t) &id;
    nexus_iter_t iterator;
    nexus_ctx_t nexus;
    shuffle_t sh;
    int target, size, rank;

    CHECK(net != NULL);
    CHECK(mercury_progressor_init(NULL, context) == NULL && mercury_progressor_init(hg_class, NULL) == NULL);
    nexus = nexus_bootstrap(net, NULL);
    CHECK(nexus != NULL);
    size = nexus_global_size(nexus);
    /* What was given comes back, and nothing of trihop's gets into the real one's hands. */
    CHECK(mercury_progressor_hgclass(net) == hg_class && mercury_progressor_hgcontext(net) == context);
    CHECK(mercury_progressor_hgclass(nexus_remoteprogressor(nexus)) == hg_class);
    CHECK(mercury_progressor_hgclass(nexus_localprogressor(nexus)) == NULL);
    CHECK(mercury_progressor_hgcontext(nexus_localprogressor(nexus)) == NULL);
    CHECK(HG_Class_is_listening(mercury_progressor_hgclass(net)) == HG_TRUE);
    CHECK(strncmp(mercury_progressor_addrstring(net), "trihop://", 9) == 0);
    if (nexus_next_hop(nexus, (nexus_global_rank(nexus) + 1) % size, &rank, &address) != NX_DONE)
        CHECK(address == HG_ADDR_NULL);
    iterator = nexus_iter(nexus, 1);
    CHECK(nexus_iter_addr(iterator) == HG_ADDR_NULL && nexus_iter_globalrank(iterator) >= 0);
    nexus_iter_free(&iterator);

    sh = shuffle_init(nexus, name, deliver, NULL);
    CHECK(sh != NULL);
    for (target = 0; target < size; target++) {
        call(context, id);
        CHECK(shuffle_enqueue(sh, target, 0, &target, sizeof target) == HG_SUCCESS);
    }
    CHECK(shuffle_enqueue(sh, size, 0, &target, sizeof target) == HG_INVALID_ARG);
    CHECK(shuffle_send_stats(sh, &origin, &relay, &remote) == HG_SUCCESS);
    CHECK(shuffle_shutdown(sh) == HG_SUCCESS);
    CHECK(delivered == size && called == size);
    nexus_destroy(nexus);
    CHECK(mercury_progressor_freehandle(net) == HG_SUCCESS);
    CHECK(HG_Context_destroy(context) == HG_SUCCESS);
    CHECK(HG_Finalize(hg_class) == HG_SUCCESS);
    return 0;
}

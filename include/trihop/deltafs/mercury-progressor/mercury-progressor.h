/*
 * mercury-progressor.h: counted handles of a progress thread, over trihop.
 *
 * The thread is the one that nexus_bootstrap() starts for the process; it runs from there to nexus_destroy(), sleeps when
 * there is nothing to do, and serves all shuffles. Handles count who needs it, as the original's do. Differences:
 *   - mercury_progressor_needed() and _idle() only count: shuffles progress whether a handle says so or not.
 *   - runtime, runusage and nprogress are those of that thread since the progressor was first needed (again, after it had
 *     been idle) and zero before nexus_bootstrap() was given the handle. ntrigger counts deliveries handed to callbacks.
 *   - the timeout is kept and has no effect: the thread is woken when something happens.
 * The functions have symbols of their own (trihop_mercury_progressor_*). All may be called from any thread.
 */
#ifndef TRIHOP_DELTAFS_MERCURY_PROGRESSOR_H
#define TRIHOP_DELTAFS_MERCURY_PROGRESSOR_H

#include <stdint.h>
#include <sys/resource.h>
#include <sys/time.h>

#include <mercury.h>
#include <trihop-deltafs/real_mercury.h>

/* Beside a real mercury, whose classes and contexts are kept, and never looked into. */
#if defined(TRIHOP_DELTAFS_BESIDE_MERCURY)
#define mercury_progressor_init trihop_mercury_progressor_init_beside
#define mercury_progressor_hgclass trihop_mercury_progressor_hgclass_beside
#define mercury_progressor_hgcontext trihop_mercury_progressor_hgcontext_beside
#else
#define mercury_progressor_init trihop_mercury_progressor_init
#define mercury_progressor_hgclass trihop_mercury_progressor_hgclass
#define mercury_progressor_hgcontext trihop_mercury_progressor_hgcontext
#endif
#define mercury_progressor_get_progtimeout trihop_mercury_progressor_get_progtimeout
#define mercury_progressor_set_progtimeout trihop_mercury_progressor_set_progtimeout
#define mercury_progressor_duphandle trihop_mercury_progressor_duphandle
#define mercury_progressor_freehandle trihop_mercury_progressor_freehandle
#define mercury_progressor_getstats trihop_mercury_progressor_getstats
#define mercury_progressor_nprogress trihop_mercury_progressor_nprogress
#define mercury_progressor_ntrigger trihop_mercury_progressor_ntrigger
#define mercury_progressor_addrstring trihop_mercury_progressor_addrstring
#define mercury_progressor_needed trihop_mercury_progressor_needed
#define mercury_progressor_idle trihop_mercury_progressor_idle

typedef struct progressor_handle progressor_handle_t;

struct progressor_stats {
    int is_running;          /* whether any handle needs the progressor now */
    int needed;              /* how often this handle needs it */
    int progressor_refcnt;   /* handles of the progressor */
    struct timeval runtime;  /* how long it is, or was, needed */
    struct rusage runusage;  /* what its thread used in that time; of the fields, those that Linux keeps per thread */
    uint64_t nprogress;      /* rounds of progress */
    uint64_t ntrigger;       /* messages handed to callbacks */
};

#ifdef __cplusplus
extern "C" {
#endif

/* A progressor for a class and a context of it, and its first handle. NULL: an argument is, or they do not belong together
 * (not noticed of a real mercury's). */
progressor_handle_t *mercury_progressor_init(hg_class_t *hgclass, hg_context_t *hgcontext);

/* The timeout in milliseconds, 100 unless set. */
unsigned int mercury_progressor_get_progtimeout(progressor_handle_t *hand);
void mercury_progressor_set_progtimeout(progressor_handle_t *hand, unsigned int timeout);

/* One more handle of the same progressor, which needs nothing yet. */
progressor_handle_t *mercury_progressor_duphandle(progressor_handle_t *hand);

/* Gives a handle up, with what it needs; the last one ends the progressor. */
hg_return_t mercury_progressor_freehandle(progressor_handle_t *hand);

hg_return_t mercury_progressor_getstats(progressor_handle_t *hand, struct progressor_stats *ps);
uint64_t mercury_progressor_nprogress(progressor_handle_t *hand);
uint64_t mercury_progressor_ntrigger(progressor_handle_t *hand);

/* What the progressor was made with. Beside a real mercury NULL for what is not of that: nexus's own local progressor. */
hg_class_t *mercury_progressor_hgclass(progressor_handle_t *hand);
hg_context_t *mercury_progressor_hgcontext(progressor_handle_t *hand);

/* The address of this process as text, for as long as the progressor lives; NULL unless the class listens, which a real
 * mercury's is not asked. */
char *mercury_progressor_addrstring(progressor_handle_t *hand);

/* Counts that the handle needs the progressor, and that it does not any more (HG_INVALID_ARG if it did not). */
hg_return_t mercury_progressor_needed(progressor_handle_t *hand);
hg_return_t mercury_progressor_idle(progressor_handle_t *hand);

#ifdef __cplusplus
}
#endif

#endif /* TRIHOP_DELTAFS_MERCURY_PROGRESSOR_H */

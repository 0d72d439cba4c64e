/*
 * mercury.h: the part of mercury's interface that clients of the DeltaFS shuffle touch, over trihop.
 *
 * A class keeps the text it was made with and whether it listens, a context belongs to a class, addresses can be
 * printed and compared. Nothing is opened: nexus_bootstrap() starts the one transport of the process, from the
 * environment of its launcher and the TRIHOP_* variables. The protocol and host in the text are kept for printing and choose nothing.
 *
 * What trihop is not stays absent, so that it fails when compiled and not when run: remote procedure calls
 * (HG_Register, HG_Create, HG_Forward, HG_Respond), bulk transfers, HG_Progress and HG_Trigger (the progress thread
 * does both).
 *
 * The functions have symbols of their own behind these names (trihop_mercury_*), so that a process
 * may load a real mercury too; trihop-deltafs/real_mercury.h says how one source uses both. All may
 * be called from any thread.
 */
#ifndef TRIHOP_DELTAFS_MERCURY_H
#define TRIHOP_DELTAFS_MERCURY_H

#include <trihop-deltafs/real_mercury.h>

#if defined(TRIHOP_DELTAFS_BESIDE_MERCURY)

#if !defined(MERCURY_H) && __has_include_next(<mercury.h>)
#include_next <mercury.h>
#endif

#else

#include <mercury_types.h>

#define HG_Init trihop_mercury_init
#define HG_Init_opt trihop_mercury_init_opt
#define HG_Finalize trihop_mercury_finalize
#define HG_Cleanup trihop_mercury_cleanup
#define HG_Error_to_string trihop_mercury_error_to_string
#define HG_Class_get_name trihop_mercury_class_get_name
#define HG_Class_get_protocol trihop_mercury_class_get_protocol
#define HG_Class_is_listening trihop_mercury_class_is_listening
#define HG_Context_create trihop_mercury_context_create
#define HG_Context_destroy trihop_mercury_context_destroy
#define HG_Context_get_class trihop_mercury_context_get_class
#define HG_Addr_self trihop_mercury_addr_self
#define HG_Addr_dup trihop_mercury_addr_dup
#define HG_Addr_free trihop_mercury_addr_free
#define HG_Addr_cmp trihop_mercury_addr_cmp
#define HG_Addr_to_string trihop_mercury_addr_to_string

#ifdef __cplusplus
extern "C" {
#endif

/* Makes a class from a text such as "ofi+tcp://10.92.1.2:0". NULL: no text, an empty one, or no memory. */
hg_class_t *HG_Init(const char *info_string, hg_bool_t listen);

/* As HG_Init. The hints may be NULL and have no effect (see hg_init_info). */
hg_class_t *HG_Init_opt(const char *info_string, hg_bool_t listen, const struct hg_init_info *info);

/* Ends a class. HG_BUSY, and nothing is ended, while one of its contexts lives; HG_INVALID_ARG for NULL. */
hg_return_t HG_Finalize(hg_class_t *hg_class);

/* Removes what crashed processes left behind: trihop leaves nothing behind. */
void HG_Cleanup(void);

/* The name of a value, such as "HG_INVALID_ARG"; never NULL. */
const char *HG_Error_to_string(hg_return_t value);

/* The part of the text before "+" ("ofi"), the whole protocol where there is none; lives as long as the class. */
const char *HG_Class_get_name(const hg_class_t *hg_class);

/* The part between "+" and "://" ("tcp"), else that of HG_Class_get_name; lives as long as the class. */
const char *HG_Class_get_protocol(const hg_class_t *hg_class);

/* Whether it was made to listen. */
hg_bool_t HG_Class_is_listening(const hg_class_t *hg_class);

/* Makes a context of a class. NULL: no class, or no memory. */
hg_context_t *HG_Context_create(hg_class_t *hg_class);

/* Ends a context. HG_BUSY, and nothing is ended, while a progressor handle refers to it; HG_INVALID_ARG for NULL. */
hg_return_t HG_Context_destroy(hg_context_t *context);

/* The class of a context; NULL for NULL. */
hg_class_t *HG_Context_get_class(const hg_context_t *context);

/* The address of this process under a class, to be freed with HG_Addr_free. */
hg_return_t HG_Addr_self(hg_class_t *hg_class, hg_addr_t *addr);

/* One more reference to an address, to be freed as well. */
hg_return_t HG_Addr_dup(hg_class_t *hg_class, hg_addr_t addr, hg_addr_t *dup);

/* Gives up a reference. Addresses that nexus handed out stay nexus's: they are not to be freed, unless duplicated. */
hg_return_t HG_Addr_free(hg_class_t *hg_class, hg_addr_t addr);

/* Whether two addresses name the same process by the same way. */
hg_bool_t HG_Addr_cmp(hg_class_t *hg_class, hg_addr_t one, hg_addr_t other);

/* Writes an address as text. *size: room in buf before, length with the final zero after. buf NULL: only *size is
 * set. HG_OVERFLOW: too little room, *size says how much is needed. */
hg_return_t HG_Addr_to_string(hg_class_t *hg_class, char *buf, hg_size_t *size, hg_addr_t addr);

#ifdef __cplusplus
}
#endif

#endif

#endif /* TRIHOP_DELTAFS_MERCURY_H */

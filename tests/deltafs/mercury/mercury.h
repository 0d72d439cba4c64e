/* A stand-in for a real mercury: see mercury_types.h. */
#ifndef MERCURY_H
#define MERCURY_H

#include "mercury_types.h"

#ifdef __cplusplus
extern "C" {
#endif

hg_class_t *HG_Init(const char *info_string, hg_bool_t listen);
hg_return_t HG_Finalize(hg_class_t *hg_class);
hg_context_t *HG_Context_create(hg_class_t *hg_class);
hg_return_t HG_Context_destroy(hg_context_t *context);
hg_bool_t HG_Class_is_listening(const hg_class_t *hg_class);
const char *HG_Error_to_string(hg_return_t value);
hg_id_t HG_Register_name(hg_class_t *hg_class, const char *name, hg_rpc_cb_t handler);
hg_return_t HG_Create(hg_context_t *context, hg_addr_t addr, hg_id_t id, hg_handle_t *handle);
hg_return_t HG_Destroy(hg_handle_t handle);
hg_return_t HG_Forward(hg_handle_t handle, hg_cb_t callback, void *arg);
hg_return_t HG_Trigger(hg_context_t *context, unsigned int max_count);

#ifdef __cplusplus
}
#endif

#endif /* MERCURY_H */

/* A stand-in for a real mercury: see mercury_types.h. A call is queued by HG_Forward and made by HG_Trigger. */
#include "mercury.h"

#include <stdio.h>
#include <stdlib.h>

#define CLASS_MARK 0x6d65726375727963u
#define CONTEXT_MARK 0x6d65726375727963u + 1

struct hg_class {
    uint64_t mark;
    hg_bool_t listening;
    int contexts;
    hg_rpc_cb_t handler;
};

struct hg_context {
    uint64_t mark;
    hg_class_t *hg_class;
    hg_handle_t queued;
};

struct hg_handle {
    hg_context_t *context;
    hg_cb_t callback;
    void *arg;
};

/* Ends the process if the program gives an object of another library. */
static void expect(int condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "stand-in: this is not %s of mine\n", what);
        abort();
    }
}

hg_class_t *HG_Init(const char *info_string, hg_bool_t listen) {
    hg_class_t *made = (hg_class_t *) calloc(1, sizeof *made);
    if (info_string == NULL || made == NULL) {
        free(made);
        return NULL;
    }
    made->mark = CLASS_MARK;
    made->listening = listen;
    return made;
}

hg_return_t HG_Finalize(hg_class_t *hg_class) {
    expect(hg_class->mark == CLASS_MARK, "a class");
    if (hg_class->contexts != 0)
        return HG_BUSY;
    free(hg_class);
    return HG_SUCCESS;
}

hg_context_t *HG_Context_create(hg_class_t *hg_class) {
    hg_context_t *made = (hg_context_t *) calloc(1, sizeof *made);
    expect(hg_class->mark == CLASS_MARK, "a class");
    if (made == NULL)
        return NULL;
    made->mark = CONTEXT_MARK;
    made->hg_class = hg_class;
    hg_class->contexts++;
    return made;
}

hg_return_t HG_Context_destroy(hg_context_t *context) {
    expect(context->mark == CONTEXT_MARK, "a context");
    context->hg_class->contexts--;
    free(context);
    return HG_SUCCESS;
}

hg_bool_t HG_Class_is_listening(const hg_class_t *hg_class) {
    expect(hg_class->mark == CLASS_MARK, "a class");
    return hg_class->listening;
}

const char *HG_Error_to_string(hg_return_t value) {
    return value == HG_SUCCESS ? "success" : "an error";
}

hg_id_t HG_Register_name(hg_class_t *hg_class, const char *name, hg_rpc_cb_t handler) {
    (void) name;
    expect(hg_class->mark == CLASS_MARK, "a class");
    hg_class->handler = handler;
    return 1;
}

hg_return_t HG_Create(hg_context_t *context, hg_addr_t addr, hg_id_t id, hg_handle_t *handle) {
    (void) addr;
    (void) id;
    expect(context->mark == CONTEXT_MARK, "a context");
    *handle = (hg_handle_t) calloc(1, sizeof **handle);
    if (*handle == NULL)
        return HG_NOMEM;
    (*handle)->context = context;
    return HG_SUCCESS;
}

hg_return_t HG_Destroy(hg_handle_t handle) {
    free(handle);
    return HG_SUCCESS;
}

hg_return_t HG_Forward(hg_handle_t handle, hg_cb_t callback, void *arg) {
    handle->callback = callback;
    handle->arg = arg;
    handle->context->queued = handle;
    return HG_SUCCESS;
}

hg_return_t HG_Trigger(hg_context_t *context, unsigned int max_count) {
    hg_handle_t handle = context->queued;
    struct hg_cb_info info;
    expect(context->mark == CONTEXT_MARK, "a context");
    if (handle == NULL || max_count == 0)
        return HG_AGAIN;
    context->queued = NULL;
    info.arg = handle->arg;
    info.ret = context->hg_class->handler(handle);
    return handle->callback(&info);
}

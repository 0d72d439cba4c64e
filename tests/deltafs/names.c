/*
 * A client that names more of mercury than it uses: members, prototypes and null values of what
 * remote procedure calls are made with. It is only compiled.
 */
#include <mercury.h>
#include <mercury_config.h>
#include <mercury_macros.h>
#include <mercury_types.h>

#include <deltafs-nexus/deltafs-nexus_api.h>
#include <deltafs-shuffle/shuffle_api.h>

#if HG_VERSION_MAJOR < 2
#error "the interface of mercury 2"
#endif

struct preload {
    hg_class_t *hg_class;
    hg_context_t *context;
    hg_id_t id;
    hg_handle_t handles[4];
    hg_bulk_t bulk;
    hg_op_id_t operation;
    hg_addr_t address;
    hg_cb_t callback;
    hg_rpc_cb_t handler;
    hg_proc_cb_t proc;
    hg_proc_op_t direction;
    hg_cb_type_t kind;
    hg_bulk_op_t way;
    hg_ptr_t place;
    nexus_ctx_t nexus;
    shuffle_t shuffle;
};

hg_return_t write_handler(hg_handle_t handle);
hg_return_t write_done(const struct hg_cb_info *info);
hg_return_t proc_write_in(hg_proc_t proc, void *data);
const struct hg_info *info_of(hg_handle_t handle);

static HG_INLINE int is_idle(const struct preload *preload) {
    return preload->handles[0] == HG_HANDLE_NULL && preload->bulk == HG_BULK_NULL &&
           preload->operation == HG_OP_ID_NULL && preload->address == HG_ADDR_NULL && preload->id == 0;
}

int main(void) {
    static struct preload preload;
    preload.direction = HG_ENCODE;
    preload.kind = HG_CB_FORWARD;
    preload.way = HG_BULK_PULL;
    return is_idle(&preload) && HG_MAX_IDLE_TIME > 0 ? 0 : 1;
}

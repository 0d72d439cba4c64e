/* Accessors for fields whose layout differs between libfabric 1.17 and 2.x. */
#ifndef TRIHOP_LIBFABRIC_SHIM_H
#define TRIHOP_LIBFABRIC_SHIM_H
#include <rdma/fabric.h>

/* 2.x holds data_progress in an anonymous union; the C spelling is the same in both. */
enum fi_progress fi_shim_data_progress(const struct fi_info *info);
void fi_shim_set_progress(struct fi_info *info, enum fi_progress control, enum fi_progress data);
#endif

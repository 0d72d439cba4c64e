#include "src/shim.h"

enum fi_progress fi_shim_data_progress(const struct fi_info *info)
{
	return info->domain_attr->data_progress;
}

void fi_shim_set_progress(struct fi_info *info, enum fi_progress control, enum fi_progress data)
{
	info->domain_attr->control_progress = control;
	info->domain_attr->data_progress = data;
}

/*
 * Linked to the kernel's VFIO selftests, whose own source stays as it is.
 *
 * They use an IOMMU through /dev/iommu unless told otherwise, and only some can be told. Debian's
 * kernels come without it (CONFIG_IOMMUFD), so VFIO_SELFTESTS_IOMMU names another way, such as
 * vfio_type1v2_iommu.
 *
 * Of libuuid they parse the token of a virtual function. Our functions are none, so there is none.
 */
#include <stdlib.h>
#include <uuid/uuid.h>

extern const char *default_iommu_mode;

__attribute__((constructor)) static void choose_iommu(void)
{
	const char *mode = getenv("VFIO_SELFTESTS_IOMMU");

	if (mode)
		default_iommu_mode = mode;
}

int uuid_parse(const char *text, uuid_t uuid)
{
	(void)text;
	(void)uuid;
	return -1;
}

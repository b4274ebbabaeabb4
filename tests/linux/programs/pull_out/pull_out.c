// SPDX-License-Identifier: GPL-2.0
/*
 * Takes the controller away as the kernel does with a card that is not in its slot any more. When
 * that is done, loading this module fails.
 */
#include <linux/module.h>
#include <linux/pci.h>

static int __init pull_out(void)
{
	struct pci_dev *pdev = pci_get_device(0x10cf, PCI_ANY_ID, NULL);

	if (!pdev)
		return -ENODEV;
	pdev->error_state = pci_channel_io_perm_failure;
	pci_stop_and_remove_bus_device_locked(pdev);
	pci_dev_put(pdev);
	return -ECANCELED;
}
module_init(pull_out);

MODULE_DESCRIPTION("Surprise removal of the controller");
MODULE_LICENSE("GPL");

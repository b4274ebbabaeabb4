// SPDX-License-Identifier: GPL-2.0
/*
 * From a device that the kernel does not know to the first Put: a driver for learners. It opens
 * control queue 0 of TNI 0, registers two pages, has the device put 64 bytes from one to the other,
 * by way of the node itself, and says what became of it in the log.
 *
 * It takes the controllers of the K computer, FX10, FX100 and Fugaku, and no other device: what it
 * needs is the same in all of them (docs/src/user/generations.md).
 *
 * Offsets and layouts are those of the register map in docs/src/user/driver-guide.md.
 */
#include <linux/bits.h>
#include <linux/dma-mapping.h>
#include <linux/io-64-nonatomic-lo-hi.h>
#include <linux/iopoll.h>
#include <linux/module.h>
#include <linux/pci.h>

#define NODE_ADDRESS		0x7000000
#define CQ_FETCH_START		0x0000040
#define CQS			0x0400000
#define CQS_STATUS		(CQS + 0x00)
#define   CQS_STATUS_ENABLED	BIT_ULL(59)
#define CQS_ENABLE		(CQS + 0x08)
#define CQS_GPID		(CQS + 0x28)
#define CQS_TOQ_IPA		(CQS + 0x30)
#define CQS_TOQ_SIZE		(CQS + 0x38)
#define CQS_TCQ_IPA		(CQS + 0x40)
#define CQS_MRQ_IPA		(CQS + 0x48)
#define CQS_MRQ_SIZE		(CQS + 0x50)
#define CQS_BLOCKS_ENABLE	(CQS + 0x90)
#define CQS_BLOCKS_IPA		(CQS + 0x98)
#define CQS_BLOCKS_SIZE		(CQS + 0xa0)
#define CQS_STEERING_ENABLE	(CQS + 0xa8)
#define CQS_STEERING_IPA	(CQS + 0xb0)
#define CQS_STEERING_SIZE	(CQS + 0xb8)
#define TNI_STATE		0x0c00030
#define   TNI_STATE_NORMAL	2
#define TNI_ENABLE		0x0c00038

/* Bit 7 says that an entry is valid: of a queue on its first lap, and of a table. */
#define VALID			BIT_ULL(7)
#define COMMAND_PUT		(1ULL << 8)
#define MTU_1920		(240ULL << 16)

#define ENTRIES			2048	/* of each queue, by size code 0 */
#define STAGS			4
#define FROM			1	/* STag of the page that is read, */
#define TO			2	/* and of the one that is written */
#define LENGTH			64

struct entry {
	__le64 what;
	__le64 length;
};

/* All that the device reads and writes. Tables are aligned to 256 bytes, pages to their size. */
struct memory {
	__le64 toq[ENTRIES][4];
	__le64 mrq[ENTRIES][4];
	__le64 tcq[ENTRIES];
	u8 page[STAGS][4096];
	struct entry steering[STAGS] __aligned(256);
	struct entry blocks[STAGS] __aligned(256);
	__le64 pages[STAGS][256 / 8] __aligned(256);
};

struct first_put {
	void __iomem *bar;
	struct memory *memory;
	dma_addr_t address;
};

static u64 address(struct first_put *this, const void *of)
{
	return this->address + (of - (void *)this->memory);
}

/* Page table entry, memory block entry, steering entry, in this order. */
static void register_page(struct first_put *this, u64 stag)
{
	struct memory *m = this->memory;

	m->pages[stag][0] = cpu_to_le64(address(this, m->page[stag]) | VALID);
	m->blocks[stag].length = cpu_to_le64(1);
	dma_wmb();
	m->blocks[stag].what = cpu_to_le64(address(this, m->pages[stag]) | VALID);
	m->steering[stag].length = cpu_to_le64(4096);
	dma_wmb();
	m->steering[stag].what = cpu_to_le64(stag << 48 | VALID);
}

static int open_queue(struct first_put *this)
{
	struct memory *m = this->memory;
	void __iomem *bar = this->bar;
	u64 status;

	writeq(0, bar + CQS_GPID);
	writeq(address(this, m->toq), bar + CQS_TOQ_IPA);
	writeq(0, bar + CQS_TOQ_SIZE);
	writeq(address(this, m->tcq), bar + CQS_TCQ_IPA);
	writeq(address(this, m->mrq), bar + CQS_MRQ_IPA);
	writeq(0, bar + CQS_MRQ_SIZE);
	writeq(address(this, m->blocks), bar + CQS_BLOCKS_IPA);
	writeq(STAGS, bar + CQS_BLOCKS_SIZE);
	writeq(1, bar + CQS_BLOCKS_ENABLE);
	writeq(address(this, m->steering), bar + CQS_STEERING_IPA);
	writeq(STAGS, bar + CQS_STEERING_SIZE);
	writeq(1, bar + CQS_STEERING_ENABLE);

	writeq(1, bar + CQS_ENABLE);
	return readq_poll_timeout(bar + CQS_STATUS, status, status & CQS_STATUS_ENABLED,
				  10, 1000000);
}

static void close_queue(struct first_put *this)
{
	u64 status;

	writeq(0, this->bar + CQS_ENABLE);
	if (readq_poll_timeout(this->bar + CQS_STATUS, status, !(status & CQS_STATUS_ENABLED),
			       10, 1000000))
		pr_err("first_put: the queue does not stop\n");
}

static int put(struct first_put *this, struct device *dev)
{
	struct memory *m = this->memory;
	u64 node = readq(this->bar + NODE_ADDRESS);
	u64 x = node >> 18 & 0x1f, y = node >> 13 & 0x1f, z = node >> 8 & 0x1f;
	u64 a = node >> 7 & 1, b = node >> 5 & 3, c = node >> 4 & 1;
	u64 path = a << 28 | b << 29 | c << 31;
	u64 target = x << 32 | y << 40 | z << 48 | a << 56 | b << 57 | c << 59;
	u64 done;
	int i, error;

	dev_info(dev, "node (%llu,%llu,%llu,%llu,%llu,%llu)\n", x, y, z, a, b, c);
	for (i = 0; i < LENGTH; i++)
		m->page[FROM][i] = i + 1;

	/* The qword with the flip bit last: the device may look at any time. */
	m->toq[0][1] = cpu_to_le64((u64)LENGTH << 32);
	m->toq[0][2] = cpu_to_le64((u64)TO << 40);
	m->toq[0][3] = cpu_to_le64((u64)FROM << 40);
	dma_wmb();
	m->toq[0][0] = cpu_to_le64(target | path | MTU_1920 | COMMAND_PUT | VALID);
	/* Ordered behind it by writeq. */
	writeq(1, this->bar + CQ_FETCH_START);

	error = read_poll_timeout(le64_to_cpu, done, done & VALID, 10, 1000000, false,
				  READ_ONCE(m->tcq[0]));
	if (error)
		return error;
	dma_rmb();
	dev_info(dev, "Put of %u bytes: rcode %llu, %s\n", LENGTH, done >> 8 & 0xff,
		 memcmp(m->page[FROM], m->page[TO], LENGTH) ? "wrong" : "arrived");
	return 0;
}

static int first_put_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct first_put *this = devm_kzalloc(&pdev->dev, sizeof(*this), GFP_KERNEL);
	u64 state;
	int error;

	if (!this)
		return -ENOMEM;
	error = pcim_enable_device(pdev);
	if (error)
		return error;
	this->bar = pcim_iomap_region(pdev, 0, KBUILD_MODNAME);
	if (IS_ERR(this->bar))
		return PTR_ERR(this->bar);
	/* Tables have room for addresses of 40 bits. */
	error = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(40));
	if (error)
		return error;
	/* Zeroed, as queues have to be. */
	this->memory = dmam_alloc_coherent(&pdev->dev, sizeof(*this->memory), &this->address,
					   GFP_KERNEL);
	if (!this->memory)
		return -ENOMEM;
	pci_set_drvdata(pdev, this);
	pci_set_master(pdev);

	error = open_queue(this);
	if (error)
		return dev_err_probe(&pdev->dev, error, "the queue does not start\n");
	writeq(1, this->bar + TNI_ENABLE);
	error = readq_poll_timeout(this->bar + TNI_STATE, state, (state & 3) == TNI_STATE_NORMAL,
				   10, 1000000);
	if (!error) {
		register_page(this, FROM);
		register_page(this, TO);
		error = put(this, &pdev->dev);
	}
	if (error) {
		writeq(0, this->bar + TNI_ENABLE);
		close_queue(this);
		return dev_err_probe(&pdev->dev, error, "no Put\n");
	}
	return 0;
}

static void first_put_remove(struct pci_dev *pdev)
{
	struct first_put *this = pci_get_drvdata(pdev);

	writeq(0, this->bar + TNI_ENABLE);
	/* Afterwards nothing of the memory is used, which goes next. */
	close_queue(this);
	pci_clear_master(pdev);
}

static const struct pci_device_id first_put_ids[] = {
	{ PCI_DEVICE(0x10cf, 0x1cc1) },	/* Tofu: the K computer, FX10 */
	{ PCI_DEVICE(0x10cf, 0x1cc2) },	/* Tofu2: FX100 */
	{ PCI_DEVICE(0x10cf, 0x1ccd) },	/* TofuD: Fugaku */
	{ }
};
MODULE_DEVICE_TABLE(pci, first_put_ids);

static struct pci_driver first_put_driver = {
	.name = KBUILD_MODNAME,
	.id_table = first_put_ids,
	.probe = first_put_probe,
	.remove = first_put_remove,
};
module_pci_driver(first_put_driver);

MODULE_AUTHOR("The open Tofu project");
MODULE_DESCRIPTION("A first Put, for those who learn to write a driver");
MODULE_LICENSE("GPL");

/* SPDX-License-Identifier: GPL-2.0 */
/* A small user of a barrier channel, shared by the tests. */
#ifndef TOFU_TESTS_CHANNEL_H
#define TOFU_TESTS_CHANNEL_H

#include "common.h"

enum { BARRIER = 1, MAX = 5, SUM = 7, MISMATCH = 15 };

struct channel {
	int fd, tni, bch, relay;
	volatile uint64_t *regs;
	volatile uint64_t *notice;
	uint32_t bseq;
};

static inline struct channel open_channel(int tni, int bch)
{
	/* A relay gate of its own, the same for all that compute it. */
	struct channel c = { .tni = tni, .bch = bch, .relay = 16 + bch };
	char name[64];

	snprintf(name, sizeof(name), "/proc/tofu/dev/tni%dbch%d", tni, bch);
	c.fd = open(name, O_RDWR);
	if (c.fd < 0)
		die(name);
	c.regs = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, c.fd, 0);
	if (c.regs == MAP_FAILED)
		die("mmap of a channel");
	uint8_t *page = memory(PAGE);
	memset(page, 0xa5, PAGE);
	c.notice = (volatile uint64_t *)(page + 512);
	memset(page + 512, 0, 256);
	return c;
}

static inline void close_channel(struct channel *c)
{
	munmap((void *)c->regs, PAGE);
	close(c->fd);
	munmap((uint8_t *)c->notice - 512, PAGE);
}

static inline struct tof_addr address(struct coords at)
{
	return (struct tof_addr){ at.a, at.b, at.c, at.x, at.y, at.z, at.a, at.b, at.c };
}

/* Both members start, and each one's relay waits for both. */
static inline int link_to(struct channel *c, struct coords other, int tni, int bch, uint32_t bseq)
{
	struct tof_addr there = address(other);
	struct tof_set_bg gates[2] = {
		{ c->tni, c->bch, c->relay, there, 0, -1, c->relay, there, tni, 16 + bch },
		{ c->tni, c->relay, c->bch, there, tni, bch, c->bch, there, 0, -1 },
	};
	struct tof_enable_bch a = { .addr = (void *)c->notice, .bseq = bseq, .num = 2, .bgs = gates };

	c->bseq = bseq;
	memset((void *)c->notice, 0, 256);
	return ioctl(c->fd, TOF_IOCTL_ENABLE_BCH, &a);
}

static inline void start(struct channel *c, int op, int count, const uint64_t *values)
{
	for (int i = 0; i < count; i++)
		c->regs[0x800 / 8 + i] = values[i];
	c->regs[0x840 / 8] = 1ull << 62 | (uint64_t)count << 8 | op;
}

/* The operation of the round's notice, or -1 after `seconds` seconds. */
static inline int wait_round(struct channel *c, uint64_t *values, int seconds)
{
	volatile uint64_t *half = c->notice + (c->bseq & 1) * 16;
	time_t end = time(NULL) + seconds;

	while (!(half[15] >> 63) || (half[15] & 0xffffff) != c->bseq)
		if (time(NULL) > end)
			return -1;
	__sync_synchronize();
	int op = half[15] >> 24 & 15;

	for (int i = 0; i < 6; i++)
		values[i] = half[i];
	half[15] = 0;
	c->bseq = (c->bseq + 1) & 0xffffff;
	return op;
}

#endif

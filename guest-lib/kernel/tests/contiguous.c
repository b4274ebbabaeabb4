// SPDX-License-Identifier: GPL-2.0
/*
 * The driver with a device that has no IOMMU: rings must be contiguous, other memory need not be.
 * Run as root.
 */
#include "common.h"

enum { HUGE = 2 << 20, LEN = 300 << 10 };

/* Memory in small pages that are not contiguous: touched from the last to the first, and every
 * other one first. */
static uint8_t *scattered(size_t len)
{
	uint8_t *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED || madvise(p, len, MADV_NOHUGEPAGE))
		die("small pages");
	for (int odd = 0; odd < 2; odd++)
		for (size_t at = len / PAGE; at-- > 0; )
			if (at % 2 == (size_t)odd)
				p[at * PAGE] = 0;
	return p;
}

/* A large page, whose parts are contiguous. */
static uint8_t *large(void)
{
	uint8_t *p = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		die("mmap");
	p += -(uintptr_t)p & (HUGE - 1);
	if (madvise(p, HUGE, MADV_HUGEPAGE))
		die("large pages");
	memset(p, 0, HUGE);
	return p;
}

int main(void)
{
	struct coords me = my_coords();
	struct queue q = prepare_queue(1, 1);
	uint8_t *a = scattered(LEN + PAGE) + 0x234, *b = scattered(LEN + PAGE) + 0x567;
	volatile uint64_t *toq = (uint64_t *)scattered(TOQ_ENTRIES * 32);
	uint8_t *rings = large();

	q.tcq = (uint64_t *)(rings + TOQ_ENTRIES * 32);
	q.mrq = (uint64_t *)(rings + HUGE / 2);
	q.toq = toq;
	struct tof_init_cq init = init_argument(&q);
	FAILS(ioctl(q.fd, TOF_IOCTL_INIT_CQ, &init), EOPNOTSUPP, "a ring in pieces");
	q.toq = (uint64_t *)rings;
	init = init_argument(&q);
	WORKS(ioctl(q.fd, TOF_IOCTL_INIT_CQ, &init), "rings that are not");

	int64_t from = add_memory(&q, a, LEN, -1, 0);
	int64_t to = add_memory(&q, b, LEN, 9, 0);
	CHECK(from >= 0 && to >= 0, "memory in pieces");
	CHECK((from & 0xffff) == ((uintptr_t)a & 0xffff), "offset has the low 16 bits");
	fill(a, LEN, 7);
	CHECK(put(&q, me, 1, to, from, LEN) == 0 && !memcmp(a, b, LEN), "a Put of all of it");
	memset(a, 0, LEN);
	post_command(&q, GET, me, 1, to + 5000, from + 100, 100000, 0);
	ring(&q);
	CHECK(end_of(&q) == 0 && !memcmp(a + 100, b + 5000, 100000) && !a[99] && !a[100100],
	      "a Get of a part");
	CHECK(put(&q, me, 1, to + LEN, from, PAGE) != 0, "nothing behind it");
	CHECK(put(&q, me, 1, to, from - 0x235, 1) != 0, "nothing in front of it");
	int64_t big = add_memory(&q, rings, HUGE, -1, TOF_STAG_LARGE_PAGES);
	CHECK(big >= 0 && put(&q, me, 1, big + HUGE - PAGE, to, PAGE) == 0 &&
	      !memcmp(rings + HUGE - PAGE, b, PAGE), "large pages");
	munmap((void *)((uintptr_t)b & ~(PAGE - 1ul)), PAGE);
	CHECK(put(&q, me, 1, to + 8192, from, 8) != 0, "nothing after a part was unmapped");
	close(q.fd);
	return finish();
}

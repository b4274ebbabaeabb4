/* SPDX-License-Identifier: GPL-2.0 */
/* Shared by the tests: results in kselftest format (TAP), and a small user of a queue. */
#ifndef TOFU_TESTS_COMMON_H
#define TOFU_TESTS_COMMON_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../include/uapi/tof.h"

static int tests_done, tests_failed;

#define CHECK(what, ...) do { \
	int ok_ = (what); \
	tests_done++; \
	tests_failed += !ok_; \
	printf("%sok %d ", ok_ ? "" : "not ", tests_done); \
	printf(__VA_ARGS__); \
	if (!ok_) \
		printf(" # %s:%d errno %d (%s)", __FILE__, __LINE__, errno, strerror(errno)); \
	printf("\n"); \
	fflush(stdout); \
} while (0)

/* Checks that a call fails with an errno. */
#define FAILS(call, code, ...) do { \
	errno = 0; \
	int result_ = (call); \
	int errno_ = errno; \
	errno = errno_; \
	CHECK(result_ == -1 && errno_ == (code), __VA_ARGS__); \
} while (0)

#define WORKS(call, ...) CHECK((call) == 0, __VA_ARGS__)

static inline int finish(void)
{
	printf("1..%d\n# %d failed\n", tests_done, tests_failed);
	return tests_failed != 0;
}

static inline void die(const char *what)
{
	printf("Bail out! %s: %s\n", what, strerror(errno));
	exit(2);
}

enum { TOQ_ENTRIES = 2048, MRQ_ENTRIES = 2048 };

/* 4 KiB, on Arm perhaps 16 or 64. */
#define PAGE ((int)sysconf(_SC_PAGESIZE))

struct coords {
	uint8_t x, y, z, a, b, c;
};

struct queue {
	int fd, tni, cq;
	volatile uint64_t *regs, *toq, *tcq, *mrq;
	uint64_t posted, received;
};

static inline struct coords my_coords(void)
{
	unsigned int v[6];
	struct coords me = { 0 };
	FILE *file = fopen("/proc/tofu/position", "r+");

	if (!file || fscanf(file, "%u %u %u %u %u %u", v, v + 1, v + 2, v + 3, v + 4, v + 5) != 6)
		die("/proc/tofu/position");
	fclose(file);
	me.x = v[0], me.y = v[1], me.z = v[2], me.a = v[3], me.b = v[4], me.c = v[5];
	return me;
}

/* The features of the node's controller, according to docs/src/user/generations.md. */
struct generation {
	const char *name;
	/* The last queue of each interface is the kernel's. */
	int tnis, cqs;
	/* Interfaces with barriers; channels for processes and gates of each; integers of a
	 * reduction. */
	int barrier_tnis, channels, gates, integers;
	int sessions;
};

static inline struct generation generation(void)
{
	static const struct generation all[] = {
		{ "k", 4, 3, 1, 7, 64, 1, 0 },
		{ "fx10", 4, 3, 1, 7, 64, 1, 0 },
		{ "fx100", 4, 12, 1, 7, 64, 1, 1 },
		{ "fugaku", 6, 12, 6, 16, 48, 6, 1 },
	};
	char name[16] = "";
	FILE *file = fopen("/proc/tofu/generation", "r");

	if (!file || fscanf(file, "%15s", name) != 1)
		die("/proc/tofu/generation");
	fclose(file);
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		if (!strcmp(all[i].name, name))
			return all[i];
	die(name);
	exit(2);
}

/* An interface with barriers, this one if it has any. */
static inline int barrier_tni(int wanted)
{
	return wanted < generation().barrier_tnis ? wanted : 0;
}

static inline void *memory(size_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (p == MAP_FAILED)
		die("mmap");
	return p;
}

static inline int open_node(int tni, int cq)
{
	char name[64];

	snprintf(name, sizeof(name), "/proc/tofu/dev/tni%dcq%d", tni, cq);
	return open(name, O_RDWR);
}

static inline struct tof_init_cq init_argument(struct queue *q)
{
	return (struct tof_init_cq){ .version = TOF_UAPI_VERSION, .tcq_cinj = 1, .mrq_cinj = 1,
		.toq_mem = (void *)q->toq, .tcq_mem = (void *)q->tcq, .mrq_mem = (void *)q->mrq };
}

/* File, registers and rings, without INIT_CQ. */
static inline struct queue prepare_queue(int tni, int cq)
{
	struct queue q = { .tni = tni, .cq = cq };

	q.fd = open_node(tni, cq);
	if (q.fd < 0)
		die("open of a queue");
	q.regs = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, q.fd, 0);
	if (q.regs == MAP_FAILED)
		die("mmap of registers");
	q.toq = memory(TOQ_ENTRIES * 32);
	q.tcq = memory(TOQ_ENTRIES * 8);
	q.mrq = memory(MRQ_ENTRIES * 32);
	return q;
}

static inline struct queue open_queue(int tni, int cq)
{
	struct queue q = prepare_queue(tni, cq);
	struct tof_init_cq init = init_argument(&q);

	if (ioctl(q.fd, TOF_IOCTL_INIT_CQ, &init))
		die("INIT_CQ");
	return q;
}

static inline void close_queue(struct queue *q)
{
	munmap((void *)q->regs, PAGE);
	close(q->fd);
	munmap((void *)q->toq, TOQ_ENTRIES * 32);
	munmap((void *)q->tcq, TOQ_ENTRIES * 8);
	munmap((void *)q->mrq, MRQ_ENTRIES * 32);
}

/* STag (-1: any) for memory; the address word of its first byte. */
static inline int64_t add_memory(struct queue *q, void *va, size_t len, int stag,
				 unsigned int flags)
{
	struct tof_alloc_stag a = { .flags = flags, .stag = stag, .va = va, .len = len };

	if (ioctl(q->fd, TOF_IOCTL_ALLOC_STAG, &a))
		return -1;
	return (int64_t)q->cq << 58 | (int64_t)a.stag << 40 | a.offset;
}

static inline int stag_of(int64_t address)
{
	return address >> 40 & 0x3ffff;
}

enum { PUT = 1, GET = 4, REMOTE_NOTICE = 1 << 10 };

/* Posts a command without ringing. */
static inline void post_command(struct queue *q, int command, struct coords to, int tni,
				uint64_t remote, uint64_t local, uint32_t len, uint32_t flags)
{
	uint64_t slot = q->posted % TOQ_ENTRIES;
	uint64_t flip = (q->posted / TOQ_ENTRIES & 1) ^ 1;
	volatile uint64_t *entry = q->toq + slot * 4;
	uint64_t head = (uint64_t)command << 8 | 240ull << 16 | (uint64_t)to.a << 28 |
		(uint64_t)to.b << 29 | (uint64_t)to.c << 31 | (uint64_t)to.x << 32 |
		(uint64_t)to.y << 40 | (uint64_t)to.z << 48 | (uint64_t)to.a << 56 |
		(uint64_t)to.b << 57 | (uint64_t)to.c << 59 | (uint64_t)tni << 61;

	entry[0] = head | (flip ^ 1) << 7;
	entry[1] = flags | (q->posted & 0xff) << 16 | (uint64_t)len << 32;
	entry[2] = remote;
	entry[3] = local;
	__sync_synchronize();
	entry[0] = head | flip << 7;
	__sync_synchronize();
	q->posted++;
}

static inline void ring(struct queue *q)
{
	q->regs[0x40 / 8] = 1;
}

/*
 * Waits until the last command was sent; its rcode at this end, or -1 after some seconds. The
 * target's result is in its notice: see end_of().
 */
static inline int wait_tcq(struct queue *q)
{
	uint64_t last = q->posted - 1;
	uint64_t flip = (last / TOQ_ENTRIES & 1) ^ 1;
	time_t end = time(NULL) + 20;

	for (;;) {
		uint64_t entry = q->tcq[last % TOQ_ENTRIES];

		if ((entry >> 7 & 1) == flip)
			return entry >> 8 & 0xff;
		if (time(NULL) > end)
			return -1;
		ring(q);
	}
}

/* Waits for a notice; its id, or -1 after `seconds` seconds. */
static inline int wait_mrq(struct queue *q, int seconds)
{
	uint64_t flip = (q->received / MRQ_ENTRIES & 1) ^ 1;
	time_t end = time(NULL) + seconds;

	for (;;) {
		uint64_t entry = q->mrq[q->received % MRQ_ENTRIES * 4];

		if ((entry >> 7 & 1) == flip) {
			__sync_synchronize();
			q->received++;
			q->regs[0x48 / 8] = q->received;
			return entry >> 8 & 0xff;
		}
		if (time(NULL) > end)
			return -1;
	}
}

/*
 * Waits for the end of the last command: its rcode at this end, or that of its notice, which stays
 * in the queue; -1 after some seconds.
 */
static inline int end_of(struct queue *q)
{
	const uint64_t ends = 1 << 2 | 1 << 3 | 1 << 9 | 1 << 11 | 1 << 13 | 1 << 15;
	int rcode = wait_tcq(q);
	uint64_t n = q->received;
	time_t end = time(NULL) + 20;

	while (rcode == 0) {
		volatile uint64_t *entry = q->mrq + n % MRQ_ENTRIES * 4;
		uint64_t word = entry[0];

		if ((word >> 7 & 1) == ((n / MRQ_ENTRIES & 1) ^ 1)) {
			__sync_synchronize();
			/* The command's number is in its edata. */
			if (ends >> (word >> 8 & 0xff) & 1 &&
			    (entry[1] >> 16 & 0xff) == ((q->posted - 1) & 0xff))
				return word >> 16 & 0xff;
			n++;
		} else if (time(NULL) > end) {
			return -1;
		}
	}
	return rcode;
}

static inline int put(struct queue *q, struct coords to, int tni, uint64_t remote, uint64_t local,
		      uint32_t len)
{
	post_command(q, PUT, to, tni, remote, local, len, REMOTE_NOTICE);
	ring(q);
	return end_of(q);
}

/* A number in the file of the node's health; -1 if there is none, as nobody has mounted debugfs. */
static inline long health(const char *name)
{
	char line[200];
	long value, found = -1;
	FILE *file = fopen("/sys/kernel/debug/tofu/health", "r");

	while (file && fgets(line, sizeof(line), file))
		if (!strncmp(line, name, strlen(name)) &&
		    sscanf(line + strlen(name), " %ld", &value) == 1)
			found = value;
	if (file)
		fclose(file);
	return found;
}

static inline void fill(uint8_t *p, size_t len, uint32_t seed)
{
	for (size_t i = 0; i < len; i++) {
		seed = seed * 1664525 + 1013904223;
		p[i] = seed >> 24;
	}
}

#endif

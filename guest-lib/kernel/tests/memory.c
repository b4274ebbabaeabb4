// SPDX-License-Identifier: GPL-2.0
/* Registered memory that is unmapped, forked, moved, or whose process ends in the middle. */
#include "common.h"

enum { BIG = 16 << 20, LEN = 1 << 20 };

static struct coords me;

/* Pinned pages of this process, in KiB. */
static long pinned(void)
{
	char line[128];
	long value = -1;
	FILE *file = fopen("/proc/self/status", "r");

	while (fgets(line, sizeof(line), file))
		if (sscanf(line, "VmPin: %ld", &value) == 1)
			break;
	fclose(file);
	return value;
}

static int pinned_becomes(long value)
{
	for (int i = 0; i < 500; i++) {
		if (pinned() == value)
			return 1;
		usleep(10000);
	}
	return 0;
}

static void unmap(void)
{
	struct queue q = open_queue(0, 0);
	uint8_t *a = memory(LEN), *b = memory(LEN);
	long before = pinned();
	int64_t from = add_memory(&q, a, LEN, -1, 0), to = add_memory(&q, b, LEN, 20, 0);

	CHECK(pinned() == before + 2 * LEN / 1024, "memory is pinned");
	fill(a, LEN, 1);
	CHECK(put(&q, me, 0, to, from, LEN) == 0 && !memcmp(a, b, LEN), "a Put to oneself");
	munmap(b + LEN / 2, PAGE);
	CHECK(put(&q, me, 0, to, from, 64) == 0x33, "a part is unmapped: the STag is gone");
	CHECK(pinned_becomes(before + LEN / 1024), "and unpinned");
	struct tof_free_stags f = { .num = 1, .stags = (int[]){ 20 } };
	FAILS(ioctl(q.fd, TOF_IOCTL_FREE_STAGS, &f), ENOENT, "there is nothing to free");
	munmap(b, LEN);
	uint8_t *c = memory(LEN);
	to = add_memory(&q, c, LEN, 20, 0);
	CHECK(to >= 0 && put(&q, me, 0, to, from, LEN) == 0 && !memcmp(a, c, LEN),
	      "it can be had again");
	uint8_t *moved = mremap(c, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, memory(LEN));
	CHECK(moved != MAP_FAILED && put(&q, me, 0, to, from, 64) == 0x33, "moved: gone too");
	munmap(moved, LEN);
	close_queue(&q);
	CHECK(pinned_becomes(0), "after close nothing is pinned");
	munmap(a, LEN);
}

static void rings(void)
{
	struct queue q = open_queue(0, 0);
	uint8_t *a = memory(LEN);
	int64_t own = add_memory(&q, a, LEN, -1, 0);
	struct tof_alloc_stag more = { .stag = -1, .va = a, .len = 1 };

	CHECK(put(&q, me, 0, own, own, 64) == 0, "a queue works");
	munmap((void *)q.mrq, MRQ_ENTRIES * 32);
	q.mrq = memory(MRQ_ENTRIES * 32);
	FAILS(ioctl(q.fd, TOF_IOCTL_ALLOC_STAG, &more), EPERM, "without a ring it does not");
	close_queue(&q);
	q = open_queue(0, 0);
	own = add_memory(&q, a, LEN, -1, 0);
	CHECK(put(&q, me, 0, own, own, 64) == 0, "opened anew it does");
	close_queue(&q);
	munmap(a, LEN);
}

static void forked(void)
{
	struct queue q = open_queue(0, 0);
	uint8_t *a = memory(LEN), *b = memory(LEN);
	int64_t from = add_memory(&q, a, LEN, -1, 0), to = add_memory(&q, b, LEN, -1, 0);

	fflush(stdout);
	pid_t pid = fork();
	if (!pid) {
		struct tof_alloc_stag more = { .stag = -1, .va = a, .len = 1 };
		int bad = 0;

		/* The child has a copy of the memory, and may not use the queue. */
		if (ioctl(q.fd, TOF_IOCTL_ALLOC_STAG, &more) != -1 || errno != EPERM)
			bad |= 1;
		memset(b, 1, LEN);
		sleep(1);
		for (int i = 0; i < LEN; i++)
			if (b[i] != 1)
				bad |= 2;
		_exit(bad);
	}
	fill(a, LEN, 2);
	CHECK(put(&q, me, 0, to, from, LEN) == 0 && !memcmp(a, b, LEN), "the parent's memory is its own");
	int status = -1;
	waitpid(pid, &status, 0);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child's too: %#x", status);
	CHECK(put(&q, me, 0, to, from, LEN) == 0, "the child's end changes nothing");
	close_queue(&q);
	munmap(a, LEN);
	munmap(b, LEN);
}

/* A program that inherits the file: it is that of the one before. */
static void executed(void)
{
	int status = -1;

	fflush(stdout);
	pid_t pid = fork();
	if (!pid) {
		struct queue q = open_queue(0, 0);
		uint8_t *a = memory(LEN);
		char fd[16];

		add_memory(&q, a, LEN, 3, 0);
		snprintf(fd, sizeof(fd), "%d", q.fd);
		execl("/proc/self/exe", "memory", "inherited", fd, NULL);
		_exit(98);
	}
	waitpid(pid, &status, 0);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "exec: %#x", status);
}

static int inherited(int fd)
{
	struct queue q = { .fd = fd };
	struct tof_init_cq init;
	struct tof_alloc_stag a = { .stag = -1, .va = &q, .len = 8 };
	struct tof_free_stags f = { .num = 1, .stags = (int[]){ 3 } };

	q.toq = memory(TOQ_ENTRIES * 32);
	q.tcq = memory(TOQ_ENTRIES * 8);
	q.mrq = memory(MRQ_ENTRIES * 32);
	init = init_argument(&q);
	if (ioctl(fd, TOF_IOCTL_INIT_CQ, &init) != -1 || errno != EPERM)
		return 1;
	if (ioctl(fd, TOF_IOCTL_ALLOC_STAG, &a) != -1 || errno != EPERM)
		return 2;
	if (ioctl(fd, TOF_IOCTL_FREE_STAGS, &f) != -1 || errno != EPERM)
		return 3;
	return 0;
}

/* kill -9 in the middle of Puts of 16 MB, from and to the process's memory. */
static void killed(void)
{
	struct queue q = open_queue(0, 1);
	uint8_t *target = memory(BIG);
	int64_t to = add_memory(&q, target, BIG, 40, 0);
	int pipes[2], bad = 0;

	if (pipe(pipes))
		die("pipe");
	for (int round = 0; round < 12; round++) {
		fflush(stdout);
		pid_t pid = fork();
		if (!pid) {
			struct queue mine = open_queue(0, 0);
			uint8_t *source = memory(BIG);
			int64_t from = add_memory(&mine, source, BIG, 40, 0);

			/* Both ways: the process that dies is at either end. */
			for (int i = 0; i < 64; i++)
				post_command(&mine, i % 2 ? PUT : GET, me, 0, to, from, BIG - 8, 0);
			ring(&mine);
			if (write(pipes[1], "", 1) != 1)
				_exit(1);
			for (;;)
				ring(&mine);
		}
		char byte;
		if (read(pipes[0], &byte, 1) != 1)
			bad++;
		usleep(round * 7000);
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		/* What it had is available at once, and works. */
		struct queue again = open_queue(0, 0);
		uint8_t *buffer = memory(LEN);
		int64_t from = add_memory(&again, buffer, LEN, 40, 0);

		fill(buffer, LEN, round);
		if (put(&again, me, 0, to, from, LEN) != 0 || memcmp(buffer, target, LEN))
			bad++;
		close_queue(&again);
		munmap(buffer, LEN);
	}
	CHECK(!bad, "12 processes killed in the middle of 16 MB");
	close_queue(&q);
	munmap(target, BIG);
	CHECK(pinned_becomes(0), "nothing is left pinned");
}

static void large_pages(void)
{
	struct queue q = open_queue(0, 0);
	uint8_t *a = memory(BIG), *b = memory(BIG);
	uint64_t *table = mmap(NULL, 8192 * 16, PROT_READ, MAP_SHARED, q.fd, PAGE);

	madvise(a, BIG, MADV_HUGEPAGE);
	/* Neither begins nor ends with a large page. */
	int64_t from = add_memory(&q, a + 5000, BIG - 10000, 6, TOF_STAG_LARGE_PAGES);
	int64_t to = add_memory(&q, b + 5000, BIG - 10000, -1, TOF_STAG_LARGE_PAGES);

	CHECK(from >= 0 && to >= 0, "memory of large pages");
	CHECK(table != MAP_FAILED && table[12] >> 63 == 1, "shown as such");
	CHECK((from & 0xffffffffff) == ((uintptr_t)(a + 5000) & 0xff), "a special one begins there");
	fill(a, BIG, 3);
	CHECK(put(&q, me, 0, to, from, BIG - 10000) == 0, "a Put of all of it");
	CHECK(!memcmp(a + 5000, b + 5000, BIG - 10000) && !b[4999] && !b[BIG - 5000],
	      "and of no more");
	CHECK(put(&q, me, 0, to - (to & 0xffffffffff), from, 8) != 0 || ((uintptr_t)b & 0x1fffff) == 0,
	      "what lies in front in its large page is not there");
	munmap(table, 8192 * 16);
	close_queue(&q);
	munmap(a, BIG);
	munmap(b, BIG);
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "inherited"))
		return inherited(atoi(argv[2]));
	me = my_coords();
	unmap();
	rings();
	forked();
	executed();
	large_pages();
	killed();
	return finish();
}

// SPDX-License-Identifier: GPL-2.0
/*
 * What a user can take of the node's memory: RLIMIT_MEMLOCK counts pages that are registered, and
 * what the kernel has for them and for queues. Without a limit, a user leaves something to others.
 * Run as root.
 */
#include "common.h"

#include <sys/prctl.h>
#include <sys/resource.h>

enum { USER = 2001, OTHER = 2002, KIB = 1024, MIB = 1024 * KIB };

static long meminfo(const char *name)
{
	char line[200];
	long value, found = -1;
	FILE *file = fopen("/proc/meminfo", "r");

	while (file && fgets(line, sizeof(line), file))
		if (!strncmp(line, name, strlen(name)) &&
		    sscanf(line + strlen(name), ": %ld", &value) == 1)
			found = value;
	fclose(file);
	return found;
}

/* Becomes a user who may lock so much. */
static void become(unsigned int uid, rlim_t limit)
{
	struct rlimit memlock = { limit, limit };

	if (setrlimit(RLIMIT_MEMLOCK, &memlock) || setresgid(uid, uid, uid) ||
	    setresuid(uid, uid, uid))
		_exit(99);
}

/* Opens a queue with 2^(13 + stags) STags; its file, or -1. */
static int try_queue(int tni, int cq, int stags)
{
	struct queue q = prepare_queue(tni, cq);
	struct tof_init_cq init = init_argument(&q);

	init.num_stag = stags;
	if (ioctl(q.fd, TOF_IOCTL_INIT_CQ, &init)) {
		int error = errno;

		close_queue(&q);
		errno = error;
		return -1;
	}
	return q.fd;
}

/* The last queue, which is left to others. */
static int is_last(int tni, int cq)
{
	return tni == generation().tnis - 1 && cq == generation().cqs - 2;
}

/* Opens queues until no more can be had; how many. */
static int all_queues(int *fds, int stags)
{
	int n = 0;

	for (int cq = 0; cq < generation().cqs - 1; cq++)
		for (int tni = 0; tni < generation().tnis && !is_last(tni, cq); tni++) {
			fds[n] = try_queue(tni, cq, stags);
			if (fds[n] < 0)
				return n;
			n++;
		}
	return n;
}

static int add(int fd, void *va, size_t len)
{
	struct tof_alloc_stag a = { .flags = TOF_STAG_NEW, .stag = -1, .va = va, .len = len };

	return ioctl(fd, TOF_IOCTL_ALLOC_STAG, &a);
}

/* STags of one page, until no more can be had; how many. */
static int many_stags(const int *fds, int queues)
{
	uint8_t *page = memory(PAGE);
	int total = 0;

	for (int i = 0; i < queues; i++)
		while (add(fds[i], page, PAGE) == 0)
			total++;
	return total;
}

/* Registers until no more can be had; how many MiB. */
static int much_memory(int fd)
{
	int total = 0;

	for (;; total++) {
		void *p = memory(MIB);

		if (add(fd, p, MIB))
			return total;
		/* The process need not have them any more. */
		madvise(p, MIB, MADV_DONTNEED);
	}
}

/* Runs a part as a user, and while it holds what it has, `meanwhile`. Returns what it said. */
static long as_user(unsigned int uid, rlim_t limit, long (*part)(void), void (*meanwhile)(void))
{
	int said[2], go[2];
	long result = -1;
	char byte;

	if (pipe(said) || pipe(go))
		die("pipe");
	fflush(stdout);
	pid_t pid = fork();
	if (!pid) {
		become(uid, limit);
		result = part();
		(void)!write(said[1], &result, sizeof(result));
		_exit(read(go[0], &byte, 1) != 1);
	}
	close(said[1]);
	if (read(said[0], &result, sizeof(result)) != sizeof(result))
		result = -1;
	if (meanwhile)
		meanwhile();
	(void)!write(go[1], "x", 1);
	waitpid(pid, NULL, 0);
	close(said[0]), close(go[0]), close(go[1]);
	return result;
}

static long few_queues(void)
{
	int fds[200];

	return all_queues(fds, 2);
}

static long few_stags(void)
{
	int fds[] = { try_queue(0, 0, 0) };

	return fds[0] < 0 ? -1 : many_stags(fds, 1);
}

static long everything(void)
{
	int fds[200], n = all_queues(fds, 0), total = many_stags(fds, n);

	return n ? total + much_memory(fds[0]) : -1;
}

static long all_memory(void)
{
	int fd = try_queue(0, 0, 0);

	return fd < 0 ? -1 : much_memory(fd);
}

static long one_page(void)
{
	int fd = try_queue(generation().tnis - 1, generation().cqs - 2, 0);

	return fd >= 0 && add(fd, memory(PAGE), PAGE) == 0;
}

static void others_can_work(void)
{
	long total = meminfo("MemTotal"), left = meminfo("MemAvailable");

	CHECK(as_user(OTHER, RLIM_INFINITY, one_page, NULL) == 1, "another user works");
	CHECK(left > total / 5, "%ld of %ld kB are left", left, total);
}

/* Many processes at once register what only one of them may have, and keep it until all tried. */
static long race(void)
{
	enum { PROCESSES = 12 };
	int ready[2], start[2], said[2], end[2], done = 0;
	char byte;

	if (pipe(ready) || pipe(start) || pipe(said) || pipe(end))
		die("pipe");
	for (int i = 0; i < PROCESSES; i++)
		if (!fork()) {
			int fd = try_queue(i % generation().tnis, i / generation().tnis, 0);
			void *p = memory(16 * MIB);

			close(start[1]), close(end[1]);
			(void)!write(ready[1], "x", 1);
			(void)!read(start[0], &byte, 1);
			byte = fd >= 0 && !add(fd, p, 16 * MIB);
			(void)!write(said[1], &byte, 1);
			(void)!read(end[0], &byte, 1);
			_exit(0);
		}
	/* A child that has ended without a word is no reader to wait for for ever. */
	close(ready[1]), close(said[1]);
	for (int i = 0; i < PROCESSES && read(ready[0], &byte, 1) == 1; i++)
		;
	close(start[1]);
	for (int i = 0; i < PROCESSES && read(said[0], &byte, 1) == 1; i++)
		done += byte;
	close(end[1]);
	while (wait(NULL) > 0)
		;
	return done;
}

/* munmap gives back what is charged, before the next call of the same queue. */
static long again_and_again(void)
{
	int fd = try_queue(0, 0, 0);

	if (fd < 0)
		return -1;
	for (int i = 0; i < 100; i++) {
		void *p = memory(MIB);

		if (add(fd, p, MIB))
			return i;
		munmap(p, MIB);
	}
	return 100;
}

int main(void)
{
	/*
	 * Newer kernels free empty page tables at once. A large page can then be where much_memory()
	 * has unmapped something, and half of it stays: up to 90 MiB, by chance.
	 */
	if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0))
		die("PR_SET_THP_DISABLE");

	/* A queue of 8192 STags has 3 * 128 KiB of tables and 3 rings of 144 KiB in all. */
	long free_before = meminfo("MemFree"), total = meminfo("MemTotal") / KIB;
	long queues = as_user(USER, 8 * MIB, few_queues, NULL);

	CHECK(queues > 0 && queues <= 4, "tables are charged: %ld queues in 8 MiB", queues);
	long stags = as_user(USER, 2 * MIB, few_stags, NULL);
	CHECK(stags > 50 && stags < 500, "STags are charged: %ld of one page in 2 MiB", stags);
	long mib = as_user(USER, 8 * MIB, all_memory, NULL);
	CHECK(mib >= 4 && mib < 8, "pages are charged: %ld MiB of 8", mib);
	CHECK(as_user(USER, 0, few_queues, NULL) == 0, "no queue without RLIMIT_MEMLOCK");
	CHECK(as_user(USER, 24 * MIB, race, NULL) == 1, "one of twelve gets what is there for one");
	CHECK(as_user(USER, 3 * MIB, again_and_again, NULL) == 100, "what is unmapped is given back");
	CHECK(as_user(0, 0, one_page, NULL) == 1, "root has no limit");
	mib = as_user(USER, RLIM_INFINITY, all_memory, others_can_work);
	CHECK(mib > total / 4 && mib <= total / 2, "without a limit, %ld MiB of %ld", mib, total);
	CHECK(as_user(USER, RLIM_INFINITY, everything, others_can_work) > 0, "as STags, too");
	CHECK(health("pinned_pages") <= 0 && health("charged_pages") <= 0, "all is given back");
	/* The heap keeps some. */
	CHECK(meminfo("MemFree") > free_before - 64 * KIB, "%ld kB were free, %ld are", free_before,
	      meminfo("MemFree"));
	return finish();
}

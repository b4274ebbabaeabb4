// SPDX-License-Identifier: GPL-2.0
/*
 * Threads that call everything at once, and a fuzzer of the ioctls; both for some seconds:
 *
 *	races [SECONDS [SEED]]
 *
 * Invariants: the kernel reports no error, a bystander's Puts stay correct, and nothing is left
 * behind.
 */
#include "common.h"

#include <pthread.h>

enum { LEN = 256 << 10, THREADS = 4 };

static struct coords me;
static struct generation has;
static volatile int stop;
static struct queue shared;
static uint8_t *area;

static uint32_t next(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return *state >> 33;
}

/* Registers, frees, maps and unmaps the same memory and STags as the others do. */
static void *racer(void *seed)
{
	uint64_t state = (uintptr_t)seed;

	while (!stop) {
		uint32_t r = next(&state);
		uint8_t *at = area + next(&state) % (LEN / PAGE) * PAGE;
		int stag = r % 8 + 50;
		struct tof_free_stags f = { .num = 1, .stags = &stag };
		struct tof_init_cq init = init_argument(&shared);

		switch (r / 8 % 6) {
		case 0:
		case 1:
			add_memory(&shared, at, 1 + next(&state) % (4 * PAGE), r & 64 ? -1 : stag, r >> 10 & 3);
			break;
		case 2:
			ioctl(shared.fd, TOF_IOCTL_FREE_STAGS, &f);
			break;
		case 3:
			/* Not munmap: something else could take its place. */
			mmap(at, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
			break;
		case 4:
			mmap(at, PAGE, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
			break;
		case 5:
			ioctl(shared.fd, TOF_IOCTL_INIT_CQ, &init);
			break;
		}
	}
	return NULL;
}

static void *bystander(void *failures)
{
	int tni = has.tnis - 1;
	struct queue q = open_queue(tni, 0);
	uint8_t *a = memory(LEN), *b = memory(LEN);
	int64_t from = add_memory(&q, a, LEN, 1, 0), to = add_memory(&q, b, LEN, 2, 0);
	uint32_t round = 0;

	while (!stop) {
		fill(a, LEN, round++);
		if (put(&q, me, tni, to, from, LEN) != 0 || memcmp(a, b, LEN))
			(*(int *)failures)++;
		while (wait_mrq(&q, 0) >= 0)
			;
	}
	close_queue(&q);
	return NULL;
}

/* Any ioctl with any argument, some of them almost valid. */
static void *fuzzer(void *seed)
{
	uint64_t state = (uintptr_t)seed;
	uint64_t argument[64];
	int tni = has.tnis - 2;
	char names[6][32] = { "info", "control" };

	for (int cq = 0; cq < 3; cq++)
		snprintf(names[2 + cq], sizeof(*names), "tni%dcq%d", tni, cq);
	snprintf(names[5], sizeof(*names), "tni%dbch0", barrier_tni(tni));

	while (!stop) {
		char name[64];
		uint32_t which = next(&state) % 6;

		snprintf(name, sizeof(name), "/proc/tofu/dev/%s", names[which]);
		int fd = open(name, O_RDWR);
		if (fd < 0)
			continue;
		for (int i = next(&state) % 16; i >= 0; i--) {
			uint8_t *pointers = area + next(&state) % LEN;

			for (int w = 0; w < 64; w++) {
				uint32_t kind = next(&state) % 4;

				argument[w] = kind == 0 ? 0 : kind == 1 ? next(&state) % 5000 :
					kind == 2 ? (uintptr_t)pointers & ~255ul :
					(uint64_t)next(&state) << 32 | next(&state);
			}
			if (next(&state) % 2)
				argument[0] = TOF_UAPI_VERSION;
			uint32_t n = next(&state) % 14;
			/* Users' rights and the subnet also apply to the bystander. */
			if (n == 6 || n == 7)
				continue;
			ioctl(fd, TOF_IOCTL(n), next(&state) % 8 ? (void *)argument : (void *)pointers);
			if (next(&state) % 8 == 0)
				mmap(NULL, PAGE << next(&state) % 4, PROT_READ, MAP_SHARED, fd,
				     next(&state) % 3 * PAGE);
		}
		close(fd);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	int seconds = argc > 1 ? atoi(argv[1]) : 5;
	uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
	pthread_t threads[2 * THREADS + 1];
	int failures = 0;

	/* An exception of a queue with garbage must not end the test. */
	signal(SIGTERM, SIG_IGN);
	me = my_coords();
	has = generation();
	area = memory(LEN + (16 << 20));
	/* Not a queue of the fuzzers' interface. */
	int tni = has.tnis - 3, cq = has.cqs - 2;
	shared = open_queue(tni, cq);
	printf("# seed %llu\n", (unsigned long long)seed);
	fflush(stdout);
	for (int i = 0; i < THREADS; i++) {
		pthread_create(&threads[i], NULL, racer, (void *)(seed * 100 + i));
		pthread_create(&threads[THREADS + i], NULL, fuzzer, (void *)(seed * 200 + i));
	}
	pthread_create(&threads[2 * THREADS], NULL, bystander, &failures);
	sleep(seconds);
	stop = 1;
	for (int i = 0; i <= 2 * THREADS; i++)
		pthread_join(threads[i], NULL);
	CHECK(failures == 0, "a bystander's Puts: %d wrong", failures);
	close_queue(&shared);
	struct queue q = open_queue(tni, cq);
	int64_t own = add_memory(&q, memory(PAGE), PAGE, 50, 0);
	CHECK(own >= 0 && put(&q, me, tni, own, own, 64) == 0, "the queue works afterwards");
	close_queue(&q);
	return finish();
}

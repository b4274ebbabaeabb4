// SPDX-License-Identifier: GPL-2.0
/*
 * A fuzzer of /proc/tofu that knows which calls follow which, and what their arguments mean:
 *
 *	grammar [SECONDS [SEED [lies]]]
 *
 * A sequence opens queues and channels, sets them up, registers memory of all kinds, maps, frees
 * and rings, in an order that mostly makes sense. Half of the calls have one or two words of their
 * argument replaced. Each sequence is a process, which ends by itself or is killed in the middle;
 * its number and the seed decide all that it does. Some run at a time.
 *
 * Afterwards everything is as it was, and each ioctl has both worked and failed; but for that with
 * `lies`, when the device's registers read wrong.
 */
#include "common.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/prctl.h>

enum { IOCTLS = 13, WORKERS = 3, CALLS = 60, FILES = 6, WORDS = 12, KINDS = 8 };

/* What all processes count. */
static struct counts {
	unsigned long worked[IOCTLS], failed[IOCTLS], sequences, stuck;
} *counts;

static struct generation has;
static uint64_t state;

static uint32_t any(uint32_t below)
{
	state = state * 6364136223846793005ull + 1442695040888963407ull;
	return (state >> 33) % below;
}

/* A file of a sequence: a queue, a channel, `control` or `info`. */
struct handle {
	int fd;
	bool queue;
	volatile uint64_t *regs;
	struct queue of;
	int stags[8];
	int count;
};

static struct handle handles[FILES];
static uint8_t *areas[KINDS];
enum { AREA = 1 << 20 };

/* Memory of different kinds, which a sequence may map anew or take away. */
static void map_area(int kind)
{
	int fd = -1, flags = MAP_PRIVATE | MAP_ANONYMOUS, access = PROT_READ | PROT_WRITE;
	size_t len = kind == 3 ? 2 << 20 : AREA;

	if (kind == 1)
		access = PROT_READ;
	if (kind == 2)
		access = PROT_NONE;
	if (kind == 3)
		flags |= MAP_HUGETLB;
	if (kind == 4 || kind == 5) {
		fd = memfd_create("grammar", 0);
		flags = kind == 4 ? MAP_SHARED : MAP_PRIVATE;
		/* The second half of this one is beyond the end. */
		if (fd >= 0 && ftruncate(fd, kind == 4 ? AREA : AREA / 2))
			die("ftruncate");
	}
	if (kind == 6) {
		fd = open("/proc/self/exe", O_RDONLY);
		flags = MAP_PRIVATE;
	}
	areas[kind] = mmap(areas[kind], len, access, flags | (areas[kind] ? MAP_FIXED : 0), fd, 0);
	if (areas[kind] == MAP_FAILED)
		areas[kind] = NULL;
	close(fd);
}

static void *address(void)
{
	uint8_t *area = areas[any(KINDS)];
	static const uint64_t odd[] = { 0, 8, 0x7ffffffff000, 0x800000000000, ~0ull - 4095, ~0ull };
	struct handle *h = &handles[any(FILES)];

	switch (any(12)) {
	case 0:
		return (void *)odd[any(6)];
	case 1:
		return (void *)h->regs;
	case 2:
		return handles;
	}
	return area ? area + any(AREA / 256) * 256 + (any(4) ? 0 : any(256)) : NULL;
}

static uint64_t number(void)
{
	static const uint64_t edges[] = { 0, 1, 2, 255, 256, 4095, 4096, 4097, 65535, 1 << 18,
		AREA, 1 << 21, 1u << 31, ~0u, 1ull << 32, 1ull << 40, 1ull << 63, ~0ull };

	switch (any(3)) {
	case 0:
		return edges[any(sizeof(edges) / sizeof(*edges))];
	case 1:
		return any(16);
	}
	return (uint64_t)any(1u << 31) << any(33) | any(1u << 31);
}

static void open_one(struct handle *h, int at)
{
	struct queue of = h->of;
	char name[64];

	*h = (struct handle){ .queue = at < 3, .of = of };
	h->of.cq = any(3);
	/* Not an interface of the other tests' bystanders. */
	h->of.tni = has.tnis - 2;
	snprintf(name, sizeof(name), "/proc/tofu/dev/%s", at == 4 ? "info" : "control");
	if (at < 3)
		snprintf(name, sizeof(name), "/proc/tofu/dev/tni%dcq%d", h->of.tni, h->of.cq);
	else if (at == 3)
		snprintf(name, sizeof(name), "/proc/tofu/dev/tni%dbch%d", barrier_tni(h->of.tni),
			 any(2));
	h->fd = open(name, O_RDWR);
	/* Most of what a queue can do comes after this. */
	if (h->queue && any(4)) {
		struct tof_init_cq init = init_argument(&h->of);

		ioctl(h->fd, TOF_IOCTL_INIT_CQ, &init);
	}
}

/* The argument of an ioctl as it should be; behind it comes what it points to. */
static void fill_argument(int n, struct handle *h, uint64_t *words)
{
	static struct tof_set_bg bgs[4];
	static __u64 masks[6];
	static int stags[4];
	static struct tof_linkdown_item item;
	union {
		struct tof_init_cq init;
		struct tof_alloc_stag alloc;
		struct tof_free_stags free;
		struct tof_enable_bch enable;
		struct tof_subnet subnet;
		struct tof_reg_user user;
		struct tof_notify_linkdown down;
		struct tof_port_stat port;
		struct tof_cq_stat cq;
		struct tof_load_register reg;
		struct tof_load_resource rsc;
		int number;
	} a;

	memset(&a, 0, sizeof(a));
	memset(masks, 0, sizeof(masks));
	switch (n) {
	case 0:
		a.init = init_argument(&h->of);
		break;
	case 1:
		a.alloc = (struct tof_alloc_stag){ .flags = any(4) ? 0 : any(4), .va = address(),
			.stag = any(3) ? -1 : (int)any(64), .len = 1 + any(AREA) };
		break;
	case 2:
		for (int i = 0; i < 4; i++)
			stags[i] = h->count ? h->stags[any(h->count)] : (int)any(64);
		a.free = (struct tof_free_stags){ .num = any(4) ? 1 : any(5), .stags = stags };
		break;
	case 3:
		for (int i = 0; i < 4; i++)
			bgs[i] = (struct tof_set_bg){ .tni = barrier_tni(h->of.tni), .gate = i & 1,
				.source_lgate = i & 1, .source_rgate = -1, .dest_lgate = i & 1,
				.dest_rgate = -1 };
		a.enable = (struct tof_enable_bch){ .addr = areas[0] + any(64) * 256,
			.num = 1 + any(2), .bgs = bgs };
		break;
	case 5:
		a.number = any(2) ? 0 : SIGRTMIN + (int)any(8);
		break;
	case 7:
		a.user = (struct tof_reg_user){ .uid = 50000 + any(4), .gpid = any(3) ? any(99) :
			TOF_NO_GROUP, .cqmask = masks, .bgmask = masks };
		break;
	case 8:
		a.down = (struct tof_notify_linkdown){ .num = any(2), .items = &item };
		break;
	case 9:
		a.port.port_no = any(11);
		break;
	case 10:
		a.cq = (struct tof_cq_stat){ .tni = any(has.tnis), .cqid = any(has.cqs) };
		break;
	case 11:
		a.reg = (struct tof_load_register){ .pa = 0x47000000, .len = 8 << any(4), .buf = areas[0] };
		break;
	case 12:
		a.rsc = (struct tof_load_resource){ .rsc_id = (has.tnis - 2) * 12 + any(4),
			.len = 8 << any(4), .buf = areas[0] };
		break;
	}
	memcpy(words, &a, WORDS * 8 < sizeof(a) ? WORDS * 8 : sizeof(a));
}

/* Which ioctls a file is for, the likely ones several times. */
static int pick_ioctl(int at)
{
	static const int queue[] = { 0, 1, 1, 1, 1, 2, 2, 5 }, channel[] = { 3, 3, 4, 5 };
	static const int both[] = { 6, 7, 8, 9, 10, 11, 12 };

	if (any(16) == 0)
		return any(IOCTLS + 1);
	return at < 3 ? queue[any(8)] : at == 3 ? channel[any(4)] : both[any(7)];
}

static void call(int at)
{
	struct handle *h = &handles[at];
	/* The longest argument, of GET_PORT_STAT, is longer than what is replaced. */
	uint64_t words[40] = { 0 };
	int n = pick_ioctl(at), result;

	fill_argument(n, h, words);
	for (int i = any(2) ? 0 : 1 + any(2); i > 0; i--) {
		uint64_t *word = &words[any(n == 9 ? 1 : 5)];
		void *bad = address();

		*word = any(2) ? (uintptr_t)bad : any(2) ? number() : *word ^ 1ull << any(64);
	}
	/* Each register takes a while to read. */
	if (n == 11 && words[1] > 64 << 10)
		words[1] &= 0xfff8;
	/* Nothing is said of root, who runs this. */
	if (n == 7)
		words[0] = (words[0] >> 32 << 32) | (50000 + any(4));
	/* All others would see another partition. */
	if (n == 6 && any(2))
		memset(words, 0, sizeof(words));
	else if (n == 6)
		words[any(2)] |= 0x2100210021002100;
	result = ioctl(h->fd, TOF_IOCTL(n), any(32) ? (void *)words : address());
	if (n >= IOCTLS)
		return;
	__atomic_add_fetch(result ? &counts->failed[n] : &counts->worked[n], 1, __ATOMIC_RELAXED);
	if (!result && n == 1 && h->count < 8)
		memcpy(&h->stags[h->count++], (char *)words + offsetof(struct tof_alloc_stag, stag),
		       sizeof(int));
}

/* What is done to a file beside ioctls. */
static void use(int at)
{
	struct handle *h = &handles[at];
	volatile uint64_t *regs;

	switch (any(6)) {
	case 0:
		close(h->fd);
		open_one(h, at);
		break;
	case 1:
		regs = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, h->fd,
			    any(8) ? 0 : (off_t)number() * PAGE);
		if (regs != MAP_FAILED)
			h->regs = regs;
		break;
	case 2:
		if (h->regs && any(2) && h->queue)
			h->regs[0x40 / 8] = any(4);
		break;
	case 3:
		map_area(any(KINDS - 1));
		break;
	case 4:
		if (areas[1 + any(KINDS - 1)])
			mprotect(areas[0] + any(AREA / PAGE) * PAGE, PAGE,
				 any(2) ? PROT_READ | PROT_WRITE : PROT_READ);
		break;
	case 5:
		lseek(h->fd, any(64), SEEK_SET);
		if (read(h->fd, areas[0], any(4096)) < 0)
			break;
	}
}

/* What other processes have set is as it was. */
static void restore(void)
{
	int control = open("/proc/tofu/dev/control", O_RDWR);
	struct tof_subnet all = { 0 };

	CHECK(!ioctl(control, TOF_IOCTL_SET_SUBNET, &all), "the partition is the system");
	for (int uid = 50000; uid < 50004; uid++) {
		struct tof_reg_user none = { .uid = uid, .gpid = TOF_NO_GROUP };

		ioctl(control, TOF_IOCTL_REG_USER, &none);
	}
	close(control);
}

static void sequence(uint64_t seed)
{
	int killed = any(4) ? CALLS : (int)any(CALLS);

	/* A process that never ends is a finding. */
	alarm(60);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	state = seed * 0x9e3779b97f4a7c15ull + 1;
	for (int kind = 0; kind < KINDS - 1; kind++)
		map_area(kind);
	/* The program's text. */
	areas[KINDS - 1] = (uint8_t *)((uintptr_t)restore & ~255ul);
	for (int at = 0; at < FILES; at++) {
		handles[at].of.toq = memory(TOQ_ENTRIES * 32);
		handles[at].of.tcq = memory(TOQ_ENTRIES * 8);
		handles[at].of.mrq = memory(MRQ_ENTRIES * 32);
		open_one(&handles[at], at);
	}
	for (int i = 0; i < CALLS; i++) {
		int at = any(FILES);

		if (i == killed)
			raise(SIGKILL);
		if (any(5))
			call(at);
		else
			use(at);
	}
	_exit(0);
}

/* Seconds, of a clock that is never set. */
static time_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec;
}

static void run(int seconds, uint64_t seed)
{
	time_t end = now() + seconds;
	uint64_t number = 0;
	int running = 0, status;

	while (now() < end || running) {
		if (running < WORKERS && now() < end) {
			number++;
			if (!fork())
				sequence(seed << 32 | number);
			running++;
			continue;
		}
		if (wait(&status) < 0)
			die("wait");
		running--;
		counts->sequences++;
		counts->stuck += WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
	}
}

static void check_all(void)
{
	for (int n = 0; n < IOCTLS; n++)
		CHECK(counts->worked[n] && (counts->failed[n] || n == 4),
		      "ioctl %d worked %lu times, failed %lu", n, counts->worked[n],
		      counts->failed[n]);
	restore();
	CHECK(health("pinned_pages") <= 0 && health("charged_pages") <= 0, "all is given back");
	for (int cq = 0; cq < 3; cq++) {
		struct queue q = open_queue(has.tnis - 2, cq);
		int64_t own = add_memory(&q, memory(PAGE), PAGE, 50, 0);

		CHECK(own >= 0 && put(&q, my_coords(), q.tni, own, own, 64) == 0,
		      "queue %d works afterwards", cq);
		close_queue(&q);
	}
}

int main(int argc, char **argv)
{
	int seconds = argc > 1 ? atoi(argv[1]) : 10;
	uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;

	counts = mmap(NULL, sizeof(*counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		      -1, 0);
	if (counts == MAP_FAILED)
		die("mmap");
	has = generation();
	printf("# seed %llu\n", (unsigned long long)seed);
	fflush(stdout);
	run(seconds, seed);
	printf("# %lu sequences\n", counts->sequences);
	CHECK(counts->sequences > 0 && counts->stuck == 0, "%lu sequences did not end",
	      counts->stuck);
	if (argc <= 3)
		check_all();
	return finish();
}

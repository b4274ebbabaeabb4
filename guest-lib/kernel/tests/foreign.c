// SPDX-License-Identifier: GPL-2.0
/*
 * A program as an author would write it for a machine with this interface without having seen this
 * project. It includes none of its files, and uses only public facts.
 *
 *	foreign serve TNI CQ BYTES
 *	foreign send TNI CQ BYTES X Y Z A B C ADDRESS
 *
 * The server prints "ADDRESS n", the address word of its buffer, which the sender needs.
 */
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
#include <time.h>
#include <unistd.h>

struct init_cq {
	uint16_t version;
	uint8_t session_mode, toq_size, mrq_size, num_stag, tcq_cinj, mrq_cinj;
	void *toq_mem, *tcq_mem, *mrq_mem;
};

struct alloc_stag {
	uint32_t flags;
	int stag;
	uint64_t offset;
	void *va;
	uint64_t len;
};

struct free_stags {
	uint16_t num;
	int *stags;
};

struct cq_stat {
	int tni, cqid;
	uint64_t txbyte, rxbyte;
};

struct port_stat {
	int port_no;
	uint64_t mask, pa[31];
};

#define IOC(n) (0xc0086400u + (n))
enum { TOQ = 2048, MRQ = 131072 };
#define PAGE ((size_t)sysconf(_SC_PAGESIZE))

static volatile int signals, last_code, last_int;

static void on_signal(int number, siginfo_t *info, void *context)
{
	(void)number, (void)context;
	last_code = info->si_errno;
	last_int = info->si_int;
	signals++;
}

static void die(const char *what)
{
	printf("not ok: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void *area(size_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	return p == MAP_FAILED ? (die("mmap"), NULL) : p;
}

static volatile uint64_t *regs, *toq, *tcq, *mrq;
static uint64_t posted, received;

/* One more command, and its result code. */
static int run(uint64_t head, uint64_t second, uint64_t remote, uint64_t local)
{
	uint64_t slot = posted & (TOQ - 1), flip = (posted / TOQ & 1) ^ 1;
	time_t end = time(NULL) + 30;

	toq[slot * 4 + 1] = second;
	toq[slot * 4 + 2] = remote;
	toq[slot * 4 + 3] = local;
	toq[slot * 4] = head | (flip ^ 1) << 7;
	__sync_synchronize();
	toq[slot * 4] = head | flip << 7;
	__sync_synchronize();
	posted++;
	do {
		regs[0x40 / 8] = 1;
		if (time(NULL) > end)
			return -1;
	} while ((tcq[slot] >> 7 & 1) != flip);
	return tcq[slot] >> 8 & 0xff;
}

static int notice(int seconds)
{
	uint64_t flip = (received / MRQ & 1) ^ 1;
	time_t end = time(NULL) + seconds;

	while ((mrq[received % MRQ * 4] >> 7 & 1) != flip)
		if (time(NULL) > end)
			return -1;
	__sync_synchronize();
	return mrq[received++ % MRQ * 4] >> 8 & 0xff;
}

int main(int argc, char **argv)
{
	if (argc != 5 && argc != 12)
		return 2;
	int tni = atoi(argv[2]), cq = atoi(argv[3]), number = SIGRTMIN + 1;
	size_t len = strtoul(argv[4], NULL, 0);
	int sends = !strcmp(argv[1], "send");
	char name[64];
	struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO };

	sigaction(number, &action, NULL);
	snprintf(name, sizeof(name), "/proc/tofu/dev/tni%dcq%d", tni, cq);
	int fd = open(name, O_RDWR);
	if (fd < 0)
		die(name);
	if (ioctl(fd, IOC(5), &number))
		die("SET_RT_SIGNAL");
	regs = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (regs == MAP_FAILED)
		die("registers");
	toq = area(TOQ * 32);
	tcq = area(TOQ * 8);
	mrq = area(MRQ * 32);
	struct init_cq init = { 0x2a00, 0, 0, 3, 0, 1, 1, (void *)toq, (void *)tcq, (void *)mrq };
	if (ioctl(fd, IOC(0), &init))
		die("INIT_CQ");

	/* Not at the start of a page, and large pages where they are available. */
	uint8_t *buffer = (uint8_t *)area(len + PAGE) + 1000;
	struct alloc_stag stag = { .flags = 2, .stag = -1, .va = buffer, .len = len };
	if (ioctl(fd, IOC(1), &stag))
		die("ALLOC_STAG");
	if (stag.stag < 4096 || stag.stag % 2 || (stag.offset & 0xffff) != ((uintptr_t)buffer & 0xffff))
		die("STag or offset");
	uint64_t own = (uint64_t)cq << 58 | (uint64_t)stag.stag << 40 | stag.offset;

	/* The kernel shows how it translates: start and length in units of 64 KiB. */
	const uint64_t *table = mmap(NULL, 8192 * 16, PROT_READ, MAP_SHARED, fd, PAGE);
	if (table == MAP_FAILED)
		die("translation table");
	uint64_t entry = table[stag.stag * 2];
	uint64_t start = (entry & 0xfffffffff) << 16, span = (entry >> 36 & 0x7ffffff) << 16;
	if (start + stag.offset != (uintptr_t)buffer || start + span < (uintptr_t)buffer + len)
		die("translation of the buffer");

	struct cq_stat before = { .tni = tni, .cqid = cq }, after = before;
	struct port_stat port = { .port_no = 1 };
	int info = open("/proc/tofu/dev/info", O_RDWR);
	if (info < 0 || ioctl(info, IOC(10), &before) || ioctl(info, IOC(9), &port))
		die("counters");

	if (sends) {
		uint64_t c[6], peer = strtoull(argv[11], NULL, 0);
		for (int i = 0; i < 6; i++)
			c[i] = strtoull(argv[5 + i], NULL, 0);
		uint64_t head = 1 << 8 | 240 << 16 | c[3] << 28 | c[4] << 29 | c[5] << 31 | c[0] << 32 |
			c[1] << 40 | c[2] << 48 | c[3] << 56 | c[4] << 57 | c[5] << 59 |
			(uint64_t)tni << 61;
		for (size_t i = 0; i < len; i++)
			buffer[i] = i * 7 + i / 251;
		/* Strong order, a notice at the other side, cache injection. */
		uint64_t flags = 1 << 8 | 1 << 10 | 1 << 13 | (uint64_t)len << 32;
		int rcode = run(head, flags, peer, own);
		if (rcode)
			printf("not ok: Put: rcode %#x\n", rcode), exit(1);
		int id = notice(30);
		if (id != 8 && id != 9)
			die("notice of the Put");
		/* And back: a Get, into memory that is empty. */
		memset(buffer, 0, len);
		rcode = run((head & ~0xff00ull) | 4 << 8, (uint64_t)len << 32, peer, own);
		if (rcode)
			printf("not ok: Get: rcode %#x\n", rcode), exit(1);
		id = notice(30);
		if (id != 0xa && id != 0xb)
			die("notice of the Get");
		/* The last one says that the server may end. */
		if (run(head, 1 << 10 | 1ull << 32, peer, own) || notice(30) < 8)
			die("last Put");
	} else {
		printf("ADDRESS %#llx\n", (unsigned long long)own);
		fflush(stdout);
		if (notice(60) < 0 || notice(60) < 0)
			die("notice of the sender's Put");
	}
	for (size_t i = 0; i < len; i++)
		if (buffer[i] != (uint8_t)(i * 7 + i / 251))
			die("data");
	if (ioctl(info, IOC(10), &after))
		die("GET_CQ_STAT");
	if ((sends ? after.txbyte - before.txbyte : after.rxbyte - before.rxbyte) < len)
		die("counters do not count");
	if (signals)
		printf("not ok: signal with code %d, value %#x\n", last_code, last_int), exit(1);

	struct free_stags free_stags = { 1, &stag.stag };
	if (ioctl(fd, IOC(2), &free_stags) || stag.stag != -1 || free_stags.num != 1)
		die("FREE_STAGS");
	if (sends) {
		/* A wrong use is an exception, which is a signal: an invalid direct descriptor. */
		for (int i = 7; i >= 0; i--)
			regs[i] = ~0ull;
		for (int i = 0; i < 500 && !signals; i++)
			usleep(10000);
		if (!signals || last_code > 1)
			die("no signal upon garbage");
	}
	printf("ok\n");
	return 0;
}

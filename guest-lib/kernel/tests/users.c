// SPDX-License-Identifier: GPL-2.0
/* Two users of one node that try to reach each other's memory and queues. Run as root. */
#include "common.h"

enum { LEN = 65536, SECRET = 0x5a };

/* Shared between the victim and the others. */
struct shared {
	volatile int ready, done;
	int64_t address;
	int stag;
};

static void register_user(__u32 uid, __u32 gpid, __u64 cqs)
{
	__u64 cqmask[6], bgmask[6];
	struct tof_reg_user a = { .uid = uid, .gpid = gpid, .cqmask = cqmask, .bgmask = bgmask };
	int control = open("/proc/tofu/dev/control", O_RDWR);

	for (int i = 0; i < 6; i++) {
		cqmask[i] = cqs;
		bgmask[i] = 0xff;
	}
	WORKS(ioctl(control, TOF_IOCTL_REG_USER, &a), "REG_USER %u", uid);
	close(control);
}

/* Runs `part` as a user; returns its result. */
static int as_user(unsigned int uid, int (*part)(struct shared *), struct shared *s)
{
	int status = -1;

	fflush(stdout);
	pid_t pid = fork();
	if (!pid) {
		if (setgid(uid) || setuid(uid))
			_exit(99);
		_exit(part(s));
	}
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int victim(struct shared *s)
{
	struct queue q = open_queue(0, 0);
	uint8_t *buffer = memory(LEN);
	int bad = 0;

	memset(buffer, SECRET, LEN);
	s->address = add_memory(&q, buffer, LEN, 9, 0);
	s->ready = 1;
	while (!s->done)
		usleep(1000);
	for (int i = 0; i < LEN; i++)
		bad |= buffer[i] != SECRET;
	/* No notice came either. */
	return bad || wait_mrq(&q, 0) != -1;
}

/* 0x43: another group. */
static int stranger(struct shared *s)
{
	struct queue q = open_queue(0, 1);
	uint8_t *buffer = memory(LEN);
	int64_t own = add_memory(&q, buffer, LEN, 9, 0);
	struct coords me = my_coords();
	int result = 0;

	if (put(&q, me, 0, s->address, own, LEN) != 0x43)
		result |= 1;
	post_command(&q, GET, me, 0, s->address, own, LEN, 0);
	ring(&q);
	if (end_of(&q) != 0x43)
		result |= 2;
	for (int i = 0; i < LEN; i++)
		result |= buffer[i] ? 4 : 0;
	/* Its own memory by the same words works. */
	if (put(&q, me, 0, own, own, LEN) != 0)
		result |= 8;
	return result;
}

/* Memory that is not registered with the own queue is out of reach, whoever owns it. */
static int own_limits(struct shared *s)
{
	struct queue q = open_queue(0, 1);
	uint8_t *buffer = memory(LEN);
	int64_t own = add_memory(&q, buffer, LEN, 9, 0);
	int64_t only = add_memory(&q, buffer, LEN, -1, TOF_STAG_READ_ONLY);
	struct coords me = my_coords();
	int result = 0;

	(void)s;
	/* 0x13, 0x14, 0x15, 0x11: disabled, beyond, read-only, beyond the table; 0x20 added: remote. */
	if (put(&q, me, 0, own, own + (1ll << 40), LEN) != 0x13)
		result |= 1;
	if (put(&q, me, 0, own + LEN - 8, own, 16) != 0x34)
		result |= 2;
	if (put(&q, me, 0, only, own, 8) != 0x35)
		result |= 4;
	if (put(&q, me, 0, own, own | 0x3ffffll << 40, 8) != 0x11)
		result |= 8;
	/* System and raw packets are the kernel's: 0x02. */
	for (int command = 0x10; command <= 0x13; command++) {
		post_command(&q, command, me, 0, 0, 0, 104, 0);
		ring(&q);
		if (wait_tcq(&q) != 0x02)
			result |= 16;
	}
	return result;
}

/* The kernel's own queue, whose group was once this user's number: 0x43, whatever the STag. */
static int kernels_queue(struct shared *s)
{
	struct queue q = open_queue(0, 0);
	uint8_t *buffer = memory(LEN);
	int64_t own = add_memory(&q, buffer, LEN, 9, 0);
	int64_t kernels = (int64_t)(generation().cqs - 1) << 58;
	int result = 0;

	(void)s;
	for (int64_t stag = 0; stag < 3; stag++) {
		if (put(&q, my_coords(), 0, kernels | stag << 40, own, 8) != 0x43)
			result |= 1;
		post_command(&q, GET, my_coords(), 0, kernels | stag << 40, own, 8, 0);
		ring(&q);
		if (end_of(&q) != 0x43)
			result |= 2;
	}
	return result;
}

static int friend(struct shared *s)
{
	struct queue q = open_queue(0, 1);
	uint8_t *buffer = memory(LEN);
	int64_t own = add_memory(&q, buffer, LEN, 9, 0);

	post_command(&q, GET, my_coords(), 0, s->address, own, LEN, 0);
	ring(&q);
	return end_of(&q) != 0 || buffer[0] != SECRET || buffer[LEN - 1] != SECRET;
}

static int denied(struct shared *s)
{
	int fd = open_node(1, 0);

	(void)s;
	if (fd >= 0 || errno != EACCES)
		return 1;
	return open_node(0, 1) < 0 ? 2 : 0;
}

static int taken(struct shared *s)
{
	(void)s;
	return open_node(0, 0) >= 0 || errno != EBUSY;
}

/* Starts the victim as a user. */
static pid_t start_victim(unsigned int uid, struct shared *s)
{
	s->ready = s->done = 0;
	fflush(stdout);
	pid_t pid = fork();
	if (!pid) {
		if (setgid(uid) || setuid(uid))
			_exit(99);
		_exit(victim(s));
	}
	while (!s->ready && waitpid(pid, NULL, WNOHANG) == 0)
		usleep(1000);
	CHECK(s->ready, "a user with memory");
	return pid;
}

static void end_victim(pid_t pid, struct shared *s)
{
	int status = -1;

	s->done = 1;
	waitpid(pid, &status, 0);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "nothing was changed");
}

int main(void)
{
	struct shared *s = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pid = start_victim(2001, s);
	int result = as_user(2002, stranger, s);
	CHECK(result == 0, "another user reaches only what is his own: %d", result);
	result = as_user(2002, own_limits, s);
	CHECK(result == 0, "and only what he has registered: %d", result);
	CHECK(as_user(2002, taken, s) == 0, "a queue is its opener's");
	CHECK(as_user(2001, friend, s) == 0, "the same user reaches it");
	register_user(2002, 77, 0x2);
	CHECK(as_user(2002, stranger, s) == 0, "a registered user does not");
	result = as_user(2002, denied, s);
	CHECK(result == 0, "nor opens queues that are not in his mask: %d", result);
	register_user(2002, 2001, 0x7ff);
	result = as_user(2002, stranger, s);
	CHECK(result == 0, "nor in a group with the other's number: %d", result);
	register_user(2001, 2001, 0x7ff);
	CHECK(as_user(2001, stranger, s) == 0, "which is not what that user had before");
	end_victim(pid, s);
	pid = start_victim(2001, s);
	CHECK(as_user(2002, friend, s) == 0, "unless root puts both into one group");
	register_user(2002, TOF_NO_GROUP, 0);
	CHECK(as_user(2002, stranger, s) == 0, "and no longer when it is forgotten");
	end_victim(pid, s);
	register_user(2001, TOF_NO_GROUP, 0);
	result = as_user(0x4950, kernels_queue, s);
	CHECK(result == 0, "a user whose number the kernel's group has: %d", result);
	return finish();
}

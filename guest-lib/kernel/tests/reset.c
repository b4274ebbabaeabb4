// SPDX-License-Identifier: GPL-2.0
/* A reset of the function ends open queues and channels, and their process learns of it. */
#include <glob.h>

#include "common.h"

/* si_errno of the signal that a queue or channel is lost. */
enum { LOST = 16 };

static volatile sig_atomic_t lost_queues, lost_channels;

static void note(int signal, siginfo_t *info, void *context)
{
	(void)context;
	if (signal == SIGRTMIN && info->si_errno == LOST && info->si_int == (0 << 8 | 1))
		lost_queues++;
	if (signal == SIGRTMIN + 1 && info->si_errno == LOST && info->si_int == (0 << 8 | 2))
		lost_channels++;
}

static void reset(void)
{
	glob_t found;
	int done = 0;

	if (glob("/sys/bus/pci/drivers/tofu/*/reset", 0, NULL, &found))
		die("no device");
	for (size_t i = 0; i < found.gl_pathc; i++) {
		int fd = open(found.gl_pathv[i], O_WRONLY);

		done += fd >= 0 && write(fd, "1", 1) == 1;
		close(fd);
	}
	CHECK(done == 1, "a reset by sysfs");
	globfree(&found);
}

/* Whether a line of /sys/kernel/debug/tofu/health begins like that. */
static int health_has(const char *start)
{
	FILE *file = fopen("/sys/kernel/debug/tofu/health", "r");
	char line[256];
	int found = 0;

	if (!file)
		return -1;
	while (fgets(line, sizeof(line), file))
		found |= !strncmp(line, start, strlen(start));
	fclose(file);
	return found;
}

static int open_channel_with(int number, int signal)
{
	char name[64];
	int fd;

	snprintf(name, sizeof(name), "/proc/tofu/dev/tni0bch%d", number);
	fd = open(name, O_RDWR);
	if (fd < 0 || ioctl(fd, TOF_IOCTL_SET_RT_SIGNAL, &signal))
		die("a channel");
	return fd;
}

int main(void)
{
	struct sigaction action = { .sa_sigaction = note, .sa_flags = SA_SIGINFO };
	int signal = SIGRTMIN;
	struct coords me = my_coords();
	struct queue q = prepare_queue(0, 1), idle = prepare_queue(0, 0);
	struct tof_init_cq init = init_argument(&q), init_idle = init_argument(&idle);
	struct tof_set_bg gate = { .gate = 2, .source_lgate = -1, .source_rgate = -1,
		.dest_lgate = -1, .dest_rgate = -1 };
	struct tof_enable_bch enable = { .addr = memory(PAGE), .num = 1, .bgs = &gate };
	struct tof_free_stags frees = { .num = 0 };
	int bch = open_channel_with(2, SIGRTMIN + 1);
	uint8_t *from = memory(PAGE), *to = memory(PAGE);
	uint64_t word;
	int64_t from_at, to_at;

	sigaction(SIGRTMIN, &action, NULL);
	sigaction(SIGRTMIN + 1, &action, NULL);
	if (ioctl(q.fd, TOF_IOCTL_SET_RT_SIGNAL, &signal))
		die("SET_RT_SIGNAL");
	FAILS(read(q.fd, &word, 8), EPERM, "read before INIT_CQ");
	WORKS(ioctl(q.fd, TOF_IOCTL_INIT_CQ, &init), "INIT_CQ");
	WORKS(ioctl(bch, TOF_IOCTL_ENABLE_BCH, &enable), "ENABLE_BCH");
	CHECK(read(q.fd, &word, 8) == 8 && word == 0, "the queue works");
	CHECK(read(bch, &word, 8) == 8 && word == 0, "the channel works");
	CHECK(add_memory(&q, from, PAGE, -1, 0) != -1, "memory of the queue");
	CHECK(health_has("tni0cq1 LOST") != 1, "health: nothing is lost");

	/* The second one finds the queue ended already. */
	for (int i = 0; i < 2; i++) {
		reset();
		CHECK(lost_queues == 1 && lost_channels == 1, "one signal each");
		FAILS(read(q.fd, &word, 8), EIO, "read of the queue");
		FAILS(ioctl(q.fd, TOF_IOCTL_INIT_CQ, &init), EIO, "INIT_CQ");
		FAILS(ioctl(q.fd, TOF_IOCTL_FREE_STAGS, &frees), EIO, "FREE_STAGS");
		CHECK(add_memory(&q, to, PAGE, -1, 0) == -1 && errno == EIO, "ALLOC_STAG");
		FAILS(read(bch, &word, 8), EIO, "read of the channel");
		FAILS(ioctl(bch, TOF_IOCTL_ENABLE_BCH, &enable), EIO, "ENABLE_BCH");
		CHECK(health_has("tni0cq1 LOST") && health_has("tni0bch2 LOST"), "health: what is lost");
		CHECK(health_has("state degraded"), "health: degraded");
	}
	CHECK(open_node(0, 1) == -1 && errno == EBUSY, "a lost queue is open still");
	WORKS(ioctl(idle.fd, TOF_IOCTL_INIT_CQ, &init_idle), "a queue that was not set up yet");
	CHECK(munmap(from, PAGE) == 0, "memory of the lost queue is unmapped");
	WORKS(ioctl(bch, TOF_IOCTL_DISABLE_BCH), "DISABLE_BCH of the lost channel");
	WORKS(ioctl(bch, TOF_IOCTL_ENABLE_BCH, &enable), "and ENABLE_BCH");
	close_queue(&q);

	q = open_queue(0, 1);
	from = memory(PAGE);
	fill(from, PAGE, 1);
	from_at = add_memory(&q, from, PAGE, -1, 0);
	to_at = add_memory(&q, to, PAGE, -1, 0);
	CHECK(put(&q, me, 0, to_at, from_at, PAGE) == 0 && !memcmp(from, to, PAGE),
	      "a Put of the queue that was opened again");
	CHECK(health_has("tni0cq1 LOST") != 1, "health: nothing is lost any more");
	close_queue(&q);
	close_queue(&idle);
	close(bch);
	return finish();
}

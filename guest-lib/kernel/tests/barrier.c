// SPDX-License-Identifier: GPL-2.0
/*
 * Barrier channels: rounds, what they reduce, signals upon errors, and the end of a process.
 *
 *	barrier                               two channels of this node
 *	barrier meet ME ROUNDS X Y Z A B C    member ME (0 or 1), with the other one at that node;
 *	                                      begins when there is a file /tmp/go
 */
#include "channel.h"

static int rest_is_untouched(struct channel *c)
{
	uint8_t *page = (uint8_t *)c->notice - 512;

	for (int i = 0; i < PAGE; i++)
		if ((i < 512 || i >= 768) && page[i] != 0xa5)
			return 0;
	return 1;
}

static void rounds(struct coords me)
{
	/* Of two interfaces if they have barriers, and a sequence number that is about to wrap. */
	int tni = barrier_tni(3), most = generation().integers;
	struct channel a = open_channel(0, 4), b = open_channel(tni, 5);
	uint32_t bseq = 0xffffff - 20;
	uint64_t va[6], vb[6];
	int good = 1;

	WORKS(link_to(&a, me, tni, 5, bseq), "a channel");
	WORKS(link_to(&b, me, 0, 4, bseq), "and another one");
	for (uint64_t i = 0; i < 40; i++) {
		uint64_t x[] = { i, 1000 + i, ~0ull, 1, 2, 3 }, y[] = { i * i, 7, 2, 30, 20, 10 };
		int op = i % 3 == 0 ? BARRIER : i % 3 == 1 ? SUM : MAX;
		int count = op == BARRIER ? 0 : most;

		start(&a, op, count, x);
		if (i == 0)
			CHECK(wait_round(&a, va, 1) == -1, "nobody passes alone");
		start(&b, op, count, y);
		good &= wait_round(&a, va, 20) == op && wait_round(&b, vb, 20) == op;
		for (int k = 0; k < count; k++) {
			uint64_t most = x[k] > y[k] ? x[k] : y[k];

			good &= va[k] == (op == SUM ? x[k] + y[k] : most) && vb[k] == va[k];
		}
	}
	CHECK(good, "40 rounds, with sums and maxima");
	CHECK(rest_is_untouched(&a) && rest_is_untouched(&b), "only notices were written");
	close_channel(&a);
	close_channel(&b);
}

/* The contents of the last of these signals. */
static volatile int got_number, got_code, got_value;

static void note(int number, siginfo_t *info, void *context)
{
	(void)context;
	got_code = info->si_errno;
	got_value = info->si_int;
	got_number = number;
}

static int got(int number, int code, int value)
{
	for (int i = 0; i < 1000 && got_number != number; i++)
		usleep(10000);
	return got_number == number && got_code == code && got_value == value;
}

static void signals(struct coords me)
{
	int tni = barrier_tni(1);
	struct channel a = open_channel(tni, 6), b = open_channel(tni, 5), c = open_channel(tni, 4);
	struct sigaction action = { .sa_sigaction = note, .sa_flags = SA_SIGINFO };
	int number = SIGRTMIN + 3, other = SIGRTMIN + 4;

	sigaction(number, &action, NULL);
	sigaction(other, &action, NULL);
	WORKS(ioctl(a.fd, TOF_IOCTL_SET_RT_SIGNAL, &number), "SET_RT_SIGNAL of a channel");
	WORKS(ioctl(b.fd, TOF_IOCTL_SET_RT_SIGNAL, &other), "and another one");

	uint64_t values[6] = { 1 };
	WORKS(link_to(&a, me, tni, 5, 3), "a member");
	WORKS(link_to(&b, me, tni, 6, 3), "another one");
	start(&a, SUM, 1, values);
	start(&b, MAX, 1, values);
	CHECK(wait_round(&a, values, 20) == MISMATCH && wait_round(&b, values, 20) == MISMATCH,
	      "different operations: both are told");
	CHECK(got(number, 2, tni << 8 | 6) || got(other, 2, tni << 8 | 5),
	      "SIGNAL_STATE_ERROR: signal %d, code %d, value %#x", got_number, got_code, got_value);
	WORKS(ioctl(a.fd, TOF_IOCTL_DISABLE_BCH), "DISABLE_BCH");
	WORKS(ioctl(b.fd, TOF_IOCTL_DISABLE_BCH), "DISABLE_BCH");
	got_number = 0;

	WORKS(link_to(&a, me, tni, 5, 100), "a member in round 100");
	WORKS(link_to(&b, me, tni, 6, 500), "the other one in round 500");
	start(&b, BARRIER, 0, NULL);
	CHECK(got(number, 1, tni << 8 | 6), "BSEQ_UNMATCH: signal %d, code %d, value %#x", got_number,
	      got_code, got_value);
	WORKS(ioctl(a.fd, TOF_IOCTL_DISABLE_BCH), "DISABLE_BCH");
	WORKS(ioctl(b.fd, TOF_IOCTL_DISABLE_BCH), "DISABLE_BCH");

	/* a waits for b, but c comes. */
	got_number = 0;
	WORKS(link_to(&a, me, tni, 5, 9), "a member");
	WORKS(link_to(&c, me, tni, 6, 9), "one that it does not know");
	start(&c, BARRIER, 0, NULL);
	CHECK(got(number, 0, tni << 8 | 6), "NODE_ADDRESS_UNMATCH: signal %d, code %d, value %#x",
	      got_number, got_code, got_value);
	close_channel(&a);
	close_channel(&b);
	close_channel(&c);
}

/* A process ends in the middle of a round: its channel and gates are free at once. */
static void killed(struct coords me)
{
	int good = 1, tni = barrier_tni(2);

	for (int i = 0; i < 20; i++) {
		int pipes[2];
		char byte;

		if (pipe(pipes))
			die("pipe");
		pid_t child = fork();
		if (child == 0) {
			struct channel a = open_channel(tni, 1), b = open_channel(tni, 2);
			uint64_t values[6];

			if (link_to(&a, me, tni, 2, i) || link_to(&b, me, tni, 1, i))
				_exit(1);
			for (int round = 0;; round++) {
				if (round == 3)
					(void)!write(pipes[1], "x", 1);
				start(&a, BARRIER, 0, NULL);
				start(&b, BARRIER, 0, NULL);
				if (wait_round(&a, values, 20) < 0 || wait_round(&b, values, 20) < 0)
					_exit(1);
			}
		}
		close(pipes[1]);
		good &= read(pipes[0], &byte, 1) == 1;
		close(pipes[0]);
		usleep(i * 300);
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
	}
	CHECK(good, "channels of 20 processes that were killed");
}

static int meet(int me, int count, struct coords other)
{
	int good = 1, tni = barrier_tni(4);
	struct channel c = open_channel(tni, 3);
	uint64_t value, sum[6];

	if (link_to(&c, other, tni, 3, 1))
		die("ENABLE_BCH");
	/* Signals to gates that are not set up are lost, so the parent waits for this line. */
	printf("ready\n");
	fflush(stdout);
	for (int i = 0; i < 6000 && access("/tmp/go", F_OK); i++)
		usleep(10000);
	for (int i = 0; i < count; i++) {
		value = i * (me + 1);
		start(&c, SUM, 1, &value);
		good &= wait_round(&c, sum, 60) == SUM && sum[0] == (uint64_t)i * 3;
	}
	CHECK(good, "%d rounds between two nodes", count);
	close_channel(&c);
	return finish();
}

int main(int argc, char **argv)
{
	if (argc == 10 && !strcmp(argv[1], "meet")) {
		struct coords other = { atoi(argv[4]), atoi(argv[5]), atoi(argv[6]), atoi(argv[7]),
			atoi(argv[8]), atoi(argv[9]) };

		return meet(atoi(argv[2]), atoi(argv[3]), other);
	}
	struct coords me = my_coords();

	rounds(me);
	signals(me);
	killed(me);
	return finish();
}

// SPDX-License-Identifier: GPL-2.0
/*
 * A queue or channel is its opener's: no other process, program or user does anything with it, and
 * the opener does nothing by it to those whom it may not signal. What other nodes can cause ends
 * nobody. Run as root.
 *
 *	rights
 *	rights kept FD    what a user executes, a set-uid program: FD is a channel of the user's
 */
#include "channel.h"

enum { USER = 2001 };

/* Becomes a user for good. */
static void become(unsigned int uid)
{
	if (setresgid(uid, uid, uid) || setresuid(uid, uid, uid))
		_exit(99);
}

static int exit_code(pid_t pid)
{
	int status = -1;

	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* All that a file can be asked; how much of it was not refused with one of these errors. */
static int not_refused(int queue, int channel, int code)
{
	char word[8];
	int number = SIGRTMIN, stag = 4096, result = 0;
	struct tof_init_cq init = { .version = TOF_UAPI_VERSION };
	struct tof_alloc_stag add = { .stag = -1, .va = word, .len = sizeof(word) };
	struct tof_free_stags take = { .num = 1, .stags = &stag };
	struct tof_enable_bch enable = { 0 };

#define REFUSED(call) (result = result << 1 | ((call) != -1 || errno != code))
	REFUSED(ioctl(queue, TOF_IOCTL_INIT_CQ, &init));
	REFUSED(ioctl(queue, TOF_IOCTL_ALLOC_STAG, &add));
	REFUSED(ioctl(queue, TOF_IOCTL_FREE_STAGS, &take));
	REFUSED(ioctl(queue, TOF_IOCTL_SET_RT_SIGNAL, &number));
	REFUSED(ioctl(channel, TOF_IOCTL_ENABLE_BCH, &enable));
	REFUSED(ioctl(channel, TOF_IOCTL_DISABLE_BCH));
	REFUSED(ioctl(channel, TOF_IOCTL_SET_RT_SIGNAL, &number));
	REFUSED(read(channel, word, sizeof(word)));
	REFUSED(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, queue, 0) == MAP_FAILED ? -1 : 0);
	REFUSED(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, queue, PAGE) == MAP_FAILED ? -1 : 0);
	REFUSED(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, channel, 0) == MAP_FAILED ? -1 : 0);
	return result;
}

static void files_are_their_openers(struct coords me)
{
	struct queue q = open_queue(0, 0);
	struct channel c = open_channel(barrier_tni(0), 0);
	uint8_t *buffer = memory(PAGE);
	int64_t own = add_memory(&q, buffer, PAGE, -1, 0);

	WORKS(link_to(&c, me, c.tni, 1, 1), "a queue and a channel");
	fflush(stdout);
	pid_t pid = fork();
	if (!pid)
		_exit(not_refused(q.fd, c.fd, EPERM) != 0);
	CHECK(exit_code(pid) == 0, "a child does nothing with them");
	pid = fork();
	if (!pid) {
		become(USER);
		_exit(not_refused(q.fd, c.fd, EPERM) != 0);
	}
	CHECK(exit_code(pid) == 0, "nor does another user's");
	CHECK(put(&q, me, 0, own, own, 8) == 0, "they work on");
	pid = fork();
	if (!pid) {
		struct queue own = open_queue(0, 1);
		struct channel channel = open_channel(barrier_tni(0), 2);

		become(USER);
		_exit(not_refused(own.fd, channel.fd, EACCES) != 0);
	}
	CHECK(exit_code(pid) == 0, "nor does the opener as another user");
	close_channel(&c);
	close_queue(&q);
}

/* A user's channel that waits for a member which is not there, and gets unexpected signals. */
static struct channel waiting(struct coords me)
{
	struct channel c = open_channel(barrier_tni(0), 3);

	if (link_to(&c, me, c.tni, 4, 9))
		_exit(98);
	return c;
}

/* Signals of a gate that the channel above does not know. */
static void send_unexpected(struct coords me)
{
	struct channel c = open_channel(barrier_tni(0), 5);

	if (link_to(&c, me, c.tni, 3, 9))
		_exit(97);
	start(&c, BARRIER, 0, NULL);
	usleep(300000);
	close_channel(&c);
}

static uint64_t exceptions(struct channel *c)
{
	uint64_t word = 0;

	return read(c->fd, &word, sizeof(word)) == sizeof(word) ? word : ~0ull;
}

/* What a victim is like. */
enum kind { DEFAULT, CHOSEN, HANDLED };

static volatile int handled;

static void on_signal(int number)
{
	handled = number;
}

/* Is alive, and knows, after it was sent what it does not expect. */
static int victim(struct coords me, enum kind kind, int go, int ready)
{
	struct channel c = waiting(me);
	int number = SIGRTMIN + 1;
	char byte;

	if (kind == HANDLED)
		signal(number, on_signal);
	if (kind != DEFAULT && ioctl(c.fd, TOF_IOCTL_SET_RT_SIGNAL, &number))
		return 1;
	/* NODE_ADDRESS_UNMATCH. */
	(void)!write(ready, "x", 1);
	while (read(go, &byte, 1) < 0)
		;
	if (exceptions(&c) != 1)
		return 2;
	return handled != (kind == HANDLED ? number : 0) ? 3 : 0;
}

static void peers_end_nobody(struct coords me)
{
	static const char *const names[] = { "default signal", "signal of its own choice",
		"signal that it handles" };
	long before = health("peer_exceptions");

	for (enum kind kind = DEFAULT; kind <= HANDLED; kind++) {
		int go[2], ready[2];
		char byte;

		if (pipe(go) || pipe(ready))
			die("pipe");
		fflush(stdout);
		pid_t pid = fork();
		if (!pid) {
			become(USER);
			_exit(victim(me, kind, go[0], ready[1]));
		}
		CHECK(read(ready[0], &byte, 1) == 1, "a victim");
		/* As on another node: the same user there has the same group. */
		pid_t sender = fork();
		if (!sender) {
			become(USER);
			send_unexpected(me);
			_exit(0);
		}
		CHECK(exit_code(sender) == 0, "a signal of a gate that it does not know");
		(void)!write(go[1], "x", 1);
		int code = exit_code(pid);
		CHECK(code == 0, "one with the %s lives on, and knows: %d", names[kind], code);
		close(go[0]), close(go[1]), close(ready[0]), close(ready[1]);
	}
	if (before >= 0)
		CHECK(health("peer_exceptions") == before + 3, "health counts them");
}

/* Notices that a process does not read, of another one's commands: MRQ_OVERFLOW. */
static void floods_end_nobody(struct coords me)
{
	int ready[2], go[2];
	int64_t address;
	char byte;

	if (pipe(ready) || pipe(go))
		die("pipe");
	fflush(stdout);
	pid_t pid = fork();
	if (!pid) {
		become(USER);
		struct queue q = open_queue(0, 0);

		address = add_memory(&q, memory(PAGE), PAGE, -1, 0);
		(void)!write(ready[1], &address, sizeof(address));
		while (read(go[0], &byte, 1) < 0)
			;
		_exit(0);
	}
	CHECK(read(ready[0], &address, sizeof(address)) == sizeof(address), "a victim's queue");
	pid_t sender = fork();
	if (!sender) {
		become(USER);
		struct queue q = open_queue(0, 1);
		int64_t own = add_memory(&q, memory(PAGE), PAGE, -1, 0);

		for (int i = 0; i < 3 * MRQ_ENTRIES; i++) {
			post_command(&q, PUT, me, 0, address, own, 8, REMOTE_NOTICE);
			ring(&q);
			if (wait_tcq(&q) < 0)
				_exit(1);
		}
		usleep(300000);
		_exit(0);
	}
	CHECK(exit_code(sender) == 0, "more notices than fit");
	(void)!write(go[1], "x", 1);
	int code = exit_code(pid);
	CHECK(code == 0, "it lives on: %d", code);
}

/* The set-uid program that a user starts, with a channel of the user's. */
static int kept(int fd)
{
	char byte;

	if (setresuid(0, 0, 0) || getuid())
		return 90;
	if (not_refused(fd, fd, EPERM))
		return 91;
	(void)!write(STDOUT_FILENO, "x", 1);
	/* The user's next signals come now. */
	while (read(STDIN_FILENO, &byte, 1) < 0)
		;
	return 0;
}

static void programs_of_others_get_no_signals(struct coords me, const char *self)
{
	static const char program[] = "/tmp/rights-suid";
	char copy[300];
	int in[2], out[2];
	char byte;

	snprintf(copy, sizeof(copy), "cp %s %s && chmod 4755 %s", self, program, program);
	WORKS(system(copy), "a set-uid program");
	if (pipe(in) || pipe(out))
		die("pipe");
	fflush(stdout);
	pid_t pid = fork();
	if (!pid) {
		become(USER);
		struct channel c = waiting(me);
		char fd[16];

		snprintf(fd, sizeof(fd), "%d", c.fd);
		dup2(in[0], STDIN_FILENO);
		dup2(out[1], STDOUT_FILENO);
		execl(program, program, "kept", fd, NULL);
		_exit(96);
	}
	close(out[1]);
	CHECK(read(out[0], &byte, 1) == 1, "has a channel of the user who started it");
	pid_t sender = fork();
	if (!sender) {
		become(USER);
		if (kill(pid, SIGTERM) == 0 || errno != EPERM)
			_exit(1);
		send_unexpected(me);
		_exit(0);
	}
	CHECK(exit_code(sender) == 0, "to which the user can send no signal");
	(void)!write(in[1], "x", 1);
	int code = exit_code(pid);
	CHECK(code == 0, "nor can the channel: %d", code);
	unlink(program);
}

int main(int argc, char **argv)
{
	struct coords me = my_coords();

	if (argc == 3 && !strcmp(argv[1], "kept"))
		return kept(atoi(argv[2]));
	files_are_their_openers(me);
	peers_end_nobody(me);
	floods_end_nobody(me);
	programs_of_others_get_no_signals(me, argv[0]);
	return finish();
}

// SPDX-License-Identifier: GPL-2.0
/* Every ioctl with good and bad arguments, mmap, and the permissions of files. Run as root. */
#include "common.h"

static void *const BAD = (void *)0xdead0000;
static struct generation has;

static int open_channel(int tni, int bch)
{
	char name[64];

	snprintf(name, sizeof(name), "/proc/tofu/dev/tni%dbch%d", tni, bch);
	return open(name, O_RDWR);
}

/* There are files for all that the controller has and processes may use, and no others. */
static void files(void)
{
	int last = has.tnis - 1, user = has.cqs - 2;
	int queue = open_node(last, user), channel = open_channel(has.barrier_tnis - 1, has.channels - 1);

	CHECK(queue >= 0, "%s: queue %d of TNI %d", has.name, user, last);
	CHECK(channel >= 0, "channel %d of TNI %d", has.channels - 1, has.barrier_tnis - 1);
	close(queue);
	close(channel);
	FAILS(open_node(0, user + 1), ENOENT, "queue %d is the kernel's", user + 1);
	FAILS(open_node(0, has.cqs), ENOENT, "there is no queue %d", has.cqs);
	FAILS(open_node(has.tnis, 0), ENOENT, "there is no TNI %d", has.tnis);
	FAILS(open_channel(0, has.channels), ENOENT, "channel %d is nobody's", has.channels);
	FAILS(open_channel(has.barrier_tnis, 0), ENOENT, "TNI %d has no channels", has.barrier_tnis);
}

static void numbers(void)
{
	CHECK(TOF_IOCTL_INIT_CQ == 0xc0086400, "numbers of ioctls");
	CHECK(sizeof(struct tof_init_cq) == 32 && sizeof(struct tof_alloc_stag) == 32 &&
	      sizeof(struct tof_free_stags) == 16 && sizeof(struct tof_enable_bch) == 24 &&
	      sizeof(struct tof_set_bg) == 56 && sizeof(struct tof_subnet) == 20 &&
	      sizeof(struct tof_reg_user) == 48 && sizeof(struct tof_notify_linkdown) == 16 &&
	      sizeof(struct tof_port_stat) == 264 && sizeof(struct tof_cq_stat) == 24 &&
	      sizeof(struct tof_load_register) == 24 && sizeof(struct tof_load_resource) == 32,
	      "sizes of arguments");
}

static void init_cq(void)
{
	struct queue q = prepare_queue(0, 0);
	struct tof_init_cq good = init_argument(&q), a;
	struct tof_alloc_stag stag = { .stag = -1, .va = (void *)q.toq, .len = 1 };
	struct tof_free_stags none = { 0 };

	FAILS(open_node(0, 0), EBUSY, "a queue is opened once");
	FAILS(ioctl(q.fd, TOF_IOCTL_ALLOC_STAG, &stag), EPERM, "ALLOC_STAG before INIT_CQ");
	FAILS(ioctl(q.fd, TOF_IOCTL_FREE_STAGS, &none), EPERM, "FREE_STAGS before INIT_CQ");
	CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, q.fd, PAGE) == MAP_FAILED && errno == EPERM,
	      "no table before INIT_CQ");
	FAILS(ioctl(q.fd, TOF_IOCTL_INIT_CQ, NULL), EFAULT, "INIT_CQ without argument");
	FAILS(ioctl(q.fd, TOF_IOCTL_INIT_CQ, BAD), EFAULT, "INIT_CQ with a bad pointer");
#define BAD_INIT(field, value, code) do { \
	a = good; \
	a.field = value; \
	FAILS(ioctl(q.fd, TOF_IOCTL_INIT_CQ, &a), code, "INIT_CQ with " #field " " #value); \
} while (0)
	BAD_INIT(version, 0x2900, EINVAL);
	BAD_INIT(version, 0, EINVAL);
	BAD_INIT(session_mode, 2, EINVAL);
	if (!has.sessions)
		BAD_INIT(session_mode, 1, EOPNOTSUPP);
	BAD_INIT(toq_size, 6, EINVAL);
	BAD_INIT(mrq_size, 255, EINVAL);
	BAD_INIT(num_stag, 3, EINVAL);
	BAD_INIT(tcq_cinj, 2, EINVAL);
	BAD_INIT(mrq_cinj, 2, EINVAL);
	BAD_INIT(toq_mem, NULL, EINVAL);
	BAD_INIT(tcq_mem, (void *)((char *)q.tcq + 4), EINVAL);
	BAD_INIT(mrq_mem, BAD, EFAULT);
	BAD_INIT(toq_mem, (void *)-4096, EINVAL);
	/* Larger than the memory that is mapped. */
	BAD_INIT(mrq_size, 5, EFAULT);
	WORKS(ioctl(q.fd, TOF_IOCTL_INIT_CQ, &good), "INIT_CQ after all that");
	FAILS(ioctl(q.fd, TOF_IOCTL_INIT_CQ, &good), EBUSY, "INIT_CQ twice");
	FAILS(ioctl(q.fd, TOF_IOCTL_ENABLE_BCH, &good), ENOTTY, "ENABLE_BCH on a queue");
	FAILS(ioctl(q.fd, TOF_IOCTL(13), &good), ENOTTY, "an unknown ioctl");
	close_queue(&q);
	q = open_queue(0, 0);
	CHECK(1, "opened again");
	close_queue(&q);
}

static void stags(void)
{
	struct queue q = open_queue(0, 0);
	size_t len = 1 << 20;
	char *buffer = memory(len);
	struct tof_alloc_stag a;

#define BAD_STAG(f, s, v, l, code, what) do { \
	a = (struct tof_alloc_stag){ .flags = f, .stag = s, .va = v, .len = l }; \
	FAILS(ioctl(q.fd, TOF_IOCTL_ALLOC_STAG, &a), code, "ALLOC_STAG with " what); \
} while (0)
	FAILS(ioctl(q.fd, TOF_IOCTL_ALLOC_STAG, BAD), EFAULT, "ALLOC_STAG with a bad pointer");
	BAD_STAG(4, -1, buffer, 1, EINVAL, "an unknown flag");
	BAD_STAG(TOF_STAG_NEW | 4, -1, buffer, 1, EINVAL, "another one");
	BAD_STAG(0, -2, buffer, 1, EINVAL, "STag -2");
	BAD_STAG(0, 4096, buffer, 1, EINVAL, "STag 4096");
	BAD_STAG(0, -1, NULL, 1, EINVAL, "no address");
	BAD_STAG(0, -1, buffer, 0, EINVAL, "no length");
	BAD_STAG(0, -1, BAD, 1, EINVAL, "memory that is not there");
	BAD_STAG(0, -1, buffer, -1ul, EINVAL, "all memory");
	BAD_STAG(0, -1, buffer, 1ul << 41, EINVAL, "more than an offset can say");
	mprotect(buffer, PAGE, PROT_READ);
	BAD_STAG(0, -1, buffer, 1, EINVAL, "memory that cannot be written");
	int64_t only = add_memory(&q, buffer, 1, -1, TOF_STAG_READ_ONLY);
	CHECK(only >= 0, "such memory to be read");
	mprotect(buffer, PAGE, PROT_READ | PROT_WRITE);
	CHECK(stag_of(only) >= 4096 && stag_of(only) % 2 == 1, "read only: an odd STag");
	int64_t any = add_memory(&q, buffer + 0x1234, 5000, -1, 0);
	CHECK(any >= 0 && stag_of(any) >= 4096 && stag_of(any) % 2 == 0, "an even STag");
	CHECK((any & 0xffff) == ((uintptr_t)(buffer + 0x1234) & 0xffff), "offset has the low 16 bits");
	int64_t special = add_memory(&q, buffer + 0x1234, 5000, 11, 0);
	CHECK(stag_of(special) == 11 && (special & 0xffffffff) == 0x34, "an STag of one's own choice");
	BAD_STAG(0, 11, buffer, 1, EBUSY, "an STag that is taken");

	int list[] = { stag_of(only), 9, stag_of(any), stag_of(any) };
	struct tof_free_stags f = { .num = 4, .stags = list };

	FAILS(ioctl(q.fd, TOF_IOCTL_FREE_STAGS, &f), ENOENT, "FREE_STAGS with some that are not");
	CHECK(f.num == 2 && list[0] == -1 && list[1] == 9 && list[2] == -1 && list[3] != -1,
	      "the others are freed");
	f = (struct tof_free_stags){ .num = 4, .stags = (int[]){ 8192, 1, 1, 1 } };
	FAILS(ioctl(q.fd, TOF_IOCTL_FREE_STAGS, &f), EINVAL, "an STag beyond the table");
	f = (struct tof_free_stags){ .num = 1, .stags = (int[]){ -1 } };
	FAILS(ioctl(q.fd, TOF_IOCTL_FREE_STAGS, &f), EINVAL, "a negative STag");
	f = (struct tof_free_stags){ .num = 1025, .stags = list };
	FAILS(ioctl(q.fd, TOF_IOCTL_FREE_STAGS, &f), EINVAL, "more than 1024 STags");
	f = (struct tof_free_stags){ .num = 1, .stags = BAD };
	FAILS(ioctl(q.fd, TOF_IOCTL_FREE_STAGS, &f), EFAULT, "a bad list");
	f = (struct tof_free_stags){ .num = 1, .stags = (int[]){ 11 } };
	WORKS(ioctl(q.fd, TOF_IOCTL_FREE_STAGS, &f), "the special one is freed");
	FAILS(ioctl(q.fd, TOF_IOCTL_FREE_STAGS, &f), EINVAL, "freed twice");

	/* Until there are no more: half of the table beyond the special ones is for writing. */
	int count = 0;
	while (add_memory(&q, buffer, 1, -1, TOF_STAG_NEW) >= 0)
		count++;
	CHECK(errno == ENOSPC && count == 2048, "%d STags, then none", count);
	close_queue(&q);
	munmap(buffer, len);
}

/* The same memory has one STag, however often it is registered, until its pages change. */
static void again(void)
{
	struct queue q = open_queue(0, 1);
	enum { UNIT = 64 << 10, HUGE = 2 << 20 };
	char *area = memory(4 * HUGE);
	char *buffer = area + UNIT - ((uintptr_t)area & (UNIT - 1));
	char *large = area + 2 * HUGE - ((uintptr_t)area & (HUGE - 1));
	int64_t first = add_memory(&q, buffer + 100, 9000, -1, 0);
	int stag = stag_of(first);

	CHECK(first >= 0 && add_memory(&q, buffer + 100, 9000, -1, 0) == first, "the same STag again");
	CHECK(add_memory(&q, buffer + 5000, 10, -1, 0) == first + 4900, "of a part, too");
	CHECK(stag_of(add_memory(&q, buffer + 100, 9000, -1, TOF_STAG_READ_ONLY)) % 2,
	      "not for reading only");
	CHECK(stag_of(add_memory(&q, buffer + 100, 9000, -1, TOF_STAG_NEW)) != stag,
	      "not if a new one is wanted");
	CHECK(stag_of(add_memory(&q, buffer + 100, 2 * UNIT, -1, 0)) != stag, "not for more memory");
	CHECK(stag_of(add_memory(&q, buffer + 100, 9000, 7, 0)) == 7, "nor if one is named");
	int one = stag_of(add_memory(&q, large, HUGE, -1, 0));
	CHECK(stag_of(add_memory(&q, large, HUGE, -1, TOF_STAG_LARGE_PAGES)) != one,
	      "nor with pages of another size");

	/* Other pages at the same place are other memory. */
	int64_t from = add_memory(&q, buffer, 64, 20, 0);
	madvise(buffer, 3 * PAGE, MADV_DONTNEED);
	buffer[101] = 77;
	int64_t fresh = add_memory(&q, buffer + 100, 9000, -1, 0);
	CHECK(fresh >= 0 && stag_of(fresh) != stag, "not when the pages have been replaced");
	CHECK(from >= 0 && put(&q, my_coords(), 0, from, fresh + 1, 1) == 0 && buffer[0] == 0,
	      "the device still has those that it had");
	struct tof_free_stags f = { .num = 1, .stags = (int[]){ stag_of(fresh) } };
	WORKS(ioctl(q.fd, TOF_IOCTL_FREE_STAGS, &f), "it is freed once");
	f.stags = (int[]){ stag_of(fresh) };
	FAILS(ioctl(q.fd, TOF_IOCTL_FREE_STAGS, &f), ENOENT, "however often it was given out");
	f = (struct tof_free_stags){ .num = 1, .stags = (int[]){ stag } };
	WORKS(ioctl(q.fd, TOF_IOCTL_FREE_STAGS, &f), "the old one has to be freed as well");
	munmap(area, 4 * HUGE);
	close_queue(&q);
}

/* Half of the node's memory, however often the same pages are counted. */
static void too_much(void)
{
	struct queue q = open_queue(1, 1);
	const size_t len = 64 << 20;
	const size_t all = (size_t)sysconf(_SC_PHYS_PAGES) * PAGE;
	char *area = memory(len);
	size_t count = 0;
	int64_t last = 0, address;

	while ((address = add_memory(&q, area, len, -1, TOF_STAG_NEW)) >= 0)
		last = address, count++;
	CHECK(errno == ENOMEM && count * len <= all / 2 && (count + 2) * len > all / 2,
	      "%zu times 64 MiB of %zu, then none", count, all >> 20);
	FAILS(ioctl(q.fd, TOF_IOCTL_ALLOC_STAG, &((struct tof_alloc_stag){ .stag = 3,
	      .va = area, .len = len })), ENOMEM, "nor with an STag of one's own choice");
	CHECK(add_memory(&q, area, PAGE, -1, 0) >= 0, "a page still fits");
	struct tof_free_stags f = { .num = 1, .stags = (int[]){ stag_of(last) } };
	WORKS(ioctl(q.fd, TOF_IOCTL_FREE_STAGS, &f), "one is freed");
	last = add_memory(&q, area, len, -1, TOF_STAG_NEW);
	CHECK(last >= 0 && put(&q, my_coords(), 1, last, last + PAGE, PAGE) == 0,
	      "and there is one again");
	close_queue(&q);
	munmap(area, len);
}

static void maps(void)
{
	struct queue q = open_queue(1, 0);
	char *buffer = memory(PAGE);
	uint64_t *table;

	/* Machines that have this interface have pages of 64 KiB. */
	enum { UNIT = 64 << 10 };
	volatile uint64_t *regs = mmap(NULL, UNIT, PROT_READ, MAP_SHARED, q.fd, 0);
	CHECK(regs != MAP_FAILED && regs[0x78 / 8] == q.regs[0x78 / 8], "64 KiB of registers");
	munmap((void *)regs, UNIT);
	CHECK(mmap(NULL, UNIT + PAGE, PROT_READ, MAP_SHARED, q.fd, 0) == MAP_FAILED && errno == EINVAL,
	      "but not those of the next queue");
	CHECK(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, q.fd, 0) == MAP_FAILED && errno == EINVAL,
	      "no private map of registers");
	CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, q.fd, 2 * UNIT) == MAP_FAILED &&
	      errno == EINVAL, "no register page of another queue");
	CHECK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, q.fd, PAGE) == MAP_FAILED &&
	      errno == EACCES, "the table is not for writing");
	table = mmap(NULL, 8192 * 16, PROT_READ, MAP_SHARED, q.fd, PAGE);
	CHECK(table != MAP_FAILED, "the table is for reading");
	if (table != MAP_FAILED) {
		FAILS(mprotect(table, PAGE, PROT_READ | PROT_WRITE), EACCES, "nor later");
		int64_t address = add_memory(&q, buffer, PAGE, 5, 0);

		CHECK(address >= 0 && (table[10] & 0xfffffffffull) == (uintptr_t)buffer >> 16,
		      "it has the STag");
		munmap(table, 8192 * 16);
	}
	CHECK(mmap(NULL, 8192 * 16 + PAGE, PROT_READ, MAP_SHARED, q.fd, PAGE) == MAP_FAILED,
	      "no more than the table");
	uint64_t *elsewhere = mmap(NULL, 8192 * 16, PROT_READ, MAP_SHARED, q.fd, UNIT);
	CHECK(elsewhere != MAP_FAILED && elsewhere[10] && elsewhere[10] == elsewhere[11],
	      "the table at 64 KiB, too");
	munmap(elsewhere, 8192 * 16);
	close_queue(&q);
	munmap(buffer, PAGE);
}

static volatile sig_atomic_t got_signal, got_code, got_value;

static void on_signal(int number, siginfo_t *info, void *context)
{
	(void)context;
	got_signal = number;
	got_code = info->si_errno;
	got_value = info->si_int;
}

static void signals(void)
{
	struct queue q = prepare_queue(2, 1);
	struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO };
	int number = SIGRTMIN + 3;

	FAILS(ioctl(q.fd, TOF_IOCTL_SET_RT_SIGNAL, BAD), EFAULT, "SET_RT_SIGNAL, bad pointer");
	FAILS(ioctl(q.fd, TOF_IOCTL_SET_RT_SIGNAL, &(int){ SIGKILL }), EINVAL, "no real-time signal");
	FAILS(ioctl(q.fd, TOF_IOCTL_SET_RT_SIGNAL, &(int){ 65 }), EINVAL, "no signal");
	WORKS(ioctl(q.fd, TOF_IOCTL_SET_RT_SIGNAL, &number), "SET_RT_SIGNAL");
	sigaction(number, &action, NULL);
	struct tof_init_cq init = init_argument(&q);
	WORKS(ioctl(q.fd, TOF_IOCTL_INIT_CQ, &init), "INIT_CQ");
	/* source_type: not from where the descriptor comes. */
	q.toq[0] = 3 << 5 | 1 << 7;
	__sync_synchronize();
	for (time_t end = time(NULL) + 5; !got_signal && time(NULL) <= end; )
		ring(&q);
	CHECK(got_signal == number, "a signal");
	CHECK(got_code == 1 && got_value == (2 << 8 | 1), "code %d value %#x", got_code, got_value);
	close_queue(&q);
}

static void statistics(void)
{
	int info = open("/proc/tofu/dev/info", O_RDWR);
	int control = open("/proc/tofu/dev/control", O_RDWR);
	struct tof_port_stat port = { .port_no = 1 };
	struct tof_cq_stat cq = { .tni = has.tnis - 1, .cqid = has.cqs - 1 };
	struct coords me = my_coords();
	uint64_t value = 0;

	WORKS(ioctl(info, TOF_IOCTL_GET_PORT_STAT, &port), "GET_PORT_STAT");
	CHECK(port.port_no == 1, "its argument stays");
	port.port_no = 0;
	FAILS(ioctl(info, TOF_IOCTL_GET_PORT_STAT, &port), EINVAL, "port 0");
	port.port_no = 11;
	FAILS(ioctl(info, TOF_IOCTL_GET_PORT_STAT, &port), EINVAL, "port 11");
	WORKS(ioctl(info, TOF_IOCTL_GET_CQ_STAT, &cq), "GET_CQ_STAT");
	cq.cqid = has.cqs;
	FAILS(ioctl(info, TOF_IOCTL_GET_CQ_STAT, &cq), EINVAL, "queue %d", has.cqs);
	cq = (struct tof_cq_stat){ .tni = has.tnis };
	FAILS(ioctl(info, TOF_IOCTL_GET_CQ_STAT, &cq), EINVAL, "TNI %d", has.tnis);
	cq = (struct tof_cq_stat){ .tni = -1 };
	FAILS(ioctl(info, TOF_IOCTL_GET_CQ_STAT, &cq), EINVAL, "TNI -1");
	FAILS(ioctl(info, TOF_IOCTL_GET_CQ_STAT, NULL), EFAULT, "no argument");

	struct tof_load_register reg = { .pa = 0x47000000, .len = 8, .buf = &value };
	WORKS(ioctl(control, TOF_IOCTL_LOAD_REGISTER, &reg), "LOAD_REGISTER");
	CHECK(value == ((uint64_t)me.x << 18 | me.y << 13 | me.z << 8 | me.a << 7 | me.b << 5 |
			me.c << 4), "the node's address");
	reg.pa = 0x47000004;
	FAILS(ioctl(control, TOF_IOCTL_LOAD_REGISTER, &reg), EINVAL, "not a register");
	reg.pa = 0x3ffffff8;
	FAILS(ioctl(control, TOF_IOCTL_LOAD_REGISTER, &reg), EINVAL, "in front of the registers");
	reg.pa = 0x50000000;
	FAILS(ioctl(control, TOF_IOCTL_LOAD_REGISTER, &reg), EINVAL, "behind the registers");
	reg = (struct tof_load_register){ .pa = 0x47000000, .len = 8, .buf = BAD };
	FAILS(ioctl(control, TOF_IOCTL_LOAD_REGISTER, &reg), EFAULT, "to a bad pointer");

	struct queue q = open_queue(3, 1);
	struct tof_load_resource rsc = { .rsc_id = 3 * 12 + 1, .len = 8, .buf = &value };
	q.toq[0] = 0x0123456789abcd00;
	WORKS(ioctl(control, TOF_IOCTL_LOAD_RESOURCE, &rsc), "LOAD_RESOURCE of a TOQ");
	CHECK(value == 0x0123456789abcd00, "what is in it");
	rsc.offset = TOQ_ENTRIES * 32;
	FAILS(ioctl(control, TOF_IOCTL_LOAD_RESOURCE, &rsc), EINVAL, "beyond it");
	rsc.offset = 0;
	rsc.rsc_id++;
	FAILS(ioctl(control, TOF_IOCTL_LOAD_RESOURCE, &rsc), ENOENT, "a queue that is not open");
	rsc.rsc_id = 228 + 3 * 12 + 1;
	WORKS(ioctl(control, TOF_IOCTL_LOAD_RESOURCE, &rsc), "a steering table");
	rsc.rsc_id = 297 + 3 * 12 + 1;
	WORKS(ioctl(control, TOF_IOCTL_LOAD_RESOURCE, &rsc), "a memory block table");
	rsc.rsc_id = 369;
	FAILS(ioctl(control, TOF_IOCTL_LOAD_RESOURCE, &rsc), EINVAL, "no resource");
	close_queue(&q);
	close(info);
	close(control);
}

static void administration(void)
{
	int control = open("/proc/tofu/dev/control", O_RDWR);
	int info = open("/proc/tofu/dev/info", O_RDWR);
	__u64 cqs[6] = { 0x7ff, 0x7ff, 0x7ff, 0x7ff, 0x7ff, 0x7ff }, bgs[6];
	struct tof_subnet subnet = { .nx = 33 };
	struct tof_reg_user user = { .uid = 4321, .gpid = 23456, .cqmask = cqs, .bgmask = bgs };
	struct tof_linkdown_item item = { .x = 1, .ports = 0x3ff };
	struct tof_notify_linkdown down = { .num = 1, .items = &item };

	for (int i = 0; i < 6; i++)
		bgs[i] = 0xfffffffffff;
	FAILS(ioctl(control, TOF_IOCTL_SET_SUBNET, &subnet), EINVAL, "a system of 33");
	subnet = (struct tof_subnet){ .nx = 4, .sx = 1, .lx = 5 };
	FAILS(ioctl(control, TOF_IOCTL_SET_SUBNET, &subnet), EINVAL, "a partition beyond the system");
	subnet = (struct tof_subnet){ .nx = 4, .sx = 4 };
	FAILS(ioctl(control, TOF_IOCTL_SET_SUBNET, &subnet), EINVAL, "a start beyond the system");
	subnet = (struct tof_subnet){ 0 };
	WORKS(ioctl(control, TOF_IOCTL_SET_SUBNET, &subnet), "SET_SUBNET");
	FAILS(ioctl(info, TOF_IOCTL_SET_SUBNET, &subnet), ENOTTY, "SET_SUBNET of info");
	/* A program that knows only TofuD gets what this controller has. */
	WORKS(ioctl(control, TOF_IOCTL_REG_USER, &user), "REG_USER");
	cqs[5] = 0x800;
	FAILS(ioctl(control, TOF_IOCTL_REG_USER, &user), EINVAL, "the kernel's queue");
	cqs[5] = 0;
	user.bgmask = BAD;
	FAILS(ioctl(control, TOF_IOCTL_REG_USER, &user), EFAULT, "a bad mask");
	WORKS(ioctl(control, TOF_IOCTL_NOTIFY_LINKDOWN, &down), "NOTIFY_LINKDOWN");
	item.ports = 0;
	WORKS(ioctl(control, TOF_IOCTL_NOTIFY_LINKDOWN, &down), "NOTIFY_LINKDOWN of none");
	item.b = 3;
	FAILS(ioctl(control, TOF_IOCTL_NOTIFY_LINKDOWN, &down), EINVAL, "B coordinate 3");
	down.num = -1;
	FAILS(ioctl(control, TOF_IOCTL_NOTIFY_LINKDOWN, &down), EINVAL, "-1 links");
	down.num = 1;
	down.items = BAD;
	FAILS(ioctl(control, TOF_IOCTL_NOTIFY_LINKDOWN, &down), EFAULT, "bad links");

	fflush(stdout);
	pid_t pid = fork();
	if (!pid) {
		/* Test numbers continue in the child, whose exit code is its number of failures. */
		int before = tests_failed;

		if (setgid(1) || setuid(4322))
			_exit(99);
		item.b = 0;
		down.items = &item;
		FAILS(open("/proc/tofu/dev/control", O_RDWR), EACCES, "control is root's");
		FAILS(ioctl(control, TOF_IOCTL_SET_SUBNET, &subnet), EPERM, "even if inherited");
		FAILS(ioctl(control, TOF_IOCTL_REG_USER, &user), EPERM, "REG_USER");
		FAILS(ioctl(info, TOF_IOCTL_NOTIFY_LINKDOWN, &down), EPERM, "NOTIFY_LINKDOWN");
		FAILS(ioctl(info, TOF_IOCTL_LOAD_REGISTER, &down), EPERM, "LOAD_REGISTER");
		FAILS(ioctl(info, TOF_IOCTL_LOAD_RESOURCE, &down), EPERM, "LOAD_RESOURCE");
		_exit(tests_failed - before);
	}
	int status = -1;
	waitpid(pid, &status, 0);
	tests_done += 6;
	CHECK(status == 0, "what is not for everybody");
	close(control);
	close(info);
}

static void channels(void)
{
	int bch = open_channel(0, 2);
	char *notice = memory(PAGE);
	struct tof_set_bg gate = { .gate = 2, .source_lgate = -1, .source_rgate = -1,
		.dest_lgate = -1, .dest_rgate = -1 };
	struct tof_enable_bch a = { .addr = notice, .num = 1, .bgs = &gate };

	CHECK(bch >= 0, "a barrier channel");
	FAILS(open_channel(0, 2), EBUSY, "is opened once");
	FAILS(ioctl(bch, TOF_IOCTL_DISABLE_BCH), EPERM, "DISABLE_BCH before ENABLE_BCH");
	FAILS(ioctl(bch, TOF_IOCTL_INIT_CQ, &a), ENOTTY, "INIT_CQ of a channel");
	FAILS(ioctl(bch, TOF_IOCTL_ENABLE_BCH, BAD), EFAULT, "ENABLE_BCH, bad pointer");
#define BAD_BCH(field, value, code) do { \
	struct tof_enable_bch b = a; \
	b.field = value; \
	FAILS(ioctl(bch, TOF_IOCTL_ENABLE_BCH, &b), code, "ENABLE_BCH with " #field " " #value); \
} while (0)
	BAD_BCH(addr, notice + 8, EINVAL);
	BAD_BCH(addr, NULL, EINVAL);
	BAD_BCH(addr, (void *)-4096, EINVAL);
	BAD_BCH(bseq, 1 << 24, EINVAL);
	BAD_BCH(bseq, -1, EINVAL);
	BAD_BCH(num, -1, EINVAL);
	BAD_BCH(num, has.barrier_tnis * has.gates + 1, EINVAL);
	BAD_BCH(bgs, BAD, EFAULT);
	gate.tni = has.barrier_tnis;
	BAD_BCH(num, 1, EINVAL);
	gate.tni = 0;
	gate.gate = has.gates;
	BAD_BCH(num, 1, EINVAL);
	gate.gate = 2;
	gate.dest_rgate = 1;
	gate.dest_raddr.x = 32;
	BAD_BCH(num, 1, EINVAL);
	gate.dest_raddr.x = 0;
	gate.dest_rgate = -1;
	CHECK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, bch, 0) != MAP_FAILED,
	      "its registers");
	WORKS(ioctl(bch, TOF_IOCTL_ENABLE_BCH, &a), "ENABLE_BCH");
	FAILS(ioctl(bch, TOF_IOCTL_ENABLE_BCH, &a), EBUSY, "twice");

	int other = open_channel(0, 3);
	FAILS(ioctl(other, TOF_IOCTL_ENABLE_BCH, &a), EBUSY, "a gate that is another channel's");
	WORKS(ioctl(bch, TOF_IOCTL_DISABLE_BCH), "DISABLE_BCH");
	FAILS(ioctl(bch, TOF_IOCTL_DISABLE_BCH), EPERM, "twice");
	WORKS(ioctl(other, TOF_IOCTL_ENABLE_BCH, &a), "then the other may have it");
	close(other);
	WORKS(ioctl(bch, TOF_IOCTL_ENABLE_BCH, &a), "and after it was closed");
	close(bch);
	munmap(notice, PAGE);
}

int main(void)
{
	has = generation();
	numbers();
	files();
	init_cq();
	stags();
	again();
	too_much();
	maps();
	signals();
	statistics();
	administration();
	channels();
	return finish();
}

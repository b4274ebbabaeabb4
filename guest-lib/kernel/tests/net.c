// SPDX-License-Identifier: GPL-2.0
/*
 * The interface tofu0 from inside: `net test` checks what ethtool and ioctls report and set, and
 * frames that cannot be delivered; `net counters` prints the counters of ethtool, `net link` its
 * state of the link; `net longest N` lets TCP pass and receive up to N bytes at a time. `net
 * health` prints what devlink's reporter says, `net sums N` the state of the checksums of the next
 * N short frames of TCP that come.
 */
#include <arpa/inet.h>
#include <linux/devlink.h>
#include <linux/ethtool.h>
#include <linux/if_ether.h>
#include <linux/if_link.h>
#include <linux/if_packet.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <net/if.h>

#include "common.h"
#include "genl.h"

static const char *name = "tofu0";
static int any;

static struct ifreq request(void *data)
{
	struct ifreq r = { .ifr_data = data };

	snprintf(r.ifr_name, sizeof(r.ifr_name), "%s", name);
	return r;
}

static int ethtool(void *data)
{
	struct ifreq r = request(data);

	return ioctl(any, SIOCETHTOOL, &r);
}

static int set_mtu(int mtu)
{
	struct ifreq r = request(NULL);

	r.ifr_mtu = mtu;
	return ioctl(any, SIOCSIFMTU, &r);
}

static int mtu(void)
{
	struct ifreq r = request(NULL);

	return ioctl(any, SIOCGIFMTU, &r) ? -1 : r.ifr_mtu;
}

enum { MOST = 128 };

static struct {
	struct ethtool_gstrings head;
	char name[MOST][ETH_GSTRING_LEN];
} names;

static struct {
	struct ethtool_stats head;
	__u64 value[MOST];
} values;

/* Reads names and values; returns how many there are. */
static int counters(void)
{
	struct ethtool_drvinfo info = { .cmd = ETHTOOL_GDRVINFO };

	if (ethtool(&info) || info.n_stats > MOST)
		die("ETHTOOL_GDRVINFO");
	names.head = (struct ethtool_gstrings){ .cmd = ETHTOOL_GSTRINGS, .string_set = ETH_SS_STATS,
		.len = info.n_stats };
	values.head = (struct ethtool_stats){ .cmd = ETHTOOL_GSTATS, .n_stats = info.n_stats };
	if (ethtool(&names) || ethtool(&values))
		die("ETHTOOL_GSTATS");
	return info.n_stats;
}

static long counter(const char *what)
{
	int i, n = counters();

	for (i = 0; i < n; i++)
		if (!strcmp(names.name[i], what))
			return values.value[i];
	return -1;
}

/* Of the kernel's linux/netdev.h, which is newer than the headers of some systems. */
enum {
	QUEUE_TYPE_RX,
	QUEUE_TYPE_TX,
	QSTATS_SCOPE_QUEUE = 1,
	CMD_QSTATS_GET = 12,
};

enum {
	QSTATS_IFINDEX = 1,
	QSTATS_QUEUE_TYPE,
	QSTATS_SCOPE = 4,
	QSTATS_RX_PACKETS = 8,
	QSTATS_RX_BYTES,
	QSTATS_TX_PACKETS,
	QSTATS_TX_BYTES,
};

/* The sum over all queues of a statistic that the kernel's netlink has of each; -1 without any. */
static long queue_stat(int what, int type, int *queues)
{
	struct answer m;
	int s = socket(AF_NETLINK, SOCK_RAW, NETLINK_GENERIC), family = family_of(s, "netdev"), left;
	__u32 index = if_nametoindex(name);
	__u64 by_queue = QSTATS_SCOPE_QUEUE, value;
	struct nlmsghdr *part;
	const void *at;
	long sum = -1;

	*queues = 0;
	ask(s, &m, family, CMD_QSTATS_GET, NLM_F_DUMP,
	    put_attr(put_attr(attrs_of(&m), QSTATS_IFINDEX, &index, 4),
		     QSTATS_SCOPE, &by_queue, 8));
	left = m.len;
	for (part = &m.head; NLMSG_OK(part, (unsigned int)left); part = NLMSG_NEXT(part, left)) {
		int len = part->nlmsg_len - NLMSG_LENGTH(GENL_HDRLEN);

		if (part->nlmsg_type != family)
			break;
		at = attr_in(attrs_of(part), len, QSTATS_QUEUE_TYPE);
		if (!at || *(const __u32 *)at != (__u32)type)
			continue;
		++*queues;
		at = attr_in(attrs_of(part), len, what);
		if (!at)
			continue;
		/* The kernel makes it 4 bytes if it fits. */
		value = ((const __u16 *)at)[-2] - NLA_HDRLEN == 8 ? *(const __u64 *)at :
			*(const __u32 *)at;
		sum = (sum < 0 ? 0 : sum) + value;
	}
	close(s);
	return sum;
}

/* What the kernel counts of the whole interface. */
static long total(const char *what)
{
	char path[128];
	long value = -1;
	FILE *file;

	snprintf(path, sizeof(path), "/sys/class/net/%s/statistics/%s", name, what);
	file = fopen(path, "r");
	if (!file || fscanf(file, "%ld", &value) != 1)
		die(path);
	fclose(file);
	return value;
}

/* A statistic of the queues is that of the interface, which may count on meanwhile. */
static void adds_up(const char *what, int attr, int type, int queues)
{
	int there;
	long before = total(what), sum = queue_stat(attr, type, &there), after = total(what);

	CHECK(there == queues, "%d queues have statistics", there);
	CHECK(before > 0 && before <= sum && sum <= after, "%s of all queues, %ld", what, sum);
}

/* Sends a frame as it is. */
static int send_frame(const void *frame, size_t len)
{
	struct sockaddr_ll to = { .sll_family = AF_PACKET, .sll_ifindex = if_nametoindex(name) };
	int fd = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL));
	int sent = sendto(fd, frame, len, 0, (void *)&to, sizeof(to));

	close(fd);
	return sent;
}

static void test(void)
{
	struct ethtool_drvinfo info = { .cmd = ETHTOOL_GDRVINFO };
	struct ethtool_value link = { .cmd = ETHTOOL_GLINK };
	struct ethtool_channels channels = { .cmd = ETHTOOL_GCHANNELS };
	struct ethtool_ringparam rings = { .cmd = ETHTOOL_GRINGPARAM };
	struct ethtool_coalesce before = { .cmd = ETHTOOL_GCOALESCE }, set, after = before;
	unsigned char frame[1514] = { 0 };
	struct ifreq mac = request(NULL);
	int old, there;
	long counted;
	int tries;

	WORKS(ethtool(&info), "ETHTOOL_GDRVINFO");
	CHECK(!strcmp(info.driver, "tofu"), "the driver is %s", info.driver);
	CHECK(counters() > 20, "there are counters");
	CHECK(counter("sent") > 0 && counter("received") > 0, "frames were counted");
	CHECK(counter("tni_send_system_tlp") > 0, "the device has counted, too");
	WORKS(ethtool(&link), "ETHTOOL_GLINK");
	CHECK(link.data == 1, "the link is up");
	WORKS(ethtool(&channels), "ETHTOOL_GCHANNELS");
	CHECK(channels.combined_count >= 1 && channels.combined_count <= 3 &&
	      channels.combined_count == channels.max_combined && !channels.tx_count,
	      "%u queues for each direction", channels.combined_count);
	WORKS(ethtool(&rings), "ETHTOOL_GRINGPARAM");
	CHECK(rings.rx_pending > 0 && rings.rx_pending == rings.rx_max_pending &&
	      rings.tx_pending > 0 && rings.tx_pending == rings.tx_max_pending,
	      "%u buffers to receive, %u to send", rings.rx_pending, rings.tx_pending);
	old = channels.combined_count;
	channels.cmd = ETHTOOL_SCHANNELS;
	channels.combined_count = 0;
	FAILS(ethtool(&channels), EINVAL, "no queue");
	channels.combined_count = old + 1;
	FAILS(ethtool(&channels), EINVAL, "more queues than there are");
	channels.combined_count = 1;
	WORKS(ethtool(&channels), "one queue");
	queue_stat(QSTATS_TX_PACKETS, QUEUE_TYPE_TX, &there);
	CHECK(there == 1, "%d is left", there);
	channels.combined_count = old;
	WORKS(ethtool(&channels), "as it was");
	adds_up("rx_packets", QSTATS_RX_PACKETS, QUEUE_TYPE_RX,
		channels.combined_count);
	adds_up("rx_bytes", QSTATS_RX_BYTES, QUEUE_TYPE_RX,
		channels.combined_count);
	adds_up("tx_packets", QSTATS_TX_PACKETS, QUEUE_TYPE_TX,
		channels.combined_count);
	adds_up("tx_bytes", QSTATS_TX_BYTES, QUEUE_TYPE_TX,
		channels.combined_count);

	WORKS(ethtool(&before), "ETHTOOL_GCOALESCE");
	set = before;
	set.cmd = ETHTOOL_SCOALESCE;
	set.rx_coalesce_usecs = 30;
	set.rx_max_coalesced_frames = 8;
	WORKS(ethtool(&set), "ETHTOOL_SCOALESCE");
	WORKS(ethtool(&after), "ETHTOOL_GCOALESCE again");
	CHECK(after.rx_coalesce_usecs == 30 && after.rx_max_coalesced_frames == 8, "it was set");
	set.tx_coalesce_usecs = 10;
	FAILS(ethtool(&set), EOPNOTSUPP, "there is none for sending");
	before.cmd = ETHTOOL_SCOALESCE;
	WORKS(ethtool(&before), "as it was");

	old = mtu();
	FAILS(set_mtu(1279), EINVAL, "an MTU below 1280");
	FAILS(set_mtu(65522), EINVAL, "an MTU above 65521");
	WORKS(set_mtu(65521), "the largest MTU");
	WORKS(set_mtu(1280), "the smallest MTU");
	WORKS(set_mtu(old), "as it was");

	WORKS(ioctl(any, SIOCGIFHWADDR, &mac), "SIOCGIFHWADDR");
	mac.ifr_hwaddr.sa_data[5] ^= 1;
	CHECK(ioctl(any, SIOCSIFHWADDR, &mac) == -1, "the hardware address is what it is");

	/* To a hardware address that no node has, and to one outside of the machine. */
	memcpy(frame, "\x04\x00\x00\x00\x00\x00", 6);
	counted = counter("no_such_node");
	CHECK(send_frame(frame, sizeof(frame)) == (int)sizeof(frame), "a frame for nobody");
	memcpy(frame, "\x02\x00\x1f\x1f\x1f\x0d", 6);
	CHECK(send_frame(frame, 60) == 60, "a frame to a node that is not there");
	CHECK(counter("no_such_node") == counted + 2, "both are counted");
	FAILS(send_frame(frame, 5), EINVAL, "no Ethernet header");

	/* A broadcast frame of an unknown kind is sent; a question for a node is answered. */
	memset(frame, 0xff, 6);
	frame[12] = 0x88;
	frame[13] = 0xb5;
	counted = counter("sent");
	for (tries = 0; tries < 16 && send_frame(frame, 100) == 100;)
		tries++;
	CHECK(tries == 16, "frames to all");
	/* The kernel sends some of its own after the MTU has changed. */
	counted = counter("sent") - counted;
	CHECK(counted >= 16 && counted < 32, "each is counted once");
}

/* Where the reports of devlink's reporter are. */
static void *reporter_at(struct answer *m, const char *bus, const char *device)
{
	void *at = attrs_of(m);

	at = put_attr(at, DEVLINK_ATTR_BUS_NAME, bus, strlen(bus) + 1);
	at = put_attr(at, DEVLINK_ATTR_DEV_NAME, device, strlen(device) + 1);
	return put_attr(at, DEVLINK_ATTR_HEALTH_REPORTER_NAME, "device", sizeof("device"));
}

/* Prints the node's health as devlink has it: state, reports, then the lines of a diagnosis. */
static void health_of_devlink(void)
{
	char path[64], to[256], *device;
	struct answer m;
	int s = socket(AF_NETLINK, SOCK_RAW, NETLINK_GENERIC), family = family_of(s, "devlink"), len;
	const struct nlattr *attr, *value;
	const void *reporter;
	const char *end;

	/* While the device is gone, ethtool knows nothing of the interface. */
	snprintf(path, sizeof(path), "/sys/class/net/%s/device", name);
	len = readlink(path, to, sizeof(to) - 1);
	if (len < 0)
		die(path);
	to[len] = 0;
	device = strrchr(to, '/') + 1;
	ask(s, &m, family, DEVLINK_CMD_HEALTH_REPORTER_GET, 0,
	    reporter_at(&m, "pci", device));
	len = m.len - NLMSG_LENGTH(GENL_HDRLEN);
	reporter = attr_in(attrs_of(&m), len, DEVLINK_ATTR_HEALTH_REPORTER);
	if (m.head.nlmsg_type != family || !reporter)
		die("DEVLINK_CMD_HEALTH_REPORTER_GET");
	len = ((const __u16 *)reporter)[-2] - NLA_HDRLEN;
	printf("healthy %d\nreports %llu\n",
	       !*(const __u8 *)attr_in(reporter, len, DEVLINK_ATTR_HEALTH_REPORTER_STATE),
	       *(const unsigned long long *)attr_in(reporter, len,
						    DEVLINK_ATTR_HEALTH_REPORTER_ERR_COUNT));
	ask(s, &m, family, DEVLINK_CMD_HEALTH_REPORTER_DIAGNOSE, 0,
	    reporter_at(&m, "pci", device));
	attr = attr_in(attrs_of(&m), m.len - NLMSG_LENGTH(GENL_HDRLEN), DEVLINK_ATTR_FMSG);
	if (m.head.nlmsg_type != family || !attr)
		die("DEVLINK_CMD_HEALTH_REPORTER_DIAGNOSE");
	end = (const char *)attr + ((const __u16 *)attr)[-2] - NLA_HDRLEN;
	/* Names, and the values that follow them. */
	for (value = attr; (const char *)value < end && value->nla_len >= NLA_HDRLEN;
	     value = (const void *)((const char *)value + NLA_ALIGN(value->nla_len))) {
		const char *text = (const char *)value + NLA_HDRLEN;

		if ((value->nla_type & NLA_TYPE_MASK) == DEVLINK_ATTR_FMSG_OBJ_NAME)
			printf("%s", text);
		else if ((value->nla_type & NLA_TYPE_MASK) == DEVLINK_ATTR_FMSG_OBJ_VALUE_DATA)
			printf(" %s\n", text);
	}
	close(s);
}

/* Sets the longest packets before segmentation, as `ip link set` does by these names. */
static void longest(__u32 bytes)
{
	/* The attributes of IPv4 are newer than the headers of some systems. */
	enum { GSO_IPV4 = 63, GRO_IPV4 = 64 };
	static const unsigned short what[] = { IFLA_GSO_MAX_SIZE, IFLA_GRO_MAX_SIZE, GSO_IPV4,
		GRO_IPV4 };
	struct {
		struct nlmsghdr head;
		struct ifinfomsg info;
		struct {
			struct rtattr attr;
			__u32 value;
		} values[4];
	} m = {
		.head = { .nlmsg_len = sizeof(m), .nlmsg_type = RTM_NEWLINK,
			.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK },
		.info = { .ifi_index = if_nametoindex(name) },
	};
	struct {
		struct nlmsghdr head;
		struct nlmsgerr error;
		char rest[256];
	} answer;
	int i, s = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);

	for (i = 0; i < 4; i++) {
		m.values[i].attr = (struct rtattr){ .rta_type = what[i],
			.rta_len = sizeof(m.values[i]) };
		m.values[i].value = bytes;
	}
	if (s < 0 || send(s, &m, sizeof(m), 0) != sizeof(m) ||
	    recv(s, &answer, sizeof(answer), 0) < (ssize_t)(sizeof(m.head) + sizeof(int)))
		die("RTM_NEWLINK");
	if (answer.error.error) {
		errno = -answer.error.error;
		die("IFLA_GSO_MAX_SIZE");
	}
	close(s);
}

/* The sum of a packet of TCP over IPv4 with its pseudo header; 0xffff if its checksum is right. */
static __u32 sum_of(const __u8 *ip)
{
	__u32 header = (ip[0] & 15) * 4, len = (ip[2] << 8 | ip[3]) - header, sum = 6 + len;

	for (__u32 i = 12; i < 20; i++)
		sum += ip[i] << (i & 1 ? 0 : 8);
	for (__u32 i = 0; i < len; i++)
		sum += ip[header + i] << (i & 1 ? 0 : 8);
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* What the kernel says of the frame of a message. */
static __u32 status_of(struct msghdr *m)
{
	struct tpacket_auxdata about = { 0 };
	struct cmsghdr *c = CMSG_FIRSTHDR(m);

	if (c && c->cmsg_level == SOL_PACKET && c->cmsg_type == PACKET_AUXDATA)
		memcpy(&about, CMSG_DATA(c), sizeof(about));
	return about.tp_status;
}

/* Reads short frames as a program does that knows nothing of checksums that are still partial. */
static void sums(int frames)
{
	int right = 0, wrong = 0, partial = 0, one = 1;
	struct timeval limit = { .tv_sec = 20 };
	struct sockaddr_ll to = { .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_IP) };
	int fd = socket(AF_PACKET, SOCK_DGRAM, 0);

	to.sll_ifindex = if_nametoindex(name);
	if (fd < 0 || setsockopt(fd, SOL_PACKET, PACKET_AUXDATA, &one, sizeof(one)) ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) ||
	    bind(fd, (void *)&to, sizeof(to)))
		die("packet socket");
	puts("ready");
	fflush(stdout);
	while (right + wrong + partial < frames) {
		static __u8 packet[1500];
		char control[CMSG_SPACE(sizeof(struct tpacket_auxdata))];
		struct sockaddr_ll from;
		struct iovec iov = { packet, sizeof(packet) };
		struct msghdr m = { &from, sizeof(from), &iov, 1, control, sizeof(control), 0 };
		ssize_t len = recvmsg(fd, &m, MSG_TRUNC);

		if (len < 0)
			break;
		if (from.sll_pkttype != PACKET_HOST || len < 40 || len > (ssize_t)sizeof(packet) ||
		    packet[9] != IPPROTO_TCP)
			continue;
		if (status_of(&m) & TP_STATUS_CSUMNOTREADY)
			partial++;
		else if (sum_of(packet) == 0xffff)
			right++;
		else
			wrong++;
	}
	printf("%d right, %d wrong, %d partial\n", right, wrong, partial);
}

int main(int argc, char **argv)
{
	int i, n;

	any = socket(AF_INET, SOCK_DGRAM, 0);
	if (any < 0)
		die("socket");
	if (argc == 2 && !strcmp(argv[1], "counters")) {
		n = counters();
		for (i = 0; i < n; i++)
			printf("%s %llu\n", names.name[i], (unsigned long long)values.value[i]);
		return 0;
	}
	if (argc == 2 && !strcmp(argv[1], "link")) {
		struct ethtool_value link = { .cmd = ETHTOOL_GLINK };

		if (ethtool(&link))
			die("ETHTOOL_GLINK");
		printf("%s\n", link.data ? "link" : "no link");
		return 0;
	}
	if (argc == 2 && !strcmp(argv[1], "health")) {
		health_of_devlink();
		return 0;
	}
	if (argc == 3 && !strcmp(argv[1], "longest")) {
		longest(atoi(argv[2]));
		return 0;
	}
	if (argc == 3 && !strcmp(argv[1], "sums")) {
		sums(atoi(argv[2]));
		return 0;
	}
	if (argc != 2 || strcmp(argv[1], "test")) {
		fprintf(stderr,
			"usage: net test | counters | link | health | longest N | sums N\n");
		return 2;
	}
	test();
	return finish();
}

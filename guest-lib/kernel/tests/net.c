// SPDX-License-Identifier: GPL-2.0
/*
 * The interface tofu0 from inside: `net test` checks what ethtool and ioctls report and set, and
 * frames that cannot be delivered; `net counters` prints the counters of ethtool, `net link` its
 * state of the link; `net longest N` lets TCP pass and receive up to N bytes at a time.
 */
#include <arpa/inet.h>
#include <linux/ethtool.h>
#include <linux/if_ether.h>
#include <linux/if_link.h>
#include <linux/if_packet.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <net/if.h>

#include "common.h"

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
	struct ethtool_coalesce before = { .cmd = ETHTOOL_GCOALESCE }, set, after = before;
	unsigned char frame[1514] = { 0 };
	struct ifreq mac = request(NULL);
	long counted;
	int old;

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
	CHECK(send_frame(frame, 100) == 100, "a frame to all");
	CHECK(counter("sent") == counted + 1, "it is counted once");
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
	if (argc == 3 && !strcmp(argv[1], "longest")) {
		longest(atoi(argv[2]));
		return 0;
	}
	if (argc != 2 || strcmp(argv[1], "test")) {
		fprintf(stderr, "usage: net test | net counters | net link | net longest N\n");
		return 2;
	}
	test();
	return finish();
}

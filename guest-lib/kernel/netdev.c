// SPDX-License-Identifier: GPL-2.0
/*
 * Network interfaces, for which the kernel's Rust bindings of Linux 7.3 have no counterpart.
 * Nothing is decided here but what follows from how the kernel keeps frames.
 */
#include <linux/dma-mapping.h>
#include <linux/etherdevice.h>
#include <linux/ethtool.h>
#include <linux/hrtimer.h>
#include <linux/ioport.h>
#include <linux/iommu.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/netdevice.h>
#include <linux/pci.h>
#include <linux/skbuff.h>
#include <linux/timer.h>
#include <linux/u64_stats_sync.h>
#include <linux/virtio_net.h>
#include <linux/xarray.h>
#include <net/gso.h>
#include <net/netdev_queues.h>

#include "netdev.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

static char *shape;
module_param(shape, charp, 0444);
MODULE_PARM_DESC(shape, "The machine's shape, such as 1x1x1x2x3x2. Without it there is no tofu0.");
static char *torus;
module_param(torus, charp, 0444);
MODULE_PARM_DESC(torus, "Which of X, Y and Z are rings, such as xz. Without it all are.");
static uint machine;
module_param(machine, uint, 0444);
MODULE_PARM_DESC(machine, "Number of the machine, 0 to 7, a part of addresses.");
static uint mtu = 1500;
module_param(mtu, uint, 0444);
MODULE_PARM_DESC(mtu, "Largest IP packet of interfaces at first, in bytes, 1280 to 65521.");
static uint longest = 256 << 10;
module_param(longest, uint, 0444);
MODULE_PARM_DESC(longest, "Longest packet of TCP at first, in bytes, 65536 to 262144.");
static uint queues = 1;
module_param(queues, uint, 0444);
MODULE_PARM_DESC(queues, "Queues of each interface for either direction, 1 to 3, on a TNI each.");
static bool copy;
module_param(copy, bool, 0444);
MODULE_PARM_DESC(copy, "Others fetch copies of frames, not what is in sockets' pages.");
static uint interfaces = 1;
module_param(interfaces, uint, 0444);
MODULE_PARM_DESC(interfaces, "0, 1 (tofu0 on TNI 0) or 2 (tofu1 on TNI 1, too).");

/*
 * Words of the kernel's command line that begin with "tofu." are parameters to modprobe, also those
 * that are for the programs of a node. These are known, so that nobody complains of them.
 */
static int ignore_parameter(const char *value, const struct kernel_param *parameter)
{
	return 0;
}

static const struct kernel_param_ops for_programs = {
	.set = ignore_parameter,
};

#define FOR_PROGRAMS(word) \
	module_param_cb(word, &for_programs, NULL, 0); \
	MODULE_PARM_DESC(word, "For programs of the node; the module leaves it alone.")
FOR_PROGRAMS(name);
FOR_PROGRAMS(nodes);
FOR_PROGRAMS(without);
FOR_PROGRAMS(ip);
FOR_PROGRAMS(net);
FOR_PROGRAMS(gateway);
FOR_PROGRAMS(dns);

const char *tofu_shim_param_shape(void)
{
	return shape;
}

const char *tofu_shim_param_torus(void)
{
	return torus;
}

u32 tofu_shim_param_machine(void)
{
	return machine;
}

u32 tofu_shim_param_mtu(void)
{
	return mtu;
}

u32 tofu_shim_param_interfaces(void)
{
	return interfaces;
}

u32 tofu_shim_param_queues(void)
{
	return queues;
}

/* A pair of queues, one for each direction. */
struct tofu_queue {
	void *link;
	struct net_device *dev;
	u16 number;
	struct napi_struct napi;
	/* Looks after what is on its way out while nothing comes in. */
	struct timer_list timer;
	/* Has what waits for a frame looked at when it has waited long enough. */
	struct hrtimer hrtimer;
	/*
	 * What has passed, in frames as the stack has them. Each is written by one context at a
	 * time: under the lock of its direction, or while the queue is polled.
	 */
	u64_stats_t rx_packets;
	u64_stats_t rx_bytes;
	u64_stats_t tx_packets;
	u64_stats_t tx_bytes;
	u64_stats_t tx_drops;
	u64_stats_t stops;
	u64_stats_t wakes;
};

struct tofu_net {
	/* Looks after the state of the ports. */
	struct timer_list service;
	/* The queues are open: the interface is up, and its device is not being reset. */
	bool open;
	/* Buffers of each queue. */
	u32 rx_buffers;
	u32 tx_buffers;
	unsigned int count;
	struct tofu_queue queues[] __counted_by(count);
};

static struct netdev_queue *tx_queue(struct tofu_queue *queue)
{
	return netdev_get_tx_queue(queue->dev, queue->number);
}

/* How often what is on its way out is looked after. */
#define TOFU_POLL_JIFFIES (HZ / 100 ? HZ / 100 : 1)
/* A frame that is longer than this is not contiguous in memory. */
#define TOFU_LINEAR 2000
/* Bytes of the longest packet that is sent as one. */
#define TOFU_LONGEST (256 << 10)
/* Bytes of TCP's data in what a packet is cut into for nodes that take no more than 64 KiB. */
#define TOFU_SEGMENT 65000
/* Bytes of such a frame that do: all headers. */
#define TOFU_HEAD 256
/* Bytes that may always be on their way: what the device sends until it is noticed that it has. */
#define TOFU_LIMIT SZ_64K
/* Bytes of memory that are mapped at a time to be read, which IOMMUs have a page for. */
#define TOFU_AREA SZ_2M
/* Ranges of memory that are known at most; others are not mapped. */
#define TOFU_RAM_RANGES 16

static int net_poll(struct napi_struct *napi, int budget)
{
	struct tofu_queue *queue = container_of(napi, struct tofu_queue, napi);
	int done = tofu_rs_net_poll(queue->link, queue, budget);
	/* In this the stack gets most of what came, and answers. */
	bool idle = done < budget && napi_complete_done(napi, done);

	if (tofu_rs_net_polled(queue->link, queue, idle))
		napi_schedule(napi);
	return done;
}

static void net_timer(struct timer_list *timer)
{
	struct tofu_queue *queue = timer_container_of(queue, timer, timer);

	napi_schedule(&queue->napi);
}

static enum hrtimer_restart net_hrtimer(struct hrtimer *timer)
{
	struct tofu_queue *queue = container_of(timer, struct tofu_queue, hrtimer);

	napi_schedule(&queue->napi);
	return HRTIMER_NORESTART;
}

static void net_service(struct timer_list *timer)
{
	struct tofu_net *net = timer_container_of(net, timer, service);

	tofu_rs_net_service(net->queues[0].link, &net->queues[0]);
	mod_timer(&net->service, jiffies + round_jiffies_relative(HZ));
}

/* Tells those who ask by netlink which context polls a queue; none does with @napi being NULL. */
static void name_napi(struct tofu_queue *queue, struct napi_struct *napi)
{
	netif_queue_set_napi(queue->dev, queue->number, NETDEV_QUEUE_TYPE_RX, napi);
	netif_queue_set_napi(queue->dev, queue->number, NETDEV_QUEUE_TYPE_TX, napi);
}

static void close_queue(struct tofu_queue *queue)
{
	name_napi(queue, NULL);
	napi_disable(&queue->napi);
	timer_delete_sync(&queue->timer);
	hrtimer_cancel(&queue->hrtimer);
	tofu_rs_net_stop(queue->link);
}

/* Queues that are used, the first ones of those that there are. */
static unsigned int in_use(const struct net_device *dev)
{
	return dev->real_num_tx_queues;
}

static int net_open(struct net_device *dev)
{
	struct tofu_net *net = netdev_priv(dev);
	unsigned int i;
	int error;

	for (i = 0; i < in_use(dev); i++) {
		error = tofu_rs_net_open(net->queues[i].link, &net->queues[i]);
		if (error) {
			while (i--)
				close_queue(&net->queues[i]);
			return error;
		}
		netdev_tx_reset_queue(tx_queue(&net->queues[i]));
		napi_enable(&net->queues[i].napi);
		name_napi(&net->queues[i], &net->queues[i].napi);
	}
	net->open = true;
	netif_tx_start_all_queues(dev);
	mod_timer(&net->service, jiffies);
	/* What has come before polling was allowed raises no interrupt any more. */
	local_bh_disable();
	for (i = 0; i < in_use(dev); i++)
		napi_schedule(&net->queues[i].napi);
	local_bh_enable();
	return 0;
}

static int net_stop(struct net_device *dev)
{
	struct tofu_net *net = netdev_priv(dev);
	unsigned int i;

	if (!net->open)
		return 0;
	net->open = false;
	netif_carrier_off(dev);
	netif_tx_disable(dev);
	timer_delete_sync(&net->service);
	for (i = 0; i < in_use(dev); i++)
		close_queue(&net->queues[i]);
	return 0;
}

static u16 net_select_queue(struct net_device *dev, struct sk_buff *skb, struct net_device *sb)
{
	struct tofu_net *net = netdev_priv(dev);

	if (in_use(dev) == 1)
		return 0;
	return tofu_rs_net_select(net->queues[0].link, skb, netdev_pick_tx(dev, skb, sb));
}

static netdev_tx_t net_xmit(struct sk_buff *skb, struct net_device *dev)
{
	struct tofu_net *net = netdev_priv(dev);
	struct tofu_queue *queue = &net->queues[skb_get_queue_mapping(skb)];

	if (!tofu_rs_net_xmit(queue->link, queue, skb, netdev_xmit_more()))
		return NETDEV_TX_BUSY;
	return NETDEV_TX_OK;
}

static void net_tx_timeout(struct net_device *dev, unsigned int number)
{
	struct tofu_net *net = netdev_priv(dev);

	netdev_warn(dev, "TX timeout on queue %u\n", number);
	napi_schedule(&net->queues[number].napi);
}

static const struct net_device_ops net_ops = {
	.ndo_open = net_open,
	.ndo_stop = net_stop,
	.ndo_select_queue = net_select_queue,
	.ndo_start_xmit = net_xmit,
	.ndo_tx_timeout = net_tx_timeout,
	.ndo_validate_addr = eth_validate_addr,
};

static void net_queue_stats_rx(struct net_device *dev, int number,
			       struct netdev_queue_stats_rx *stats)
{
	struct tofu_net *net = netdev_priv(dev);
	const struct tofu_queue *queue = &net->queues[number];

	stats->packets = u64_stats_read(&queue->rx_packets);
	stats->bytes = u64_stats_read(&queue->rx_bytes);
}

static void net_queue_stats_tx(struct net_device *dev, int number,
			       struct netdev_queue_stats_tx *stats)
{
	struct tofu_net *net = netdev_priv(dev);
	const struct tofu_queue *queue = &net->queues[number];

	stats->packets = u64_stats_read(&queue->tx_packets);
	stats->bytes = u64_stats_read(&queue->tx_bytes);
	stats->hw_drops = u64_stats_read(&queue->tx_drops);
	stats->stop = u64_stats_read(&queue->stops);
	stats->wake = u64_stats_read(&queue->wakes);
}

/* What has passed by queues that are not used any more. */
static void net_base_stats(struct net_device *dev, struct netdev_queue_stats_rx *rx,
			   struct netdev_queue_stats_tx *tx)
{
	struct netdev_queue_stats_rx rx_of;
	struct netdev_queue_stats_tx tx_of;
	struct tofu_net *net = netdev_priv(dev);

	rx->packets = 0;
	rx->bytes = 0;
	tx->packets = 0;
	tx->bytes = 0;
	tx->hw_drops = 0;
	tx->stop = 0;
	tx->wake = 0;
	for (unsigned int i = in_use(dev); i < net->count; i++) {
		net_queue_stats_rx(dev, i, &rx_of);
		rx->packets += rx_of.packets;
		rx->bytes += rx_of.bytes;
		net_queue_stats_tx(dev, i, &tx_of);
		tx->packets += tx_of.packets;
		tx->bytes += tx_of.bytes;
		tx->hw_drops += tx_of.hw_drops;
		tx->stop += tx_of.stop;
		tx->wake += tx_of.wake;
	}
}

static const struct netdev_stat_ops net_stat_ops = {
	.get_queue_stats_rx = net_queue_stats_rx,
	.get_queue_stats_tx = net_queue_stats_tx,
	.get_base_stats = net_base_stats,
};

static void net_drvinfo(struct net_device *dev, struct ethtool_drvinfo *info)
{
	strscpy(info->driver, "tofu", sizeof(info->driver));
	strscpy(info->bus_info, dev_name(dev->dev.parent), sizeof(info->bus_info));
}

static int net_sset_count(struct net_device *dev, int set)
{
	return set == ETH_SS_STATS ? tofu_rs_net_counter_count() : -EOPNOTSUPP;
}

static void net_strings(struct net_device *dev, u32 set, u8 *data)
{
	int i;

	for (i = 0; set == ETH_SS_STATS && i < tofu_rs_net_counter_count(); i++)
		ethtool_puts(&data, tofu_rs_net_counter_name(i));
}

static void net_stats(struct net_device *dev, struct ethtool_stats *stats, u64 *data)
{
	struct tofu_net *net = netdev_priv(dev);
	int n = tofu_rs_net_counter_count();
	unsigned int i;

	memset(data, 0, n * sizeof(*data));
	local_bh_disable();
	for (i = 0; i < net->count; i++)
		tofu_rs_net_counters(net->queues[i].link, data, n);
	local_bh_enable();
}

static int net_get_coalesce(struct net_device *dev, struct ethtool_coalesce *c,
			    struct kernel_ethtool_coalesce *kernel, struct netlink_ext_ack *ack)
{
	struct tofu_net *net = netdev_priv(dev);

	tofu_rs_net_coalesce(net->queues[0].link, &c->rx_coalesce_usecs,
			     &c->rx_max_coalesced_frames, false);
	return 0;
}

static int net_set_coalesce(struct net_device *dev, struct ethtool_coalesce *c,
			    struct kernel_ethtool_coalesce *kernel, struct netlink_ext_ack *ack)
{
	struct tofu_net *net = netdev_priv(dev);
	unsigned int i;

	for (i = 0; i < net->count; i++)
		tofu_rs_net_coalesce(net->queues[i].link, &c->rx_coalesce_usecs,
				     &c->rx_max_coalesced_frames, true);
	return 0;
}

static void net_channels(struct net_device *dev, struct ethtool_channels *channels)
{
	struct tofu_net *net = netdev_priv(dev);

	channels->max_combined = net->count;
	channels->combined_count = in_use(dev);
}

static int use_queues(struct net_device *dev, unsigned int n)
{
	struct tofu_net *net = netdev_priv(dev);
	int error = netif_set_real_num_queues(dev, n, n);

	for (unsigned int i = 0; i < net->count && !error; i++)
		tofu_rs_net_queues(net->queues[i].link, n);
	return error;
}

/* Takes the interface down for a moment. */
static int net_set_channels(struct net_device *dev, struct ethtool_channels *channels)
{
	struct tofu_net *net = netdev_priv(dev);
	unsigned int before = in_use(dev);
	bool open = net->open;
	int error;

	net_stop(dev);
	error = use_queues(dev, channels->combined_count);
	if (!error && open) {
		error = net_open(dev);
		if (error)
			use_queues(dev, before);
	}
	if (error && open && net_open(dev))
		netdev_err(dev, "the queues cannot be opened again: take it down and up\n");
	return error;
}

static void net_rings(struct net_device *dev, struct ethtool_ringparam *rings,
		      struct kernel_ethtool_ringparam *kernel, struct netlink_ext_ack *ack)
{
	struct tofu_net *net = netdev_priv(dev);

	rings->rx_max_pending = net->rx_buffers;
	rings->rx_pending = net->rx_buffers;
	rings->tx_max_pending = net->tx_buffers;
	rings->tx_pending = net->tx_buffers;
}

static int net_link_ksettings(struct net_device *dev, struct ethtool_link_ksettings *settings)
{
	/* 6.8 GB/s, what a link carries. */
	settings->base.speed = 54400;
	settings->base.duplex = DUPLEX_FULL;
	settings->base.port = PORT_OTHER;
	settings->base.autoneg = AUTONEG_DISABLE;
	return 0;
}

static const struct ethtool_ops net_ethtool_ops = {
	.supported_coalesce_params = ETHTOOL_COALESCE_RX_USECS | ETHTOOL_COALESCE_RX_MAX_FRAMES,
	.get_drvinfo = net_drvinfo,
	.get_link = ethtool_op_get_link,
	.get_link_ksettings = net_link_ksettings,
	.get_sset_count = net_sset_count,
	.get_strings = net_strings,
	.get_ethtool_stats = net_stats,
	.get_coalesce = net_get_coalesce,
	.set_coalesce = net_set_coalesce,
	.get_ringparam = net_rings,
	.get_channels = net_channels,
	.set_channels = net_set_channels,
	.get_ts_info = ethtool_op_get_ts_info,
};

#define TOFU_SHOW(_name, _what)								\
static ssize_t _name##_show(struct device *device, struct device_attribute *attr, char *buf) \
{											\
	struct tofu_net *net = netdev_priv(to_net_dev(device));				\
											\
	return tofu_rs_net_show(net->queues[0].link, _what, buf, PAGE_SIZE);		\
}											\
static DEVICE_ATTR_RO(_name)

TOFU_SHOW(position, 0);
TOFU_SHOW(ipv4, 1);
TOFU_SHOW(ipv6, 2);
TOFU_SHOW(shape, 3);
TOFU_SHOW(tni, 4);
TOFU_SHOW(ports, 5);

static struct attribute *net_attrs[] = {
	&dev_attr_position.attr,
	&dev_attr_ipv4.attr,
	&dev_attr_ipv6.attr,
	&dev_attr_shape.attr,
	&dev_attr_tni.attr,
	&dev_attr_ports.attr,
	NULL,
};

static const struct attribute_group net_group = {
	.name = "tofu",
	.attrs = net_attrs,
};

struct net_device *tofu_shim_net_add(const struct tofu_net_setup *setup, int *error)
{
	unsigned int n = setup->queues;
	struct tofu_net *net;
	struct net_device *dev;
	int irq;

	*error = -ENOMEM;
	dev = alloc_etherdev_mqs(struct_size(net, queues, n), n, n);
	if (!dev)
		return NULL;
	net = netdev_priv(dev);
	net->count = n;
	net->rx_buffers = setup->rx_buffers;
	net->tx_buffers = setup->tx_buffers;
	SET_NETDEV_DEV(dev, setup->parent);
	strscpy(dev->name, setup->name, IFNAMSIZ);
	eth_hw_addr_set(dev, setup->mac);
	dev->netdev_ops = &net_ops;
	dev->ethtool_ops = &net_ethtool_ops;
	dev->stat_ops = &net_stat_ops;
	dev->sysfs_groups[0] = &net_group;
	dev->min_mtu = setup->min_mtu;
	dev->max_mtu = setup->max_mtu;
	dev->mtu = setup->mtu;
	dev->watchdog_timeo = 5 * HZ;
	dev->pcpu_stat_type = NETDEV_PCPU_STAT_TSTATS;
	dev->hw_features = NETIF_F_SG | NETIF_F_HW_CSUM | NETIF_F_TSO | NETIF_F_TSO6 |
			   NETIF_F_TSO_ECN;
	dev->features = dev->hw_features | NETIF_F_HIGHDMA;
	/* What the other end does not take offloaded must have room when it is cut here. */
	netif_set_tso_max_size(dev, TOFU_LONGEST);
	dev->gso_max_size = clamp(longest, GSO_LEGACY_MAX_SIZE, TOFU_LONGEST);
	dev->gso_ipv4_max_size = dev->gso_max_size;
	netif_set_tso_max_segs(dev, 200);
	timer_setup(&net->service, net_service, 0);
	for (unsigned int i = 0; i < n; i++) {
		struct tofu_queue *queue = &net->queues[i];

		queue->link = setup->links[i];
		queue->dev = dev;
		queue->number = i;
		netdev_queue_set_dql_min_limit(tx_queue(queue), TOFU_LIMIT);
		netif_napi_add(dev, &queue->napi, net_poll);
		irq = pci_irq_vector(to_pci_dev(setup->parent), setup->vectors[i]);
		if (irq > 0)
			netif_napi_set_irq(&queue->napi, irq);
		timer_setup(&queue->timer, net_timer, 0);
		hrtimer_setup(&queue->hrtimer, net_hrtimer, CLOCK_MONOTONIC, HRTIMER_MODE_REL_SOFT);
	}
	netif_carrier_off(dev);
	*error = register_netdev(dev);
	if (*error) {
		/* With all that was added to it. */
		free_netdev(dev);
		return NULL;
	}
	return dev;
}

void tofu_shim_net_remove(struct net_device *dev)
{
	unregister_netdev(dev);
	free_netdev(dev);
}

/* Closes the queues of an interface, which stays up or down as it is. */
void tofu_shim_net_detach(struct net_device *dev)
{
	rtnl_lock();
	netif_device_detach(dev);
	net_stop(dev);
	rtnl_unlock();
}

/* Opens them again. If that fails, the interface is of no use until it is attached again. */
int tofu_shim_net_attach(struct net_device *dev)
{
	struct tofu_net *net = netdev_priv(dev);
	int error = 0;

	rtnl_lock();
	if (netif_running(dev) && !net->open)
		error = net_open(dev);
	if (!error)
		netif_device_attach(dev);
	rtnl_unlock();
	return error;
}

void tofu_shim_schedule_napi(struct tofu_queue *queue)
{
	napi_schedule(&queue->napi);
}

void tofu_shim_start_timer(struct tofu_queue *queue)
{
	if (!timer_pending(&queue->timer))
		mod_timer(&queue->timer, jiffies + TOFU_POLL_JIFFIES);
}

void tofu_shim_start_hrtimer(struct tofu_queue *queue, u64 nanoseconds)
{
	hrtimer_start(&queue->hrtimer, ns_to_ktime(nanoseconds), HRTIMER_MODE_REL_SOFT);
}

void tofu_shim_stop_queue(struct tofu_queue *queue)
{
	if (!netif_tx_queue_stopped(tx_queue(queue)))
		u64_stats_inc(&queue->stops);
	netif_tx_stop_queue(tx_queue(queue));
}

void tofu_shim_wake_queue(struct tofu_queue *queue)
{
	u64_stats_inc(&queue->wakes);
	netif_tx_wake_queue(tx_queue(queue));
}

bool tofu_shim_queue_stopped(struct tofu_queue *queue)
{
	return netif_tx_queue_stopped(tx_queue(queue));
}

void tofu_shim_set_carrier(struct tofu_queue *queue, bool on)
{
	if (on)
		netif_carrier_on(queue->dev);
	else
		netif_carrier_off(queue->dev);
}

void tofu_shim_local_bh(bool off)
{
	if (off)
		local_bh_disable();
	else
		local_bh_enable();
}

u32 tofu_shim_skb_len(const struct sk_buff *skb)
{
	return skb->len;
}

int tofu_shim_skb_read(const struct sk_buff *skb, u32 at, void *to, u32 len)
{
	return skb_copy_bits(skb, at, to, len);
}

/* The checksum and segmentation that a frame still needs, if any; a type of ~0 if unknown. */
bool tofu_shim_skb_offload(const struct sk_buff *skb, struct tofu_offload *offload)
{
	struct virtio_net_hdr hdr;

	if (skb->ip_summed != CHECKSUM_PARTIAL && !skb_is_gso(skb))
		return false;
	if (virtio_net_hdr_from_skb(skb, &hdr, true, false, 0)) {
		offload->kind = ~0;
		return true;
	}
	offload->flags = hdr.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM;
	offload->kind = hdr.gso_type;
	offload->size = __virtio16_to_cpu(true, hdr.gso_size);
	offload->start = __virtio16_to_cpu(true, hdr.csum_start);
	offload->offset = __virtio16_to_cpu(true, hdr.csum_offset);
	return true;
}

/*
 * Does what is left to do with a frame, and consumes it. A list of complete ones; NULL, and the
 * frame is gone, if that is not possible.
 */
struct sk_buff *tofu_shim_skb_complete(struct sk_buff *skb)
{
	struct sk_buff *list;

	if (!skb_is_gso(skb)) {
		if (!skb_checksum_help(skb))
			return skb;
		goto drop;
	}
	list = skb_gso_segment(skb, NETIF_F_SG);
	if (IS_ERR_OR_NULL(list))
		goto drop;
	consume_skb(skb);
	/* One that still has something to be done would be completed for ever. */
	if (list->ip_summed != CHECKSUM_PARTIAL && !skb_is_gso(list))
		return list;
	kfree_skb_list(list);
	return NULL;
drop:
	dev_kfree_skb_any(skb);
	return NULL;
}

/*
 * Cuts a frame of TCP into a list of several of less than 64 KiB, with which the same is left to
 * do, and consumes it. NULL, and the frame is as it was, if that is not possible.
 */
struct sk_buff *tofu_shim_skb_gso_segment(struct sk_buff *skb)
{
	struct sk_buff *list, *segment;
	unsigned int type;
	u16 size;

	/* A packet that is one segment has a type, too. */
	if (!skb_is_gso(skb) || !skb_is_gso_tcp(skb))
		return NULL;
	/* What is written here is not the stack's any more. */
	if (skb_unclone(skb, GFP_ATOMIC))
		return NULL;
	type = skb_shinfo(skb)->gso_type;
	size = skb_shinfo(skb)->gso_size;
	if (size > TOFU_SEGMENT / 2)
		return NULL;
	skb_shinfo(skb)->gso_size = rounddown(TOFU_SEGMENT, size);
	list = skb_gso_segment(skb, NETIF_F_SG | NETIF_F_HW_CSUM);
	skb_shinfo(skb)->gso_size = size;
	if (IS_ERR_OR_NULL(list))
		return NULL;
	for (segment = list; segment; segment = segment->next) {
		unsigned int data = segment->len - skb_tcp_all_headers(segment);

		if (data <= size)
			continue;
		skb_shinfo(segment)->gso_type = type;
		skb_shinfo(segment)->gso_size = size;
		skb_shinfo(segment)->gso_segs = DIV_ROUND_UP(data, size);
	}
	consume_skb(skb);
	return list;
}

/* Takes the first one off a list, and returns the rest. */
struct sk_buff *tofu_shim_skb_next(struct sk_buff *skb)
{
	struct sk_buff *next = skb->next;

	skb_mark_not_on_list(skb);
	return next;
}

/* Puts frames, or none, behind those of a list. */
void tofu_shim_skb_append(struct sk_buff *list, struct sk_buff *rest)
{
	while (list->next)
		list = list->next;
	list->next = rest;
}

/* Counts a frame that was sent, or could not be. */
void tofu_shim_count_tx(struct tofu_queue *queue, u32 len, bool sent)
{
	if (sent) {
		dev_sw_netstats_tx_add(queue->dev, 1, len);
		u64_stats_inc(&queue->tx_packets);
		u64_stats_add(&queue->tx_bytes, len);
	} else {
		dev_core_stats_tx_dropped_inc(queue->dev);
		u64_stats_inc(&queue->tx_drops);
	}
}

s32 tofu_shim_account(struct tofu_queue *queue, u32 posted, u32 packets, u32 bytes)
{
	struct netdev_queue *tx = tx_queue(queue);

	if (posted)
		netdev_tx_sent_queue(tx, posted);
	netdev_tx_completed_queue(tx, packets, bytes);
	return IS_ENABLED(CONFIG_BQL) ? netdev_queue_dql_avail(tx) : S32_MAX;
}

/* Frees a frame that was sent. */
void tofu_shim_consume_skb(struct sk_buff *skb)
{
	dev_consume_skb_any(skb);
}

/* A frame counts as sent for its socket, though it is kept for a while. */
void tofu_shim_skb_orphan(struct sk_buff *skb)
{
	skb_orphan(skb);
}

/* Whether the device reaches all memory where it is, so that mapping costs nothing. */
bool tofu_shim_is_direct(struct device *dev)
{
	struct iommu_domain *domain = iommu_get_domain_for_dev(dev);

	return !domain || domain->type == IOMMU_DOMAIN_IDENTITY;
}

/*
 * How many bytes of a frame others are told at once, so that they may read the rest where it is:
 * all headers, at least one byte behind them, and what is in front of a multiple of 256. 0 if the
 * frame is not made like that.
 */
u32 tofu_shim_skb_head(const struct sk_buff *skb)
{
	if (!skb_shinfo(skb)->nr_frags || skb_headlen(skb) > TOFU_HEAD)
		return 0;
	return skb_headlen(skb) + 256 - (skb_frag_off(&skb_shinfo(skb)->frags[0]) & 255);
}

/*
 * Areas of memory with frames of the stack's in them, where the device may read. One is mapped
 * when the first of its pages is sent, and stays so until the queue is closed: an IOMMU that is
 * emulated takes longer to map and unmap a frame's pages than a processor to copy them.
 */
struct tofu_areas {
	struct device *dev;
	/* By number of the area, the page at which the device finds it; 0 if it does not. */
	struct xarray pages;
	/* Where there is memory. */
	unsigned int count;
	struct range ram[TOFU_RAM_RANGES];
};

static int areas_add_ram(struct resource *ram, void *to)
{
	struct tofu_areas *areas = to;

	if (areas->count == ARRAY_SIZE(areas->ram))
		return 1;
	areas->ram[areas->count++] = (struct range){ .start = ram->start, .end = ram->end };
	return 0;
}

/* No areas yet; NULL if they cannot be mapped, or need not be. May sleep. */
struct tofu_areas *tofu_shim_areas_new(struct device *dev)
{
	struct tofu_areas *areas;

	if (copy || dma_max_mapping_size(dev) < TOFU_AREA)
		return NULL;
	areas = kzalloc_obj(*areas, GFP_KERNEL);
	if (!areas)
		return NULL;
	areas->dev = dev;
	xa_init(&areas->pages);
	walk_iomem_res_desc(IORES_DESC_NONE, IORESOURCE_SYSTEM_RAM | IORESOURCE_BUSY, 0, -1,
			    areas, areas_add_ram);
	return areas;
}

void tofu_shim_areas_free(struct tofu_areas *areas)
{
	unsigned long number;
	void *entry;

	xa_for_each(&areas->pages, number, entry) {
		u64 addr = (u64)xa_to_value(entry) << PAGE_SHIFT;

		if (addr)
			dma_unmap_page(areas->dev, addr, TOFU_AREA, DMA_TO_DEVICE);
	}
	xa_destroy(&areas->pages);
	kfree(areas);
}

/* Maps an area. Returns the page at which the device finds it, or 0. */
static unsigned long areas_map(struct tofu_areas *areas, unsigned long number)
{
	phys_addr_t start = (phys_addr_t)number * TOFU_AREA;
	struct range range = { .start = start, .end = start + TOFU_AREA - 1 };
	dma_addr_t addr = 0;

	for (int i = 0; i < areas->count && !addr; i++) {
		if (!range_contains(&areas->ram[i], &range))
			continue;
		addr = dma_map_page_attrs(areas->dev, pfn_to_page(PHYS_PFN(start)), 0, TOFU_AREA,
					  DMA_TO_DEVICE, DMA_ATTR_NO_WARN);
		if (dma_mapping_error(areas->dev, addr))
			addr = 0;
	}
	/* What could not be mapped is not tried again. */
	if (xa_err(xa_store(&areas->pages, number, xa_mk_value(addr >> PAGE_SHIFT), GFP_ATOMIC))) {
		if (addr)
			dma_unmap_page(areas->dev, addr, TOFU_AREA, DMA_TO_DEVICE);
		return 0;
	}
	return addr >> PAGE_SHIFT;
}

/* Where the device finds bytes, which it is to read now; 0 if it does not. */
static u64 areas_addr(struct tofu_areas *areas, phys_addr_t at, u32 len)
{
	unsigned long number = at / TOFU_AREA;
	u32 in_area = at % TOFU_AREA;
	unsigned long page;
	void *entry;
	u64 addr;

	if (in_area + len > TOFU_AREA)
		return 0;
	entry = xa_load(&areas->pages, number);
	page = entry ? xa_to_value(entry) : areas_map(areas, number);
	if (!page)
		return 0;
	addr = ((u64)page << PAGE_SHIFT) + in_area;
	dma_sync_single_for_device(areas->dev, addr, len, DMA_TO_DEVICE);
	return addr;
}

/*
 * Where the device reads the bytes of a frame from @from on. Returns of how many parts they are, or
 * 0 if it cannot read them where they are.
 */
u32 tofu_shim_areas_find(struct tofu_areas *areas, const struct sk_buff *skb, u32 from,
			  struct tofu_run *runs)
{
	u32 n = 0;

	if (from < skb_headlen(skb) || skb_has_frag_list(skb) || !skb_frags_readable(skb))
		return 0;
	from -= skb_headlen(skb);
	for (int i = 0; i < skb_shinfo(skb)->nr_frags; i++) {
		const skb_frag_t *frag = &skb_shinfo(skb)->frags[i];
		u32 size = skb_frag_size(frag);

		if (from >= size) {
			from -= size;
			continue;
		}
		if (n == TOFU_MAX_RUNS)
			return 0;
		runs[n].len = size - from;
		runs[n].addr = areas_addr(areas, page_to_phys(skb_frag_page(frag)) +
					   skb_frag_off(frag) + from, size - from);
		if (!runs[n++].addr)
			return 0;
		from = 0;
	}
	return n;
}

/* Pages for frames, mapped for the device. */
struct page *tofu_shim_chunk_new(struct device *dev, u64 *addr)
{
	struct page *page = alloc_pages(GFP_ATOMIC | __GFP_NOWARN | __GFP_COMP,
					get_order(TOFU_CHUNK));

	if (!page)
		return NULL;
	*addr = dma_map_page(dev, page, 0, TOFU_CHUNK, DMA_BIDIRECTIONAL);
	if (dma_mapping_error(dev, *addr)) {
		put_page(page);
		return NULL;
	}
	return page;
}

/* Unmaps them, and lets go of them: they go when the last frame with them does. */
void tofu_shim_chunk_free(struct device *dev, struct page *page, u64 addr)
{
	dma_unmap_page(dev, addr, TOFU_CHUNK, DMA_BIDIRECTIONAL);
	put_page(page);
}

bool tofu_shim_chunk_is_free(const struct page *page)
{
	return page_ref_count(page) == 1;
}

void tofu_shim_chunk_sync(struct device *dev, u64 addr, u32 len, bool to_device)
{
	if (to_device)
		dma_sync_single_for_device(dev, addr, len, DMA_BIDIRECTIONAL);
	else
		dma_sync_single_for_cpu(dev, addr, len, DMA_BIDIRECTIONAL);
}

/*
 * Has a part of such pages, or a copy of it, be the next bytes of a frame. False without memory
 * for a copy.
 */
bool tofu_shim_skb_add(struct sk_buff *skb, struct page *page, u32 at, u32 len, bool copy)
{
	unsigned int truesize = TOFU_CHUNK;

	if (copy) {
		const void *from = page_address(page) + at;
		int order = get_order(len);

		page = alloc_pages(GFP_ATOMIC | __GFP_NOWARN | __GFP_COMP, order);
		if (!page)
			return false;
		memcpy(page_address(page), from, len);
		at = 0;
		truesize = PAGE_SIZE << order;
	} else {
		get_page(page);
	}
	skb_add_rx_frag(skb, skb_shinfo(skb)->nr_frags, page, at, len, truesize);
	return true;
}

/* A frame of @len bytes, which are to be written. */
struct sk_buff *tofu_shim_skb_new(struct tofu_queue *queue, u32 len)
{
	struct sk_buff *skb;
	int error;

	if (len <= TOFU_LINEAR) {
		skb = napi_alloc_skb(&queue->napi, len);
		if (skb)
			skb_put(skb, len);
		return skb;
	}
	skb = alloc_skb_with_frags(NET_IP_ALIGN + TOFU_HEAD, len - TOFU_HEAD,
				   PAGE_ALLOC_COSTLY_ORDER, &error, GFP_ATOMIC | __GFP_NOWARN);
	if (!skb)
		return NULL;
	skb_reserve(skb, NET_IP_ALIGN);
	skb_put(skb, TOFU_HEAD);
	skb->data_len = len - TOFU_HEAD;
	skb->len += len - TOFU_HEAD;
	return skb;
}

int tofu_shim_skb_write(struct sk_buff *skb, u32 at, const void *from, u32 len)
{
	return skb_store_bits(skb, at, from, len);
}

/*
 * The bytes of a frame from @at on that lie together, and in @len how many; NULL beyond its
 * end.
 */
void *tofu_shim_skb_part(const struct sk_buff *skb, u32 at, u32 *len)
{
	u32 size = skb_headlen(skb);
	void *part = skb->data;
	int frag = 0;

	while (at >= size) {
		at -= size;
		if (frag == skb_shinfo(skb)->nr_frags)
			return NULL;
		part = skb_frag_address(&skb_shinfo(skb)->frags[frag]);
		size = skb_frag_size(&skb_shinfo(skb)->frags[frag]);
		frag++;
	}
	*len = size - at;
	return part + at;
}

void tofu_shim_skb_free(struct sk_buff *skb)
{
	dev_kfree_skb_any(skb);
}

/*
 * A short frame gets its checksum here, for programs that read frames from the interface and know
 * nothing of partial ones, such as clients of DHCP. What is summed is what the sender's stack has
 * made: the engine has checked it, and it was copied just now. Longer frames stay as they are.
 */
static bool complete_short(struct sk_buff *skb)
{
	if (skb->ip_summed != CHECKSUM_PARTIAL || skb_is_gso(skb) || skb_is_nonlinear(skb))
		return true;
	if (skb_checksum_help(skb))
		return false;
	skb->ip_summed = CHECKSUM_UNNECESSARY;
	return true;
}

/* Gives a frame to the stack. False, and the frame is gone, if @offload do not fit to it. */
bool tofu_shim_skb_receive(struct tofu_queue *queue, struct sk_buff *skb,
			   const struct tofu_offload *offload)
{
	unsigned int len = skb->len;

	if (offload) {
		struct virtio_net_hdr hdr = {
			.flags = offload->flags ? VIRTIO_NET_HDR_F_NEEDS_CSUM : 0,
			.gso_type = offload->kind,
			.gso_size = __cpu_to_virtio16(true, offload->size),
			.csum_start = __cpu_to_virtio16(true, offload->start),
			.csum_offset = __cpu_to_virtio16(true, offload->offset),
		};

		if (virtio_net_hdr_to_skb(skb, &hdr, true) || !complete_short(skb)) {
			dev_core_stats_rx_dropped_inc(queue->dev);
			dev_kfree_skb_any(skb);
			return false;
		}
	}
	skb->protocol = eth_type_trans(skb, queue->dev);
	dev_sw_netstats_rx_add(queue->dev, len);
	u64_stats_inc(&queue->rx_packets);
	u64_stats_add(&queue->rx_bytes, len);
	skb_record_rx_queue(skb, queue->number);
	napi_gro_receive(&queue->napi, skb);
	return true;
}

/* Gives the stack an answer to what it has just asked. */
void tofu_shim_skb_answer(struct tofu_queue *queue, const void *frame, u32 len)
{
	struct sk_buff *skb = netdev_alloc_skb_ip_align(queue->dev, len);

	if (!skb)
		return;
	skb_put_data(skb, frame, len);
	skb->protocol = eth_type_trans(skb, queue->dev);
	netif_rx(skb);
}

void tofu_shim_trace_doorbell(u8 tni, u8 cq, u32 orders)
{
	trace_tofu_doorbell(tni, cq, orders);
}

void tofu_shim_trace_completion(u8 tni, u8 cq, u32 slot, u8 rcode)
{
	trace_tofu_completion(tni, cq, slot, rcode);
}

void tofu_shim_trace_packet(u8 tni, u32 origin, u32 id, u16 offset, u16 length, u8 kind)
{
	trace_tofu_packet(tni, origin, id, offset, length, kind);
}

void tofu_shim_trace_fault(u8 tni, u8 cq, u64 requests)
{
	trace_tofu_fault(tni, cq, requests);
}

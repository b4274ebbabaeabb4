// SPDX-License-Identifier: GPL-2.0
/*
 * Network interfaces, for which the kernel's Rust bindings of Linux 7.3 have no counterpart.
 * Nothing is decided here but what follows from how the kernel keeps frames.
 */
#include <linux/etherdevice.h>
#include <linux/ethtool.h>
#include <linux/hrtimer.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/netdevice.h>
#include <linux/skbuff.h>
#include <linux/timer.h>
#include <linux/virtio_net.h>
#include <net/gso.h>

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
static uint interfaces = 1;
module_param(interfaces, uint, 0444);
MODULE_PARM_DESC(interfaces, "0, 1 (tofu0 on TNI 0) or 2 (tofu1 on TNI 1, too).");

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

struct tofu_net {
	void *link;
	struct net_device *dev;
	struct napi_struct napi;
	/* Looks after what is on its way out while nothing comes in. */
	struct timer_list timer;
	/* Has what waits for a frame looked at when it has waited long enough. */
	struct hrtimer nap;
	/* Looks after the state of the ports. */
	struct timer_list beat;
};

/* How often what is on its way out is looked after. */
#define TOFU_LOOK (HZ / 100 ? HZ / 100 : 1)
/* A frame that is longer than this does not lie in one piece in memory. */
#define TOFU_LINEAR 2000
/* Bytes of such a frame that do: all headers. */
#define TOFU_HEAD 256

static int net_poll(struct napi_struct *napi, int budget)
{
	struct tofu_net *net = container_of(napi, struct tofu_net, napi);
	int done = tofu_rs_net_poll(net->link, net->dev, budget);

	if (done < budget && napi_complete_done(napi, done) && tofu_rs_net_rest(net->link, net->dev))
		napi_schedule(napi);
	return done;
}

static void net_timer(struct timer_list *timer)
{
	struct tofu_net *net = timer_container_of(net, timer, timer);

	napi_schedule(&net->napi);
}

static enum hrtimer_restart net_nap(struct hrtimer *timer)
{
	struct tofu_net *net = container_of(timer, struct tofu_net, nap);

	napi_schedule(&net->napi);
	return HRTIMER_NORESTART;
}

static void net_beat(struct timer_list *timer)
{
	struct tofu_net *net = timer_container_of(net, timer, beat);

	tofu_rs_net_beat(net->link, net->dev);
	mod_timer(&net->beat, jiffies + round_jiffies_relative(HZ));
}

static int net_open(struct net_device *dev)
{
	struct tofu_net *net = netdev_priv(dev);
	int error = tofu_rs_net_open(net->link, dev);

	if (error)
		return error;
	napi_enable(&net->napi);
	netif_start_queue(dev);
	mod_timer(&net->beat, jiffies);
	/* What has come before polling was allowed raises no interrupt any more. */
	local_bh_disable();
	napi_schedule(&net->napi);
	local_bh_enable();
	return 0;
}

static int net_stop(struct net_device *dev)
{
	struct tofu_net *net = netdev_priv(dev);

	netif_carrier_off(dev);
	netif_tx_disable(dev);
	timer_delete_sync(&net->beat);
	napi_disable(&net->napi);
	timer_delete_sync(&net->timer);
	hrtimer_cancel(&net->nap);
	tofu_rs_net_stop(net->link);
	return 0;
}

static netdev_tx_t net_xmit(struct sk_buff *skb, struct net_device *dev)
{
	struct tofu_net *net = netdev_priv(dev);

	if (!tofu_rs_net_xmit(net->link, dev, skb, netdev_xmit_more()))
		return NETDEV_TX_BUSY;
	return NETDEV_TX_OK;
}

static void net_tx_timeout(struct net_device *dev, unsigned int queue)
{
	struct tofu_net *net = netdev_priv(dev);

	netdev_warn(dev, "what was sent does not leave\n");
	napi_schedule(&net->napi);
}

static const struct net_device_ops net_ops = {
	.ndo_open = net_open,
	.ndo_stop = net_stop,
	.ndo_start_xmit = net_xmit,
	.ndo_tx_timeout = net_tx_timeout,
	.ndo_validate_addr = eth_validate_addr,
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

	local_bh_disable();
	tofu_rs_net_counters(net->link, data, tofu_rs_net_counter_count());
	local_bh_enable();
}

static int net_get_coalesce(struct net_device *dev, struct ethtool_coalesce *c,
			    struct kernel_ethtool_coalesce *kernel, struct netlink_ext_ack *ack)
{
	struct tofu_net *net = netdev_priv(dev);

	tofu_rs_net_coalesce(net->link, &c->rx_coalesce_usecs, &c->rx_max_coalesced_frames, false);
	return 0;
}

static int net_set_coalesce(struct net_device *dev, struct ethtool_coalesce *c,
			    struct kernel_ethtool_coalesce *kernel, struct netlink_ext_ack *ack)
{
	struct tofu_net *net = netdev_priv(dev);

	tofu_rs_net_coalesce(net->link, &c->rx_coalesce_usecs, &c->rx_max_coalesced_frames, true);
	return 0;
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
	.get_ts_info = ethtool_op_get_ts_info,
};

#define TOFU_SHOW(_name, _what)								\
static ssize_t _name##_show(struct device *device, struct device_attribute *attr, char *buf) \
{											\
	struct tofu_net *net = netdev_priv(to_net_dev(device));				\
											\
	return tofu_rs_net_show(net->link, _what, buf, PAGE_SIZE);			\
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
	struct net_device *dev = alloc_etherdev(sizeof(struct tofu_net));
	struct tofu_net *net;

	*error = -ENOMEM;
	if (!dev)
		return NULL;
	net = netdev_priv(dev);
	net->link = setup->link;
	net->dev = dev;
	SET_NETDEV_DEV(dev, setup->parent);
	strscpy(dev->name, setup->name, IFNAMSIZ);
	eth_hw_addr_set(dev, setup->mac);
	dev->netdev_ops = &net_ops;
	dev->ethtool_ops = &net_ethtool_ops;
	dev->sysfs_groups[0] = &net_group;
	dev->min_mtu = 1280;
	dev->max_mtu = setup->max_mtu;
	dev->mtu = setup->mtu;
	dev->watchdog_timeo = 5 * HZ;
	dev->pcpu_stat_type = NETDEV_PCPU_STAT_TSTATS;
	dev->hw_features = NETIF_F_SG | NETIF_F_HW_CSUM | NETIF_F_TSO | NETIF_F_TSO6 |
			   NETIF_F_TSO_ECN;
	dev->features = dev->hw_features | NETIF_F_HIGHDMA;
	/* What is not taken unfinished at the other end must have room when it is cut here. */
	netif_set_tso_max_segs(dev, 64);
	netif_napi_add(dev, &net->napi, net_poll);
	timer_setup(&net->timer, net_timer, 0);
	timer_setup(&net->beat, net_beat, 0);
	hrtimer_setup(&net->nap, net_nap, CLOCK_MONOTONIC, HRTIMER_MODE_REL_SOFT);
	netif_carrier_off(dev);
	*error = register_netdev(dev);
	if (*error) {
		netif_napi_del(&net->napi);
		free_netdev(dev);
		return NULL;
	}
	return dev;
}

void tofu_shim_net_remove(struct net_device *dev)
{
	struct tofu_net *net = netdev_priv(dev);

	unregister_netdev(dev);
	netif_napi_del(&net->napi);
	free_netdev(dev);
}

void tofu_shim_net_schedule(struct net_device *dev)
{
	struct tofu_net *net = netdev_priv(dev);

	napi_schedule(&net->napi);
}

void tofu_shim_net_look_again(struct net_device *dev)
{
	struct tofu_net *net = netdev_priv(dev);

	if (!timer_pending(&net->timer))
		mod_timer(&net->timer, jiffies + TOFU_LOOK);
}

void tofu_shim_net_nap(struct net_device *dev, u64 nanoseconds)
{
	struct tofu_net *net = netdev_priv(dev);

	hrtimer_start(&net->nap, ns_to_ktime(nanoseconds), HRTIMER_MODE_REL_SOFT);
}

void tofu_shim_net_hold(struct net_device *dev)
{
	netif_stop_queue(dev);
}

void tofu_shim_net_go_on(struct net_device *dev)
{
	netif_wake_queue(dev);
}

bool tofu_shim_net_is_held(struct net_device *dev)
{
	return netif_queue_stopped(dev);
}

void tofu_shim_net_carrier(struct net_device *dev, bool on)
{
	if (on)
		netif_carrier_on(dev);
	else
		netif_carrier_off(dev);
}

void tofu_shim_quiet(bool on)
{
	if (on)
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

/* Whether something is left to do with a frame, and what; a type of ~0 if that cannot be told. */
bool tofu_shim_skb_facts(const struct sk_buff *skb, struct tofu_facts *facts)
{
	struct virtio_net_hdr hdr;

	if (skb->ip_summed != CHECKSUM_PARTIAL && !skb_is_gso(skb))
		return false;
	if (virtio_net_hdr_from_skb(skb, &hdr, true, false, 0)) {
		facts->gso_type = ~0;
		return true;
	}
	facts->needs_csum = hdr.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM;
	facts->gso_type = hdr.gso_type;
	facts->gso_size = __virtio16_to_cpu(true, hdr.gso_size);
	facts->csum_start = __virtio16_to_cpu(true, hdr.csum_start);
	facts->csum_offset = __virtio16_to_cpu(true, hdr.csum_offset);
	return true;
}

/*
 * Does what is left to do with a frame: it becomes a list of finished ones. If that is not
 * possible, false, and the frame is as it was.
 */
bool tofu_shim_skb_finish(struct sk_buff **skb)
{
	struct sk_buff *list;

	if (skb_is_gso(*skb)) {
		list = skb_gso_segment(*skb, NETIF_F_SG);
		if (IS_ERR_OR_NULL(list))
			return false;
		consume_skb(*skb);
		*skb = list;
		return true;
	}
	return (*skb)->ip_summed != CHECKSUM_PARTIAL || !skb_checksum_help(*skb);
}

/* Takes the first one off a list, and returns the rest. */
struct sk_buff *tofu_shim_skb_next(struct sk_buff *skb)
{
	struct sk_buff *next = skb->next;

	skb_mark_not_on_list(skb);
	return next;
}

/* The frame is done with. */
void tofu_shim_skb_sent(struct net_device *dev, struct sk_buff *skb, bool sent)
{
	if (sent) {
		dev_sw_netstats_tx_add(dev, 1, skb->len);
		dev_consume_skb_any(skb);
	} else {
		dev_core_stats_tx_dropped_inc(dev);
		dev_kfree_skb_any(skb);
	}
}

/* A frame of @len bytes, which are to be written. */
struct sk_buff *tofu_shim_skb_new(struct net_device *dev, u32 len)
{
	struct tofu_net *net = netdev_priv(dev);
	struct sk_buff *skb;
	int error;

	if (len <= TOFU_LINEAR) {
		skb = napi_alloc_skb(&net->napi, len);
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

void tofu_shim_skb_free(struct sk_buff *skb)
{
	dev_kfree_skb_any(skb);
}

/* Gives a frame to the stack. False, and the frame is gone, if @facts do not fit to it. */
bool tofu_shim_skb_receive(struct net_device *dev, struct sk_buff *skb,
			   const struct tofu_facts *facts)
{
	struct tofu_net *net = netdev_priv(dev);
	unsigned int len = skb->len;

	if (facts) {
		struct virtio_net_hdr hdr = {
			.flags = facts->needs_csum ? VIRTIO_NET_HDR_F_NEEDS_CSUM : 0,
			.gso_type = facts->gso_type,
			.gso_size = __cpu_to_virtio16(true, facts->gso_size),
			.csum_start = __cpu_to_virtio16(true, facts->csum_start),
			.csum_offset = __cpu_to_virtio16(true, facts->csum_offset),
		};

		if (virtio_net_hdr_to_skb(skb, &hdr, true)) {
			dev_core_stats_rx_dropped_inc(dev);
			dev_kfree_skb_any(skb);
			return false;
		}
	}
	skb->protocol = eth_type_trans(skb, dev);
	dev_sw_netstats_rx_add(dev, len);
	napi_gro_receive(&net->napi, skb);
	return true;
}

/* Gives the stack an answer to what it has just asked. */
void tofu_shim_skb_answer(struct net_device *dev, const void *frame, u32 len)
{
	struct sk_buff *skb = netdev_alloc_skb_ip_align(dev, len);

	if (!skb)
		return;
	skb_put_data(skb, frame, len);
	skb->protocol = eth_type_trans(skb, dev);
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

/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Between netdev.c and netdev.rs. Functions called tofu_shim_ are C and forward to the kernel;
 * those called tofu_rs_ are Rust and decide.
 */
#ifndef TOFU_NETDEV_H
#define TOFU_NETDEV_H

#include <linux/types.h>

struct device;
struct ethtool_coalesce;
struct net_device;
struct page;
struct sk_buff;

/* What is left to do with a frame, as in the header of virtio's network device. */
struct tofu_offload {
	u8 flags;
	u8 kind;
	u16 size;
	u16 start;
	u16 offset;
};

/* What an interface is made from. */
struct tofu_net_setup {
	/* One for each pair of queues. */
	void *const *links;
	/* The vectors by which they are told of packets. */
	const u16 *vectors;
	u32 queues;
	struct device *parent;
	const char *name;
	u8 mac[6];
	u16 mtu;
	u16 min_mtu;
	u16 max_mtu;
	/* Buffers of each queue, for frames that come and that go. */
	u16 rx_buffers;
	u16 tx_buffers;
};

/* Pages that frames are fetched to, contiguous. */
#define TOFU_CHUNK (32 << 10)
/* Parts of a frame at most that lie together for the device. */
#define TOFU_MAX_RUNS 17

/* Bytes that lie together for the device. */
struct tofu_run {
	u64 addr;
	u32 len;
};

struct tofu_areas;
struct tofu_queue;

/*
 * Of a queue. All but _open, _stop, _queues and _coalesce are called with software interrupts
 * off.
 */
int tofu_rs_net_open(void *link, struct tofu_queue *queue);
void tofu_rs_net_stop(void *link);
/* Tells how many queues the interface uses. */
void tofu_rs_net_queues(void *link, u32 queues);
/* Takes the frame, or returns false and stops the queue. */
bool tofu_rs_net_xmit(void *link, struct tofu_queue *queue, struct sk_buff *skb, bool more);
int tofu_rs_net_poll(void *link, struct tofu_queue *queue, int budget);
/*
 * Follows a poll. If that was the last one for now, it returns whether there is something to be
 * done all the same.
 */
bool tofu_rs_net_polled(void *link, struct tofu_queue *queue, bool idle);
void tofu_rs_net_counters(void *link, u64 *values, int n);
void tofu_rs_net_coalesce(void *link, u32 *usecs, u32 *frames, bool set);
const char *tofu_rs_net_counter_name(int n);
int tofu_rs_net_counter_count(void);

/* Of an interface, with the link of its first queue. */
u16 tofu_rs_net_select(void *link, const struct sk_buff *skb, u16 chosen);
/* Every second. */
void tofu_rs_net_service(void *link, struct tofu_queue *queue);
ssize_t tofu_rs_net_show(void *link, int what, char *buf, size_t size);

struct net_device *tofu_shim_net_add(const struct tofu_net_setup *setup, int *error);
void tofu_shim_net_remove(struct net_device *dev);
void tofu_shim_net_detach(struct net_device *dev);
int tofu_shim_net_attach(struct net_device *dev);
void tofu_shim_schedule_napi(struct tofu_queue *queue);
void tofu_shim_start_timer(struct tofu_queue *queue);
void tofu_shim_start_hrtimer(struct tofu_queue *queue, u64 nanoseconds);
void tofu_shim_stop_queue(struct tofu_queue *queue);
void tofu_shim_wake_queue(struct tofu_queue *queue);
bool tofu_shim_queue_stopped(struct tofu_queue *queue);
void tofu_shim_set_carrier(struct tofu_queue *queue, bool on);
void tofu_shim_count_tx(struct tofu_queue *queue, u32 len, bool sent);
/*
 * Tells the kernel's byte queue limits of the bytes that were posted since the last call, and of
 * packets that have ended. Returns how many more may be posted; if less than 0, the stack waits.
 */
s32 tofu_shim_account(struct tofu_queue *queue, u32 posted, u32 packets, u32 bytes);

/* Turns software interrupts off and on, on this processor. */
void tofu_shim_local_bh(bool off);

/* Parameters of the module. */
const char *tofu_shim_param_shape(void);
const char *tofu_shim_param_torus(void);
u32 tofu_shim_param_machine(void);
u32 tofu_shim_param_mtu(void);
u32 tofu_shim_param_interfaces(void);
u32 tofu_shim_param_queues(void);

u32 tofu_shim_skb_len(const struct sk_buff *skb);
int tofu_shim_skb_read(const struct sk_buff *skb, u32 at, void *to, u32 len);
bool tofu_shim_skb_offload(const struct sk_buff *skb, struct tofu_offload *offload);
struct sk_buff *tofu_shim_skb_complete(struct sk_buff *skb);
struct sk_buff *tofu_shim_skb_gso_segment(struct sk_buff *skb);
struct sk_buff *tofu_shim_skb_next(struct sk_buff *skb);
void tofu_shim_skb_append(struct sk_buff *list, struct sk_buff *rest);
void tofu_shim_consume_skb(struct sk_buff *skb);
void tofu_shim_skb_orphan(struct sk_buff *skb);
bool tofu_shim_is_direct(struct device *dev);
u32 tofu_shim_skb_head(const struct sk_buff *skb);
struct tofu_areas *tofu_shim_areas_new(struct device *dev);
void tofu_shim_areas_free(struct tofu_areas *areas);
u32 tofu_shim_areas_find(struct tofu_areas *areas, const struct sk_buff *skb, u32 from,
			  struct tofu_run *runs);
struct page *tofu_shim_chunk_new(struct device *dev, u64 *addr);
void tofu_shim_chunk_free(struct device *dev, struct page *page, u64 addr);
bool tofu_shim_chunk_is_free(const struct page *page);
void tofu_shim_chunk_sync(struct device *dev, u64 addr, u32 len, bool to_device);
bool tofu_shim_skb_add(struct sk_buff *skb, struct page *page, u32 at, u32 len, bool copy);
struct sk_buff *tofu_shim_skb_new(struct tofu_queue *queue, u32 len);
int tofu_shim_skb_write(struct sk_buff *skb, u32 at, const void *from, u32 len);
void *tofu_shim_skb_part(const struct sk_buff *skb, u32 at, u32 *len);
void tofu_shim_skb_free(struct sk_buff *skb);
bool tofu_shim_skb_receive(struct tofu_queue *queue, struct sk_buff *skb,
			   const struct tofu_offload *offload);
void tofu_shim_skb_answer(struct tofu_queue *queue, const void *frame, u32 len);

void tofu_shim_trace_doorbell(u8 tni, u8 cq, u32 orders);
void tofu_shim_trace_completion(u8 tni, u8 cq, u32 slot, u8 rcode);
void tofu_shim_trace_packet(u8 tni, u32 origin, u32 id, u16 offset, u16 length, u8 kind);
void tofu_shim_trace_fault(u8 tni, u8 cq, u64 requests);

#endif

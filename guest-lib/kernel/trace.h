/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tracepoints of the driver, below events/tofu in tracefs. Doorbells and completions are those of
 * the kernel's own queues: processes have theirs without the kernel.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM tofu

#if !defined(TOFU_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define TOFU_TRACE_H

#include <linux/tracepoint.h>

TRACE_EVENT(tofu_doorbell,
	TP_PROTO(u8 tni, u8 cq, u32 orders),
	TP_ARGS(tni, cq, orders),
	TP_STRUCT__entry(
		__field(u8, tni)
		__field(u8, cq)
		__field(u32, orders)
	),
	TP_fast_assign(
		__entry->tni = tni;
		__entry->cq = cq;
		__entry->orders = orders;
	),
	TP_printk("tni%ucq%u orders=%u", __entry->tni, __entry->cq, __entry->orders)
);

TRACE_EVENT(tofu_completion,
	TP_PROTO(u8 tni, u8 cq, u32 slot, u8 rcode),
	TP_ARGS(tni, cq, slot, rcode),
	TP_STRUCT__entry(
		__field(u8, tni)
		__field(u8, cq)
		__field(u32, slot)
		__field(u8, rcode)
	),
	TP_fast_assign(
		__entry->tni = tni;
		__entry->cq = cq;
		__entry->slot = slot;
		__entry->rcode = rcode;
	),
	TP_printk("tni%ucq%u slot=%u rcode=%#x", __entry->tni, __entry->cq, __entry->slot,
		  __entry->rcode)
);

TRACE_EVENT(tofu_packet,
	TP_PROTO(u8 tni, u32 origin, u32 id, u16 offset, u16 length, u8 kind),
	TP_ARGS(tni, origin, id, offset, length, kind),
	TP_STRUCT__entry(
		__field(u32, origin)
		__field(u32, id)
		__field(u16, offset)
		__field(u16, length)
		__field(u8, tni)
		__field(u8, kind)
	),
	TP_fast_assign(
		__entry->origin = origin;
		__entry->id = id;
		__entry->offset = offset;
		__entry->length = length;
		__entry->tni = tni;
		__entry->kind = kind;
	),
	TP_printk("tni%u kind=%u origin=%#x id=%u offset=%u length=%u", __entry->tni,
		  __entry->kind, __entry->origin, __entry->id, __entry->offset, __entry->length)
);

TRACE_EVENT(tofu_fault,
	TP_PROTO(u8 tni, u8 cq, u64 requests),
	TP_ARGS(tni, cq, requests),
	TP_STRUCT__entry(
		__field(u64, requests)
		__field(u8, tni)
		__field(u8, cq)
	),
	TP_fast_assign(
		__entry->requests = requests;
		__entry->tni = tni;
		__entry->cq = cq;
	),
	TP_printk("tni%ucq%u requests=%#llx", __entry->tni, __entry->cq, __entry->requests)
);

TRACE_EVENT(tofu_gate_fault,
	TP_PROTO(u8 tni, u8 bg, u32 channel, u64 requests),
	TP_ARGS(tni, bg, channel, requests),
	TP_STRUCT__entry(
		__field(u64, requests)
		__field(u32, channel)
		__field(u8, tni)
		__field(u8, bg)
	),
	TP_fast_assign(
		__entry->requests = requests;
		__entry->channel = channel;
		__entry->tni = tni;
		__entry->bg = bg;
	),
	TP_printk("tni%ubg%u channel=tni%ubch%u requests=%#llx", __entry->tni, __entry->bg,
		  __entry->channel >> 8, __entry->channel & 0xff, __entry->requests)
);

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>

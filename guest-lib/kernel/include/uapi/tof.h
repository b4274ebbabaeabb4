/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * The files of /proc/tofu, as programs use them. Names and values are ours where public sources
 * give only layouts; numbers, sizes and offsets are those of the public interface.
 */
#ifndef TOFU_UAPI_TOF_H
#define TOFU_UAPI_TOF_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define TOF_UAPI_VERSION 0x2a00

struct tof_init_cq {
	__u16 version;
	__u8 session_mode, toq_size, mrq_size, num_stag, tcq_cinj, mrq_cinj;
	void *toq_mem, *tcq_mem, *mrq_mem;
};

#define TOF_STAG_READ_ONLY 1u
#define TOF_STAG_LARGE_PAGES 2u
#define TOF_STAG_NEW 0x80000000u /* ours: never one that the memory has already */

struct tof_alloc_stag {
	__u32 flags;
	int stag;
	__u64 offset;
	void *va;
	__u64 len;
};

struct tof_free_stags {
	__u16 num;
	int *stags;
};

struct tof_addr {
	__u8 pa, pb, pc, x, y, z, a, b, c;
};

struct tof_set_bg {
	int tni, gate, source_lgate;
	struct tof_addr source_raddr;
	int source_rtni, source_rgate, dest_lgate;
	struct tof_addr dest_raddr;
	int dest_rtni, dest_rgate;
};

struct tof_enable_bch {
	void *addr;
	int bseq, num;
	struct tof_set_bg *bgs;
};

struct tof_subnet {
	int res0, res1;
	__u8 nx, sx, lx, ny, sy, ly, nz, sz, lz;
};

#define TOF_NO_GROUP 0xffffffffu /* ours: in place of a gpid, to forget the user */

struct tof_reg_user {
	__u32 uid, gpid;
	struct tof_subnet subnet;
	__u64 *cqmask, *bgmask;
};

struct tof_linkdown_item {
	__u8 x, y, z, a, b, c;
	__u16 ports;
};

struct tof_notify_linkdown {
	int num;
	struct tof_linkdown_item *items;
};

struct tof_port_stat {
	int port_no;
	__u64 mask, pa[31];
};

struct tof_cq_stat {
	int tni, cqid;
	__u64 txbyte, rxbyte;
};

struct tof_load_register {
	__u64 pa, len;
	void *buf;
};

struct tof_load_resource {
	__u64 rsc_id, offset, len;
	void *buf;
};

/* The size says 8 whatever the argument is. */
#define TOF_IOCTL(n) _IOWR('d', n, long)
#define TOF_IOCTL_INIT_CQ TOF_IOCTL(0)
#define TOF_IOCTL_ALLOC_STAG TOF_IOCTL(1)
#define TOF_IOCTL_FREE_STAGS TOF_IOCTL(2)
#define TOF_IOCTL_ENABLE_BCH TOF_IOCTL(3)
#define TOF_IOCTL_DISABLE_BCH TOF_IOCTL(4)
#define TOF_IOCTL_SET_RT_SIGNAL TOF_IOCTL(5)
#define TOF_IOCTL_SET_SUBNET TOF_IOCTL(6)
#define TOF_IOCTL_REG_USER TOF_IOCTL(7)
#define TOF_IOCTL_NOTIFY_LINKDOWN TOF_IOCTL(8)
#define TOF_IOCTL_GET_PORT_STAT TOF_IOCTL(9)
#define TOF_IOCTL_GET_CQ_STAT TOF_IOCTL(10)
#define TOF_IOCTL_LOAD_REGISTER TOF_IOCTL(11)
#define TOF_IOCTL_LOAD_RESOURCE TOF_IOCTL(12)

#endif

/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Messages of generic netlink.
 */
#ifndef TOFU_TESTS_GENL_H
#define TOFU_TESTS_GENL_H

#include <linux/genetlink.h>
#include <linux/netlink.h>
#include <sys/socket.h>

#include "common.h"

/* An attribute of a message of generic netlink, and where the next one is put. */
static inline void *put_attr(void *at, unsigned short type, const void *value, unsigned short len)
{
	struct nlattr *attr = at;

	*attr = (struct nlattr){ .nla_type = type, .nla_len = NLA_HDRLEN + len };
	memcpy((char *)at + NLA_HDRLEN, value, len);
	return (char *)at + NLA_ALIGN(attr->nla_len);
}

static inline const void *attr_in(const void *attrs, int len, unsigned short type)
{
	const struct nlattr *attr = attrs;

	while (len >= NLA_HDRLEN && attr->nla_len >= NLA_HDRLEN && attr->nla_len <= len) {
		if ((attr->nla_type & NLA_TYPE_MASK) == type)
			return (const char *)attr + NLA_HDRLEN;
		len -= NLA_ALIGN(attr->nla_len);
		attr = (const void *)((const char *)attr + NLA_ALIGN(attr->nla_len));
	}
	return NULL;
}

/* The parts of an answer of generic netlink. */
struct answer {
	union {
		char bytes[16384];
		struct nlmsghdr head;
	};
	int len;
};

/* Asks a family of generic netlink; the attributes end at @end. */
static inline void ask(int s, struct answer *m, int family, int command, int flags, void *end)
{
	struct genlmsghdr *generic = NLMSG_DATA(&m->head);

	m->head = (struct nlmsghdr){ .nlmsg_len = (char *)end - m->bytes, .nlmsg_type = family,
		.nlmsg_flags = NLM_F_REQUEST | flags };
	*generic = (struct genlmsghdr){ .cmd = command, .version = 1 };
	if (send(s, m->bytes, m->head.nlmsg_len, 0) != (ssize_t)m->head.nlmsg_len)
		die("generic netlink: send");
	m->len = recv(s, m->bytes, sizeof(m->bytes), 0);
	if (m->len < (int)sizeof(m->head))
		die("generic netlink: recv");
}

static inline void *attrs_of(void *message)
{
	return (char *)NLMSG_DATA(message) + GENL_HDRLEN;
}

/* The number of a family of generic netlink. */
static inline int family_of(int s, const char *family)
{
	struct answer m;
	const void *attr;

	ask(s, &m, GENL_ID_CTRL, CTRL_CMD_GETFAMILY, 0,
	    put_attr(attrs_of(&m), CTRL_ATTR_FAMILY_NAME, family, strlen(family) + 1));
	attr = attr_in(attrs_of(&m), m.len - NLMSG_LENGTH(GENL_HDRLEN), CTRL_ATTR_FAMILY_ID);
	if (m.head.nlmsg_type == NLMSG_ERROR || !attr)
		die("netlink has no such family");
	return *(const __u16 *)attr;
}

#endif

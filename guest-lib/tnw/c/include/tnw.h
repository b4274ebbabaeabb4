/*
 * tnw.h: messages to direct neighbours over TNW, the torus network of QPACE and AuroraScience.
 *
 * What is public of the library is Pivanti, Schifano and Simma, "An FPGA-based Torus Communication
 * Network" (2010), section 3: tnwSend sends a message, tnwCredit initiates a receive operation,
 * others test or wait for the completion of both, or configure, control and monitor the network
 * processor. From there are the names tnwSend and tnwCredit and what each does; from section 2 the
 * words link, virtual channel, credit, Pput and Nget. Signatures, codes and all other names are
 * ours, as the paper has none.
 *
 * Each send needs one credit at the other end, of the same link (X+ there is X- here) and the same
 * channel. Sends and credits of a link and channel match strictly in the order in which they were
 * issued.
 *
 * Functions return TNW_SUCCESS or a code below 0; tnwTest and tnwWait may return TNW_NOT_YET. All
 * can be called by any thread. Messages that several threads send on the same channel of a link go
 * one after the other.
 *
 * SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
 */
#ifndef TNW_H
#define TNW_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TNW_LINKS 6
#define TNW_CHANNELS 8
/* Bytes of data of a packet. Messages are sent in whole packets, the last one filled up. */
#define TNW_PACKET 128
/* Bytes of a message at most: 8 MiB. */
#define TNW_MAX_MESSAGE ((size_t)8 << 20)
/* Credits of a channel that can wait, and messages by Nget. */
#define TNW_MAX_CREDITS 64
#define TNW_MAX_NGETS 16

/* The links of a node, each to the neighbour in that direction. */
enum tnwLink { TNW_XM = 0, TNW_XP = 1, TNW_YM = 2, TNW_YP = 3, TNW_ZM = 4, TNW_ZP = 5 };

/* How a message is sent. */
enum tnwScheme {
    /* The processor stores it to the injection buffer; over when tnwSend returns. */
    TNW_PPUT = 0,
    /* The network processor fetches it from memory of tnwAlloc. */
    TNW_NGET = 1
};

enum tnwCode {
    TNW_SUCCESS = 0,
    /* It has not ended yet. */
    TNW_NOT_YET = 1,
    /* How a credit, or a message by Nget, has ended: its message was longer, and the rest was
     * thrown away; it was shorter; its memory was gone; tnwCancel has ended it; the neighbour was
     * reset in the midst of the message. */
    TNW_ERR_TRUNCATED = -1,
    TNW_ERR_SHORT = -2,
    TNW_ERR_ADDRESS = -3,
    TNW_ERR_CANCELLED = -4,
    TNW_ERR_CUT = -5,
    /* What a function was given cannot be. */
    TNW_ERR_INVALID_HANDLE = -16,
    TNW_ERR_INVALID_POINTER = -17,
    TNW_ERR_INVALID_LINK = -18,
    TNW_ERR_INVALID_CHANNEL = -19,
    TNW_ERR_INVALID_LENGTH = -20,
    TNW_ERR_INVALID_SCHEME = -21,
    TNW_ERR_INVALID_REQUEST = -22,
    TNW_ERR_INVALID_NODE = -23,
    /* The memory is not, or not all of it, of tnwAlloc. */
    TNW_ERR_INVALID_MEMORY = -24,
    /* Nothing is at the other end of the link. */
    TNW_ERR_NO_LINK = -32,
    /* As many credits, or messages by Nget, wait as there is room for. */
    TNW_ERR_FULL = -33,
    TNW_ERR_TIMEOUT = -34,
    /* There is no device, or not for this process; tnwLastError says why. */
    TNW_ERR_NOT_AVAILABLE = -35,
    TNW_ERR_BUSY = -36,
    TNW_ERR_OUT_OF_MEMORY = -37,
    TNW_ERR_INTERNAL = -38
};

/* A network processor that is open. */
typedef int tnw_t;
/* A credit, or a message by Nget. Never 0. */
typedef uint64_t tnwRequest_t;

/*
 * Configuration.
 */

struct tnwConfig {
    /* Place of the node, and nodes of the torus, on X, Y and Z. */
    uint8_t coords[3];
    uint8_t shape[3];
    /* Links that lead to a neighbour: bit TNW_XM to bit TNW_ZP. */
    uint8_t links;
};

/*
 * Opens a network processor, resets it and enables it. `node` is 0, but where the process has a
 * whole machine to itself (TOFU_PROVIDER=inproc): then it is a node of that, in the order of X, Y
 * and Z, Z last, so that a program can be its own neighbours. A node can be open once.
 */
int tnwOpen(unsigned node, tnw_t *tnw);
/*
 * Closes it, when all neighbours have what was sent: after 10 s without that it returns
 * TNW_ERR_TIMEOUT and has closed it all the same. A process that ends without this may take with it
 * what was sent last. Its credits and its memory are gone.
 */
int tnwClose(tnw_t tnw);
int tnwGetConfig(tnw_t tnw, struct tnwConfig *config);

/* Memory that the network processor reaches, all 0, at a multiple of 128. */
int tnwAlloc(tnw_t tnw, size_t bytes, void **memory);
/* What still waits may use it to its end. */
int tnwFree(tnw_t tnw, void *memory);

/*
 * Communication.
 */

/*
 * Sends 1 byte to TNW_MAX_MESSAGE over a link.
 *
 * By TNW_PPUT the data can be anywhere. The function returns when all of it is in the injection
 * buffer, and waits while there is no room; `request` is not used.
 *
 * By TNW_NGET the data is in memory of tnwAlloc and must stay as it is until tnwTest or tnwWait
 * says that the request has ended.
 */
int tnwSend(
    tnw_t tnw, enum tnwLink link, unsigned channel, const void *data, size_t bytes,
    enum tnwScheme scheme, tnwRequest_t *request);
/*
 * Initiates the receive operation of the next message of a link and channel, to memory of tnwAlloc.
 */
int tnwCredit(
    tnw_t tnw, enum tnwLink link, unsigned channel, void *data, size_t bytes,
    tnwRequest_t *request);
/*
 * Whether a request has ended: TNW_NOT_YET, or how, after which it is no request any more. `bytes`,
 * if it is not null, gets how many were moved.
 */
int tnwTest(tnw_t tnw, tnwRequest_t request, size_t *bytes);
/* The same; waits until it has, for at most so many microseconds. */
int tnwWait(tnw_t tnw, tnwRequest_t request, uint64_t timeout_us, size_t *bytes);
/* Waits until all neighbours have what was sent: TNW_SUCCESS, or TNW_ERR_TIMEOUT. */
int tnwFlush(tnw_t tnw, uint64_t timeout_us);
/* Ends all requests of a link and channel with TNW_ERR_CANCELLED; tnwTest says so of each. */
int tnwCancel(tnw_t tnw, enum tnwLink link, unsigned channel);

/*
 * Monitoring.
 */

struct tnwLinkStatus {
    /* 1 or 0: it leads to a neighbour; that has answered; packets are being sent again; the
     * neighbour does not answer any more; packets are discarded until RESTART. */
    uint8_t present, answered, resending, silent, discarding;
    /* Packets that the neighbour has not acknowledged. */
    uint16_t unacknowledged;
};

/* Since tnwOpen. */
struct tnwCounters {
    uint64_t sent;            /* data packets, without those sent again */
    uint64_t received;        /* data packets taken in */
    uint64_t acks_sent;       /* positive feedback */
    uint64_t nacks_sent;      /* negative feedback */
    uint64_t nacks_received;
    uint64_t restarts;        /* RESTART commands sent */
    uint64_t resent;          /* data packets sent again */
    uint64_t crc_errors;      /* packets and commands that were damaged */
    uint64_t sequence_errors; /* data packets that were not the next one */
    uint64_t discarded;       /* while RESTART was awaited, or that had come before */
    uint64_t timeouts;        /* times that no feedback came */
    uint64_t stalls;          /* times that a channel waited for room at the neighbour */
    uint64_t renewals;        /* times that the neighbour began anew */
};

int tnwGetLinkStatus(tnw_t tnw, enum tnwLink link, struct tnwLinkStatus *status);
int tnwGetCounters(tnw_t tnw, enum tnwLink link, struct tnwCounters *counters);

/* What a code means. Never null. */
const char *tnwStrError(int code);
/* Why the calling thread's last call that failed has failed; with a NUL, at most `bytes` bytes. */
int tnwLastError(char *text, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif /* TNW_H */

/* Every function does what tnw.h says: two neighbouring nodes in this process. */
#include "test.h"

#include <sys/wait.h>
#include <unistd.h>

enum { BIG = 300000 };

static tnw_t node[2];
static uint8_t *memory[2];

static void configuration(void)
{
    struct tnwConfig config;
    for (int i = 0; i < 2; i++) {
        OK(tnwGetConfig(node[i], &config));
        IS(config.coords[0], i);
        IS(config.coords[1] + config.coords[2], 0);
        IS(config.shape[0] * 100 + config.shape[1] * 10 + config.shape[2], 211);
        IS(config.links, 1 << TNW_XM | 1 << TNW_XP);
    }
}

/* A message from one node to the other. */
static void message(int from, enum tnwScheme scheme, unsigned channel, size_t bytes)
{
    static uint8_t expected[BIG];
    tnwRequest_t credit, send = 0;
    size_t moved = 0;
    pattern(expected, bytes, (unsigned)bytes + channel);
    memset(memory[1 - from], 0, bytes + 1);
    OK(tnwCredit(node[1 - from], TNW_XM, channel, memory[1 - from], bytes, &credit));
    IS(tnwTest(node[1 - from], credit, &moved), TNW_NOT_YET);
    if (scheme == TNW_PPUT) {
        OK(tnwSend(node[from], TNW_XP, channel, expected, bytes, scheme, NULL));
    } else {
        memcpy(memory[from] + 7, expected, bytes);
        OK(tnwSend(node[from], TNW_XP, channel, memory[from] + 7, bytes, scheme, &send));
        OK(tnwWait(node[from], send, LONG, &moved));
        IS(moved, bytes);
        IS(tnwTest(node[from], send, NULL), TNW_ERR_INVALID_REQUEST);
    }
    OK(tnwWait(node[1 - from], credit, LONG, &moved));
    IS(moved, bytes);
    IS(memcmp(memory[1 - from], expected, bytes), 0);
    IS(memory[1 - from][bytes], 0);
    IS(tnwTest(node[1 - from], credit, NULL), TNW_ERR_INVALID_REQUEST);
}

/* Credits match sends in order, and report different lengths. */
static void order(void)
{
    static const uint8_t out[3000] = {1, 2, 3};
    tnwRequest_t credits[3];
    size_t moved;
    for (int i = 0; i < 3; i++)
        OK(tnwCredit(node[1], TNW_XM, 0, memory[1] + i * 4096, 1000, &credits[i]));
    OK(tnwSend(node[0], TNW_XP, 0, out, 3000, TNW_PPUT, NULL));
    OK(tnwSend(node[0], TNW_XP, 0, out, 1000, TNW_PPUT, NULL));
    OK(tnwSend(node[0], TNW_XP, 0, out, 3, TNW_PPUT, NULL));
    IS(tnwWait(node[1], credits[2], LONG, &moved), TNW_ERR_SHORT);
    IS(moved, 128);
    OK(tnwWait(node[1], credits[1], LONG, &moved));
    IS(tnwWait(node[1], credits[0], LONG, &moved), TNW_ERR_TRUNCATED);
    IS(moved, 1000);
}

static void limits(void)
{
    tnwRequest_t requests[TNW_MAX_CREDITS], more;
    for (int i = 0; i < TNW_MAX_CREDITS; i++)
        OK(tnwCredit(node[0], TNW_XM, 5, memory[0], 128, &requests[i]));
    IS(tnwCredit(node[0], TNW_XM, 5, memory[0], 128, &more), TNW_ERR_FULL);
    IS(tnwWait(node[0], requests[9], 1000, NULL), TNW_NOT_YET);
    OK(tnwCancel(node[0], TNW_XM, 5));
    for (int i = 0; i < TNW_MAX_CREDITS; i++)
        IS(tnwWait(node[0], requests[i], LONG, NULL), TNW_ERR_CANCELLED);
    /* Messages to this channel are not received, except for 128 packets in the FIFO. */
    for (int i = 0; i < TNW_MAX_NGETS; i++)
        OK(tnwSend(node[0], TNW_XP, 6, memory[0], 16384, TNW_NGET, &requests[i]));
    int code = TNW_SUCCESS;
    for (int i = 0; i < 2 && code == TNW_SUCCESS; i++)
        code = tnwSend(node[0], TNW_XP, 6, memory[0], 16384, TNW_NGET, &more);
    IS(code, TNW_ERR_FULL);
    IS(tnwFlush(node[0], 20000), TNW_ERR_TIMEOUT);
    OK(tnwCancel(node[0], TNW_XP, 6));
    IS(tnwWait(node[0], requests[TNW_MAX_NGETS - 1], LONG, NULL), TNW_ERR_CANCELLED);
}

static void mistakes(void)
{
    tnw_t other;
    tnwRequest_t request;
    struct tnwConfig config;
    struct tnwCounters counters;
    struct tnwLinkStatus status;
    uint8_t stack[128] = {0};
    void *more;
    IS(tnwOpen(0, NULL), TNW_ERR_INVALID_POINTER);
    IS(tnwOpen(0, &other), TNW_ERR_BUSY);
    IS(tnwOpen(2, &other), TNW_ERR_INVALID_NODE);
    const tnw_t bad[] = {-1, 2, 1 << 30};
    for (int i = 0; i < 3; i++) {
        IS(tnwClose(bad[i]), TNW_ERR_INVALID_HANDLE);
        IS(tnwGetConfig(bad[i], &config), TNW_ERR_INVALID_HANDLE);
        IS(tnwAlloc(bad[i], 1, &more), TNW_ERR_INVALID_HANDLE);
        IS(tnwFree(bad[i], stack), TNW_ERR_INVALID_HANDLE);
        IS(tnwSend(bad[i], TNW_XP, 0, stack, 1, TNW_PPUT, NULL), TNW_ERR_INVALID_HANDLE);
        IS(tnwCredit(bad[i], TNW_XP, 0, stack, 1, &request), TNW_ERR_INVALID_HANDLE);
        IS(tnwTest(bad[i], 64, NULL), TNW_ERR_INVALID_HANDLE);
        IS(tnwWait(bad[i], 64, 1, NULL), TNW_ERR_INVALID_HANDLE);
        IS(tnwFlush(bad[i], 1), TNW_ERR_INVALID_HANDLE);
        IS(tnwCancel(bad[i], TNW_XP, 0), TNW_ERR_INVALID_HANDLE);
        IS(tnwGetCounters(bad[i], TNW_XP, &counters), TNW_ERR_INVALID_HANDLE);
        IS(tnwGetLinkStatus(bad[i], TNW_XP, &status), TNW_ERR_INVALID_HANDLE);
    }
    tnw_t good = node[0];
    IS(tnwGetConfig(good, NULL), TNW_ERR_INVALID_POINTER);
    IS(tnwAlloc(good, 1, NULL), TNW_ERR_INVALID_POINTER);
    IS(tnwAlloc(good, 0, &more), TNW_ERR_INVALID_LENGTH);
    IS(tnwAlloc(good, (size_t)1 << 60, &more), TNW_ERR_OUT_OF_MEMORY);
    OK(tnwFree(good, NULL));
    IS(tnwFree(good, stack), TNW_ERR_INVALID_MEMORY);
    IS(tnwFree(good, memory[0] + 1), TNW_ERR_INVALID_MEMORY);
    IS(tnwSend(good, (enum tnwLink)6, 0, stack, 1, TNW_PPUT, NULL), TNW_ERR_INVALID_LINK);
    IS(tnwSend(good, TNW_XP, 8, stack, 1, TNW_PPUT, NULL), TNW_ERR_INVALID_CHANNEL);
    IS(tnwSend(good, TNW_XP, 0, stack, 0, TNW_PPUT, NULL), TNW_ERR_INVALID_LENGTH);
    IS(tnwSend(good, TNW_XP, 0, stack, TNW_MAX_MESSAGE + 1, TNW_PPUT, NULL),
       TNW_ERR_INVALID_LENGTH);
    IS(tnwSend(good, TNW_XP, 0, NULL, 1, TNW_PPUT, NULL), TNW_ERR_INVALID_POINTER);
    IS(tnwSend(good, TNW_XP, 0, stack, 1, (enum tnwScheme)2, NULL), TNW_ERR_INVALID_SCHEME);
    IS(tnwSend(good, TNW_YP, 0, stack, 1, TNW_PPUT, NULL), TNW_ERR_NO_LINK);
    IS(tnwSend(good, TNW_XP, 0, memory[0], 1, TNW_NGET, NULL), TNW_ERR_INVALID_POINTER);
    IS(tnwSend(good, TNW_XP, 0, stack, 1, TNW_NGET, &request), TNW_ERR_INVALID_MEMORY);
    IS(tnwCredit(good, TNW_XP, 0, memory[0], 1, NULL), TNW_ERR_INVALID_POINTER);
    IS(tnwCredit(good, TNW_XP, 0, NULL, 1, &request), TNW_ERR_INVALID_MEMORY);
    IS(tnwCredit(good, TNW_XP, 0, stack, 1, &request), TNW_ERR_INVALID_MEMORY);
    IS(tnwCredit(good, TNW_XP, 0, memory[0] + 2 * BIG, 1, &request), TNW_ERR_INVALID_MEMORY);
    IS(tnwCredit(good, TNW_XP, 0, memory[0] + 1, 2 * BIG, &request), TNW_ERR_INVALID_MEMORY);
    IS(tnwCredit(good, TNW_ZM, 0, memory[0], 1, &request), TNW_ERR_NO_LINK);
    const tnwRequest_t none[] = {0, 1, 63, 1ull << 63, ~0ull};
    for (int i = 0; i < 5; i++) {
        IS(tnwTest(good, none[i], NULL), TNW_ERR_INVALID_REQUEST);
        IS(tnwWait(good, none[i], 1, NULL), TNW_ERR_INVALID_REQUEST);
    }
    IS(tnwGetCounters(good, (enum tnwLink)6, &counters), TNW_ERR_INVALID_LINK);
    IS(tnwGetCounters(good, TNW_XP, NULL), TNW_ERR_INVALID_POINTER);
    IS(tnwGetLinkStatus(good, (enum tnwLink)7, &status), TNW_ERR_INVALID_LINK);
    IS(tnwGetLinkStatus(good, TNW_XP, NULL), TNW_ERR_INVALID_POINTER);
    char text[16];
    IS(tnwLastError(NULL, 5), TNW_ERR_INVALID_POINTER);
    OK(tnwLastError(text, sizeof text));
    IS(strcmp(text, "tnwGetLinkStatu"), 0);
    for (int code = -64; code < 8; code++) IS(*tnwStrError(code) != 0, 1);
    IS(strcmp(tnwStrError(TNW_ERR_FULL), "too many requests are waiting"), 0);
}

static void monitoring(void)
{
    struct tnwLinkStatus status;
    struct tnwCounters here, there;
    static const uint8_t out[1280];
    tnwRequest_t credit;
    OK(tnwFlush(node[0], LONG));
    OK(tnwGetCounters(node[0], TNW_XP, &here));
    OK(tnwGetCounters(node[1], TNW_XM, &there));
    IS(here.sent, there.received);
    uint64_t before = here.sent;
    OK(tnwCredit(node[1], TNW_XM, 1, memory[1], sizeof out, &credit));
    OK(tnwSend(node[0], TNW_XP, 1, out, sizeof out, TNW_PPUT, NULL));
    OK(tnwWait(node[1], credit, LONG, NULL));
    OK(tnwGetCounters(node[0], TNW_XP, &here));
    IS(here.sent - before, 10);
    IS(here.resent + here.nacks_received + here.crc_errors, 0);
    OK(tnwGetLinkStatus(node[0], TNW_XP, &status));
    IS(status.present && status.answered, 1);
    IS(status.resending || status.silent || status.discarding, 0);
    OK(tnwGetLinkStatus(node[0], TNW_ZP, &status));
    IS(status.present || status.answered, 0);
}

/* A child can use nothing of its parent's, and has nodes of its own. */
static void forked(void)
{
    tnwRequest_t request = 0;
    tnw_t own;
    int status;
    pid_t child = fork();

    if (child == 0) {
        IS(tnwGetConfig(node[0], &(struct tnwConfig){0}), TNW_ERR_NOT_AVAILABLE);
        IS(tnwCredit(node[0], TNW_XP, 1, memory[0], 128, &request), TNW_ERR_NOT_AVAILABLE);
        IS(tnwSend(node[1], TNW_XM, 1, "x", 1, TNW_PPUT, NULL), TNW_ERR_NOT_AVAILABLE);
        IS(tnwTest(node[0], request, NULL), TNW_ERR_NOT_AVAILABLE);
        IS(tnwFree(node[0], memory[0]), TNW_ERR_NOT_AVAILABLE);
        IS(tnwClose(node[0]), TNW_ERR_NOT_AVAILABLE);
        OK(tnwOpen(0, &own));
        OK(tnwGetConfig(own, &(struct tnwConfig){0}));
        IS(tnwClose(node[0]), TNW_ERR_NOT_AVAILABLE);
        OK(tnwClose(own));
        exit(0);
    }
    IS(waitpid(child, &status, 0), child);
    IS(status, 0);
    message(0, TNW_PPUT, 1, 4096);
    message(1, TNW_NGET, 1, 4096);
}

int main(void)
{
    for (unsigned i = 0; i < 2; i++) {
        void *at;
        OK(tnwOpen(i, &node[i]));
        OK(tnwAlloc(node[i], 2 * BIG, &at));
        IS((uintptr_t)at % 128, 0);
        memory[i] = at;
        for (int byte = 0; byte < 2 * BIG; byte++) IS(memory[i][byte], 0);
    }
    configuration();
    static const size_t sizes[] = {1, 127, 128, 129, 4096, 65536, BIG};
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int from = 0; from < 2; from++) {
            /* At most as much as there is room for, because nothing is received while this thread
             * stores. */
            message(from, TNW_PPUT, i % TNW_CHANNELS, sizes[i]);
            message(from, TNW_NGET, i % TNW_CHANNELS, sizes[i]);
        }
    order();
    forked();
    monitoring();
    mistakes();
    limits();
    /* A request whose memory was freed ends nevertheless. */
    tnwRequest_t last;
    OK(tnwCredit(node[1], TNW_XM, 2, memory[1], 128, &last));
    OK(tnwFree(node[1], memory[1]));
    OK(tnwSend(node[0], TNW_XP, 2, memory[0], 128, TNW_PPUT, NULL));
    OK(tnwWait(node[1], last, LONG, NULL));
    IS(tnwFree(node[1], memory[1]), TNW_ERR_INVALID_MEMORY);
    OK(tnwClose(node[0]));
    IS(tnwGetConfig(node[0], &(struct tnwConfig){0}), TNW_ERR_INVALID_HANDLE);
    /* It can be opened again, with a new handle. */
    OK(tnwOpen(0, &node[0]));
    void *at;
    OK(tnwAlloc(node[0], BIG, &at));
    tnwRequest_t credit;
    OK(tnwCredit(node[0], TNW_XP, 7, at, 128, &credit));
    OK(tnwSend(node[1], TNW_XM, 7, "again", 6, TNW_PPUT, NULL));
    OK(tnwWait(node[0], credit, LONG, NULL));
    IS(strcmp(at, "again"), 0);
    OK(tnwClose(node[1]));
    OK(tnwClose(node[0]));
    puts("ok");
    return 0;
}

/* A thread for each node of 2x2x2, and one more: all send to all neighbours on all channels, which
 * is more than FIFOs hold, by both schemes. Then threads of one node share a channel. */
#include <pthread.h>

#include "test.h"

enum { NODES = 8, BYTES = 40000, SHARERS = 4, MESSAGES = 25 };

static tnw_t node[NODES];

static unsigned seed(const uint8_t *coords, int link, int channel, int scheme)
{
    return (unsigned)(((coords[0] * 2 + coords[1]) * 2 + coords[2]) * 1000 + link * 100 +
                      channel * 10 + scheme);
}

static void *run(void *arg)
{
    tnw_t tnw = node[(uintptr_t)arg];
    struct tnwConfig config;
    OK(tnwGetConfig(tnw, &config));
    IS(config.links, 63);
    void *in, *out;
    OK(tnwAlloc(tnw, BYTES * TNW_LINKS * 2, &in));
    OK(tnwAlloc(tnw, BYTES * TNW_LINKS, &out));
    uint8_t *expected = malloc(BYTES);
    for (int channel = 0; channel < TNW_CHANNELS; channel++) {
        tnwRequest_t credits[TNW_LINKS][2], sends[TNW_LINKS];
        for (int link = 0; link < TNW_LINKS; link++)
            for (int i = 0; i < 2; i++)
                OK(tnwCredit(tnw, (enum tnwLink)link, (unsigned)channel,
                             (uint8_t *)in + (2 * link + i) * BYTES, BYTES, &credits[link][i]));
        for (int link = 0; link < TNW_LINKS; link++) {
            uint8_t *source = (uint8_t *)out + link * BYTES;
            pattern(source, BYTES, seed(config.coords, link, channel, 0));
            OK(tnwSend(tnw, (enum tnwLink)link, (unsigned)channel, source, BYTES, TNW_PPUT, NULL));
            pattern(source, BYTES, seed(config.coords, link, channel, 1));
            OK(tnwSend(tnw, (enum tnwLink)link, (unsigned)channel, source, BYTES, TNW_NGET,
                       &sends[link]));
        }
        for (int link = 0; link < TNW_LINKS; link++) {
            uint8_t from[3];
            memcpy(from, config.coords, 3);
            from[link / 2] ^= 1;
            for (int i = 0; i < 2; i++) {
                size_t bytes;
                OK(tnwWait(tnw, credits[link][i], LONG, &bytes));
                IS(bytes, BYTES);
                pattern(expected, BYTES, seed(from, link ^ 1, channel, i));
                IS(memcmp((uint8_t *)in + (2 * link + i) * BYTES, expected, BYTES), 0);
            }
            OK(tnwWait(tnw, sends[link], LONG, NULL));
        }
    }
    free(expected);
    return NULL;
}

/* Messages that threads send on one channel arrive whole, in some order. */
static void *share(void *arg)
{
    uint8_t message[5000];
    memset(message, (int)(uintptr_t)arg, sizeof message);
    for (int i = 0; i < MESSAGES; i++)
        OK(tnwSend(node[0], TNW_XP, 0, message, sizeof message, TNW_PPUT, NULL));
    return NULL;
}

static void all(void *(*body)(void *), int threads)
{
    pthread_t thread[NODES];
    for (int i = 0; i < threads; i++) pthread_create(&thread[i], NULL, body, (void *)(uintptr_t)i);
    for (int i = 0; i < threads; i++) pthread_join(thread[i], NULL);
}

static void *receive(void *arg)
{
    struct tnwConfig config;
    int other = 0, seen[SHARERS] = {0};
    (void)arg;
    for (int i = 1; i < NODES; i++) {
        OK(tnwGetConfig(node[i], &config));
        if (config.coords[0] == 1 && config.coords[1] + config.coords[2] == 0) other = i;
    }
    void *in;
    OK(tnwAlloc(node[other], 5000, &in));
    for (int i = 0; i < SHARERS * MESSAGES; i++) {
        tnwRequest_t credit;
        OK(tnwCredit(node[other], TNW_XM, 0, in, 5000, &credit));
        OK(tnwWait(node[other], credit, LONG, NULL));
        const uint8_t *bytes = in;
        for (int at = 1; at < 5000; at++) IS(bytes[at], bytes[0]);
        seen[bytes[0]]++;
    }
    for (int i = 0; i < SHARERS; i++) IS(seen[i], MESSAGES);
    return NULL;
}

int main(void)
{
    for (unsigned i = 0; i < NODES; i++) OK(tnwOpen(i, &node[i]));
    all(run, NODES);
    pthread_t receiver;
    pthread_create(&receiver, NULL, receive, NULL);
    all(share, SHARERS);
    pthread_join(receiver, NULL);
    for (int i = 0; i < NODES; i++) OK(tnwClose(node[i]));
    puts("ok");
    return 0;
}

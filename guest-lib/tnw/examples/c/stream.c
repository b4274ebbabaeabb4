/*
 * Sends by Nget what is longer than a buffer: two halves take turns, one being filled while the
 * other is on its way, and the receiver posts its credits in the same way. Then the counters.
 *
 *   tofu run --local --generation tnw -n 2 ./stream
 */
#include <stdint.h>
#include <string.h>

#include "check.h"

enum { HALF = 64 << 10, PIECES = 64 };

/* The n-th piece of what a node at x sends. */
static void fill(uint8_t *piece, int x, int n)
{
    for (int i = 0; i < HALF; i++) piece[i] = (uint8_t)(x * 31 + n * 7 + i / 128 + i);
}

int main(void)
{
    struct tnwConfig config;
    tnw_t tnw;
    OK(tnwOpen(0, &tnw));
    OK(tnwGetConfig(tnw, &config));
    int left = (config.coords[0] + config.shape[0] - 1) % config.shape[0], wrong = 0;
    void *out, *in;
    static uint8_t expected[HALF];
    OK(tnwAlloc(tnw, 2 * HALF, &out));
    OK(tnwAlloc(tnw, 2 * HALF, &in));
    tnwRequest_t sends[2] = {0, 0}, credits[2];
    for (int half = 0; half < 2; half++)
        OK(tnwCredit(tnw, TNW_XM, 3, (uint8_t *)in + half * HALF, HALF, &credits[half]));
    for (int n = 0; n < PIECES; n++) {
        int half = n % 2;
        uint8_t *source = (uint8_t *)out + half * HALF, *sink = (uint8_t *)in + half * HALF;
        /* Its last piece has left this half. */
        if (sends[half]) OK(tnwWait(tnw, sends[half], PATIENCE, NULL));
        fill(source, config.coords[0], n);
        OK(tnwSend(tnw, TNW_XP, 3, source, HALF, TNW_NGET, &sends[half]));
        size_t bytes;
        OK(tnwWait(tnw, credits[half], PATIENCE, &bytes));
        fill(expected, left, n);
        wrong += bytes != HALF || memcmp(sink, expected, HALF) != 0;
        if (n + 2 < PIECES) OK(tnwCredit(tnw, TNW_XM, 3, sink, HALF, &credits[half]));
    }
    for (int half = 0; half < 2; half++) OK(tnwWait(tnw, sends[half], PATIENCE, NULL));
    struct tnwCounters counters;
    OK(tnwFlush(tnw, PATIENCE));
    OK(tnwGetCounters(tnw, TNW_XP, &counters));
    printf("%d: %d pieces of %d bytes from %d, %d wrong, %llu packets sent, %llu sent again\n",
           config.coords[0], PIECES, HALF, left, wrong, (unsigned long long)counters.sent,
           (unsigned long long)counters.resent);
    OK(tnwClose(tnw));
    return wrong != 0;
}

/*
 * What commands take between nodes, by this program's clock: a line for each pattern with its name,
 * a parameter, and microseconds or GB/s. Ranks are on nodes of their own. For the times of a
 * machine:
 *
 *     tofu run --time modelled -n 12 ./times
 */
#define AREA (128 << 10)
#define WINDOW 8
#define ROUNDS 16

/* What is sent, and an area for each rank that writes here. */
#define OUT 0
#define IN(rank) ((size_t)(1 + (rank)) * AREA)
#define MEMORY IN(MOST)

#include "peers.h"

static void noticed(void)
{
    struct utofu_mrq_notice notice;
    int code;
    while ((code = utofu_poll_mrq(vcq[0], 0, &notice)) == UTOFU_ERR_NOT_FOUND)
        ;
    OK(code);
}

/* Half of the rounds of a ping-pong with a rank, in parts over several interfaces. */
static double ping_pong(int with, int tnis, size_t bytes)
{
    static uint64_t token;
    size_t part = (bytes / (size_t)tnis + 7) / 8 * 8, slot = (part + 8 + LINE - 1) / LINE * LINE;
    double begin = 0;
    meet(0);
    for (int i = -2; i < ROUNDS; i++) {
        if (i == 0) begin = now();
        token++;
        for (int turn = 0; turn < 2; turn++) {
            int to = turn == 0 ? with : 0, from = turn == 0 ? 0 : with;
            for (int k = 0; rank == from && k < tnis; k++) {
                *word(OUT + (size_t)k * slot + part) = token;
                put(to, k, OUT + (size_t)k * slot, IN(0) + (size_t)k * slot, part + 8);
            }
            for (int k = 0; rank == from && k < tnis; k++) sent(k);
            for (int k = 0; rank == to && k < tnis; k++)
                while (*word(IN(0) + (size_t)k * slot + part) < token)
                    ;
        }
    }
    return (now() - begin) / ROUNDS / 2;
}

/* A Get or an addition, one after the other: until its notice. */
static double round_trip(int with, int is_get)
{
    const unsigned long told = UTOFU_ONESIDED_FLAG_LOCAL_MRQ_NOTICE;
    double begin = 0;
    meet(0);
    for (int i = -2; rank == 0 && i < ROUNDS; i++) {
        if (i == 0) begin = now();
        if (is_get)
            OK(utofu_get(vcq[0], peer[with][0], own[0] + IN(0), theirs[with][0], 8, 0, told, NULL));
        else
            OK(utofu_armw8(vcq[0], peer[with][0], UTOFU_ARMW_OP_ADD, 1, theirs[with][0] + IN(1), 0,
                           told, NULL));
        noticed();
    }
    return (now() - begin) / ROUNDS;
}

/* Puts to a rank, with some in flight. */
static double stream(int with, size_t bytes)
{
    int issued = 0, done = 0, all = 8 * ROUNDS;
    meet(0);
    double begin = now();
    while (rank == 0 && done < all) {
        void *cbdata;
        for (; issued < all && issued - done < WINDOW; issued++) put(with, 0, OUT, IN(0), bytes);
        int code = utofu_poll_tcq(vcq[0], 0, &cbdata);
        done += code == UTOFU_SUCCESS;
        if (code != UTOFU_ERR_NOT_FOUND) OK(code);
    }
    return (double)bytes * all / (now() - begin) / 1000;
}

/* Each rank puts to the next ones, over the interfaces by turns, and waits for those before. */
static double to_next(int count, int tnis, size_t bytes)
{
    static uint64_t token;
    double begin = 0;
    meet(0);
    for (int i = -2; i < ROUNDS; i++) {
        if (i == 0) begin = now();
        size_t half = (size_t)(i & 1) * AREA / 2;
        *word(OUT + bytes) = ++token;
        for (int k = 1; k <= count; k++)
            put((rank + k) % size, k % tnis, OUT, IN(rank) + half, bytes + 8);
        for (int k = 1; k <= count; k++) sent(k % tnis);
        for (int k = 1; k <= count; k++)
            while (*word(IN((rank + size - k) % size) + half + bytes) < token)
                ;
    }
    return (now() - begin) / ROUNDS;
}

static void say(const char *what, int with, double value)
{
    if (rank == 0) printf("%s %d %.3f\n", what, with, value);
}

int main(void)
{
    begin_job();
    meet(1);
    for (int i = 1; i < size; i++) {
        say("put", i, ping_pong(i, 1, 8));
        say("get", i, round_trip(i, 1));
        say("add", i, round_trip(i, 0));
    }
    for (int bytes = 1024; bytes <= 16384; bytes *= 4)
        say("stream", bytes, stream(size - 1, (size_t)bytes));
    for (int bytes = 2080; bytes < AREA / 4; bytes *= 2)
        say("ring", bytes, to_next(1, 1, (size_t)bytes));
    for (int k = 1; k <= TNIS; k += k < 3 ? 1 : 3) say("striped", k, ping_pong(1, k, 16640));
    for (int k = 1; k <= TNIS; k++) say("all-to-all", k, to_next(size - 1, k, 8320));
    end_job();
    return 0;
}

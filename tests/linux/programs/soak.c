/*
 * Ranks put to each other, get back what they have put, and add up a number of each in barrier
 * gates, while links, nodes and boards on their routes fail and come back, until a file appears at
 * rank 0. A command may be lost, but is reported as lost; what has arrived is what was put. A sum
 * may never come, but one that comes is right.
 */
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <tofu_collective.h>

#include "../../../guest-lib/utofu/examples/c/ranks.h"

#define STAG 10
#define SIZE (1 << 16)
#define COMMANDS 20
/* The device gives up a command after half a second; the rest is for busy hosts. */
#define PATIENCE 30
/* Seconds after which a sum is given up; one that comes takes milliseconds on an idle host. */
#define SUM_PATIENCE 3

static const char *stop;
static uint64_t state;
static uint8_t out[SIZE], back[SIZE], in[RANKS_MOST][SIZE] __attribute__((aligned(256)));

static uint64_t below(uint64_t n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n;
}

/* Waits for the end of a command that was posted. Returns whether it has done what it was to. */
static int ended(utofu_vcq_hdl_t vcq)
{
    struct utofu_mrq_notice notice;
    time_t since = time(NULL);
    int code;
    while ((code = utofu_poll_mrq(vcq, 0, &notice)) == UTOFU_ERR_NOT_FOUND) {
        if (time(NULL) - since > PATIENCE) {
            fprintf(stderr, "nothing was told of a command in %d s\n", PATIENCE);
            exit(1);
        }
        usleep(100);
    }
    return code == UTOFU_SUCCESS;
}

static int exchange(void *rank, const void *own, size_t bytes, void *all)
{
    memcpy((uint8_t *)all + (size_t)*(int *)rank * bytes, own, bytes);
    share(all, bytes);
    return 0;
}

static tofu_coll_t linked(int rank, int size)
{
    const uint32_t axes[3] = {(uint32_t)size, 1, 1};
    tofu_coll_t group;
    OK(tofu_coll_create((uint32_t)rank, axes, TOFU_COLL_ANY, 0, exchange, &rank, &group));
    return group;
}

/* Adds up a number of each rank. Returns whether the sum has come everywhere; `wrong` counts sums
 * that came and were wrong. Gates in which a signal was lost wait for it for good, so all ranks
 * free theirs and link new ones. */
static int add(int rank, int size, unsigned long round, tofu_coll_t *group, unsigned long *wrong)
{
    const uint64_t ranks = (uint64_t)size * (uint64_t)(size - 1) / 2;
    const time_t since = time(NULL);
    uint64_t sum = round + (uint64_t)rank;
    uint8_t came[RANKS_MOST] = {0};
    utofu_vbg_id_t gate;
    unsigned algorithm;
    size_t count;
    int code, all = 1;
    OK(tofu_coll_query(*group, &algorithm, &gate, &count));
    OK(utofu_reduce_uint64(gate, UTOFU_REDUCE_OP_SUM, &sum, 1, 0));
    while ((code = utofu_poll_reduce_uint64(gate, 0, &sum)) == UTOFU_ERR_NOT_COMPLETED &&
           time(NULL) - since <= SUM_PATIENCE)
        usleep(100);
    came[rank] = code == UTOFU_SUCCESS;
    *wrong += came[rank] && sum != round * (uint64_t)size + ranks;
    share(came, sizeof *came);
    for (int i = 0; i < size; i++) all &= came[i];
    if (!all) {
        OK(tofu_coll_free(*group));
        meet();
        *group = linked(rank, size);
    }
    return all;
}

static void body(int rank, int size)
{
    const unsigned long flags = UTOFU_ONESIDED_FLAG_LOCAL_MRQ_NOTICE;
    unsigned long rounds = 0, lost = 0, wrong = 0, compared = 0, sums = 0;
    utofu_vcq_hdl_t vcq;
    tofu_coll_t group;
    int came = 1;
    utofu_stadd_t from, to, window;
    utofu_tni_id_t *tnis;
    size_t count;
    uint8_t go[RANKS_MOST] = {1};
    state = (uint64_t)rank + 1;
    ranks_need(size > 1, "this program is for two ranks or more");
    OK(utofu_get_onesided_tnis(&tnis, &count));
    OK(utofu_create_vcq_with_cmp_id(tnis[0], 7, 0, &vcq));
    OK(utofu_reg_mem(vcq, out, SIZE, 0, &from));
    OK(utofu_reg_mem(vcq, back, SIZE, 0, &to));
    OK(utofu_reg_mem_with_stag(vcq, in, sizeof in, STAG, 0, &window));
    group = linked(rank, size);
    for (;; rounds++) {
        go[rank] = rank != 0 || access(stop, F_OK) != 0;
        share(go, sizeof *go);
        if (!go[0]) break;
        for (int i = 0; i < COMMANDS; i++) {
            const int other = (rank + 1 + (int)below((uint64_t)size - 1)) % size;
            const size_t bytes = 1 + below(SIZE);
            utofu_stadd_t there = place(other, tnis[0], STAG) + (size_t)rank * SIZE;
            for (size_t n = 0; n < bytes; n++) out[n] = (uint8_t)(n * 7 + rounds * 31 + (size_t)i);
            OK(utofu_put(vcq, peer(other, tnis[0]), from, there, bytes, 0, flags, NULL));
            if (!ended(vcq)) {
                lost++;
                continue;
            }
            memset(back, 0, bytes);
            OK(utofu_get(vcq, peer(other, tnis[0]), to, there, bytes, 0, flags, NULL));
            if (!ended(vcq)) {
                lost++;
                continue;
            }
            compared++;
            wrong += memcmp(out, back, bytes) != 0;
        }
        came = add(rank, size, rounds, &group, &wrong);
        sums += (unsigned)came;
    }
    ranks_need(came, "all is repaired, and the last sum did not come");
    printf("%lu rounds, %lu compared, %lu lost, %lu sums, %lu wrong\n", rounds, compared, lost,
           sums, wrong);
    OK(tofu_coll_free(group));
    OK(utofu_free_vcq(vcq));
    free(tnis);
}

int main(int argc, char **argv)
{
    stop = argc > 1 ? argv[1] : "stop";
    setvbuf(stdout, NULL, _IOLBF, 0);
    return run_ranks(body);
}

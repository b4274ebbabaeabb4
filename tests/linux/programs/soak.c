/*
 * Ranks put to each other and get back what they have put, while links, nodes and boards on their
 * ways fail and come back, until a file appears at rank 0. A command may be lost, but is told to
 * be; what has arrived is what was put.
 */
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../../../guest-lib/utofu/examples/c/ranks.h"

#define STAG 10
#define SIZE (1 << 16)
#define COMMANDS 20
/* The device gives up a command after half a second; the rest is for busy hosts. */
#define PATIENCE 30

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

static void body(int rank, int size)
{
    const unsigned long flags = UTOFU_ONESIDED_FLAG_LOCAL_MRQ_NOTICE;
    unsigned long rounds = 0, lost = 0, wrong = 0, compared = 0;
    utofu_vcq_hdl_t vcq;
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
    }
    printf("%lu rounds, %lu compared, %lu lost, %lu wrong\n", rounds, compared, lost, wrong);
    OK(utofu_free_vcq(vcq));
    free(tnis);
}

int main(int argc, char **argv)
{
    stop = argc > 1 ? argv[1] : "stop";
    setvbuf(stdout, NULL, _IOLBF, 0);
    return run_ranks(body);
}

/*
 * Aligned words of 8 bytes in a process's memory are written as one, however they are written, and
 * atomic commands of several ranks lose nothing against each other and against Puts beside them.
 */
#include "ranks.h"

#define STAG 10
#define EACH 3000

/* The word that all add to, and the words that are put beside it; the watched word is on a cache
 * line of its own. */
static _Alignas(256) volatile uint64_t words[64];

static void body(int rank, int size)
{
    utofu_vcq_hdl_t vcq;
    utofu_stadd_t mine;
    static _Alignas(256) uint64_t values[2][32];
    utofu_stadd_t from;
    OK(utofu_create_vcq_with_cmp_id(0, 7, 0, &vcq));
    OK(utofu_reg_mem_with_stag(vcq, (void *)words, sizeof words, STAG, 0, &mine));
    memset(values[1], 0xff, sizeof values[1]);
    OK(utofu_reg_mem(vcq, values, sizeof values, 0, &from));
    meet();
    const unsigned long told = UTOFU_ONESIDED_FLAG_TCQ_NOTICE;
    if (rank == 0) {
        /* All others have reported that they are done. */
        while (words[8] != (uint64_t)(size - 1)) {
            uint64_t word = __atomic_load_n(&words[32], __ATOMIC_RELAXED);
            if (word != 0 && word != UINT64_MAX) {
                printf("a torn word: %llx\n", (unsigned long long)word);
                exit(1);
            }
            void *cbdata;
            utofu_poll_tcq(vcq, 0, &cbdata);
        }
        printf("sum %llu of %d, no torn word\n", (unsigned long long)words[0], (size - 1) * EACH);
    } else {
        const utofu_stadd_t there = place(0, 0, STAG);
        for (int i = 0; i < EACH; i++) {
            const utofu_stadd_t value = from + (i & 1) * sizeof values[0];
            OK(utofu_armw8(vcq, peer(0, 0), UTOFU_ARMW_OP_ADD, 1, there, 0, told, NULL));
            completed(vcq);
            /* Many end in the middle of the second word. */
            const size_t length = i % 2 ? 8 + i % 64 : 9 + i % 7;
            if (i % 3 == 0)
                OK(utofu_put(vcq, peer(0, 0), value, there + 32 * 8, length, 0, told, NULL));
            else
                OK(utofu_put_piggyback8(vcq, peer(0, 0), i & 1 ? UINT64_MAX : 0, there + 32 * 8, 8,
                                        0, told, NULL));
            completed(vcq);
        }
        OK(utofu_armw8(vcq, peer(0, 0), UTOFU_ARMW_OP_ADD, 1, there + 64, 0, told, NULL));
        completed(vcq);
    }
    meet();
    OK(utofu_free_vcq(vcq));
}

int main(void)
{
    return run_ranks(body);
}

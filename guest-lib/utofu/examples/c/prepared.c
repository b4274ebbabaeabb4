/*
 * A halo exchange that is prepared once and posted many times: the descriptors of a Put to each
 * side, an atomic addition and an end without a message lie in a row and are posted in one call.
 * All but the last wait (DELAY_START), so that one touch of the device starts them.
 */
#include "ranks.h"

#define STAG 30
#define ROUNDS 100
#define SIDE 512

struct area {
    volatile uint64_t out[SIDE], from_left[SIDE], from_right[SIDE];
    volatile uint64_t arrivals;
};

static void body(int rank, int size)
{
    struct area *area = aligned_alloc(4096, (sizeof *area + 4095) / 4096 * 4096);
    area->arrivals = 0;
    utofu_vcq_hdl_t vcq;
    utofu_stadd_t mine;
    OK(utofu_create_vcq_with_cmp_id(1, 7, 0, &vcq));
    OK(utofu_reg_mem_with_stag(vcq, area, sizeof *area, STAG, 0, &mine));
    meet();

    const int left = (rank + size - 1) % size, right = (rank + 1) % size;
    const size_t out = offsetof(struct area, out), arrivals = offsetof(struct area, arrivals);
    const unsigned long later = UTOFU_ONESIDED_FLAG_DELAY_START;
    _Alignas(8) char descriptors[5 * 64];
    size_t used = 0, one;
    OK(utofu_prepare_put(vcq, peer(left, 1), mine + out,
                         place(left, 1, STAG) + offsetof(struct area, from_right),
                         sizeof area->out, 1, later, descriptors + used, &one));
    used += one;
    OK(utofu_prepare_put(vcq, peer(right, 1), mine + out,
                         place(right, 1, STAG) + offsetof(struct area, from_left),
                         sizeof area->out, 2, later, descriptors + used, &one));
    used += one;
    /* A compare-and-swap of 8 bytes takes 64 bytes; it never matches, and changes nothing. */
    OK(utofu_prepare_cswap8(vcq, peer(right, 1), ~0ULL, 0, place(right, 1, STAG) + arrivals, 3,
                            later, descriptors + used, &one));
    used += one;
    OK(utofu_prepare_armw8(vcq, peer(right, 1), UTOFU_ARMW_OP_ADD, 1,
                           place(right, 1, STAG) + arrivals, 4, later, descriptors + used, &one));
    used += one;
    OK(utofu_prepare_nop(vcq, UTOFU_ONESIDED_FLAG_TCQ_NOTICE, descriptors + used, &one));
    used += one;

    int wrong = 0;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < SIDE; i++) area->out[i] = (uint64_t)(rank * 1000000 + round * 1000 + i);
        OK(utofu_post_toq(vcq, descriptors, used, (void *)(intptr_t)round));
        /* Completions come in the order of posting, so this is the end of all five. */
        wrong += (intptr_t)completed(vcq) != round;
        meet();
        for (int i = 0; i < SIDE; i++) {
            wrong += area->from_left[i] != (uint64_t)(left * 1000000 + round * 1000 + i);
            wrong += area->from_right[i] != (uint64_t)(right * 1000000 + round * 1000 + i);
        }
        wrong += area->arrivals != (uint64_t)round + 1;
        meet();
    }
    const int total = (int)sum(rank, wrong);
    if (rank == 0)
        printf("%d rounds of %zu bytes of descriptors, %d wrong\n", ROUNDS, used, total);
    OK(utofu_free_vcq(vcq));
    free(area);
}

int main(void)
{
    return run_ranks(body);
}

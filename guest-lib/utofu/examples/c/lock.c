/*
 * A lock in rank 0's memory, taken by compare-and-swap and given back by swap. Under it all ranks
 * read, change and write a counter beside it, which would lose additions otherwise.
 */
#include "ranks.h"

#define STAG 10
#define EACH 200

/* The lock, 0 or 1 + the rank that has it, and the counter. */
static _Alignas(256) volatile uint64_t shared[2];

static void body(int rank, int size)
{
    utofu_vcq_hdl_t vcq;
    utofu_stadd_t stadd, mine;
    static _Alignas(256) volatile uint64_t copies[64][32];
    if (size > 64) exit(1);
    OK(utofu_create_vcq_with_cmp_id(0, 7, UTOFU_VCQ_FLAG_THREAD_SAFE, &vcq));
    if (rank == 0) OK(utofu_reg_mem_with_stag(vcq, (void *)shared, sizeof shared, STAG, 0, &stadd));
    OK(utofu_reg_mem(vcq, (void *)copies[rank], sizeof copies[rank], 0, &mine));
    meet();

    const utofu_vcq_id_t to = peer(0, 0);
    const utofu_stadd_t lock = place(0, 0, STAG), counter = lock + 8;
    const unsigned long told = UTOFU_ONESIDED_FLAG_LOCAL_MRQ_NOTICE;
    for (int i = 0; i < EACH; i++) {
        /* The notice has the old value: 0 if the lock is ours now. */
        do {
            OK(utofu_cswap8(vcq, to, 0, rank + 1, lock, 0, told, NULL));
        } while (noticed(vcq).rmt_value != 0);
        OK(utofu_get(vcq, to, mine, counter, 8, 0, told, NULL));
        noticed(vcq);
        copies[rank][0]++;
        OK(utofu_put(vcq, to, mine, counter, 8, 0, told, NULL));
        noticed(vcq);
        OK(utofu_armw8(vcq, to, UTOFU_ARMW_OP_SWAP, 0, lock, 0, told, NULL));
        if (noticed(vcq).rmt_value != (uint64_t)rank + 1) {
            fprintf(stderr, "rank %d: somebody else had the lock\n", rank);
            exit(1);
        }
    }
    meet();
    if (rank == 0)
        printf("counter %d of %d, lock %s\n", (int)shared[1], size * EACH,
               shared[0] == 0 ? "free" : "taken");
    OK(utofu_free_vcq(vcq));
}

int main(void)
{
    return run_ranks(body);
}

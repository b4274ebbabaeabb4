/* Each rank gets a block from the previous one's memory. */
#include <string.h>

#include "ranks.h"

#define STAG 10
#define SIZE 100000

static void body(int rank, int size)
{
    uint8_t *offered = aligned_alloc(256, SIZE / 256 * 256 + 256);
    uint8_t *taken = malloc(SIZE);
    utofu_vcq_hdl_t vcq;
    utofu_stadd_t offered_stadd, taken_stadd, previous_stadd;
    memset(offered, 'A' + rank, SIZE);
    OK(utofu_create_vcq_with_cmp_id(0, 7, 0, &vcq));
    /* Others may read it and nobody may write it. */
    OK(utofu_reg_mem_with_stag(vcq, offered, SIZE, STAG, UTOFU_REG_MEM_FLAG_READ_ONLY,
                               &offered_stadd));
    OK(utofu_reg_mem(vcq, taken, SIZE, 0, &taken_stadd));
    meet();

    int previous = (rank + size - 1) % size;
    OK(utofu_query_stadd(peer(previous, 0), STAG, &previous_stadd));
    OK(utofu_get(vcq, peer(previous, 0), taken_stadd, previous_stadd, SIZE, 0,
                 UTOFU_ONESIDED_FLAG_LOCAL_MRQ_NOTICE, NULL));
    struct utofu_mrq_notice notice;
    int code;
    while ((code = utofu_poll_mrq(vcq, 0, &notice)) == UTOFU_ERR_NOT_FOUND)
        ;
    OK(code);
    int wrong = 0;
    for (int i = 0; i < SIZE; i++) wrong += taken[i] != 'A' + previous;
    for (int turn = 0; turn < size; turn++) {
        if (turn == rank)
            printf("rank %d: %llu bytes of '%c', %d wrong\n", rank,
                   (unsigned long long)(notice.lcl_stadd - taken_stadd), taken[0], wrong);
        meet();
    }
    OK(utofu_free_vcq(vcq)); /* Deregisters too. */
    free(offered);
    free(taken);
}

int main(void)
{
    return run_ranks(body);
}

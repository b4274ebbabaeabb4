/* All ranks draw numbers from a counter in rank 0's memory, by atomic additions. */
#include "ranks.h"

#define STAG 10
#define EACH 1000

static _Alignas(256) uint64_t counter[32];

static void body(int rank, int size)
{
    utofu_vcq_hdl_t vcq;
    utofu_stadd_t stadd;
    OK(utofu_create_vcq_with_cmp_id(0, 7, 0, &vcq));
    if (rank == 0) OK(utofu_reg_mem_with_stag(vcq, counter, sizeof counter, STAG, 0, &stadd));
    meet();

    OK(utofu_query_stadd(peer(0, 0), STAG, &stadd));
    uint64_t last = 0, drawn = 0;
    int rising = 1;
    for (int i = 0; i < EACH; i++) {
        OK(utofu_armw8(vcq, peer(0, 0), UTOFU_ARMW_OP_ADD, 1, stadd, 0,
                       UTOFU_ONESIDED_FLAG_LOCAL_MRQ_NOTICE, NULL));
        struct utofu_mrq_notice notice;
        int code;
        while ((code = utofu_poll_mrq(vcq, 0, &notice)) == UTOFU_ERR_NOT_FOUND)
            ;
        OK(code);
        rising &= i == 0 || notice.rmt_value > last;
        last = notice.rmt_value;
        drawn += last;
    }
    const uint64_t total = sum(rank, drawn);
    if (rank == 0) {
        uint64_t n = (uint64_t)size * EACH;
        printf("counter %llu, each number drawn once: %s\n", (unsigned long long)counter[0],
               rising && counter[0] == n && total == n * (n - 1) / 2 ? "yes" : "no");
    }
    OK(utofu_free_vcq(vcq));
}

int main(void)
{
    return run_ranks(body);
}

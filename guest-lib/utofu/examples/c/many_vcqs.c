/*
 * All VCQs that a process can have: eight with component IDs and eight without on each of its
 * TNIs. Each of rank 0 sends one number to its counterpart on rank 1, and polls for itself.
 */
#include "ranks.h"

#define MAX_TNIS 6
#define VCQS 16

/* Of each rank; only rank 1's are used. */
static utofu_vcq_id_t ids[RANKS_MOST][MAX_TNIS][VCQS];
static utofu_stadd_t places[RANKS_MOST][MAX_TNIS][VCQS];

static void body(int rank, int size)
{
    if (rank > 1 || size < 2) {
        share(ids, sizeof *ids);
        share(places, sizeof *places);
        for (int i = 0; i < 2; i++) meet();
        return;
    }
    utofu_tni_id_t *tnis;
    size_t count;
    OK(utofu_get_onesided_tnis(&tnis, &count));
    utofu_vcq_hdl_t vcqs[MAX_TNIS][VCQS];
    static _Alignas(256) volatile uint64_t numbers[MAX_TNIS][VCQS];
    for (size_t t = 0; t < count; t++) {
        for (int v = 0; v < VCQS; v++) {
            if (v < 8) OK(utofu_create_vcq_with_cmp_id(tnis[t], (utofu_cmp_id_t)v, 0, &vcqs[t][v]));
            else OK(utofu_create_vcq(tnis[t], 0, &vcqs[t][v]));
            if (rank == 0) continue;
            OK(utofu_query_vcq_id(vcqs[t][v], &ids[rank][t][v]));
            OK(utofu_reg_mem(vcqs[t][v], (void *)&numbers[t][v], 8, 0, &places[rank][t][v]));
        }
    }
    share(ids, sizeof *ids);
    share(places, sizeof *places);
    if (rank == 0) {
        for (size_t t = 0; t < count; t++)
            for (int v = 0; v < VCQS; v++)
                OK(utofu_put_piggyback8(vcqs[t][v], ids[1][t][v], t * 100 + v + 1, places[1][t][v],
                                        8, v,
                                        UTOFU_ONESIDED_FLAG_TCQ_NOTICE |
                                            UTOFU_ONESIDED_FLAG_REMOTE_MRQ_NOTICE,
                                        (void *)&numbers[t][v]));
        /* The last VCQ first: messages for other VCQs are kept for them in the meantime. */
        int told = 0;
        for (size_t t = count; t-- > 0;)
            for (int v = VCQS; v-- > 0;) told += completed(vcqs[t][v]) == (void *)&numbers[t][v];
        printf("rank 0: %zu TNIs, %d completions\n", count, told);
    }
    meet();
    if (rank == 1) {
        int right = 0;
        for (size_t t = count; t-- > 0;) {
            for (int v = VCQS; v-- > 0;) {
                struct utofu_mrq_notice notice = noticed(vcqs[t][v]);
                right += notice.edata == (uint64_t)v && numbers[t][v] == t * 100 + v + 1;
            }
        }
        printf("rank 1: %d of %zu numbers at the right VCQ\n", right, count * VCQS);
    }
    meet();
    for (size_t t = 0; t < count; t++)
        for (int v = 0; v < VCQS; v++) OK(utofu_free_vcq(vcqs[t][v]));
    free(tnis);
}

int main(void)
{
    return run_ranks(body);
}

/* Rank 0 puts 12 MB into rank 1's memory over all of its TNIs at once. */
#include <string.h>

#include "ranks.h"

#define STAG 10
#define SIZE (12 << 20)

static void body(int rank, int size)
{
    utofu_tni_id_t *tnis;
    size_t count;
    OK(utofu_get_onesided_tnis(&tnis, &count));
    if (rank > 1 || size < 2) {
        meet();
        meet();
        free(tnis);
        return;
    }
    uint8_t *buffer = aligned_alloc(256, SIZE);
    for (int i = 0; i < SIZE; i++) buffer[i] = rank == 0 ? (uint8_t)(i % 253) : 0;
    utofu_vcq_hdl_t *vcqs = calloc(count, sizeof *vcqs);
    utofu_stadd_t *mine = calloc(count, sizeof *mine);
    /* Memory is registered with each interface that must reach it. */
    for (size_t i = 0; i < count; i++) {
        OK(utofu_create_vcq_with_cmp_id(tnis[i], 7, 0, &vcqs[i]));
        OK(utofu_reg_mem_with_stag(vcqs[i], buffer, SIZE, STAG, 0, &mine[i]));
    }
    meet();
    if (rank == 0) {
        size_t part = SIZE / count;
        for (size_t i = 0; i < count; i++) {
            utofu_stadd_t theirs;
            OK(utofu_query_stadd(peer(1, tnis[i]), STAG, &theirs));
            OK(utofu_put(vcqs[i], peer(1, tnis[i]), mine[i] + i * part, theirs + i * part, part, 0,
                         UTOFU_ONESIDED_FLAG_TCQ_NOTICE, NULL));
        }
        for (size_t i = 0; i < count; i++) {
            void *cbdata;
            int code;
            while ((code = utofu_poll_tcq(vcqs[i], 0, &cbdata)) == UTOFU_ERR_NOT_FOUND)
                ;
            OK(code);
        }
    }
    meet();
    if (rank == 1) {
        int wrong = 0;
        for (int i = 0; i < SIZE; i++) wrong += buffer[i] != (uint8_t)(i % 253);
        printf("%d bytes over %zu TNIs, %d wrong\n", SIZE, count, wrong);
    }
    for (size_t i = 0; i < count; i++) OK(utofu_free_vcq(vcqs[i]));
    free(vcqs);
    free(mine);
    free(tnis);
    free(buffer);
}

int main(void)
{
    return run_ranks(body);
}

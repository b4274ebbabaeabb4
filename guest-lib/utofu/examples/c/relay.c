/*
 * A message that runs through all ranks by itself: each rank but the last has a session in which a
 * Put to the next one waits; the message that arrives starts it.
 */
#include <string.h>

#include "ranks.h"

#define SIZE 4096

static utofu_vcq_id_t ids[64];
static utofu_stadd_t places[64];

static void body(int rank, int size)
{
    if (size > 64) exit(1);
    uint8_t *buffer = aligned_alloc(256, SIZE);
    memset(buffer, rank == 0 ? 'x' : 0, SIZE);
    utofu_vcq_hdl_t vcq;
    /* The first rank starts by itself. */
    OK(utofu_create_vcq(0, rank == 0 ? 0 : UTOFU_VCQ_FLAG_SESSION_MODE, &vcq));
    OK(utofu_reg_mem(vcq, buffer, SIZE, 0, &places[rank]));
    OK(utofu_query_vcq_id(vcq, &ids[rank]));
    share(ids, sizeof *ids);
    share(places, sizeof *places);
    if (rank > 0 && rank + 1 < size) {
        unsigned long flags = rank + 2 < size ? UTOFU_ONESIDED_FLAG_SPS(1)
                                              : UTOFU_ONESIDED_FLAG_REMOTE_MRQ_NOTICE;
        OK(utofu_put(vcq, ids[rank + 1], places[rank], places[rank + 1], SIZE, 7, flags, NULL));
    }
    meet();
    if (rank == 0) {
        OK(utofu_put(vcq, ids[1], places[0], places[1], SIZE, 7,
                     size > 2 ? UTOFU_ONESIDED_FLAG_SPS(1) : UTOFU_ONESIDED_FLAG_REMOTE_MRQ_NOTICE,
                     NULL));
    } else if (rank == size - 1) {
        struct utofu_mrq_notice notice;
        int code;
        while ((code = utofu_poll_mrq(vcq, 0, &notice)) == UTOFU_ERR_NOT_FOUND)
            ;
        OK(code);
        int right = notice.edata == 7;
        for (int i = 0; i < SIZE; i++) right &= buffer[i] == 'x';
        printf("rank %d %s: through %d ranks, %d of which did nothing\n", rank,
               right ? "has it" : "has something else", size, size - 2);
    }
    meet();
    OK(utofu_free_vcq(vcq));
    free(buffer);
}

int main(void)
{
    return run_ranks(body);
}

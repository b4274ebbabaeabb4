/*
 * Ranks 0 and 1 send a message back and forth. The receiver waits for the notice of the message;
 * the sender sees its own completion before the answer to its message.
 */
#include <string.h>

#include "ranks.h"

#define STAG 10
#define SIZE 4096
#define ROUNDS 1000

static void wait_for(utofu_vcq_hdl_t vcq, int type)
{
    struct utofu_mrq_notice notice;
    int code;
    while ((code = utofu_poll_mrq(vcq, 0, &notice)) == UTOFU_ERR_NOT_FOUND)
        ;
    OK(code);
    if (notice.notice_type != type) {
        fprintf(stderr, "notice %d came where %d was due\n", notice.notice_type, type);
        exit(1);
    }
}

static void body(int rank, int size)
{
    if (rank > 1 || size < 2) {
        meet();
        return;
    }
    uint8_t *buffer = aligned_alloc(256, SIZE);
    memset(buffer, 0, SIZE);
    utofu_vcq_hdl_t vcq;
    utofu_stadd_t mine, theirs;
    OK(utofu_create_vcq_with_cmp_id(0, 7, 0, &vcq));
    OK(utofu_reg_mem_with_stag(vcq, buffer, SIZE, STAG, 0, &mine));
    utofu_vcq_id_t other = peer(1 - rank, 0);
    OK(utofu_query_stadd(other, STAG, &theirs));
    meet();

    const unsigned long flags =
        UTOFU_ONESIDED_FLAG_LOCAL_MRQ_NOTICE | UTOFU_ONESIDED_FLAG_REMOTE_MRQ_NOTICE;
    for (int round = 0; round < ROUNDS; round++) {
        if (rank == 1) wait_for(vcq, UTOFU_MRQ_TYPE_RMT_PUT);
        buffer[0]++;
        OK(utofu_put(vcq, other, mine, theirs, SIZE, 0, flags, NULL));
        wait_for(vcq, UTOFU_MRQ_TYPE_LCL_PUT);
        if (rank == 0) wait_for(vcq, UTOFU_MRQ_TYPE_RMT_PUT);
    }
    if (rank == 0)
        printf("%d rounds of %d bytes, first byte %d\n", ROUNDS, SIZE, buffer[0]);
    OK(utofu_free_vcq(vcq));
    free(buffer);
}

int main(void)
{
    return run_ranks(body);
}

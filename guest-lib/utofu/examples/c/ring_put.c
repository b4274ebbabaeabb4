/* Each rank puts a line of text into the next one's memory, and waits for the notice of the Put
 * into its own. */
#include <string.h>

#include "ranks.h"

#define STAG 10

static void body(int rank, int size)
{
    _Alignas(256) char in[256] = "", out[256];
    utofu_vcq_hdl_t vcq;
    utofu_stadd_t in_stadd, out_stadd, next_stadd;
    OK(utofu_create_vcq_with_cmp_id(0, 7, 0, &vcq));
    OK(utofu_reg_mem_with_stag(vcq, in, sizeof in, STAG, 0, &in_stadd));
    OK(utofu_reg_mem(vcq, out, sizeof out, 0, &out_stadd));
    meet(); /* Memory that is not registered yet cannot be written to. */

    int next = (rank + 1) % size;
    int length = snprintf(out, sizeof out, "hello from rank %d", rank) + 1;
    OK(utofu_query_stadd(peer(next, 0), STAG, &next_stadd));
    OK(utofu_put(vcq, peer(next, 0), out_stadd, next_stadd, (size_t)length, (uint64_t)rank,
                 UTOFU_ONESIDED_FLAG_TCQ_NOTICE | UTOFU_ONESIDED_FLAG_REMOTE_MRQ_NOTICE, NULL));
    void *cbdata;
    int code;
    while ((code = utofu_poll_tcq(vcq, 0, &cbdata)) == UTOFU_ERR_NOT_FOUND)
        ;
    OK(code);
    struct utofu_mrq_notice notice;
    while ((code = utofu_poll_mrq(vcq, 0, &notice)) == UTOFU_ERR_NOT_FOUND)
        ;
    OK(code);
    for (int turn = 0; turn < size; turn++) {
        if (turn == rank) printf("rank %d: \"%s\", edata %d\n", rank, in, (int)notice.edata);
        meet();
    }
    OK(utofu_free_vcq(vcq));
}

int main(void)
{
    return run_ranks(body);
}

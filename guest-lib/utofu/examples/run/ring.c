/* Each rank puts a line of text into the next one's memory, and waits for the one before it. */
#include <string.h>

#include "job.h"

#define STAG 10

int main(void)
{
    int rank = job_rank(), size = job_size();
    job_start();

    static _Alignas(256) char in[256], out[256];
    utofu_vcq_hdl_t vcq;
    utofu_stadd_t in_stadd, out_stadd, next_stadd;
    struct job_share own = job_share(rank);
    OK(utofu_create_vcq_with_cmp_id(own.tni, own.component, 0, &vcq));
    OK(utofu_reg_mem_with_stag(vcq, in, sizeof in, STAG, 0, &in_stadd));
    OK(utofu_reg_mem(vcq, out, sizeof out, 0, &out_stadd));

    utofu_vcq_id_t next = job_peer((rank + 1) % size);
    OK(utofu_query_stadd(next, STAG, &next_stadd));
    size_t length = (size_t)snprintf(out, sizeof out, "hello from rank %d", rank) + 1;
    const unsigned long told = UTOFU_ONESIDED_FLAG_TCQ_NOTICE |
                               UTOFU_ONESIDED_FLAG_LOCAL_MRQ_NOTICE |
                               UTOFU_ONESIDED_FLAG_REMOTE_MRQ_NOTICE;
    int under_way = 0, delivered = 0, received = 0;
    while (!delivered || !received) {
        int code;
        if (!delivered && !under_way) {
            void *cbdata;
            OK(utofu_put(vcq, next, out_stadd, next_stadd, length, 0, told, NULL));
            while ((code = utofu_poll_tcq(vcq, 0, &cbdata)) == UTOFU_ERR_NOT_FOUND)
                ;
            /* It was sent. Its notice has the result. */
            OK(code);
            under_way = 1;
        }
        struct utofu_mrq_notice notice;
        while ((code = utofu_poll_mrq(vcq, 0, &notice)) == UTOFU_ERR_NOT_FOUND)
            ;
        if (notice.notice_type == UTOFU_MRQ_TYPE_RMT_PUT) {
            received = 1;
        } else {
            /* Memory that the next rank has not registered yet cannot be written to, so try
             * again. */
            delivered = code == UTOFU_SUCCESS;
            under_way = 0;
        }
    }
    printf("rank %d of %d: %s\n", rank, size, in);
    OK(utofu_free_vcq(vcq));
    return 0;
}

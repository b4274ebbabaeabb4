/*
 * Rank 0 puts into memory that rank 1 registers some time later, under a steering tag that both
 * know, again and again until rank 1 answers. It exchanges nothing before, and counts any
 * completion but success as a fault: data that comes too early is dropped, which is no fault of the
 * sender.
 */
#include <unistd.h>

#include "ranks.h"

#define STAG 10
#define EARLY 50

static _Alignas(256) volatile uint64_t inbox[32], outbox[32];

static void body(int rank, int size)
{
    utofu_vcq_hdl_t vcq;
    utofu_stadd_t in, out;
    const unsigned long told = UTOFU_ONESIDED_FLAG_TCQ_NOTICE;
    ranks_need(size == 2, "this program is for two ranks");
    OK(utofu_create_vcq_with_cmp_id(0, 7, 0, &vcq));
    OK(utofu_reg_mem(vcq, (void *)outbox, sizeof outbox, 0, &out));
    outbox[0] = 1;
    if (rank == 0) {
        OK(utofu_reg_mem_with_stag(vcq, (void *)inbox, sizeof inbox, STAG, 0, &in));
        int puts = 0;
        for (; inbox[0] == 0; puts++) {
            if (puts == EARLY) {
                printf("%d early Puts\n", EARLY);
                fflush(stdout);
                /* Now rank 1 may register. */
                meet();
            }
            OK(utofu_put(vcq, peer(1, 0), out, place(1, 0, STAG), 8, 0, told, NULL));
            completed(vcq);
        }
        printf("answered\n");
        meet();
    } else {
        /* So its queue exists, but not the memory. */
        meet();
        if (inbox[0] != 0) exit(1);
        OK(utofu_reg_mem_with_stag(vcq, (void *)inbox, sizeof inbox, STAG, 0, &in));
        while (inbox[0] == 0)
            ;
        OK(utofu_put(vcq, peer(0, 0), out, place(0, 0, STAG), 8, 0, told, NULL));
        completed(vcq);
        meet();
    }
    OK(utofu_free_vcq(vcq));
}

int main(void)
{
    return run_ranks(body);
}

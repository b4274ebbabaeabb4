/*
 * Rank 1 is killed while large Puts to it are in progress. Their notices report that, and ranks 0
 * and 2 continue with each other.
 */
#include <signal.h>
#include <unistd.h>

#include "ranks.h"

#define STAG 10
#define SIZE (8 << 20)

static void body(int rank, int size)
{
    utofu_vcq_hdl_t vcq;
    utofu_stadd_t mine;
    uint8_t *buffer = aligned_alloc(4096, SIZE);
    if (size != 3) exit(1);
    memset(buffer, rank, SIZE);
    OK(utofu_create_vcq_with_cmp_id(0, 7, 0, &vcq));
    OK(utofu_reg_mem_with_stag(vcq, buffer, SIZE, STAG, 0, &mine));
    meet();
    const unsigned long told = UTOFU_ONESIDED_FLAG_TCQ_NOTICE;
    const unsigned long fate = UTOFU_ONESIDED_FLAG_LOCAL_MRQ_NOTICE;
    if (rank == 1) {
        while (((volatile uint8_t *)buffer)[SIZE - 1] != 0)
            ;
        kill(getpid(), SIGKILL);
    }
    struct utofu_mrq_notice notice;
    int code = UTOFU_SUCCESS, rounds = 0;
    if (rank == 0) {
        while (code == UTOFU_SUCCESS) {
            OK(utofu_put(vcq, peer(1, 0), mine, place(1, 0, STAG), SIZE, 0, told | fate, NULL));
            completed(vcq);
            while ((code = utofu_poll_mrq(vcq, 0, &notice)) == UTOFU_ERR_NOT_FOUND)
                ;
            rounds++;
        }
        OK(utofu_put(vcq, peer(2, 0), mine, place(2, 0, STAG), SIZE, 0, told, NULL));
        completed(vcq);
        /* Either the memory or the queue disappeared first. */
        const int gone = code == UTOFU_ERR_MRQ_RMT_MEMORY || code == UTOFU_ERR_MRQ_PEER;
        printf("%s, then %s, then success\n", rounds > 1 ? "success" : "nothing",
               gone ? "an error" : "another one");
        exit(0);
    }
    while (((volatile uint8_t *)buffer)[SIZE - 1] != 0)
        ;
    exit(0);
}

int main(void)
{
    return run_ranks(body);
}

/*
 * Four ranks on two nodes. Rank 1, which shares a node with rank 0, is killed. The others continue
 * and pass a number around, as if nothing had happened.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "job.h"

#define STAG 10
#define ROUNDS 500

static _Alignas(256) volatile uint64_t words[2];
static uint64_t out;
static utofu_vcq_hdl_t vcq;
static utofu_stadd_t out_stadd;

/* Writes a word of another rank's, as soon as that rank has registered it. */
static void tell(int rank, int word, uint64_t value)
{
    utofu_vcq_id_t to = job_peer(rank, 0);
    utofu_stadd_t place;
    struct utofu_mrq_notice notice;
    int code;
    OK(utofu_query_stadd(to, STAG, &place));
    out = value;
    do {
        OK(utofu_put(vcq, to, out_stadd, place + 8 * word, 8, 0,
                     UTOFU_ONESIDED_FLAG_LOCAL_MRQ_NOTICE, NULL));
        while ((code = utofu_poll_mrq(vcq, 0, &notice)) == UTOFU_ERR_NOT_FOUND)
            ;
    } while (code != UTOFU_SUCCESS);
}

static uint64_t wait_for(int word, uint64_t at_least)
{
    while (words[word] < at_least)
        sched_yield();
    return words[word];
}

int main(void)
{
    int rank = job_rank();
    job_start();
    OK(utofu_create_vcq_with_cmp_id(0, COMPONENT, 0, &vcq));
    OK(utofu_reg_mem_with_stag(vcq, (void *)words, sizeof words, STAG, 0, &out_stadd));
    OK(utofu_reg_mem(vcq, &out, sizeof out, 0, &out_stadd));
    if (rank == 1) {
        tell(0, 0, (uint64_t)getpid());
        kill(getpid(), SIGKILL);
    }
    if (rank == 0) {
        pid_t other = (pid_t)wait_for(0, 1);
        while (kill(other, 0) == 0 || errno != ESRCH)
            sched_yield();
    }
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        if (rank > 0) wait_for(1, round);
        tell(rank == 0 ? 2 : (rank + 1) % 4, 1, round);
        if (rank == 0) wait_for(1, round);
    }
    if (rank == 0) printf("%d rounds without rank 1\n", ROUNDS);
    return 0;
}

/*
 * Nine ranks on a node of FX10. Ranks 0 and 8 share a control queue. Rank 8 is killed while it
 * posts as fast as it can, and rank 0 passes a number to and fro with rank 1 meanwhile. Before
 * that, all try what ranks of a shared queue do not have, and ask for a barrier channel, of which
 * the node has seven.
 */
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "job.h"

#define STAG 10
#define ROUNDS 1000
#define POSTS 3000

static _Alignas(256) volatile uint64_t words[10];
static uint64_t out;
static utofu_vcq_hdl_t vcq;
static utofu_stadd_t out_stadd;

static utofu_cmp_id_t component(int rank)
{
    return rank < 8 ? 3 : COMPONENT;
}

static utofu_vcq_id_t peer(int rank)
{
    union jtofu_phys_coords at;
    utofu_vcq_id_t id;
    if (jtofu_query_phys_coords(JOB, (jtofu_rank_t)rank, &at) != JTOFU_SUCCESS) exit(1);
    OK(utofu_construct_vcq_id(at.a, (utofu_tni_id_t)(rank % 4), (utofu_cq_id_t)(rank % 8 / 4),
                              component(rank), &id));
    return id;
}

/* Writes a word of another rank's, as soon as that rank has registered it. */
static void tell(int rank, int word, uint64_t value)
{
    utofu_vcq_id_t to = peer(rank);
    utofu_stadd_t place;
    struct utofu_mrq_notice notice;
    int code;
    OK(utofu_query_stadd(to, STAG, &place));
    out = value;
    do {
        OK(utofu_put(vcq, to, out_stadd, place + 8 * (utofu_stadd_t)word, 8, 0,
                     UTOFU_ONESIDED_FLAG_LOCAL_MRQ_NOTICE, NULL));
        while ((code = utofu_poll_mrq(vcq, 0, &notice)) == UTOFU_ERR_NOT_FOUND)
            sched_yield();
    } while (code != UTOFU_SUCCESS);
}

static void wait_for(int word, uint64_t at_least)
{
    while (words[word] < at_least)
        sched_yield();
}

/* What a rank of a shared queue does not have. */
static int lacks_what_it_should(int rank, utofu_tni_id_t tni)
{
    utofu_vcq_hdl_t other;
    utofu_cmp_id_t theirs = rank == 0 ? 4 : 3;
    return utofu_create_vcq_with_cmp_id(tni, theirs, 0, &other) == UTOFU_ERR_USED &&
           utofu_create_vcq(tni, UTOFU_VCQ_FLAG_EXCLUSIVE, &other) == UTOFU_ERR_FULL;
}

static void post_until_killed(void)
{
    utofu_vcq_id_t to = peer(2);
    utofu_stadd_t place;
    OK(utofu_query_stadd(to, STAG, &place));
    for (int posts = 0; posts < POSTS;) {
        void *cbdata;
        int code = utofu_put(vcq, to, out_stadd, place + 72, 8, 0, UTOFU_ONESIDED_FLAG_TCQ_NOTICE,
                             NULL);
        if (code == UTOFU_SUCCESS) {
            posts++;
        } else {
            while (utofu_poll_tcq(vcq, 0, &cbdata) != UTOFU_ERR_NOT_FOUND)
                ;
        }
    }
    kill(getpid(), SIGKILL);
}

int main(void)
{
    int rank = job_rank(), size = job_size();
    utofu_tni_id_t *tnis;
    size_t n;
    utofu_vbg_id_t gate;
    job_start();
    OK(utofu_get_onesided_tnis(&tnis, &n));
    if (rank % 8 == 0 && !lacks_what_it_should(rank, tnis[0])) return 2;
    OK(utofu_create_vcq_with_cmp_id(tnis[0], component(rank), 0, &vcq));
    OK(utofu_reg_mem_with_stag(vcq, (void *)words, sizeof words, STAG, 0, &out_stadd));
    OK(utofu_reg_mem(vcq, &out, sizeof out, 0, &out_stadd));

    int code = utofu_alloc_vbg(0, 1, 0, &gate);
    if (code != UTOFU_SUCCESS && code != UTOFU_ERR_FULL) return 3;
    if (rank > 0) tell(0, rank, code == UTOFU_SUCCESS ? 1 : 2);
    if (rank == 8) post_until_killed();
    if (rank == 0) {
        int channels = code == UTOFU_SUCCESS;
        for (int i = 1; i < size; i++) {
            wait_for(i, 1);
            channels += words[i] == 1;
        }
        printf("%d of %d have a channel\n", channels, size);
        for (int i = 1; i < size - 1; i++)
            tell(i, 0, 1);
    } else {
        /* Gates are the ranks' until all have asked. */
        wait_for(0, 1);
    }
    for (uint64_t round = 1; rank < 2 && round <= ROUNDS; round++) {
        if (rank == 1) wait_for(2, round + 1);
        tell(1 - rank, rank == 0 ? 2 : 1, round + 1);
        if (rank == 0) wait_for(1, round + 1);
    }
    if (rank == 0) printf("%d rounds without rank 8\n", ROUNDS);
    return 0;
}

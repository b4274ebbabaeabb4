/*
 * Nine ranks on a node of FX10. Ranks 0 and 8 share a control queue. Rank 8 is killed while it
 * posts as fast as it can, and rank 0 passes a number to and fro with rank 1 meanwhile. Before
 * that, all try what ranks of a shared queue do not have, and ask for a barrier channel, of which
 * the node has seven.
 */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "notes.h"

#define ROUNDS 1000
#define POSTS 3000

static utofu_vcq_id_t peer(int rank)
{
    return job_peer(rank);
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
    notes_start(tnis[0], job_share(rank).component);

    int code = utofu_alloc_vbg(0, 1, 0, &gate);
    if (code != UTOFU_SUCCESS && code != UTOFU_ERR_FULL) return 3;
    if (rank > 0) tell(0, rank, code == UTOFU_SUCCESS ? 1 : 2);
    if (rank == 0) {
        int channels = code == UTOFU_SUCCESS;
        for (int i = 1; i < size; i++) {
            wait_for(i, 1);
            channels += words[i] == 1;
        }
        printf("%d of %d have a channel\n", channels, size);
        for (int i = 1; i < size; i++)
            tell(i, 0, 1);
    } else {
        /* Gates are the ranks' until all have asked. */
        wait_for(0, 1);
    }
    if (rank == 8) post_until_killed();
    for (uint64_t round = 1; rank < 2 && round <= ROUNDS; round++) {
        if (rank == 1) wait_for(2, round + 1);
        tell(1 - rank, rank == 0 ? 2 : 1, round + 1);
        if (rank == 0) wait_for(1, round + 1);
    }
    if (rank == 0) printf("%d rounds without rank 8\n", ROUNDS);
    return 0;
}

/*
 * uTofu with jTofu: the job's ranks form a two-dimensional torus (JTOFU_MAPINFO_NODE=4x3, say, or
 * what the launcher was told), and each sends its number to its four neighbours. Neighbours are one
 * hop apart.
 */
#include <jtofu.h>
#include <string.h>

#include "ranks.h"

#define STAG 60
#define JOB RANKS_JOB

static const char *directions[] = {"left", "right", "below", "above"};

static void need(int code, const char *what)
{
    if (code == JTOFU_SUCCESS) return;
    fprintf(stderr, "%s: %d\n", what, code);
    exit(1);
}

/* The rank some steps away in the torus, and its node. */
static jtofu_rank_t neighbour(union jtofu_log_coords at, int x, int y,
                              union jtofu_phys_coords *node)
{
    union jtofu_log_coords size;
    jtofu_rank_t rank;
    size_t count;
    need(jtofu_query_log_size(&size), "size of the torus");
    at.s.x = (at.s.x + size.s.x + x) % size.s.x;
    at.s.y = (at.s.y + size.s.y + y) % size.s.y;
    need(jtofu_query_ranks_from_log_coords(JOB, &at, 1, &rank, &count), "rank");
    need(jtofu_query_phys_coords(JOB, rank, node), "node");
    return rank;
}

static void body(int thread, int threads)
{
    /* Threads are numbered by nodes; the map tells which rank each of them is. */
    union jtofu_phys_coords node;
    union jtofu_log_coords at;
    jtofu_rank_t rank;
    size_t count;
    memcpy(node.a, ranks_coords[thread], sizeof node.a);
    need(jtofu_query_ranks_from_phys_coords(JOB, &node, 1, &rank, &count), "own rank");
    need(jtofu_query_log_coords(JOB, rank, &at), "own place");

    volatile uint64_t *inbox = aligned_alloc(256, 256);
    utofu_vcq_hdl_t vcq;
    utofu_stadd_t mine, theirs;
    OK(utofu_create_vcq_with_cmp_id(0, 7, 0, &vcq));
    OK(utofu_reg_mem_with_stag(vcq, (void *)inbox, 256, STAG, 0, &mine));
    meet();
    static const int steps[4][2] = {{-1, 0}, {1, 0}, {0, -1}, {0, 1}};
    for (int i = 0; i < 4; i++) {
        utofu_vcq_id_t id;
        neighbour(at, steps[i][0], steps[i][1], &node);
        OK(utofu_construct_vcq_id(node.a, 0, 0, 7, &id));
        OK(utofu_query_stadd(id, STAG, &theirs));
        /* Seen from there, this rank is on the other side. */
        OK(utofu_put_piggyback8(vcq, id, rank, theirs + 8 * (i ^ 1), 8, i,
                                UTOFU_ONESIDED_FLAG_REMOTE_MRQ_NOTICE, NULL));
    }
    for (int i = 0; i < 4; i++) noticed(vcq);
    int right = 0;
    for (int i = 0; i < 4; i++)
        right += inbox[i] == neighbour(at, steps[i][0], steps[i][1], &node);
    const int total = (int)sum(thread, right);
    for (int turn = 0; turn < threads; turn++) {
        if (turn == (int)rank && rank == 0) {
            printf("rank 0:");
            for (int i = 0; i < 4; i++) printf(" %s %d", directions[i], (int)inbox[i]);
            printf("\n%d of %d numbers from the right neighbour\n", total, 4 * threads);
        }
        meet();
    }
    OK(utofu_free_vcq(vcq));
    free((void *)inbox);
}

int main(void)
{
    void *mapinfo;
    size_t size;
    unsigned processes;
    need(jtofu_create_mapinfo_by_envvars(&mapinfo, &size, &processes), "the map of the job");
    need(jtofu_initialize(JOB, (jtofu_rank_t)ranks_number(), mapinfo), "jtofu_initialize");
    run_ranks(body);
    need(jtofu_finalize(), "jtofu_finalize");
    free(mapinfo);
    return 0;
}

/*
 * A process of a job that `tofu run` has started: its rank, and the VCQ IDs of all others. No
 * message is needed to learn these: jTofu knows the nodes, and a VCQ with a component ID has an ID
 * that can be computed.
 */
#ifndef JOB_H
#define JOB_H

#include <stdint.h>

#include <jtofu.h>

#include "check.h"

#define JOB 1
#define COMPONENT 7

static inline int job_number(const char *name)
{
    const char *text = getenv(name);
    if (text == NULL) {
        fprintf(stderr, "%s is not set: start this program with tofu run\n", name);
        exit(1);
    }
    return atoi(text);
}

static inline int job_rank(void)
{
    return job_number("TOFU_RANK");
}

static inline int job_size(void)
{
    return job_number("TOFU_SIZE");
}

/* Call this before any other function of jTofu. */
static inline void job_start(void)
{
    void *map;
    size_t length;
    unsigned processes;
    if (jtofu_create_mapinfo_by_envvars(&map, &length, &processes) != JTOFU_SUCCESS ||
        jtofu_initialize(JOB, job_rank(), map) != JTOFU_SUCCESS) {
        fprintf(stderr, "there is no map of the job\n");
        exit(1);
    }
    free(map);
}

/* What a rank has of its node's device. */
struct job_share {
    utofu_tni_id_t tni;       /* its first interface */
    int tnis;                 /* how many it has, in a row */
    utofu_cq_id_t cq;         /* its control queue on each of them */
    utofu_cmp_id_t component; /* a component ID for its VCQ */
};

/*
 * The share of a rank depends on how many ranks a node has, and which of them it is. The ranks of a
 * node divide its control queues, and those with the same queue its interfaces. Tofu has two
 * queues on each interface, and later generations eleven.
 */
static inline struct job_share job_share(int rank)
{
    static const utofu_cq_id_t first[9][8] = {
        [1] = {0},
        [2] = {0, 6},
        [3] = {0, 4, 8},
        [4] = {0, 2, 5, 8},
        [5] = {0, 2, 5, 8, 10},
        [6] = {0, 2, 5, 8, 9, 10},
        [8] = {0, 1, 2, 5, 6, 8, 9, 10},
    };
    int major, minor, ranks = job_number("TOFU_PPN"), local = rank % ranks;
    struct job_share share = {0, 0, 0, COMPONENT};
    utofu_query_tofu_version(&major, &minor);
    int all = major < 3 ? 4 : 6, most = major == 1 ? 2 : 4;
    if (major == 1 && ranks > 8) {
        /* A ninth rank and those after it share the queues of the first eight, by component IDs. */
        if (local < 8) share.component = 3;
        local %= 8;
        ranks = 8;
    }
    int queues = ranks < most ? ranks : most;
    while (queues * all < ranks)
        queues += queues == 6 ? 2 : 1;
    int with_same = (ranks + queues - 1) / queues, queue = local / with_same;
    share.tnis = all / with_same;
    share.tni = (utofu_tni_id_t)(local % with_same * share.tnis);
    share.cq = major == 1 ? (utofu_cq_id_t)queue : first[queues][queue];
    return share;
}

/* The VCQ ID of a rank whose VCQ is on its first interface, with the component ID of its share. */
static inline utofu_vcq_id_t job_peer(int rank)
{
    struct job_share share = job_share(rank);
    union jtofu_phys_coords at;
    utofu_vcq_id_t id;
    if (jtofu_query_phys_coords(JOB, (jtofu_rank_t)rank, &at) != JTOFU_SUCCESS) {
        fprintf(stderr, "rank %d: the map has no such rank\n", rank);
        exit(1);
    }
    OK(utofu_construct_vcq_id(at.a, share.tni, share.cq, share.component, &id));
    return id;
}

#endif

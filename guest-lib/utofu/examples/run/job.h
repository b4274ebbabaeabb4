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

/*
 * The control queue of a rank depends on how many ranks share its node, and which of them it is.
 * The first Tofu has two queues for ranks, later ones eleven.
 */
static inline utofu_cq_id_t job_cq(int rank)
{
    static const utofu_cq_id_t first[4][4] = {{0}, {0, 6}, {0, 4, 8}, {0, 2, 5, 8}};
    int major, minor, per_node = job_number("TOFU_PPN");
    utofu_query_tofu_version(&major, &minor);
    int most = major == 1 ? 2 : 4;
    if (per_node > most) {
        fprintf(stderr, "this program is for up to %d ranks on a node\n", most);
        exit(1);
    }
    return major == 1 ? (utofu_cq_id_t)(rank % per_node) : first[per_node - 1][rank % per_node];
}

/* The VCQ ID of a rank whose VCQ has this component ID on this TNI. */
static inline utofu_vcq_id_t job_peer(int rank, utofu_tni_id_t tni)
{
    union jtofu_phys_coords at;
    utofu_vcq_id_t id;
    if (jtofu_query_phys_coords(JOB, (jtofu_rank_t)rank, &at) != JTOFU_SUCCESS) {
        fprintf(stderr, "rank %d: the map has no such rank\n", rank);
        exit(1);
    }
    OK(utofu_construct_vcq_id(at.a, tni, job_cq(rank), COMPONENT, &id));
    return id;
}

#endif

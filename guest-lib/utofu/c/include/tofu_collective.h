/*
 * tofu_collective.h: barrier, allreduce, reduce and broadcast in barrier gates, on top of uTofu.
 *
 * These functions are not part of uTofu; libtofucom has them, too. They return the codes of
 * utofu.h. All members of a group call the same functions in the same order. See "Collectives" in
 * the manual.
 *
 * SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
 */
#ifndef TOFU_COLLECTIVE_H
#define TOFU_COLLECTIVE_H

#include <stddef.h>
#include <stdint.h>

#include <utofu.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A group of processes. */
typedef uintptr_t tofu_coll_t;

/* How the gates of a group are linked. */
enum tofu_coll_algorithm {
    TOFU_COLL_ANY = 0, /* The quickest that every member has enough gates for. */
    TOFU_COLL_RECURSIVE_DOUBLING = 1,
    TOFU_COLL_TREE = 2,
    TOFU_COLL_DOUBLE_RING = 3,
    TOFU_COLL_RECURSIVE_DOUBLING_3D = 4,
    TOFU_COLL_DOUBLE_RING_3D = 5
};

/*
 * How members exchange data while a group is made: each gives `size` bytes at `mine`, and gets
 * those of all members, by rank, at `all`. Returns 0 on success. MPI_Allgather of `size` bytes does
 * this.
 */
typedef int tofu_coll_allgather_t(void *context, const void *mine, size_t size, void *all);

/*
 * Makes a group of axes[0] * axes[1] * axes[2] members, of which this process is `rank`; for
 * members that do not form a box, {members, 1, 1}. The first process of a node tries the gates of
 * interface `tni` first, and others those of interfaces after it.
 */
int tofu_coll_create(
    uint32_t rank, const uint32_t axes[3], unsigned algorithm, utofu_tni_id_t tni,
    tofu_coll_allgather_t *allgather, void *context, tofu_coll_t *group);
int tofu_coll_free(tofu_coll_t group);

/* Which algorithm the group uses, and this member's gates: the start and end gate, and the number
 * of gates. */
int tofu_coll_query(
    tofu_coll_t group, unsigned *algorithm, utofu_vbg_id_t *vbg_id, size_t *num_vbgs);

/* These wait. Any number of elements is allowed; results replace the data. */
int tofu_coll_barrier(tofu_coll_t group);
int tofu_coll_allreduce_uint64(
    tofu_coll_t group, enum utofu_reduce_op op, uint64_t data[], size_t count);
/* Sums; all members get the same result, to the last bit. */
int tofu_coll_allreduce_double(tofu_coll_t group, double data[], size_t count);
int tofu_coll_reduce_uint64(
    tofu_coll_t group, uint32_t root, enum utofu_reduce_op op, uint64_t data[], size_t count);
int tofu_coll_broadcast(tofu_coll_t group, uint32_t root, uint64_t data[], size_t count);

#ifdef __cplusplus
}
#endif

#endif /* TOFU_COLLECTIVE_H */

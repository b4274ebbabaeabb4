/*
 * The extensions of Fujitsu's MPI that tell where ranks are, over jTofu: for any MPI library,
 * since they are inline functions that call its mpi.h and jtofu.h. Link with -ltofutop, as the
 * SDK's mpifcc does. Call them between MPI_Init() and MPI_Finalize().
 *
 * Names and arguments are those that public programs use. All functions return FJMPI_SUCCESS, or
 * an error code of MPI. They give jTofu the job number 0; a program that uses jTofu itself with
 * another number calls jtofu_initialize() before them.
 */
#ifndef TOFU_MPI_EXT_H
#define TOFU_MPI_EXT_H

#include <jtofu.h>
#include <mpi.h>
#include <stdlib.h>

#define FJMPI_SUCCESS MPI_SUCCESS

/* Views: coordinates in the job's torus, in the machine, and relative to the job's corner. */
#define FJMPI_LOGICAL 0
#define FJMPI_TOFU_SYS 1
#define FJMPI_TOFU_REL 2

/* Numbers that the job may have in jTofu: as the process's own job, or beside it. */
#define TOFU_FJMPI_JOB 0u
#define TOFU_FJMPI_OTHER_JOB 0x464a4d50u

/* Makes the job known to jTofu. Returns its number there. */
static inline int tofu_fjmpi_job(jtofu_job_id_t *job)
{
    static int known;
    static jtofu_job_id_t number;
    if (!known) {
        void *mapinfo;
        size_t size;
        unsigned int processes;
        int rank, code = MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        if (code != MPI_SUCCESS) return code;
        if (jtofu_create_mapinfo_by_envvars(&mapinfo, &size, &processes) != JTOFU_SUCCESS)
            return MPI_ERR_OTHER;
        number = TOFU_FJMPI_JOB;
        code = jtofu_initialize(number, (jtofu_rank_t)rank, mapinfo);
        if (code == JTOFU_ERR_INVALID_ARG) {
            union jtofu_log_coords coords;
            number = TOFU_FJMPI_OTHER_JOB;
            /* Another file of the program may have added it. */
            code = jtofu_query_log_coords(number, 0, &coords);
            if (code != JTOFU_SUCCESS) code = jtofu_add_job(number, mapinfo);
        }
        free(mapinfo);
        if (code != JTOFU_SUCCESS) return MPI_ERR_OTHER;
        known = 1;
    }
    *job = number;
    return FJMPI_SUCCESS;
}

/* Number of axes of the job's torus: 1 to 3. */
static inline int FJMPI_Topology_get_dimension(int *size)
{
    union jtofu_log_coords lens;
    jtofu_job_id_t job;
    int code = tofu_fjmpi_job(&job);
    if (code != FJMPI_SUCCESS) return code;
    if (!size) return MPI_ERR_ARG;
    if (jtofu_query_log_size(&lens) != JTOFU_SUCCESS) return MPI_ERR_OTHER;
    /* A job script says how many; an axis of length 1 cannot be told from none otherwise. */
    if (lens.s.z > 1 || getenv("PJM_MPI_SHAPE_Z"))
        *size = 3;
    else
        *size = lens.s.y > 1 || getenv("PJM_MPI_SHAPE_Y") ? 2 : 1;
    return FJMPI_SUCCESS;
}

/* Lengths of the job's torus; 0 for axes that it does not have. */
static inline int FJMPI_Topology_get_shape(int *x, int *y, int *z)
{
    union jtofu_log_coords lens;
    int size, code = FJMPI_Topology_get_dimension(&size);
    if (code != FJMPI_SUCCESS) return code;
    if (!x || !y || !z) return MPI_ERR_ARG;
    if (jtofu_query_log_size(&lens) != JTOFU_SUCCESS) return MPI_ERR_OTHER;
    *x = (int)lens.s.x;
    *y = size > 1 ? (int)lens.s.y : 0;
    *z = size > 2 ? (int)lens.s.z : 0;
    return FJMPI_SUCCESS;
}

/* Translates a rank of one communicator into that of another. */
static inline int tofu_fjmpi_translate(MPI_Comm from, int rank, MPI_Comm to, int *other)
{
    MPI_Group of_from, of_to;
    int code = MPI_Comm_group(from, &of_from);
    if (code != MPI_SUCCESS) return code;
    code = MPI_Comm_group(to, &of_to);
    if (code == MPI_SUCCESS) {
        code = MPI_Group_translate_ranks(of_from, 1, &rank, of_to, other);
        MPI_Group_free(&of_to);
    }
    MPI_Group_free(&of_from);
    return code;
}

/* Coordinates of a process of MPI_COMM_WORLD: up to 3, or 6. */
static inline int tofu_fjmpi_coords(int rank, int view, int most, int *coords)
{
    jtofu_job_id_t job;
    int axis, code = tofu_fjmpi_job(&job);
    if (code != FJMPI_SUCCESS) return code;
    if (!coords || most < 1 || rank < 0) return MPI_ERR_ARG;
    if (view == FJMPI_LOGICAL) {
        union jtofu_log_coords at;
        if (jtofu_query_log_coords(job, (jtofu_rank_t)rank, &at) != JTOFU_SUCCESS)
            return MPI_ERR_RANK;
        for (axis = 0; axis < 3 && axis < most; axis++) coords[axis] = (int)at.a[axis];
        return FJMPI_SUCCESS;
    }
    if (view == FJMPI_TOFU_SYS || view == FJMPI_TOFU_REL) {
        union jtofu_phys_coords at, first, lens;
        if (jtofu_query_phys_coords(job, (jtofu_rank_t)rank, &at) != JTOFU_SUCCESS)
            return MPI_ERR_RANK;
        if (jtofu_query_ref_coords(&first) != JTOFU_SUCCESS) return MPI_ERR_OTHER;
        if (jtofu_query_sys_size(&lens) != JTOFU_SUCCESS) return MPI_ERR_OTHER;
        for (axis = 0; axis < 6 && axis < most; axis++) {
            coords[axis] = at.a[axis];
            /* The job's box may go on beyond the last coordinate, from 0. */
            if (view == FJMPI_TOFU_REL)
                coords[axis] = (at.a[axis] + lens.a[axis] - first.a[axis]) % lens.a[axis];
        }
        return FJMPI_SUCCESS;
    }
    return MPI_ERR_ARG;
}

/* Coordinates of a process of a communicator, up to maxdims. */
static inline int FJMPI_Topology_get_coords(MPI_Comm comm, int rank, int view, int maxdims,
                                            int *coords)
{
    int world, code = tofu_fjmpi_translate(comm, rank, MPI_COMM_WORLD, &world);
    if (code != MPI_SUCCESS) return code;
    return tofu_fjmpi_coords(world, view, maxdims, coords);
}

/* Processes of MPI_COMM_WORLD at a place. */
static inline int tofu_fjmpi_ranks(int view, const int *coords, size_t most, jtofu_rank_t *ranks,
                                   size_t *found)
{
    union jtofu_log_coords place = {{0, 0, 0}};
    union jtofu_phys_coords node, first, lens;
    jtofu_job_id_t job;
    int axis, size, code = tofu_fjmpi_job(&job);
    if (code == FJMPI_SUCCESS) code = FJMPI_Topology_get_dimension(&size);
    if (code != FJMPI_SUCCESS) return code;
    if (!coords) return MPI_ERR_ARG;
    if (view == FJMPI_LOGICAL) {
        for (axis = 0; axis < size; axis++) place.a[axis] = (uint32_t)coords[axis];
        code = jtofu_query_ranks_from_log_coords(job, &place, most, ranks, found);
        return code == JTOFU_SUCCESS ? FJMPI_SUCCESS : MPI_ERR_ARG;
    }
    if (view != FJMPI_TOFU_SYS && view != FJMPI_TOFU_REL) return MPI_ERR_ARG;
    if (jtofu_query_ref_coords(&first) != JTOFU_SUCCESS) return MPI_ERR_OTHER;
    if (jtofu_query_sys_size(&lens) != JTOFU_SUCCESS) return MPI_ERR_OTHER;
    for (axis = 0; axis < 6; axis++) {
        int at = coords[axis];
        if (at < 0 || at >= lens.a[axis]) return MPI_ERR_ARG;
        if (view == FJMPI_TOFU_REL) at = (at + first.a[axis]) % lens.a[axis];
        node.a[axis] = (uint8_t)at;
    }
    code = jtofu_query_ranks_from_phys_coords(job, &node, most, ranks, found);
    return code == JTOFU_SUCCESS ? FJMPI_SUCCESS : MPI_ERR_ARG;
}

/* Processes of a communicator at a place, up to maxppn, and their number. */
static inline int FJMPI_Topology_get_ranks(MPI_Comm comm, int view, int *coords, int maxppn,
                                           int *outppn, int *ranks)
{
    jtofu_rank_t here[64];
    size_t found, index;
    int code, count = 0;
    if (!outppn || !ranks || maxppn < 1) return MPI_ERR_ARG;
    code = tofu_fjmpi_ranks(view, coords, sizeof here / sizeof *here, here, &found);
    if (code != FJMPI_SUCCESS) return code;
    for (index = 0; index < found && count < maxppn; index++) {
        int rank;
        code = tofu_fjmpi_translate(MPI_COMM_WORLD, (int)here[index], comm, &rank);
        if (code != MPI_SUCCESS) return code;
        if (rank != MPI_UNDEFINED) ranks[count++] = rank;
    }
    *outppn = count;
    return FJMPI_SUCCESS;
}

/* The functions of earlier systems, for ranks of MPI_COMM_WORLD. */
static inline int FJMPI_Topology_rank2x(int rank, int *x)
{
    return tofu_fjmpi_coords(rank, FJMPI_LOGICAL, 1, x);
}

static inline int FJMPI_Topology_rank2xy(int rank, int *x, int *y)
{
    int at[2], code = tofu_fjmpi_coords(rank, FJMPI_LOGICAL, 2, at);
    if (code == FJMPI_SUCCESS) *x = at[0], *y = at[1];
    return code;
}

static inline int FJMPI_Topology_rank2xyz(int rank, int *x, int *y, int *z)
{
    int at[3], code = tofu_fjmpi_coords(rank, FJMPI_LOGICAL, 3, at);
    if (code == FJMPI_SUCCESS) *x = at[0], *y = at[1], *z = at[2];
    return code;
}

static inline int tofu_fjmpi_first(const int *at, int *rank)
{
    jtofu_rank_t first;
    size_t found;
    int code = tofu_fjmpi_ranks(FJMPI_LOGICAL, at, 1, &first, &found);
    if (code != FJMPI_SUCCESS) return code;
    if (!found || !rank) return MPI_ERR_ARG;
    *rank = (int)first;
    return FJMPI_SUCCESS;
}

static inline int FJMPI_Topology_x2rank(int x, int *rank)
{
    int at[3] = {0, 0, 0};
    at[0] = x;
    return tofu_fjmpi_first(at, rank);
}

static inline int FJMPI_Topology_xy2rank(int x, int y, int *rank)
{
    int at[3] = {0, 0, 0};
    at[0] = x, at[1] = y;
    return tofu_fjmpi_first(at, rank);
}

static inline int FJMPI_Topology_xyz2rank(int x, int y, int z, int *rank)
{
    int at[3];
    at[0] = x, at[1] = y, at[2] = z;
    return tofu_fjmpi_first(at, rank);
}

static inline int tofu_fjmpi_six(int rank, int view, int *x, int *y, int *z, int *a, int *b,
                                 int *c)
{
    int at[6], code = tofu_fjmpi_coords(rank, view, 6, at);
    if (code == FJMPI_SUCCESS) {
        *x = at[0], *y = at[1], *z = at[2];
        *a = at[3], *b = at[4], *c = at[5];
    }
    return code;
}

static inline int FJMPI_Topology_sys_rank2xyzabc(int rank, int *x, int *y, int *z, int *a, int *b,
                                                 int *c)
{
    return tofu_fjmpi_six(rank, FJMPI_TOFU_SYS, x, y, z, a, b, c);
}

static inline int FJMPI_Topology_rel_rank2xyzabc(int rank, int *x, int *y, int *z, int *a, int *b,
                                                 int *c)
{
    return tofu_fjmpi_six(rank, FJMPI_TOFU_REL, x, y, z, a, b, c);
}

#endif /* TOFU_MPI_EXT_H */

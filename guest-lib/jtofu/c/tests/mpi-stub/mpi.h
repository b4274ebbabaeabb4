/* What mpi-ext.h needs of an MPI library, for one process that says which rank it is. The ranks of
 * BACKWARDS are those of the world in the other order. */
#ifndef STUB_MPI_H
#define STUB_MPI_H

#include <stdlib.h>

typedef int MPI_Comm;
typedef int MPI_Group;
#define MPI_COMM_WORLD 1
#define BACKWARDS 2
#define MPI_UNDEFINED (-32766)
#define MPI_SUCCESS 0
#define MPI_ERR_RANK 6
#define MPI_ERR_ARG 12
#define MPI_ERR_OTHER 15

static inline int MPI_Comm_rank(MPI_Comm comm, int *rank)
{
    (void)comm;
    *rank = atoi(getenv("STUB_RANK"));
    return MPI_SUCCESS;
}

static inline int MPI_Comm_group(MPI_Comm comm, MPI_Group *group)
{
    *group = comm;
    return MPI_SUCCESS;
}

static inline int MPI_Group_free(MPI_Group *group)
{
    *group = 0;
    return MPI_SUCCESS;
}

static inline int MPI_Group_translate_ranks(MPI_Group from, int n, const int *ranks, MPI_Group to,
                                            int *others)
{
    int size = atoi(getenv("STUB_SIZE"));
    for (int i = 0; i < n; i++) others[i] = from == to ? ranks[i] : size - 1 - ranks[i];
    return MPI_SUCCESS;
}

#endif

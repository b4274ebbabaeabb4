/* Every function of mpi-ext.h, in a job of 4x3 nodes with two processes on each. */
#include <mpi-ext.h>
#include <stdio.h>

#define CHECK(condition)                                       \
    do {                                                       \
        if (!(condition)) {                                    \
            printf("line %d: %s\n", __LINE__, #condition);     \
            return 1;                                          \
        }                                                      \
    } while (0)

int main(void)
{
    int size, x, y, z, a, b, c, rank, count, at[6], other[6], ranks[4];
    CHECK(FJMPI_Topology_get_dimension(&size) == FJMPI_SUCCESS && size == 2);
    CHECK(FJMPI_Topology_get_shape(&x, &y, &z) == FJMPI_SUCCESS && x == 4 && y == 3 && z == 0);
    for (int i = 0; i < 24; i++) {
        CHECK(FJMPI_Topology_get_coords(MPI_COMM_WORLD, i, FJMPI_LOGICAL, 2, at) == 0);
        CHECK(at[0] == i / 2 % 4 && at[1] == i / 8);
        CHECK(FJMPI_Topology_get_coords(BACKWARDS, 23 - i, FJMPI_LOGICAL, 2, other) == 0);
        CHECK(other[0] == at[0] && other[1] == at[1]);
        CHECK(FJMPI_Topology_rank2xy(i, &x, &y) == 0 && x == at[0] && y == at[1]);
        CHECK(FJMPI_Topology_rank2x(i, &x) == 0 && x == at[0]);
        CHECK(FJMPI_Topology_rank2xyz(i, &x, &y, &z) == 0 && z == 0);
        CHECK(FJMPI_Topology_xy2rank(x, y, &rank) == 0 && rank == i / 2 * 2);
        CHECK(FJMPI_Topology_xyz2rank(x, y, 0, &rank) == 0 && rank == i / 2 * 2);
        CHECK(FJMPI_Topology_get_ranks(MPI_COMM_WORLD, FJMPI_LOGICAL, at, 4, &count, ranks) == 0);
        CHECK(count == 2 && ranks[0] == i / 2 * 2 && ranks[1] == ranks[0] + 1);
        CHECK(FJMPI_Topology_get_ranks(BACKWARDS, FJMPI_LOGICAL, at, 1, &count, ranks) == 0);
        CHECK(count == 1 && ranks[0] == 23 - i / 2 * 2);
        CHECK(FJMPI_Topology_sys_rank2xyzabc(i, &x, &y, &z, &a, &b, &c) == 0);
        CHECK(FJMPI_Topology_get_coords(MPI_COMM_WORLD, i, FJMPI_TOFU_SYS, 6, at) == 0);
        CHECK(x == at[0] && y == at[1] && z == at[2] && a == at[3] && b == at[4] && c == at[5]);
        CHECK(FJMPI_Topology_get_ranks(MPI_COMM_WORLD, FJMPI_TOFU_SYS, at, 4, &count, ranks) == 0);
        CHECK(count == 2 && ranks[0] == i / 2 * 2);
        CHECK(FJMPI_Topology_rel_rank2xyzabc(i, &x, &y, &z, &a, &b, &c) == 0);
        CHECK(FJMPI_Topology_get_coords(MPI_COMM_WORLD, i, FJMPI_TOFU_REL, 6, at) == 0);
        CHECK(FJMPI_Topology_get_ranks(MPI_COMM_WORLD, FJMPI_TOFU_REL, at, 4, &count, ranks) == 0);
        CHECK(count == 2 && ranks[1] == i / 2 * 2 + 1);
    }
    CHECK(FJMPI_Topology_x2rank(3, &rank) == 0 && rank == 6);
    CHECK(FJMPI_Topology_x2rank(4, &rank) != 0);
    CHECK(FJMPI_Topology_rank2x(24, &x) != 0 && FJMPI_Topology_rank2x(-1, &x) != 0);
    at[0] = 99;
    CHECK(FJMPI_Topology_get_ranks(MPI_COMM_WORLD, FJMPI_TOFU_SYS, at, 4, &count, ranks) != 0);
    CHECK(FJMPI_Topology_get_coords(MPI_COMM_WORLD, 0, 7, 6, at) != 0);
    CHECK(FJMPI_Topology_get_shape(NULL, &y, &z) != 0);
    puts("all as it should be");
    return 0;
}

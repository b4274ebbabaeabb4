// The bindings of C++, which are a library of their own.
#include <cstdio>
#include <mpi.h>

int main(int argc, char **argv)
{
    MPI::Init(argc, argv);
    int own = MPI::COMM_WORLD.Get_rank() + 1, sum = 0;
    MPI::COMM_WORLD.Allreduce(&own, &sum, 1, MPI::INT, MPI::SUM);
    if (own == 1) std::printf("the sum is %d\n", sum);
    MPI::Finalize();
    return 0;
}

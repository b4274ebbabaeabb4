/* Prints where it runs, then sends between the first and the last rank and sums over all ranks. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LARGEST (1 << 20)

static unsigned char data[LARGEST], back[LARGEST];

/* Waits for a collective operation without spinning. There are more emulated nodes than processors,
 * so spinning ranks would keep processors from those that have work. */
static void wait_for(MPI_Request *request)
{
    int done = 0;

    while (MPI_Test(request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done)
        usleep(2000);
}

int main(int argc, char **argv)
{
    int rank, size, length;
    char name[MPI_MAX_PROCESSOR_NAME];
    MPI_Request request;
    int rounds = argc > 1 ? atoi(argv[1]) : 20;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_processor_name(name, &length);
    printf("rank %d of %d on %s\n", rank, size, name);
    long wrong = 0;
    int last = size - 1;
    for (int bytes = 1; bytes <= LARGEST; bytes *= 32) {
        memset(data, bytes & 0xff, (size_t)bytes);
        for (int i = 0; i < bytes; i++) data[i] = (unsigned char)(data[i] + i * 7 + (i >> 8));
        MPI_Ibarrier(MPI_COMM_WORLD, &request);
        wait_for(&request);
        double start = MPI_Wtime();
        for (int n = 0; n < rounds; n++) {
            if (rank == 0) {
                MPI_Send(data, bytes, MPI_BYTE, last, n, MPI_COMM_WORLD);
                MPI_Recv(back, bytes, MPI_BYTE, last, n, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                wrong += memcmp(data, back, (size_t)bytes) != 0;
            } else if (rank == last) {
                MPI_Recv(back, bytes, MPI_BYTE, 0, n, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                MPI_Send(back, bytes, MPI_BYTE, 0, n, MPI_COMM_WORLD);
            }
        }
        if (rank == 0)
            printf("%d bytes: %.1f us one way\n", bytes,
                   (MPI_Wtime() - start) / rounds / 2 * 1e6);
    }
    for (long n = 0; n < rounds; n++) {
        long mine = (rank + 1) * (n + 1), sum = 0;
        MPI_Iallreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD, &request);
        wait_for(&request);
        wrong += sum != (n + 1) * size * (size + 1) / 2;
    }
    long all = 0;
    MPI_Ireduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD, &request);
    wait_for(&request);
    if (rank == 0) printf("%ld wrong\n", all);
    MPI_Finalize();
    return 0;
}

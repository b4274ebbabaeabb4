/* A program of MPI, for any MPI library: ranks find each other, their node's ranks, and the others'
 * messages and windows. With an argument, the last rank aborts with it as code. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LONGEST (1 << 20)

int main(int argc, char **argv)
{
	static char sent[LONGEST], got[LONGEST];
	int rank, size, local, locals, wrong = 0;
	long mine, sum;
	int *window;
	MPI_Comm node;
	MPI_Win win;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (argc > 1) {
		if (rank == size - 1)
			MPI_Abort(MPI_COMM_WORLD, atoi(argv[1]));
		MPI_Barrier(MPI_COMM_WORLD);
	}
	MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
	MPI_Comm_rank(node, &local);
	MPI_Comm_size(node, &locals);
	int right = (rank + 1) % size, left = (rank + size - 1) % size;
	for (int bytes = 0; bytes <= LONGEST; bytes = bytes ? bytes * 16 : 1) {
		memset(sent, rank + 1, bytes);
		memset(got, 0, bytes);
		MPI_Sendrecv(sent, bytes, MPI_CHAR, right, 1, got, bytes, MPI_CHAR, left, 1,
			     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		for (int i = 0; i < bytes; i++)
			wrong += got[i] != left + 1;
	}
	MPI_Win_allocate(sizeof *window, sizeof *window, MPI_INFO_NULL, MPI_COMM_WORLD, &window,
			 &win);
	MPI_Win_fence(0, win);
	MPI_Put(&rank, 1, MPI_INT, right, 0, 1, MPI_INT, win);
	MPI_Win_fence(0, win);
	wrong += *window != left;
	MPI_Win_free(&win);
	mine = rank + 1;
	MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	printf("%d of %d on node, %d wrong, sum %ld\n", local, locals, wrong, sum);
	MPI_Finalize();
	return 0;
}

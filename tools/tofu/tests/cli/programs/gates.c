/* Collectives of MPI that barrier gates can do, and others between them, for any MPI library. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static int wrong;

static void check(int right, const char *what)
{
	if (!right) {
		wrong++;
		fprintf(stderr, "wrong: %s\n", what);
	}
}

int main(int argc, char **argv)
{
	int rank, size;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	int sum = size * (size + 1) / 2;

	/* 72 collectives that gates do; with the last barrier, 73. */
	for (int round = 0; round < 12; round++) {
		int ints[3] = {-rank - 1, round, rank + 1}, result[3];
		int64_t longs[2] = {rank - 5, -rank};
		double numbers[3] = {rank + 0.5, -1.0 - rank, round}, sums[3];
		char text[11] = "nothing...";

		MPI_Allreduce(ints, result, 3, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
		check(result[0] == -sum && result[1] == round * size && result[2] == sum, "sum");
		MPI_Allreduce(MPI_IN_PLACE, longs, 2, MPI_INT64_T, MPI_MIN, MPI_COMM_WORLD);
		check(longs[0] == -5 && longs[1] == 1 - size, "min in place");
		MPI_Allreduce(numbers, sums, 3, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
		check(sums[0] == size - 0.5 && sums[1] == -1.0 && sums[2] == round, "max");
		int root = round % size;
		if (rank == root)
			MPI_Reduce(MPI_IN_PLACE, numbers, 3, MPI_DOUBLE, MPI_SUM, root,
				   MPI_COMM_WORLD);
		else
			MPI_Reduce(numbers, NULL, 3, MPI_DOUBLE, MPI_SUM, root, MPI_COMM_WORLD);
		check(rank != root || (numbers[0] == sum - size * 0.5 && numbers[1] == -sum),
		      "reduce");
		/* The root describes the same bytes by another type. */
		MPI_Datatype five;
		MPI_Type_contiguous(5, MPI_CHAR, &five);
		MPI_Type_commit(&five);
		if (rank == root) {
			strcpy(text, "0123456789");
			MPI_Bcast(text, 2, five, root, MPI_COMM_WORLD);
		} else {
			MPI_Bcast(text, 10, MPI_CHAR, root, MPI_COMM_WORLD);
		}
		MPI_Type_free(&five);
		check(!strcmp(text, "0123456789"), "bcast");
		MPI_Barrier(MPI_COMM_WORLD);
	}

	/* None of these. */
	int many[64];
	float single = 1.5f;
	double four[4] = {1, 2, 3, 4}, product;
	MPI_Comm half;
	for (int i = 0; i < 64; i++)
		many[i] = rank == 1 ? i : 0;
	MPI_Bcast(many, 64, MPI_INT, 1, MPI_COMM_WORLD);
	check(many[63] == 63, "long bcast");
	MPI_Bcast(many, 0, MPI_INT, 1, MPI_COMM_WORLD);
	MPI_Allreduce(MPI_IN_PLACE, four, 4, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	check(four[3] == 4 * size, "four doubles");
	MPI_Allreduce(MPI_IN_PLACE, &single, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	check(single == 1.5f * size, "float");
	MPI_Allreduce(four, &product, 1, MPI_DOUBLE, MPI_PROD, MPI_COMM_WORLD);
	MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
	MPI_Barrier(half);
	MPI_Comm_free(&half);

	/* A barrier lets other ranks' messages go on: this one needs the sender. */
	static char large[1 << 22];
	MPI_Request request;
	if (rank == 0) {
		memset(large, 7, sizeof large);
		MPI_Isend(large, sizeof large, MPI_CHAR, size - 1, 5, MPI_COMM_WORLD, &request);
		MPI_Barrier(MPI_COMM_WORLD);
		MPI_Wait(&request, MPI_STATUS_IGNORE);
	} else {
		if (rank == size - 1)
			MPI_Recv(large, sizeof large, MPI_CHAR, 0, 5, MPI_COMM_WORLD,
				 MPI_STATUS_IGNORE);
		MPI_Barrier(MPI_COMM_WORLD);
		check(rank != size - 1 || large[sizeof large - 1] == 7, "message");
	}
	printf("%d wrong\n", wrong);
	MPI_Finalize();
	return 0;
}

/*
 * MPI and uTofu in one program, as real programs for Fugaku do: MPI tells all ranks the VCQ IDs
 * and STADDs of the others, then each puts a number into the memory of every other one.
 */
#include <stdint.h>

#include <mpi.h>

#include "check.h"

struct card {
    utofu_vcq_id_t vcq;
    utofu_stadd_t numbers;
};

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);

    utofu_tni_id_t *tnis;
    size_t tni_count;
    OK(utofu_get_onesided_tnis(&tnis, &tni_count));
    utofu_vcq_hdl_t vcq;
    OK(utofu_create_vcq(tnis[0], 0, &vcq));
    free(tnis);
    struct card own, *cards = calloc((size_t)size, sizeof *cards);
    uint64_t *in = calloc((size_t)size, sizeof *in), *out = calloc((size_t)size, sizeof *out);
    utofu_stadd_t out_stadd;
    OK(utofu_query_vcq_id(vcq, &own.vcq));
    OK(utofu_reg_mem(vcq, in, (size_t)size * sizeof *in, 0, &own.numbers));
    OK(utofu_reg_mem(vcq, out, (size_t)size * sizeof *out, 0, &out_stadd));
    MPI_Allgather(&own, sizeof own, MPI_BYTE, cards, sizeof own, MPI_BYTE, MPI_COMM_WORLD);

    for (int to = 0; to < size; to++) {
        size_t offset = (size_t)to * sizeof *out;
        out[to] = (uint64_t)(100 * rank + to);
        OK(utofu_put(vcq, cards[to].vcq, out_stadd + offset,
                     cards[to].numbers + (size_t)rank * sizeof *in, sizeof *out, 0,
                     UTOFU_ONESIDED_FLAG_TCQ_NOTICE, NULL));
    }
    for (int done = 0; done < size; done++) {
        void *cbdata;
        int code;
        while ((code = utofu_poll_tcq(vcq, 0, &cbdata)) == UTOFU_ERR_NOT_FOUND)
            ;
        OK(code);
    }
    /* All have put, and their Puts are complete. */
    MPI_Barrier(MPI_COMM_WORLD);
    int wrong = 0, all_wrong;
    for (int from = 0; from < size; from++) wrong += in[from] != (uint64_t)(100 * from + rank);
    MPI_Reduce(&wrong, &all_wrong, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("%d ranks have put %d numbers, %d wrong\n", size, size * size, all_wrong);

    OK(utofu_free_vcq(vcq));
    free(cards);
    free(in);
    free(out);
    MPI_Finalize();
    return wrong != 0;
}

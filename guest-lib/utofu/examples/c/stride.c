/*
 * Columns of a matrix: each rank puts the last column of its own into the halo column of its right
 * neighbour, and gets the first column of that neighbour's into a halo column of its own.
 */
#include "ranks.h"

#define STAG 20
#define ROWS 300
#define COLUMNS 100

/* Columns 0 and COLUMNS + 1 are halos. */
typedef int32_t matrix[ROWS][COLUMNS + 2];

static int32_t value(int rank, int row, int column)
{
    return rank * 1000000 + row * 1000 + column;
}

static void body(int rank, int size)
{
    matrix *m = aligned_alloc(256, (sizeof(matrix) + 255) / 256 * 256);
    for (int row = 0; row < ROWS; row++)
        for (int column = 0; column < COLUMNS + 2; column++)
            (*m)[row][column] = value(rank, row, column);
    utofu_vcq_hdl_t vcq;
    utofu_stadd_t mine;
    OK(utofu_create_vcq_with_cmp_id(0, 7, 0, &vcq));
    OK(utofu_reg_mem_with_stag(vcq, m, sizeof *m, STAG, 0, &mine));
    meet();

    const int right = (rank + 1) % size, left = (rank + size - 1) % size;
    const size_t word = sizeof(int32_t), row_size = sizeof (*m)[0];
    utofu_vcq_id_t to = peer(right, 0);
    utofu_stadd_t theirs = place(right, 0, STAG);
    /* Both sides advance by the same stride, so a column goes into a column; the start decides into
     * which one. Each block is a command of its own, with a completion. */
    OK(utofu_put_stride(vcq, to, mine + COLUMNS * word, theirs, word, row_size, ROWS, 0,
                        UTOFU_ONESIDED_FLAG_TCQ_NOTICE, NULL));
    OK(utofu_get_stride(vcq, to, mine + (COLUMNS + 1) * word, theirs + word, word, row_size, ROWS,
                        0, UTOFU_ONESIDED_FLAG_TCQ_NOTICE, NULL));
    for (int i = 0; i < 2 * ROWS; i++) completed(vcq);
    meet();

    int wrong = 0;
    for (int row = 0; row < ROWS; row++) {
        wrong += (*m)[row][0] != value(left, row, COLUMNS);
        wrong += (*m)[row][COLUMNS + 1] != value(right, row, 1);
        for (int column = 1; column <= COLUMNS; column++)
            wrong += (*m)[row][column] != value(rank, row, column);
    }
    const int total = (int)sum(rank, wrong);
    if (rank == 0) printf("%d ranks, halo columns of %d rows, %d wrong\n", size, ROWS, total);
    OK(utofu_free_vcq(vcq));
    free(m);
}

int main(void)
{
    return run_ranks(body);
}

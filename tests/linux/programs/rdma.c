/*
 * Two ranks put into each other's memory over all interfaces, and each checks every byte that it
 * got, until a file appears at rank 0.
 */
#include <string.h>
#include <unistd.h>

#include "../../../guest-lib/utofu/examples/c/ranks.h"

#define STAG 10
#define SIZE (1 << 20)

static const char *stop;

static uint8_t byte(int rank, unsigned round, size_t i)
{
    return (uint8_t)(i * 7 + (i >> 9) + round * 31 + (unsigned)rank * 101);
}

static void body(int rank, int size)
{
    utofu_tni_id_t *tnis;
    size_t count;
    unsigned round = 0, wrong = 0;
    uint8_t go[2] = {1, 1};
    ranks_need(size == 2, "this program is for two ranks");
    OK(utofu_get_onesided_tnis(&tnis, &count));
    uint8_t *out = aligned_alloc(256, SIZE), *in = aligned_alloc(256, SIZE);
    utofu_vcq_hdl_t *vcqs = calloc(count, sizeof *vcqs);
    utofu_stadd_t *from = calloc(count, sizeof *from), *to = calloc(count, sizeof *to);
    for (size_t i = 0; i < count; i++) {
        OK(utofu_create_vcq_with_cmp_id(tnis[i], 7, 0, &vcqs[i]));
        OK(utofu_reg_mem(vcqs[i], out, SIZE, 0, &from[i]));
        OK(utofu_reg_mem_with_stag(vcqs[i], in, SIZE, STAG, 0, &to[i]));
    }
    if (rank == 0) {
        printf("begun\n");
        fflush(stdout);
    }
    for (;; round++) {
        go[rank] = rank != 0 || access(stop, F_OK) != 0;
        for (size_t i = 0; i < SIZE; i++) out[i] = byte(rank, round, i);
        share(go, sizeof *go);
        if (!go[0]) break;
        const size_t part = SIZE / count;
        for (size_t i = 0; i < count; i++) {
            const size_t bytes = i + 1 < count ? part : SIZE - i * part;
            OK(utofu_put(vcqs[i], peer(1 - rank, tnis[i]), from[i] + i * part,
                         place(1 - rank, tnis[i], STAG) + i * part, bytes, 0,
                         UTOFU_ONESIDED_FLAG_TCQ_NOTICE, NULL));
        }
        for (size_t i = 0; i < count; i++) completed(vcqs[i]);
        meet();
        for (size_t i = 0; i < SIZE; i++) wrong += in[i] != byte(1 - rank, round, i);
    }
    printf("%u rounds of %d bytes over %zu TNIs, %u wrong\n", round, SIZE, count, wrong);
    for (size_t i = 0; i < count; i++) OK(utofu_free_vcq(vcqs[i]));
    free(vcqs);
    free(from);
    free(to);
    free(tnis);
    free(out);
    free(in);
}

int main(int argc, char **argv)
{
    stop = argc > 1 ? argv[1] : "stop";
    return run_ranks(body);
}

/*
 * A message that does not fit into one command: rank 0 puts 40 MB to rank 1 in pieces as large as
 * the interface allows, and rank 1 waits for the last word to change instead of a notice.
 */
#include <string.h>

#include "ranks.h"

#define STAG 50
#define SIZE (40000000 / 8 * 8)

static void body(int rank, int size)
{
    if (rank > 1 || size < 2) {
        meet();
        meet();
        return;
    }
    const size_t room = (SIZE + 255) / 256 * 256;
    uint8_t *buffer = aligned_alloc(256, room);
    for (size_t i = 0; i < SIZE; i++) buffer[i] = rank == 0 ? (uint8_t)(i % 251 + 1) : 0;
    utofu_vcq_hdl_t vcq;
    utofu_stadd_t mine;
    OK(utofu_create_vcq_with_cmp_id(0, 7, 0, &vcq));
    OK(utofu_reg_mem_with_stag(vcq, buffer, room, STAG, 0, &mine));
    meet();
    if (rank == 0) {
        struct utofu_onesided_caps *caps;
        OK(utofu_query_onesided_caps(0, &caps));
        const size_t most = caps->max_putget_size / 8 * 8;
        utofu_stadd_t theirs = place(1, 0, STAG);
        int pieces = 0;
        for (size_t at = 0; at < SIZE; at += most, pieces++) {
            size_t length = SIZE - at < most ? SIZE - at : most;
            /* With STRONG_ORDER the last word is written last; a piece starts when the one before
             * it is complete. */
            OK(utofu_put(vcq, peer(1, 0), mine + at, theirs + at, length, 0,
                         UTOFU_ONESIDED_FLAG_TCQ_NOTICE | UTOFU_ONESIDED_FLAG_STRONG_ORDER, NULL));
            completed(vcq);
        }
        printf("%d bytes in %d pieces\n", SIZE, pieces);
    } else {
        volatile uint64_t *last = (volatile uint64_t *)(buffer + SIZE - 8);
        while (*last == 0)
            ;
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        size_t wrong = 0;
        for (size_t i = 0; i < SIZE; i++) wrong += buffer[i] != (uint8_t)(i % 251 + 1);
        if (wrong) printf("rank 1: %zu bytes wrong\n", wrong);
    }
    meet();
    OK(utofu_free_vcq(vcq));
    free(buffer);
}

int main(void)
{
    return run_ranks(body);
}

/*
 * Messages of 1 byte to 16 MiB - 1, the largest that fits into one command, from and to odd
 * addresses: rank 0 puts each to rank 1 and gets it back to another place.
 */
#include <string.h>

#include "ranks.h"

#define STAG 40
#define MAX 16777215
#define ROOM (MAX + 4096 + 1)

static const size_t sizes[] = {1, 2, 3, 7, 8, 9, 31, 33, 255, 257, 1919, 1920, 1921, 3841, 4095,
                               4097, 65535, 65537, 262145, 1048577, 4194303, MAX};

static uint8_t byte(size_t i)
{
    return (uint8_t)(i * 7 + i / 251);
}

static void body(int rank, int size)
{
    if (rank > 1 || size < 2) {
        meet();
        meet();
        return;
    }
    /* Messages that come back go to the second half. */
    uint8_t *buffer = aligned_alloc(4096, 2 * (ROOM / 4096 + 1) * 4096);
    memset(buffer, 0, 2 * ROOM);
    utofu_vcq_hdl_t vcq;
    utofu_stadd_t mine;
    OK(utofu_create_vcq_with_cmp_id(0, 7, 0, &vcq));
    OK(utofu_reg_mem_with_stag(vcq, buffer, 2 * ROOM, STAG, 0, &mine));
    meet();
    if (rank == 0) {
        struct utofu_onesided_caps *caps;
        OK(utofu_query_onesided_caps(0, &caps));
        for (size_t i = 0; i < ROOM; i++) buffer[i] = byte(i);
        size_t good = 0, count = sizeof sizes / sizeof *sizes;
        for (size_t i = 0; i < count; i++) {
            size_t length = sizes[i], from = 2 * i + 1, to = 4095 - i, back = ROOM + 3 * i;
            OK(utofu_put(vcq, peer(1, 0), mine + from, place(1, 0, STAG) + to, length, 0,
                         UTOFU_ONESIDED_FLAG_TCQ_NOTICE, NULL));
            completed(vcq);
            OK(utofu_get(vcq, peer(1, 0), mine + back, place(1, 0, STAG) + to, length, 0,
                         UTOFU_ONESIDED_FLAG_TCQ_NOTICE, NULL));
            completed(vcq);
            good += memcmp(buffer + back, buffer + from, length) == 0;
        }
        printf("%zu sizes up to %zu bytes, %zu as they were sent\n", count, caps->max_putget_size,
               good);
    }
    meet();
    OK(utofu_free_vcq(vcq));
    free(buffer);
}

int main(void)
{
    return run_ranks(body);
}

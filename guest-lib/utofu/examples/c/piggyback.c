/*
 * Letters of 1 to 32 bytes that travel in the command: each rank writes one of each length to
 * every other rank, into a place of its own; edata tells whose it is.
 */
#include <string.h>

#include "ranks.h"

#define STAG 10
#define MAX 32

static void write_letter(uint8_t *letter, int from, int to, int length)
{
    for (int i = 0; i < length; i++) letter[i] = (uint8_t)(from * 37 + to * 11 + length + i);
}

static void body(int rank, int size)
{
    /* Room for a letter of each length from each rank. */
    const size_t room = (size_t)size * (MAX + 1) * MAX;
    uint8_t *box = aligned_alloc(256, (room + 255) / 256 * 256);
    memset(box, 0, room);
    utofu_vcq_hdl_t vcq;
    utofu_stadd_t mine;
    OK(utofu_create_vcq_with_cmp_id(0, 7, 0, &vcq));
    OK(utofu_reg_mem_with_stag(vcq, box, room, STAG, 0, &mine));
    meet();

    for (int to = 0; to < size; to++) {
        for (int length = 1; length <= MAX; length++) {
            uint8_t letter[MAX];
            write_letter(letter, rank, to, length);
            utofu_stadd_t at = place(to, 0, STAG) + (size_t)(rank * (MAX + 1) + length) * MAX;
            int code;
            do {
                code = utofu_put_piggyback(vcq, peer(to, 0), letter, at, (size_t)length, rank,
                                           UTOFU_ONESIDED_FLAG_REMOTE_MRQ_NOTICE, NULL);
            } while (code == UTOFU_ERR_BUSY);
            OK(code);
            /* The letter has been taken: this memory may be used again at once. */
            memset(letter, 0xee, sizeof letter);
        }
    }
    int right = 0;
    for (int i = 0; i < size * MAX; i++) {
        struct utofu_mrq_notice notice = noticed(vcq);
        int from = (int)notice.edata;
        /* The notice's address is the end of what was written. */
        size_t end = (size_t)(notice.rmt_stadd - mine), slot = (end - 1) / MAX;
        int length = (int)(end - slot * MAX);
        uint8_t expected[MAX] = {0};
        write_letter(expected, from, rank, length);
        right += slot == (size_t)(from * (MAX + 1) + length) &&
                 memcmp(box + slot * MAX, expected, MAX) == 0;
    }
    const int total = (int)sum(rank, right);
    if (rank == 0) printf("%d of %d letters as they were written\n", total, size * size * MAX);
    OK(utofu_free_vcq(vcq));
    free(box);
}

int main(void)
{
    return run_ranks(body);
}

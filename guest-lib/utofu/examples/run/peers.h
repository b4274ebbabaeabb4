/*
 * What programs that measure have in common: all ranks with a VCQ on each interface, the same
 * memory registered in each, and Puts between them. A program defines before how many bytes of
 * MEMORY it uses.
 */
#ifndef PEERS_H
#define PEERS_H

#include <time.h>
#include <unistd.h>

#include "job.h"

#define STAG 10
#define TNIS 6
#define LINE 256
#define MOST 16
#ifndef MEMORY
#define MEMORY 0
#endif
/* Behind it, a line of each rank for `meet`. */
#define MET(rank) ((size_t)(MEMORY) + (size_t)(rank) * LINE)
#define MEET MET(MOST)

static int rank, size;
static utofu_vcq_hdl_t vcq[TNIS];
static utofu_stadd_t own[TNIS], theirs[MOST][TNIS];
static utofu_vcq_id_t peer[MOST][TNIS];
static _Alignas(4096) char memory[MET(MOST + 1)];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static volatile uint64_t *word(size_t at)
{
    return (volatile uint64_t *)(void *)(memory + at);
}

static void put(int to, int tni, size_t from, size_t at, size_t bytes)
{
    void *cbdata;
    int code;
    while ((code = utofu_put(vcq[tni], peer[to][tni], own[tni] + from, theirs[to][tni] + at, bytes,
                             0, UTOFU_ONESIDED_FLAG_TCQ_NOTICE, NULL)) == UTOFU_ERR_BUSY)
        utofu_poll_tcq(vcq[tni], 0, &cbdata);
    OK(code);
}

static void sent(int tni)
{
    void *cbdata;
    int code;
    while ((code = utofu_poll_tcq(vcq[tni], 0, &cbdata)) == UTOFU_ERR_NOT_FOUND)
        ;
    OK(code);
}

/* All tell rank 0, which tells all. At first ranks try again until it has registered its memory. */
static void meet(int first)
{
    static uint64_t round;
    *word(MEET) = ++round;
    for (int i = 1; rank == 0 && i < size; i++)
        while (*word(MET(i)) < round)
            ;
    for (int i = 1; rank == 0 && i < size; i++) {
        put(i, 0, MEET, MET(0), 8);
        sent(0);
    }
    while (rank != 0 && *word(MET(0)) < round) {
        put(0, 0, MEET, MET(rank), 8);
        sent(0);
        for (int i = 0; (!first || i < 50) && *word(MET(0)) < round; i++)
            if (first) usleep(2000);
    }
}

/* Opens a VCQ on each interface, registers the memory, and learns of those of the other ranks. */
static void begin_job(void)
{
    rank = job_rank(), size = job_size();
    job_start();
    if (size < 2 || size > MOST) {
        fprintf(stderr, "this needs 2 to %d ranks\n", MOST);
        exit(1);
    }
    for (int t = 0; t < TNIS; t++) {
        OK(utofu_create_vcq_with_cmp_id((utofu_tni_id_t)t, COMPONENT, 0, &vcq[t]));
        OK(utofu_reg_mem_with_stag(vcq[t], memory, sizeof memory, STAG, 0, &own[t]));
    }
    for (int i = 0; i < size; i++)
        for (int t = 0; t < TNIS; t++) {
            uint8_t at[6];
            OK(utofu_query_vcq_info(job_peer(i), at, &(utofu_tni_id_t){0}, &(utofu_cq_id_t){0},
                                    &(uint16_t){0}));
            OK(utofu_construct_vcq_id(at, (utofu_tni_id_t)t, 0, COMPONENT, &peer[i][t]));
            OK(utofu_query_stadd(peer[i][t], STAG, &theirs[i][t]));
        }
}

static void end_job(void)
{
    meet(0);
    for (int t = 0; t < TNIS; t++) OK(utofu_free_vcq(vcq[t]));
}

#endif

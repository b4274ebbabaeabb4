/*
 * The ranks of the examples. A launcher (`tofu run`, with one rank on each node) starts each as a
 * process of its own, and TOFU_RANK tells which one it is. Without a launcher they are threads
 * of one program, on a machine in its own process: TOFU_PROVIDER=inproc, and TOFU_SHAPE is the
 * machine's shape, with one rank for each node.
 */
#ifndef RANKS_H
#define RANKS_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jtofu.h>
#include <utofu.h>

#include "../run/check.h"

extern int tofu_inproc_select(unsigned process);
extern int tofu_inproc_count(unsigned *count);

typedef void rank_body(int rank, int size);

static rank_body *ranks_body;
static int ranks_size;
static pthread_barrier_t ranks_barrier;
static uint8_t (*ranks_coords)[6];

/* How processes meet: in each turn, each writes to its own place in the memory of all others. */
#define RANKS_MOST 64
#define RANKS_ROOM 1024
#define RANKS_JOB 1
#define RANKS_STAG 200

/* Two of each, as a rank may be one turn ahead of another. */
struct ranks_inbox {
    uint8_t data[2][RANKS_MOST][RANKS_ROOM];
    uint64_t turns[2][RANKS_MOST];
};

static int ranks_own = -1; /* This process's rank; -1: ranks are threads. */
static utofu_vcq_hdl_t ranks_vcq;
static utofu_tni_id_t ranks_tni; /* The last one. */
static utofu_cq_id_t ranks_cq;
static utofu_stadd_t ranks_outbox;
static _Alignas(256) uint8_t ranks_out[RANKS_ROOM + 8];
static _Alignas(256) struct ranks_inbox ranks_in;
static uint64_t ranks_turn;

/* Puts a part of the outbox to a rank. The rank may not have started yet, so repeats the Put until
 * it arrives. */
static inline void ranks_put(int rank, size_t from, size_t to, size_t length)
{
    utofu_vcq_id_t id;
    utofu_stadd_t inbox;
    struct utofu_mrq_notice notice;
    void *cbdata;
    int code;
    OK(utofu_construct_vcq_id(ranks_coords[rank], ranks_tni, ranks_cq, 6, &id));
    OK(utofu_query_stadd(id, RANKS_STAG, &inbox));
    do {
        OK(utofu_put(ranks_vcq, id, ranks_outbox + from, inbox + to, length, 0,
                     UTOFU_ONESIDED_FLAG_TCQ_NOTICE | UTOFU_ONESIDED_FLAG_LOCAL_MRQ_NOTICE |
                         UTOFU_ONESIDED_FLAG_STRONG_ORDER,
                     NULL));
        while ((code = utofu_poll_tcq(ranks_vcq, 0, &cbdata)) == UTOFU_ERR_NOT_FOUND)
            ;
        OK(code);
        /* It was sent; the notice tells whether it has arrived. */
        while ((code = utofu_poll_mrq(ranks_vcq, 0, &notice)) == UTOFU_ERR_NOT_FOUND)
            ;
    } while (code != UTOFU_SUCCESS);
}

/*
 * Returns once all ranks have come here. Each rank has set its own element of an array, and gets
 * those of the others. An element has `bytes` bytes.
 */
static inline void share(void *array, size_t bytes)
{
    if (ranks_own < 0) {
        pthread_barrier_wait(&ranks_barrier);
        return;
    }
    if (bytes > RANKS_ROOM) {
        fprintf(stderr, "%zu bytes are too many to share\n", bytes);
        exit(1);
    }
    const size_t half = ++ranks_turn & 1, own = (size_t)ranks_own;
    if (bytes > 0) memcpy(ranks_out, (uint8_t *)array + own * bytes, bytes);
    memcpy(ranks_out + RANKS_ROOM, &ranks_turn, sizeof ranks_turn);
    for (int rank = 0; rank < ranks_size; rank++) {
        const size_t slot = half * RANKS_MOST + own;
        if (rank == ranks_own) continue;
        if (bytes > 0) ranks_put(rank, 0, slot * RANKS_ROOM, bytes);
        ranks_put(rank, RANKS_ROOM, offsetof(struct ranks_inbox, turns) + slot * sizeof ranks_turn,
                  sizeof ranks_turn);
    }
    for (int rank = 0; rank < ranks_size; rank++) {
        void *cbdata;
        if (rank == ranks_own) continue;
        /* The poll finds nothing; it gives others the processor. */
        while (__atomic_load_n(&ranks_in.turns[half][rank], __ATOMIC_ACQUIRE) < ranks_turn)
            utofu_poll_tcq(ranks_vcq, 0, &cbdata);
        if (bytes > 0)
            memcpy((uint8_t *)array + (size_t)rank * bytes, ranks_in.data[half][rank], bytes);
    }
}

/* Returns once all ranks have come here. */
static inline void meet(void)
{
    share(NULL, 0);
}

/* The sum of a number of each rank. Once in a program. */
static inline uint64_t sum(int rank, uint64_t number)
{
    static uint64_t numbers[RANKS_MOST];
    uint64_t total = 0;
    numbers[rank] = number;
    share(numbers, sizeof *numbers);
    for (int i = 0; i < ranks_size; i++) total += numbers[i];
    return total;
}

/* The VCQ ID of a rank whose VCQ has component ID 7 on this TNI: nothing need be exchanged. */
static inline utofu_vcq_id_t peer(int rank, utofu_tni_id_t tni)
{
    utofu_vcq_id_t id;
    OK(utofu_construct_vcq_id(ranks_coords[rank], tni, 0, 7, &id));
    return id;
}

/* The STADD of memory that this VCQ has registered under a reserved steering tag. */
static inline utofu_stadd_t place(int rank, utofu_tni_id_t tni, unsigned stag)
{
    utofu_stadd_t stadd;
    OK(utofu_query_stadd(peer(rank, tni), stag, &stadd));
    return stadd;
}

/* The next completion; returns what its command was posted with. */
static inline void *completed(utofu_vcq_hdl_t vcq)
{
    void *cbdata;
    int code;
    while ((code = utofu_poll_tcq(vcq, 0, &cbdata)) == UTOFU_ERR_NOT_FOUND)
        ;
    OK(code);
    return cbdata;
}

/* The next notice. */
static inline struct utofu_mrq_notice noticed(utofu_vcq_hdl_t vcq)
{
    struct utofu_mrq_notice notice;
    int code;
    while ((code = utofu_poll_mrq(vcq, 0, &notice)) == UTOFU_ERR_NOT_FOUND)
        ;
    OK(code);
    return notice;
}

static void *ranks_thread(void *rank)
{
    int number = (int)(intptr_t)rank;
    OK(tofu_inproc_select((unsigned)number));
    OK(utofu_query_my_coords(ranks_coords[number]));
    meet();
    ranks_body(number, ranks_size);
    return NULL;
}

static inline void ranks_need(int ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "%s\n", what);
    exit(1);
}

/* This process's rank according to its launcher; 0 if there is none. */
static inline int ranks_number(void)
{
    const char *rank = getenv("TOFU_RANK");
    return rank == NULL ? 0 : atoi(rank);
}

/* One process of many. */
static inline void run_rank(rank_body *body)
{
    void *map;
    size_t length, tnis;
    unsigned count;
    uint8_t coords[6];
    utofu_vcq_hdl_t first;
    utofu_vcq_id_t id;
    utofu_stadd_t inbox;
    utofu_tni_id_t *own, tni;
    uint16_t extra;
    ranks_own = ranks_number();
    ranks_need(jtofu_create_mapinfo_by_envvars(&map, &length, &count) == JTOFU_SUCCESS &&
                   jtofu_initialize(RANKS_JOB, (jtofu_rank_t)ranks_own, map) == JTOFU_SUCCESS,
               "there is no map of the job");
    free(map);
    ranks_need(count <= RANKS_MOST, "more ranks than this program is for");
    ranks_need(getenv("TOFU_PPN") == NULL || atoi(getenv("TOFU_PPN")) == 1,
               "this program is for one rank on each node");
    ranks_size = (int)count;
    ranks_coords = (uint8_t(*)[6])calloc(count, sizeof *ranks_coords);
    for (unsigned i = 0; i < count; i++) {
        union jtofu_phys_coords at;
        ranks_need(jtofu_query_phys_coords(RANKS_JOB, i, &at) == JTOFU_SUCCESS, "no such rank");
        memcpy(ranks_coords[i], at.a, sizeof *ranks_coords);
    }
    /*
     * A control queue of its own, which is the same one in all ranks. It leaves the first queue of
     * its TNI to the example, which computes IDs from it.
     */
    OK(utofu_get_onesided_tnis(&own, &tnis));
    ranks_tni = own[tnis - 1];
    free(own);
    OK(utofu_create_vcq(ranks_tni, 0, &first));
    OK(utofu_create_vcq_with_cmp_id(ranks_tni, 6, UTOFU_VCQ_FLAG_EXCLUSIVE, &ranks_vcq));
    OK(utofu_free_vcq(first));
    OK(utofu_query_vcq_id(ranks_vcq, &id));
    OK(utofu_query_vcq_info(id, coords, &tni, &ranks_cq, &extra));
    OK(utofu_reg_mem(ranks_vcq, ranks_out, sizeof ranks_out, 0, &ranks_outbox));
    OK(utofu_reg_mem_with_stag(ranks_vcq, &ranks_in, sizeof ranks_in, RANKS_STAG, 0, &inbox));
    body(ranks_own, ranks_size);
    meet();
    OK(utofu_free_vcq(ranks_vcq));
    jtofu_finalize();
    free(ranks_coords);
}

/* Runs all ranks, or one of many processes; returns the result for `main`. */
static inline int run_ranks(rank_body *body)
{
    unsigned count;
    if (getenv("TOFU_RANK") != NULL) {
        run_rank(body);
        return 0;
    }
    OK(tofu_inproc_count(&count));
    pthread_t *threads = calloc(count, sizeof *threads);
    ranks_coords = calloc(count, sizeof *ranks_coords);
    ranks_body = body;
    ranks_size = (int)count;
    pthread_barrier_init(&ranks_barrier, NULL, count);
    for (unsigned i = 0; i < count; i++)
        pthread_create(&threads[i], NULL, ranks_thread, (void *)(intptr_t)i);
    for (unsigned i = 0; i < count; i++) pthread_join(threads[i], NULL);
    free(threads);
    free(ranks_coords);
    return 0;
}

#endif

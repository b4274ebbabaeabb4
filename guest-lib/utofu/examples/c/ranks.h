/*
 * Ranks as threads of one program, on a machine in its own process: what a launcher does on a real
 * machine. Run with TOFU_PROVIDER=inproc; TOFU_SHAPE is the machine, one rank for each node.
 */
#ifndef RANKS_H
#define RANKS_H

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <utofu.h>

extern void utofu_get_last_error(char *msg);
extern int tofu_inproc_select(unsigned process);
extern int tofu_inproc_count(unsigned *count);

/* Ends the program with the library's own words. */
#define OK(call)                                               \
    do {                                                       \
        if ((call) != UTOFU_SUCCESS) {                         \
            char text_[1024];                                  \
            utofu_get_last_error(text_);                       \
            fprintf(stderr, "%s\n", text_);                    \
            exit(1);                                           \
        }                                                      \
    } while (0)

typedef void rank_body(int rank, int size);

static rank_body *ranks_body;
static int ranks_size;
static pthread_barrier_t ranks_barrier;
static uint8_t (*ranks_coords)[6];

/* All ranks have come here. */
static inline void meet(void)
{
    pthread_barrier_wait(&ranks_barrier);
}

/* The VCQ ID of a rank whose VCQ has component ID 7 on this TNI: nothing need be exchanged. */
static inline utofu_vcq_id_t peer(int rank, utofu_tni_id_t tni)
{
    utofu_vcq_id_t id;
    OK(utofu_construct_vcq_id(ranks_coords[rank], tni, 0, 7, &id));
    return id;
}

/* The STADD of memory that such a VCQ has registered under a reserved steering tag. */
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

static inline void run_ranks(rank_body *body)
{
    unsigned count;
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
}

#endif

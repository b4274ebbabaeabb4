/*
 * Ranks of a job that write words of each other's memory. A program says which VCQ a rank has, and
 * calls `notes_start`.
 */
#ifndef NOTES_H
#define NOTES_H

#include <sched.h>

#include "job.h"

#define STAG 10
#define MOST 256

static _Alignas(256) volatile uint64_t words[MOST + 1];
static uint64_t out;
static utofu_vcq_hdl_t vcq;
static utofu_stadd_t out_stadd;

/* The VCQ ID of a rank. */
static utofu_vcq_id_t peer(int rank);

static void notes_start(utofu_tni_id_t tni, int component)
{
    OK(utofu_create_vcq_with_cmp_id(tni, (utofu_cmp_id_t)component, 0, &vcq));
    OK(utofu_reg_mem_with_stag(vcq, (void *)words, sizeof words, STAG, 0, &out_stadd));
    OK(utofu_reg_mem(vcq, &out, sizeof out, 0, &out_stadd));
}

/* Writes a word of another rank's, as soon as that rank has registered it. */
static void tell(int rank, int word, uint64_t value)
{
    utofu_vcq_id_t to = peer(rank);
    utofu_stadd_t place;
    struct utofu_mrq_notice notice;
    int code;
    OK(utofu_query_stadd(to, STAG, &place));
    out = value;
    do {
        OK(utofu_put(vcq, to, out_stadd, place + 8 * (utofu_stadd_t)word, 8, 0,
                     UTOFU_ONESIDED_FLAG_LOCAL_MRQ_NOTICE, NULL));
        while ((code = utofu_poll_mrq(vcq, 0, &notice)) == UTOFU_ERR_NOT_FOUND)
            sched_yield();
    } while (code != UTOFU_SUCCESS);
}

static uint64_t wait_for(int word, uint64_t at_least)
{
    while (words[word] < at_least)
        sched_yield();
    return words[word];
}

#endif

/*
 * Threads: several share a THREAD_SAFE VCQ, and count with atomic commands in a neighbour's memory
 * while its own threads answer. Nothing is lost and nothing arrives twice.
 */
#include "test.h"

#include <pthread.h>

#define THREADS 4
#define EACH 20000

static utofu_vcq_hdl_t a, b;
static utofu_vcq_id_t b_id;
static utofu_stadd_t rmt;
static uint64_t counter[512] __attribute__((aligned(4096)));
static unsigned char seen[THREADS * EACH];
static unsigned char noticed[THREADS * EACH];
static int taken;

static int take(void)
{
    void *cbdata;
    struct utofu_mrq_notice n;
    int code = utofu_poll_tcq(a, 0, &cbdata);
    if (code == UTOFU_SUCCESS) {
        IS(__atomic_fetch_add(&seen[(uintptr_t)cbdata], 1, __ATOMIC_SEQ_CST), 0);
        __atomic_fetch_add(&taken, 1, __ATOMIC_SEQ_CST);
    } else {
        IS(code, UTOFU_ERR_NOT_FOUND);
    }
    code = utofu_poll_mrq(a, 0, &n);
    if (code == UTOFU_SUCCESS) {
        /* The old value: each number exactly once. */
        IS(n.notice_type, UTOFU_MRQ_TYPE_LCL_ARMW);
        IS(__atomic_fetch_add(&noticed[n.rmt_value], 1, __ATOMIC_SEQ_CST), 0);
        __atomic_fetch_add(&taken, 1, __ATOMIC_SEQ_CST);
    } else {
        IS(code, UTOFU_ERR_NOT_FOUND);
    }
    return 0;
}

static void *sender(void *number)
{
    uintptr_t first = (uintptr_t)number * EACH;
    for (uintptr_t i = first; i < first + EACH; i++) {
        int code;
        while ((code = utofu_armw8(a, b_id, UTOFU_ARMW_OP_ADD, 1, rmt, 0, TCQ | LOCAL,
                                   (void *)i)) == UTOFU_ERR_BUSY)
            take();
        IS(code, UTOFU_SUCCESS);
        take();
    }
    return NULL;
}

/* Makes, uses and frees VCQs and registrations all the time. */
static void *disturber(void *unused)
{
    static uint8_t memory[4096];
    for (int i = 0; i < 2000; i++) {
        utofu_vcq_hdl_t vcq;
        utofu_stadd_t stadd;
        void *cbdata;
        OK(utofu_create_vcq(0, 0, &vcq));
        OK(utofu_reg_mem(vcq, memory, sizeof memory, 0, &stadd));
        int code;
        while ((code = utofu_put(vcq, b_id, stadd, rmt + 64, 64, 0, TCQ, (void *)5)) ==
               UTOFU_ERR_BUSY)
            take();
        IS(code, UTOFU_SUCCESS);
        OK(wait_tcq(vcq, &cbdata));
        IS((uintptr_t)cbdata, 5);
        OK(utofu_dereg_mem(vcq, stadd, 0));
        OK(utofu_free_vcq(vcq));
    }
    return unused;
}

int main(void)
{
    OK(tofu_inproc_select(1));
    OK(utofu_create_vcq(0, 0, &b));
    OK(utofu_query_vcq_id(b, &b_id));
    OK(utofu_reg_mem(b, counter, sizeof counter, 0, &rmt));
    OK(tofu_inproc_select(0));
    OK(utofu_create_vcq(0, UTOFU_VCQ_FLAG_THREAD_SAFE, &a));
    pthread_t threads[THREADS + 1];
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, sender, (void *)i);
    pthread_create(&threads[THREADS], NULL, disturber, NULL);
    for (int i = 0; i <= THREADS; i++) pthread_join(threads[i], NULL);
    struct timespec start;
    clock_gettime(CLOCK_MONOTONIC, &start);
    while (taken < 2 * THREADS * EACH && !late(&start)) take();
    IS(taken, 2 * THREADS * EACH);
    IS(counter[0], THREADS * EACH);
    puts("ok");
    return 0;
}

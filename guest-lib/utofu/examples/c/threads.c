/*
 * Four threads of each rank share one VCQ: each draws numbers from a counter of the next rank, and
 * whichever thread finds a completion or a notice takes it.
 */
#include "ranks.h"

#define STAG 10
#define THREADS 4
#define EACH 1000
#define TOTAL (THREADS * EACH)

struct process {
    utofu_vcq_hdl_t vcq;
    utofu_vcq_id_t to;
    utofu_stadd_t counter;
    volatile uint64_t *mine;
    int completions, notices;
    char drawn[TOTAL];
};

static void look(struct process *p)
{
    void *cbdata;
    struct utofu_mrq_notice notice;
    int code = utofu_poll_tcq(p->vcq, 0, &cbdata);
    if (code == UTOFU_SUCCESS) __atomic_fetch_add(&p->completions, 1, __ATOMIC_SEQ_CST);
    else if (code != UTOFU_ERR_NOT_FOUND) OK(code);
    code = utofu_poll_mrq(p->vcq, 0, &notice);
    if (code == UTOFU_SUCCESS) {
        __atomic_fetch_add(&p->drawn[notice.rmt_value], 1, __ATOMIC_SEQ_CST);
        __atomic_fetch_add(&p->notices, 1, __ATOMIC_SEQ_CST);
    } else if (code != UTOFU_ERR_NOT_FOUND) {
        OK(code);
    }
}

static void *worker(void *process)
{
    struct process *p = process;
    for (int i = 0; i < EACH; i++) {
        int code;
        while ((code = utofu_armw8(p->vcq, p->to, UTOFU_ARMW_OP_ADD, 1, p->counter, 0,
                                   UTOFU_ONESIDED_FLAG_TCQ_NOTICE |
                                       UTOFU_ONESIDED_FLAG_LOCAL_MRQ_NOTICE,
                                   NULL)) == UTOFU_ERR_BUSY)
            look(p);
        OK(code);
        look(p);
    }
    while (__atomic_load_n(&p->completions, __ATOMIC_SEQ_CST) < TOTAL ||
           __atomic_load_n(&p->notices, __ATOMIC_SEQ_CST) < TOTAL)
        look(p);
    return NULL;
}

static void body(int rank, int size)
{
    struct process *p = calloc(1, sizeof *p);
    p->mine = aligned_alloc(256, 256);
    p->mine[0] = 0;
    utofu_stadd_t stadd;
    OK(utofu_create_vcq_with_cmp_id(0, 7, UTOFU_VCQ_FLAG_THREAD_SAFE, &p->vcq));
    OK(utofu_reg_mem_with_stag(p->vcq, (void *)p->mine, 256, STAG, 0, &stadd));
    meet();
    p->to = peer((rank + 1) % size, 0);
    p->counter = place((rank + 1) % size, 0, STAG);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, worker, p);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    meet();
    int once = 0;
    for (int i = 0; i < TOTAL; i++) once += p->drawn[i] == 1;
    const int total = (int)sum(rank, once + (p->mine[0] == TOTAL));
    if (rank == 0)
        printf("%d ranks of %d threads: %s\n", size, THREADS,
               total == size * (TOTAL + 1) ? "each number drawn once" : "numbers lost or doubled");
    OK(utofu_free_vcq(p->vcq));
    free((void *)p->mine);
    free(p);
}

int main(void)
{
    return run_ranks(body);
}

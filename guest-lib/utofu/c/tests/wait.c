/*
 * Waits for completions and notices by tofu_wait and by poll(2) on a VCQ's descriptor. With
 * ONE_PROCESS both VCQs are one process's, on a device of this computer.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "test.h"

#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>

#include <tofu_wait.h>

#ifndef ROUNDS
#define ROUNDS 2000
#endif
#define SECOND 1000000000LL
#define LONG_PUT (1 << 20)

static unsigned peer = PEER;
/* Waits of about a second: the library looks then, by itself. A lost wake-up is one, too. */
static int slow;
static utofu_vcq_hdl_t vcq[2];
static utofu_vcq_id_t id[2];
static utofu_stadd_t stadd[2];
static uint8_t memory[2][LONG_PUT];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int wait_for(utofu_vcq_hdl_t hdl, int64_t timeout)
{
    double start = now();
    int code = tofu_wait(hdl, timeout);
    if (now() - start > 0.9) __atomic_fetch_add(&slow, 1, __ATOMIC_SEQ_CST);
    return code;
}

static void put(int from, size_t bytes, unsigned long flags, void *cbdata)
{
    OK(utofu_put(vcq[from], id[1 - from], stadd[from], stadd[1 - from], bytes, 0, flags, cbdata));
}

/* The next notice of a VCQ, asleep by the call, or by the descriptor. */
static void take(int which, int fd, struct utofu_mrq_notice *notice)
{
    int code;
    while ((code = utofu_poll_mrq(vcq[which], 0, notice)) == UTOFU_ERR_NOT_FOUND) {
        if (fd < 0) {
            OK(wait_for(vcq[which], 20 * SECOND));
            continue;
        }
        code = tofu_wait(vcq[which], 0);
        if (code == UTOFU_SUCCESS) continue;
        IS(code, UTOFU_ERR_NOT_FOUND);
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        IS(poll(&ready, 1, 20000), 1);
    }
    OK(code);
}

/* Answers each message. */
static void *answer(void *fd)
{
    struct utofu_mrq_notice notice;
    OK(tofu_inproc_select(peer));
    for (int i = 0; i < ROUNDS; i++) {
        take(1, (int)(intptr_t)fd, &notice);
        IS(notice.notice_type, UTOFU_MRQ_TYPE_RMT_PUT);
        put(1, 8, REMOTE, NULL);
    }
    return NULL;
}

/* Both sides sleep for each message: one lost wake-up, and poll or tofu_wait runs out of time. */
static void turns(int fd0, int fd1)
{
    struct utofu_mrq_notice notice;
    pthread_t thread;
    IS(pthread_create(&thread, NULL, answer, (void *)(intptr_t)fd1), 0);
    for (int i = 0; i < ROUNDS; i++) {
        put(0, 8, REMOTE, NULL);
        take(0, fd0, &notice);
        IS(notice.notice_type, UTOFU_MRQ_TYPE_RMT_PUT);
    }
    IS(pthread_join(thread, NULL), 0);
}

/* Own commands wake up by what was asked for: completions, local notices, and long Puts. */
static void own(void)
{
    struct utofu_mrq_notice notice;
    void *cbdata;
    for (uintptr_t i = 0; i < 200; i++) {
        put(0, 8, TCQ, (void *)i);
        OK(wait_for(vcq[0], 20 * SECOND));
        OK(utofu_poll_tcq(vcq[0], 0, &cbdata));
        IS((uintptr_t)cbdata, i);
        put(0, 8, LOCAL, NULL);
        OK(wait_for(vcq[0], 20 * SECOND));
        OK(utofu_poll_mrq(vcq[0], 0, &notice));
        IS(notice.notice_type, UTOFU_MRQ_TYPE_LCL_PUT);
        put(0, LONG_PUT, TCQ, (void *)i);
        OK(wait_for(vcq[0], -1));
        OK(utofu_poll_tcq(vcq[0], 0, &cbdata));
        IS((uintptr_t)cbdata, i);
    }
}

static void *waiter(void *which)
{
    return (void *)(intptr_t)wait_for(*(utofu_vcq_hdl_t *)which, 20 * SECOND);
}

/* VCQs of one control queue: each wakes for its own entries, whichever thread saw the interrupt. */
static void siblings(void)
{
    enum { COUNT = 3, TIMES = 300 };
    int count = COUNT, code_of_last;
    utofu_vcq_hdl_t more[COUNT];
    utofu_vcq_id_t ids[COUNT];
    utofu_stadd_t at[COUNT];
    static uint64_t words[COUNT];
    pthread_t threads[COUNT];
    struct utofu_mrq_notice notice;
    void *code;

    OK(tofu_inproc_select(peer));
    for (int i = 0; i < count; i++) {
        /* A process that shares its queue has four VCQs. */
        if (i == 2 && (code_of_last = utofu_create_vcq(0, 0, &more[i])) == UTOFU_ERR_FULL) {
            count = i;
            break;
        }
        OK(i == 2 ? code_of_last : utofu_create_vcq(0, 0, &more[i]));
        OK(utofu_query_vcq_id(more[i], &ids[i]));
        OK(utofu_reg_mem(more[i], &words[i], 8, 0, &at[i]));
    }
    OK(tofu_inproc_select(0));
    for (int round = 0; round < TIMES; round++) {
        for (int i = 0; i < count; i++)
            IS(pthread_create(&threads[i], NULL, waiter, &more[i]), 0);
        for (int i = 0; i < count; i++)
            OK(utofu_put(vcq[0], ids[i], stadd[0], at[i], 8, 0, REMOTE, NULL));
        for (int i = 0; i < count; i++) {
            IS(pthread_join(threads[i], &code), 0);
            IS((intptr_t)code, UTOFU_SUCCESS);
            OK(utofu_poll_mrq(more[i], 0, &notice));
            IS(utofu_poll_mrq(more[i], 0, &notice), UTOFU_ERR_NOT_FOUND);
        }
    }
    /* One that is freed ends its waiter. */
    IS(pthread_create(&threads[0], NULL, waiter, &more[0]), 0);
    struct timespec moment = {0, 20000000};
    nanosleep(&moment, NULL);
    for (int i = 0; i < count; i++)
        OK(utofu_free_vcq(more[i]));
    IS(pthread_join(threads[0], &code), 0);
    IS((intptr_t)code, UTOFU_ERR_INVALID_VCQ_HDL);
}

int main(int argc, char **argv)
{
    int fd[2], again;
    void *cbdata;
    struct utofu_mrq_notice last;

    if (argc > 1) peer = (unsigned)atoi(argv[1]);

    for (int i = 0; i < 2; i++) {
        OK(tofu_inproc_select(i ? peer : 0));
        OK(utofu_create_vcq(0, 0, &vcq[i]));
        OK(utofu_query_vcq_id(vcq[i], &id[i]));
        OK(utofu_reg_mem(vcq[i], memory[i], LONG_PUT, 0, &stadd[i]));
    }
    OK(tofu_inproc_select(0));

    /* The time limit, and what is there already. */
    double start = now();
    if (tofu_wait(vcq[0], 0) == UTOFU_ERR_NOT_SUPPORTED) {
        IS(tofu_wait(vcq[0], -1), UTOFU_ERR_NOT_SUPPORTED);
        IS(tofu_wait_fd(vcq[0], &again), UTOFU_ERR_NOT_SUPPORTED);
        puts("no interrupts");
        return 0;
    }
    IS(tofu_wait(vcq[0], 0), UTOFU_ERR_NOT_FOUND);
    IS(tofu_wait(vcq[0], SECOND / 20), UTOFU_ERR_NOT_FOUND);
    IS(now() - start >= 0.05, 1);
    put(0, 8, TCQ, NULL);
    OK(tofu_wait(vcq[0], -1));
    OK(tofu_wait(vcq[0], -1));
    OK(utofu_poll_tcq(vcq[0], 0, &cbdata));
    IS(tofu_wait(vcq[0], 0), UTOFU_ERR_NOT_FOUND);

    own();
    turns(-1, -1);
    OK(tofu_wait_fd(vcq[0], &fd[0]));
    OK(tofu_wait_fd(vcq[1], &fd[1]));
    turns(fd[0], fd[1]);
    turns(-1, fd[1]);
    own();
    siblings();

    /* The descriptor is readable as long as something may be there. */
    OK(tofu_wait_fd(vcq[0], &again));
    IS(again, fd[0]);
    struct pollfd ready = {.fd = fd[0], .events = POLLIN};
    IS(tofu_wait(vcq[0], 0), UTOFU_ERR_NOT_FOUND);
    IS(poll(&ready, 1, 0), 0);
    put(0, 8, TCQ, NULL);
    IS(poll(&ready, 1, 20000), 1);
    IS(poll(&ready, 1, 0), 1);
    OK(utofu_poll_tcq(vcq[0], 0, &cbdata));
    IS(tofu_wait(vcq[0], 0), UTOFU_ERR_NOT_FOUND);
    IS(poll(&ready, 1, 0), 0);

#ifndef ONE_PROCESS
    /* The end of an own command that the program does not ask for does not interrupt, so
     * a thread sleeps until the answer. */
    struct utofu_mrq_notice notice;
    for (int i = 0; i < 50; i++) {
        put(0, 8, REMOTE, NULL);
        take(1, -1, &notice);
        put(0, 8, LOCAL | TCQ, NULL);
        OK(wait_for(vcq[0], 20 * SECOND));
        take(0, -1, &notice);
        OK(utofu_poll_tcq(vcq[0], 0, &cbdata));
        IS(tofu_wait(vcq[0], 0), UTOFU_ERR_NOT_FOUND);
        put(0, 8, REMOTE, NULL);
        take(1, -1, &notice);
        IS(poll(&ready, 1, 0), 0);
    }
#endif

    /* Polls that find nothing leave the processor to others: each 64th sleeps. Processor time
     * would be no measure, as in a virtual machine it contains what the host took. */
    start = now();
    while (now() - start < 0.5)
        for (int i = 0; i < 64; i++)
            IS(utofu_poll_mrq(vcq[0], 0, &last), UTOFU_ERR_NOT_FOUND);
    struct rusage before, after;
    long polls = 0;
    getrusage(RUSAGE_THREAD, &before);
    start = now();
    while (now() - start < 0.5) {
        IS(utofu_poll_mrq(vcq[0], 0, &last), UTOFU_ERR_NOT_FOUND);
        polls++;
    }
    getrusage(RUSAGE_THREAD, &after);
    IS((after.ru_nvcsw - before.ru_nvcsw) * 128 >= polls, 1);

    /* What is wrong. */
    IS(tofu_wait(vcq[0] + 1, 0), UTOFU_ERR_INVALID_VCQ_HDL);
    IS(tofu_wait_fd(vcq[0] + 1, &again), UTOFU_ERR_INVALID_VCQ_HDL);
    IS(tofu_wait_fd(vcq[0], NULL), UTOFU_ERR_INVALID_POINTER);
    for (int i = 0; i < 2; i++)
        OK(utofu_free_vcq(vcq[i]));
    IS(slow < 5 ? 0 : slow, 0);
    puts("ok");
    return 0;
}

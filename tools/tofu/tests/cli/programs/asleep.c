/*
 * A rank sleeps in tofu_wait, and in poll on the descriptor in every other round, until its other
 * thread puts to it.
 */
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <tofu_wait.h>
#include <utofu.h>

#define OK(call) is(#call, (call), UTOFU_SUCCESS)
#define ROUNDS 100
#define PATIENCE 20

static _Alignas(256) uint64_t memory[2][32];
static utofu_vcq_hdl_t vcq[2];
static utofu_vcq_id_t id[2];
static utofu_stadd_t stadd[2];
/* The round that the sleeper is in. */
static int turn;

static void is(const char *what, int code, int expected)
{
    if (code == expected) return;
    printf("%s: %d, not %d\n", what, code, expected);
    exit(1);
}

static void *puts_later(void *unused)
{
    const struct timespec pause = {.tv_nsec = 500000};
    for (int round = 1; round <= ROUNDS; round++) {
        void *cbdata;
        int code;
        while (__atomic_load_n(&turn, __ATOMIC_ACQUIRE) < round)
            nanosleep(&pause, NULL);
        nanosleep(&pause, NULL);
        OK(utofu_put(vcq[1], id[0], stadd[1], stadd[0], 8, 0,
                     UTOFU_ONESIDED_FLAG_TCQ_NOTICE | UTOFU_ONESIDED_FLAG_REMOTE_MRQ_NOTICE, NULL));
        while ((code = utofu_poll_tcq(vcq[1], 0, &cbdata)) == UTOFU_ERR_NOT_FOUND)
            nanosleep(&pause, NULL);
        OK(code);
    }
    return unused;
}

int main(void)
{
    pthread_t thread;
    struct utofu_mrq_notice notice;
    int fd, slow = 0;
    for (int i = 0; i < 2; i++) {
        OK(utofu_create_vcq((utofu_tni_id_t)i, 0, &vcq[i]));
        OK(utofu_query_vcq_id(vcq[i], &id[i]));
        OK(utofu_reg_mem(vcq[i], memory[i], sizeof memory[i], 0, &stadd[i]));
    }
    is("a wait for nothing", tofu_wait(vcq[0], 0), UTOFU_ERR_NOT_FOUND);
    OK(tofu_wait_fd(vcq[0], &fd));
    if (pthread_create(&thread, NULL, puts_later, NULL) != 0) return 1;
    for (int round = 1; round <= ROUNDS; round++) {
        int code;
        struct timespec from, to;
        clock_gettime(CLOCK_MONOTONIC, &from);
        __atomic_store_n(&turn, round, __ATOMIC_RELEASE);
        while ((code = utofu_poll_mrq(vcq[0], 0, &notice)) == UTOFU_ERR_NOT_FOUND) {
            struct pollfd ready = {.fd = fd, .events = POLLIN};
            if (round % 2) {
                OK(tofu_wait(vcq[0], PATIENCE * 1000000000LL));
            } else if (tofu_wait(vcq[0], 0) == UTOFU_ERR_NOT_FOUND) {
                is("poll", poll(&ready, 1, PATIENCE * 1000), 1);
            }
        }
        OK(code);
        clock_gettime(CLOCK_MONOTONIC, &to);
        /* The library looks by itself after a second. */
        slow += to.tv_sec - from.tv_sec > 1;
    }
    pthread_join(thread, NULL);
    if (slow > ROUNDS / 10) printf("%d of %d rounds took a second\n", slow, ROUNDS);
    for (int i = 0; i < 2; i++) OK(utofu_free_vcq(vcq[i]));
    puts("woken");
    return 0;
}

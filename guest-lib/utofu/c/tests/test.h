/* Shared by the C tests. */
#ifndef TEST_H
#define TEST_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <utofu.h>

extern void utofu_get_last_error(char *msg);

#ifdef ONE_PROCESS
/* On a real device, the second process is the same as the first, and so is on the same node. */
enum { PEER = 0 };
static inline int tofu_inproc_select(unsigned process)
{
    return process < 2 ? UTOFU_SUCCESS : UTOFU_ERR_INVALID_NUMBER;
}
static inline int tofu_inproc_count(unsigned *count)
{
    if (!count) return UTOFU_ERR_INVALID_POINTER;
    *count = 2;
    return UTOFU_SUCCESS;
}
#else
/* Coordinate A of the second process's node. */
enum { PEER = 1 };
extern int tofu_inproc_select(unsigned process);
extern int tofu_inproc_count(unsigned *count);
#endif

#define TCQ UTOFU_ONESIDED_FLAG_TCQ_NOTICE
#define LOCAL UTOFU_ONESIDED_FLAG_LOCAL_MRQ_NOTICE
#define REMOTE UTOFU_ONESIDED_FLAG_REMOTE_MRQ_NOTICE
#define ALL (TCQ | LOCAL | REMOTE)

static inline void fail(int line, const char *what, long long got, long long expected)
{
    char text[1024];
    utofu_get_last_error(text);
    fprintf(stderr, "line %d: %s is %lld, expected %lld; last error: %s\n", line, what, got,
            expected, text);
    exit(1);
}

#define IS(expr, value)                                                   \
    do {                                                                  \
        long long got_ = (long long)(expr), expected_ = (long long)(value); \
        if (got_ != expected_) fail(__LINE__, #expr, got_, expected_);    \
    } while (0)
#define OK(expr) IS(expr, UTOFU_SUCCESS)

/* Polls for 20 s at most. */
static inline int late(struct timespec *start)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec - start->tv_sec > 20;
}

static inline int wait_tcq(utofu_vcq_hdl_t vcq, void **cbdata)
{
    struct timespec start;
    clock_gettime(CLOCK_MONOTONIC, &start);
    int code;
    while ((code = utofu_poll_tcq(vcq, 0, cbdata)) == UTOFU_ERR_NOT_FOUND && !late(&start))
        ;
    return code;
}

static inline int wait_mrq(utofu_vcq_hdl_t vcq, struct utofu_mrq_notice *notice)
{
    struct timespec start;
    clock_gettime(CLOCK_MONOTONIC, &start);
    int code;
    while ((code = utofu_poll_mrq(vcq, 0, notice)) == UTOFU_ERR_NOT_FOUND && !late(&start))
        ;
    return code;
}

#endif

/*
 * An SVE kernel whose data travels. Each rank has a part of a ring of numbers, and smooths it again
 * and again. Each time, the two numbers at a part's ends are put into the neighbours' memory. The
 * same is computed without vectors for the whole ring, and compared bit by bit. The program runs on
 * processors with SVE, whatever the length of their vectors.
 */
#include <arm_sve.h>
#include <stddef.h>
#include <string.h>

#include "job.h"

#define PART 1000
#define STEPS 20
#define STAG 11

/* A part, and the numbers beyond both ends, which the neighbours put there for even and odd
 * steps. */
struct part {
    volatile double ends[2][2];
    double own[PART];
};

/* The new value of a number after a step. */
static double smooth(double left, double middle, double right)
{
    return (left + right) * 0.25 + middle * 0.5;
}

static void step(double *restrict to, const double *restrict from, size_t count)
{
    /* from[-1] and from[count] exist. */
    for (size_t i = 0; i < count; i += svcntd()) {
        svbool_t in = svwhilelt_b64_u64(i, count);
        svfloat64_t ends = svadd_x(in, svld1(in, from + i - 1), svld1(in, from + i + 1));
        svfloat64_t middle = svmul_x(in, svld1(in, from + i), 0.5);
        svst1(in, to + i, svadd_x(in, svmul_x(in, ends, 0.25), middle));
    }
}

static double first(int rank, int i)
{
    return (double)((rank * 7919 + i * 104729) % 1000);
}

enum side { LEFT, RIGHT };

static utofu_vcq_hdl_t vcq;
/* How many numbers have come from either side. */
static int received[2];

/* Takes a notice if there is one. Returns the code of one about a Put of this rank's own. */
static int poll_notice(void)
{
    struct utofu_mrq_notice notice;
    int code = utofu_poll_mrq(vcq, 0, &notice);
    if (code == UTOFU_ERR_NOT_FOUND || notice.notice_type != UTOFU_MRQ_TYPE_RMT_PUT) return code;
    OK(code);
    received[notice.edata]++;
    return UTOFU_ERR_NOT_FOUND;
}

/*
 * Puts a number to a neighbour, on whose given side this rank is, and waits until it is there.
 * Memory that the neighbour has not registered yet cannot be written to, so tries again.
 */
static void put(utofu_vcq_id_t to, utofu_stadd_t from, utofu_stadd_t at, enum side side)
{
    int code;
    do {
        void *cbdata;
        OK(utofu_put(vcq, to, from, at, sizeof(double), side,
                     UTOFU_ONESIDED_FLAG_TCQ_NOTICE | UTOFU_ONESIDED_FLAG_LOCAL_MRQ_NOTICE |
                         UTOFU_ONESIDED_FLAG_REMOTE_MRQ_NOTICE,
                     NULL));
        while ((code = utofu_poll_tcq(vcq, 0, &cbdata)) == UTOFU_ERR_NOT_FOUND)
            ;
        OK(code);
        while ((code = poll_notice()) == UTOFU_ERR_NOT_FOUND)
            ;
    } while (code != UTOFU_SUCCESS);
}

int main(void)
{
    int rank = job_rank(), size = job_size();
    job_start();
    static _Alignas(256) struct part part;
    static double from[PART + 2];
    utofu_stadd_t own, left_part, right_part;
    struct job_share share = job_share(rank);
    OK(utofu_create_vcq_with_cmp_id(share.tni, share.component, 0, &vcq));
    OK(utofu_reg_mem_with_stag(vcq, &part, sizeof part, STAG, 0, &own));
    utofu_vcq_id_t left = job_peer((rank + size - 1) % size);
    utofu_vcq_id_t right = job_peer((rank + 1) % size);
    OK(utofu_query_stadd(left, STAG, &left_part));
    OK(utofu_query_stadd(right, STAG, &right_part));
    for (int i = 0; i < PART; i++) part.own[i] = first(rank, i);

    own += offsetof(struct part, own);
    for (int now = 0; now < STEPS; now++) {
        /* No neighbour is more than a step ahead, so that the other two are free. */
        volatile double *ends = part.ends[now % 2];
        size_t offset = (size_t)((char *)ends - (char *)&part);
        put(left, own, left_part + offset + RIGHT * sizeof *ends, RIGHT);
        put(right, own + (PART - 1) * sizeof *ends, right_part + offset, LEFT);
        while (received[LEFT] <= now || received[RIGHT] <= now) poll_notice();
        from[0] = ends[LEFT];
        memcpy(from + 1, part.own, sizeof part.own);
        from[PART + 1] = ends[RIGHT];
        step(part.own, from + 1, PART);
    }

    /* The whole ring once more, without vectors. */
    int count = size * PART, wrong = 0;
    double *ring = calloc((size_t)count, sizeof *ring);
    double *next = calloc((size_t)count, sizeof *next);
    if (ring == NULL || next == NULL) return 1;
    for (int i = 0; i < count; i++) ring[i] = first(i / PART, i % PART);
    for (int now = 0; now < STEPS; now++) {
        for (int i = 0; i < count; i++)
            next[i] = smooth(ring[(i + count - 1) % count], ring[i], ring[(i + 1) % count]);
        double *old = ring;
        ring = next;
        next = old;
    }
    wrong = memcmp(ring + rank * PART, part.own, sizeof part.own) != 0;
    printf("rank %d of %d: vectors of %d bits, %s\n", rank, size, (int)svcntb() * 8,
           wrong ? "wrong" : "as computed alone");
    free(ring);
    free(next);
    OK(utofu_free_vcq(vcq));
    return wrong;
}

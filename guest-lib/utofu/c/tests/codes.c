/*
 * Every function with every code that it can return: each one is caused, and utofu_get_last_error
 * must report it for that function. Prints a line "function code" for each; the Rust side compares
 * them with the table in the manual (TOFU_SHAPE=1x1x1x2x1x1).
 *
 * With an argument: codes that need many processes on a node (many-processes, TOFU_PPN=48), or
 * codes without a device (no-device).
 */
#include "test.h"

#include <sys/mman.h>

static utofu_vcq_hdl_t a, b, bad, freed;
static utofu_vcq_id_t b_id;
/* The longest page of processors: with the kernel driver, memory ends where its last page does. */
enum { PAGE = 65536 };
static uint8_t mine[PAGE] __attribute__((aligned(PAGE)));
static uint8_t theirs[PAGE] __attribute__((aligned(PAGE)));
#ifndef ONE_PROCESS
static const uint8_t constant[PAGE] __attribute__((aligned(PAGE))) = {1};
#endif
static utofu_stadd_t lcl, rmt;
static uint64_t desc[64];
static size_t n;

static void check(int line, const char *function, const char *name, int got, int expected)
{
    char text[1024], start[128];
    if (got != expected) fail(line, function, got, expected);
    if (got != UTOFU_SUCCESS) {
        utofu_get_last_error(text);
        int length = snprintf(start, sizeof start, "%s: UTOFU_%s: ", function, name);
        /* After function and code come the subject and the remedy. */
        if (strncmp(text, start, length) != 0 || !strstr(text + length, ": ")) {
            fprintf(stderr, "line %d: the text of %s is: %s\n", line, name, text);
            exit(1);
        }
    }
    printf("%s %s\n", function, name);
}
#define CASE(code, function, ...) \
    check(__LINE__, #function, #code, function(__VA_ARGS__), UTOFU_##code)

/* The same for a poll, once the round is over. */
#define OVER(code, function, ...)                                            \
    do {                                                                     \
        struct timespec start_;                                              \
        clock_gettime(CLOCK_MONOTONIC, &start_);                             \
        int over_;                                                            \
        while ((over_ = function(__VA_ARGS__)) == UTOFU_ERR_NOT_COMPLETED &&  \
               !late(&start_))                                               \
            ;                                                                \
        IS(over_, UTOFU_##code);                                              \
        printf(#function " " #code "\n");                                    \
    } while (0)

/* The arguments of each command, with those in question first; the last ones tell whether it is
 * posted or prepared. */
#define PUT(h, to, l, r, f, ...) h, to, l, r, 8, 0, f, __VA_ARGS__
#define GAP(h, to, l, r, f, ...) h, to, l, r, 8, 0, f, 64, 1, __VA_ARGS__
#define STRIDE(h, to, l, r, f, ...) h, to, l, r, 8, 16, 2, 0, f, __VA_ARGS__
#define STRIDE_GAP(h, to, l, r, f, ...) h, to, l, r, 8, 16, 2, 0, f, 64, 1, __VA_ARGS__
#define PIGGYBACK(h, to, l, r, f, ...) h, to, mine, r, 8, 0, f, __VA_ARGS__
#define PIGGYBACK8(h, to, l, r, f, ...) h, to, 7, r, 8, 0, f, __VA_ARGS__
#define ARMW(h, to, l, r, f, ...) h, to, UTOFU_ARMW_OP_ADD, 1, r, 0, f, __VA_ARGS__
#define CSWAP(h, to, l, r, f, ...) h, to, 1, 2, r, 0, f, __VA_ARGS__

#define BIT63 (1ULL << 63)
#define NO_PATH UTOFU_ONESIDED_FLAG_PATH(7)

#define COMMON(function, args, ...)                                                        \
    CASE(SUCCESS, function, args(a, b_id, lcl, rmt, 0, __VA_ARGS__));                      \
    CASE(ERR_INVALID_VCQ_HDL, function, args(bad, b_id, lcl, rmt, 0, __VA_ARGS__));        \
    CASE(ERR_INVALID_VCQ_HDL, function, args(freed, b_id, lcl, rmt, 0, __VA_ARGS__));      \
    CASE(ERR_INVALID_VCQ_ID, function, args(a, ~0ULL, lcl, rmt, 0, __VA_ARGS__));          \
    CASE(ERR_INVALID_FLAGS, function, args(a, b_id, lcl, rmt, 1UL << 4, __VA_ARGS__));     \
    CASE(ERR_INVALID_FLAGS, function, args(a, b_id, lcl, rmt, BIT63, __VA_ARGS__));        \
    CASE(ERR_INVALID_PATH_ID, function, args(a, b_id, lcl, rmt, NO_PATH, __VA_ARGS__));    \
    CASE(ERR_INVALID_STADD, function, args(a, b_id, lcl, BIT63, 0, __VA_ARGS__))

#define PREPARE(function, args)                                                            \
    COMMON(function, args, desc, &n);                                                      \
    CASE(ERR_INVALID_POINTER, function, args(a, b_id, lcl, rmt, 0, NULL, &n));             \
    CASE(ERR_INVALID_POINTER, function, args(a, b_id, lcl, rmt, 0, desc, NULL))
#define POST(function, args) COMMON(function, args, NULL)

static void commands(void)
{
    POST(utofu_put, PUT);
    POST(utofu_put_gap, GAP);
    POST(utofu_put_stride, STRIDE);
    POST(utofu_put_stride_gap, STRIDE_GAP);
    POST(utofu_put_piggyback, PIGGYBACK);
    POST(utofu_put_piggyback8, PIGGYBACK8);
    POST(utofu_get, PUT);
    POST(utofu_get_gap, GAP);
    POST(utofu_get_stride, STRIDE);
    POST(utofu_get_stride_gap, STRIDE_GAP);
    POST(utofu_armw4, ARMW);
    POST(utofu_armw8, ARMW);
    POST(utofu_cswap4, CSWAP);
    POST(utofu_cswap8, CSWAP);
    PREPARE(utofu_prepare_put, PUT);
    PREPARE(utofu_prepare_put_gap, GAP);
    PREPARE(utofu_prepare_put_stride, STRIDE);
    PREPARE(utofu_prepare_put_stride_gap, STRIDE_GAP);
    PREPARE(utofu_prepare_put_piggyback, PIGGYBACK);
    PREPARE(utofu_prepare_put_piggyback8, PIGGYBACK8);
    PREPARE(utofu_prepare_get, PUT);
    PREPARE(utofu_prepare_get_gap, GAP);
    PREPARE(utofu_prepare_get_stride, STRIDE);
    PREPARE(utofu_prepare_get_stride_gap, STRIDE_GAP);
    PREPARE(utofu_prepare_armw4, ARMW);
    PREPARE(utofu_prepare_armw8, ARMW);
    PREPARE(utofu_prepare_cswap4, CSWAP);
    PREPARE(utofu_prepare_cswap8, CSWAP);
    CASE(SUCCESS, utofu_nop, a, 0, NULL);
    CASE(ERR_INVALID_VCQ_HDL, utofu_nop, freed, 0, NULL);
    CASE(ERR_INVALID_FLAGS, utofu_nop, a, 1UL << 9, NULL);
    CASE(SUCCESS, utofu_prepare_nop, a, 0, desc, &n);
    CASE(ERR_INVALID_VCQ_HDL, utofu_prepare_nop, freed, 0, desc, &n);
    CASE(ERR_INVALID_FLAGS, utofu_prepare_nop, a, 1UL << 9, desc, &n);
    CASE(ERR_INVALID_POINTER, utofu_prepare_nop, a, 0, NULL, &n);
    CASE(ERR_INVALID_POINTER, utofu_prepare_nop, a, 0, desc, NULL);
}

/* Sizes and numbers, each for the command at once and prepared. */
#define BOTH(code, command, ...)                                        \
    CASE(code, utofu_##command, a, b_id, __VA_ARGS__, NULL);            \
    CASE(code, utofu_prepare_##command, a, b_id, __VA_ARGS__, desc, &n)

static void sizes(void)
{
    const size_t big = 1 << 24;
    BOTH(ERR_INVALID_SIZE, put, lcl, rmt, big, 0, 0);
    BOTH(ERR_INVALID_SIZE, get, lcl, rmt, SIZE_MAX, 0, 0);
    BOTH(ERR_INVALID_SIZE, put_stride, lcl, rmt, big, 8, 2, 0, 0);
    BOTH(ERR_INVALID_SIZE, get_stride, lcl, rmt, big, 8, 2, 0, 0);
    const size_t wrong[][2] = {{1921, 0}, {7, 0}, {1, 0}, {SIZE_MAX, 0}, {64, 256}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        size_t mtu = wrong[i][0], gap = wrong[i][1];
        BOTH(ERR_INVALID_SIZE, put_gap, lcl, rmt, 8, 0, 0, mtu, gap);
        BOTH(ERR_INVALID_SIZE, get_gap, lcl, rmt, 8, 0, 0, mtu, gap);
        BOTH(ERR_INVALID_SIZE, put_stride_gap, lcl, rmt, 8, 8, 2, 0, 0, mtu, gap);
        BOTH(ERR_INVALID_SIZE, get_stride_gap, lcl, rmt, 8, 8, 2, 0, 0, mtu, gap);
    }
    BOTH(ERR_INVALID_SIZE, put_piggyback, mine, rmt, 33, 0, 0);
    BOTH(ERR_INVALID_SIZE, put_piggyback, mine, rmt, SIZE_MAX, 0, 0);
    BOTH(ERR_INVALID_SIZE, put_piggyback8, 0, rmt, 9, 0, 0);
    BOTH(ERR_INVALID_POINTER, put_piggyback, NULL, rmt, 8, 0, 0);
    /* The local side, for the commands that have one. */
    BOTH(ERR_INVALID_STADD, put, BIT63, rmt, 8, 0, 0);
    BOTH(ERR_INVALID_STADD, get, 1ULL << 58, rmt, 8, 0, 0);
    /* No blocks, more than any queue has entries, beyond the largest offset. */
    const size_t blocks[][2] = {{0, 8}, {SIZE_MAX, 8}, {3, SIZE_MAX}, {3, 1ULL << 39}};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        size_t number = blocks[i][0], stride = blocks[i][1];
        BOTH(ERR_INVALID_NUMBER, put_stride, lcl, rmt, 8, stride, number, 0, 0);
        BOTH(ERR_INVALID_NUMBER, get_stride, lcl, rmt, 8, stride, number, 0, 0);
        BOTH(ERR_INVALID_NUMBER, put_stride_gap, lcl, rmt, 8, stride, number, 0, 0, 64, 0);
        BOTH(ERR_INVALID_NUMBER, get_stride_gap, lcl, rmt, 8, stride, number, 0, 0, 64, 0);
    }
    const enum utofu_armw_op none[] = {(enum utofu_armw_op)0, (enum utofu_armw_op)6};
    for (int i = 0; i < 2; i++) {
        BOTH(ERR_INVALID_OP, armw4, none[i], 1, rmt, 0, 0);
        BOTH(ERR_INVALID_OP, armw8, none[i], 1, rmt, 0, 0);
    }
}

static void posting(void)
{
    OK(utofu_prepare_put(a, b_id, lcl, rmt, 8, 0, 0, desc, &n));
    CASE(SUCCESS, utofu_post_toq, a, desc, n, NULL);
    CASE(ERR_INVALID_VCQ_HDL, utofu_post_toq, freed, desc, n, NULL);
    CASE(ERR_INVALID_POINTER, utofu_post_toq, a, NULL, n, NULL);
    CASE(ERR_INVALID_SIZE, utofu_post_toq, a, desc, 0, NULL);
    CASE(ERR_INVALID_SIZE, utofu_post_toq, a, desc, 33, NULL);
    CASE(ERR_INVALID_SIZE, utofu_post_toq, a, desc, SIZE_MAX, NULL);
    desc[0] |= 0x80;
    CASE(ERR_INVALID_DESC, utofu_post_toq, a, desc, n, NULL);
    static uint64_t many[4 * 2049];
    for (int i = 0; i < 2049; i++) OK(utofu_prepare_nop(a, 0, many + 4 * i, &n));
    CASE(ERR_INVALID_NUMBER, utofu_post_toq, a, many, sizeof many, NULL);
    OK(utofu_prepare_nop(a, 0, desc, &n));

    while (utofu_nop(a, TCQ, NULL) == UTOFU_SUCCESS)
        ;
    CASE(ERR_BUSY, utofu_nop, a, 0, NULL);
    CASE(ERR_BUSY, utofu_post_toq, a, desc, n, NULL);
    CASE(ERR_BUSY, utofu_put, PUT(a, b_id, lcl, rmt, 0, NULL));
    CASE(ERR_BUSY, utofu_put_gap, GAP(a, b_id, lcl, rmt, 0, NULL));
    CASE(ERR_BUSY, utofu_put_stride, STRIDE(a, b_id, lcl, rmt, 0, NULL));
    CASE(ERR_BUSY, utofu_put_stride_gap, STRIDE_GAP(a, b_id, lcl, rmt, 0, NULL));
    CASE(ERR_BUSY, utofu_put_piggyback, PIGGYBACK(a, b_id, lcl, rmt, 0, NULL));
    CASE(ERR_BUSY, utofu_put_piggyback8, PIGGYBACK8(a, b_id, lcl, rmt, 0, NULL));
    CASE(ERR_BUSY, utofu_get, PUT(a, b_id, lcl, rmt, 0, NULL));
    CASE(ERR_BUSY, utofu_get_gap, GAP(a, b_id, lcl, rmt, 0, NULL));
    CASE(ERR_BUSY, utofu_get_stride, STRIDE(a, b_id, lcl, rmt, 0, NULL));
    CASE(ERR_BUSY, utofu_get_stride_gap, STRIDE_GAP(a, b_id, lcl, rmt, 0, NULL));
    CASE(ERR_BUSY, utofu_armw4, ARMW(a, b_id, lcl, rmt, 0, NULL));
    CASE(ERR_BUSY, utofu_armw8, ARMW(a, b_id, lcl, rmt, 0, NULL));
    CASE(ERR_BUSY, utofu_cswap4, CSWAP(a, b_id, lcl, rmt, 0, NULL));
    CASE(ERR_BUSY, utofu_cswap8, CSWAP(a, b_id, lcl, rmt, 0, NULL));
    void *cbdata;
    for (int i = 0; i < 2048; i++) OK(wait_tcq(a, &cbdata));
}

/* The ends of commands that fail: the codes of both queues. */
#define ENDS(tcq, mrq, post)                                                             \
    do {                                                                                 \
        void *cbdata;                                                                    \
        struct utofu_mrq_notice notice;                                                  \
        OK(post);                                                                        \
        check(__LINE__, "utofu_poll_tcq", #tcq, wait_tcq(a, &cbdata), UTOFU_##tcq);      \
        check(__LINE__, "utofu_poll_mrq", #mrq, wait_mrq(a, &notice), UTOFU_##mrq);      \
    } while (0)
#define ENDS_UNTOLD(tcq, post)                                                           \
    do {                                                                                 \
        void *cbdata;                                                                    \
        struct utofu_mrq_notice notice;                                                  \
        OK(post);                                                                        \
        check(__LINE__, "utofu_poll_tcq", #tcq, wait_tcq(a, &cbdata), UTOFU_##tcq);      \
        IS(utofu_poll_mrq(a, 0, &notice), UTOFU_ERR_NOT_FOUND);                          \
    } while (0)

#ifndef ONE_PROCESS
/* Memory that cannot be written although it was registered for that, which a kernel driver
 * refuses. */
static void faults(void)
{
    const unsigned long f = TCQ | LOCAL;
    utofu_stadd_t mine_constant, theirs_constant;
    OK(utofu_reg_mem(a, (void *)constant, 100, 0, &mine_constant));
    OK(utofu_reg_mem(b, (void *)constant, 100, 0, &theirs_constant));
    ENDS(ERR_TCQ_MEMORY, ERR_MRQ_LCL_MEMORY, utofu_get(a, b_id, mine_constant, rmt, 8, 0, f, 0));
    ENDS(SUCCESS, ERR_MRQ_RMT_MEMORY, utofu_put(a, b_id, lcl, theirs_constant, 8, 0, f, 0));
    ENDS(SUCCESS, ERR_MRQ_RMT_MEMORY,
         utofu_cswap8(a, b_id, 1, 2, theirs_constant, 0, f, 0));
}
#endif

static void ends(void)
{
    const unsigned long f = TCQ | LOCAL;
    const utofu_stadd_t never = 0x001ff00000000000;
    utofu_stadd_t mine_ro, theirs_ro;
    OK(utofu_reg_mem(a, mine, 100, UTOFU_REG_MEM_FLAG_READ_ONLY, &mine_ro));
    OK(utofu_reg_mem(b, theirs, 100, UTOFU_REG_MEM_FLAG_READ_ONLY, &theirs_ro));
    ENDS(SUCCESS, SUCCESS, utofu_put(a, b_id, lcl, rmt, 4096, 0, f, 0));
    ENDS(SUCCESS, SUCCESS, utofu_put(a, b_id, mine_ro, rmt, 100, 0, f, 0));
    ENDS(SUCCESS, SUCCESS, utofu_get(a, b_id, lcl, theirs_ro, 100, 0, f, 0));
    ENDS(SUCCESS, SUCCESS, utofu_put(a, b_id, lcl, rmt, 0, 0, f, 0));

    ENDS(ERR_TCQ_STADD, ERR_MRQ_LCL_STADD, utofu_put(a, b_id, never, rmt, 8, 0, f, 0));
    ENDS(ERR_TCQ_STADD, ERR_MRQ_LCL_STADD, utofu_get(a, b_id, never, rmt, 8, 0, f, 0));
    ENDS(ERR_TCQ_STADD, ERR_MRQ_LCL_STADD, utofu_get(a, b_id, mine_ro, rmt, 8, 0, f, 0));
    ENDS(ERR_TCQ_LENGTH, ERR_MRQ_LCL_LENGTH, utofu_put(a, b_id, lcl + PAGE - 1, rmt, 2, 0, f, 0));
    ENDS(ERR_TCQ_LENGTH, ERR_MRQ_LCL_LENGTH, utofu_get(a, b_id, lcl + PAGE, rmt, 1, 0, f, 0));

    ENDS(SUCCESS, ERR_MRQ_RMT_STADD, utofu_put(a, b_id, lcl, never, 8, 0, f, 0));
    ENDS(SUCCESS, ERR_MRQ_RMT_STADD, utofu_put(a, b_id, lcl, theirs_ro, 8, 0, f, 0));
    ENDS(SUCCESS, ERR_MRQ_RMT_STADD, utofu_get(a, b_id, lcl, never, 8, 0, f, 0));
    ENDS(SUCCESS, ERR_MRQ_RMT_STADD,
         utofu_put_piggyback(a, b_id, mine, never, 32, 0, f, 0));
    ENDS(SUCCESS, ERR_MRQ_RMT_STADD, utofu_put_piggyback8(a, b_id, 1, never, 8, 0, f, 0));
    ENDS(SUCCESS, ERR_MRQ_RMT_STADD,
         utofu_armw4(a, b_id, UTOFU_ARMW_OP_ADD, 1, rmt + 2, 0, f, 0));
    ENDS(SUCCESS, ERR_MRQ_RMT_STADD,
         utofu_armw8(a, b_id, UTOFU_ARMW_OP_OR, 1, rmt + 4, 0, f, 0));
    ENDS(SUCCESS, ERR_MRQ_RMT_STADD, utofu_cswap4(a, b_id, 1, 2, theirs_ro, 0, f, 0));
    ENDS(SUCCESS, ERR_MRQ_RMT_STADD, utofu_cswap8(a, b_id, 1, 2, never, 0, f, 0));
    ENDS(SUCCESS, ERR_MRQ_RMT_LENGTH, utofu_put(a, b_id, lcl, rmt + PAGE - 1, 2, 0, f, 0));
    ENDS(SUCCESS, ERR_MRQ_RMT_LENGTH, utofu_get(a, b_id, lcl, rmt + PAGE, 1, 0, f, 0));
    ENDS(SUCCESS, ERR_MRQ_RMT_LENGTH,
         utofu_armw8(a, b_id, UTOFU_ARMW_OP_ADD, 1, rmt + PAGE, 0, f, 0));

#ifndef ONE_PROCESS
    faults();
#endif

    /* No receiver: no such node, an interface and a queue that are not in use. */
    uint8_t coords[6] = {7, 0, 0, 1, 0, 0};
    utofu_vcq_id_t nobody;
    OK(utofu_construct_vcq_id(coords, 0, 0, 0, &nobody));
    /* Such a node is outside of the subnet of a job, whose commands are refused earlier. */
    if (!getenv("TOFU_SUBNET")) {
        ENDS(SUCCESS, ERR_MRQ_PEER, utofu_put(a, nobody, lcl, rmt, 8, 0, f, 0));
        ENDS(SUCCESS, ERR_MRQ_PEER, utofu_get(a, nobody, lcl, rmt, 8, 0, f, 0));
        ENDS(SUCCESS, ERR_MRQ_PEER, utofu_cswap4(a, nobody, 1, 2, rmt, 0, f, 0));
    }
    coords[0] = 0;
    OK(utofu_construct_vcq_id(coords, 5, 0, 0, &nobody));
    ENDS(SUCCESS, ERR_MRQ_PEER, utofu_put(a, nobody, lcl, rmt, 8, 0, f, 0));
    ENDS(SUCCESS, ERR_MRQ_PEER, utofu_put(a, b_id | 9, lcl, rmt, 8, 0, f, 0));

    /* Errors that only the device detects have no notice. */
    ENDS_UNTOLD(ERR_TCQ_LENGTH, utofu_put(a, b_id, lcl, rmt, 8, 256, f, 0));
    ENDS_UNTOLD(ERR_TCQ_LENGTH, utofu_cswap8(a, b_id, 1, 2, rmt, ~0ULL, f, 0));
    OK(utofu_prepare_put(a, b_id, lcl, rmt, 8, 0, f, desc, &n));
    desc[0] |= 255 << 16;
    ENDS_UNTOLD(ERR_TCQ_DESC, utofu_post_toq(a, desc, n, 0));

    void *cbdata;
    struct utofu_mrq_notice notice;
    CASE(ERR_NOT_FOUND, utofu_poll_tcq, a, 0, &cbdata);
    CASE(ERR_INVALID_FLAGS, utofu_poll_tcq, a, 1, &cbdata);
    CASE(ERR_INVALID_POINTER, utofu_poll_tcq, a, 0, NULL);
    CASE(ERR_INVALID_VCQ_HDL, utofu_poll_tcq, freed, 0, &cbdata);
    CASE(ERR_NOT_FOUND, utofu_poll_mrq, a, 0, &notice);
    CASE(ERR_INVALID_FLAGS, utofu_poll_mrq, a, 1UL << 63, &notice);
    CASE(ERR_INVALID_POINTER, utofu_poll_mrq, a, 0, NULL);
    CASE(ERR_INVALID_VCQ_HDL, utofu_poll_mrq, bad, 0, &notice);
    CASE(SUCCESS, utofu_query_num_unread_tcq, a, &n);
    CASE(ERR_INVALID_POINTER, utofu_query_num_unread_tcq, a, NULL);
    CASE(ERR_INVALID_VCQ_HDL, utofu_query_num_unread_tcq, freed, &n);
    CASE(SUCCESS, utofu_query_num_unread_mrq, a, &n);
    CASE(ERR_INVALID_POINTER, utofu_query_num_unread_mrq, a, NULL);
    CASE(ERR_INVALID_VCQ_HDL, utofu_query_num_unread_mrq, bad, &n);
}

static void interfaces(void)
{
    utofu_tni_id_t *ids;
    struct utofu_onesided_caps *caps;
    struct utofu_barrier_caps *barrier;
    uint8_t coords[6];
    CASE(SUCCESS, utofu_get_onesided_tnis, &ids, &n);
    free(ids);
    CASE(ERR_INVALID_POINTER, utofu_get_onesided_tnis, NULL, &n);
    CASE(ERR_INVALID_POINTER, utofu_get_onesided_tnis, &ids, NULL);
    CASE(SUCCESS, utofu_get_barrier_tnis, &ids, &n);
    free(ids);
    CASE(ERR_INVALID_POINTER, utofu_get_barrier_tnis, NULL, &n);
    CASE(ERR_INVALID_POINTER, utofu_get_barrier_tnis, &ids, NULL);
    CASE(SUCCESS, utofu_query_onesided_caps, 0, &caps);
    CASE(ERR_INVALID_TNI_ID, utofu_query_onesided_caps, 6, &caps);
    CASE(ERR_INVALID_POINTER, utofu_query_onesided_caps, 0, NULL);
    CASE(SUCCESS, utofu_query_barrier_caps, 0, &barrier);
    CASE(ERR_INVALID_TNI_ID, utofu_query_barrier_caps, 6, &barrier);
    CASE(ERR_INVALID_POINTER, utofu_query_barrier_caps, 0, NULL);
    CASE(SUCCESS, utofu_query_my_coords, coords);
    CASE(ERR_INVALID_POINTER, utofu_query_my_coords, NULL);
}

static void vcqs(void)
{
    utofu_vcq_hdl_t made[24], component;
    utofu_vcq_id_t id;
    uint8_t coords[6] = {0}, wrong[6] = {0, 0, 0, 0, 3, 0};
    utofu_tni_id_t tni;
    utofu_cq_id_t cq;
    uint16_t extra;
    CASE(SUCCESS, utofu_create_vcq, 1, 0, &made[0]);
    CASE(ERR_INVALID_POINTER, utofu_create_vcq, 1, 0, NULL);
    CASE(ERR_INVALID_TNI_ID, utofu_create_vcq, 6, 0, &made[1]);
    CASE(ERR_INVALID_TNI_ID, utofu_create_vcq, 65535, 0, &made[1]);
    CASE(ERR_INVALID_FLAGS, utofu_create_vcq, 1, 1UL << 3, &made[1]);
    for (int i = 1; i < 8; i++) OK(utofu_create_vcq(1, 0, &made[i]));
    CASE(ERR_FULL, utofu_create_vcq, 1, 0, &made[8]);
    CASE(SUCCESS, utofu_create_vcq_with_cmp_id, 1, 5, 0, &component);
    CASE(ERR_USED, utofu_create_vcq_with_cmp_id, 1, 5, 0, &made[8]);
    CASE(ERR_INVALID_CMP_ID, utofu_create_vcq_with_cmp_id, 1, 8, 0, &made[8]);
    CASE(ERR_INVALID_TNI_ID, utofu_create_vcq_with_cmp_id, 6, 0, 0, &made[8]);
    CASE(ERR_INVALID_FLAGS, utofu_create_vcq_with_cmp_id, 1, 0, ~0UL, &made[8]);
    CASE(ERR_INVALID_POINTER, utofu_create_vcq_with_cmp_id, 1, 0, 0, NULL);
    /* Exclusive control queues run out, too. */
    int owned = 8, code;
    while ((code = utofu_create_vcq(1, owned & 1 ? UTOFU_VCQ_FLAG_SESSION_MODE
                                                 : UTOFU_VCQ_FLAG_EXCLUSIVE,
                                    &made[owned])) == UTOFU_SUCCESS)
        owned++;
    IS(owned, 18);
    IS(code, UTOFU_ERR_FULL);
    CASE(ERR_FULL, utofu_create_vcq_with_cmp_id, 1, 0, UTOFU_VCQ_FLAG_EXCLUSIVE, &made[18]);
    for (int i = 0; i < owned; i++) OK(utofu_free_vcq(made[i]));
    CASE(SUCCESS, utofu_free_vcq, component);
    CASE(ERR_INVALID_VCQ_HDL, utofu_free_vcq, component);
    CASE(ERR_INVALID_VCQ_HDL, utofu_free_vcq, 0);

    CASE(SUCCESS, utofu_query_vcq_id, a, &id);
    CASE(ERR_INVALID_VCQ_HDL, utofu_query_vcq_id, freed, &id);
    CASE(ERR_INVALID_POINTER, utofu_query_vcq_id, a, NULL);
    CASE(SUCCESS, utofu_construct_vcq_id, coords, 0, 0, 0, &id);
    CASE(ERR_INVALID_COORDS, utofu_construct_vcq_id, wrong, 0, 0, 0, &id);
    CASE(ERR_INVALID_TNI_ID, utofu_construct_vcq_id, coords, 6, 0, 0, &id);
    CASE(ERR_INVALID_CQ_ID, utofu_construct_vcq_id, coords, 0, 12, 0, &id);
    CASE(ERR_INVALID_CMP_ID, utofu_construct_vcq_id, coords, 0, 0, 8, &id);
    CASE(ERR_INVALID_POINTER, utofu_construct_vcq_id, NULL, 0, 0, 0, &id);
    CASE(ERR_INVALID_POINTER, utofu_construct_vcq_id, coords, 0, 0, 0, NULL);
    CASE(SUCCESS, utofu_query_vcq_info, b_id, coords, &tni, &cq, &extra);
    CASE(ERR_INVALID_VCQ_ID, utofu_query_vcq_info, b_id | 1 << 7, coords, &tni, &cq, &extra);
    CASE(ERR_INVALID_POINTER, utofu_query_vcq_info, b_id, NULL, &tni, &cq, &extra);
}

static void paths(void)
{
    uint8_t path[3] = {0, 2, 1}, wrong[3] = {0, 3, 0};
    utofu_path_id_t path_id;
    utofu_vcq_id_t id = b_id, none = 1ULL << 60;
    CASE(SUCCESS, utofu_set_vcq_id_path, &id, path);
    CASE(SUCCESS, utofu_set_vcq_id_path, &id, NULL);
    CASE(ERR_INVALID_PATH, utofu_set_vcq_id_path, &id, wrong);
    CASE(ERR_INVALID_VCQ_ID, utofu_set_vcq_id_path, &none, path);
    CASE(ERR_INVALID_POINTER, utofu_set_vcq_id_path, NULL, path);
    CASE(SUCCESS, utofu_get_path_id, id, path, &path_id);
    CASE(ERR_INVALID_PATH, utofu_get_path_id, id, wrong, &path_id);
    CASE(ERR_INVALID_VCQ_ID, utofu_get_path_id, none, path, &path_id);
    CASE(ERR_INVALID_POINTER, utofu_get_path_id, id, NULL, &path_id);
    CASE(ERR_INVALID_POINTER, utofu_get_path_id, id, path, NULL);
    CASE(SUCCESS, utofu_get_path_coords, id, path_id, path);
    CASE(ERR_INVALID_PATH_ID, utofu_get_path_coords, id, 6, path);
    CASE(ERR_INVALID_PATH_ID, utofu_get_path_coords, id, 255, path);
    CASE(ERR_INVALID_VCQ_ID, utofu_get_path_coords, none, 0, path);
    CASE(ERR_INVALID_POINTER, utofu_get_path_coords, id, 0, NULL);
}

static void memory(void)
{
    utofu_stadd_t stadd, other;
    void *hole = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap((char *)hole + PAGE, PAGE);
    CASE(SUCCESS, utofu_reg_mem, a, mine, PAGE, 0, &stadd);
    CASE(ERR_INVALID_VCQ_HDL, utofu_reg_mem, freed, mine, PAGE, 0, &stadd);
    CASE(ERR_INVALID_POINTER, utofu_reg_mem, a, mine, PAGE, 0, NULL);
    CASE(ERR_INVALID_FLAGS, utofu_reg_mem, a, mine, PAGE, 2, &stadd);
    CASE(ERR_INVALID_ADDRESS, utofu_reg_mem, a, NULL, PAGE, 0, &stadd);
    CASE(ERR_INVALID_ADDRESS, utofu_reg_mem, a, hole, 3 * PAGE, 0, &stadd);
    CASE(ERR_INVALID_ADDRESS, utofu_reg_mem, a, (void *)8, 8, 0, &stadd);
    CASE(ERR_INVALID_SIZE, utofu_reg_mem, a, mine, 0, 0, &stadd);
    CASE(ERR_INVALID_SIZE, utofu_reg_mem, a, mine, SIZE_MAX, 0, &stadd);
    CASE(ERR_INVALID_SIZE, utofu_reg_mem, a, mine, ((size_t)1 << 39) + 1, 0, &stadd);
    size_t size = 0;
    while (utofu_reg_mem(a, mine, ++size, 0, &other) == UTOFU_SUCCESS)
        ;
    /* 2048 tags, of which the test has two. */
    IS(size, 2047);
    CASE(ERR_FULL, utofu_reg_mem, a, mine, size, 0, &other);
    CASE(SUCCESS, utofu_reg_mem, a, mine, PAGE, 0, &other);
    IS(other, stadd);

    CASE(SUCCESS, utofu_reg_mem_with_stag, a, mine, PAGE, 255, 0, &stadd);
    CASE(ERR_USED, utofu_reg_mem_with_stag, a, mine, PAGE, 255, 0, &other);
    CASE(ERR_INVALID_STAG, utofu_reg_mem_with_stag, a, mine, PAGE, 256, 0, &other);
    CASE(ERR_INVALID_STAG, utofu_reg_mem_with_stag, a, mine, PAGE, ~0U, 0, &other);
    CASE(ERR_INVALID_VCQ_HDL, utofu_reg_mem_with_stag, freed, mine, PAGE, 0, 0, &other);
    CASE(ERR_INVALID_POINTER, utofu_reg_mem_with_stag, a, mine, PAGE, 0, 0, NULL);
    CASE(ERR_INVALID_FLAGS, utofu_reg_mem_with_stag, a, mine, PAGE, 0, 2, &other);
    CASE(ERR_INVALID_ADDRESS, utofu_reg_mem_with_stag, a, NULL, PAGE, 0, 0, &other);
    CASE(ERR_INVALID_ADDRESS, utofu_reg_mem_with_stag, a, hole, PAGE + 1, 0, 0, &other);
    CASE(ERR_INVALID_SIZE, utofu_reg_mem_with_stag, a, mine, 0, 0, 0, &other);
    CASE(SUCCESS, utofu_query_stadd, b_id, 0, &other);
    CASE(ERR_INVALID_STAG, utofu_query_stadd, b_id, 256, &other);
    CASE(ERR_INVALID_VCQ_ID, utofu_query_stadd, ~0ULL, 0, &other);
    CASE(ERR_INVALID_POINTER, utofu_query_stadd, b_id, 0, NULL);
    CASE(ERR_INVALID_FLAGS, utofu_dereg_mem, a, stadd, 1);
    CASE(ERR_INVALID_VCQ_HDL, utofu_dereg_mem, freed, stadd, 0);
    CASE(ERR_INVALID_STADD, utofu_dereg_mem, b, stadd, 0);
    CASE(SUCCESS, utofu_dereg_mem, a, stadd, 0);
    CASE(ERR_INVALID_STADD, utofu_dereg_mem, a, stadd, 0);
    CASE(ERR_INVALID_STADD, utofu_dereg_mem, a, BIT63, 0);

#ifndef ONE_PROCESS
    /* More than the device has addresses for: no memory is used, if the system permits that. A
     * kernel driver would have to pin it. */
    const size_t half = (size_t)1 << 39;
    void *big = mmap(NULL, half, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (big == MAP_FAILED) {
        fprintf(stderr, "SKIP OUT_OF_RESOURCE: no addresses\n");
        puts("utofu_reg_mem ERR_OUT_OF_RESOURCE\nutofu_reg_mem_with_stag ERR_OUT_OF_RESOURCE");
        return;
    }
    OK(utofu_reg_mem_with_stag(a, big, half, 1, 0, &stadd));
    CASE(ERR_OUT_OF_RESOURCE, utofu_reg_mem_with_stag, a, big, half, 2, 0, &other);
    CASE(ERR_OUT_OF_RESOURCE, utofu_reg_mem, a, big, half, UTOFU_REG_MEM_FLAG_READ_ONLY, &other);
    OK(utofu_dereg_mem(a, stadd, 0));
#endif
}

/* Links of a gate with a gate of the other process, or with itself alone. */
static struct utofu_vbg_setting meet(utofu_vbg_id_t own, utofu_vbg_id_t peer)
{
    struct utofu_vbg_setting setting = {own, own, peer, own, peer, {UTOFU_PATH_COORD_NULL, 0, 0}};
    return setting;
}

static int over(int (*poll)(utofu_vbg_id_t, unsigned long), utofu_vbg_id_t id)
{
    struct timespec start;
    clock_gettime(CLOCK_MONOTONIC, &start);
    int code;
    while ((code = poll(id, 0)) == UTOFU_ERR_NOT_COMPLETED && !late(&start))
        ;
    return code;
}

static int over_uint64(utofu_vbg_id_t id, unsigned long flags)
{
    uint64_t data[6];
    return utofu_poll_reduce_uint64(id, flags, data);
}

static int over_double(utofu_vbg_id_t id, unsigned long flags)
{
    double data[3];
    return utofu_poll_reduce_double(id, flags, data);
}

static void gates(void)
{
    const utofu_vbg_id_t none = UTOFU_VBG_ID_NULL, never = 48;
    utofu_vbg_id_t ids[40], id;
    uint8_t coords[6];
    utofu_tni_id_t tni;
    utofu_bg_id_t bg;
    uint16_t extra;
    CASE(SUCCESS, utofu_alloc_vbg, 2, 2, UTOFU_VBG_FLAG_THREAD_SAFE, ids);
    CASE(ERR_INVALID_POINTER, utofu_alloc_vbg, 2, 2, 0, NULL);
    CASE(ERR_INVALID_TNI_ID, utofu_alloc_vbg, 6, 2, 0, &id);
    CASE(ERR_INVALID_FLAGS, utofu_alloc_vbg, 2, 2, 2, &id);
    CASE(ERR_INVALID_NUMBER, utofu_alloc_vbg, 2, 0, 0, &id);
    CASE(ERR_FULL, utofu_alloc_vbg, 2, 33, 0, ids + 2);

    struct utofu_vbg_setting own = meet(ids[0], none), wrong = own;
    CASE(ERR_INVALID_POINTER, utofu_set_vbg, NULL, 1);
    CASE(ERR_INVALID_NUMBER, utofu_set_vbg, &own, 0);
    CASE(ERR_INVALID_NUMBER, utofu_set_vbg, &own, 289);
    wrong.vbg_id = never;
    CASE(ERR_INVALID_VBG_ID, utofu_set_vbg, &wrong, 1);
    wrong = own;
    wrong.dst_rmt_vbg_id = ids[0];
    wrong.dst_path_coords[0] = 2;
    CASE(ERR_INVALID_PATH, utofu_set_vbg, &wrong, 1);
    wrong = own;
    wrong.src_lcl_vbg_id = none;
    wrong.dst_lcl_vbg_id = none;
    CASE(ERR_INVALID_ARG, utofu_set_vbg, &wrong, 1);
    CASE(SUCCESS, utofu_set_vbg, &own, 1);
    CASE(ERR_USED, utofu_set_vbg, &own, 1);

    CASE(SUCCESS, utofu_query_vbg_info, ids[0], coords, &tni, &bg, &extra);
    CASE(ERR_INVALID_VBG_ID, utofu_query_vbg_info, none, coords, &tni, &bg, &extra);
    CASE(ERR_INVALID_POINTER, utofu_query_vbg_info, ids[0], NULL, &tni, &bg, &extra);

    CASE(ERR_INVALID_POINTER, utofu_free_vbg, NULL, 2);
    CASE(ERR_INVALID_NUMBER, utofu_free_vbg, ids, 0);
    id = never;
    CASE(ERR_INVALID_VBG_ID, utofu_free_vbg, &id, 1);
    CASE(SUCCESS, utofu_free_vbg, ids, 2);
    CASE(ERR_INVALID_VBG_ID, utofu_free_vbg, ids, 2);
}

static void barriers(void)
{
    const utofu_vbg_id_t none = UTOFU_VBG_ID_NULL;
    const enum utofu_reduce_op sum = UTOFU_REDUCE_OP_SUM, fp = UTOFU_REDUCE_OP_BFPSUM;
    utofu_vbg_id_t id, peer;
    uint64_t data[8] = {0};
    double doubles[4] = {0};
    struct utofu_vbg_setting setting;
    OK(tofu_inproc_select(1));
    OK(utofu_alloc_vbg(1, 1, 0, &peer));
    OK(tofu_inproc_select(0));
    OK(utofu_alloc_vbg(1, 1, 0, &id));
    CASE(ERR_NOT_AVAILABLE, utofu_barrier, id, 0);
    CASE(ERR_NOT_AVAILABLE, utofu_poll_barrier, id, 0);
    CASE(ERR_NOT_AVAILABLE, utofu_reduce_uint64, id, sum, data, 6, 0);
    CASE(ERR_NOT_AVAILABLE, utofu_poll_reduce_uint64, id, 0, data);
    CASE(ERR_NOT_AVAILABLE, utofu_reduce_double, id, fp, doubles, 3, 0);
    CASE(ERR_NOT_AVAILABLE, utofu_poll_reduce_double, id, 0, doubles);
    setting = meet(id, peer);
    OK(utofu_set_vbg(&setting, 1));
    OK(tofu_inproc_select(1));
    setting = meet(peer, id);
    OK(utofu_set_vbg(&setting, 1));
    OK(tofu_inproc_select(0));

    CASE(ERR_NOT_PROCESSED, utofu_poll_barrier, id, 0);
    CASE(ERR_NOT_PROCESSED, utofu_poll_reduce_uint64, id, 0, data);
    CASE(ERR_NOT_PROCESSED, utofu_poll_reduce_double, id, 0, doubles);
    CASE(ERR_INVALID_VBG_ID, utofu_barrier, none, 0);
    CASE(ERR_INVALID_FLAGS, utofu_barrier, id, 1);
    CASE(ERR_INVALID_VBG_ID, utofu_poll_barrier, none, 0);
    CASE(ERR_INVALID_FLAGS, utofu_poll_barrier, id, 1);
    CASE(ERR_INVALID_VBG_ID, utofu_reduce_uint64, none, sum, data, 6, 0);
    CASE(ERR_INVALID_FLAGS, utofu_reduce_uint64, id, sum, data, 6, 1);
    CASE(ERR_INVALID_OP, utofu_reduce_uint64, id, fp, data, 3, 0);
    CASE(ERR_INVALID_NUMBER, utofu_reduce_uint64, id, sum, data, 7, 0);
    CASE(ERR_INVALID_POINTER, utofu_reduce_uint64, id, sum, NULL, 6, 0);
    CASE(ERR_INVALID_VBG_ID, utofu_poll_reduce_uint64, none, 0, data);
    CASE(ERR_INVALID_FLAGS, utofu_poll_reduce_uint64, id, 1, data);
    CASE(ERR_INVALID_POINTER, utofu_poll_reduce_uint64, id, 0, NULL);
    CASE(ERR_INVALID_VBG_ID, utofu_reduce_double, none, fp, doubles, 3, 0);
    CASE(ERR_INVALID_FLAGS, utofu_reduce_double, id, fp, doubles, 3, 1);
    CASE(ERR_INVALID_OP, utofu_reduce_double, id, sum, doubles, 3, 0);
    CASE(ERR_INVALID_NUMBER, utofu_reduce_double, id, fp, doubles, 4, 0);
    CASE(ERR_INVALID_POINTER, utofu_reduce_double, id, fp, NULL, 3, 0);
    CASE(ERR_INVALID_VBG_ID, utofu_poll_reduce_double, none, 0, doubles);
    CASE(ERR_INVALID_FLAGS, utofu_poll_reduce_double, id, 1, doubles);
    CASE(ERR_INVALID_POINTER, utofu_poll_reduce_double, id, 0, NULL);

    /* Rounds that the peer is late for, and for which it then starts something else. */
    for (int kind = 0; kind < 3; kind++) {
        switch (kind) {
        case 0:
            CASE(SUCCESS, utofu_barrier, id, 0);
            CASE(ERR_NOT_COMPLETED, utofu_poll_barrier, id, 0);
            break;
        case 1:
            CASE(SUCCESS, utofu_reduce_uint64, id, sum, data, 6, 0);
            CASE(ERR_NOT_COMPLETED, utofu_poll_reduce_uint64, id, 0, data);
            break;
        default:
            CASE(SUCCESS, utofu_reduce_double, id, fp, doubles, 3, 0);
            CASE(ERR_NOT_COMPLETED, utofu_poll_reduce_double, id, 0, doubles);
        }
        CASE(ERR_BUSY, utofu_barrier, id, 0);
        CASE(ERR_BUSY, utofu_reduce_uint64, id, sum, data, 6, 0);
        CASE(ERR_BUSY, utofu_reduce_double, id, fp, doubles, 3, 0);
        OK(tofu_inproc_select(1));
        OK(utofu_reduce_uint64(peer, UTOFU_REDUCE_OP_MAX, data, 1, 0));
        IS(over(over_uint64, peer), UTOFU_ERR_BARRIER_MISMATCH);
        OK(tofu_inproc_select(0));
        switch (kind) {
        case 0: OVER(ERR_BARRIER_MISMATCH, utofu_poll_barrier, id, 0); break;
        case 1: OVER(ERR_BARRIER_MISMATCH, utofu_poll_reduce_uint64, id, 0, data); break;
        default: OVER(ERR_BARRIER_MISMATCH, utofu_poll_reduce_double, id, 0, doubles);
        }
    }

    /* With the peer. */
    for (int kind = 0; kind < 3; kind++) {
        for (unsigned process = 0; process < 2; process++) {
            utofu_vbg_id_t own = process ? peer : id;
            OK(tofu_inproc_select(process));
            if (kind == 0) OK(utofu_barrier(own, 0));
            if (kind == 1) OK(utofu_reduce_uint64(own, sum, data, 6, 0));
            if (kind == 2) OK(utofu_reduce_double(own, fp, doubles, 3, 0));
        }
        if (kind == 0) OK(over(utofu_poll_barrier, peer));
        if (kind == 1) OK(over(over_uint64, peer));
        if (kind == 2) OK(over(over_double, peer));
        OK(tofu_inproc_select(0));
        if (kind == 0) OVER(SUCCESS, utofu_poll_barrier, id, 0);
        if (kind == 1) OVER(SUCCESS, utofu_poll_reduce_uint64, id, 0, data);
        if (kind == 2) OVER(SUCCESS, utofu_poll_reduce_double, id, 0, doubles);
    }
    OK(utofu_free_vbg(&id, 1));

    /* By a path that this machine does not have. */
    for (int kind = 0; kind < 3; kind++) {
        OK(utofu_alloc_vbg(1, 1, 0, &id));
        setting = meet(id, peer);
        memcpy(setting.dst_path_coords, (uint8_t[3]){0, 2, 0}, 3);
        OK(utofu_set_vbg(&setting, 1));
        switch (kind) {
        case 0:
            OK(utofu_barrier(id, 0));
            OVER(ERR_BARRIER_OTHER, utofu_poll_barrier, id, 0);
            break;
        case 1:
            OK(utofu_reduce_uint64(id, sum, data, 6, 0));
            OVER(ERR_BARRIER_OTHER, utofu_poll_reduce_uint64, id, 0, data);
            break;
        default:
            OK(utofu_reduce_double(id, fp, doubles, 3, 0));
            OVER(ERR_BARRIER_OTHER, utofu_poll_reduce_double, id, 0, doubles);
        }
        IS(utofu_barrier(id, 0), UTOFU_ERR_BUSY);
        OK(utofu_free_vbg(&id, 1));
    }
}

/* With 36 processes on a node each has one interface. */
static void many_processes(void)
{
    utofu_tni_id_t *ids;
    utofu_vcq_hdl_t vcq;
    for (unsigned process = 0; process < 48; process++) {
        OK(tofu_inproc_select(process));
        OK(utofu_get_onesided_tnis(&ids, &n));
        IS(n, 1);
        OK(utofu_create_vcq(ids[0], 0, &vcq));
        utofu_tni_id_t other = (utofu_tni_id_t)((ids[0] + 1) % 6);
        CASE(ERR_NOT_AVAILABLE, utofu_create_vcq, other, 0, &vcq);
        CASE(ERR_NOT_AVAILABLE, utofu_create_vcq_with_cmp_id, other, 0, 0, &vcq);
        utofu_vbg_id_t gate;
        CASE(ERR_NOT_AVAILABLE, utofu_alloc_vbg, other, 1, 0, &gate);
        free(ids);
    }
}

/* Without a device: functions that need none work nevertheless. */
static void no_device(void)
{
    utofu_tni_id_t *ids;
    utofu_vcq_hdl_t vcq;
    utofu_vcq_id_t id;
    utofu_stadd_t stadd;
    uint8_t coords[6] = {0}, path[3] = {0};
    CASE(ERR_NOT_AVAILABLE, utofu_get_onesided_tnis, &ids, &n);
    CASE(ERR_NOT_AVAILABLE, utofu_get_barrier_tnis, &ids, &n);
    CASE(ERR_NOT_AVAILABLE, utofu_query_my_coords, coords);
    CASE(ERR_NOT_AVAILABLE, utofu_create_vcq, 0, 0, &vcq);
    CASE(ERR_NOT_AVAILABLE, utofu_create_vcq_with_cmp_id, 0, 0, 0, &vcq);
    utofu_vbg_id_t gate = 0;
    struct utofu_vbg_setting setting = {0, 0, 0, 0, 0, {0, 0, 0}};
    CASE(ERR_NOT_AVAILABLE, utofu_alloc_vbg, 0, 1, 0, &gate);
    CASE(ERR_NOT_AVAILABLE, utofu_set_vbg, &setting, 1);
    CASE(ERR_NOT_AVAILABLE, utofu_free_vbg, &gate, 1);
    OK(utofu_construct_vcq_id(coords, 0, 0, 0, &id));
    OK(utofu_set_vcq_id_path(&id, path));
    OK(utofu_query_stadd(id, 0, &stadd));
    IS(utofu_nop(16, 0, NULL), UTOFU_ERR_INVALID_VCQ_HDL);
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        if (strcmp(argv[1], "many-processes") == 0) many_processes();
        else no_device();
        return 0;
    }
    OK(tofu_inproc_select(1));
    OK(utofu_create_vcq(0, 0, &b));
    OK(utofu_query_vcq_id(b, &b_id));
    OK(utofu_reg_mem(b, theirs, sizeof theirs, 0, &rmt));
    OK(tofu_inproc_select(0));
    OK(utofu_create_vcq(0, 0, &freed));
    OK(utofu_free_vcq(freed));
    OK(utofu_create_vcq(0, 0, &a));
    OK(utofu_reg_mem(a, mine, sizeof mine, 0, &lcl));
    bad = a ^ 16;
    interfaces();
    vcqs();
    paths();
    commands();
    sizes();
    posting();
    ends();
    gates();
    barriers();
    memory();
    return 0;
}

/*
 * The capabilities of a generation's interfaces, as programs query them, and the results of calls
 * that it does not support: a line for each, which the caller compares with the expected lines.
 * Then the features of every generation, between two processes of a machine in this process: Put,
 * Get, data in commands, parts over all interfaces, barriers and sums.
 */
#include "test.h"

enum { TNIS = 6, SIZE = 60000 };

static utofu_vcq_hdl_t a, b, vcqs[2][TNIS];
static utofu_vcq_id_t b_id;
static uint8_t mine[SIZE] __attribute__((aligned(4096)));
static uint8_t theirs[SIZE] __attribute__((aligned(4096)));
static utofu_stadd_t lcl[TNIS], rmt[TNIS];

static const char *name(int code)
{
    switch (code) {
    case UTOFU_SUCCESS: return "SUCCESS";
    case UTOFU_ERR_FULL: return "FULL";
    case UTOFU_ERR_NOT_AVAILABLE: return "NOT_AVAILABLE";
    case UTOFU_ERR_NOT_SUPPORTED: return "NOT_SUPPORTED";
    case UTOFU_ERR_INVALID_TNI_ID: return "INVALID_TNI_ID";
    case UTOFU_ERR_INVALID_NUMBER: return "INVALID_NUMBER";
    default: return "another code";
    }
}

static void list(const char *what, int (*get)(utofu_tni_id_t **, size_t *))
{
    utofu_tni_id_t *tnis;
    size_t count;
    OK(get(&tnis, &count));
    printf("%s", what);
    for (size_t i = 0; i < count; i++) printf(" %u", tnis[i]);
    printf("\n");
    free(tnis);
}

/* Queries each interface that some generation has; returns how many this one has. */
static size_t interfaces(void)
{
    size_t there = 0;
    int major, minor;
    utofu_query_tofu_version(&major, &minor);
    printf("version %d.%d\n", major, minor);
    list("one-sided", utofu_get_onesided_tnis);
    list("barrier", utofu_get_barrier_tnis);
    for (utofu_tni_id_t tni = 0; tni < TNIS; tni++) {
        struct utofu_onesided_caps *onesided;
        struct utofu_barrier_caps *barrier;
        utofu_vcq_hdl_t vcq;
        utofu_vbg_id_t gates[2];
        int code = utofu_query_onesided_caps(tni, &onesided);
        printf("TNI %u: %s", tni, name(code));
        if (code == UTOFU_SUCCESS)
            printf(" %#lx %#lx %zu", onesided->flags, onesided->armw_ops,
                   onesided->max_piggyback_size);
        code = utofu_query_barrier_caps(tni, &barrier);
        printf(", barriers %s", name(code));
        if (code == UTOFU_SUCCESS)
            printf(" %#lx %zu %zu", barrier->reduce_ops, barrier->max_uint64_reduction,
                   barrier->max_double_reduction);
        code = utofu_create_vcq(tni, 0, &vcq);
        printf(", VCQ %s", name(code));
        if (code == UTOFU_SUCCESS) {
            there++;
            OK(utofu_free_vcq(vcq));
        }
        code = utofu_alloc_vbg(tni, 2, 0, gates);
        printf(", gates %s\n", name(code));
        if (code == UTOFU_SUCCESS) OK(utofu_free_vbg(gates, 2));
    }
    return there;
}

static void open_all(size_t tnis)
{
    for (int process = 0; process < 2; process++) {
        OK(tofu_inproc_select(process));
        for (size_t t = 0; t < tnis; t++) {
            OK(utofu_create_vcq(t, 0, &vcqs[process][t]));
            OK(utofu_reg_mem(vcqs[process][t], process ? theirs : mine, SIZE, 0,
                             process ? &rmt[t] : &lcl[t]));
        }
    }
    OK(tofu_inproc_select(0));
    a = vcqs[0][0];
    b = vcqs[1][0];
    OK(utofu_query_vcq_id(b, &b_id));
}

/* A command that the generation may lack; it is waited for if it was posted. */
static void may_lack(const char *what, int code)
{
    void *cbdata;
    printf("%s %s\n", what, name(code));
    if (code == UTOFU_SUCCESS && !strstr(what, "prepare")) OK(wait_tcq(a, &cbdata));
}

static void lacking(void)
{
    uint64_t desc[8];
    size_t size;
    utofu_vcq_hdl_t session;
    int code = utofu_create_vcq(1, UTOFU_VCQ_FLAG_SESSION_MODE, &session);
    printf("session %s\n", name(code));
    if (code == UTOFU_SUCCESS) OK(utofu_free_vcq(session));
    const enum utofu_armw_op add = UTOFU_ARMW_OP_ADD;
    may_lack("armw4", utofu_armw4(a, b_id, add, 1, rmt[0], 0, TCQ, NULL));
    may_lack("armw8", utofu_armw8(a, b_id, add, 1, rmt[0], 0, TCQ, NULL));
    may_lack("cswap4", utofu_cswap4(a, b_id, 1, 2, rmt[0], 0, TCQ, NULL));
    may_lack("cswap8", utofu_cswap8(a, b_id, 1, 2, rmt[0], 0, TCQ, NULL));
    may_lack("prepare_armw4", utofu_prepare_armw4(a, b_id, add, 1, rmt[0], 0, 0, desc, &size));
    may_lack("prepare_armw8", utofu_prepare_armw8(a, b_id, add, 1, rmt[0], 0, 0, desc, &size));
    may_lack("prepare_cswap4", utofu_prepare_cswap4(a, b_id, 1, 2, rmt[0], 0, 0, desc, &size));
    may_lack("prepare_cswap8", utofu_prepare_cswap8(a, b_id, 1, 2, rmt[0], 0, 0, desc, &size));
}

static void onesided(size_t tnis)
{
    void *cbdata;
    for (int i = 0; i < SIZE; i++) mine[i] = (uint8_t)(i * 7 + i / 256);
    memset(theirs, 0, SIZE);
    /* A part over each interface. */
    const size_t part = SIZE / tnis;
    for (size_t t = 0; t < tnis; t++) {
        utofu_vcq_id_t id;
        OK(utofu_query_vcq_id(vcqs[1][t], &id));
        OK(utofu_put(vcqs[0][t], id, lcl[t] + t * part, rmt[t] + t * part, part, 0, TCQ, NULL));
    }
    for (size_t t = 0; t < tnis; t++) OK(wait_tcq(vcqs[0][t], &cbdata));
    /* Data that a Get returns has arrived before. */
    uint8_t *back = calloc(SIZE, 1);
    utofu_stadd_t there;
    OK(utofu_reg_mem(a, back, SIZE, 0, &there));
    OK(utofu_get(a, b_id, there, rmt[0], SIZE, 0, TCQ, NULL));
    OK(wait_tcq(a, &cbdata));
    IS(memcmp(mine, theirs, SIZE), 0);
    IS(memcmp(mine, back, SIZE), 0);
    OK(utofu_dereg_mem(a, there, 0));
    free(back);
    uint8_t data[32];
    struct utofu_mrq_notice notice;
    memset(data, 0x5a, sizeof data);
    OK(utofu_put_piggyback8(a, b_id, 0x0807060504030201, rmt[0], 8, 0, TCQ | LOCAL, NULL));
    OK(wait_tcq(a, &cbdata));
    OK(wait_mrq(a, &notice));
    OK(utofu_put_piggyback(a, b_id, data, rmt[0] + 100, 32, 0, TCQ | LOCAL, NULL));
    OK(wait_tcq(a, &cbdata));
    OK(wait_mrq(a, &notice));
    for (int i = 0; i < 8; i++) IS(theirs[i], i + 1);
    IS(memcmp(theirs + 100, data, 32), 0);
    printf("one-sided works over %zu TNIs\n", tnis);
}

/* Two members, each with a start and end gate and a relay, on TNI 0. */
static void barriers(void)
{
    enum { ROUNDS = 50, MOST = 7 };
    struct utofu_barrier_caps *caps;
    utofu_vbg_id_t gates[2][2];
    uint64_t data[2][MOST] = {{0}};
    const utofu_vbg_id_t none = UTOFU_VBG_ID_NULL;
    OK(utofu_query_barrier_caps(0, &caps));
    for (int m = 0; m < 2; m++) {
        OK(tofu_inproc_select(m));
        OK(utofu_alloc_vbg(0, 2, 0, gates[m]));
    }
    for (int m = 0; m < 2; m++) {
        utofu_vbg_id_t *own = gates[m], *other = gates[!m];
        struct utofu_vbg_setting settings[2] = {
            {own[0], own[1], none, own[1], other[1], {UTOFU_PATH_COORD_NULL, 9, 9}},
            {own[1], own[0], other[0], own[0], none, {UTOFU_PATH_COORD_NULL, 9, 9}},
        };
        OK(tofu_inproc_select(m));
        OK(utofu_set_vbg(settings, 2));
    }
    const size_t most = caps->max_uint64_reduction;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        struct timespec start;
        clock_gettime(CLOCK_MONOTONIC, &start);
        for (int m = 0; m < 2; m++) {
            OK(tofu_inproc_select(m));
            for (size_t i = 0; i < most; i++) data[m][i] = round * (m + 1) + i;
            OK(round % 2 ? utofu_reduce_uint64(gates[m][0], UTOFU_REDUCE_OP_SUM, data[m], most, 0)
                         : utofu_barrier(gates[m][0], 0));
        }
        for (int m = 0; m < 2; m++) {
            int code;
            OK(tofu_inproc_select(m));
            do code = round % 2 ? utofu_poll_reduce_uint64(gates[m][0], 0, data[m])
                                : utofu_poll_barrier(gates[m][0], 0);
            while (code == UTOFU_ERR_NOT_COMPLETED && !late(&start));
            OK(code);
            for (size_t i = 0; round % 2 && i < most; i++) IS(data[m][i], round * 3 + 2 * i);
        }
    }
    OK(tofu_inproc_select(0));
    const int pair = utofu_reduce_uint64(gates[0][0], UTOFU_REDUCE_OP_MAXLOC, data[0], 2, 0);
    printf("MAXLOC %s\n", name(pair));
    if (pair == UTOFU_SUCCESS) {
        struct timespec start;
        clock_gettime(CLOCK_MONOTONIC, &start);
        OK(tofu_inproc_select(1));
        OK(utofu_reduce_uint64(gates[1][0], UTOFU_REDUCE_OP_MAXLOC, data[1], 2, 0));
        for (int m = 0; m < 2; m++) {
            int code;
            OK(tofu_inproc_select(m));
            while ((code = utofu_poll_reduce_uint64(gates[m][0], 0, data[m])) ==
                       UTOFU_ERR_NOT_COMPLETED && !late(&start))
                ;
            OK(code);
        }
        OK(tofu_inproc_select(0));
    }
    IS(utofu_reduce_uint64(gates[0][0], UTOFU_REDUCE_OP_SUM, data[0], most + 1, 0),
       UTOFU_ERR_INVALID_NUMBER);
    for (int m = 0; m < 2; m++) {
        OK(tofu_inproc_select(m));
        OK(utofu_free_vbg(gates[m], 2));
    }
    OK(tofu_inproc_select(0));
    printf("barriers work with %zu elements\n", most);
}

int main(void)
{
    const size_t tnis = interfaces();
    open_all(tnis);
    lacking();
    onesided(tnis);
    barriers();
    for (size_t t = 0; t < tnis; t++)
        for (int process = 0; process < 2; process++) OK(utofu_free_vcq(vcqs[process][t]));
    return 0;
}

/*
 * Forks: a child can use nothing of its parent's, and harms nothing of it, whatever it calls and
 * however it ends. What it creates itself is its own: with an argument, the code that it gets when
 * it creates a VCQ (TOFU_SHAPE=1x1x1x2x1x1).
 */
#include "test.h"

#include <stdint.h>
#include <sys/wait.h>
#include <tofu_collective.h>
#include <unistd.h>

static uint8_t mine[65536] __attribute__((aligned(65536)));
static uint8_t theirs[65536] __attribute__((aligned(65536)));
static utofu_vcq_hdl_t a, b;
static utofu_vcq_id_t b_id;
static utofu_stadd_t lcl, rmt;
static utofu_vbg_id_t gates[1];
static tofu_coll_t group;

#define NONE(expr) IS(expr, UTOFU_ERR_NOT_AVAILABLE)

static int alone(void *unused, const void *own, size_t size, void *all)
{
    (void)unused;
    memcpy(all, own, size);
    return 0;
}

static void commands(void)
{
    uint64_t desc[64], word[1] = {0};
    size_t size;

    NONE(utofu_put(a, b_id, lcl, rmt, 8, 0, ALL, NULL));
    NONE(utofu_put_gap(a, b_id, lcl, rmt, 8, 0, ALL, 64, 1, NULL));
    NONE(utofu_put_stride(a, b_id, lcl, rmt, 8, 16, 2, 0, ALL, NULL));
    NONE(utofu_put_stride_gap(a, b_id, lcl, rmt, 8, 16, 2, 0, ALL, 64, 1, NULL));
    NONE(utofu_put_piggyback(a, b_id, word, rmt, 8, 0, ALL, NULL));
    NONE(utofu_put_piggyback8(a, b_id, 1, rmt, 8, 0, ALL, NULL));
    NONE(utofu_get(a, b_id, lcl, rmt, 8, 0, ALL, NULL));
    NONE(utofu_get_gap(a, b_id, lcl, rmt, 8, 0, ALL, 64, 1, NULL));
    NONE(utofu_get_stride(a, b_id, lcl, rmt, 8, 16, 2, 0, ALL, NULL));
    NONE(utofu_get_stride_gap(a, b_id, lcl, rmt, 8, 16, 2, 0, ALL, 64, 1, NULL));
    NONE(utofu_armw4(a, b_id, UTOFU_ARMW_OP_ADD, 1, rmt, 0, ALL, NULL));
    NONE(utofu_armw8(a, b_id, UTOFU_ARMW_OP_ADD, 1, rmt, 0, ALL, NULL));
    NONE(utofu_cswap4(a, b_id, 0, 1, rmt, 0, ALL, NULL));
    NONE(utofu_cswap8(a, b_id, 0, 1, rmt, 0, ALL, NULL));
    NONE(utofu_nop(a, TCQ, NULL));
    NONE(utofu_prepare_put(a, b_id, lcl, rmt, 8, 0, ALL, desc, &size));
    NONE(utofu_prepare_get(a, b_id, lcl, rmt, 8, 0, ALL, desc, &size));
    NONE(utofu_prepare_nop(a, TCQ, desc, &size));
    NONE(utofu_post_toq(a, desc, 32, NULL));
}

static void use_all(void)
{
    struct utofu_mrq_notice notice;
    struct utofu_vbg_setting setting = {gates[0], UTOFU_VBG_ID_NULL, gates[0], UTOFU_VBG_ID_NULL,
                                        gates[0], {0, 0, 0}};
    utofu_stadd_t stadd;
    utofu_vcq_id_t id;
    uint64_t word = 1;
    double number = 1;
    size_t count;
    void *cbdata;

    commands();
    NONE(utofu_poll_tcq(a, 0, &cbdata));
    NONE(utofu_poll_mrq(a, 0, &notice));
    NONE(utofu_poll_mrq(b, 0, NULL));
    NONE(utofu_query_num_unread_tcq(a, &count));
    NONE(utofu_query_num_unread_mrq(a, &count));
    NONE(utofu_query_vcq_id(a, &id));
    NONE(utofu_reg_mem(a, mine, 4096, 0, &stadd));
    NONE(utofu_reg_mem_with_stag(a, mine, 4096, 12, 0, &stadd));
    NONE(utofu_dereg_mem(a, lcl, 0));
    NONE(utofu_dereg_mem(b, rmt, 0));
    NONE(utofu_free_vcq(a));
    NONE(utofu_free_vcq(b));
    NONE(utofu_set_vbg(&setting, 1));
    NONE(utofu_barrier(gates[0], 0));
    NONE(utofu_reduce_uint64(gates[0], UTOFU_REDUCE_OP_MAX, &word, 1, 0));
    NONE(utofu_reduce_double(gates[0], UTOFU_REDUCE_OP_BFPSUM, &number, 1, 0));
    NONE(utofu_poll_barrier(gates[0], 0));
    NONE(utofu_poll_reduce_uint64(gates[0], 0, &word));
    NONE(utofu_poll_reduce_double(gates[0], 0, &number));
    NONE(utofu_free_vbg(gates, 1));
    NONE(tofu_coll_query(group, &(unsigned){0}, gates, &count));
    NONE(tofu_coll_barrier(group));
    NONE(tofu_coll_allreduce_uint64(group, UTOFU_REDUCE_OP_SUM, &word, 1));
    NONE(tofu_coll_allreduce_double(group, &number, 1));
    NONE(tofu_coll_reduce_uint64(group, 0, UTOFU_REDUCE_OP_SUM, &word, 1));
    NONE(tofu_coll_broadcast(group, 0, &word, 1));
    NONE(tofu_coll_free(group));
}

/* A Put of a byte arrives. */
static void put(utofu_vcq_hdl_t vcq, utofu_vcq_id_t to, utofu_stadd_t from, utofu_stadd_t at,
                uint8_t byte)
{
    struct utofu_mrq_notice notice;
    void *cbdata;

    memset(mine, byte, sizeof mine);
    OK(utofu_put(vcq, to, from, at, sizeof mine, 7, TCQ | LOCAL, &cbdata));
    OK(wait_tcq(vcq, &cbdata));
    OK(wait_mrq(vcq, &notice));
    IS(notice.notice_type, UTOFU_MRQ_TYPE_LCL_PUT);
    IS(notice.edata, 7);
    IS(memcmp(mine, theirs, sizeof mine), 0);
}

/* Runs something in a child, which ends as programs do. */
static void in_child(void (*run)(int), int argument)
{
    int status;
    pid_t child = fork();

    if (child == 0) {
        run(argument);
        exit(0);
    }
    IS(waitpid(child, &status, 0), child);
    IS(status, 0);
}

static void use_parents(int unused)
{
    (void)unused;
    use_all();
}

/* A child has queues of its own, if it can have any, and no child of its own uses them. */
static void use_own(int expected)
{
    utofu_vcq_hdl_t parents = a, vcq;
    utofu_stadd_t from, at;
    utofu_vcq_id_t id;

    use_all();
    int code = utofu_create_vcq(0, 0, &vcq);
    IS(code, expected);
    if (code == UTOFU_SUCCESS) {
        OK(utofu_reg_mem(vcq, mine, sizeof mine, 0, &from));
        OK(utofu_reg_mem(vcq, theirs, sizeof theirs, 0, &at));
        OK(utofu_query_vcq_id(vcq, &id));
        put(vcq, id, from, at, 3);
        a = vcq;
        in_child(use_parents, 0);
        put(vcq, id, from, at, 4);
        a = parents;
    }
    NONE(utofu_poll_mrq(parents, 0, NULL));
    NONE(utofu_free_vcq(parents));
    if (code == UTOFU_SUCCESS) OK(utofu_free_vcq(vcq));
}

int main(int argc, char **argv)
{
    static const uint32_t axes[3] = {1, 1, 1};
    uint64_t word = 5;

    if (argc == 1) {
        /* Processes that no launcher has counted take what is free. */
        unsetenv("TOFU_PPN");
        unsetenv("TOFU_LOCAL_RANK");
    }
    OK(tofu_inproc_select(1));
    OK(utofu_create_vcq(0, 0, &b));
    OK(utofu_query_vcq_id(b, &b_id));
    OK(utofu_reg_mem(b, theirs, sizeof theirs, 0, &rmt));
    OK(tofu_inproc_select(0));
    OK(utofu_create_vcq(0, 0, &a));
    OK(utofu_reg_mem(a, mine, sizeof mine, 0, &lcl));
    OK(utofu_alloc_vbg(0, 1, 0, gates));
    OK(tofu_coll_create(0, axes, TOFU_COLL_ANY, 0, alone, NULL, &group));
    put(a, b_id, lcl, rmt, 1);
    in_child(use_parents, 0);
    put(a, b_id, lcl, rmt, 2);
    in_child(use_own, argc > 1 ? atoi(argv[1]) : UTOFU_SUCCESS);
    put(a, b_id, lcl, rmt, 5);
    OK(tofu_coll_allreduce_uint64(group, UTOFU_REDUCE_OP_SUM, &word, 1));
    IS(word, 5);
    OK(tofu_coll_free(group));
    OK(utofu_free_vbg(gates, 1));
    OK(utofu_dereg_mem(a, lcl, 0));
    OK(utofu_free_vcq(a));
    OK(utofu_free_vcq(b));
    puts("ok");
    return 0;
}

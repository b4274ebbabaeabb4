/*
 * Null pointers and garbage to every function: none succeeds where it must not, none crashes,
 * and valid objects stay valid.
 */
#include "test.h"

#include <pthread.h>

static utofu_vcq_hdl_t vcq;
static utofu_vcq_id_t id;

#define BAD(expr)                                                   \
    do {                                                            \
        int code_ = (expr);                                         \
        if (code_ >= 0 || code_ == UTOFU_ERR_FATAL)                 \
            fail(__LINE__, #expr, code_, UTOFU_ERR_INVALID_ARG);    \
    } while (0)
#define NULL_IS_BAD(expr) IS(expr, UTOFU_ERR_INVALID_POINTER)

static void nulls(void)
{
    utofu_tni_id_t *list, tni;
    utofu_cq_id_t cq;
    uint16_t extra;
    size_t n;
    uint8_t coords[6] = {0};
    utofu_vcq_id_t vcq_id;
    utofu_path_id_t path;
    struct utofu_mrq_notice notice;
    void *cbdata;
    (void)cbdata;
    (void)notice;
    NULL_IS_BAD(utofu_get_onesided_tnis(NULL, &n));
    NULL_IS_BAD(utofu_get_onesided_tnis(&list, NULL));
    NULL_IS_BAD(utofu_get_barrier_tnis(NULL, &n));
    NULL_IS_BAD(utofu_get_barrier_tnis(&list, NULL));
    NULL_IS_BAD(utofu_query_onesided_caps(0, NULL));
    NULL_IS_BAD(utofu_query_barrier_caps(0, NULL));
    NULL_IS_BAD(utofu_create_vcq(0, 0, NULL));
    NULL_IS_BAD(utofu_create_vcq_with_cmp_id(0, 0, 0, NULL));
    NULL_IS_BAD(utofu_query_vcq_id(vcq, NULL));
    NULL_IS_BAD(utofu_construct_vcq_id(NULL, 0, 0, 0, &vcq_id));
    NULL_IS_BAD(utofu_construct_vcq_id(coords, 0, 0, 0, NULL));
    NULL_IS_BAD(utofu_query_vcq_info(id, NULL, &tni, &cq, &extra));
    NULL_IS_BAD(utofu_query_vcq_info(id, coords, NULL, &cq, &extra));
    NULL_IS_BAD(utofu_query_vcq_info(id, coords, &tni, NULL, &extra));
    NULL_IS_BAD(utofu_query_vcq_info(id, coords, &tni, &cq, NULL));
    NULL_IS_BAD(utofu_alloc_vbg(0, 1, 0, NULL));
    NULL_IS_BAD(utofu_free_vbg(NULL, 1));
    NULL_IS_BAD(utofu_set_vbg(NULL, 1));
    NULL_IS_BAD(utofu_query_vbg_info(0, NULL, &tni, &cq, &extra));
    NULL_IS_BAD(utofu_query_vbg_info(0, coords, NULL, &cq, &extra));
    NULL_IS_BAD(utofu_query_vbg_info(0, coords, &tni, NULL, &extra));
    NULL_IS_BAD(utofu_query_vbg_info(0, coords, &tni, &cq, NULL));
    NULL_IS_BAD(utofu_set_vcq_id_path(NULL, coords));
    NULL_IS_BAD(utofu_get_path_id(id, NULL, &path));
    NULL_IS_BAD(utofu_get_path_id(id, coords, NULL));
    NULL_IS_BAD(utofu_get_path_coords(id, 0, NULL));
    NULL_IS_BAD(utofu_query_stadd(id, 0, NULL));
    NULL_IS_BAD(utofu_reg_mem(vcq, coords, 6, 0, NULL));
    NULL_IS_BAD(utofu_reg_mem_with_stag(vcq, coords, 6, 0, 0, NULL));
    NULL_IS_BAD(utofu_poll_tcq(vcq, 0, NULL));
    NULL_IS_BAD(utofu_poll_mrq(vcq, 0, NULL));
    NULL_IS_BAD(utofu_query_num_unread_tcq(vcq, NULL));
    NULL_IS_BAD(utofu_query_num_unread_mrq(vcq, NULL));
    NULL_IS_BAD(utofu_reduce_uint64(0, UTOFU_REDUCE_OP_MAX, NULL, 1, 0));
    NULL_IS_BAD(utofu_reduce_double(0, UTOFU_REDUCE_OP_MAX, NULL, 1, 0));
    NULL_IS_BAD(utofu_poll_reduce_uint64(0, 0, NULL));
    NULL_IS_BAD(utofu_poll_reduce_double(0, 0, NULL));
    NULL_IS_BAD(utofu_query_my_coords(NULL));
    utofu_query_tofu_version(NULL, NULL);
    utofu_query_utofu_version(NULL, NULL);
    utofu_get_last_error(NULL);
    IS(tofu_inproc_count(NULL), UTOFU_ERR_INVALID_POINTER);
}

static uint64_t seed = 88172645463325252ULL;
static uint64_t any(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

/* Every function that takes a handle, with an invalid one. */
static void handles(utofu_vcq_hdl_t h)
{
    static uint8_t memory[4096];
    uint64_t desc[64];
    size_t n;
    utofu_stadd_t stadd;
    utofu_vcq_id_t vcq_id;
    void *cb;
    struct utofu_mrq_notice notice;
    BAD(utofu_free_vcq(h));
    BAD(utofu_query_vcq_id(h, &vcq_id));
    BAD(utofu_reg_mem(h, memory, 10, 0, &stadd));
    BAD(utofu_reg_mem_with_stag(h, memory, 10, 0, 0, &stadd));
    BAD(utofu_dereg_mem(h, 0, 0));
    BAD(utofu_put(h, id, 0, 0, 8, 0, 0, 0));
    BAD(utofu_put_gap(h, id, 0, 0, 8, 0, 0, 8, 0, 0));
    BAD(utofu_put_stride(h, id, 0, 0, 8, 8, 2, 0, 0, 0));
    BAD(utofu_put_stride_gap(h, id, 0, 0, 8, 8, 2, 0, 0, 8, 0, 0));
    BAD(utofu_put_piggyback(h, id, memory, 0, 8, 0, 0, 0));
    BAD(utofu_put_piggyback8(h, id, 0, 0, 8, 0, 0, 0));
    BAD(utofu_get(h, id, 0, 0, 8, 0, 0, 0));
    BAD(utofu_get_gap(h, id, 0, 0, 8, 0, 0, 8, 0, 0));
    BAD(utofu_get_stride(h, id, 0, 0, 8, 8, 2, 0, 0, 0));
    BAD(utofu_get_stride_gap(h, id, 0, 0, 8, 8, 2, 0, 0, 8, 0, 0));
    BAD(utofu_armw4(h, id, UTOFU_ARMW_OP_ADD, 0, 0, 0, 0, 0));
    BAD(utofu_armw8(h, id, UTOFU_ARMW_OP_ADD, 0, 0, 0, 0, 0));
    BAD(utofu_cswap4(h, id, 0, 0, 0, 0, 0, 0));
    BAD(utofu_cswap8(h, id, 0, 0, 0, 0, 0, 0));
    BAD(utofu_nop(h, 0, 0));
    BAD(utofu_prepare_put(h, id, 0, 0, 8, 0, 0, desc, &n));
    BAD(utofu_prepare_put_gap(h, id, 0, 0, 8, 0, 0, 8, 0, desc, &n));
    BAD(utofu_prepare_put_stride(h, id, 0, 0, 8, 8, 2, 0, 0, desc, &n));
    BAD(utofu_prepare_put_stride_gap(h, id, 0, 0, 8, 8, 2, 0, 0, 8, 0, desc, &n));
    BAD(utofu_prepare_put_piggyback(h, id, memory, 0, 8, 0, 0, desc, &n));
    BAD(utofu_prepare_put_piggyback8(h, id, 0, 0, 8, 0, 0, desc, &n));
    BAD(utofu_prepare_get(h, id, 0, 0, 8, 0, 0, desc, &n));
    BAD(utofu_prepare_get_gap(h, id, 0, 0, 8, 0, 0, 8, 0, desc, &n));
    BAD(utofu_prepare_get_stride(h, id, 0, 0, 8, 8, 2, 0, 0, desc, &n));
    BAD(utofu_prepare_get_stride_gap(h, id, 0, 0, 8, 8, 2, 0, 0, 8, 0, desc, &n));
    BAD(utofu_prepare_armw4(h, id, UTOFU_ARMW_OP_ADD, 0, 0, 0, 0, desc, &n));
    BAD(utofu_prepare_armw8(h, id, UTOFU_ARMW_OP_ADD, 0, 0, 0, 0, desc, &n));
    BAD(utofu_prepare_cswap4(h, id, 0, 0, 0, 0, 0, desc, &n));
    BAD(utofu_prepare_cswap8(h, id, 0, 0, 0, 0, 0, desc, &n));
    BAD(utofu_prepare_nop(h, 0, desc, &n));
    memset(desc, 0, sizeof desc);
    BAD(utofu_post_toq(h, desc, 32, 0));
    BAD(utofu_poll_tcq(h, 0, &cb));
    BAD(utofu_poll_mrq(h, 0, &notice));
    BAD(utofu_query_num_unread_tcq(h, &n));
    BAD(utofu_query_num_unread_mrq(h, &n));
}

/* Random arguments: every result is a valid code, and the VCQ keeps working. */
static void random_calls(void)
{
    static uint8_t memory[1 << 16];
    uint64_t desc[8];
    size_t n;
    void *cb;
    struct utofu_mrq_notice notice;
    utofu_stadd_t stadd;
    for (int i = 0; i < 200000; i++) {
        uint64_t to = any() & 1 ? any() : id ^ (1ULL << (any() & 63));
        uint64_t lcl = any() >> (any() & 63), rmt = any() >> (any() & 63);
        uint64_t length = any() >> (any() & 63), flags = any() >> (any() & 63);
        int code = 0;
        switch (any() % 16) {
        case 0: code = utofu_put(vcq, to, lcl, rmt, length, any(), flags, 0); break;
        case 1: code = utofu_get(vcq, id, lcl, rmt, length, any(), flags & 0xff00c52f, 0); break;
        case 2: code = utofu_put_gap(vcq, id, lcl, rmt, length, 0, flags, any(), any(), 0); break;
        case 3: code = utofu_put_stride(vcq, id, lcl, rmt, length, any(), any() % 99, 0, 0, 0);
            break;
        case 4: code = utofu_put_piggyback(vcq, id, memory, rmt, any() % 40, 0, flags, 0); break;
        case 5: code = utofu_armw8(vcq, to, (enum utofu_armw_op)(any() % 8), lcl, rmt, 0, 0, 0);
            break;
        case 6: code = utofu_cswap8(vcq, id, lcl, rmt, rmt, 0, flags, 0); break;
        case 7:
            for (int k = 0; k < 8; k++) desc[k] = any() >> (any() & 63);
            code = utofu_post_toq(vcq, desc, any() & 1 ? 32 : 64, 0);
            break;
        case 8: code = utofu_reg_mem(vcq, memory, length % sizeof memory, flags, &stadd); break;
        case 9: code = utofu_dereg_mem(vcq, lcl, 0); break;
        case 10: code = utofu_query_stadd(to, (unsigned)any(), &stadd); break;
        case 11: code = utofu_nop(vcq, flags, 0); break;
        case 12: code = utofu_get_path_id(to, memory, (utofu_path_id_t *)desc); break;
        case 13: code = utofu_poll_tcq(vcq, any() & 1, &cb); break;
        case 14: code = utofu_poll_mrq(vcq, any() & 1, &notice); break;
        case 15: code = utofu_query_num_unread_mrq(vcq, &n); break;
        }
        if (code > 0 || code < -768 || code == UTOFU_ERR_FATAL) fail(__LINE__, "code", code, 0);
        while (utofu_poll_tcq(vcq, 0, &cb) != UTOFU_ERR_NOT_FOUND)
            ;
        while (utofu_poll_mrq(vcq, 0, &notice) != UTOFU_ERR_NOT_FOUND)
            ;
    }
}

/* Each thread has an error of its own. */
static void *thread(void *unused)
{
    char text[1024];
    utofu_get_last_error(text);
    IS(text[0], 0);
    IS(utofu_free_vcq(~0UL), UTOFU_ERR_INVALID_VCQ_HDL);
    utofu_get_last_error(text);
    IS(strncmp(text, "utofu_free_vcq: ", 16), 0);
    return unused;
}

int main(void)
{
    OK(utofu_create_vcq(0, 0, &vcq));
    OK(utofu_query_vcq_id(vcq, &id));
    nulls();
    utofu_vcq_hdl_t freed;
    OK(utofu_create_vcq(0, 0, &freed));
    OK(utofu_free_vcq(freed));
    handles(0);
    handles(freed);
    handles(vcq ^ 1);
    handles(vcq | 0x10);
    handles(~0UL);
    for (int bit = 0; bit < 64; bit++) handles(vcq ^ 1UL << bit);
    for (int i = 0; i < 1000; i++) handles(any());
    random_calls();
    IS(utofu_query_vcq_id(vcq, NULL), UTOFU_ERR_INVALID_POINTER);
    char text[1024];
    utofu_get_last_error(text);
    IS(strcmp(text, "utofu_query_vcq_id: UTOFU_ERR_INVALID_POINTER: vcq_id: a null pointer"), 0);
    pthread_t other;
    pthread_create(&other, NULL, thread, NULL);
    pthread_join(other, NULL);
    OK(utofu_free_vcq(vcq));
    puts("ok");
    return 0;
}

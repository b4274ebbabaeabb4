/*
 * Every function, and every code that can be caused, between two processes of a machine in this
 * process (TOFU_SHAPE=1x1x1x2x1x1).
 */
#include "test.h"

static utofu_vcq_hdl_t a, b;
static utofu_vcq_id_t a_id, b_id;
static uint8_t mine[65536] __attribute__((aligned(65536)));
static uint8_t theirs[65536] __attribute__((aligned(65536)));
static utofu_stadd_t lcl, rmt;

static void tnis(void)
{
    utofu_tni_id_t *ids = NULL;
    size_t count = 0;
    OK(utofu_get_onesided_tnis(&ids, &count));
    IS(count, 6);
    for (size_t i = 0; i < count; i++) IS(ids[i], i);
    free(ids);
    OK(utofu_get_barrier_tnis(&ids, &count));
    IS(count, 6);
    free(ids);

    struct utofu_onesided_caps *caps;
    OK(utofu_query_onesided_caps(5, &caps));
    IS(caps->flags, 3);
    IS(caps->armw_ops, 0x3f);
    IS(caps->num_cmp_ids, 8);
    IS(caps->num_reserved_stags, 256);
    IS(caps->cache_line_size, 256);
    IS(caps->stag_address_alignment, 256);
    IS(caps->max_toq_desc_size, 64);
    IS(caps->max_putget_size, (1 << 24) - 1);
    IS(caps->max_piggyback_size, 32);
    IS(caps->max_edata_size, 1);
    IS(caps->max_mtu, 1920);
    IS(caps->max_gap, 255);
    struct utofu_barrier_caps *barrier;
    OK(utofu_query_barrier_caps(0, &barrier));
    IS(barrier->reduce_ops, 0x1fe);
    IS(barrier->max_uint64_reduction, 6);
    IS(barrier->max_double_reduction, 3);
    IS(utofu_query_onesided_caps(6, &caps), UTOFU_ERR_INVALID_TNI_ID);
    IS(utofu_query_barrier_caps(65535, &barrier), UTOFU_ERR_INVALID_TNI_ID);

    int major = -1, minor = -1;
    utofu_query_utofu_version(&major, &minor);
    IS(major, UTOFU_VERSION_MAJOR);
    IS(minor, UTOFU_VERSION_MINOR);
    utofu_query_tofu_version(&major, &minor);
    IS(major, 3);
    utofu_query_tofu_version(NULL, NULL);
    unsigned processes;
    OK(tofu_inproc_count(&processes));
    IS(processes, 2);
    IS(tofu_inproc_select(2), UTOFU_ERR_INVALID_NUMBER);
}

static void vcqs(void)
{
    uint8_t coords[6] = {9, 9, 9, 9, 9, 9};
    OK(tofu_inproc_select(1));
    OK(utofu_query_my_coords(coords));
    for (int i = 0; i < 6; i++) IS(coords[i], i == 3 ? PEER : 0);
    OK(utofu_create_vcq_with_cmp_id(4, 7, UTOFU_VCQ_FLAG_THREAD_SAFE, &b));
    OK(tofu_inproc_select(0));
    OK(utofu_query_my_coords(coords));
    for (int i = 0; i < 6; i++) IS(coords[i], 0);
    OK(utofu_create_vcq(2, 0, &a));
    IS(a & 0xff, 0);
    IS(b & 0xff, 15);
    OK(utofu_query_vcq_id(a, &a_id));
    OK(utofu_query_vcq_id(b, &b_id));

    utofu_vcq_id_t made;
    coords[3] = PEER;
    OK(utofu_construct_vcq_id(coords, 4, 0, 7, &made));
    IS(made, b_id);
    /* TNI 4, A 1; path through A 1; extra 15. */
    IS(b_id, PEER ? 0x810000001f000000 : 0x800000000f000000);
    utofu_tni_id_t tni;
    utofu_cq_id_t cq;
    uint16_t extra;
    memset(coords, 9, 6);
    OK(utofu_query_vcq_info(b_id, coords, &tni, &cq, &extra));
    IS(coords[3], PEER);
    IS(coords[5], 0);
    IS(tni, 4);
    IS(cq, 0);
    IS(extra, 15);

    utofu_vcq_hdl_t other;
    IS(utofu_create_vcq(6, 0, &other), UTOFU_ERR_INVALID_TNI_ID);
    IS(utofu_create_vcq(0, 8, &other), UTOFU_ERR_INVALID_FLAGS);
    IS(utofu_create_vcq(0, ~0UL, &other), UTOFU_ERR_INVALID_FLAGS);
    IS(utofu_create_vcq_with_cmp_id(0, 8, 0, &other), UTOFU_ERR_INVALID_CMP_ID);
    OK(utofu_create_vcq_with_cmp_id(0, 3, 0, &other));
    utofu_vcq_hdl_t more[9];
    IS(utofu_create_vcq_with_cmp_id(0, 3, 0, &more[0]), UTOFU_ERR_USED);
    for (int i = 0; i < 8; i++) OK(utofu_create_vcq(0, 0, &more[i]));
    IS(utofu_create_vcq(0, 0, &more[8]), UTOFU_ERR_FULL);
    OK(utofu_create_vcq(0, UTOFU_VCQ_FLAG_EXCLUSIVE, &more[8]));
    OK(utofu_query_vcq_id(more[8], &made));
    IS(made & 0x3f, 1);
    for (int i = 0; i < 9; i++) OK(utofu_free_vcq(more[i]));
    OK(utofu_free_vcq(other));
    IS(utofu_free_vcq(other), UTOFU_ERR_INVALID_VCQ_HDL);
    IS(utofu_query_vcq_id(other, &made), UTOFU_ERR_INVALID_VCQ_HDL);
    utofu_vcq_hdl_t again;
    OK(utofu_create_vcq_with_cmp_id(0, 3, 0, &again));
    IS(utofu_nop(other, TCQ, NULL), UTOFU_ERR_INVALID_VCQ_HDL);
    OK(utofu_free_vcq(again));

    memset(coords, 0, 6);
    IS(utofu_construct_vcq_id(coords, 6, 0, 0, &made), UTOFU_ERR_INVALID_TNI_ID);
    IS(utofu_construct_vcq_id(coords, 0, 12, 0, &made), UTOFU_ERR_INVALID_CQ_ID);
    IS(utofu_construct_vcq_id(coords, 0, 0, 8, &made), UTOFU_ERR_INVALID_CMP_ID);
    coords[4] = 3;
    IS(utofu_construct_vcq_id(coords, 0, 0, 0, &made), UTOFU_ERR_INVALID_COORDS);
    IS(utofu_query_vcq_info(~0ULL, coords, &tni, &cq, &extra), UTOFU_ERR_INVALID_VCQ_ID);
}

static void paths(void)
{
    uint8_t path[3] = {0, 2, 1};
    utofu_path_id_t id;
    utofu_vcq_id_t target = b_id;
    OK(utofu_get_path_id(target, path, &id));
    IS(id, 12 ^ PEER);
    memset(path, 9, 3);
    OK(utofu_get_path_coords(target, id, path));
    IS(path[0] << 16 | path[1] << 8 | path[2], 0x000201);
    OK(utofu_set_vcq_id_path(&target, path));
    IS(target, (b_id & ~0xf0000000ULL) | 0xc0000000);
    OK(utofu_get_path_id(target, path, &id));
    IS(id, 0);
    /* Through the A, B, C of the node that calls: a detour by another node would share its links
     * with others' packets. */
    OK(utofu_set_vcq_id_path(&target, NULL));
    IS(target, b_id & ~0xf0000000ULL);
    OK(utofu_get_path_id(target, path, &id));
    IS(id, 12);
    OK(tofu_inproc_select(1));
    utofu_vcq_id_t back = a_id;
    OK(utofu_set_vcq_id_path(&back, NULL));
    IS(back, (a_id & ~0xf0000000ULL) | (utofu_vcq_id_t)PEER << 28);
    OK(tofu_inproc_select(0));
    path[0] = UTOFU_PATH_COORD_NULL;
    OK(utofu_get_path_id(target, path, &id));
    IS(id, 0);
    path[0] = 2;
    IS(utofu_get_path_id(target, path, &id), UTOFU_ERR_INVALID_PATH);
    IS(utofu_set_vcq_id_path(&target, path), UTOFU_ERR_INVALID_PATH);
    IS(utofu_get_path_coords(target, 6, path), UTOFU_ERR_INVALID_PATH_ID);
    IS(utofu_get_path_coords(target, 16, path), UTOFU_ERR_INVALID_PATH_ID);
    IS(utofu_get_path_coords(1ULL << 60, 0, path), UTOFU_ERR_INVALID_VCQ_ID);
    path[0] = 0;
    IS(utofu_get_path_id(1ULL << 60, path, &id), UTOFU_ERR_INVALID_VCQ_ID);
    target = 1 << 6;
    IS(utofu_set_vcq_id_path(&target, NULL), UTOFU_ERR_INVALID_VCQ_ID);
}

static void memory(void)
{
    OK(utofu_reg_mem(a, mine, sizeof mine, 0, &lcl));
    OK(utofu_reg_mem(b, theirs, sizeof theirs, 0, &rmt));
    IS(lcl, 0x0010000000000000);
    IS(rmt, 0x0010000000000000);
    utofu_stadd_t stadd, computed;
    OK(utofu_reg_mem(a, mine, sizeof mine, 0, &stadd));
    IS(stadd, lcl);
    OK(utofu_dereg_mem(a, stadd, 0));
    OK(utofu_reg_mem(a, mine + 0x7950, 10, UTOFU_REG_MEM_FLAG_READ_ONLY, &stadd));
    IS(stadd, 0x0010010000007950);
    IS(utofu_dereg_mem(b, stadd, 0), UTOFU_ERR_INVALID_STADD);
    IS(utofu_dereg_mem(a, stadd, 1), UTOFU_ERR_INVALID_FLAGS);
    OK(utofu_dereg_mem(a, stadd, 0));
    IS(utofu_dereg_mem(a, stadd, 0), UTOFU_ERR_INVALID_STADD);
    IS(utofu_dereg_mem(a, 1ULL << 63, 0), UTOFU_ERR_INVALID_STADD);

    OK(utofu_query_stadd(b_id, 11, &computed));
    IS(computed, 0x000f0b0000000000);
    OK(utofu_reg_mem_with_stag(b, theirs + 256, 256, 11, 0, &stadd));
    IS(stadd, computed);
    IS(utofu_reg_mem_with_stag(b, theirs, 256, 11, 0, &stadd), UTOFU_ERR_USED);
    IS(utofu_reg_mem_with_stag(b, theirs, 256, 256, 0, &stadd), UTOFU_ERR_INVALID_STAG);
    IS(utofu_query_stadd(b_id, 256, &stadd), UTOFU_ERR_INVALID_STAG);
    IS(utofu_query_stadd(~0ULL, 0, &stadd), UTOFU_ERR_INVALID_VCQ_ID);
    OK(utofu_put_piggyback8(a, b_id, 0x55, computed + 255, 1, 0, TCQ, NULL));
    void *cbdata;
    OK(wait_tcq(a, &cbdata));
    IS(theirs[511], 0x55);
    theirs[511] = 0;
    OK(utofu_dereg_mem(b, computed, 0));

    IS(utofu_reg_mem(a, NULL, 10, 0, &stadd), UTOFU_ERR_INVALID_ADDRESS);
    IS(utofu_reg_mem(a, mine, 0, 0, &stadd), UTOFU_ERR_INVALID_SIZE);
    IS(utofu_reg_mem(a, mine, SIZE_MAX, 0, &stadd), UTOFU_ERR_INVALID_SIZE);
    IS(utofu_reg_mem(a, mine, 10, 2, &stadd), UTOFU_ERR_INVALID_FLAGS);
    IS(utofu_reg_mem(a, mine, 10, 0, NULL), UTOFU_ERR_INVALID_POINTER);
    IS(utofu_reg_mem(12345, mine, 10, 0, &stadd), UTOFU_ERR_INVALID_VCQ_HDL);
}

/* Takes the completion of one command and its notices. */
static void done(uintptr_t number, int type, uint64_t lcl_end, uint64_t rmt_end, uint64_t value)
{
    void *cbdata;
    struct utofu_mrq_notice n;
    OK(wait_tcq(a, &cbdata));
    IS((uintptr_t)cbdata, number);
    memset(&n, 0xff, sizeof n);
    OK(wait_mrq(a, &n));
    IS(n.notice_type, type);
    IS(n.vcq_id, b_id);
    IS(n.edata, 0x5a);
    IS(n.lcl_stadd, lcl_end);
    IS(n.rmt_stadd, rmt_end);
    IS(n.rmt_value, value);
    memset(&n, 0xff, sizeof n);
    OK(wait_mrq(b, &n));
    IS(n.notice_type, type + 1);
    IS(n.vcq_id, a_id);
    IS(n.edata, 0x5a);
    IS(n.rmt_stadd, rmt_end);
    IS(n.rmt_value, rmt_end);
    IS(n.reserved[0] | n.reserved[1], 0);
}

#define D (void *)
static void onesided(void)
{
    struct { uint64_t word[4]; } __attribute__((packed)) desc[16];
    uint8_t *unaligned = (uint8_t *)desc + 1;
    size_t size;
    const uint64_t e = 0x5a;
    for (size_t i = 0; i < sizeof mine; i++) mine[i] = (uint8_t)(i * 5 + i / 256);

    OK(utofu_put(a, b_id, lcl + 1, rmt + 2, 5000, e, ALL, D 1));
    done(1, UTOFU_MRQ_TYPE_LCL_PUT, lcl + 5001, rmt + 5002, 0);
    IS(memcmp(mine + 1, theirs + 2, 5000), 0);
    OK(utofu_prepare_put(a, b_id, lcl, rmt + 7000, 33, e, ALL, unaligned, &size));
    IS(size, 32);
    OK(utofu_post_toq(a, unaligned, size, D 2));
    done(2, UTOFU_MRQ_TYPE_LCL_PUT, lcl + 33, rmt + 7033, 0);
    IS(memcmp(mine, theirs + 7000, 33), 0);

    OK(utofu_put_gap(a, b_id, lcl, rmt, 3000, e, ALL, 256, 255, D 3));
    done(3, UTOFU_MRQ_TYPE_LCL_PUT, lcl + 3000, rmt + 3000, 0);
    OK(utofu_prepare_put_gap(a, b_id, lcl, rmt, 3000, e, ALL, 1920, 0, desc, &size));
    IS(size, 32);
    OK(utofu_post_toq(a, desc, size, D 4));
    done(4, UTOFU_MRQ_TYPE_LCL_PUT, lcl + 3000, rmt + 3000, 0);

    OK(utofu_put_stride(a, b_id, lcl, rmt + 10000, 10, 100, 3, e, ALL, D 5));
    for (int i = 0; i < 3; i++) {
        done(5, UTOFU_MRQ_TYPE_LCL_PUT, lcl + i * 100 + 10, rmt + 10000 + i * 100 + 10, 0);
        IS(memcmp(mine + i * 100, theirs + 10000 + i * 100, 10), 0);
        IS(theirs[10000 + i * 100 + 10], 0);
    }
    OK(utofu_put_stride_gap(a, b_id, lcl, rmt, 10, 100, 1, e, ALL, 0, 1, D 6));
    done(6, UTOFU_MRQ_TYPE_LCL_PUT, lcl + 10, rmt + 10, 0);
    OK(utofu_prepare_put_stride(a, b_id, lcl, rmt, 10, 64, 4, e, ALL, desc, &size));
    IS(size, 4 * 32);
    OK(utofu_post_toq(a, desc, size, D 7));
    for (int i = 0; i < 4; i++)
        done(7, UTOFU_MRQ_TYPE_LCL_PUT, lcl + i * 64 + 10, rmt + i * 64 + 10, 0);
    OK(utofu_prepare_put_stride_gap(a, b_id, lcl, rmt, 10, 64, 2, e, ALL, 64, 1, desc, &size));
    IS(size, 2 * 32);
    OK(utofu_post_toq(a, desc, size, D 8));
    for (int i = 0; i < 2; i++)
        done(8, UTOFU_MRQ_TYPE_LCL_PUT, lcl + i * 64 + 10, rmt + i * 64 + 10, 0);

    OK(utofu_put_piggyback(a, b_id, mine + 7, rmt + 20001, 32, e, ALL, D 9));
    done(9, UTOFU_MRQ_TYPE_LCL_PUT, 32, rmt + 20033, 0);
    IS(memcmp(mine + 7, theirs + 20001, 32), 0);
    IS(theirs[20033], 0);
    OK(utofu_prepare_put_piggyback(a, b_id, mine, rmt, 8, e, ALL, desc, &size));
    IS(size, 32);
    OK(utofu_prepare_put_piggyback(a, b_id, mine + 3, rmt + 500, 9, e, ALL, desc, &size));
    IS(size, 64);
    OK(utofu_post_toq(a, desc, size, D 10));
    done(10, UTOFU_MRQ_TYPE_LCL_PUT, 9, rmt + 509, 0);
    IS(memcmp(mine + 3, theirs + 500, 9), 0);
    OK(utofu_put_piggyback8(a, b_id, 0x1122334455667788, rmt + 600, 3, e, ALL, D 11));
    done(11, UTOFU_MRQ_TYPE_LCL_PUT, 3, rmt + 603, 0);
    IS(theirs[600] | theirs[601] << 8 | theirs[602] << 16, 0x667788);
    OK(utofu_prepare_put_piggyback8(a, b_id, 42, rmt + 608, 8, e, ALL, desc, &size));
    OK(utofu_post_toq(a, desc, size, D 12));
    done(12, UTOFU_MRQ_TYPE_LCL_PUT, 8, rmt + 616, 0);

    for (size_t i = 0; i < sizeof theirs; i++) theirs[i] = (uint8_t)(i * 3 + i / 256);
    OK(utofu_get(a, b_id, lcl + 1, rmt + 2, 60000, e, ALL, D 13));
    done(13, UTOFU_MRQ_TYPE_LCL_GET, lcl + 60001, rmt + 60002, 0);
    IS(memcmp(mine + 1, theirs + 2, 60000), 0);
    OK(utofu_prepare_get(a, b_id, lcl, rmt, 1, e, ALL, desc, &size));
    OK(utofu_post_toq(a, desc, size, D 14));
    done(14, UTOFU_MRQ_TYPE_LCL_GET, lcl + 1, rmt + 1, 0);
    OK(utofu_get_gap(a, b_id, lcl, rmt, 100, e, ALL, 8, 0, D 15));
    done(15, UTOFU_MRQ_TYPE_LCL_GET, lcl + 100, rmt + 100, 0);
    OK(utofu_prepare_get_gap(a, b_id, lcl, rmt, 100, e, ALL, 8, 0, desc, &size));
    OK(utofu_post_toq(a, desc, size, D 16));
    done(16, UTOFU_MRQ_TYPE_LCL_GET, lcl + 100, rmt + 100, 0);
    OK(utofu_get_stride(a, b_id, lcl, rmt, 10, 20, 2, e, ALL, D 17));
    for (int i = 0; i < 2; i++)
        done(17, UTOFU_MRQ_TYPE_LCL_GET, lcl + i * 20 + 10, rmt + i * 20 + 10, 0);
    OK(utofu_get_stride_gap(a, b_id, lcl, rmt, 10, 20, 2, e, ALL, 16, 3, D 18));
    for (int i = 0; i < 2; i++)
        done(18, UTOFU_MRQ_TYPE_LCL_GET, lcl + i * 20 + 10, rmt + i * 20 + 10, 0);
    OK(utofu_prepare_get_stride(a, b_id, lcl, rmt, 10, 20, 2, e, ALL, desc, &size));
    IS(size, 64);
    OK(utofu_post_toq(a, desc, size, D 19));
    for (int i = 0; i < 2; i++)
        done(19, UTOFU_MRQ_TYPE_LCL_GET, lcl + i * 20 + 10, rmt + i * 20 + 10, 0);
    OK(utofu_prepare_get_stride_gap(a, b_id, lcl, rmt, 10, 20, 2, e, ALL, 16, 3, desc, &size));
    OK(utofu_post_toq(a, desc, size, D 20));
    for (int i = 0; i < 2; i++)
        done(20, UTOFU_MRQ_TYPE_LCL_GET, lcl + i * 20 + 10, rmt + i * 20 + 10, 0);

    uint64_t *word = (uint64_t *)theirs;
    *word = 0xffffffff00000007;
    OK(utofu_armw4(a, b_id, UTOFU_ARMW_OP_ADD, 0xffffffff, rmt, e, ALL, D 21));
    done(21, UTOFU_MRQ_TYPE_LCL_ARMW, 0, rmt, 7);
    IS(*word, 0xffffffff00000006);
    OK(utofu_prepare_armw4(a, b_id, UTOFU_ARMW_OP_SWAP, 1, rmt + 4, e, ALL, desc, &size));
    OK(utofu_post_toq(a, desc, size, D 22));
    done(22, UTOFU_MRQ_TYPE_LCL_ARMW, 0, rmt + 4, 0xffffffff);
    OK(utofu_armw8(a, b_id, UTOFU_ARMW_OP_XOR, 0x0100000000000003, rmt, e, ALL, D 23));
    done(23, UTOFU_MRQ_TYPE_LCL_ARMW, 0, rmt, 0x100000006);
    OK(utofu_armw8(a, b_id, UTOFU_ARMW_OP_AND, 0xff, rmt, e, ALL, D 24));
    done(24, UTOFU_MRQ_TYPE_LCL_ARMW, 0, rmt, 0x0100000100000005);
    OK(utofu_prepare_armw8(a, b_id, UTOFU_ARMW_OP_OR, 0x300, rmt, e, ALL, desc, &size));
    IS(size, 32);
    OK(utofu_post_toq(a, desc, size, D 25));
    done(25, UTOFU_MRQ_TYPE_LCL_ARMW, 0, rmt, 5);
    OK(utofu_cswap8(a, b_id, 0x305, ~0ULL, rmt, e, ALL, D 26));
    done(26, UTOFU_MRQ_TYPE_LCL_ARMW, 0, rmt, 0x305);
    OK(utofu_cswap4(a, b_id, 5, 6, rmt, e, ALL, D 27));
    done(27, UTOFU_MRQ_TYPE_LCL_ARMW, 0, rmt, 0xffffffff);
    IS(*word, ~0ULL);
    OK(utofu_prepare_cswap4(a, b_id, ~0U, 6, rmt, e, ALL, desc, &size));
    IS(size, 32);
    OK(utofu_post_toq(a, desc, size, D 28));
    done(28, UTOFU_MRQ_TYPE_LCL_ARMW, 0, rmt, 0xffffffff);
    OK(utofu_prepare_cswap8(a, b_id, 0xffffffff00000006, 9, rmt, e, ALL, desc, &size));
    IS(size, 64);
    OK(utofu_post_toq(a, desc, size, D 29));
    done(29, UTOFU_MRQ_TYPE_LCL_ARMW, 0, rmt, 0xffffffff00000006);
    IS(*word, 9);

    void *cbdata;
    OK(utofu_nop(a, TCQ, D 30));
    OK(wait_tcq(a, &cbdata));
    IS((uintptr_t)cbdata, 30);
    /* Several in a row, one of them of two descriptors. */
    size_t total;
    OK(utofu_prepare_nop(a, TCQ, desc, &total));
    OK(utofu_prepare_cswap8(a, b_id, 9, 10, rmt, e, ALL, (char *)desc + total, &size));
    total += size;
    OK(utofu_prepare_nop(a, TCQ, (char *)desc + total, &size));
    total += size;
    IS(total, 128);
    OK(utofu_post_toq(a, desc, total, D 31));
    OK(wait_tcq(a, &cbdata));
    done(31, UTOFU_MRQ_TYPE_LCL_ARMW, 0, rmt, 9);
    OK(wait_tcq(a, &cbdata));
    IS((uintptr_t)cbdata, 31);

    /* Any path leads there. */
    for (int i = 0; i < 12; i++) {
        uint8_t path[3] = {(uint8_t)(i & 1), 0, 0};
        utofu_path_id_t id;
        OK(utofu_get_path_id(b_id, path, &id));
        OK(utofu_put_piggyback8(a, b_id, i, rmt + 8, 8, e, TCQ | UTOFU_ONESIDED_FLAG_PATH(id), 0));
        OK(wait_tcq(a, &cbdata));
        IS(theirs[8], i);
    }
    /* Delayed commands wait. */
    size_t count;
    OK(utofu_nop(a, TCQ | UTOFU_ONESIDED_FLAG_DELAY_START, D 32));
    OK(utofu_query_num_unread_tcq(a, &count));
    IS(count, 0);
    OK(utofu_nop(a, TCQ, D 33));
    OK(wait_tcq(a, &cbdata));
    IS((uintptr_t)cbdata, 32);
    OK(wait_tcq(a, &cbdata));
    IS((uintptr_t)cbdata, 33);

    OK(utofu_put(a, b_id, lcl, rmt, 8, e, ALL, D 34));
    do OK(utofu_query_num_unread_mrq(b, &count)); while (count == 0);
    IS(count, 1);
    OK(utofu_query_num_unread_tcq(a, &count));
    IS(count, 1);
    OK(utofu_query_num_unread_mrq(a, &count));
    IS(count, 1);
    done(34, UTOFU_MRQ_TYPE_LCL_PUT, lcl + 8, rmt + 8, 0);
    struct utofu_mrq_notice notice;
    IS(utofu_poll_tcq(a, 0, &cbdata), UTOFU_ERR_NOT_FOUND);
    IS(utofu_poll_mrq(a, 0, &notice), UTOFU_ERR_NOT_FOUND);
    IS(utofu_poll_mrq(b, 0, &notice), UTOFU_ERR_NOT_FOUND);
}

/* A command that fails: its two codes. For the TCQ, a command that was sent is a success. */
static void fails(int line, int posted, int tcq, int mrq)
{
    void *cbdata;
    struct utofu_mrq_notice notice;
    int code;
    if (posted != UTOFU_SUCCESS) fail(line, "posting", posted, 0);
    if ((code = wait_tcq(a, &cbdata)) != tcq) fail(line, "TCQ code", code, tcq);
    if ((code = wait_mrq(a, &notice)) != mrq) fail(line, "MRQ code", code, mrq);
}
#define FAILS(expr, tcq, mrq) fails(__LINE__, expr, UTOFU_##tcq, UTOFU_##mrq)

/* A Put into a reserved tag that the peer registers later: dropped, and a success for the TCQ. */
static void early(void)
{
    static uint8_t late[256] __attribute__((aligned(256)));
    struct utofu_mrq_notice notice;
    utofu_stadd_t reserved, registered;
    void *cbdata;
    OK(utofu_query_stadd(b_id, 77, &reserved));
    for (int i = 0; i < 100; i++) {
        OK(utofu_put(a, b_id, lcl, reserved, 8, 0, TCQ, (void *)(uintptr_t)i));
        OK(wait_tcq(a, &cbdata));
        IS((uintptr_t)cbdata, i);
    }
    OK(utofu_reg_mem_with_stag(b, late, sizeof late, 77, 0, &registered));
    IS(registered, reserved);
    IS(late[0], 0);
    mine[0] = 0x5a;
    OK(utofu_put(a, b_id, lcl, reserved, 8, 0, TCQ, D 100));
    OK(wait_tcq(a, &cbdata));
    while (*(volatile uint8_t *)late == 0)
        ;
    IS(late[0], 0x5a);
    OK(utofu_dereg_mem(b, registered, 0));
    IS(utofu_poll_mrq(a, 0, &notice), UTOFU_ERR_NOT_FOUND);
}

static void errors(void)
{
    const unsigned long f = TCQ | LOCAL;
    utofu_stadd_t ro, gone, never = 0x001ff00000000000;
    OK(utofu_reg_mem(b, theirs, 100, UTOFU_REG_MEM_FLAG_READ_ONLY, &ro));
    OK(utofu_reg_mem(b, theirs, 99, 0, &gone));
    OK(utofu_dereg_mem(b, gone, 0));
    FAILS(utofu_put(a, b_id, lcl, never, 8, 0, f, 0), SUCCESS, ERR_MRQ_RMT_STADD);
    FAILS(utofu_put(a, b_id, lcl, gone, 8, 0, f, 0), SUCCESS, ERR_MRQ_RMT_STADD);
    FAILS(utofu_put(a, b_id, lcl, ro, 8, 0, f, 0), SUCCESS, ERR_MRQ_RMT_STADD);
    FAILS(utofu_put(a, b_id, lcl, rmt + 65535, 2, 0, f, 0), SUCCESS, ERR_MRQ_RMT_LENGTH);
    FAILS(utofu_put(a, b_id, never, rmt, 8, 0, f, 0), ERR_TCQ_STADD, ERR_MRQ_LCL_STADD);
    FAILS(utofu_put(a, b_id, lcl + 65535, rmt, 2, 0, f, 0), ERR_TCQ_LENGTH, ERR_MRQ_LCL_LENGTH);
    FAILS(utofu_get(a, b_id, lcl, never, 8, 0, f, 0), SUCCESS, ERR_MRQ_RMT_STADD);
    FAILS(utofu_armw8(a, b_id, UTOFU_ARMW_OP_ADD, 1, never, 0, f, 0), SUCCESS, ERR_MRQ_RMT_STADD);
    FAILS(utofu_armw8(a, b_id, UTOFU_ARMW_OP_ADD, 1, rmt + 4, 0, f, 0), SUCCESS, ERR_MRQ_RMT_STADD);
    FAILS(utofu_put(a, b_id | 5, lcl, rmt, 8, 0, f, 0), SUCCESS, ERR_MRQ_PEER);
    /* Another node: on Linux nodes it is outside of the subnet of a job on one node, and nothing
     * is sent. */
    void *cbdata;
    struct utofu_mrq_notice notice;
    if (getenv("TOFU_SUBNET")) {
        OK(utofu_put(a, b_id | 7ULL << 32, lcl, rmt, 8, 0, f, 0));
        IS(wait_tcq(a, &cbdata), UTOFU_ERR_TCQ_OTHER);
        IS(utofu_poll_mrq(a, 0, &notice), UTOFU_ERR_NOT_FOUND);
    } else
        FAILS(utofu_put(a, b_id | 7ULL << 32, lcl, rmt, 8, 0, f, 0), SUCCESS, ERR_MRQ_PEER);
    OK(utofu_put(a, b_id, lcl, rmt, 8, -1, f, D 7));
    IS(wait_tcq(a, &cbdata), UTOFU_ERR_TCQ_LENGTH);
    IS((uintptr_t)cbdata, 7);
    OK(utofu_cswap8(a, b_id, 1, 2, rmt, 0x100, f, D 8));
    IS(wait_tcq(a, &cbdata), UTOFU_ERR_TCQ_LENGTH);

    const size_t big = (size_t)1 << 24;
    IS(utofu_put(a, b_id, lcl, rmt, big, 0, 0, 0), UTOFU_ERR_INVALID_SIZE);
    IS(utofu_get(a, b_id, lcl, rmt, SIZE_MAX, 0, 0, 0), UTOFU_ERR_INVALID_SIZE);
    IS(utofu_put_piggyback(a, b_id, mine, rmt, 33, 0, 0, 0), UTOFU_ERR_INVALID_SIZE);
    IS(utofu_put_piggyback(a, b_id, NULL, rmt, 8, 0, 0, 0), UTOFU_ERR_INVALID_POINTER);
    IS(utofu_put_piggyback8(a, b_id, 0, rmt, 9, 0, 0, 0), UTOFU_ERR_INVALID_SIZE);
    IS(utofu_put_gap(a, b_id, lcl, rmt, 8, 0, 0, 1921, 0, 0), UTOFU_ERR_INVALID_SIZE);
    IS(utofu_put_gap(a, b_id, lcl, rmt, 8, 0, 0, 1920, 256, 0), UTOFU_ERR_INVALID_SIZE);
    IS(utofu_get_gap(a, b_id, lcl, rmt, 8, 0, 0, 7, 0, 0), UTOFU_ERR_INVALID_SIZE);
    IS(utofu_put_stride(a, b_id, lcl, rmt, 8, 8, 0, 0, 0, 0), UTOFU_ERR_INVALID_NUMBER);
    IS(utofu_put_stride(a, b_id, lcl, rmt, 8, 8, 1 << 20, 0, 0, 0), UTOFU_ERR_INVALID_NUMBER);
    IS(utofu_get_stride(a, b_id, lcl, rmt, 8, SIZE_MAX, 3, 0, 0, 0), UTOFU_ERR_INVALID_NUMBER);
    IS(utofu_put(a, ~0ULL, lcl, rmt, 8, 0, 0, 0), UTOFU_ERR_INVALID_VCQ_ID);
    IS(utofu_put(a, b_id, lcl, rmt, 8, 0, 1UL << 16, 0), UTOFU_ERR_INVALID_FLAGS);
    IS(utofu_put(a, b_id, lcl, rmt, 8, 0, 1UL << 32, 0), UTOFU_ERR_INVALID_FLAGS);
    IS(utofu_put(a, b_id, lcl, rmt, 8, 0, UTOFU_ONESIDED_FLAG_PATH(7), 0),
       UTOFU_ERR_INVALID_PATH_ID);
    IS(utofu_put(a, b_id, 1ULL << 58, rmt, 8, 0, 0, 0), UTOFU_ERR_INVALID_STADD);
    IS(utofu_put(a, b_id, lcl, 1ULL << 63, 8, 0, 0, 0), UTOFU_ERR_INVALID_STADD);
    IS(utofu_put(a ^ 16, b_id, lcl, rmt, 8, 0, 0, 0), UTOFU_ERR_INVALID_VCQ_HDL);
    IS(utofu_armw4(a, b_id, (enum utofu_armw_op)0, 0, rmt, 0, 0, 0), UTOFU_ERR_INVALID_OP);
    IS(utofu_armw8(a, b_id, (enum utofu_armw_op)6, 0, rmt, 0, 0, 0), UTOFU_ERR_INVALID_OP);
    IS(utofu_nop(a, 1UL << 20, 0), UTOFU_ERR_INVALID_FLAGS);
    IS(utofu_poll_tcq(a, 1, &cbdata), UTOFU_ERR_INVALID_FLAGS);

    uint64_t desc[8] = {0};
    size_t size;
    IS(utofu_post_toq(a, NULL, 32, 0), UTOFU_ERR_INVALID_POINTER);
    IS(utofu_post_toq(a, desc, 31, 0), UTOFU_ERR_INVALID_SIZE);
    IS(utofu_post_toq(a, desc, 0, 0), UTOFU_ERR_INVALID_SIZE);
    desc[0] = 0x1100;
    IS(utofu_post_toq(a, desc, 32, 0), UTOFU_ERR_INVALID_DESC);
    IS(utofu_prepare_nop(a, 0, NULL, &size), UTOFU_ERR_INVALID_POINTER);
    IS(utofu_prepare_nop(a, 0, desc, NULL), UTOFU_ERR_INVALID_POINTER);
    IS(utofu_prepare_nop(a ^ 1, 0, desc, &size), UTOFU_ERR_INVALID_VCQ_HDL);

    char text[1024];
    IS(utofu_create_vcq(6, 0, &a), UTOFU_ERR_INVALID_TNI_ID);
    memset(text, 'x', sizeof text);
    utofu_get_last_error(text);
    IS(strcmp(text, "utofu_create_vcq: UTOFU_ERR_INVALID_TNI_ID: TNI 6: there are TNIs 0 to 5"), 0);

    /* A full queue. */
    int posted = 0, code;
    while ((code = utofu_nop(a, TCQ, (void *)(uintptr_t)posted)) == UTOFU_SUCCESS) posted++;
    IS(code, UTOFU_ERR_BUSY);
    IS(posted, 2048);
    for (int i = 0; i < posted; i++) {
        OK(wait_tcq(a, &cbdata));
        IS((uintptr_t)cbdata, i);
    }
    OK(utofu_nop(a, 0, NULL));
}

/* Four members, two TNIs of each of two nodes, by recursive doubling. */
static void barriers(void)
{
    enum { MEMBERS = 4, ROUNDS = 20 };
    utofu_vbg_id_t gates[MEMBERS][2];
    const utofu_vbg_id_t none = UTOFU_VBG_ID_NULL;
    for (unsigned m = 0; m < MEMBERS; m++) {
        OK(tofu_inproc_select(m / 2));
        OK(utofu_alloc_vbg(4 + m % 2, 2, 0, gates[m]));
        unsigned taken = PEER ? 0 : m / 2;
        IS(gates[m][0] & 63, 0 + taken);
        IS(gates[m][1] & 63, 16 + taken);
    }
    /* First with the other TNI, then with the other node. */
    for (unsigned m = 0; m < MEMBERS; m++) {
        utofu_vbg_id_t *own = gates[m], *first = gates[m ^ 1], *second = gates[m ^ 2];
        struct utofu_vbg_setting settings[2] = {
            {own[0], own[1], second[1], own[1], first[1], {UTOFU_PATH_COORD_NULL, 9, 9}},
            {own[1], own[0], first[0], own[0], second[0], {1, 0, 0}},
        };
        OK(tofu_inproc_select(m / 2));
        IS(utofu_barrier(own[0], 0), UTOFU_ERR_NOT_AVAILABLE);
        OK(utofu_set_vbg(settings, 2));
    }
    for (uint64_t round = 0; round < ROUNDS; round++) {
        struct timespec start;
        clock_gettime(CLOCK_MONOTONIC, &start);
        for (unsigned m = 0; m < MEMBERS; m++) {
            uint64_t data[6] = {m + round, ~(uint64_t)m, 1ull << m, 0, 5, m};
            OK(tofu_inproc_select(m / 2));
            OK(utofu_reduce_uint64(gates[m][0], UTOFU_REDUCE_OP_SUM, data, 6, 0));
            IS(utofu_barrier(gates[m][0], 0), UTOFU_ERR_BUSY);
        }
        for (unsigned m = 0; m < MEMBERS; m++) {
            uint64_t data[7] = {0, 0, 0, 0, 0, 0, 77};
            int code;
            OK(tofu_inproc_select(m / 2));
            while ((code = utofu_poll_reduce_uint64(gates[m][0], 0, data)) ==
                       UTOFU_ERR_NOT_COMPLETED && !late(&start))
                ;
            OK(code);
            uint64_t expected[7] = {6 + 4 * round, -10, 15, 0, 20, 6, 77};
            IS(memcmp(data, expected, sizeof data), 0);
        }
        /* The same result in every order, and to the last bit. */
        for (unsigned m = 0; m < MEMBERS; m++) {
            const double terms[MEMBERS] = {1e16, 1, -1e16, 0.25};
            double data[3] = {terms[(m + round) % MEMBERS], m, -0.0};
            OK(tofu_inproc_select(m / 2));
            OK(utofu_reduce_double(gates[m][0], UTOFU_REDUCE_OP_BFPSUM, data, 3, 0));
        }
        for (unsigned m = 0; m < MEMBERS; m++) {
            double data[3] = {9, 9, 9};
            int code;
            OK(tofu_inproc_select(m / 2));
            while ((code = utofu_poll_reduce_double(gates[m][0], 0, data)) ==
                       UTOFU_ERR_NOT_COMPLETED && !late(&start))
                ;
            OK(code);
            double expected[3] = {1.25, 6, 0};
            IS(memcmp(data, expected, sizeof data), 0);
        }
    }
    for (unsigned m = 0; m < MEMBERS; m++) {
        OK(tofu_inproc_select(m / 2));
        OK(utofu_free_vbg(&gates[m][m % 2], 1));
        OK(utofu_free_vbg(&gates[m][1 - m % 2], 1));
    }
    OK(tofu_inproc_select(0));
    IS(utofu_barrier(none, 0), UTOFU_ERR_INVALID_VBG_ID);
    uint8_t coords[6];
    utofu_tni_id_t tni;
    utofu_bg_id_t bg;
    uint16_t extra = 9;
    OK(utofu_query_vbg_info(0xad1312110000002f, coords, &tni, &bg, &extra));
    IS(coords[0] << 16 | coords[1] << 8 | coords[2], 0x111213);
    IS(coords[3] << 16 | coords[4] << 8 | coords[5], 0x010201);
    IS(tni, 5);
    IS(bg, 47);
    IS(extra, 0);
    IS(utofu_query_vbg_info(48, coords, &tni, &bg, &extra), UTOFU_ERR_INVALID_VBG_ID);
}

int main(void)
{
    tnis();
    vcqs();
    paths();
    memory();
    onesided();
    early();
    errors();
    barriers();
    OK(utofu_free_vcq(a));
    OK(utofu_free_vcq(b));
    IS(utofu_free_vcq(b), UTOFU_ERR_INVALID_VCQ_HDL);
    puts("ok");
    return 0;
}

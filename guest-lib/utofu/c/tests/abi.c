/*
 * What programs for Tofu machines rely on when they are compiled: values, sizes, offsets and
 * signatures of utofu.h, written down a second time, and that all functions can be linked.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <utofu.h>

#ifndef UTOFU_H
#error "the include guard has another name"
#endif

/* Not in the header; programs declare it themselves. */
#ifdef __cplusplus
extern "C"
#endif
void utofu_get_last_error(char *msg);

#define ABI(claim) _Static_assert(claim, #claim)

ABI(UTOFU_VERSION_MAJOR == 1);
ABI(UTOFU_VERSION_MINOR == 0);
ABI(UTOFU_ONESIDED_CAP_FLAG_SESSION_MODE == 1UL << 0);
ABI(UTOFU_ONESIDED_CAP_FLAG_ARMW == 1UL << 1);
ABI(UTOFU_ONESIDED_CAP_ARMW_OP_CSWAP == 1UL << 0);
ABI(UTOFU_ONESIDED_CAP_ARMW_OP_SWAP == 1UL << 1);
ABI(UTOFU_ONESIDED_CAP_ARMW_OP_ADD == 1UL << 2);
ABI(UTOFU_ONESIDED_CAP_ARMW_OP_XOR == 1UL << 3);
ABI(UTOFU_ONESIDED_CAP_ARMW_OP_AND == 1UL << 4);
ABI(UTOFU_ONESIDED_CAP_ARMW_OP_OR == 1UL << 5);
ABI(UTOFU_BARRIER_CAP_REDUCE_OP_BARRIER == 1UL << 1);
ABI(UTOFU_BARRIER_CAP_REDUCE_OP_BAND == 1UL << 2);
ABI(UTOFU_BARRIER_CAP_REDUCE_OP_BOR == 1UL << 3);
ABI(UTOFU_BARRIER_CAP_REDUCE_OP_BXOR == 1UL << 4);
ABI(UTOFU_BARRIER_CAP_REDUCE_OP_MAX == 1UL << 5);
ABI(UTOFU_BARRIER_CAP_REDUCE_OP_MAXLOC == 1UL << 6);
ABI(UTOFU_BARRIER_CAP_REDUCE_OP_SUM == 1UL << 7);
ABI(UTOFU_BARRIER_CAP_REDUCE_OP_BFPSUM == 1UL << 8);
ABI(UTOFU_VCQ_FLAG_THREAD_SAFE == 1UL << 0);
ABI(UTOFU_VCQ_FLAG_EXCLUSIVE == 1UL << 1);
ABI(UTOFU_VCQ_FLAG_SESSION_MODE == 1UL << 2);
ABI(UTOFU_VBG_FLAG_THREAD_SAFE == 1UL << 0);
ABI(UTOFU_REG_MEM_FLAG_READ_ONLY == 1UL << 0);
ABI(UTOFU_ONESIDED_FLAG_STRONG_ORDER == 1UL << 0);
ABI(UTOFU_ONESIDED_FLAG_PACKET_RESPONSE == 1UL << 1);
ABI(UTOFU_ONESIDED_FLAG_REMOTE_MRQ_NOTICE == 1UL << 2);
ABI(UTOFU_ONESIDED_FLAG_PADDING == 1UL << 3);
ABI(UTOFU_ONESIDED_FLAG_CACHE_INJECTION == 1UL << 5);
ABI(UTOFU_ONESIDED_FLAG_DELAY_START == 1UL << 8);
ABI(UTOFU_ONESIDED_FLAG_TCQ_NOTICE == 1UL << 14);
ABI(UTOFU_ONESIDED_FLAG_LOCAL_MRQ_NOTICE == 1UL << 15);
ABI(UTOFU_ONESIDED_FLAG_SPS(5) == 5UL << 24);
ABI(UTOFU_ONESIDED_FLAG_PATH(9) == 9UL << 28);
ABI(UTOFU_VBG_ID_NULL == 0xffffffffffffffffULL);
ABI(UTOFU_PATH_COORD_NULL == 255);
ABI(UTOFU_SUCCESS == 0);
ABI(UTOFU_ERR_NOT_FOUND == -1);
ABI(UTOFU_ERR_NOT_COMPLETED == -2);
ABI(UTOFU_ERR_NOT_PROCESSED == -3);
ABI(UTOFU_ERR_BUSY == -4);
ABI(UTOFU_ERR_USED == -5);
ABI(UTOFU_ERR_FULL == -6);
ABI(UTOFU_ERR_NOT_AVAILABLE == -7);
ABI(UTOFU_ERR_NOT_SUPPORTED == -8);
ABI(UTOFU_ERR_TCQ_OTHER == -128);
ABI(UTOFU_ERR_TCQ_DESC == -129);
ABI(UTOFU_ERR_TCQ_MEMORY == -130);
ABI(UTOFU_ERR_TCQ_STADD == -131);
ABI(UTOFU_ERR_TCQ_LENGTH == -132);
ABI(UTOFU_ERR_MRQ_OTHER == -192);
ABI(UTOFU_ERR_MRQ_PEER == -193);
ABI(UTOFU_ERR_MRQ_LCL_MEMORY == -194);
ABI(UTOFU_ERR_MRQ_RMT_MEMORY == -195);
ABI(UTOFU_ERR_MRQ_LCL_STADD == -196);
ABI(UTOFU_ERR_MRQ_RMT_STADD == -197);
ABI(UTOFU_ERR_MRQ_LCL_LENGTH == -198);
ABI(UTOFU_ERR_MRQ_RMT_LENGTH == -199);
ABI(UTOFU_ERR_BARRIER_OTHER == -256);
ABI(UTOFU_ERR_BARRIER_MISMATCH == -257);
ABI(UTOFU_ERR_INVALID_ARG == -512);
ABI(UTOFU_ERR_INVALID_POINTER == -513);
ABI(UTOFU_ERR_INVALID_FLAGS == -514);
ABI(UTOFU_ERR_INVALID_COORDS == -515);
ABI(UTOFU_ERR_INVALID_PATH == -516);
ABI(UTOFU_ERR_INVALID_TNI_ID == -517);
ABI(UTOFU_ERR_INVALID_CQ_ID == -518);
ABI(UTOFU_ERR_INVALID_BG_ID == -519);
ABI(UTOFU_ERR_INVALID_CMP_ID == -520);
ABI(UTOFU_ERR_INVALID_VCQ_HDL == -521);
ABI(UTOFU_ERR_INVALID_VCQ_ID == -522);
ABI(UTOFU_ERR_INVALID_VBG_ID == -523);
ABI(UTOFU_ERR_INVALID_PATH_ID == -524);
ABI(UTOFU_ERR_INVALID_STADD == -525);
ABI(UTOFU_ERR_INVALID_ADDRESS == -526);
ABI(UTOFU_ERR_INVALID_SIZE == -527);
ABI(UTOFU_ERR_INVALID_STAG == -528);
ABI(UTOFU_ERR_INVALID_EDATA == -529);
ABI(UTOFU_ERR_INVALID_NUMBER == -530);
ABI(UTOFU_ERR_INVALID_OP == -531);
ABI(UTOFU_ERR_INVALID_DESC == -532);
ABI(UTOFU_ERR_INVALID_DATA == -533);
ABI(UTOFU_ERR_OUT_OF_RESOURCE == -640);
ABI(UTOFU_ERR_OUT_OF_MEMORY == -641);
ABI(UTOFU_ERR_FATAL == -768);
ABI(UTOFU_ARMW_OP_SWAP == 1);
ABI(UTOFU_ARMW_OP_ADD == 2);
ABI(UTOFU_ARMW_OP_XOR == 3);
ABI(UTOFU_ARMW_OP_AND == 4);
ABI(UTOFU_ARMW_OP_OR == 5);
ABI(UTOFU_REDUCE_OP_BARRIER == 1);
ABI(UTOFU_REDUCE_OP_BAND == 2);
ABI(UTOFU_REDUCE_OP_BOR == 3);
ABI(UTOFU_REDUCE_OP_BXOR == 4);
ABI(UTOFU_REDUCE_OP_MAX == 5);
ABI(UTOFU_REDUCE_OP_MAXLOC == 6);
ABI(UTOFU_REDUCE_OP_SUM == 7);
ABI(UTOFU_REDUCE_OP_BFPSUM == 8);
ABI(UTOFU_MRQ_TYPE_LCL_PUT == 0);
ABI(UTOFU_MRQ_TYPE_RMT_PUT == 1);
ABI(UTOFU_MRQ_TYPE_LCL_GET == 2);
ABI(UTOFU_MRQ_TYPE_RMT_GET == 3);
ABI(UTOFU_MRQ_TYPE_LCL_ARMW == 4);
ABI(UTOFU_MRQ_TYPE_RMT_ARMW == 5);
ABI(sizeof(utofu_tni_id_t) == 2);
ABI((utofu_tni_id_t)-1 > 0);
ABI(sizeof(utofu_cq_id_t) == 2);
ABI((utofu_cq_id_t)-1 > 0);
ABI(sizeof(utofu_bg_id_t) == 2);
ABI((utofu_bg_id_t)-1 > 0);
ABI(sizeof(utofu_cmp_id_t) == 2);
ABI((utofu_cmp_id_t)-1 > 0);
ABI(sizeof(utofu_path_id_t) == 1);
ABI((utofu_path_id_t)-1 > 0);
ABI(sizeof(utofu_vcq_hdl_t) == 8);
ABI((utofu_vcq_hdl_t)-1 > 0);
ABI(sizeof(utofu_vcq_id_t) == 8);
ABI((utofu_vcq_id_t)-1 > 0);
ABI(sizeof(utofu_vbg_id_t) == 8);
ABI((utofu_vbg_id_t)-1 > 0);
ABI(sizeof(utofu_stadd_t) == 8);
ABI((utofu_stadd_t)-1 > 0);
ABI(sizeof(struct utofu_onesided_caps) == 88);
ABI(offsetof(struct utofu_onesided_caps, flags) == 0);
ABI(offsetof(struct utofu_onesided_caps, armw_ops) == 8);
ABI(offsetof(struct utofu_onesided_caps, num_cmp_ids) == 16);
ABI(offsetof(struct utofu_onesided_caps, num_reserved_stags) == 20);
ABI(offsetof(struct utofu_onesided_caps, cache_line_size) == 24);
ABI(offsetof(struct utofu_onesided_caps, stag_address_alignment) == 32);
ABI(offsetof(struct utofu_onesided_caps, max_toq_desc_size) == 40);
ABI(offsetof(struct utofu_onesided_caps, max_putget_size) == 48);
ABI(offsetof(struct utofu_onesided_caps, max_piggyback_size) == 56);
ABI(offsetof(struct utofu_onesided_caps, max_edata_size) == 64);
ABI(offsetof(struct utofu_onesided_caps, max_mtu) == 72);
ABI(offsetof(struct utofu_onesided_caps, max_gap) == 80);
ABI(sizeof(struct utofu_barrier_caps) == 32);
ABI(offsetof(struct utofu_barrier_caps, flags) == 0);
ABI(offsetof(struct utofu_barrier_caps, reduce_ops) == 8);
ABI(offsetof(struct utofu_barrier_caps, max_uint64_reduction) == 16);
ABI(offsetof(struct utofu_barrier_caps, max_double_reduction) == 24);
ABI(sizeof(struct utofu_vbg_setting) == 48);
ABI(offsetof(struct utofu_vbg_setting, vbg_id) == 0);
ABI(offsetof(struct utofu_vbg_setting, src_lcl_vbg_id) == 8);
ABI(offsetof(struct utofu_vbg_setting, src_rmt_vbg_id) == 16);
ABI(offsetof(struct utofu_vbg_setting, dst_lcl_vbg_id) == 24);
ABI(offsetof(struct utofu_vbg_setting, dst_rmt_vbg_id) == 32);
ABI(offsetof(struct utofu_vbg_setting, dst_path_coords) == 40);
ABI(sizeof(struct utofu_mrq_notice) == 64);
ABI(offsetof(struct utofu_mrq_notice, notice_type) == 0);
ABI(offsetof(struct utofu_mrq_notice, vcq_id) == 8);
ABI(offsetof(struct utofu_mrq_notice, edata) == 16);
ABI(offsetof(struct utofu_mrq_notice, rmt_value) == 24);
ABI(offsetof(struct utofu_mrq_notice, lcl_stadd) == 32);
ABI(offsetof(struct utofu_mrq_notice, rmt_stadd) == 40);
ABI(offsetof(struct utofu_mrq_notice, reserved) == 48);

static int functions;

/* A function of this type can be linked. */
#define FUNCTION(result, name, ...)                                                                \
    {                                                                                              \
        result (*function)(__VA_ARGS__) = name;                                                    \
        functions += function != NULL;                                                             \
    }

int main(void)
{
    FUNCTION(int, utofu_alloc_vbg, utofu_tni_id_t, size_t, unsigned long, utofu_vbg_id_t *)
    FUNCTION(int, utofu_armw4, utofu_vcq_hdl_t, utofu_vcq_id_t, enum utofu_armw_op, uint32_t,
             utofu_stadd_t, uint64_t, unsigned long, void *)
    FUNCTION(int, utofu_armw8, utofu_vcq_hdl_t, utofu_vcq_id_t, enum utofu_armw_op, uint64_t,
             utofu_stadd_t, uint64_t, unsigned long, void *)
    FUNCTION(int, utofu_barrier, utofu_vbg_id_t, unsigned long)
    FUNCTION(int, utofu_construct_vcq_id, uint8_t *, utofu_tni_id_t, utofu_cq_id_t, utofu_cmp_id_t,
             utofu_vcq_id_t *)
    FUNCTION(int, utofu_create_vcq, utofu_tni_id_t, unsigned long, utofu_vcq_hdl_t *)
    FUNCTION(int, utofu_create_vcq_with_cmp_id, utofu_tni_id_t, utofu_cmp_id_t, unsigned long,
             utofu_vcq_hdl_t *)
    FUNCTION(int, utofu_cswap4, utofu_vcq_hdl_t, utofu_vcq_id_t, uint32_t, uint32_t, utofu_stadd_t,
             uint64_t, unsigned long, void *)
    FUNCTION(int, utofu_cswap8, utofu_vcq_hdl_t, utofu_vcq_id_t, uint64_t, uint64_t, utofu_stadd_t,
             uint64_t, unsigned long, void *)
    FUNCTION(int, utofu_dereg_mem, utofu_vcq_hdl_t, utofu_stadd_t, unsigned long)
    FUNCTION(int, utofu_free_vbg, utofu_vbg_id_t *, size_t)
    FUNCTION(int, utofu_free_vcq, utofu_vcq_hdl_t)
    FUNCTION(int, utofu_get, utofu_vcq_hdl_t, utofu_vcq_id_t, utofu_stadd_t, utofu_stadd_t, size_t,
             uint64_t, unsigned long, void *)
    FUNCTION(int, utofu_get_barrier_tnis, utofu_tni_id_t **, size_t *)
    FUNCTION(int, utofu_get_gap, utofu_vcq_hdl_t, utofu_vcq_id_t, utofu_stadd_t, utofu_stadd_t,
             size_t, uint64_t, unsigned long, size_t, size_t, void *)
    FUNCTION(int, utofu_get_onesided_tnis, utofu_tni_id_t **, size_t *)
    FUNCTION(int, utofu_get_path_coords, utofu_vcq_id_t, utofu_path_id_t, uint8_t *)
    FUNCTION(int, utofu_get_path_id, utofu_vcq_id_t, uint8_t *, utofu_path_id_t *)
    FUNCTION(int, utofu_get_stride, utofu_vcq_hdl_t, utofu_vcq_id_t, utofu_stadd_t, utofu_stadd_t,
             size_t, size_t, size_t, uint64_t, unsigned long, void *)
    FUNCTION(int, utofu_get_stride_gap, utofu_vcq_hdl_t, utofu_vcq_id_t, utofu_stadd_t,
             utofu_stadd_t, size_t, size_t, size_t, uint64_t, unsigned long, size_t, size_t,
             void *)
    FUNCTION(int, utofu_nop, utofu_vcq_hdl_t, unsigned long, void *)
    FUNCTION(int, utofu_poll_barrier, utofu_vbg_id_t, unsigned long)
    FUNCTION(int, utofu_poll_mrq, utofu_vcq_hdl_t, unsigned long, struct utofu_mrq_notice *)
    FUNCTION(int, utofu_poll_reduce_double, utofu_vbg_id_t, unsigned long, double *)
    FUNCTION(int, utofu_poll_reduce_uint64, utofu_vbg_id_t, unsigned long, uint64_t *)
    FUNCTION(int, utofu_poll_tcq, utofu_vcq_hdl_t, unsigned long, void **)
    FUNCTION(int, utofu_post_toq, utofu_vcq_hdl_t, void *, size_t, void *)
    FUNCTION(int, utofu_prepare_armw4, utofu_vcq_hdl_t, utofu_vcq_id_t, enum utofu_armw_op,
             uint32_t, utofu_stadd_t, uint64_t, unsigned long, void *, size_t *)
    FUNCTION(int, utofu_prepare_armw8, utofu_vcq_hdl_t, utofu_vcq_id_t, enum utofu_armw_op,
             uint64_t, utofu_stadd_t, uint64_t, unsigned long, void *, size_t *)
    FUNCTION(int, utofu_prepare_cswap4, utofu_vcq_hdl_t, utofu_vcq_id_t, uint32_t, uint32_t,
             utofu_stadd_t, uint64_t, unsigned long, void *, size_t *)
    FUNCTION(int, utofu_prepare_cswap8, utofu_vcq_hdl_t, utofu_vcq_id_t, uint64_t, uint64_t,
             utofu_stadd_t, uint64_t, unsigned long, void *, size_t *)
    FUNCTION(int, utofu_prepare_get, utofu_vcq_hdl_t, utofu_vcq_id_t, utofu_stadd_t, utofu_stadd_t,
             size_t, uint64_t, unsigned long, void *, size_t *)
    FUNCTION(int, utofu_prepare_get_gap, utofu_vcq_hdl_t, utofu_vcq_id_t, utofu_stadd_t,
             utofu_stadd_t, size_t, uint64_t, unsigned long, size_t, size_t, void *, size_t *)
    FUNCTION(int, utofu_prepare_get_stride, utofu_vcq_hdl_t, utofu_vcq_id_t, utofu_stadd_t,
             utofu_stadd_t, size_t, size_t, size_t, uint64_t, unsigned long, void *, size_t *)
    FUNCTION(int, utofu_prepare_get_stride_gap, utofu_vcq_hdl_t, utofu_vcq_id_t, utofu_stadd_t,
             utofu_stadd_t, size_t, size_t, size_t, uint64_t, unsigned long, size_t, size_t, void *,
             size_t *)
    FUNCTION(int, utofu_prepare_nop, utofu_vcq_hdl_t, unsigned long, void *, size_t *)
    FUNCTION(int, utofu_prepare_put, utofu_vcq_hdl_t, utofu_vcq_id_t, utofu_stadd_t, utofu_stadd_t,
             size_t, uint64_t, unsigned long, void *, size_t *)
    FUNCTION(int, utofu_prepare_put_gap, utofu_vcq_hdl_t, utofu_vcq_id_t, utofu_stadd_t,
             utofu_stadd_t, size_t, uint64_t, unsigned long, size_t, size_t, void *, size_t *)
    FUNCTION(int, utofu_prepare_put_piggyback, utofu_vcq_hdl_t, utofu_vcq_id_t, void *,
             utofu_stadd_t, size_t, uint64_t, unsigned long, void *, size_t *)
    FUNCTION(int, utofu_prepare_put_piggyback8, utofu_vcq_hdl_t, utofu_vcq_id_t, uint64_t,
             utofu_stadd_t, size_t, uint64_t, unsigned long, void *, size_t *)
    FUNCTION(int, utofu_prepare_put_stride, utofu_vcq_hdl_t, utofu_vcq_id_t, utofu_stadd_t,
             utofu_stadd_t, size_t, size_t, size_t, uint64_t, unsigned long, void *, size_t *)
    FUNCTION(int, utofu_prepare_put_stride_gap, utofu_vcq_hdl_t, utofu_vcq_id_t, utofu_stadd_t,
             utofu_stadd_t, size_t, size_t, size_t, uint64_t, unsigned long, size_t, size_t, void *,
             size_t *)
    FUNCTION(int, utofu_put, utofu_vcq_hdl_t, utofu_vcq_id_t, utofu_stadd_t, utofu_stadd_t, size_t,
             uint64_t, unsigned long, void *)
    FUNCTION(int, utofu_put_gap, utofu_vcq_hdl_t, utofu_vcq_id_t, utofu_stadd_t, utofu_stadd_t,
             size_t, uint64_t, unsigned long, size_t, size_t, void *)
    FUNCTION(int, utofu_put_piggyback, utofu_vcq_hdl_t, utofu_vcq_id_t, void *, utofu_stadd_t,
             size_t, uint64_t, unsigned long, void *)
    FUNCTION(int, utofu_put_piggyback8, utofu_vcq_hdl_t, utofu_vcq_id_t, uint64_t, utofu_stadd_t,
             size_t, uint64_t, unsigned long, void *)
    FUNCTION(int, utofu_put_stride, utofu_vcq_hdl_t, utofu_vcq_id_t, utofu_stadd_t, utofu_stadd_t,
             size_t, size_t, size_t, uint64_t, unsigned long, void *)
    FUNCTION(int, utofu_put_stride_gap, utofu_vcq_hdl_t, utofu_vcq_id_t, utofu_stadd_t,
             utofu_stadd_t, size_t, size_t, size_t, uint64_t, unsigned long, size_t, size_t,
             void *)
    FUNCTION(int, utofu_query_barrier_caps, utofu_tni_id_t, struct utofu_barrier_caps **)
    FUNCTION(int, utofu_query_my_coords, uint8_t *)
    FUNCTION(int, utofu_query_num_unread_mrq, utofu_vcq_hdl_t, size_t *)
    FUNCTION(int, utofu_query_num_unread_tcq, utofu_vcq_hdl_t, size_t *)
    FUNCTION(int, utofu_query_onesided_caps, utofu_tni_id_t, struct utofu_onesided_caps **)
    FUNCTION(int, utofu_query_stadd, utofu_vcq_id_t, unsigned, utofu_stadd_t *)
    FUNCTION(int, utofu_query_vbg_info, utofu_vbg_id_t, uint8_t *, utofu_tni_id_t *,
             utofu_bg_id_t *, uint16_t *)
    FUNCTION(int, utofu_query_vcq_id, utofu_vcq_hdl_t, utofu_vcq_id_t *)
    FUNCTION(int, utofu_query_vcq_info, utofu_vcq_id_t, uint8_t *, utofu_tni_id_t *,
             utofu_cq_id_t *, uint16_t *)
    FUNCTION(int, utofu_reduce_double, utofu_vbg_id_t, enum utofu_reduce_op, double *, size_t,
             unsigned long)
    FUNCTION(int, utofu_reduce_uint64, utofu_vbg_id_t, enum utofu_reduce_op, uint64_t *, size_t,
             unsigned long)
    FUNCTION(int, utofu_reg_mem, utofu_vcq_hdl_t, void *, size_t, unsigned long, utofu_stadd_t *)
    FUNCTION(int, utofu_reg_mem_with_stag, utofu_vcq_hdl_t, void *, size_t, unsigned, unsigned long,
             utofu_stadd_t *)
    FUNCTION(int, utofu_set_vbg, struct utofu_vbg_setting *, size_t)
    FUNCTION(int, utofu_set_vcq_id_path, utofu_vcq_id_t *, uint8_t *)
    FUNCTION(void, utofu_query_tofu_version, int *, int *)
    FUNCTION(void, utofu_query_utofu_version, int *, int *)
    FUNCTION(void, utofu_get_last_error, char *)
    printf("%d functions\n", functions);
    return functions == 66 ? 0 : 1;
}

/*
 * What programs for Tofu machines rely on when they are compiled: values, sizes, offsets and
 * signatures of utofu.h, written down once more, and that all functions can be linked.
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

_Static_assert(UTOFU_VERSION_MAJOR == 1, "UTOFU_VERSION_MAJOR");
_Static_assert(UTOFU_VERSION_MINOR == 0, "UTOFU_VERSION_MINOR");
_Static_assert(UTOFU_ONESIDED_CAP_FLAG_SESSION_MODE == 1UL << 0, "UTOFU_ONESIDED_CAP_FLAG_SESSION_MODE");
_Static_assert(UTOFU_ONESIDED_CAP_FLAG_ARMW == 1UL << 1, "UTOFU_ONESIDED_CAP_FLAG_ARMW");
_Static_assert(UTOFU_ONESIDED_CAP_ARMW_OP_CSWAP == 1UL << 0, "UTOFU_ONESIDED_CAP_ARMW_OP_CSWAP");
_Static_assert(UTOFU_ONESIDED_CAP_ARMW_OP_SWAP == 1UL << 1, "UTOFU_ONESIDED_CAP_ARMW_OP_SWAP");
_Static_assert(UTOFU_ONESIDED_CAP_ARMW_OP_ADD == 1UL << 2, "UTOFU_ONESIDED_CAP_ARMW_OP_ADD");
_Static_assert(UTOFU_ONESIDED_CAP_ARMW_OP_XOR == 1UL << 3, "UTOFU_ONESIDED_CAP_ARMW_OP_XOR");
_Static_assert(UTOFU_ONESIDED_CAP_ARMW_OP_AND == 1UL << 4, "UTOFU_ONESIDED_CAP_ARMW_OP_AND");
_Static_assert(UTOFU_ONESIDED_CAP_ARMW_OP_OR == 1UL << 5, "UTOFU_ONESIDED_CAP_ARMW_OP_OR");
_Static_assert(UTOFU_BARRIER_CAP_REDUCE_OP_BARRIER == 1UL << 1, "UTOFU_BARRIER_CAP_REDUCE_OP_BARRIER");
_Static_assert(UTOFU_BARRIER_CAP_REDUCE_OP_BAND == 1UL << 2, "UTOFU_BARRIER_CAP_REDUCE_OP_BAND");
_Static_assert(UTOFU_BARRIER_CAP_REDUCE_OP_BOR == 1UL << 3, "UTOFU_BARRIER_CAP_REDUCE_OP_BOR");
_Static_assert(UTOFU_BARRIER_CAP_REDUCE_OP_BXOR == 1UL << 4, "UTOFU_BARRIER_CAP_REDUCE_OP_BXOR");
_Static_assert(UTOFU_BARRIER_CAP_REDUCE_OP_MAX == 1UL << 5, "UTOFU_BARRIER_CAP_REDUCE_OP_MAX");
_Static_assert(UTOFU_BARRIER_CAP_REDUCE_OP_MAXLOC == 1UL << 6, "UTOFU_BARRIER_CAP_REDUCE_OP_MAXLOC");
_Static_assert(UTOFU_BARRIER_CAP_REDUCE_OP_SUM == 1UL << 7, "UTOFU_BARRIER_CAP_REDUCE_OP_SUM");
_Static_assert(UTOFU_BARRIER_CAP_REDUCE_OP_BFPSUM == 1UL << 8, "UTOFU_BARRIER_CAP_REDUCE_OP_BFPSUM");
_Static_assert(UTOFU_VCQ_FLAG_THREAD_SAFE == 1UL << 0, "UTOFU_VCQ_FLAG_THREAD_SAFE");
_Static_assert(UTOFU_VCQ_FLAG_EXCLUSIVE == 1UL << 1, "UTOFU_VCQ_FLAG_EXCLUSIVE");
_Static_assert(UTOFU_VCQ_FLAG_SESSION_MODE == 1UL << 2, "UTOFU_VCQ_FLAG_SESSION_MODE");
_Static_assert(UTOFU_VBG_FLAG_THREAD_SAFE == 1UL << 0, "UTOFU_VBG_FLAG_THREAD_SAFE");
_Static_assert(UTOFU_REG_MEM_FLAG_READ_ONLY == 1UL << 0, "UTOFU_REG_MEM_FLAG_READ_ONLY");
_Static_assert(UTOFU_ONESIDED_FLAG_STRONG_ORDER == 1UL << 0, "UTOFU_ONESIDED_FLAG_STRONG_ORDER");
_Static_assert(UTOFU_ONESIDED_FLAG_PACKET_RESPONSE == 1UL << 1, "UTOFU_ONESIDED_FLAG_PACKET_RESPONSE");
_Static_assert(UTOFU_ONESIDED_FLAG_REMOTE_MRQ_NOTICE == 1UL << 2, "UTOFU_ONESIDED_FLAG_REMOTE_MRQ_NOTICE");
_Static_assert(UTOFU_ONESIDED_FLAG_PADDING == 1UL << 3, "UTOFU_ONESIDED_FLAG_PADDING");
_Static_assert(UTOFU_ONESIDED_FLAG_CACHE_INJECTION == 1UL << 5, "UTOFU_ONESIDED_FLAG_CACHE_INJECTION");
_Static_assert(UTOFU_ONESIDED_FLAG_DELAY_START == 1UL << 8, "UTOFU_ONESIDED_FLAG_DELAY_START");
_Static_assert(UTOFU_ONESIDED_FLAG_TCQ_NOTICE == 1UL << 14, "UTOFU_ONESIDED_FLAG_TCQ_NOTICE");
_Static_assert(UTOFU_ONESIDED_FLAG_LOCAL_MRQ_NOTICE == 1UL << 15, "UTOFU_ONESIDED_FLAG_LOCAL_MRQ_NOTICE");
_Static_assert(UTOFU_ONESIDED_FLAG_SPS(5) == 5UL << 24, "UTOFU_ONESIDED_FLAG_SPS(5)");
_Static_assert(UTOFU_ONESIDED_FLAG_PATH(9) == 9UL << 28, "UTOFU_ONESIDED_FLAG_PATH(9)");
_Static_assert(UTOFU_VBG_ID_NULL == 0xffffffffffffffffULL, "UTOFU_VBG_ID_NULL");
_Static_assert(UTOFU_PATH_COORD_NULL == 255, "UTOFU_PATH_COORD_NULL");
_Static_assert(UTOFU_SUCCESS == 0, "UTOFU_SUCCESS");
_Static_assert(UTOFU_ERR_NOT_FOUND == -1, "UTOFU_ERR_NOT_FOUND");
_Static_assert(UTOFU_ERR_NOT_COMPLETED == -2, "UTOFU_ERR_NOT_COMPLETED");
_Static_assert(UTOFU_ERR_NOT_PROCESSED == -3, "UTOFU_ERR_NOT_PROCESSED");
_Static_assert(UTOFU_ERR_BUSY == -4, "UTOFU_ERR_BUSY");
_Static_assert(UTOFU_ERR_USED == -5, "UTOFU_ERR_USED");
_Static_assert(UTOFU_ERR_FULL == -6, "UTOFU_ERR_FULL");
_Static_assert(UTOFU_ERR_NOT_AVAILABLE == -7, "UTOFU_ERR_NOT_AVAILABLE");
_Static_assert(UTOFU_ERR_NOT_SUPPORTED == -8, "UTOFU_ERR_NOT_SUPPORTED");
_Static_assert(UTOFU_ERR_TCQ_OTHER == -128, "UTOFU_ERR_TCQ_OTHER");
_Static_assert(UTOFU_ERR_TCQ_DESC == -129, "UTOFU_ERR_TCQ_DESC");
_Static_assert(UTOFU_ERR_TCQ_MEMORY == -130, "UTOFU_ERR_TCQ_MEMORY");
_Static_assert(UTOFU_ERR_TCQ_STADD == -131, "UTOFU_ERR_TCQ_STADD");
_Static_assert(UTOFU_ERR_TCQ_LENGTH == -132, "UTOFU_ERR_TCQ_LENGTH");
_Static_assert(UTOFU_ERR_MRQ_OTHER == -192, "UTOFU_ERR_MRQ_OTHER");
_Static_assert(UTOFU_ERR_MRQ_PEER == -193, "UTOFU_ERR_MRQ_PEER");
_Static_assert(UTOFU_ERR_MRQ_LCL_MEMORY == -194, "UTOFU_ERR_MRQ_LCL_MEMORY");
_Static_assert(UTOFU_ERR_MRQ_RMT_MEMORY == -195, "UTOFU_ERR_MRQ_RMT_MEMORY");
_Static_assert(UTOFU_ERR_MRQ_LCL_STADD == -196, "UTOFU_ERR_MRQ_LCL_STADD");
_Static_assert(UTOFU_ERR_MRQ_RMT_STADD == -197, "UTOFU_ERR_MRQ_RMT_STADD");
_Static_assert(UTOFU_ERR_MRQ_LCL_LENGTH == -198, "UTOFU_ERR_MRQ_LCL_LENGTH");
_Static_assert(UTOFU_ERR_MRQ_RMT_LENGTH == -199, "UTOFU_ERR_MRQ_RMT_LENGTH");
_Static_assert(UTOFU_ERR_BARRIER_OTHER == -256, "UTOFU_ERR_BARRIER_OTHER");
_Static_assert(UTOFU_ERR_BARRIER_MISMATCH == -257, "UTOFU_ERR_BARRIER_MISMATCH");
_Static_assert(UTOFU_ERR_INVALID_ARG == -512, "UTOFU_ERR_INVALID_ARG");
_Static_assert(UTOFU_ERR_INVALID_POINTER == -513, "UTOFU_ERR_INVALID_POINTER");
_Static_assert(UTOFU_ERR_INVALID_FLAGS == -514, "UTOFU_ERR_INVALID_FLAGS");
_Static_assert(UTOFU_ERR_INVALID_COORDS == -515, "UTOFU_ERR_INVALID_COORDS");
_Static_assert(UTOFU_ERR_INVALID_PATH == -516, "UTOFU_ERR_INVALID_PATH");
_Static_assert(UTOFU_ERR_INVALID_TNI_ID == -517, "UTOFU_ERR_INVALID_TNI_ID");
_Static_assert(UTOFU_ERR_INVALID_CQ_ID == -518, "UTOFU_ERR_INVALID_CQ_ID");
_Static_assert(UTOFU_ERR_INVALID_BG_ID == -519, "UTOFU_ERR_INVALID_BG_ID");
_Static_assert(UTOFU_ERR_INVALID_CMP_ID == -520, "UTOFU_ERR_INVALID_CMP_ID");
_Static_assert(UTOFU_ERR_INVALID_VCQ_HDL == -521, "UTOFU_ERR_INVALID_VCQ_HDL");
_Static_assert(UTOFU_ERR_INVALID_VCQ_ID == -522, "UTOFU_ERR_INVALID_VCQ_ID");
_Static_assert(UTOFU_ERR_INVALID_VBG_ID == -523, "UTOFU_ERR_INVALID_VBG_ID");
_Static_assert(UTOFU_ERR_INVALID_PATH_ID == -524, "UTOFU_ERR_INVALID_PATH_ID");
_Static_assert(UTOFU_ERR_INVALID_STADD == -525, "UTOFU_ERR_INVALID_STADD");
_Static_assert(UTOFU_ERR_INVALID_ADDRESS == -526, "UTOFU_ERR_INVALID_ADDRESS");
_Static_assert(UTOFU_ERR_INVALID_SIZE == -527, "UTOFU_ERR_INVALID_SIZE");
_Static_assert(UTOFU_ERR_INVALID_STAG == -528, "UTOFU_ERR_INVALID_STAG");
_Static_assert(UTOFU_ERR_INVALID_EDATA == -529, "UTOFU_ERR_INVALID_EDATA");
_Static_assert(UTOFU_ERR_INVALID_NUMBER == -530, "UTOFU_ERR_INVALID_NUMBER");
_Static_assert(UTOFU_ERR_INVALID_OP == -531, "UTOFU_ERR_INVALID_OP");
_Static_assert(UTOFU_ERR_INVALID_DESC == -532, "UTOFU_ERR_INVALID_DESC");
_Static_assert(UTOFU_ERR_INVALID_DATA == -533, "UTOFU_ERR_INVALID_DATA");
_Static_assert(UTOFU_ERR_OUT_OF_RESOURCE == -640, "UTOFU_ERR_OUT_OF_RESOURCE");
_Static_assert(UTOFU_ERR_OUT_OF_MEMORY == -641, "UTOFU_ERR_OUT_OF_MEMORY");
_Static_assert(UTOFU_ERR_FATAL == -768, "UTOFU_ERR_FATAL");
_Static_assert(UTOFU_ARMW_OP_SWAP == 1, "UTOFU_ARMW_OP_SWAP");
_Static_assert(UTOFU_ARMW_OP_ADD == 2, "UTOFU_ARMW_OP_ADD");
_Static_assert(UTOFU_ARMW_OP_XOR == 3, "UTOFU_ARMW_OP_XOR");
_Static_assert(UTOFU_ARMW_OP_AND == 4, "UTOFU_ARMW_OP_AND");
_Static_assert(UTOFU_ARMW_OP_OR == 5, "UTOFU_ARMW_OP_OR");
_Static_assert(UTOFU_REDUCE_OP_BARRIER == 1, "UTOFU_REDUCE_OP_BARRIER");
_Static_assert(UTOFU_REDUCE_OP_BAND == 2, "UTOFU_REDUCE_OP_BAND");
_Static_assert(UTOFU_REDUCE_OP_BOR == 3, "UTOFU_REDUCE_OP_BOR");
_Static_assert(UTOFU_REDUCE_OP_BXOR == 4, "UTOFU_REDUCE_OP_BXOR");
_Static_assert(UTOFU_REDUCE_OP_MAX == 5, "UTOFU_REDUCE_OP_MAX");
_Static_assert(UTOFU_REDUCE_OP_MAXLOC == 6, "UTOFU_REDUCE_OP_MAXLOC");
_Static_assert(UTOFU_REDUCE_OP_SUM == 7, "UTOFU_REDUCE_OP_SUM");
_Static_assert(UTOFU_REDUCE_OP_BFPSUM == 8, "UTOFU_REDUCE_OP_BFPSUM");
_Static_assert(UTOFU_MRQ_TYPE_LCL_PUT == 0, "UTOFU_MRQ_TYPE_LCL_PUT");
_Static_assert(UTOFU_MRQ_TYPE_RMT_PUT == 1, "UTOFU_MRQ_TYPE_RMT_PUT");
_Static_assert(UTOFU_MRQ_TYPE_LCL_GET == 2, "UTOFU_MRQ_TYPE_LCL_GET");
_Static_assert(UTOFU_MRQ_TYPE_RMT_GET == 3, "UTOFU_MRQ_TYPE_RMT_GET");
_Static_assert(UTOFU_MRQ_TYPE_LCL_ARMW == 4, "UTOFU_MRQ_TYPE_LCL_ARMW");
_Static_assert(UTOFU_MRQ_TYPE_RMT_ARMW == 5, "UTOFU_MRQ_TYPE_RMT_ARMW");
_Static_assert(sizeof(utofu_tni_id_t) == 2, "sizeof(utofu_tni_id_t)");
_Static_assert((utofu_tni_id_t)-1 > 0, "utofu_tni_id_t has no sign");
_Static_assert(sizeof(utofu_cq_id_t) == 2, "sizeof(utofu_cq_id_t)");
_Static_assert((utofu_cq_id_t)-1 > 0, "utofu_cq_id_t has no sign");
_Static_assert(sizeof(utofu_bg_id_t) == 2, "sizeof(utofu_bg_id_t)");
_Static_assert((utofu_bg_id_t)-1 > 0, "utofu_bg_id_t has no sign");
_Static_assert(sizeof(utofu_cmp_id_t) == 2, "sizeof(utofu_cmp_id_t)");
_Static_assert((utofu_cmp_id_t)-1 > 0, "utofu_cmp_id_t has no sign");
_Static_assert(sizeof(utofu_path_id_t) == 1, "sizeof(utofu_path_id_t)");
_Static_assert((utofu_path_id_t)-1 > 0, "utofu_path_id_t has no sign");
_Static_assert(sizeof(utofu_vcq_hdl_t) == 8, "sizeof(utofu_vcq_hdl_t)");
_Static_assert((utofu_vcq_hdl_t)-1 > 0, "utofu_vcq_hdl_t has no sign");
_Static_assert(sizeof(utofu_vcq_id_t) == 8, "sizeof(utofu_vcq_id_t)");
_Static_assert((utofu_vcq_id_t)-1 > 0, "utofu_vcq_id_t has no sign");
_Static_assert(sizeof(utofu_vbg_id_t) == 8, "sizeof(utofu_vbg_id_t)");
_Static_assert((utofu_vbg_id_t)-1 > 0, "utofu_vbg_id_t has no sign");
_Static_assert(sizeof(utofu_stadd_t) == 8, "sizeof(utofu_stadd_t)");
_Static_assert((utofu_stadd_t)-1 > 0, "utofu_stadd_t has no sign");
_Static_assert(sizeof(struct utofu_onesided_caps) == 88, "sizeof(struct utofu_onesided_caps)");
_Static_assert(offsetof(struct utofu_onesided_caps, flags) == 0, "offsetof(struct utofu_onesided_caps, flags)");
_Static_assert(offsetof(struct utofu_onesided_caps, armw_ops) == 8, "offsetof(struct utofu_onesided_caps, armw_ops)");
_Static_assert(offsetof(struct utofu_onesided_caps, num_cmp_ids) == 16, "offsetof(struct utofu_onesided_caps, num_cmp_ids)");
_Static_assert(offsetof(struct utofu_onesided_caps, num_reserved_stags) == 20, "offsetof(struct utofu_onesided_caps, num_reserved_stags)");
_Static_assert(offsetof(struct utofu_onesided_caps, cache_line_size) == 24, "offsetof(struct utofu_onesided_caps, cache_line_size)");
_Static_assert(offsetof(struct utofu_onesided_caps, stag_address_alignment) == 32, "offsetof(struct utofu_onesided_caps, stag_address_alignment)");
_Static_assert(offsetof(struct utofu_onesided_caps, max_toq_desc_size) == 40, "offsetof(struct utofu_onesided_caps, max_toq_desc_size)");
_Static_assert(offsetof(struct utofu_onesided_caps, max_putget_size) == 48, "offsetof(struct utofu_onesided_caps, max_putget_size)");
_Static_assert(offsetof(struct utofu_onesided_caps, max_piggyback_size) == 56, "offsetof(struct utofu_onesided_caps, max_piggyback_size)");
_Static_assert(offsetof(struct utofu_onesided_caps, max_edata_size) == 64, "offsetof(struct utofu_onesided_caps, max_edata_size)");
_Static_assert(offsetof(struct utofu_onesided_caps, max_mtu) == 72, "offsetof(struct utofu_onesided_caps, max_mtu)");
_Static_assert(offsetof(struct utofu_onesided_caps, max_gap) == 80, "offsetof(struct utofu_onesided_caps, max_gap)");
_Static_assert(sizeof(struct utofu_barrier_caps) == 32, "sizeof(struct utofu_barrier_caps)");
_Static_assert(offsetof(struct utofu_barrier_caps, flags) == 0, "offsetof(struct utofu_barrier_caps, flags)");
_Static_assert(offsetof(struct utofu_barrier_caps, reduce_ops) == 8, "offsetof(struct utofu_barrier_caps, reduce_ops)");
_Static_assert(offsetof(struct utofu_barrier_caps, max_uint64_reduction) == 16, "offsetof(struct utofu_barrier_caps, max_uint64_reduction)");
_Static_assert(offsetof(struct utofu_barrier_caps, max_double_reduction) == 24, "offsetof(struct utofu_barrier_caps, max_double_reduction)");
_Static_assert(sizeof(struct utofu_vbg_setting) == 48, "sizeof(struct utofu_vbg_setting)");
_Static_assert(offsetof(struct utofu_vbg_setting, vbg_id) == 0, "offsetof(struct utofu_vbg_setting, vbg_id)");
_Static_assert(offsetof(struct utofu_vbg_setting, src_lcl_vbg_id) == 8, "offsetof(struct utofu_vbg_setting, src_lcl_vbg_id)");
_Static_assert(offsetof(struct utofu_vbg_setting, src_rmt_vbg_id) == 16, "offsetof(struct utofu_vbg_setting, src_rmt_vbg_id)");
_Static_assert(offsetof(struct utofu_vbg_setting, dst_lcl_vbg_id) == 24, "offsetof(struct utofu_vbg_setting, dst_lcl_vbg_id)");
_Static_assert(offsetof(struct utofu_vbg_setting, dst_rmt_vbg_id) == 32, "offsetof(struct utofu_vbg_setting, dst_rmt_vbg_id)");
_Static_assert(offsetof(struct utofu_vbg_setting, dst_path_coords) == 40, "offsetof(struct utofu_vbg_setting, dst_path_coords)");
_Static_assert(sizeof(struct utofu_mrq_notice) == 64, "sizeof(struct utofu_mrq_notice)");
_Static_assert(offsetof(struct utofu_mrq_notice, notice_type) == 0, "offsetof(struct utofu_mrq_notice, notice_type)");
_Static_assert(offsetof(struct utofu_mrq_notice, vcq_id) == 8, "offsetof(struct utofu_mrq_notice, vcq_id)");
_Static_assert(offsetof(struct utofu_mrq_notice, edata) == 16, "offsetof(struct utofu_mrq_notice, edata)");
_Static_assert(offsetof(struct utofu_mrq_notice, rmt_value) == 24, "offsetof(struct utofu_mrq_notice, rmt_value)");
_Static_assert(offsetof(struct utofu_mrq_notice, lcl_stadd) == 32, "offsetof(struct utofu_mrq_notice, lcl_stadd)");
_Static_assert(offsetof(struct utofu_mrq_notice, rmt_stadd) == 40, "offsetof(struct utofu_mrq_notice, rmt_stadd)");
_Static_assert(offsetof(struct utofu_mrq_notice, reserved) == 48, "offsetof(struct utofu_mrq_notice, reserved)");

static int functions;

static void check(void *function)
{
    functions += function != NULL;
}

int main(void)
{
    {int (*f)(utofu_tni_id_t, size_t, unsigned long, utofu_vbg_id_t *) = utofu_alloc_vbg; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, utofu_vcq_id_t, enum utofu_armw_op, uint32_t, utofu_stadd_t, uint64_t, unsigned long, void *) = utofu_armw4; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, utofu_vcq_id_t, enum utofu_armw_op, uint64_t, utofu_stadd_t, uint64_t, unsigned long, void *) = utofu_armw8; check((void *)f);}
    {int (*f)(utofu_vbg_id_t, unsigned long) = utofu_barrier; check((void *)f);}
    {int (*f)(uint8_t *, utofu_tni_id_t, utofu_cq_id_t, utofu_cmp_id_t, utofu_vcq_id_t *) = utofu_construct_vcq_id; check((void *)f);}
    {int (*f)(utofu_tni_id_t, unsigned long, utofu_vcq_hdl_t *) = utofu_create_vcq; check((void *)f);}
    {int (*f)(utofu_tni_id_t, utofu_cmp_id_t, unsigned long, utofu_vcq_hdl_t *) = utofu_create_vcq_with_cmp_id; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, utofu_vcq_id_t, uint32_t, uint32_t, utofu_stadd_t, uint64_t, unsigned long, void *) = utofu_cswap4; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, utofu_vcq_id_t, uint64_t, uint64_t, utofu_stadd_t, uint64_t, unsigned long, void *) = utofu_cswap8; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, utofu_stadd_t, unsigned long) = utofu_dereg_mem; check((void *)f);}
    {int (*f)(utofu_vbg_id_t *, size_t) = utofu_free_vbg; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t) = utofu_free_vcq; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, utofu_vcq_id_t, utofu_stadd_t, utofu_stadd_t, size_t, uint64_t, unsigned long, void *) = utofu_get; check((void *)f);}
    {int (*f)(utofu_tni_id_t **, size_t *) = utofu_get_barrier_tnis; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, utofu_vcq_id_t, utofu_stadd_t, utofu_stadd_t, size_t, uint64_t, unsigned long, size_t, size_t, void *) = utofu_get_gap; check((void *)f);}
    {int (*f)(utofu_tni_id_t **, size_t *) = utofu_get_onesided_tnis; check((void *)f);}
    {int (*f)(utofu_vcq_id_t, utofu_path_id_t, uint8_t *) = utofu_get_path_coords; check((void *)f);}
    {int (*f)(utofu_vcq_id_t, uint8_t *, utofu_path_id_t *) = utofu_get_path_id; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, utofu_vcq_id_t, utofu_stadd_t, utofu_stadd_t, size_t, size_t, size_t, uint64_t, unsigned long, void *) = utofu_get_stride; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, utofu_vcq_id_t, utofu_stadd_t, utofu_stadd_t, size_t, size_t, size_t, uint64_t, unsigned long, size_t, size_t, void *) = utofu_get_stride_gap; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, unsigned long, void *) = utofu_nop; check((void *)f);}
    {int (*f)(utofu_vbg_id_t, unsigned long) = utofu_poll_barrier; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, unsigned long, struct utofu_mrq_notice *) = utofu_poll_mrq; check((void *)f);}
    {int (*f)(utofu_vbg_id_t, unsigned long, double *) = utofu_poll_reduce_double; check((void *)f);}
    {int (*f)(utofu_vbg_id_t, unsigned long, uint64_t *) = utofu_poll_reduce_uint64; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, unsigned long, void **) = utofu_poll_tcq; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, void *, size_t, void *) = utofu_post_toq; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, utofu_vcq_id_t, enum utofu_armw_op, uint32_t, utofu_stadd_t, uint64_t, unsigned long, void *, size_t *) = utofu_prepare_armw4; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, utofu_vcq_id_t, enum utofu_armw_op, uint64_t, utofu_stadd_t, uint64_t, unsigned long, void *, size_t *) = utofu_prepare_armw8; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, utofu_vcq_id_t, uint32_t, uint32_t, utofu_stadd_t, uint64_t, unsigned long, void *, size_t *) = utofu_prepare_cswap4; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, utofu_vcq_id_t, uint64_t, uint64_t, utofu_stadd_t, uint64_t, unsigned long, void *, size_t *) = utofu_prepare_cswap8; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, utofu_vcq_id_t, utofu_stadd_t, utofu_stadd_t, size_t, uint64_t, unsigned long, void *, size_t *) = utofu_prepare_get; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, utofu_vcq_id_t, utofu_stadd_t, utofu_stadd_t, size_t, uint64_t, unsigned long, size_t, size_t, void *, size_t *) = utofu_prepare_get_gap; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, utofu_vcq_id_t, utofu_stadd_t, utofu_stadd_t, size_t, size_t, size_t, uint64_t, unsigned long, void *, size_t *) = utofu_prepare_get_stride; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, utofu_vcq_id_t, utofu_stadd_t, utofu_stadd_t, size_t, size_t, size_t, uint64_t, unsigned long, size_t, size_t, void *, size_t *) = utofu_prepare_get_stride_gap; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, unsigned long, void *, size_t *) = utofu_prepare_nop; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, utofu_vcq_id_t, utofu_stadd_t, utofu_stadd_t, size_t, uint64_t, unsigned long, void *, size_t *) = utofu_prepare_put; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, utofu_vcq_id_t, utofu_stadd_t, utofu_stadd_t, size_t, uint64_t, unsigned long, size_t, size_t, void *, size_t *) = utofu_prepare_put_gap; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, utofu_vcq_id_t, void *, utofu_stadd_t, size_t, uint64_t, unsigned long, void *, size_t *) = utofu_prepare_put_piggyback; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, utofu_vcq_id_t, uint64_t, utofu_stadd_t, size_t, uint64_t, unsigned long, void *, size_t *) = utofu_prepare_put_piggyback8; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, utofu_vcq_id_t, utofu_stadd_t, utofu_stadd_t, size_t, size_t, size_t, uint64_t, unsigned long, void *, size_t *) = utofu_prepare_put_stride; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, utofu_vcq_id_t, utofu_stadd_t, utofu_stadd_t, size_t, size_t, size_t, uint64_t, unsigned long, size_t, size_t, void *, size_t *) = utofu_prepare_put_stride_gap; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, utofu_vcq_id_t, utofu_stadd_t, utofu_stadd_t, size_t, uint64_t, unsigned long, void *) = utofu_put; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, utofu_vcq_id_t, utofu_stadd_t, utofu_stadd_t, size_t, uint64_t, unsigned long, size_t, size_t, void *) = utofu_put_gap; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, utofu_vcq_id_t, void *, utofu_stadd_t, size_t, uint64_t, unsigned long, void *) = utofu_put_piggyback; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, utofu_vcq_id_t, uint64_t, utofu_stadd_t, size_t, uint64_t, unsigned long, void *) = utofu_put_piggyback8; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, utofu_vcq_id_t, utofu_stadd_t, utofu_stadd_t, size_t, size_t, size_t, uint64_t, unsigned long, void *) = utofu_put_stride; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, utofu_vcq_id_t, utofu_stadd_t, utofu_stadd_t, size_t, size_t, size_t, uint64_t, unsigned long, size_t, size_t, void *) = utofu_put_stride_gap; check((void *)f);}
    {int (*f)(utofu_tni_id_t, struct utofu_barrier_caps **) = utofu_query_barrier_caps; check((void *)f);}
    {int (*f)(uint8_t *) = utofu_query_my_coords; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, size_t *) = utofu_query_num_unread_mrq; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, size_t *) = utofu_query_num_unread_tcq; check((void *)f);}
    {int (*f)(utofu_tni_id_t, struct utofu_onesided_caps **) = utofu_query_onesided_caps; check((void *)f);}
    {int (*f)(utofu_vcq_id_t, unsigned, utofu_stadd_t *) = utofu_query_stadd; check((void *)f);}
    {int (*f)(utofu_vbg_id_t, uint8_t *, utofu_tni_id_t *, utofu_bg_id_t *, uint16_t *) = utofu_query_vbg_info; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, utofu_vcq_id_t *) = utofu_query_vcq_id; check((void *)f);}
    {int (*f)(utofu_vcq_id_t, uint8_t *, utofu_tni_id_t *, utofu_cq_id_t *, uint16_t *) = utofu_query_vcq_info; check((void *)f);}
    {int (*f)(utofu_vbg_id_t, enum utofu_reduce_op, double *, size_t, unsigned long) = utofu_reduce_double; check((void *)f);}
    {int (*f)(utofu_vbg_id_t, enum utofu_reduce_op, uint64_t *, size_t, unsigned long) = utofu_reduce_uint64; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, void *, size_t, unsigned long, utofu_stadd_t *) = utofu_reg_mem; check((void *)f);}
    {int (*f)(utofu_vcq_hdl_t, void *, size_t, unsigned, unsigned long, utofu_stadd_t *) = utofu_reg_mem_with_stag; check((void *)f);}
    {int (*f)(struct utofu_vbg_setting *, size_t) = utofu_set_vbg; check((void *)f);}
    {int (*f)(utofu_vcq_id_t *, uint8_t *) = utofu_set_vcq_id_path; check((void *)f);}
    {void (*f)(int *, int *) = utofu_query_tofu_version; check((void *)f);}
    {void (*f)(int *, int *) = utofu_query_utofu_version; check((void *)f);}
    {void (*f)(char *) = utofu_get_last_error; check((void *)f);}
    printf("%d functions\n", functions);
    return functions == 66 ? 0 : 1;
}

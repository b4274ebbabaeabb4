/*
 * Random commands between two processes, each compared with a model of both memories and of its
 * notices (TOFU_SHAPE=1x1x1x2x1x1). Arguments: commands, seed.
 */
#include "test.h"

enum { SIZE = 9000 };

static uint8_t mine[SIZE], theirs[SIZE], model_mine[SIZE], model_theirs[SIZE];
static uint64_t state;

static uint64_t any(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * 0x2545f4914f6cdd1dULL;
}

static size_t below(size_t n)
{
    return (size_t)(any() >> 20) % n;
}

static uint64_t word(const uint8_t *at, size_t len)
{
    uint64_t value = 0;
    memcpy(&value, at, len);
    return value;
}

static uint64_t changed(enum utofu_armw_op op, uint64_t old, uint64_t value)
{
    switch (op) {
    case UTOFU_ARMW_OP_SWAP: return value;
    case UTOFU_ARMW_OP_ADD: return old + value;
    case UTOFU_ARMW_OP_XOR: return old ^ value;
    case UTOFU_ARMW_OP_AND: return old & value;
    default: return old | value;
    }
}

int main(int argc, char **argv)
{
    int commands = argc > 1 ? atoi(argv[1]) : 2000;
    utofu_vcq_hdl_t a, b;
    utofu_vcq_id_t to;
    utofu_stadd_t lcl, rmt;
    struct utofu_mrq_notice notice;
    void *cbdata;
    state = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
    OK(tofu_inproc_select(1));
    OK(utofu_create_vcq(3, 0, &b));
    OK(utofu_query_vcq_id(b, &to));
    OK(utofu_reg_mem(b, theirs, SIZE, 0, &rmt));
    OK(tofu_inproc_select(0));
    OK(utofu_create_vcq(1, 0, &a));
    OK(utofu_reg_mem(a, mine, SIZE, 0, &lcl));

    for (int i = 0; i < commands; i++) {
        uint64_t edata = below(256), value = any();
        size_t len = below(6000), from = below(SIZE - len), at = below(SIZE - len);
        size_t wide = below(2) ? 8 : 4, cell = below(SIZE / 8) * 8;
        uint64_t old = word(theirs + cell, wide), mask = wide == 8 ? ~0ULL : 0xffffffff;
        int is_atomic = 0, type = UTOFU_MRQ_TYPE_LCL_PUT;
        /* The other side is told the end address. */
        utofu_stadd_t end = rmt + at + len;
        mine[below(SIZE)] = (uint8_t)value;
        memcpy(model_mine, mine, SIZE);
        memcpy(model_theirs, theirs, SIZE);
        switch (below(6)) {
        case 0:
            OK(utofu_put(a, to, lcl + from, rmt + at, len, edata, ALL, &mine[i % SIZE]));
            memcpy(model_theirs + at, mine + from, len);
            break;
        case 1:
            OK(utofu_put_gap(a, to, lcl + from, rmt + at, len, edata, ALL, 104 + 8 * below(200), 1,
                             &mine[i % SIZE]));
            memcpy(model_theirs + at, mine + from, len);
            break;
        case 2:
            type = UTOFU_MRQ_TYPE_LCL_GET;
            OK(utofu_get(a, to, lcl + from, rmt + at, len, edata, TCQ | LOCAL, &mine[i % SIZE]));
            memcpy(model_mine + from, theirs + at, len);
            break;
        case 3:
            len = 1 + below(32);
            from = below(SIZE - len);
            at = below(SIZE - len);
            end = rmt + at + len;
            OK(utofu_put_piggyback(a, to, mine + from, rmt + at, len, edata, ALL,
                                   &mine[i % SIZE]));
            memcpy(model_theirs + at, mine + from, len);
            break;
        case 4: {
            enum utofu_armw_op op = (enum utofu_armw_op)(1 + below(5));
            is_atomic = 1;
            OK(wide == 8 ? utofu_armw8(a, to, op, value, rmt + cell, edata, ALL, &mine[i % SIZE])
                         : utofu_armw4(a, to, op, (uint32_t)value, rmt + cell, edata, ALL,
                                       &mine[i % SIZE]));
            value = changed(op, old, value & mask);
            memcpy(model_theirs + cell, &value, wide);
            break;
        }
        default: {
            uint64_t guess = below(2) ? old : any() & mask;
            is_atomic = 1;
            OK(wide == 8 ? utofu_cswap8(a, to, guess, value, rmt + cell, edata, ALL,
                                        &mine[i % SIZE])
                         : utofu_cswap4(a, to, (uint32_t)guess, (uint32_t)value, rmt + cell, edata,
                                        ALL, &mine[i % SIZE]));
            if (guess == old) memcpy(model_theirs + cell, &value, wide);
        }
        }
        OK(wait_tcq(a, &cbdata));
        IS(cbdata == &mine[i % SIZE], 1);
        OK(wait_mrq(a, &notice));
        IS(notice.notice_type, is_atomic ? UTOFU_MRQ_TYPE_LCL_ARMW : type);
        IS(notice.edata, edata);
        IS(notice.rmt_stadd, is_atomic ? rmt + cell : end);
        if (is_atomic) IS(notice.rmt_value, old);
        if (is_atomic || type == UTOFU_MRQ_TYPE_LCL_PUT) {
            OK(wait_mrq(b, &notice));
            IS(notice.notice_type, is_atomic ? UTOFU_MRQ_TYPE_RMT_ARMW : UTOFU_MRQ_TYPE_RMT_PUT);
            IS(notice.edata, edata);
            IS(notice.rmt_stadd, is_atomic ? rmt + cell : end);
        }
        IS(memcmp(mine, model_mine, SIZE), 0);
        IS(memcmp(theirs, model_theirs, SIZE), 0);
    }
    IS(utofu_poll_tcq(a, 0, &cbdata), UTOFU_ERR_NOT_FOUND);
    IS(utofu_poll_mrq(a, 0, &notice), UTOFU_ERR_NOT_FOUND);
    IS(utofu_poll_mrq(b, 0, &notice), UTOFU_ERR_NOT_FOUND);
    puts("ok");
    return 0;
}

/*
 * Arbitrary calls of all functions, from several threads at once: arguments are valid, freed, wrong
 * or garbage. Nothing crashes, every code is one that the function can return (the Rust side
 * compares the lines "function code"), memory that is not registered does not change, and a
 * well-behaved program works afterwards (TOFU_SHAPE=1x1x1x2x1x1). Argument: calls of each thread.
 */
#include "test.h"

#include <pthread.h>
#include <sys/mman.h>

#define THREADS 3
#define HANDLES 12
#define PAGE 4096UL
/* The memory that is registered, with unmapped pages around it. */
#define ARENA (64 * PAGE)
/* After this many calls a thread starts over with new VCQs of its own. */
#define LIFE 5000

static uint8_t *arena;
static utofu_vcq_hdl_t handles[HANDLES];
static utofu_vcq_id_t ids[HANDLES];
static utofu_stadd_t stadds[HANDLES];

enum { FUNCTIONS = 65, CODES = 769 };
static const char *names[FUNCTIONS];
static uint8_t seen[FUNCTIONS][CODES];

struct rng {
    uint64_t state;
};

static uint64_t any(struct rng *r)
{
    r->state ^= r->state << 13;
    r->state ^= r->state >> 7;
    r->state ^= r->state << 17;
    return r->state * 0x2545f4914f6cdd1dULL;
}

static unsigned below(struct rng *r, unsigned n)
{
    return (unsigned)(any(r) >> 33) % n;
}

/* A number of any magnitude. */
static uint64_t number(struct rng *r)
{
    return any(r) >> below(r, 64);
}

/* Mostly a valid value, occasionally with a wrong bit, sometimes any value. */
static uint64_t about(struct rng *r, uint64_t good)
{
    switch (below(r, 8)) {
    case 0: return good ^ 1ULL << below(r, 64);
    case 1: return number(r);
    default: return good;
    }
}

static utofu_vcq_hdl_t handle(struct rng *r)
{
    return about(r, __atomic_load_n(&handles[below(r, HANDLES)], __ATOMIC_RELAXED));
}

static utofu_vcq_id_t id(struct rng *r)
{
    return about(r, __atomic_load_n(&ids[below(r, HANDLES)], __ATOMIC_RELAXED));
}

static utofu_stadd_t stadd(struct rng *r)
{
    utofu_stadd_t at = __atomic_load_n(&stadds[below(r, HANDLES)], __ATOMIC_RELAXED);
    return about(r, at + (below(r, 2) ? below(r, 5000) : 0));
}

static size_t length(struct rng *r)
{
    return below(r, 4) ? below(r, 6000) : number(r);
}

static unsigned long flags(struct rng *r)
{
    static const unsigned long good[] = {0, TCQ, LOCAL, REMOTE, ALL, ALL | 1, ALL | 8, ALL | 32};
    unsigned long value = good[below(r, 8)];
    if (below(r, 16) == 0) value |= UTOFU_ONESIDED_FLAG_DELAY_START;
    if (below(r, 8) == 0) value |= UTOFU_ONESIDED_FLAG_PATH(below(r, 16));
    if (below(r, 8) == 0) value |= UTOFU_ONESIDED_FLAG_SPS(below(r, 16));
    return below(r, 16) ? value : about(r, value);
}

static uint64_t edata(struct rng *r)
{
    return below(r, 16) ? below(r, 256) : number(r);
}

static enum utofu_armw_op op(struct rng *r)
{
    return (enum utofu_armw_op)(below(r, 8));
}

static unsigned long small(struct rng *r)
{
    return below(r, 8) ? 0 : number(r);
}

static void *address(struct rng *r)
{
    switch (below(r, 8)) {
    case 0: return NULL;
    case 1: return arena - PAGE + below(r, PAGE);
    default: return arena + below(r, ARENA);
    }
}

/* Occasionally NULL. */
#define OUT(pointer) (below(r, 16) ? (pointer) : NULL)

static void keep(struct rng *r, utofu_vcq_hdl_t vcq)
{
    unsigned place = below(r, HANDLES);
    utofu_vcq_hdl_t old = __atomic_exchange_n(&handles[place], vcq, __ATOMIC_RELAXED);
    utofu_vcq_id_t vcq_id;
    utofu_stadd_t at;
    utofu_free_vcq(old);
    if (utofu_query_vcq_id(vcq, &vcq_id) == UTOFU_SUCCESS)
        __atomic_store_n(&ids[place], vcq_id, __ATOMIC_RELAXED);
    if (utofu_reg_mem(vcq, arena + below(r, ARENA / 2), ARENA / 4, 0, &at) == UTOFU_SUCCESS)
        __atomic_store_n(&stadds[place], at, __ATOMIC_RELAXED);
}

static int call(struct rng *r, int which, const char **name)
{
    /* Room for the descriptors of 64 blocks and more, and of commands that are posted. */
    static __thread uint64_t desc[64 * 8];
    uint8_t data[64] = {0}, coords[6] = {0};
    utofu_tni_id_t *list = NULL, tni = (utofu_tni_id_t)below(r, 8);
    utofu_cq_id_t cq = (utofu_cq_id_t)below(r, 16);
    utofu_cmp_id_t cmp = (utofu_cmp_id_t)below(r, 10);
    utofu_path_id_t path;
    utofu_vcq_hdl_t vcq = 0;
    utofu_vcq_id_t vcq_id = id(r);
    utofu_stadd_t at = 0;
    struct utofu_onesided_caps *caps;
    struct utofu_barrier_caps *barrier;
    struct utofu_mrq_notice notice;
    struct utofu_vbg_setting setting = {0, 0, 0, 0, 0, {0, 0, 0}};
    uint64_t numbers[16];
    double doubles[16];
    uint16_t extra;
    void *cb;
    size_t n;
    int major, minor, code;
    uint64_t blocks = below(r, 64);
    for (int i = 0; i < 6; i++) coords[i] = (uint8_t)(below(r, 4) ? 0 : number(r));
    if (which == 0) memset(desc, 0, sizeof desc);

#define CALL(f, ...) *name = #f; code = f(__VA_ARGS__); break
    switch (which) {
    case 0:
        CALL(utofu_get_onesided_tnis, OUT(&list), OUT(&n));
    case 1:
        CALL(utofu_get_barrier_tnis, OUT(&list), OUT(&n));
    case 2:
        CALL(utofu_query_onesided_caps, tni, OUT(&caps));
    case 3:
        CALL(utofu_query_barrier_caps, tni, OUT(&barrier));
    case 4:
        CALL(utofu_create_vcq, tni, below(r, 12), OUT(&vcq));
    case 5:
        CALL(utofu_create_vcq_with_cmp_id, tni, cmp, below(r, 4) ? 0 : below(r, 12), OUT(&vcq));
    case 6:
        CALL(utofu_free_vcq, below(r, 8) ? number(r) : handle(r));
    case 7:
        CALL(utofu_query_vcq_id, handle(r), OUT(&vcq_id));
    case 8:
        CALL(utofu_construct_vcq_id, OUT(coords), tni, cq, cmp, OUT(&vcq_id));
    case 9:
        CALL(utofu_query_vcq_info, vcq_id, OUT(coords), OUT(&tni), OUT(&cq), OUT(&extra));
    case 10:
        CALL(utofu_alloc_vbg, tni, below(r, 4), small(r), OUT(numbers));
    case 11:
        CALL(utofu_free_vbg, OUT(numbers), below(r, 4));
    case 12:
        CALL(utofu_set_vbg, OUT(&setting), below(r, 2));
    case 13:
        CALL(utofu_query_vbg_info, number(r), OUT(coords), OUT(&tni), OUT(&cq), OUT(&extra));
    case 14:
        CALL(utofu_set_vcq_id_path, OUT(&vcq_id), OUT(coords));
    case 15:
        CALL(utofu_get_path_id, vcq_id, OUT(coords), OUT(&path));
    case 16:
        CALL(utofu_get_path_coords, vcq_id, (utofu_path_id_t)below(r, 20), OUT(coords));
    case 17:
        CALL(utofu_reg_mem, handle(r), address(r), length(r), small(r), OUT(&at));
    case 18:
        CALL(utofu_reg_mem_with_stag, handle(r), address(r), length(r), below(r, 300), small(r),
             OUT(&at));
    case 19:
        CALL(utofu_query_stadd, vcq_id, below(r, 300), OUT(&at));
    case 20:
        CALL(utofu_dereg_mem, handle(r), stadd(r), small(r));
    case 21:
        CALL(utofu_put, handle(r), vcq_id, stadd(r), stadd(r), length(r), edata(r), flags(r), r);
    case 22:
        CALL(utofu_put_gap, handle(r), vcq_id, stadd(r), stadd(r), length(r), edata(r), flags(r),
             length(r), small(r), r);
    case 23:
        CALL(utofu_put_stride, handle(r), vcq_id, stadd(r), stadd(r), length(r), length(r),
             about(r, blocks), edata(r), flags(r), r);
    case 24:
        CALL(utofu_put_stride_gap, handle(r), vcq_id, stadd(r), stadd(r), length(r), length(r),
             about(r, blocks), edata(r), flags(r), length(r), small(r), r);
    case 25:
        CALL(utofu_put_piggyback, handle(r), vcq_id, OUT(data), stadd(r), below(r, 40), edata(r),
             flags(r), r);
    case 26:
        CALL(utofu_put_piggyback8, handle(r), vcq_id, number(r), stadd(r), below(r, 12), edata(r),
             flags(r), r);
    case 27:
        CALL(utofu_get, handle(r), vcq_id, stadd(r), stadd(r), length(r), edata(r), flags(r), r);
    case 28:
        CALL(utofu_get_gap, handle(r), vcq_id, stadd(r), stadd(r), length(r), edata(r), flags(r),
             length(r), small(r), r);
    case 29:
        CALL(utofu_get_stride, handle(r), vcq_id, stadd(r), stadd(r), length(r), length(r),
             about(r, blocks), edata(r), flags(r), r);
    case 30:
        CALL(utofu_get_stride_gap, handle(r), vcq_id, stadd(r), stadd(r), length(r), length(r),
             about(r, blocks), edata(r), flags(r), length(r), small(r), r);
    case 31:
        CALL(utofu_armw4, handle(r), vcq_id, op(r), (uint32_t)any(r), stadd(r), edata(r),
             flags(r), r);
    case 32:
        CALL(utofu_armw8, handle(r), vcq_id, op(r), any(r), stadd(r), edata(r), flags(r), r);
    case 33:
        CALL(utofu_cswap4, handle(r), vcq_id, 0, (uint32_t)any(r), stadd(r), edata(r), flags(r),
             r);
    case 34:
        CALL(utofu_cswap8, handle(r), vcq_id, 0, any(r), stadd(r), edata(r), flags(r), r);
    case 35:
        CALL(utofu_nop, handle(r), flags(r), r);
    case 36:
        CALL(utofu_prepare_put, handle(r), vcq_id, stadd(r), stadd(r), length(r), edata(r),
             flags(r), OUT(desc), OUT(&n));
    case 37:
        CALL(utofu_prepare_put_gap, handle(r), vcq_id, stadd(r), stadd(r), length(r), edata(r),
             flags(r), length(r), small(r), OUT(desc), OUT(&n));
    case 38:
        /* As many blocks as there is room for. */
        CALL(utofu_prepare_put_stride, handle(r), vcq_id, stadd(r), stadd(r), length(r), length(r),
             blocks, edata(r), flags(r), OUT(desc), OUT(&n));
    case 39:
        CALL(utofu_prepare_put_stride_gap, handle(r), vcq_id, stadd(r), stadd(r), length(r),
             length(r), blocks, edata(r), flags(r), length(r), small(r), OUT(desc), OUT(&n));
    case 40:
        CALL(utofu_prepare_put_piggyback, handle(r), vcq_id, OUT(data), stadd(r), below(r, 40),
             edata(r), flags(r), OUT(desc), OUT(&n));
    case 41:
        CALL(utofu_prepare_put_piggyback8, handle(r), vcq_id, number(r), stadd(r), below(r, 12),
             edata(r), flags(r), OUT(desc), OUT(&n));
    case 42:
        CALL(utofu_prepare_get, handle(r), vcq_id, stadd(r), stadd(r), length(r), edata(r),
             flags(r), OUT(desc), OUT(&n));
    case 43:
        CALL(utofu_prepare_get_gap, handle(r), vcq_id, stadd(r), stadd(r), length(r), edata(r),
             flags(r), length(r), small(r), OUT(desc), OUT(&n));
    case 44:
        CALL(utofu_prepare_get_stride, handle(r), vcq_id, stadd(r), stadd(r), length(r), length(r),
             blocks, edata(r), flags(r), OUT(desc), OUT(&n));
    case 45:
        CALL(utofu_prepare_get_stride_gap, handle(r), vcq_id, stadd(r), stadd(r), length(r),
             length(r), blocks, edata(r), flags(r), length(r), small(r), OUT(desc), OUT(&n));
    case 46:
        CALL(utofu_prepare_armw4, handle(r), vcq_id, op(r), (uint32_t)any(r), stadd(r), edata(r),
             flags(r), OUT(desc), OUT(&n));
    case 47:
        CALL(utofu_prepare_armw8, handle(r), vcq_id, op(r), any(r), stadd(r), edata(r), flags(r),
             OUT(desc), OUT(&n));
    case 48:
        CALL(utofu_prepare_cswap4, handle(r), vcq_id, 0, 1, stadd(r), edata(r), flags(r),
             OUT(desc), OUT(&n));
    case 49:
        CALL(utofu_prepare_cswap8, handle(r), vcq_id, 0, 1, stadd(r), edata(r), flags(r),
             OUT(desc), OUT(&n));
    case 50:
        CALL(utofu_prepare_nop, handle(r), flags(r), OUT(desc), OUT(&n));
    case 51:
        /* The prepared descriptors, in part, or changed. */
        if (below(r, 4) == 0) desc[below(r, 64)] ^= 1ULL << below(r, 64);
        CALL(utofu_post_toq, handle(r), OUT(desc), about(r, 32 * below(r, 8)) % sizeof desc, r);
    case 52:
        CALL(utofu_poll_tcq, handle(r), small(r), OUT(&cb));
    case 53:
        CALL(utofu_poll_mrq, handle(r), small(r), OUT(&notice));
    case 54:
        CALL(utofu_query_num_unread_tcq, handle(r), OUT(&n));
    case 55:
        CALL(utofu_query_num_unread_mrq, handle(r), OUT(&n));
    case 56:
        CALL(utofu_barrier, number(r), small(r));
    case 57:
        CALL(utofu_reduce_uint64, number(r), (enum utofu_reduce_op)below(r, 11), OUT(numbers),
             below(r, 7), small(r));
    case 58:
        CALL(utofu_reduce_double, number(r), (enum utofu_reduce_op)below(r, 11), OUT(doubles),
             below(r, 4), small(r));
    case 59:
        CALL(utofu_poll_barrier, number(r), small(r));
    case 60:
        CALL(utofu_poll_reduce_uint64, number(r), small(r), OUT(numbers));
    case 61:
        CALL(utofu_poll_reduce_double, number(r), small(r), OUT(doubles));
    case 62:
        *name = "utofu_query_tofu_version";
        utofu_query_tofu_version(OUT(&major), OUT(&minor));
        code = 0;
        break;
    case 63:
        *name = "utofu_query_utofu_version";
        utofu_query_utofu_version(OUT(&major), OUT(&minor));
        code = 0;
        break;
    default:
        CALL(utofu_query_my_coords, OUT(coords));
    }
    if (code == UTOFU_SUCCESS) {
        if (which < 2) free(list);
        if (which == 4 || which == 5) keep(r, vcq);
        if (which == 17 || which == 18)
            __atomic_store_n(&stadds[below(r, HANDLES)], at, __ATOMIC_RELAXED);
    }
    return code;
}

static void check_code(int which, const char *name, int code)
{
    if (code > 0 || code <= -CODES || code == UTOFU_ERR_FATAL) fail(__LINE__, name, code, 0);
    if (code != UTOFU_SUCCESS && !__atomic_load_n(&seen[which][-code], __ATOMIC_RELAXED)) {
        char text[1024];
        utofu_get_last_error(text);
        size_t n = strlen(name);
        if (strncmp(text, name, n) != 0 || strncmp(text + n, ": UTOFU_ERR_", 12) != 0) {
            fprintf(stderr, "%s %d: the text is %s\n", name, code, text);
            exit(1);
        }
    }
    __atomic_store_n(&names[which], name, __ATOMIC_RELAXED);
    __atomic_store_n(&seen[which][-code], 1, __ATOMIC_RELAXED);
}

static int calls;

static void *thread(void *argument)
{
    uintptr_t me = (uintptr_t)argument;
    struct rng rng = {0x9e3779b97f4a7c15ULL * (me + 1)};
    OK(tofu_inproc_select(me % 2));
    for (int i = 0; i < calls; i++) {
        if (i % LIFE == 0) {
            /* So that not everything stays freed or full. */
            for (int k = 0; k < HANDLES / THREADS; k++) {
                utofu_vcq_hdl_t vcq;
                if (utofu_create_vcq((utofu_tni_id_t)below(&rng, 6), 0, &vcq) == UTOFU_SUCCESS)
                    keep(&rng, vcq);
            }
        }
        const char *name = "";
        int which = (int)below(&rng, FUNCTIONS);
        int code = call(&rng, which, &name);
        check_code(which, name, code);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    calls = argc > 1 ? atoi(argv[1]) : 100000;
    /* On each side of the arena is an inaccessible page, then an accessible one that is not
     * registered. */
    const size_t room = ARENA + 4 * PAGE;
    uint8_t *start = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) return 1;
    arena = start + 2 * PAGE;
    uint8_t *sides[2] = {start, start + room - PAGE};
    for (int i = 0; i < 2; i++) memset(sides[i], 0x5a, PAGE);
    if (mprotect(arena - PAGE, PAGE, PROT_NONE) != 0) return 1;
    if (mprotect(arena + ARENA, PAGE, PROT_NONE) != 0) return 1;

    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, thread, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);

    for (int i = 0; i < 2; i++)
        for (size_t k = 0; k < PAGE; k++) IS(sides[i][k], 0x5a);

    /* Everything can be freed, and two well-behaved processes find free what they need. */
    for (int i = 0; i < HANDLES; i++) utofu_free_vcq(handles[i]);
    utofu_vcq_hdl_t a, b;
    utofu_vcq_id_t b_id;
    utofu_stadd_t lcl, rmt;
    void *cbdata;
    static uint8_t mine[1000], theirs[1000];
    memset(mine, 7, sizeof mine);
    OK(tofu_inproc_select(1));
    int tni = 0;
    while (utofu_create_vcq((utofu_tni_id_t)tni, 0, &b) != UTOFU_SUCCESS) IS(++tni < 6, 1);
    OK(utofu_query_vcq_id(b, &b_id));
    OK(utofu_reg_mem(b, theirs, sizeof theirs, 0, &rmt));
    OK(tofu_inproc_select(0));
    tni = 0;
    while (utofu_create_vcq((utofu_tni_id_t)tni, 0, &a) != UTOFU_SUCCESS) IS(++tni < 6, 1);
    OK(utofu_reg_mem(a, mine, sizeof mine, 0, &lcl));
    OK(utofu_put(a, b_id, lcl, rmt, sizeof mine, 0, TCQ, &a));
    OK(wait_tcq(a, &cbdata));
    IS(cbdata == &a, 1);
    IS(memcmp(mine, theirs, sizeof mine), 0);

    for (int f = 0; f < FUNCTIONS; f++)
        for (int code = 0; code < CODES; code++)
            if (seen[f][code]) printf("%s %d\n", names[f], -code);
    return 0;
}

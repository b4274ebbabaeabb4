/*
 * Isolation of jobs. A victim registers memory at all interfaces and watches it, or, if it is
 * placed, at those that belong to its place among the ranks of its node; a stranger guesses queues
 * and STags, and puts to all of them, gets from them and adds to them. Two ranks sum up by barrier
 * gates, until told that the test is over; a meddler links gates of its own to all gates that
 * there are, and starts rounds with other numbers. A job of one node tries to leave its subnet for
 * the other one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <utofu.h>

#define OK(call)                                                    \
    do {                                                            \
        int code_ = (call);                                         \
        if (code_ != UTOFU_SUCCESS) {                               \
            fprintf(stderr, "line %d: %d\n", __LINE__, code_);      \
            exit(1);                                                \
        }                                                           \
    } while (0)

#define TNIS 6
#define CQS 11
#define STAGS 6
#define STAG 3
/* All use the same component ID, so that STADDs can be guessed. */
#define COMPONENT 7
#define SIZE 4096

static uint8_t memory[TNIS][SIZE] __attribute__((aligned(SIZE)));
static utofu_vcq_hdl_t vcqs[TNIS];
static utofu_vcq_id_t ids[TNIS];
static size_t opened;

static void open_all(int placed)
{
    utofu_tni_id_t *tnis;
    size_t count;
    if (!placed) {
        /* The remaining queues of this node, whoever has the others. */
        unsetenv("TOFU_PPN");
        unsetenv("TOFU_LOCAL_RANK");
    }
    OK(utofu_get_onesided_tnis(&tnis, &count));
    opened = count < TNIS ? count : TNIS;
    for (size_t i = 0; i < opened; i++) {
        OK(utofu_create_vcq_with_cmp_id(tnis[i], COMPONENT, 0, &vcqs[i]));
        OK(utofu_query_vcq_id(vcqs[i], &ids[i]));
    }
    free(tnis);
}

static int victim(void)
{
    utofu_stadd_t at;
    memset(memory, 0x5a, sizeof memory);
    for (size_t i = 0; i < opened; i++)
        OK(utofu_reg_mem_with_stag(vcqs[i], memory[i], SIZE, STAG, 0, &at));
    printf("ready\n");
    while (access("/tmp/over", F_OK) != 0) usleep(20000);
    for (size_t i = 0; i < sizeof memory; i++) {
        if (((volatile uint8_t *)memory)[i] != 0x5a) {
            printf("touched\n");
            return 0;
        }
    }
    printf("untouched\n");
    return 0;
}

/* Whether a posted command has had its effect. */
static int reached(utofu_vcq_hdl_t vcq, int posted)
{
    struct utofu_mrq_notice notice;
    void *data;
    int code;
    if (posted != UTOFU_SUCCESS) return 0;
    while ((code = utofu_poll_tcq(vcq, 0, &data)) == UTOFU_ERR_NOT_FOUND)
        ;
    if (code != UTOFU_SUCCESS) return 0;
    while ((code = utofu_poll_mrq(vcq, 0, &notice)) == UTOFU_ERR_NOT_FOUND)
        ;
    return code == UTOFU_SUCCESS;
}

/* How often it reached something of others. */
static int stranger(utofu_stadd_t own)
{
    const unsigned long flags =
        UTOFU_ONESIDED_FLAG_TCQ_NOTICE | UTOFU_ONESIDED_FLAG_LOCAL_MRQ_NOTICE;
    int commands = 0, reaches = 0;
    uint8_t at[6];
    OK(utofu_query_my_coords(at));
    for (int node = 0; node < 2; node++) {
        at[0] = node;
        for (int queue = 0; queue < TNIS * CQS * STAGS; queue++) {
            int stag = queue % STAGS, cq = queue / STAGS % CQS, tni = queue / STAGS / CQS;
            utofu_vcq_id_t id;
            utofu_stadd_t to;
            int mine = 0;
            if (utofu_construct_vcq_id(at, tni, cq, COMPONENT, &id) != UTOFU_SUCCESS) continue;
            if (utofu_query_stadd(id, stag, &to) != UTOFU_SUCCESS) continue;
            for (size_t i = 0; i < opened; i++) {
                uint8_t coords[6], own_at[6];
                utofu_tni_id_t own_tni;
                utofu_cq_id_t own_cq;
                uint16_t extra;
                OK(utofu_query_my_coords(own_at));
                OK(utofu_query_vcq_info(ids[i], coords, &own_tni, &own_cq, &extra));
                mine |= memcmp(at, own_at, 6) == 0 && own_tni == tni && own_cq == cq;
            }
            if (mine) continue;
            commands += 3;
            reaches += reached(vcqs[0], utofu_put(vcqs[0], id, own, to, 8, 0, flags, NULL));
            reaches += reached(vcqs[0], utofu_get(vcqs[0], id, own + 64, to, 8, 0, flags, NULL));
            reaches += reached(
                vcqs[0], utofu_armw8(vcqs[0], id, UTOFU_ARMW_OP_ADD, 1, to, 0, flags, NULL));
        }
    }
    for (int i = 64; i < 72; i++) reaches += memory[0][i] != 0;
    return commands < 1000 ? -1 : reaches;
}

/* The gate of this number of a node and interface, computed from the ID of gate `own`. */
static utofu_vbg_id_t gate_at(utofu_vbg_id_t own, int node, int tni, int number)
{
    uint8_t here[6], there[6];
    utofu_vcq_id_t from, to;
    OK(utofu_query_my_coords(here));
    memcpy(there, here, sizeof there);
    there[0] = (uint8_t)node;
    OK(utofu_construct_vcq_id(here, 0, 0, COMPONENT, &from));
    OK(utofu_construct_vcq_id(there, tni, 0, COMPONENT, &to));
    /* The bits below 32 hold paths and queues. */
    return (own ^ from ^ to) >> 32 << 32 | (utofu_vbg_id_t)number;
}

static int link_gate(utofu_vbg_id_t own, utofu_vbg_id_t other)
{
    struct utofu_vbg_setting setting = {own, own, other, own, other, {0xff, 0xff, 0xff}};
    return utofu_set_vbg(&setting, 1);
}

/* Both ranks have the gate of the same number. The second sum of each round says whether the round
 * is the last one. */
static int sums(int rank)
{
    utofu_vbg_id_t own;
    uint8_t at[6];
    OK(utofu_query_my_coords(at));
    OK(utofu_alloc_vbg(0, 1, 0, &own));
    OK(link_gate(own, gate_at(own, 1 - at[0], 0, (int)(own & 63))));
    printf("ready\n");
    while (access("/tmp/start", F_OK) != 0) usleep(20000);
    for (uint64_t round = 0;; round++) {
        uint64_t found[2] = {round + (uint64_t)rank, access("/tmp/over", F_OK) == 0};
        int code;
        OK(utofu_reduce_uint64(own, UTOFU_REDUCE_OP_SUM, found, 2, 0));
        while ((code = utofu_poll_reduce_uint64(own, 0, found)) == UTOFU_ERR_NOT_COMPLETED)
            ;
        OK(code);
        if (found[0] != 2 * round + 1) {
            printf("touched\n");
            return 0;
        }
        if (found[1] != 0) break;
        if (round == 0) printf("sums\n");
    }
    printf("untouched\n");
    return 0;
}

/* How many gates it has started a round towards, and how many of these have ended. */
static int meddle(void)
{
    int started = 0, ended = 0;
    for (int node = 0; node < 2; node++) {
        for (int number = 0; number < 48; number++) {
            utofu_vbg_id_t own;
            uint64_t value[2] = {1000, 1};
            OK(utofu_alloc_vbg(0, 1, 0, &own));
            utofu_vbg_id_t to = gate_at(own, node, 0, number);
            if (to != own && link_gate(own, to) == UTOFU_SUCCESS) {
                OK(utofu_reduce_uint64(own, UTOFU_REDUCE_OP_SUM, value, 2, 0));
                started++;
                for (int polls = 0; polls < 1000; polls++) {
                    if (utofu_poll_reduce_uint64(own, 0, value) == UTOFU_SUCCESS) {
                        ended++;
                        break;
                    }
                }
            }
            OK(utofu_free_vbg(&own, 1));
        }
    }
    printf("%d started, %d ended\n", started, ended);
    return 0;
}

/* The results of commands to the node itself and to one outside of the subnet, and of a gate. */
static int outside(utofu_stadd_t own)
{
    int inside = 0, refused = 0, others = 0, gates = 0;
    uint8_t here[6];
    utofu_vbg_id_t gate;
    OK(utofu_query_my_coords(here));
    for (int away = 0; away < 2; away++) {
        uint8_t at[6];
        memcpy(at, here, sizeof at);
        at[0] = (uint8_t)(away ? 1 - here[0] : here[0]);
        for (int queue = 0; queue < TNIS * CQS; queue++) {
            utofu_vcq_id_t id;
            utofu_stadd_t to;
            void *data;
            int code;
            OK(utofu_construct_vcq_id(at, queue / CQS, queue % CQS, COMPONENT, &id));
            OK(utofu_query_stadd(id, STAG, &to));
            OK(utofu_put(vcqs[0], id, own, to, 8, 0, UTOFU_ONESIDED_FLAG_TCQ_NOTICE, NULL));
            while ((code = utofu_poll_tcq(vcqs[0], 0, &data)) == UTOFU_ERR_NOT_FOUND)
                ;
            if (away)
                *(code == UTOFU_ERR_TCQ_OTHER ? &refused : &others) += 1;
            else
                inside += code == UTOFU_SUCCESS;
        }
    }
    OK(utofu_alloc_vbg(0, 1, 0, &gate));
    gates = link_gate(gate, gate_at(gate, 1 - here[0], 0, (int)(gate & 63))) == UTOFU_SUCCESS;
    printf("inside %d, outside %d refused, %d not, %d gates\n", inside, refused, others, gates);
    return 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "", *rank = getenv("TOFU_RANK");
    utofu_stadd_t own;
    int count;
    setvbuf(stdout, NULL, _IOLBF, 0);
    open_all(strcmp(what, "placed") == 0);
    if (strcmp(what, "sums") == 0) return sums(atoi(rank));
    if (strcmp(what, "meddler") == 0) return meddle();
    if (strcmp(what, "victim") == 0 || strcmp(what, "placed") == 0 ||
        (strcmp(what, "both") == 0 && strcmp(rank, "0") == 0))
        return victim();
    OK(utofu_reg_mem(vcqs[0], memory[0], SIZE, 0, &own));
    if (strcmp(what, "outside") == 0) return outside(own);
    /* Within one job it finds the victim's memory once that is there. */
    while ((count = stranger(own)) == 0 && strcmp(what, "both") == 0)
        ;
    printf("%d reached\n", count);
    return 0;
}

/* Barrier gates of several processes on several nodes, for tests/linux/tests/gates.rs. A rank of
 * a job of `tofu run`:
 *
 *   barriers groups     two groups of all ranks at once; gates of a node run out and come back
 *   barriers hold       takes all gates of its node, is in the middle of a round, and rank 1 kills
 *                       itself
 *   barriers take       takes them as well, and ends the round
 *   barriers stopped    of three ranks, 1 starts a round and says so; the others go on when there
 *                       is a file /tmp/go: first with that round, then with rounds among the two of
 *                       them, by relay gates of rank 1's node
 *   barriers reset      of two ranks, 0 says so and waits for 1 until its device is reset, and then
 *                       starts over
 */
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <tofu_collective.h>

#include "../../../guest-lib/utofu/examples/run/job.h"

#define MOST 16
#define CALLS 64
#define WORDS 16
#define STAG 10
#define ROUNDS 60
#define TNIS 6
/* As many as Fugaku's interfaces have, which is the most of all generations. */
#define STARTS 16
#define RELAYS 32
#define MOST_GATES 64
/* The most seconds that anything here may take, on a busy host. */
#define PATIENCE 120

static int rank, size, ppn;
static time_t end;

static void fail(const char *what)
{
    fprintf(stderr, "rank %d: %s\n", rank, what);
    exit(1);
}

static void wait_a_little(const char *what)
{
    if (time(NULL) > end)
        fail(what);
    usleep(100);
}

static void expect(int code, int expected, const char *what)
{
    if (code != expected) {
        char text[1024];
        utofu_get_last_error(text);
        fprintf(stderr, "rank %d: %s: %d instead of %d: %s\n", rank, what, code, expected, text);
        exit(1);
    }
}

/* What each rank has told the others, call by call, and whether it is all there. */
static _Alignas(256) struct {
    uint64_t words[CALLS][MOST][WORDS];
    uint64_t here[CALLS][MOST];
} told, mine;
static utofu_vcq_hdl_t vcq;
static utofu_stadd_t mine_at, told_at[MOST];
static utofu_vcq_id_t peers[MOST];
static int calls;

static void put(int to, const void *from, size_t bytes)
{
    size_t at = (size_t)((const char *)from - (const char *)&mine);
    struct utofu_mrq_notice notice;
    void *cbdata;
    int code;
    do {
        OK(utofu_put(vcq, peers[to], mine_at + at, told_at[to] + at, bytes, 0,
                     UTOFU_ONESIDED_FLAG_TCQ_NOTICE | UTOFU_ONESIDED_FLAG_LOCAL_MRQ_NOTICE, NULL));
        while ((code = utofu_poll_tcq(vcq, 0, &cbdata)) == UTOFU_ERR_NOT_FOUND)
            wait_a_little("a Put does not end");
        OK(code);
        while ((code = utofu_poll_mrq(vcq, 0, &notice)) == UTOFU_ERR_NOT_FOUND)
            wait_a_little("a Put has no notice");
        /* A rank that is not up yet. */
        if (code != UTOFU_SUCCESS)
            wait_a_little("a rank does not come up");
    } while (code != UTOFU_SUCCESS);
}

static int allgather(void *context, const void *own, size_t bytes, void *all)
{
    (void)context;
    if (bytes > sizeof mine.words[0][0] || calls == CALLS)
        return 1;
    int call = calls++;
    memcpy(mine.words[call][rank], own, bytes);
    mine.here[call][rank] = 1;
    for (int to = 0; to < size; to++) {
        put(to, mine.words[call][rank], sizeof mine.words[call][rank]);
        /* The first one is known to have ended, so the second cannot overtake it. */
        put(to, &mine.here[call][rank], sizeof mine.here[call][rank]);
    }
    for (int from = 0; from < size; from++) {
        while (__atomic_load_n(&told.here[call][from], __ATOMIC_ACQUIRE) == 0)
            wait_a_little("a rank does not come");
        memcpy((char *)all + (size_t)from * bytes, told.words[call][from], bytes);
    }
    return 0;
}

static void gather(const uint64_t own[], size_t count, uint64_t all[])
{
    if (allgather(NULL, own, count * sizeof *own, all) != 0)
        fail("too much is exchanged");
}

/* By Puts. */
static void meet(void)
{
    uint64_t nothing = 0, all[MOST];
    gather(&nothing, 1, all);
}

static void start(void)
{
    utofu_stadd_t told_here;
    rank = job_rank();
    size = job_size();
    ppn = job_number("TOFU_PPN");
    end = time(NULL) + PATIENCE;
    setvbuf(stdout, NULL, _IOLBF, 0);
    job_start();
    OK(utofu_create_vcq_with_cmp_id(0, COMPONENT, 0, &vcq));
    OK(utofu_reg_mem_with_stag(vcq, &told, sizeof told, STAG, 0, &told_here));
    OK(utofu_reg_mem(vcq, &mine, sizeof mine, 0, &mine_at));
    for (int i = 0; i < size; i++) {
        peers[i] = job_peer(i);
        OK(utofu_query_stadd(peers[i], STAG, &told_at[i]));
    }
    meet();
}

/* An interface with gates, this one if it has any. */
static utofu_tni_id_t with_gates(utofu_tni_id_t tni)
{
    utofu_tni_id_t *tnis, found;
    size_t count;
    OK(utofu_get_barrier_tnis(&tnis, &count));
    found = tnis[tni < count ? tni : 0];
    free(tnis);
    return found;
}

static tofu_coll_t group(unsigned algorithm, utofu_tni_id_t tni)
{
    const uint32_t axes[3] = {(uint32_t)size, 1, 1};
    tofu_coll_t made;
    OK(tofu_coll_create((uint32_t)rank, axes, algorithm, tni, allgather, NULL, &made));
    return made;
}

static void groups(void)
{
    tofu_coll_t one = group(TOFU_COLL_ANY, 0), other = group(TOFU_COLL_TREE, with_gates(1));
    uint64_t ranks = (uint64_t)size * (uint64_t)(size - 1) / 2;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint64_t sums[8] = {(uint64_t)rank, round, 1, 2, 3, 4, 5, 6};
        double numbers[2] = {rank == 0 ? 1e16 : rank == 1 ? -1e16 : 0.5, (double)round};
        OK(tofu_coll_barrier(one));
        OK(tofu_coll_allreduce_uint64(other, UTOFU_REDUCE_OP_SUM, sums, 8));
        OK(tofu_coll_allreduce_double(one, numbers, 2));
        if (sums[0] != ranks || sums[1] != round * (uint64_t)size || sums[7] != 6U * (uint64_t)size)
            fail("a sum is wrong");
        if (numbers[0] != (size - 2) * 0.5 || numbers[1] != (double)round * size)
            fail("a sum of doubles is wrong");
    }
    OK(tofu_coll_free(one));
    OK(tofu_coll_free(other));
    /* Those of the node's other ranks may be on the same TNI. */
    meet();

    /* The first rank of a node allocates all gates of a TNI, and then frees all of them. Before
     * Fugaku there were seven start and end gates for programs, and 56 others. */
    const utofu_tni_id_t tni = with_gates(5);
    int major, minor;
    utofu_query_tofu_version(&major, &minor);
    const int starts = major == 3 ? STARTS : 7, relays = major == 3 ? RELAYS : 56;
    utofu_vbg_id_t gates[MOST_GATES], few[MOST_GATES];
    if (rank % ppn == 0) {
        OK(utofu_alloc_vbg(tni, (size_t)relays + 1, 0, gates));
        for (int i = 1; i < starts; i++)
            OK(utofu_alloc_vbg(tni, 1, 0, &gates[relays + i]));
        expect(utofu_alloc_vbg(tni, 1, 0, few), UTOFU_ERR_FULL, "one gate more");
    }
    meet();
    if (rank % ppn != 0)
        expect(utofu_alloc_vbg(tni, 1, 0, few), UTOFU_ERR_FULL, "a gate that another has");
    meet();
    if (rank % ppn == 0) {
        OK(utofu_free_vbg(&gates[1], (size_t)relays));
        OK(utofu_free_vbg(&gates[relays + 1], (size_t)starts - 1));
        OK(utofu_free_vbg(gates, 1));
    }
    meet();
    if (rank % ppn == 1) {
        OK(utofu_alloc_vbg(tni, (size_t)relays + 1, 0, few));
        OK(utofu_free_vbg(few, (size_t)relays + 1));
    }
    printf("%d ranks: %d rounds right, gates ran out and came back\n", size, ROUNDS);
}

static struct utofu_vbg_setting linked(utofu_vbg_id_t gate, utofu_vbg_id_t from_here,
                                       utofu_vbg_id_t from, utofu_vbg_id_t to_here,
                                       utofu_vbg_id_t to)
{
    struct utofu_vbg_setting setting = {gate, from_here, from, to_here, to, {0xff, 0xff, 0xff}};
    return setting;
}

static void over(utofu_vbg_id_t gate, const char *what)
{
    int code;
    while ((code = utofu_poll_barrier(gate, 0)) == UTOFU_ERR_NOT_COMPLETED)
        wait_a_little(what);
    OK(code);
}

/* Takes all gates of the TNIs that are this rank's share; those of one TNI in two pieces. */
static utofu_vbg_id_t take_all(void)
{
    utofu_vbg_id_t first = UTOFU_VBG_ID_NULL, gates[STARTS + RELAYS];
    for (utofu_tni_id_t tni = (utofu_tni_id_t)(rank % ppn); tni < TNIS;
         tni = (utofu_tni_id_t)(tni + ppn)) {
        int code;
        /* It may take a moment until the gates of a dead process are free again. */
        while ((code = utofu_alloc_vbg(tni, RELAYS + 1, 0, gates)) == UTOFU_ERR_FULL)
            wait_a_little("gates do not come back");
        OK(code);
        for (int i = 1; i < STARTS; i++) {
            while ((code = utofu_alloc_vbg(tni, 1, 0, &gates[RELAYS + i])) == UTOFU_ERR_FULL)
                wait_a_little("start gates do not come back");
            OK(code);
        }
        if (first == UTOFU_VBG_ID_NULL)
            first = gates[0];
    }
    return first;
}

static void hold(int finish)
{
    uint64_t own = take_all(), all[MOST];
    gather(&own, 1, all);
    uint64_t peer = all[rank ^ 1];
    struct utofu_vbg_setting setting = linked(own, own, peer, own, peer);
    OK(utofu_set_vbg(&setting, 1));
    meet();
    if (finish || rank % 2 == 0)
        OK(utofu_barrier(own, 0));
    if (!finish) {
        meet();
        if (rank == 1)
            raise(SIGKILL);
        sleep(PATIENCE);
        fail("still here");
    }
    over(own, "the barrier does not end");
    printf("took all and met\n");
    meet();
}

static void stopped(void)
{
    if (size != 3)
        fail("this is for three ranks");
    const utofu_vbg_id_t none = UTOFU_VBG_ID_NULL;
    tofu_coll_t ring = group(TOFU_COLL_DOUBLE_RING, 0);
    utofu_vbg_id_t start_gate;
    unsigned algorithm;
    size_t count;
    OK(tofu_coll_query(ring, &algorithm, &start_gate, &count));
    uint64_t own[3] = {none, none, none}, all[MOST][3];
    OK(utofu_alloc_vbg(1, rank == 1 ? 3 : 1, 0, own));
    gather(own, 3, all[0]);
    struct utofu_vbg_setting settings[3] = {linked(own[0], own[0], none, own[0], none)};
    if (rank == 1) {
        settings[1] = linked(own[1], none, all[0][0], none, all[2][0]);
        settings[2] = linked(own[2], none, all[2][0], none, all[0][0]);
    } else {
        uint64_t from = all[1][rank == 0 ? 2 : 1], to = all[1][rank == 0 ? 1 : 2];
        settings[0] = linked(own[0], own[0], from, own[0], to);
    }
    OK(utofu_set_vbg(settings, rank == 1 ? 3 : 1));
    meet();
    if (rank == 1) {
        OK(utofu_barrier(start_gate, 0));
        printf("started\n");
        over(start_gate, "the barrier does not end");
        printf("over\n");
        return;
    }
    while (access("/tmp/go", F_OK) != 0)
        wait_a_little("nobody says go");
    OK(tofu_coll_barrier(ring));
    printf("met\n");
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint64_t sum = round + (uint64_t)rank;
        int code;
        OK(utofu_reduce_uint64(own[0], UTOFU_REDUCE_OP_SUM, &sum, 1, 0));
        while ((code = utofu_poll_reduce_uint64(own[0], 0, &sum)) == UTOFU_ERR_NOT_COMPLETED)
            wait_a_little("a sum does not end");
        OK(code);
        if (sum != 2 * round + 2)
            fail("a sum is wrong");
    }
    printf("%d sums\n", ROUNDS);
}

static void reset(void)
{
    struct utofu_mrq_notice notice;
    utofu_stadd_t at;
    utofu_vcq_hdl_t other;
    tofu_coll_t pair = group(TOFU_COLL_ANY, 0);
    meet();
    if (rank == 1) {
        /* Rank 0 has put this when it is through. */
        while (__atomic_load_n(&told.here[calls][0], __ATOMIC_ACQUIRE) == 0)
            wait_a_little("rank 0 is not heard of");
        return;
    }
    printf("waits\n");
    expect(tofu_coll_barrier(pair), UTOFU_ERR_FATAL, "a barrier");
    int code;
    while ((code = utofu_poll_mrq(vcq, 0, &notice)) == UTOFU_ERR_NOT_FOUND)
        wait_a_little("the queue is not known to be lost");
    expect(code, UTOFU_ERR_FATAL, "a poll");
    expect(utofu_put(vcq, peers[1], mine_at, told_at[1], 8, 0, 0, NULL), UTOFU_ERR_FATAL, "a Put");
    expect(utofu_reg_mem(vcq, &told, 8, 0, &at), UTOFU_ERR_FATAL, "a registration");
    expect(utofu_create_vcq(0, 0, &other), UTOFU_ERR_FATAL, "another VCQ of the queue");
    OK(utofu_dereg_mem(vcq, mine_at, 0));
    OK(tofu_coll_free(pair));
    OK(utofu_free_vcq(vcq));
    /* The device may be gone still. */
    while (utofu_create_vcq_with_cmp_id(0, COMPONENT, 0, &vcq) != UTOFU_SUCCESS)
        wait_a_little("no other queue");
    OK(utofu_reg_mem(vcq, &mine, sizeof mine, 0, &mine_at));
    mine.here[calls][0] = 1;
    put(1, &mine.here[calls][0], sizeof mine.here[calls][0]);
    printf("lost its queue and barrier, and has others\n");
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    start();
    if (strcmp(what, "groups") == 0)
        groups();
    else if (strcmp(what, "hold") == 0)
        hold(0);
    else if (strcmp(what, "take") == 0)
        hold(1);
    else if (strcmp(what, "stopped") == 0)
        stopped();
    else if (strcmp(what, "reset") == 0)
        reset();
    else
        fail("no such part");
    return 0;
}

/* Many uTofu processes on a node at once, for tests/linux/tests/utofu_processes.rs.
 *
 *   processes many N ROUNDS            N processes of this node that nobody has counted put to each
 *                                      other over all TNIs and check what they get
 *   processes node ME P0 P1 ROUNDS [TIMES]
 *                                      the P0 or P1 processes of node ME (0 or 1, or "rank", as
 *                                      `tofu run` has numbered them), which put to all
 *                                      of both nodes; with TIMES, the first process of node 0 is
 *                                      killed so often in the middle of large Puts instead, and
 *                                      the others go on until that is over
 *   processes orphan FILE              has a queue, waits for FILE, and says what still works
 *   processes heir FILE                has a queue and ends; a child of it that has all of its
 *                                      descriptors waits for FILE
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <utofu.h>

void utofu_get_last_error(char *msg);

#define MAX 16
#define SLOT 1024
#define BIG ((size_t)(1 << 24) - 1)
#define CMP_ID 7
#define STAG_SLOTS 3
#define STAG_BIG 4
/* The most seconds that anything here may take, on a busy host. */
#define PATIENCE 100

struct peer {
    int ready;
    int tnis;
    utofu_vcq_id_t ids[6];
};

/* What processes of a node share. */
static struct {
    _Atomic int stop;
    struct peer peers[MAX];
} *shared;

static const char *name = "processes";

static void fail(const char *format, ...)
{
    va_list args;
    if (shared)
        shared->stop = 1;
    va_start(args, format);
    fprintf(stderr, "%s: ", name);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    exit(1);
}

static void check(int code, const char *what)
{
    char text[1024];
    if (code == UTOFU_SUCCESS)
        return;
    utofu_get_last_error(text);
    fail("%s: %d: %s", what, code, text);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static double deadline;
/* The process that accepts no Puts, and how Puts to it end; -1 if there is none. */
static int absent = -1, absence;

static void wait_a_little(const char *what)
{
    if (now() > deadline && absent >= 0)
        fail("waited in vain for process %d, to which a Put ended with %d", absent, absence);
    if (now() > deadline)
        fail("waited in vain for %s", what);
    sched_yield();
}

/* Queues of this process. */
static size_t tnis;
static utofu_tni_id_t *tni_ids;
static utofu_vcq_hdl_t vcqs[6];
static utofu_vcq_id_t ids[6];
static utofu_stadd_t local[6];
/* Slots by sender and by whether the round is odd; behind them what is sent, likewise. */
static unsigned char *slots;

static void *memory(size_t size)
{
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        fail("no memory");
    return at;
}

static void open_queues(void)
{
    check(utofu_get_onesided_tnis(&tni_ids, &tnis), "get_onesided_tnis");
    slots = memory(4 * MAX * SLOT);
    for (size_t i = 0; i < tnis; i++) {
        check(utofu_create_vcq_with_cmp_id(tni_ids[i], CMP_ID, 0, &vcqs[i]), "create_vcq");
        check(utofu_query_vcq_id(vcqs[i], &ids[i]), "query_vcq_id");
        check(utofu_reg_mem_with_stag(vcqs[i], slots, 4 * MAX * SLOT, STAG_SLOTS, 0, &local[i]),
              "reg_mem_with_stag");
    }
}

/* A completion tells that a Put was sent, a notice tells the target's answer. */
#define NOTICES (UTOFU_ONESIDED_FLAG_TCQ_NOTICE | UTOFU_ONESIDED_FLAG_LOCAL_MRQ_NOTICE)

/* Waits for a Put with NOTICES. */
static int done(utofu_vcq_hdl_t vcq)
{
    void *data;
    int code;
    struct utofu_mrq_notice notice;
    while ((code = utofu_poll_tcq(vcq, 0, &data)) == UTOFU_ERR_NOT_FOUND)
        wait_a_little("the end of a Put");
    check(code, "poll_tcq");
    while ((code = utofu_poll_mrq(vcq, 0, &notice)) == UTOFU_ERR_NOT_FOUND)
        wait_a_little("the notice of a Put");
    return code;
}

static unsigned char pattern(int from, int to, unsigned long round, size_t at)
{
    return from * 31 + to * 17 + round * 7 + at;
}

#define FINAL (1UL << 63)

/* All of `count` processes but those not `in` the mask put to all others, round by round, until the
 * last one. Process `leader` decides which that is. */
static void exchange(int me, int count, unsigned in, const struct peer *peers, unsigned long rounds,
                     int leader)
{
    unsigned long final = 0;
    for (unsigned long round = 1; final == 0 || round <= final; round++) {
        deadline = now() + PATIENCE;
        /* As background load, it yields the processor to others. */
        if (rounds == 0)
            usleep(5000);
        if (me == leader && final == 0 && (rounds ? round == rounds : shared->stop))
            final = round;
        unsigned long stamp = round | (final ? FINAL : 0);
        for (int to = 0; to < count; to++) {
            if (!(in >> to & 1) || to == me)
                continue;
            size_t mine = (round + to) % tnis, its = round % peers[to].tnis;
            size_t offset = (to * 2 + (round & 1)) * SLOT + 2 * MAX * SLOT;
            unsigned char *from = slots + offset;
            for (size_t i = 0; i < SLOT - 8; i++)
                from[i] = pattern(me, to, round, i);
            memcpy(from + SLOT - 8, &stamp, 8);
            utofu_stadd_t remote;
            check(utofu_query_stadd(peers[to].ids[its], STAG_SLOTS, &remote), "query_stadd");
            remote += (me * 2 + (round & 1)) * SLOT;
            for (;;) {
                check(utofu_put(vcqs[mine], peers[to].ids[its], local[mine] + offset, remote, SLOT,
                                0, NOTICES | UTOFU_ONESIDED_FLAG_STRONG_ORDER, NULL), "put");
                int code = done(vcqs[mine]);
                absent = code == UTOFU_SUCCESS ? -1 : to;
                absence = code;
                if (code == UTOFU_SUCCESS)
                    break;
                /* In the first round it may not be there yet. */
                if (round > 1)
                    fail("a Put to process %d in round %lu: %d", to, round, code);
                wait_a_little("a process");
                usleep(2000);
            }
        }
        for (int from = 0; from < count; from++) {
            if (!(in >> from & 1) || from == me)
                continue;
            unsigned char *slot = slots + (from * 2 + (round & 1)) * SLOT;
            volatile unsigned long *word = (volatile unsigned long *)(slot + SLOT - 8);
            unsigned long seen;
            while (((seen = *word) & ~FINAL) != round)
                wait_a_little("a round");
            atomic_thread_fence(memory_order_acquire);
            if (seen & FINAL)
                final = round;
            for (size_t i = 0; i < SLOT - 8; i++)
                if (slot[i] != pattern(from, me, round, i))
                    fail("round %lu: byte %zu from process %d is %d", round, i, from, slot[i]);
        }
    }
    printf("process %d: %lu rounds\n", me, final);
}

/* Where a counted process of a node has its queues. */
static void peer_of(struct peer *peer, int node, int rank, int processes)
{
    /* The first queues, by the number of processes; the last row is for four or more. */
    static const int starts[4][4] = {{0}, {0, 6}, {0, 4, 8}, {0, 2, 5, 8}};
    const int *start = starts[processes < 4 ? processes - 1 : 3];
    int sharing = (processes + 3) / 4, all = 6 / sharing;
    /* Neighbours along X, or along the axis of this number. */
    const char *axis = getenv("AXIS");
    uint8_t coords[6] = {0};
    coords[axis ? atoi(axis) % 6 : 0] = node;
    peer->tnis = all;
    for (int i = 0; i < all; i++)
        check(utofu_construct_vcq_id(coords, rank % sharing * all + i, start[rank / sharing],
                                     CMP_ID, &peer->ids[i]), "construct_vcq_id");
}

static void set(const char *variable, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(variable, text, 1);
}

/* Waits for children; whether all have succeeded. */
static int join(int count)
{
    int good = 1, status;
    while (count-- > 0)
        good &= wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    return good;
}

static pid_t child(void)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0)
        fail("fork: %s", strerror(errno));
    return pid;
}

/* Large Puts without end, to process 0 of node 1. */
static void put_large(int processes, int to_say)
{
    struct peer peer;
    utofu_stadd_t from, remote;
    deadline = now() + PATIENCE;
    open_queues();
    /* It has its queues, and they work, whatever happened to the processes before it. */
    utofu_stadd_t own;
    check(utofu_query_stadd(ids[0], STAG_SLOTS, &own), "query_stadd");
    memset(slots, 0x5a, SLOT);
    check(utofu_put(vcqs[0], ids[0], local[0], own + SLOT, SLOT, 0, NOTICES, NULL),
          "put to itself");
    check(done(vcqs[0]), "the end of a Put to itself");
    if (memcmp(slots, slots + SLOT, SLOT) != 0)
        fail("a Put to itself did not arrive");
    unsigned char *big = memory(BIG);
    memset(big, 1, BIG);
    check(utofu_reg_mem(vcqs[0], big, BIG, 0, &from), "reg_mem");
    peer_of(&peer, 1, 0, processes);
    check(utofu_query_stadd(peer.ids[0], STAG_BIG, &remote), "query_stadd");
    int started = 0;
    for (int under_way = 0;;) {
        int code = utofu_put(vcqs[0], peer.ids[0], from, remote, BIG, 0, NOTICES, NULL);
        check(code, "large Put");
        if (++under_way < 3)
            continue;
        code = done(vcqs[0]);
        under_way--;
        if (code == UTOFU_SUCCESS && !started) {
            started = 1;
            if (write(to_say, "x", 1) != 1)
                fail("nobody listens");
        }
        /* The other process may not be there yet. */
        if (code != UTOFU_SUCCESS && started)
            fail("a large Put: %d", code);
        if (code == UTOFU_SUCCESS)
            deadline = now() + PATIENCE;
    }
}

static void kill_again_and_again(int times, int processes, int there)
{
    set("TOFU_PPN", processes);
    set("TOFU_LOCAL_RANK", 0);
    srand(7);
    for (int i = 0; i < times; i++) {
        int pipes[2];
        char byte;
        if (pipe(pipes) != 0)
            fail("pipe");
        pid_t pid = child();
        if (pid == 0) {
            name = "the process to be killed";
            close(pipes[0]);
            put_large(there, pipes[1]);
        }
        close(pipes[1]);
        if (read(pipes[0], &byte, 1) != 1)
            fail("process %d did not get under way", i);
        close(pipes[0]);
        usleep(rand() % 20000);
        kill(pid, SIGKILL);
        int status;
        if (waitpid(pid, &status, 0) != pid || !WIFSIGNALED(status))
            fail("process %d did not end by the signal", i);
    }
    printf("killed %d times\n", times);
}

static int node(int me, const int *processes, unsigned long rounds, int times)
{
    struct peer peers[MAX];
    int count = processes[0] + processes[1];
    unsigned in = (1u << count) - 1;
    if (times) {
        in &= ~1u;
        rounds = 0;
    }
    for (int rank = 0; rank < processes[me]; rank++) {
        int index = rank + (me ? processes[0] : 0);
        if (!(in >> index & 1))
            continue;
        if (child() != 0)
            continue;
        set("TOFU_PPN", processes[me]);
        set("TOFU_LOCAL_RANK", rank);
        open_queues();
        for (int i = 0; i < count; i++)
            peer_of(&peers[i], i >= processes[0], i < processes[0] ? i : i - processes[0],
                    processes[i >= processes[0]]);
        for (size_t i = 0; i < tnis; i++)
            if (ids[i] != peers[index].ids[i])
                fail("VCQ %zu is %lx, not %lx", i, (long)ids[i], (long)peers[index].ids[i]);
        if (times && me == 1 && rank == 0) {
            utofu_stadd_t stadd;
            check(utofu_reg_mem_with_stag(vcqs[0], memory(BIG), BIG, STAG_BIG, 0, &stadd),
                  "reg_mem_with_stag");
        }
        exchange(index, count, in, peers, rounds, times ? 1 : 0);
        exit(0);
    }
    if (times && me == 0) {
        kill_again_and_again(times, processes[0], processes[1]);
        shared->stop = 1;
    }
    return join(processes[me] - (times && me == 0));
}

static int many(int count, unsigned long rounds)
{
    unsetenv("TOFU_PPN");
    unsetenv("TOFU_LOCAL_RANK");
    for (int me = 0; me < count; me++) {
        if (child() != 0)
            continue;
        open_queues();
        /* All of the node's: six of Fugaku, four of the others. */
        int major, minor;
        utofu_query_tofu_version(&major, &minor);
        if (tnis != (major == 3 ? 6 : 4))
            fail("%zu TNIs", tnis);
        struct peer *own = &shared->peers[me];
        own->tnis = tnis;
        memcpy(own->ids, ids, sizeof ids);
        __atomic_store_n(&own->ready, 1, __ATOMIC_RELEASE);
        deadline = now() + PATIENCE;
        for (int i = 0; i < count; i++)
            while (!__atomic_load_n(&shared->peers[i].ready, __ATOMIC_ACQUIRE)) {
                if (shared->stop)
                    fail("another process has failed");
                wait_a_little("a process");
            }
        exchange(me, count, (1u << count) - 1, shared->peers, rounds, 0);
        exit(0);
    }
    return join(count);
}

static void orphan(const char *file)
{
    char text[1024];
    utofu_vcq_hdl_t further;
    utofu_stadd_t big;
    open_queues();
    puts("ready");
    fflush(stdout);
    deadline = now() + PATIENCE;
    while (access(file, F_OK) != 0)
        wait_a_little("a file");
    /* What it has keeps working, memory included. */
    utofu_stadd_t own;
    unsigned char *more = memory(1 << 20);
    memset(more, 0x33, 1 << 20);
    check(utofu_reg_mem(vcqs[5], more, 1 << 20, 0, &big), "reg_mem");
    check(utofu_query_stadd(ids[0], STAG_SLOTS, &own), "query_stadd");
    check(utofu_put(vcqs[5], ids[0], big, own, SLOT, 0, NOTICES, NULL), "put");
    check(done(vcqs[5]), "the end of a Put");
    if (slots[SLOT - 1] != 0x33)
        fail("a Put did not arrive");
    puts("puts");
    int code = utofu_create_vcq(0, UTOFU_VCQ_FLAG_EXCLUSIVE, &further);
    utofu_get_last_error(text);
    printf("further queue: %s\n", code == UTOFU_SUCCESS ? "yes" : text);
}

static void heir(const char *file)
{
    open_queues();
    if (child() != 0)
        return;
    for (int fd = 0; fd < 3; fd++)
        close(fd);
    while (access(file, F_OK) != 0 && now() < deadline)
        usleep(100000);
    _exit(0);
}

int main(int argc, char **argv)
{
    int good = 0;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        fail("no memory");
    deadline = now() + PATIENCE;
    if (argc == 4 && strcmp(argv[1], "many") == 0) {
        good = many(atoi(argv[2]), atol(argv[3]));
    } else if ((argc == 6 || argc == 7) && strcmp(argv[1], "node") == 0) {
        int processes[2] = {atoi(argv[3]), atoi(argv[4])};
        const char *rank = getenv("TOFU_RANK");
        int me = atoi(rank && strcmp(argv[2], "rank") == 0 ? rank : argv[2]);
        good = node(me, processes, atol(argv[5]), argc == 7 ? atoi(argv[6]) : 0);
    } else if (argc == 3 && strcmp(argv[1], "orphan") == 0) {
        orphan(argv[2]);
        good = 1;
    } else if (argc == 3 && strcmp(argv[1], "heir") == 0) {
        heir(argv[2]);
        good = 1;
    } else {
        fail("what is wanted?");
    }
    return good ? 0 : 1;
}

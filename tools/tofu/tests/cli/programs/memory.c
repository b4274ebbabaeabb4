/*
 * Memory of all kinds can be reached where a process has it: of the stack, of the heap, of the
 * program, of files. Memory that does not exist, or no longer exists, is an error and nothing else.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ranks.h"

#define SIZE 100000

static uint8_t data[SIZE] = {1};
static uint8_t blank[SIZE];
static const uint8_t constant[SIZE] = {2};

static utofu_vcq_hdl_t vcq;
static utofu_vcq_id_t ids[RANKS_MOST];

static void is(int line, long long value, long long expected)
{
    if (value == expected) return;
    fprintf(stderr, "line %d: %lld is not %lld\n", line, value, expected);
    exit(1);
}
#define IS(value, expected) is(__LINE__, value, expected)

#define TOLD (UTOFU_ONESIDED_FLAG_TCQ_NOTICE | UTOFU_ONESIDED_FLAG_LOCAL_MRQ_NOTICE)

/* How a command ended: at this end, or else according to its notice. */
static int end(void)
{
    struct utofu_mrq_notice notice;
    void *cbdata;
    int sent, code;
    while ((sent = utofu_poll_tcq(vcq, 0, &cbdata)) == UTOFU_ERR_NOT_FOUND)
        ;
    while ((code = utofu_poll_mrq(vcq, 0, &notice)) == UTOFU_ERR_NOT_FOUND)
        ;
    return sent == UTOFU_SUCCESS ? code : sent;
}

static int put(utofu_stadd_t from, utofu_stadd_t to, size_t length)
{
    OK(utofu_put(vcq, ids[1], from, to, length, 0, TOLD, NULL));
    return end();
}

static int get(utofu_stadd_t into, utofu_stadd_t from, size_t length)
{
    OK(utofu_get(vcq, ids[1], into, from, length, 0, TOLD, NULL));
    return end();
}

/* Tells all ranks where rank 1 has something. */
static utofu_stadd_t of_rank_1(int rank, utofu_stadd_t stadd)
{
    utofu_stadd_t all[RANKS_MOST] = {0};
    all[rank] = stadd;
    share(all, sizeof *all);
    return all[1];
}

static void one(int rank, uint8_t *memory, int writable)
{
    utofu_stadd_t mine = 0, source, back;
    static uint8_t pattern[SIZE], copy[SIZE];
    if (rank == 1) {
        OK(utofu_reg_mem(vcq, memory, SIZE, 0, &mine));
    } else {
        for (int i = 0; i < SIZE; i++) pattern[i] = (uint8_t)(i * 7 + 3);
        memset(copy, 0, SIZE);
        OK(utofu_reg_mem(vcq, pattern, SIZE, 0, &source));
        OK(utofu_reg_mem(vcq, copy, SIZE, 0, &back));
    }
    utofu_stadd_t theirs = of_rank_1(rank, mine);
    if (rank == 0) {
        if (writable) {
            IS(put(source + 1, theirs + 1, SIZE - 2), UTOFU_SUCCESS);
            IS(get(back + 1, theirs + 1, SIZE - 2), UTOFU_SUCCESS);
            IS(memcmp(pattern + 1, copy + 1, SIZE - 2), 0);
        } else {
            IS(put(source, theirs, SIZE), UTOFU_ERR_MRQ_RMT_MEMORY);
            IS(get(back, theirs, SIZE), UTOFU_SUCCESS);
            IS(copy[0], 2);
        }
        OK(utofu_dereg_mem(vcq, source, 0));
        OK(utofu_dereg_mem(vcq, back, 0));
    }
    meet();
    if (rank == 1) {
        for (int i = 1; i < SIZE - 1 && writable; i++) IS(memory[i], (uint8_t)(i * 7 + 3));
        OK(utofu_dereg_mem(vcq, mine, 0));
    }
}

static void body(int rank, int size)
{
    uint8_t stack[SIZE];
    uint8_t *heap = malloc(SIZE);
    int file = memfd_create("file", 0);
    IS(ftruncate(file, SIZE), 0);
    uint8_t *shared = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    uint8_t *private = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    if (size != 2) exit(1);
    OK(utofu_create_vcq(0, 0, &vcq));
    OK(utofu_query_vcq_id(vcq, &ids[rank]));
    share(ids, sizeof *ids);
    one(rank, stack, 1);
    one(rank, heap, 1);
    one(rank, data, 1);
    one(rank, blank, 1);
    one(rank, shared, 1);
    one(rank, private, 1);
    one(rank, (uint8_t *)constant, 0);

    /* A child has copies, and the process itself keeps the registered memory. */
    utofu_stadd_t mine = 0;
    static uint8_t source[4096] = "after the fork", late[4096];
    OK(utofu_reg_mem(vcq, rank == 1 ? heap : source, 4096, 0, &mine));
    heap[0] = 0;
    utofu_stadd_t theirs = of_rank_1(rank, mine);
    pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    heap[0] = 'x';
    meet();
    if (rank == 0) IS(put(mine, theirs, 4096), UTOFU_SUCCESS);
    meet();
    if (rank == 1) IS(strcmp((char *)heap, "after the fork"), 0);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);

    /*
     * Inaccessible memory cannot be registered. It is not unmapped, because the next malloc could
     * take its place.
     */
    utofu_stadd_t none;
    uint8_t *hole =
        mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    IS(mprotect(hole + 4096, 4096, PROT_NONE), 0);
    IS(utofu_reg_mem(vcq, hole + 4096, 10, 0, &none), UTOFU_ERR_INVALID_ADDRESS);
    IS(utofu_reg_mem(vcq, hole, 3 * 4096, 0, &none), UTOFU_ERR_INVALID_ADDRESS);
    IS(utofu_reg_mem(vcq, (void *)16, 10, 0, &none), UTOFU_ERR_INVALID_ADDRESS);

    /* Memory that disappears while it is registered is an error; the process survives. */
    utofu_stadd_t gone;
    OK(utofu_reg_mem(vcq, hole, 4096, 0, &gone));
    theirs = of_rank_1(rank, gone);
    if (rank == 0) IS(put(mine, theirs, 4096), UTOFU_SUCCESS);
    meet();
    IS(mprotect(hole, 4096, PROT_NONE), 0);
    meet();
    if (rank == 0) {
        IS(put(mine, theirs, 4096), UTOFU_ERR_MRQ_RMT_MEMORY);
        OK(utofu_put_piggyback8(vcq, ids[1], 1, theirs, 8, 0, TOLD, NULL));
        IS(end(), UTOFU_ERR_MRQ_RMT_MEMORY);
        OK(utofu_armw8(vcq, ids[1], UTOFU_ARMW_OP_ADD, 1, theirs, 0, TOLD, NULL));
        IS(end(), UTOFU_ERR_MRQ_RMT_MEMORY);
        /* Where data is copied from one to the other, either may be reported as missing. */
        IS(get(mine, theirs, 8) != UTOFU_SUCCESS, 1);
        OK(utofu_put(vcq, ids[1], gone, theirs, 8, 0, TOLD, NULL));
        IS(end() != UTOFU_SUCCESS, 1);
    }
    /* Until then it is registered, but absent. */
    meet();
    OK(utofu_dereg_mem(vcq, gone, 0));

    /* And everything still works. */
    utofu_stadd_t last;
    OK(utofu_reg_mem(vcq, late, 4096, 0, &last));
    theirs = of_rank_1(rank, last);
    if (rank == 0) IS(put(mine, theirs, 4096), UTOFU_SUCCESS);
    meet();
    if (rank == 1) puts((char *)late);
    OK(utofu_free_vcq(vcq));
}

int main(void)
{
    return run_ranks(body);
}

/*
 * A rank on each core of a node of Fugaku, or of FX10, where two ranks share a control queue. Each
 * passes a number around the ring of all ranks, and then writes a word of every other one's memory.
 * With an argument, rank 1 is killed after the ring, and the others exchange their words without
 * it.
 */
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "job.h"

#define STAG 10
#define MOST 256

static _Alignas(256) volatile uint64_t words[MOST + 1];
static uint64_t out;
static utofu_vcq_hdl_t vcq;
static utofu_stadd_t out_stadd;

/*
 * With 48 ranks on a node of Fugaku, six have the same number of a control queue, each on its own
 * TNI. On FX10 it is four, and of a ninth to sixteenth rank each shares the queue of a former one:
 * that one has component IDs 0 to 3, and the other 4 to 7.
 */
static int component(int rank)
{
    int major, minor, local = rank % job_number("TOFU_PPN");
    utofu_query_tofu_version(&major, &minor);
    return major == 1 && local < 8 ? 3 : COMPONENT;
}

static utofu_vcq_id_t peer(int rank)
{
    static const utofu_cq_id_t first[8] = {0, 1, 2, 5, 6, 8, 9, 10};
    int major, minor, local = rank % job_number("TOFU_PPN");
    union jtofu_phys_coords at;
    utofu_vcq_id_t id;
    utofu_query_tofu_version(&major, &minor);
    if (jtofu_query_phys_coords(JOB, (jtofu_rank_t)rank, &at) != JTOFU_SUCCESS) exit(1);
    int tnis = major == 1 ? 4 : 6, queue = major == 1 ? local % 8 : local;
    OK(utofu_construct_vcq_id(at.a, (utofu_tni_id_t)(queue % tnis), first[queue / tnis],
                              (utofu_cmp_id_t)component(rank), &id));
    return id;
}

/* Writes a word of another rank's, as soon as that rank has registered it. */
static void tell(int rank, int word, uint64_t value)
{
    utofu_vcq_id_t to = peer(rank);
    utofu_stadd_t place;
    struct utofu_mrq_notice notice;
    int code;
    OK(utofu_query_stadd(to, STAG, &place));
    out = value;
    do {
        OK(utofu_put(vcq, to, out_stadd, place + 8 * (utofu_stadd_t)word, 8, 0,
                     UTOFU_ONESIDED_FLAG_LOCAL_MRQ_NOTICE, NULL));
        while ((code = utofu_poll_mrq(vcq, 0, &notice)) == UTOFU_ERR_NOT_FOUND)
            sched_yield();
    } while (code != UTOFU_SUCCESS);
}

static uint64_t wait_for(int word)
{
    while (words[word] == 0)
        sched_yield();
    return words[word];
}

int main(int argc, char **argv)
{
    int rank = job_rank(), size = job_size(), lost = argc > 1 ? 1 : -1;
    utofu_tni_id_t *tnis;
    size_t n;
    (void)argv;
    job_start();
    OK(utofu_get_onesided_tnis(&tnis, &n));
    OK(utofu_create_vcq_with_cmp_id(tnis[0], (utofu_cmp_id_t)component(rank), 0, &vcq));
    OK(utofu_reg_mem_with_stag(vcq, (void *)words, sizeof words, STAG, 0, &out_stadd));
    OK(utofu_reg_mem(vcq, &out, sizeof out, 0, &out_stadd));
    if (rank > 0) wait_for(MOST);
    tell((rank + 1) % size, MOST, (uint64_t)rank + 1);
    if (wait_for(MOST) != (uint64_t)(rank + size - 1) % (uint64_t)size + 1) return 2;
    if (rank == lost) kill(getpid(), SIGKILL);
    for (int i = 1; i < size; i++) {
        int other = (rank + i) % size;
        if (other != lost) tell(other, rank, (uint64_t)rank * 1000 + (uint64_t)other + 1);
    }
    uint64_t sum = 0;
    for (int i = 0; i < size; i++) {
        if (i != rank && i != lost) sum += wait_for(i) - (uint64_t)i * 1000 - 1;
    }
    int all = size - 1 - (lost >= 0);
    printf("%s\n", sum == (uint64_t)all * (uint64_t)rank ? "all pairs" : "wrong words");
    return 0;
}

/*
 * A rank on each core of a node of Fugaku, or of FX10, where two ranks share a control queue. Each
 * passes a number around the ring of all ranks, and then writes a word of every other one's memory.
 * With an argument, rank 1 is killed after the ring, and the others exchange their words without
 * it.
 */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "notes.h"

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
    utofu_query_tofu_version(&major, &minor);
    int tnis = major == 1 ? 4 : 6, queue = major == 1 ? local % 8 : local;
    return notes_id(rank, (utofu_tni_id_t)(queue % tnis), first[queue / tnis], component(rank));
}

int main(int argc, char **argv)
{
    int rank = job_rank(), size = job_size(), lost = argc > 1 ? 1 : -1;
    utofu_tni_id_t *tnis;
    size_t n;
    (void)argv;
    job_start();
    OK(utofu_get_onesided_tnis(&tnis, &n));
    notes_start(tnis[0], component(rank));
    if (rank > 0) wait_for(MOST, 1);
    tell((rank + 1) % size, MOST, (uint64_t)rank + 1);
    if (wait_for(MOST, 1) != (uint64_t)(rank + size - 1) % (uint64_t)size + 1) return 2;
    if (rank == lost) kill(getpid(), SIGKILL);
    for (int i = 1; i < size; i++) {
        int other = (rank + i) % size;
        if (other != lost) tell(other, rank, (uint64_t)rank * 1000 + (uint64_t)other + 1);
    }
    uint64_t sum = 0;
    for (int i = 0; i < size; i++) {
        if (i != rank && i != lost) sum += wait_for(i, 1) - (uint64_t)i * 1000 - 1;
    }
    int all = size - 1 - (lost >= 0);
    printf("%s\n", sum == (uint64_t)all * (uint64_t)rank ? "all pairs" : "wrong words");
    return 0;
}

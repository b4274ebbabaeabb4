/*
 * A rank on each core of a node of Fugaku, or of FX10, where two ranks share a control queue. Each
 * passes a number around the ring of all ranks, and then writes a word of every other one's memory.
 * With the argument "without", rank 1 is killed after the ring, and the others exchange their words
 * without it. With "late", each third rank begins a second after the others.
 */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "notes.h"

static utofu_vcq_id_t peer(int rank)
{
    return job_peer(rank);
}

int main(int argc, char **argv)
{
    int rank = job_rank(), size = job_size();
    int lost = argc > 1 && strcmp(argv[1], "without") == 0 ? 1 : -1;
    utofu_tni_id_t *tnis;
    size_t n;
    if (argc > 1 && strcmp(argv[1], "late") == 0 && rank % 3 == 0) sleep(1);
    job_start();
    OK(utofu_get_onesided_tnis(&tnis, &n));
    if (n != (size_t)job_share(rank).tnis || tnis[0] != job_share(rank).tni) return 3;
    notes_start(tnis[0], job_share(rank).component);
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

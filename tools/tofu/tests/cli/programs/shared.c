/*
 * Four ranks on two nodes. Rank 1, which shares a node with rank 0, is killed. The others continue
 * and pass a number around, as if nothing had happened.
 */
#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include "notes.h"

#define ROUNDS 500

static utofu_vcq_id_t peer(int rank)
{
    return job_peer(rank);
}

int main(void)
{
    int rank = job_rank();
    job_start();
    notes_start(0, COMPONENT);
    if (rank == 1) {
        tell(0, 0, (uint64_t)getpid());
        kill(getpid(), SIGKILL);
    }
    if (rank == 0) {
        pid_t other = (pid_t)wait_for(0, 1);
        while (kill(other, 0) == 0 || errno != ESRCH)
            sched_yield();
    }
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        if (rank > 0) wait_for(1, round);
        tell(rank == 0 ? 2 : (rank + 1) % 4, 1, round);
        if (rank == 0) wait_for(1, round);
    }
    if (rank == 0) printf("%d rounds without rank 1\n", ROUNDS);
    return 0;
}

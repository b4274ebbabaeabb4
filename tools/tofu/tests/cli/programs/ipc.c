/* Ranks of a node share System V memory, and those of other nodes have their own. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <unistd.h>

/* The same for all ranks, as programs choose it. */
#define KEY 0x746f6675

int main(void)
{
    int together = atoi(getenv("TOFU_PPN"));
    int id = shmget(KEY, 64, IPC_CREAT | 0600);
    volatile int *count = id < 0 ? NULL : shmat(id, NULL, 0);

    if (id < 0 || count == (void *)-1)
        return perror("shmget"), 1;
    __atomic_add_fetch(count, 1, __ATOMIC_SEQ_CST);
    for (int waits = 0; *count < together && waits < 1000; waits++)
        usleep(10000);
    /* Others would come meanwhile. */
    usleep(500000);
    printf("%d\n", *count);
    return shmctl(id, IPC_RMID, NULL) != 0 && *count == 0;
}

/* Two cores meet at barriers, and everything that fujitsu_hwb.h refuses. */
#include <fujitsu_hwb.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 1000

static int cores[2];
static int first, second;
static volatile int counts[2];

static void check(int right, const char *what, int line)
{
    if (!right) {
        printf("line %d: %s\n", line, what);
        exit(1);
    }
}
#define CHECK(what) check(what, #what, __LINE__)

static void bind_to(int core)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(core, &set);
    CHECK(sched_setaffinity(0, sizeof(set), &set) == 0);
}

static void *worker(void *argument)
{
    int own = argument != NULL, windows[2];

    bind_to(cores[own]);
    /* The other core may use another window for the same barrier. */
    windows[0] = fhwb_assign(first, own ? FHWB_WINDOW_3 : -1);
    windows[1] = fhwb_assign(second, -1);
    CHECK(windows[0] == (own ? 3 : 0) && windows[1] == (own ? 0 : 1));
    for (int round = 1; round <= ROUNDS; round++) {
        counts[own] = round;
        fhwb_sync(windows[0]);
        CHECK(counts[!own] == round);
        fhwb_sync(windows[1]);
    }
    CHECK(fhwb_unassign(first) == 0);
    CHECK(fhwb_unassign(first) == -EINVAL);
    return NULL;
}

/* How a child ends that waits at a window which it has not assigned, with the parent's barrier. */
static void in_child(void)
{
    int status;
    pid_t child = fork();

    CHECK(child >= 0);
    if (child == 0) {
        CHECK(fhwb_fini(first) == -EINVAL);
        fhwb_sync(0);
        _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGILL);
}

static int find_cores(void)
{
    struct fhwb_pe_info *list, own;
    int entries, found = 0;

    CHECK(fhwb_get_all_pe_info(NULL, &entries) == -EINVAL);
    CHECK(fhwb_get_all_pe_info(&list, &entries) == 0);
    for (int core = 0; core < entries && found < 2; core++) {
        if (list[core].cmg == FHWB_INVALID_CMG)
            continue;
        if (found == 1 && list[core].cmg != list[cores[0]].cmg)
            found = 0;
        cores[found++] = core;
    }
    if (found == 2) {
        bind_to(cores[1]);
        CHECK(fhwb_get_pe_info(&own) == 0 && fhwb_get_pe_info(NULL) == -EINVAL);
        CHECK(own.cmg == list[cores[1]].cmg && own.physical_pe == list[cores[1]].physical_pe);
    }
    free(list);
    return found == 2;
}

int main(void)
{
    cpu_set_t set, all;
    pthread_t threads[2];

    CHECK(sched_getaffinity(0, sizeof(all), &all) == 0);
    if (!find_cores()) {
        puts("too few cores");
        return 0;
    }
    CPU_ZERO(&set);
    CHECK(fhwb_init(sizeof(set), &set) == -EINVAL && fhwb_init(sizeof(set), NULL) == -EFAULT);
    CPU_SET(cores[0], &set);
    CHECK(fhwb_init(sizeof(set), &set) == -EINVAL);
    CPU_SET(cores[1], &set);
    first = fhwb_init(sizeof(set), &set);
    second = fhwb_init(sizeof(set), &set);
    CHECK(first >= 0 && second >= 0 && first != second);
    CHECK(fhwb_get_bb_from_bd(first) == 0 && fhwb_get_bb_from_bd(second) == 1);
    CHECK(fhwb_get_cmg_from_bd(first) == cores[0] / 12);
    CHECK(fhwb_get_cmg_from_bd(second + 1) == -EINVAL && fhwb_get_bb_from_bd(-1) == -EINVAL);
    for (long own = 0; own < 2; own++)
        CHECK(pthread_create(&threads[own], NULL, worker, (void *)own) == 0);
    for (int own = 0; own < 2; own++)
        CHECK(pthread_join(threads[own], NULL) == 0);
    in_child();
    CHECK(sched_setaffinity(0, sizeof(all), &all) == 0);
    CHECK(fhwb_assign(first, -1) == -EPERM && fhwb_unassign(second) == -EPERM);
    CHECK(fhwb_fini(first) == 0 && fhwb_fini(first) == -EINVAL && fhwb_fini(second) == 0);
    puts("all as it should be");
    return 0;
}

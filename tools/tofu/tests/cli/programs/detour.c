/*
 * Ranks that make a group and sum up numbers in barrier gates, wait for the file "go", at which
 * time a link is dead, and do the same in a new group. They exchange data through files while a
 * group is made. The argument is the folder.
 */
#include <string.h>
#include <unistd.h>

#include <tofu_collective.h>

#include "job.h"

static const char *folder;
static int rank, size;

static void wait_for_file(char *path)
{
    while (access(path, F_OK) != 0)
        usleep(1000);
}

static int allgather(void *context, const void *mine, size_t bytes, void *all)
{
    static int calls;
    char path[4096], made[4096 + 8];
    (void)context;
    calls++;
    snprintf(path, sizeof path, "%s/%d-%d", folder, calls, rank);
    snprintf(made, sizeof made, "%s.new", path);
    FILE *file = fopen(made, "w");
    if (file == NULL || fwrite(mine, 1, bytes, file) != bytes || fclose(file) != 0 ||
        rename(made, path) != 0)
        return 1;
    for (int other = 0; other < size; other++) {
        snprintf(path, sizeof path, "%s/%d-%d", folder, calls, other);
        wait_for_file(path);
        file = fopen(path, "r");
        if (file == NULL || fread((char *)all + other * bytes, 1, bytes, file) != bytes)
            return 1;
        fclose(file);
    }
    return 0;
}

static void add_up(uint64_t *number, double doubles[3])
{
    tofu_coll_t group;
    *number = rank + 1;
    memcpy(doubles, (double[3]){1e16 / (rank + 1), 0.1 * (rank + 1), -3.3e-300}, sizeof(double[3]));
    OK(tofu_coll_create(rank, (uint32_t[]){size, 1, 1}, TOFU_COLL_ANY, 0, allgather, NULL, &group));
    OK(tofu_coll_allreduce_uint64(group, UTOFU_REDUCE_OP_SUM, number, 1));
    OK(tofu_coll_allreduce_double(group, doubles, 3));
    OK(tofu_coll_barrier(group));
    OK(tofu_coll_free(group));
}

int main(int argc, char **argv)
{
    char path[4096];
    uint64_t before, after;
    double sums[3], again[3];
    if (argc != 2)
        return 2;
    folder = argv[1];
    rank = job_rank();
    size = job_size();
    add_up(&before, sums);
    printf("sum %lu\n", (unsigned long)before);
    fflush(stdout);
    snprintf(path, sizeof path, "%s/go", folder);
    wait_for_file(path);
    add_up(&after, again);
    printf("sum %lu, %s\n", (unsigned long)after,
           memcmp(sums, again, sizeof sums) == 0 ? "the same to the last bit" : "others");
    return 0;
}

/* Which paths a program gets to the next node on B: that of a new VCQ ID, that of an ID whose path
 * was taken back, and how many jTofu knows and the first of them. */
#include "test.h"

#include <jtofu.h>

static void print(const uint8_t *path)
{
    printf("%d%d%d\n", path[0], path[1], path[2]);
}

static void print_path(utofu_vcq_id_t id)
{
    uint8_t path[3];
    OK(utofu_get_path_coords(id, 0, path));
    print(path);
}

int main(void)
{
    union jtofu_phys_coords target = {.s = {.b = 1}}, own = {.s = {.b = 9}};
    union jtofu_path_coords paths[12];
    utofu_vcq_id_t id;
    void *mapinfo;
    size_t count;
    unsigned int processes;

    OK(utofu_construct_vcq_id(target.a, 0, 0, 0, &id));
    print_path(id);
    OK(utofu_set_vcq_id_path(&id, NULL));
    print_path(id);
    OK(jtofu_create_mapinfo_by_envvars(&mapinfo, &count, &processes));
    /* The rank whose node is that of the process. */
    for (unsigned int rank = 0; rank < processes; rank++) {
        OK(jtofu_initialize(0, rank, mapinfo));
        OK(jtofu_query_phys_coords(0, rank, &own));
        if (own.s.b == 0) break;
        OK(jtofu_finalize());
    }
    free(mapinfo);
    OK(jtofu_query_onesided_paths(&target, 12, paths, &count));
    printf("%zu ", count);
    print(paths[0].a);
    return 0;
}

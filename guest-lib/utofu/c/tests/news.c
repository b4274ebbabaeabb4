/* Prints which paths a program gets to the next node on B: that of a new VCQ ID, that of an ID
 * whose path was reset, and the number of paths that jTofu knows and the first of them. Then prints
 * the paths of its commands, to an ID as its owner has made it and after the program has chosen the
 * default path. */
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

/* The path that a Put takes, according to its notice. */
static void print_put(utofu_vcq_hdl_t vcq, utofu_stadd_t mine, utofu_vcq_id_t id, utofu_stadd_t to)
{
    struct utofu_mrq_notice notice;

    OK(utofu_put(vcq, id, mine, to, 8, 0, LOCAL, NULL));
    OK(wait_mrq(vcq, &notice));
    print_path(notice.vcq_id);
}

static void commands(void)
{
    static uint64_t words[2];
    uint8_t direct[3] = {0, 1, 0};
    utofu_vcq_hdl_t vcqs[2];
    utofu_vcq_id_t id;
    utofu_stadd_t stadds[2];

    for (int i = 0; i < 2; i++) {
        OK(tofu_inproc_select(i));
        OK(utofu_create_vcq(0, 0, &vcqs[i]));
        OK(utofu_reg_mem(vcqs[i], &words[i], 8, 0, &stadds[i]));
    }
    OK(utofu_query_vcq_id(vcqs[1], &id));
    OK(tofu_inproc_select(0));
    print_put(vcqs[0], stadds[0], id, stadds[1]);
    OK(utofu_set_vcq_id_path(&id, direct));
    print_put(vcqs[0], stadds[0], id, stadds[1]);
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
    commands();
    return 0;
}

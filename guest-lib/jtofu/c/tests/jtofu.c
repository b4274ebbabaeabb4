/*
 * Uses every function of jtofu.h as a C program does. Needs a job of 4 x 3 nodes on one Tofu unit,
 * four processes on each node, 46 in all, in the environment; with the argument "failures", it
 * needs a larger machine with a failed node instead.
 */
#include <jtofu.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                             \
    do {                                                                        \
        if (!(what)) {                                                          \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);  \
            exit(1);                                                            \
        }                                                                       \
    } while (0)

#define JOB 7u

_Static_assert(JTOFU_VERSION_MAJOR == 0 && JTOFU_VERSION_MINOR == 0, "version");
_Static_assert(sizeof(jtofu_job_id_t) == 4 && sizeof(jtofu_rank_t) == 4, "numbers");
_Static_assert((jtofu_job_id_t)-1 > 0 && (jtofu_rank_t)-1 > 0, "unsigned");
_Static_assert(sizeof(union jtofu_phys_coords) == 6, "phys_coords");
_Static_assert(sizeof(union jtofu_log_coords) == 12, "log_coords");
_Static_assert(sizeof(union jtofu_path_coords) == 3, "path_coords");
_Static_assert(offsetof(union jtofu_phys_coords, s.x) == 0, "x");
_Static_assert(offsetof(union jtofu_phys_coords, s.y) == 1, "y");
_Static_assert(offsetof(union jtofu_phys_coords, s.z) == 2, "z");
_Static_assert(offsetof(union jtofu_phys_coords, s.a) == 3, "a");
_Static_assert(offsetof(union jtofu_phys_coords, s.b) == 4, "b");
_Static_assert(offsetof(union jtofu_phys_coords, s.c) == 5, "c");
_Static_assert(offsetof(union jtofu_log_coords, s.y) == 4, "logical y");
_Static_assert(offsetof(union jtofu_log_coords, s.z) == 8, "logical z");
_Static_assert(offsetof(union jtofu_path_coords, s.pb) == 1, "pb");
_Static_assert(offsetof(union jtofu_path_coords, s.pc) == 2, "pc");
_Static_assert(JTOFU_SUCCESS == 0, "SUCCESS");
_Static_assert(JTOFU_ERR_NOT_INITIALIZED == -1, "NOT_INITIALIZED");
_Static_assert(JTOFU_ERR_NOT_IMPLEMENTED == -2, "NOT_IMPLEMENTED");
_Static_assert(JTOFU_ERR_INVALID_ARG == -3, "INVALID_ARG");
_Static_assert(JTOFU_ERR_INVALID_POINTER == -4, "INVALID_POINTER");
_Static_assert(JTOFU_ERR_EXCESS_FINALIZE == -5, "EXCESS_FINALIZE");
_Static_assert(JTOFU_ERR_OUT_OF_MEMORY == -6, "OUT_OF_MEMORY");
_Static_assert(JTOFU_ERR_INTERNAL == -100, "INTERNAL");

static union jtofu_phys_coords phys;
static union jtofu_log_coords logical;
static union jtofu_path_coords paths[16];
static jtofu_rank_t ranks[48];
static size_t count;

/* All queries, with these pointers; each must return the expected code. */
static void all_queries(int expected, union jtofu_phys_coords *p, union jtofu_log_coords *l,
                        union jtofu_path_coords *t, jtofu_rank_t *r, size_t *n)
{
    CHECK(jtofu_query_sys_size(p) == expected);
    CHECK(jtofu_query_sys_torus(p) == expected);
    CHECK(jtofu_query_ref_coords(p) == expected);
    CHECK(jtofu_query_phys_size(p) == expected);
    CHECK(jtofu_query_log_size(l) == expected);
    CHECK(jtofu_query_phys_coords(JOB, 0, p) == expected);
    CHECK(jtofu_query_log_coords(JOB, 0, l) == expected);
    CHECK(jtofu_query_ranks_from_phys_coords(JOB, p, 48, r, n) == expected);
    CHECK(jtofu_query_ranks_from_log_coords(JOB, l, 48, r, n) == expected);
    CHECK(jtofu_query_onesided_paths(p, 16, t, n) == expected);
    CHECK(jtofu_query_barrier_paths(p, 16, t, n) == expected);
    CHECK(jtofu_query_onesided_hops(p, n) == expected);
    CHECK(jtofu_query_barrier_hops(p, n) == expected);
}

static void before(const void *mapinfo)
{
    all_queries(JTOFU_ERR_NOT_INITIALIZED, &phys, &logical, paths, ranks, &count);
    all_queries(JTOFU_ERR_NOT_INITIALIZED, NULL, NULL, NULL, NULL, NULL);
    CHECK(jtofu_query_max_proc_per_node() == JTOFU_ERR_NOT_INITIALIZED);
    CHECK(jtofu_add_job(1, mapinfo) == JTOFU_ERR_NOT_INITIALIZED);
    CHECK(jtofu_delete_job(1) == JTOFU_ERR_NOT_INITIALIZED);
    CHECK(jtofu_finalize() == JTOFU_ERR_EXCESS_FINALIZE);
    CHECK(jtofu_initialize(JOB, 5, NULL) == JTOFU_ERR_INVALID_POINTER);
    CHECK(jtofu_initialize(JOB, 5, "") == JTOFU_ERR_INVALID_ARG);
    CHECK(jtofu_initialize(JOB, 5, "{}") == JTOFU_ERR_INVALID_ARG);
    CHECK(jtofu_initialize(JOB, 5, "{\xff}") == JTOFU_ERR_INVALID_ARG);
    CHECK(jtofu_initialize(JOB, 46, mapinfo) == JTOFU_ERR_INVALID_ARG);
    CHECK(jtofu_query_max_proc_per_node() == JTOFU_ERR_NOT_INITIALIZED);
}

static void sizes(void)
{
    static const uint8_t unit[6] = {1, 1, 1, 2, 3, 2}, torus[6] = {0, 0, 0, 0, 1, 0},
                         zero[6] = {0};
    CHECK(jtofu_query_sys_size(&phys) == JTOFU_SUCCESS && !memcmp(phys.a, unit, 6));
    CHECK(jtofu_query_phys_size(&phys) == JTOFU_SUCCESS && !memcmp(phys.a, unit, 6));
    CHECK(jtofu_query_sys_torus(&phys) == JTOFU_SUCCESS && !memcmp(phys.a, torus, 6));
    CHECK(jtofu_query_ref_coords(&phys) == JTOFU_SUCCESS && !memcmp(phys.a, zero, 6));
    CHECK(jtofu_query_log_size(&logical) == JTOFU_SUCCESS);
    CHECK(logical.s.x == 4 && logical.s.y == 3 && logical.s.z == 1);
    CHECK(jtofu_query_max_proc_per_node() == 4);
}

/* Ranks and places lead to each other. */
static void places(void)
{
    for (jtofu_rank_t rank = 0; rank < 46; rank++) {
        size_t expected = rank < 44 ? 4 : 2, again;
        jtofu_rank_t others[48];
        CHECK(jtofu_query_log_coords(JOB, rank, &logical) == JTOFU_SUCCESS);
        CHECK(logical.s.x == rank / 4 % 4 && logical.s.y == rank / 16 && logical.s.z == 0);
        CHECK(jtofu_query_phys_coords(JOB, rank, &phys) == JTOFU_SUCCESS);
        CHECK(jtofu_query_ranks_from_log_coords(JOB, &logical, 48, ranks, &count) == 0);
        CHECK(jtofu_query_ranks_from_phys_coords(JOB, &phys, 48, others, &again) == 0);
        CHECK(count == expected && again == expected);
        for (size_t i = 0; i < count; i++)
            CHECK(ranks[i] == rank / 4 * 4 + i && others[i] == ranks[i]);
    }
    ranks[2] = 12345;
    CHECK(jtofu_query_ranks_from_phys_coords(JOB, &phys, 1, ranks, &count) == JTOFU_SUCCESS);
    CHECK(count == 1 && ranks[0] == 44 && ranks[2] == 12345);
    CHECK(jtofu_query_ranks_from_phys_coords(JOB, &phys, 0, NULL, &count) == 0 && count == 0);
}

/* Neighbours in the job's torus are one hop apart. */
static void hops(void)
{
    static const jtofu_rank_t near[4] = {5 - 4, 5 + 4, 5 + 16, 5 + 32};
    union jtofu_phys_coords me;
    CHECK(jtofu_query_phys_coords(JOB, 5, &me) == JTOFU_SUCCESS);
    CHECK(jtofu_query_onesided_hops(&me, &count) == JTOFU_SUCCESS && count == 0);
    for (int i = 0; i < 4; i++) {
        CHECK(jtofu_query_phys_coords(JOB, near[i], &phys) == JTOFU_SUCCESS);
        CHECK(jtofu_query_onesided_hops(&phys, &count) == JTOFU_SUCCESS && count == 1);
        CHECK(jtofu_query_barrier_hops(&phys, &count) == JTOFU_SUCCESS && count == 1);
        CHECK(jtofu_query_onesided_paths(&phys, 16, paths, &count) == 0 && count == 12);
        CHECK(paths[0].s.pa == phys.s.a && paths[0].s.pb == phys.s.b);
        CHECK(paths[0].s.pc == phys.s.c);
        for (size_t j = 0; j < count; j++) {
            CHECK(paths[j].s.pa < 2 && paths[j].s.pb < 3 && paths[j].s.pc < 2);
            for (size_t k = 0; k < j; k++)
                CHECK(memcmp(&paths[j], &paths[k], sizeof(paths[j])) != 0);
        }
        CHECK(jtofu_query_barrier_paths(&phys, 5, paths, &count) == 0 && count == 5);
    }
}

static void wrong(const void *mapinfo)
{
    all_queries(JTOFU_ERR_INVALID_POINTER, NULL, NULL, NULL, NULL, NULL);
    CHECK(jtofu_query_onesided_paths(&phys, 1, NULL, &count) == JTOFU_ERR_INVALID_POINTER);
    CHECK(jtofu_query_onesided_paths(&phys, 16, paths, NULL) == JTOFU_ERR_INVALID_POINTER);
    CHECK(jtofu_query_ranks_from_phys_coords(JOB, &phys, 4, NULL, &count) ==
          JTOFU_ERR_INVALID_POINTER);
    CHECK(jtofu_add_job(1, NULL) == JTOFU_ERR_INVALID_POINTER);
    CHECK(jtofu_add_job(1, "nothing") == JTOFU_ERR_INVALID_ARG);
    CHECK(jtofu_add_job(JOB, mapinfo) == JTOFU_ERR_INVALID_ARG);
    CHECK(jtofu_delete_job(JOB) == JTOFU_ERR_INVALID_ARG);
    CHECK(jtofu_delete_job(1) == JTOFU_ERR_INVALID_ARG);
    CHECK(jtofu_initialize(JOB, 6, mapinfo) == JTOFU_ERR_INVALID_ARG);
    CHECK(jtofu_initialize(JOB + 1, 5, mapinfo) == JTOFU_ERR_INVALID_ARG);
    CHECK(jtofu_query_phys_coords(JOB, 46, &phys) == JTOFU_ERR_INVALID_ARG);
    CHECK(jtofu_query_phys_coords(JOB + 1, 0, &phys) == JTOFU_ERR_INVALID_ARG);
    CHECK(jtofu_query_log_coords(JOB, 0xffffffff, &logical) == JTOFU_ERR_INVALID_ARG);
    union jtofu_phys_coords outside = {.a = {0, 0, 0, 0, 3, 0}};
    union jtofu_log_coords beyond = {.a = {0, 0, 1}};
    count = 99;
    CHECK(jtofu_query_ranks_from_phys_coords(JOB, &outside, 48, ranks, &count) ==
          JTOFU_ERR_INVALID_ARG);
    CHECK(jtofu_query_ranks_from_log_coords(JOB, &beyond, 48, ranks, &count) ==
          JTOFU_ERR_INVALID_ARG);
    CHECK(jtofu_query_onesided_paths(&outside, 16, paths, &count) == JTOFU_ERR_INVALID_ARG);
    CHECK(jtofu_query_barrier_paths(&outside, 16, paths, &count) == JTOFU_ERR_INVALID_ARG);
    CHECK(jtofu_query_onesided_hops(&outside, &count) == JTOFU_ERR_INVALID_ARG);
    CHECK(jtofu_query_barrier_hops(&outside, &count) == JTOFU_ERR_INVALID_ARG);
    CHECK(count == 99);
}

static void *asking(void *unused)
{
    for (int i = 0; i < 2000; i++) {
        union jtofu_log_coords at;
        CHECK(jtofu_query_log_coords(JOB, 21, &at) == JTOFU_SUCCESS);
        CHECK(at.s.x == 1 && at.s.y == 1 && at.s.z == 0);
    }
    return unused;
}

/* Other jobs come and go while threads query. */
static void jobs(const void *mapinfo)
{
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, asking, NULL) == 0);
    for (jtofu_job_id_t job = 100; job < 120; job++) {
        CHECK(jtofu_add_job(job, mapinfo) == JTOFU_SUCCESS);
        CHECK(jtofu_add_job(job, mapinfo) == JTOFU_ERR_INVALID_ARG);
        CHECK(jtofu_query_phys_coords(job, 45, &phys) == JTOFU_SUCCESS);
        CHECK(jtofu_delete_job(job) == JTOFU_SUCCESS);
        CHECK(jtofu_query_phys_coords(job, 45, &phys) == JTOFU_ERR_INVALID_ARG);
    }
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
}

/*
 * A row of four units with a failed node (1,0,0,0,0,0): it has no rank, and no path from
 * (0,0,0,0,0,0) leads through it.
 */
static void failures(const void *mapinfo)
{
    union jtofu_phys_coords failed = {.a = {1, 0, 0, 0, 0, 0}},
                            behind = {.a = {2, 0, 0, 0, 0, 0}};
    jtofu_rank_t me = 0;
    CHECK(jtofu_initialize(JOB, 0, mapinfo) == JTOFU_SUCCESS);
    CHECK(jtofu_query_ranks_from_phys_coords(JOB, &failed, 48, ranks, &count) == 0 && count == 0);
    union jtofu_phys_coords zero = {.a = {0}};
    CHECK(jtofu_query_ranks_from_phys_coords(JOB, &zero, 48, ranks, &count) == 0 && count == 1);
    me = ranks[0];
    CHECK(jtofu_finalize() == JTOFU_SUCCESS);
    CHECK(jtofu_initialize(JOB, me, mapinfo) == JTOFU_SUCCESS);
    CHECK(jtofu_query_onesided_paths(&behind, 16, paths, &count) == JTOFU_SUCCESS && count == 11);
    for (size_t i = 0; i < count; i++)
        CHECK(paths[i].s.pa || paths[i].s.pb || paths[i].s.pc);
    CHECK(jtofu_query_onesided_hops(&behind, &count) == JTOFU_SUCCESS && count == 4);
    CHECK(jtofu_query_barrier_hops(&behind, &count) == JTOFU_SUCCESS && count == 4);
    CHECK(jtofu_finalize() == JTOFU_SUCCESS);
}

int main(int argc, char **argv)
{
    void *mapinfo = NULL;
    size_t size = 0;
    unsigned int processes = 0;
    int major = -1, minor = -1;

    (void)argv;
    jtofu_query_jtofu_version(&major, &minor);
    CHECK(major == JTOFU_VERSION_MAJOR && minor == JTOFU_VERSION_MINOR);
    jtofu_query_jtofu_version(NULL, NULL);
    CHECK(jtofu_create_mapinfo_by_envvars(NULL, &size, &processes) == JTOFU_ERR_INVALID_POINTER);
    CHECK(jtofu_create_mapinfo_by_envvars(&mapinfo, NULL, &processes) ==
          JTOFU_ERR_INVALID_POINTER);
    CHECK(jtofu_create_mapinfo_by_envvars(&mapinfo, &size, NULL) == JTOFU_ERR_INVALID_POINTER);
    CHECK(mapinfo == NULL && size == 0);
    if (!getenv("JTOFU_MAPINFO_NODE")) {
        CHECK(jtofu_create_mapinfo_by_envvars(&mapinfo, &size, &processes) ==
              JTOFU_ERR_INVALID_ARG);
        puts("nothing there");
        return 0;
    }
    CHECK(jtofu_create_mapinfo_by_envvars(&mapinfo, &size, &processes) == JTOFU_SUCCESS);
    CHECK(mapinfo && size == strlen(mapinfo) + 1);
    if (argc > 1) {
        CHECK(processes == 47);
        failures(mapinfo);
        free(mapinfo);
        puts("round the failed node");
        return 0;
    }
    CHECK(processes == 46);
    before(mapinfo);
    CHECK(jtofu_initialize(JOB, 5, mapinfo) == JTOFU_SUCCESS);
    sizes();
    places();
    hops();
    wrong(mapinfo);
    jobs(mapinfo);
    CHECK(jtofu_initialize(JOB, 5, mapinfo) == JTOFU_SUCCESS);
    free(mapinfo);
    CHECK(jtofu_finalize() == JTOFU_SUCCESS);
    sizes();
    CHECK(jtofu_finalize() == JTOFU_SUCCESS);
    CHECK(jtofu_query_max_proc_per_node() == JTOFU_ERR_NOT_INITIALIZED);
    CHECK(jtofu_finalize() == JTOFU_ERR_EXCESS_FINALIZE);
    puts("all as it should be");
    return 0;
}

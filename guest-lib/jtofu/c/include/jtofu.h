/*
 * jTofu: where the processes of a job are in a Tofu machine, and on which paths they
 * reach each other. Link with -ltofutop.
 *
 * All functions but jtofu_query_jtofu_version() return JTOFU_SUCCESS or one of the error
 * codes below; jtofu_query_max_proc_per_node() returns its answer instead of the former.
 * They may be called from several threads at once.
 *
 * Until jtofu_initialize() has succeeded they return JTOFU_ERR_NOT_INITIALIZED; next they
 * look for null pointers (JTOFU_ERR_INVALID_POINTER), then for ranks, jobs, nodes and
 * places that do not exist (JTOFU_ERR_INVALID_ARG). On error nothing is written.
 *
 * A list is cut to the length of the caller's array, and the number that is returned with
 * it is that of the elements written.
 */
#ifndef JTOFU_H
#define JTOFU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of the API that a program was compiled with. */
#define JTOFU_VERSION_MAJOR 0
#define JTOFU_VERSION_MINOR 0

/* Number of a job, chosen by whoever starts it. */
typedef uint32_t jtofu_job_id_t;

/* Number of a process in its job, from 0 without gaps. */
typedef uint32_t jtofu_rank_t;

enum jtofu_return_code {
    JTOFU_SUCCESS = 0,
    JTOFU_ERR_NOT_INITIALIZED = -1,
    JTOFU_ERR_NOT_IMPLEMENTED = -2, /* not used by this library */
    JTOFU_ERR_INVALID_ARG = -3,
    JTOFU_ERR_INVALID_POINTER = -4,
    JTOFU_ERR_EXCESS_FINALIZE = -5,
    JTOFU_ERR_OUT_OF_MEMORY = -6,
    JTOFU_ERR_INTERNAL = -100
};

/* A node of the machine, or a value for each of its six axes. */
union jtofu_phys_coords {
    struct {
        uint8_t x;
        uint8_t y;
        uint8_t z;
        uint8_t a;
        uint8_t b;
        uint8_t c;
    } s;
    uint8_t a[6];
};

/* A place in the job's torus, or the length of each of its axes. */
union jtofu_log_coords {
    struct {
        uint32_t x;
        uint32_t y;
        uint32_t z;
    } s;
    uint32_t a[3];
};

/* A path: the A, B, C coordinates at which packets enter X, Y, Z. */
union jtofu_path_coords {
    struct {
        uint8_t pa;
        uint8_t pb;
        uint8_t pc;
    } s;
    uint8_t a[3];
};

/*
 * Tells the library which process of which job it is in, and with mapinfo where all
 * processes of the job are. mapinfo is text, made by the launcher or by
 * jtofu_create_mapinfo_by_envvars(); the library keeps no pointer to it. Further calls
 * with the same job and rank are counted; with others they are JTOFU_ERR_INVALID_ARG.
 */
int jtofu_initialize(jtofu_job_id_t job_id, jtofu_rank_t rank, const void *mapinfo);

/*
 * Undoes one jtofu_initialize(); the last forgets all jobs. JTOFU_ERR_EXCESS_FINALIZE if
 * there is none to undo.
 */
int jtofu_finalize(void);

/* Adds another job on the same machine, so that it can be asked about. */
int jtofu_add_job(jtofu_job_id_t job_id, const void *mapinfo);

/* Forgets a job that was added. The process's own cannot be forgotten. */
int jtofu_delete_job(jtofu_job_id_t job_id);

/* Length of the machine's axes in nodes. */
int jtofu_query_sys_size(union jtofu_phys_coords *sys_size);

/* Which of the machine's axes wrap round: 1, others 0. */
int jtofu_query_sys_torus(union jtofu_phys_coords *sys_torus);

/* The lowest corner of the box of the machine that holds the process's job. */
int jtofu_query_ref_coords(union jtofu_phys_coords *ref_coords);

/* Lengths of that box. On torus axes it may go on beyond the last coordinate, from 0. */
int jtofu_query_phys_size(union jtofu_phys_coords *phys_size);

/* Lengths of the axes of the job's torus; 1 for axes it does not have. */
int jtofu_query_log_size(union jtofu_log_coords *log_size);

/* The node that a process runs on. */
int jtofu_query_phys_coords(jtofu_job_id_t job_id, jtofu_rank_t rank,
                            union jtofu_phys_coords *phys_coords);

/* The place of a process in its job's torus. */
int jtofu_query_log_coords(jtofu_job_id_t job_id, jtofu_rank_t rank,
                           union jtofu_log_coords *log_coords);

/* The most processes that a node of the process's job has; negative: an error code. */
int jtofu_query_max_proc_per_node(void);

/* Processes of a job on a node, in ascending order; none on nodes of other jobs. */
int jtofu_query_ranks_from_phys_coords(jtofu_job_id_t job_id,
                                       union jtofu_phys_coords *phys_coords, size_t max_ranks,
                                       jtofu_rank_t *ranks, size_t *num_ranks);

/* Processes of a job at a place of its torus, in ascending order. */
int jtofu_query_ranks_from_log_coords(jtofu_job_id_t job_id, union jtofu_log_coords *log_coords,
                                      size_t max_ranks, jtofu_rank_t *ranks, size_t *num_ranks);

/*
 * Paths from the process's node to another, the shortest first, and of these the one that
 * is used by default, through the target's own A, B, C. Paths on which a packet or its
 * answer would meet a failed node are left out.
 */
int jtofu_query_onesided_paths(union jtofu_phys_coords *phys_coords, size_t max_paths,
                               union jtofu_path_coords path_coords[], size_t *num_paths);

/* The same for barrier gates, whose packets have no answer. */
int jtofu_query_barrier_paths(union jtofu_phys_coords *phys_coords, size_t max_paths,
                              union jtofu_path_coords path_coords[], size_t *num_paths);

/* Length of the first of these paths; JTOFU_ERR_INVALID_ARG if there is none. */
int jtofu_query_onesided_hops(union jtofu_phys_coords *phys_coords, size_t *num_hops);

int jtofu_query_barrier_hops(union jtofu_phys_coords *phys_coords, size_t *num_hops);

/* Version of the API that the library has. */
extern void jtofu_query_jtofu_version(int *major_ver, int *minor_ver);

/*
 * Makes a mapinfo out of environment variables (TOFU_MAPINFO and others; see the manual).
 * The caller frees *mapinfo with free(). *mapinfo_size is its size in bytes with the
 * final 0; *num_proc the number of the job's processes.
 */
extern int jtofu_create_mapinfo_by_envvars(void **mapinfo, size_t *mapinfo_size,
                                           unsigned int *num_proc);

#ifdef __cplusplus
}
#endif

#endif /* JTOFU_H */

/*
 * Barriers among cores of a node, with the names of Fujitsu's library for the A64FX's hardware
 * barrier. This one needs no such hardware: cores wait in memory. Link with -lFJhwb.
 *
 * A core ("PE") has the number of its processor in Linux. Twelve consecutive ones are a core memory
 * group ("CMG"), as the order of numbers tells on any host. A group has six barriers ("blades"), a
 * core four windows to reach them by. Each process has its own.
 *
 * Functions return a negative value of errno.h on error. They may be called from several threads at
 * once. With FUJITSU_HWBLIB_DEBUG in the environment, reasons are printed on standard error.
 */
#ifndef FUJITSU_HWB_H
#define FUJITSU_HWB_H

/* For cpu_set_t. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <sched.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of the API. */
#define FUJITSU_HWBLIB_VERSION_MAJOR 1
#define FUJITSU_HWBLIB_VERSION_MINOR 0
#define FUJITSU_HWBLIB_VERSION_PATCH 0

#define FHWB_DEBUG_ENV_NAME "FUJITSU_HWBLIB_DEBUG"

/* Windows of a core. */
#define FHWB_WINDOW_0 0
#define FHWB_WINDOW_1 1
#define FHWB_WINDOW_2 2
#define FHWB_WINDOW_3 3

/* For cores that the process cannot run on. */
#define FHWB_INVALID_CMG 0xFF
#define FHWB_INVALID_PPE 0xFF

/* Where a core is: its group, and its number there. */
struct fhwb_pe_info {
    uint8_t cmg;
    uint8_t physical_pe;
};

/*
 * Takes a barrier for two or more cores of a group, whose mask has pemask_size bytes. Returns its
 * descriptor. -EINVAL: too few cores, of several groups, or offline; -EBUSY: the group has no
 * barrier left; -EFAULT: no mask.
 */
int fhwb_init(size_t pemask_size, cpu_set_t *pemask);

/* Gives a barrier back, with all windows to it. -EINVAL: there is no such barrier. */
int fhwb_fini(int bd);

/*
 * Connects a window of the caller's core, or with -1 any free one, to a barrier. Returns the
 * window. The caller must be bound to one core (-EPERM). -EINVAL: there is no such barrier or
 * window, the core is not in the mask, or it has a window to this barrier; -EBUSY: the window is
 * in use, or all are.
 */
int fhwb_assign(int bd, int window);

/*
 * Disconnects the window of the caller's core. -EPERM: it is not bound; -EINVAL: there is no such
 * barrier, or the core has no window to it.
 */
int fhwb_unassign(int bd);

/*
 * Waits until all cores of the barrier behind a window have called this. The signal SIGILL, as of
 * an illegal instruction, is raised if the caller's core has not assigned the window, or while it
 * waits the barrier is given back.
 */
void fhwb_sync(int window);

/* Tells where the caller's core is. -EINVAL: info is null. */
int fhwb_get_pe_info(struct fhwb_pe_info *info);

/*
 * Makes a list of all cores, by the numbers of processors. The caller frees it by free(3).
 * -EINVAL: a pointer is null; -ENOMEM.
 */
int fhwb_get_all_pe_info(struct fhwb_pe_info **list, int *entry_num);

/* The group of a barrier, and its number in the group. -EINVAL: there is no such barrier. */
int fhwb_get_cmg_from_bd(int bd);
int fhwb_get_bb_from_bd(int bd);

#ifdef __cplusplus
}
#endif

#endif

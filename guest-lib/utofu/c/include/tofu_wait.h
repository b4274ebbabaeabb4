/*
 * tofu_wait.h: sleep until a VCQ of uTofu has something to poll.
 *
 * These functions are not part of uTofu; libtofucom has them, too. They return the codes of
 * utofu.h. See "Waiting" in the manual.
 *
 * SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
 */
#ifndef TOFU_WAIT_H
#define TOFU_WAIT_H

#include <stdint.h>

#include <utofu.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Sleeps until utofu_poll_tcq or utofu_poll_mrq would find something, for at most `timeout_ns`
 * nanoseconds; without end if that is negative. UTOFU_SUCCESS: something is there, unless another
 * thread takes it first. UTOFU_ERR_NOT_FOUND: the time has passed. UTOFU_ERR_NOT_SUPPORTED: the
 * process has no interrupts, and returns at once.
 */
int tofu_wait(utofu_vcq_hdl_t vcq_hdl, int64_t timeout_ns);

/*
 * A descriptor for poll, select and epoll. It becomes readable when the VCQ may have something, and
 * stays so until tofu_wait finds nothing. So an event loop polls the queues until they are empty,
 * calls tofu_wait(vcq_hdl, 0), and sleeps on the descriptor if that returns UTOFU_ERR_NOT_FOUND. It
 * belongs to the VCQ: do not read it, and do not close it.
 */
int tofu_wait_fd(utofu_vcq_hdl_t vcq_hdl, int *fd);

#ifdef __cplusplus
}
#endif

#endif

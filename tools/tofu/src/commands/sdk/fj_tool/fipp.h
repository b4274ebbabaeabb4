/* The measured part of a program for the instant profiler of Fujitsu's, which is not here: these
 * functions do nothing. Their names are those of public programs. */
#ifndef TOFU_FJ_TOOL_FIPP_H
#define TOFU_FJ_TOOL_FIPP_H

static inline void fipp_start(void)
{
}

static inline void fipp_stop(void)
{
}

#endif

/* Sections for the advanced profiler of Fujitsu's, which is not here: these functions do nothing,
 * so that programs that call them compile and run. Names and arguments are those of public
 * programs. */
#ifndef TOFU_FJ_TOOL_FAPP_H
#define TOFU_FJ_TOOL_FAPP_H

static inline void fapp_start(const char *name, int number, int level)
{
    (void)name, (void)number, (void)level;
}

static inline void fapp_stop(const char *name, int number, int level)
{
    (void)name, (void)number, (void)level;
}

#endif

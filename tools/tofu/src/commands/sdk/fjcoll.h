/* Sections for the profiler of the K computer and FX10, which is not here: these functions do
 * nothing. Names and arguments are those of public programs. */
#ifndef TOFU_FJCOLL_H
#define TOFU_FJCOLL_H

static inline void start_collection(const char *name)
{
    (void)name;
}

static inline void stop_collection(const char *name)
{
    (void)name;
}

#endif

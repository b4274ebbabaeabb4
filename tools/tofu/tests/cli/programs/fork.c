/* The library's test of forks, with both processes in one rank. */
#define ONE_PROCESS
#include "../../../../../guest-lib/utofu/c/tests/fork.c"

/* Finds the other ranks by the process manager, and then sends round by uTofu. */
#define main ring
#include "../../../guest-lib/utofu/examples/run/ring.c"
#undef main
#define main pmi
#include "../../../tools/tofu/tests/cli/programs/pmi.c"
#undef main

int main(int argc, char **argv)
{
    int failed = pmi(argc, argv);

    return failed ? failed : ring();
}

/* The test of waiting by ranks 0 and 8 of a node of FX10, which share a control queue. */
#define ONE_PROCESS
/* Each doorbell of such a queue is a message: 2000 rounds took 50 seconds of an emulated node. */
#define ROUNDS 200
#define main wait_main
#include "../../../../../guest-lib/utofu/c/tests/wait.c"
#undef main

int main(int argc, char **argv)
{
    const char *local = getenv("TOFU_LOCAL_RANK");
    return local && atoi(local) % 8 == 0 ? wait_main(argc, argv) : 0;
}

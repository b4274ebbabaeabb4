/* A rank that does one of the things that ranks do to their launcher. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value == NULL ? "-" : value;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    int rank = atoi(variable("TOFU_RANK"));
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (strcmp(what, "environment") == 0) {
        printf("%s %s %s %s %s %s\n", variable("TOFU_RANK"), variable("TOFU_SIZE"),
               variable("TOFU_LOCAL_RANK"), variable("TOFU_PPN"), variable("GIVEN"),
               access(variable("TOFU_MAPINFO_FILE"), R_OK) == 0 ? "map" : "no map");
        fprintf(stderr, "also\n");
    } else if (strcmp(what, "code") == 0) {
        if (rank == 1) return 7;
        sleep(600);
    } else if (strcmp(what, "signal") == 0) {
        if (rank == 1) raise(SIGSEGV);
        sleep(600);
    } else if (strcmp(what, "stubborn") == 0) {
        signal(SIGTERM, SIG_IGN);
        if (rank == 1) return 3;
        for (;;) sleep(600);
    } else if (strcmp(what, "input") == 0) {
        char line[100];
        while (fgets(line, sizeof line, stdin) != NULL) printf("got %s", line);
        printf("end without a newline");
    } else if (strcmp(what, "wait") == 0) {
        /* With a child that has left the rank's group. */
        if (fork() == 0) {
            setsid();
            sleep(600);
            return 0;
        }
        printf("on\n");
        sleep(600);
    } else if (strcmp(what, "file") == 0) {
        char line[100];
        FILE *file = fopen(argc > 2 ? argv[2] : "", "r");
        if (file == NULL || fgets(line, sizeof line, file) == NULL) return 1;
        printf("%s", line);
    }
    return 0;
}

/* A rank that confronts its launcher with one of the things that ranks do. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <utofu.h>

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
    } else if (strcmp(what, "queues") == 0) {
        /* The interfaces of its share. It opens a queue on each and sends something to itself over
         * it. */
        utofu_tni_id_t *tnis;
        size_t count;
        if (utofu_get_onesided_tnis(&tnis, &count) != UTOFU_SUCCESS) return 1;
        for (size_t i = 0; i < count; i++) {
            static uint64_t words[32] __attribute__((aligned(256)));
            utofu_vcq_hdl_t vcq;
            utofu_vcq_id_t id;
            utofu_stadd_t at;
            uint8_t coords[6];
            utofu_cq_id_t cq;
            utofu_tni_id_t tni;
            uint16_t extra;
            void *data;
            int code;
            if (utofu_create_vcq(tnis[i], 0, &vcq) != UTOFU_SUCCESS ||
                utofu_query_vcq_id(vcq, &id) != UTOFU_SUCCESS ||
                utofu_query_vcq_info(id, coords, &tni, &cq, &extra) != UTOFU_SUCCESS ||
                utofu_reg_mem(vcq, words, sizeof words, 0, &at) != UTOFU_SUCCESS ||
                utofu_put_piggyback8(vcq, id, i + 1, at, 8, 0, UTOFU_ONESIDED_FLAG_TCQ_NOTICE,
                                     NULL) != UTOFU_SUCCESS)
                return 2;
            while ((code = utofu_poll_tcq(vcq, 0, &data)) == UTOFU_ERR_NOT_FOUND)
                ;
            if (code != UTOFU_SUCCESS) return 3;
            while (*(volatile uint64_t *)words != i + 1)
                ;
            printf("%u.%u%s", tni, cq, i + 1 < count ? " " : "\n");
        }
    }
    return 0;
}

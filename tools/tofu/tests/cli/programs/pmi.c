/*
 * Does what an MPI library does when a program starts: asks the process manager for its rank, and
 * exchanges a word with the next rank. With an argument, rank 1 ends the job with that code.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static FILE *in, *out;
static char line[256];

static const char *hear(void)
{
    if (fgets(line, sizeof line, in) == NULL) exit(3);
    line[strcspn(line, "\n")] = 0;
    return line;
}

static const char *value(const char *text)
{
    const char *found = strstr(text, "value=");
    return found ? found + 6 : "nothing";
}

int main(int argc, char **argv)
{
    const char *port = getenv("PMI_PORT"), *id = getenv("PMI_ID"), *size = getenv("PMI_SIZE");
    struct sockaddr_in at = {.sin_family = AF_INET};
    char host[64];
    int number;
    if (!port || !id || !size || sscanf(port, "%63[^:]:%d", host, &number) != 2) return 4;
    at.sin_port = htons((uint16_t)number);
    inet_pton(AF_INET, host, &at.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&at, sizeof at) != 0) return 5;
    in = fdopen(fd, "r");
    out = fdopen(dup(fd), "w");
    setlinebuf(out);
    fprintf(out, "cmd=initack pmiid=%s\n", id);
    for (int i = 0; i < 4; i++)
        hear();
    fprintf(out, "cmd=init pmi_version=1 pmi_subversion=1\n");
    hear();
    if (argc > 1 && strcmp(id, "1") == 0) {
        fprintf(out, "cmd=abort exitcode=%s\n", argv[1]);
        pause();
    }
    fprintf(out, "cmd=put kvsname=tofu key=k%s value=card-%s\n", id, id);
    hear();
    fprintf(out, "cmd=barrier_in\n");
    hear();
    fprintf(out, "cmd=get kvsname=tofu key=k%d\n", (atoi(id) + 1) % atoi(size));
    char next[64];
    snprintf(next, sizeof next, "%s", value(hear()));
    fprintf(out, "cmd=get kvsname=tofu key=PMI_process_mapping\n");
    printf("%s of %s on %s has %s\n", getenv("MPI_LOCALRANKID"), getenv("MPI_LOCALNRANKS"),
           value(hear()), next);
    return 0;
}

/*
 * Stands for a QEMU that its guest has taken over: tries what QEMU needs for no node, and prints
 * what it was allowed to do.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static char allowed[2000];

static void say(const char *what, int done)
{
    if (!done) return;
    strncat(allowed, " ", sizeof allowed - strlen(allowed) - 1);
    strncat(allowed, what, sizeof allowed - strlen(allowed) - 1);
}

static int opens(const char *path, int flags)
{
    return open(path, flags, 0600) >= 0;
}

/* Whether something answers at a socket; its device is what QEMU may reach. */
static int greets(const char *path)
{
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    char byte;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval soon = { .tv_sec = 2 };
    strncpy(to.sun_path, path, sizeof to.sun_path - 1);
    if (connect(fd, (struct sockaddr *)&to, sizeof to)) return 0;
    /* Of the socket that it has been given. */
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
    return read(fd, &byte, 1) == 1;
}

static int runs(void)
{
    int status = 1;
    pid_t child = fork();
    if (child == 0) {
        execl("/bin/true", "true", NULL);
        _exit(1);
    }
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

int main(int count, char **args)
{
    char path[64];
    /* What it is asked before it is taken for a QEMU. */
    if (!strcmp(args[count - 1], "--version") || !strcmp(args[1], "-device")) {
        puts("QEMU emulator version 11.0.0");
        return 0;
    }
    char *control = getenv("QEMU_CONTROL"), *secret = getenv("QEMU_SECRET");
    say("control", greets(control));
    say("read", opens(secret, O_RDONLY));
    say("shadow", opens("/etc/shadow", O_RDONLY));
    say("list", opendir("/") != NULL);
    say("write", opens("/tmp/tofu-stand-in", O_CREAT | O_WRONLY));
    say("append", opens(secret, O_WRONLY | O_APPEND));
    say("device", opens("/dev/mem", O_RDWR) || opens("/dev/vda", O_RDWR));
    snprintf(path, sizeof path, "/proc/%d/mem", getppid());
    say("memory", opens(path, O_RDWR));
    say("signal", kill(getppid(), 0) == 0);
    say("trace", ptrace(PTRACE_SEIZE, getppid(), 0, 0) == 0);
    say("run", runs());
    say("tcp", socket(AF_INET, SOCK_STREAM, 0) >= 0);
    say("udp", socket(AF_INET, SOCK_DGRAM, 0) >= 0);
    say("datagrams", socket(AF_UNIX, SOCK_DGRAM, 0) >= 0);
    say("mount", mount("x", "/mnt", "tmpfs", 0, NULL) == 0);
    say("chmod", chmod(secret, 0777) == 0);
    say("unlink", unlink(secret) == 0);
    say("environment", getenv("TOFU_TEST_SECRET") != NULL);
    /* The test has it open, and a node's QEMU is passed none of this number. */
    say("descriptors", fcntl(9, F_GETFD) >= 0);
    say("root", geteuid() == 0);
    fprintf(stderr, "allowed:%s.\n", allowed);
    return 3;
}

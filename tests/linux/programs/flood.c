// Stands for a QEMU that writes to everything it has without end, or for a program that prints
// without end. `flood` prints lines. With the arguments of a machine it writes to standard error,
// the console (3) and the agent's port (4), without line ends. All other uses of QEMU are passed on
// to the command in REAL_QEMU.
#include <fcntl.h>
#include <string.h>
#include <stdlib.h>
#include <unistd.h>

static void nonblocking(int fd)
{
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

int main(int count, char **args)
{
    static char text[65536];
    int is_machine = 0;

    memset(text, 'x', sizeof text);
    if (count == 1) {
        for (int at = 79; at < (int)sizeof text; at += 80)
            text[at] = '\n';
        for (;;)
            write(1, text, sizeof text - sizeof text % 80);
    }
    for (int at = 1; at < count; at++)
        is_machine |= strstr(args[at], "org.tofu.agent") != NULL;
    if (!is_machine) {
        char **words = calloc(count + 4, sizeof *words);
        words[0] = getenv("REAL_QEMU");
        words[1] = "image";
        words[2] = "qemu";
        words[3] = "--";
        memcpy(words + 4, args + 1, (count - 1) * sizeof *words);
        execv(words[0], words);
        return 1;
    }
    for (int fd = 2; fd <= 4; fd++)
        nonblocking(fd);
    for (;;)
        for (int fd = 2; fd <= 4; fd++)
            write(fd, text, sizeof text);
}

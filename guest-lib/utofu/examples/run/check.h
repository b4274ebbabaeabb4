/* How every program checks uTofu's return codes. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>

#include <utofu.h>

extern void utofu_get_last_error(char *msg);

/* Ends the process with the library's own message; the job ends with it. */
#define OK(call)                                               \
    do {                                                       \
        if ((call) != UTOFU_SUCCESS) {                         \
            char text_[1024];                                  \
            utofu_get_last_error(text_);                       \
            fprintf(stderr, "%s\n", text_);                    \
            exit(1);                                           \
        }                                                      \
    } while (0)

#endif

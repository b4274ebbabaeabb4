/* What every program does with what libtnw returns. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>

#include <tnw.h>

/* Ends the process with the library's own words; the job ends with it. */
#define OK(call)                                 \
    do {                                         \
        if ((call) != TNW_SUCCESS) {             \
            char text_[256];                     \
            tnwLastError(text_, sizeof text_);   \
            fprintf(stderr, "%s\n", text_);      \
            exit(1);                             \
        }                                        \
    } while (0)

/* How long a neighbour may take, in microseconds: it may start later. */
#define PATIENCE 60000000ull

#endif

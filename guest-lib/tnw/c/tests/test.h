/* Shared by the C tests. */
#ifndef TEST_H
#define TEST_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tnw.h>

/* Microseconds. Requests that do end end at once, even with few processors. */
#define LONG 60000000ull

#define IS(expr, value)                                                               \
    do {                                                                              \
        long long got_ = (long long)(expr), expected_ = (long long)(value);           \
        if (got_ != expected_) {                                                      \
            char text_[256];                                                          \
            tnwLastError(text_, sizeof text_);                                        \
            fprintf(stderr, "line %d: %s is %lld, expected %lld; last error: %s\n",   \
                    __LINE__, #expr, got_, expected_, text_);                         \
            exit(1);                                                                  \
        }                                                                             \
    } while (0)
#define OK(expr) IS(expr, TNW_SUCCESS)

static inline void pattern(uint8_t *to, size_t bytes, unsigned seed)
{
    uint32_t x = seed * 2654435761u + 1;
    for (size_t i = 0; i < bytes; i++) {
        x = x * 1664525u + 1013904223u;
        to[i] = (uint8_t)(x >> 24);
    }
}

#endif

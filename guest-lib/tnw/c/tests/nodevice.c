/* The errors that a program without a device gets. */
#include "test.h"

int main(void)
{
    tnw_t tnw;
    char text[512];
    int code = tnwOpen(0, &tnw);
    tnwLastError(text, sizeof text);
    printf("%d %s\n", code, text);
    return 0;
}

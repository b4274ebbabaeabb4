/* The errors that a program without a device gets. */
#include "test.h"

int main(void)
{
    utofu_vcq_hdl_t vcq;
    utofu_tni_id_t *ids;
    size_t count;
    char text[1024];
    if (utofu_get_onesided_tnis(&ids, &count) == UTOFU_SUCCESS) return 1;
    int code = utofu_create_vcq(0, 0, &vcq);
    utofu_get_last_error(text);
    printf("%d %s\n", code, text);
    return 0;
}

/*
 * Sending on all nodes data in direction x+ and receiving from x-, and the same for y and z: the
 * pattern of section 3 of the paper. Each node tells its neighbours its place.
 *
 *   tofu run --local --generation tnw -n 4 ./shift
 */
#include <stdint.h>
#include <string.h>

#include "check.h"

int main(void)
{
    static const char axes[] = "xyz";
    struct tnwConfig config;
    tnw_t tnw;
    OK(tnwOpen(0, &tnw));
    OK(tnwGetConfig(tnw, &config));
    for (int axis = 0; axis < 3; axis++) {
        enum tnwLink minus = (enum tnwLink)(2 * axis), plus = (enum tnwLink)(2 * axis + 1);
        if (!(config.links >> minus & config.links >> plus & 1)) continue;
        void *memory;
        tnwRequest_t credit;
        OK(tnwAlloc(tnw, TNW_PACKET, &memory));
        OK(tnwCredit(tnw, minus, 0, memory, TNW_PACKET, &credit));
        uint8_t message[TNW_PACKET] = {0};
        memcpy(message, config.coords, sizeof config.coords);
        OK(tnwSend(tnw, plus, 0, message, sizeof message, TNW_PPUT, NULL));
        OK(tnwWait(tnw, credit, PATIENCE, NULL));
        const uint8_t *from = memory;
        printf("%d,%d,%d: %d,%d,%d is at %c-\n", config.coords[0], config.coords[1],
               config.coords[2], from[0], from[1], from[2], axes[axis]);
        OK(tnwFree(tnw, memory));
    }
    OK(tnwClose(tnw));
    return 0;
}

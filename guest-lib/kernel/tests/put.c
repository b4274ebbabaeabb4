// SPDX-License-Identifier: GPL-2.0
/*
 * A Put between two nodes, by hand: registers, rings and ioctls, no library.
 *
 *	put receive TNI CQ BYTES SEED
 *	put send TNI CQ BYTES SEED X Y Z A B C
 *
 * Both use STag 7, which a process may choose itself, so that nothing need be exchanged.
 */
#include "common.h"

enum { STAG = 7 };

int main(int argc, char **argv)
{
	if (argc != 6 && argc != 12) {
		fprintf(stderr, "put receive TNI CQ BYTES SEED | send TNI CQ BYTES SEED X Y Z A B C\n");
		return 2;
	}
	struct queue q = open_queue(atoi(argv[2]), atoi(argv[3]));
	size_t len = strtoul(argv[4], NULL, 0);
	uint8_t *buffer = memory(len);
	uint8_t *expected = memory(len);
	int64_t address = add_memory(&q, buffer, len, STAG, 0);

	if (address < 0)
		die("ALLOC_STAG");
	fill(expected, len, atoi(argv[5]));
	if (!strcmp(argv[1], "receive")) {
		printf("ready\n");
		fflush(stdout);
		/* 5: the last packet of a Put was written here. */
		CHECK(wait_mrq(&q, 60) == 5, "a notice");
		CHECK(!memcmp(buffer, expected, len), "%zu bytes as sent", len);
	} else {
		struct coords to = { atoi(argv[6]), atoi(argv[7]), atoi(argv[8]), atoi(argv[9]),
			atoi(argv[10]), atoi(argv[11]) };

		memcpy(buffer, expected, len);
		int rcode = put(&q, to, q.tni, address, address, len);

		CHECK(rcode == 0, "rcode %#x", rcode);
		CHECK(wait_mrq(&q, 10) == 9, "own notice");
	}
	return finish();
}

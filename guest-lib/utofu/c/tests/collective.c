/* Groups of processes, each a thread. */
#include <pthread.h>

#include <tofu_collective.h>

#include "test.h"

enum { MEMBERS = 12, ROOM = 4096 };

static pthread_barrier_t here;
static unsigned char board[MEMBERS][ROOM];

/* What MPI_Allgather would do. */
static int allgather(void *context, const void *mine, size_t size, void *all)
{
    unsigned rank = *(unsigned *)context;
    if (size > ROOM) return 1;
    memcpy(board[rank], mine, size);
    pthread_barrier_wait(&here);
    for (unsigned i = 0; i < MEMBERS; i++) memcpy((char *)all + i * size, board[i], size);
    pthread_barrier_wait(&here);
    return 0;
}

static int refuse(void *context, const void *mine, size_t size, void *all)
{
    (void)context, (void)mine, (void)size, (void)all;
    return 7;
}

static void *member(void *context)
{
    unsigned rank = *(unsigned *)context, algorithm;
    const uint32_t box[3] = {2, 3, 2};
    tofu_coll_t group = 0, second = 0;
    utofu_vbg_id_t start;
    size_t gates;
    OK(tofu_inproc_select(rank));
    for (unsigned wanted = TOFU_COLL_ANY; wanted <= TOFU_COLL_DOUBLE_RING_3D; wanted++) {
        OK(tofu_coll_create(rank, box, wanted, 0, allgather, context, &group));
        OK(tofu_coll_create(rank, box, wanted, 3, allgather, context, &second));
        OK(tofu_coll_query(group, &algorithm, &start, &gates));
        if (wanted != TOFU_COLL_ANY) IS(algorithm, wanted);
        IS(start >> 61, 0);
        OK(tofu_coll_query(second, &algorithm, &start, &gates));
        IS(start >> 61, 3);
        for (uint64_t round = 0; round < 10; round++) {
            uint64_t sums[13], word = rank == round % MEMBERS ? 0xabcdef + round : rank;
            double numbers[4] = {rank == 0 ? 1e16 : rank == 7 ? -1e16 : 0.5, 1, 2, rank};
            uint64_t most = rank * 3;
            OK(tofu_coll_barrier(group));
            for (unsigned i = 0; i < 13; i++) sums[i] = rank + i + round;
            OK(tofu_coll_allreduce_uint64(group, UTOFU_REDUCE_OP_SUM, sums, 13));
            for (unsigned i = 0; i < 13; i++) IS(sums[i], 66 + 12 * (i + round));
            OK(tofu_coll_allreduce_double(second, numbers, 4));
            IS(numbers[0] == 5.0 && numbers[1] == 12 && numbers[2] == 24 && numbers[3] == 66, 1);
            OK(tofu_coll_broadcast(group, round % MEMBERS, &word, 1));
            IS(word, 0xabcdef + round);
            OK(tofu_coll_reduce_uint64(second, 4, UTOFU_REDUCE_OP_MAX, &most, 1));
            IS(most, rank == 4 ? 33 : rank * 3);
        }
        OK(tofu_coll_free(second));
        OK(tofu_coll_free(group));
        IS(tofu_coll_free(group), UTOFU_ERR_NOT_FOUND);
        IS(tofu_coll_barrier(group), UTOFU_ERR_NOT_FOUND);
    }
    return NULL;
}

int main(void)
{
    unsigned ranks[MEMBERS], zero = 0;
    const uint32_t one[3] = {1, 1, 1}, none[3] = {0, 1, 1};
    pthread_t threads[MEMBERS];
    tofu_coll_t group;
    uint64_t data[2] = {1, 2};
    double number = 1;
    pthread_barrier_init(&here, NULL, MEMBERS);
    for (unsigned i = 0; i < MEMBERS; i++) {
        ranks[i] = i;
        pthread_create(&threads[i], NULL, member, &ranks[i]);
    }
    for (unsigned i = 0; i < MEMBERS; i++) pthread_join(threads[i], NULL);

    OK(tofu_inproc_select(0));
    IS(tofu_coll_create(0, NULL, 0, 0, allgather, &zero, &group), UTOFU_ERR_INVALID_POINTER);
    IS(tofu_coll_create(0, one, 0, 0, NULL, &zero, &group), UTOFU_ERR_INVALID_POINTER);
    IS(tofu_coll_create(0, one, 0, 0, allgather, &zero, NULL), UTOFU_ERR_INVALID_POINTER);
    IS(tofu_coll_create(0, one, 6, 0, allgather, &zero, &group), UTOFU_ERR_INVALID_ARG);
    IS(tofu_coll_create(0, one, 0, 6, allgather, &zero, &group), UTOFU_ERR_INVALID_TNI_ID);
    IS(tofu_coll_create(1, one, 0, 0, allgather, &zero, &group), UTOFU_ERR_INVALID_NUMBER);
    IS(tofu_coll_create(0, none, 0, 0, allgather, &zero, &group), UTOFU_ERR_INVALID_NUMBER);
    IS(tofu_coll_create(0, one, 0, 0, refuse, &zero, &group), UTOFU_ERR_NOT_PROCESSED);
    IS(tofu_coll_barrier(99999), UTOFU_ERR_NOT_FOUND);
    IS(tofu_coll_allreduce_uint64(99999, UTOFU_REDUCE_OP_SUM, data, 2), UTOFU_ERR_NOT_FOUND);
    IS(tofu_coll_allreduce_double(99999, &number, 1), UTOFU_ERR_NOT_FOUND);
    IS(tofu_coll_allreduce_uint64(99999, UTOFU_REDUCE_OP_SUM, NULL, 2), UTOFU_ERR_INVALID_POINTER);
    puts("ok");
    return 0;
}

/*
 * Collectives by several algorithms, by this program's clock: an allgather of 1 KiB from each rank,
 * by Puts to all over one interface and over six, around a ring, and by recursive doubling; and a
 * sum of 12 KiB, of which only the messages are sent. Prints a line for each: its name and
 * microseconds. Ranks are on nodes of their own. The argument is the number of rounds that are
 * measured. For the times of a machine:
 *
 *     tofu run --time modelled -n 12 ./gather 6
 */
#define STEPS 8

/*
 * A part of each rank, and a vector for each step of a sum, both with the round's number behind.
 * Even and odd rounds have places of their own: no rank is more than a round ahead, but one that is
 * must not overwrite what others still pass on.
 */
#define PART 1024
#define VECTOR 12288
#define SLOT(bytes) (((size_t)(bytes) + 8 + LINE - 1) / LINE * LINE)
#define IN_SET(set, rank) (((size_t)(set) * MOST + (size_t)(rank)) * SLOT(PART))
#define GATHERED(rank) IN_SET(token % 2, rank)
#define SUM(step) (IN_SET(2, 0) + ((token % 2) * (STEPS + 1) + (size_t)(step)) * SLOT(VECTOR))
#define MEMORY (IN_SET(2, 0) + 2 * (STEPS + 1) * SLOT(VECTOR))

#include "peers.h"

static int rounds = 16;
static uint64_t token;

static void await(size_t at)
{
    double begin = now();
    while (*word(at) < token)
        if (now() - begin > 30e6) {
            fprintf(stderr, "rank %d has waited for data for 30 s\n", rank);
            exit(1);
        }
}

/* Puts the own part to all others; over one interface one after the other. */
static void to_all(int tnis)
{
    *word(GATHERED(rank) + PART) = token;
    for (int i = 1; i < size; i++) {
        put((rank + i) % size, (i - 1) % tnis, GATHERED(rank), GATHERED(rank), PART + 8);
        if (tnis == 1) sent(0);
    }
    for (int i = 1; tnis > 1 && i < size; i++) sent((i - 1) % tnis);
    for (int i = 0; i < size; i++)
        if (i != rank) await(GATHERED(i) + PART);
}

/* Each rank passes on to the next one what came from the one before. */
static void ring(int tnis)
{
    (void)tnis;
    *word(GATHERED(rank) + PART) = token;
    for (int step = 0; step < size - 1; step++) {
        int mine = (rank + size - step) % size, came = (mine + size - 1) % size;
        put((rank + 1) % size, 0, GATHERED(mine), GATHERED(mine), PART + 8);
        sent(0);
        await(GATHERED(came) + PART);
    }
}

/*
 * Recursive doubling is for `places` ranks, a power of two. Of each two of the first ranks, as many
 * pairs as there are further ones, the one with the odd number takes part for both.
 */
static int places, extra;

static int is_left_out(int of) { return of < 2 * extra && of % 2 == 0; }
static int place_of(int of) { return of < 2 * extra ? of / 2 : of - extra; }
static int rank_at(int place) { return place < extra ? 2 * place + 1 : place + extra; }
/* The first rank whose part a place has at first. */
static int first_of(int place) { return place < extra ? 2 * place : place + extra; }

static void send_parts(int to, int from, int end)
{
    put(to, 0, GATHERED(from), GATHERED(from), (size_t)(end - from) * SLOT(PART));
    sent(0);
}

static void doubling(int tnis)
{
    (void)tnis;
    int place = place_of(rank);
    *word(GATHERED(rank) + SLOT(PART) - 8) = token;
    if (is_left_out(rank)) {
        send_parts(rank + 1, rank, rank + 1);
        await(GATHERED(size) - 8);
        return;
    }
    if (rank < 2 * extra) await(GATHERED(rank) - 8);
    for (int step = 1; step < places; step *= 2) {
        int other = place ^ step, mine = place & -step, came = other & -step;
        send_parts(rank_at(other), first_of(mine), first_of(mine + step));
        await(GATHERED(first_of(came + step)) - 8);
    }
    if (rank < 2 * extra) send_parts(rank - 1, 0, size);
}

static void send_vector(int to, int step)
{
    put(to, 0, SUM(STEPS), SUM(step), VECTOR + 8);
    sent(0);
}

static void sum(int tnis)
{
    (void)tnis;
    int step = 1;
    *word(SUM(STEPS) + VECTOR) = token;
    if (is_left_out(rank)) {
        send_vector(rank + 1, 0);
        await(SUM(STEPS - 1) + VECTOR);
        return;
    }
    if (rank < 2 * extra) await(SUM(0) + VECTOR);
    for (int with = 1; with < places; with *= 2, step++) {
        send_vector(rank_at(place_of(rank) ^ with), step);
        await(SUM(step) + VECTOR);
    }
    if (rank < 2 * extra) send_vector(rank - 1, STEPS - 1);
}

static void measure(const char *what, void (*round)(int), int tnis)
{
    double begin = 0;
    meet(0);
    for (int i = -3; i < rounds; i++) {
        if (i == 0) begin = now();
        token++;
        round(tnis);
    }
    if (rank == 0) printf("%s %.2f\n", what, (now() - begin) / rounds);
    for (int i = 0; round != sum && i < size; i++) {
        if (*word(GATHERED(i)) != (uint64_t)i + 1) {
            fprintf(stderr, "%s: rank %d lacks the part of rank %d\n", what, rank, i);
            exit(1);
        }
        if (i != rank) *word(IN_SET(0, i)) = *word(IN_SET(1, i)) = 0;
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) rounds = atoi(argv[1]);
    begin_job();
    for (int i = 0; i < size; i++)
        for (int t = 0; t < TNIS; t++) OK(utofu_set_vcq_id_path(&peer[i][t], NULL));
    for (places = 1; places * 2 <= size; places *= 2)
        ;
    extra = size - places;
    *word(IN_SET(0, rank)) = *word(IN_SET(1, rank)) = (uint64_t)rank + 1;
    meet(1);
    measure("all-1", to_all, 1);
    measure("all-6", to_all, TNIS);
    measure("ring", ring, 1);
    measure("doubling", doubling, 1);
    measure("sum", sum, 1);
    end_job();
    return 0;
}

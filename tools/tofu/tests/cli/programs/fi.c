/*
 * A consumer of libtofu-fi without libfabric: two ranks call the provider's tables. Each structure
 * is declared here as far as it is used, a second time and independently of the library.
 *
 * Rank 0 writes its address to the file that the second argument names, rank 1 to the third. More
 * arguments are the rank to use in place of 1, and what rank 0 runs before and after messages.
 */
#include <dlfcn.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define CHECK(c) \
    do { \
        if (!(c)) { \
            printf("rank %d: line %d: %s\n", rank, __LINE__, #c); \
            exit(1); \
        } \
    } while (0)

struct fid;
struct fabric;
struct domain;
struct av;
struct cq;
struct ep;
struct ops {
    size_t size;
    int (*close)(struct fid *);
    int (*bind)(struct fid *, struct fid *, uint64_t);
    int (*control)(struct fid *, int, void *);
};
struct fid { size_t fclass; void *context; struct ops *ops; };
struct info {
    struct info *next;
    uint64_t caps, mode;
    uint32_t addr_format;
    size_t src_addrlen, dest_addrlen;
    void *src_addr, *dest_addr, *handle;
    void *tx_attr, *rx_attr, *ep_attr, *domain_attr;
    struct fabric_attr *fabric_attr;
    void *nic;
};
struct fabric_attr { void *fabric; char *name, *prov_name; uint32_t prov_version, api_version; };
struct provider {
    uint32_t version, fi_version;
    void *context[4];
    const char *name;
    int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct info *, struct
        info **);
    int (*fabric)(struct fabric_attr *, struct fabric **, void *);
    void (*cleanup)(void);
};
struct fabric {
    struct fid fid;
    struct fabric_ops {
        size_t size;
        int (*domain)(struct fabric *, struct info *, struct domain **, void *);
        void *passive_ep, *eq_open, *wait_open;
        int (*trywait)(struct fabric *, struct fid **, int);
    } *ops;
    uint32_t api_version;
};
struct domain {
    struct fid fid;
    struct domain_ops {
        size_t size;
        int (*av_open)(struct domain *, void *, struct av **, void *);
        int (*cq_open)(struct domain *, void *, struct cq **, void *);
        int (*endpoint)(struct domain *, struct info *, struct ep **, void *);
        void *scalable_ep, *cntr_open, *poll_open, *stx_ctx, *srx_ctx;
        int (*query_atomic)(struct domain *, int, int, size_t *, uint64_t);
    } *ops;
    struct mr_ops *mr;
};
struct mr { struct fid fid; void *desc; uint64_t key; };
struct mr_ops {
    size_t size;
    int (*reg)(struct domain *, const void *, size_t, uint64_t, uint64_t, uint64_t, uint64_t, struct
        mr **, void *);
};
struct av {
    struct fid fid;
    struct av_ops {
        size_t size;
        int (*insert)(struct av *, const void *, size_t, uint64_t *, uint64_t, void *);
    } *ops;
};
struct cq_attr {
    size_t size;
    uint64_t flags;
    int format, wait_obj, signaling_vector, wait_cond;
    void *wait_set;
};
struct entry { void *context; uint64_t flags; size_t len; void *buf; uint64_t data, tag; };
struct err_entry {
    struct entry entry;
    size_t olen;
    int err, prov_errno;
    void *err_data;
    size_t err_data_size;
    uint64_t src_addr;
};
struct cq {
    struct fid fid;
    struct cq_ops {
        size_t size;
        ssize_t (*read)(struct cq *, void *, size_t);
        ssize_t (*readfrom)(struct cq *, void *, size_t, uint64_t *);
        ssize_t (*readerr)(struct cq *, struct err_entry *, uint64_t);
    } *ops;
};
struct ep {
    struct fid fid;
    struct ep_ops {
        size_t size;
        ssize_t (*cancel)(struct ep *, void *);
        int (*getopt)(struct ep *, int, int, void *, size_t *);
    } *ops;
    struct cm_ops {
        size_t size;
        void *setname;
        int (*getname)(struct ep *, void *, size_t *);
    } *cm;
    void *msg;
    struct rma_ops *rma;
    struct tagged_ops *tagged;
    struct atomic_ops *atomic;
};
struct rma_ops {
    size_t size;
    ssize_t (*read)(struct ep *, void *, size_t, void *, uint64_t, uint64_t, uint64_t, void *);
    void *readv, *readmsg;
    ssize_t (*write)(struct ep *, void *, size_t, void *, uint64_t, uint64_t, uint64_t, void *);
    void *writev, *writemsg, *inject;
    ssize_t (*writedata)(struct ep *, void *, size_t, void *, uint64_t, uint64_t, uint64_t,
        uint64_t, void *);
};
struct atomic_ops {
    size_t size;
    void *write, *writev, *writemsg, *inject;
    ssize_t (*readwrite)(struct ep *, const void *, size_t, void *, void *, void *, uint64_t,
        uint64_t, uint64_t, int, int, void *);
};
struct iov { void *base; size_t len; };
struct msg {
    const struct iov *iov;
    void **desc;
    size_t count;
    uint64_t addr, tag, ignore;
    void *context;
    uint64_t data;
};
struct tagged_ops {
    size_t size;
    ssize_t (*recv)(struct ep *, void *, size_t, void *, uint64_t, uint64_t, uint64_t, void *);
    void *recvv;
    ssize_t (*recvmsg)(struct ep *, const struct msg *, uint64_t);
    ssize_t (*send)(struct ep *, const void *, size_t, void *, uint64_t, uint64_t, void *);
    void *sendv, *sendmsg;
    ssize_t (*inject)(struct ep *, const void *, size_t, uint64_t, uint64_t);
    ssize_t (*senddata)(struct ep *, const void *, size_t, void *, uint64_t, uint64_t, uint64_t,
        void *);
};

enum { EACCES_ = 13, EAGAIN_ = 11, ENOMSG_ = 42, ENODATA_ = 61, ECANCELED_ = 125 };
enum { EAVAIL = 259, ETRUNC = 265 };
static const uint64_t ANY = -1, PEEK = 1 << 19;
static int rank;
static struct fabric *fabric;
static struct cq *cq;

/* Waits for a completion, at most 20 seconds. Returns the error number. */
static int next(struct entry *entry, uint64_t *source, size_t *olen) {
    time_t end = time(NULL) + 20;
    for (;;) {
        ssize_t n = cq->ops->readfrom(cq, entry, 1, source);
        if (n == 1) return 0;
        if (n == -EAVAIL) {
            struct err_entry error;
            memset(&error, 0, sizeof error);
            CHECK(cq->ops->readerr(cq, &error, 0) == 1);
            *entry = error.entry;
            *olen = error.olen;
            return error.err;
        }
        CHECK(n == -EAGAIN_);
        CHECK(time(NULL) < end);
        struct fid *fid = &cq->fid;
        int waits = fabric->ops->trywait(fabric, &fid, 1);
        CHECK(!waits || waits == -EAGAIN_);
        struct pollfd poller = {.events = POLLIN};
        CHECK(!cq->fid.ops->control(&cq->fid, 5, &poller.fd));
        /* What arrives must end the sleep. */
        if (!waits) CHECK(poll(&poller, 1, 10000) == 1);
    }
}

static void exchange(char *const files[], const void *own, void *other) {
    char temporary[4096];
    snprintf(temporary, sizeof temporary, "%s.new", files[rank]);
    FILE *file = fopen(temporary, "w");
    CHECK(file && fwrite(own, 16, 1, file) == 1 && !fclose(file));
    CHECK(!rename(temporary, files[rank]));
    time_t end = time(NULL) + 20;
    while (!(file = fopen(files[1 - rank], "r"))) {
        CHECK(time(NULL) < end);
        usleep(1000);
    }
    CHECK(fread(other, 16, 1, file) == 1);
}

/* Accesses to the peer's memory, and its accesses to the own. */
static void access_regions(struct domain *domain, struct ep *ep, uint64_t peer) {
    enum { LONG = 300000, FI_UINT64 = 7, FI_DOUBLE = 9, FI_SUM = 2, FI_BOR = 6 };
    static unsigned char memory[LONG + 16], data[LONG], copy[LONG];
    struct entry entry;
    uint64_t source, one = 1, old;
    size_t over, limits[2];
    struct mr *mr, *again;
    CHECK(!domain->mr->reg(domain, memory, sizeof memory, 3 << 12, 0, 77, 0, &mr, NULL));
    CHECK(mr->key == 77);
    CHECK(domain->mr->reg(domain, memory, 8, 3 << 12, 0, 77, 0, &again, NULL) == -266);
    CHECK(!domain->ops->query_atomic(domain, FI_DOUBLE, FI_SUM, limits, 0) && limits[1] == 8);
    CHECK(domain->ops->query_atomic(domain, FI_DOUBLE, FI_BOR, limits, 0) == -95);
    /* Both have registered. */
    char text[4];
    CHECK(!ep->tagged->inject(ep, "reg", 4, peer, 90));
    CHECK(!ep->tagged->recv(ep, text, 4, NULL, peer, 90, 0, text));
    CHECK(!next(&entry, &source, &over) && entry.context == text);
    for (size_t at = 0; at < LONG; at++) data[at] = at * 7 + rank;
    for (size_t n = 8; n <= LONG; n = n == 8 ? LONG : n + 1) {
        CHECK(!ep->rma->writedata(ep, data, n, NULL, 5 + n, peer, 16, 77, data));
        for (int ends = 0; ends < 2; ends++) {
            CHECK(!next(&entry, &source, &over));
            if (entry.context == data) {
                CHECK(entry.flags == (1 << 2 | 1 << 9));
                continue;
            }
            CHECK(entry.flags == (1 << 2 | 1 << 13 | 1 << 17) && entry.data == 5 + n);
            for (size_t at = 0; at < n; at++) {
                CHECK(memory[at + 16] == (unsigned char)(at * 7 + 1 - rank));
            }
        }
    }
    CHECK(!ep->rma->read(ep, copy, LONG, NULL, peer, 16, 77, copy));
    CHECK(!next(&entry, &source, &over) && entry.context == copy);
    CHECK(entry.flags == (1 << 2 | 1 << 8) && !memcmp(copy, data, LONG));
    for (uint64_t n = 0; n < 1000; n++) {
        ssize_t (*add)(struct ep *, const void *, size_t, void *, void *, void *, uint64_t,
            uint64_t, uint64_t, int, int, void *) = ep->atomic->readwrite;
        CHECK(!add(ep, &one, 1, NULL, &old, NULL, peer, 8, 77, FI_UINT64, FI_SUM, &old));
        CHECK(!next(&entry, &source, &over) && old == n);
    }
    CHECK(!ep->rma->read(ep, copy, 8, NULL, peer, 0, 78, copy));
    CHECK(next(&entry, &source, &over) == EACCES_ && entry.context == copy);
    CHECK(!ep->rma->write(ep, copy, 17, NULL, peer, LONG, 77, copy));
    CHECK(next(&entry, &source, &over) == EACCES_);
    CHECK(!ep->tagged->inject(ep, "end", 4, peer, 91));
    CHECK(!ep->tagged->recv(ep, text, 4, NULL, peer, 91, 0, text));
    CHECK(!next(&entry, &source, &over) && entry.context == text);
    CHECK(!mr->fid.ops->close(&mr->fid));
}

int main(int argc, char **argv) {
    void *library = dlopen(argv[1], RTLD_NOW);
    CHECK(argc >= 4 && library);
    struct provider *(*init)(void) = (struct provider * (*)(void)) dlsym(library, "fi_prov_ini");
    struct provider *provider = init();
    CHECK(!strcmp(provider->name, "tofu") && provider->fi_version >= (2 << 16 | 5));
    struct info *info = NULL;
    if (!getenv("TOFU_RANK")) {
        CHECK(provider->getinfo(1 << 16 | 17, NULL, NULL, 0, NULL, &info) == -ENODATA_ && !info);
        puts("no device");
        return 0;
    }
    rank = atoi(getenv("TOFU_RANK"));
    /* The rank that this one talks to, if it is not 1. Others have nothing to do. */
    int other = argc > 4 ? atoi(argv[4]) : 1;
    if (rank && rank != other) return 0;
    rank = rank != 0;
    CHECK(!provider->getinfo(1 << 16 | 17, NULL, NULL, 0, NULL, &info) && !info->next);
    /* The endpoint's address is not known yet. Peers have no names. */
    CHECK(info->src_addr && info->src_addrlen == 16 && !info->dest_addr);
    struct info *own, *named = NULL;
    CHECK(!provider->getinfo(1 << 16 | 17, "localhost", "7", 1ull << 57, NULL, &own));
    CHECK(own->src_addrlen == 16);
    CHECK(provider->getinfo(1 << 16 | 17, "localhost", NULL, 0, NULL, &named) == -ENODATA_);
    CHECK(provider->getinfo(1 << 16 | 17, NULL, "7", 0, NULL, &named) == -ENODATA_ && !named);
    struct info other_kind = {.caps = 1 << 5};
    struct info *none;
    CHECK(provider->getinfo(1 << 16 | 17, NULL, NULL, 0, &other_kind, &none) == -ENODATA_);
    struct domain *domain;
    struct av *av;
    struct ep *ep;
    struct cq_attr attr = {.format = 4, .wait_obj = 3};
    CHECK(!provider->fabric(info->fabric_attr, &fabric, NULL));
    CHECK(!fabric->ops->domain(fabric, info, &domain, NULL));
    CHECK(!domain->ops->av_open(domain, (uint64_t[6]){2}, &av, NULL));
    CHECK(!domain->ops->cq_open(domain, &attr, &cq, NULL));
    CHECK(!domain->ops->endpoint(domain, info, &ep, NULL));
    CHECK(ep->fid.ops->control(&ep->fid, 6, NULL) < 0);
    CHECK(!ep->fid.ops->bind(&ep->fid, &av->fid, 0));
    CHECK(!ep->fid.ops->bind(&ep->fid, &cq->fid, 1 << 10 | 1 << 11));
    CHECK(!ep->fid.ops->control(&ep->fid, 6, NULL));
    unsigned char names[2][16];
    size_t size = 16;
    CHECK(!ep->cm->getname(ep, names[rank], &size) && size == 16);
    exchange(argv + 2, names[rank], names[1 - rank]);
    uint64_t numbers[2];
    CHECK(av->ops->insert(av, names, 2, numbers, 0, NULL) == 2 && numbers[1] == 1);

    if (!rank && argc > 5) CHECK(!system(argv[5]));
    struct entry entry;
    uint64_t source;
    size_t over = 0;
    static const size_t lengths[] = {0, 1, 8000, 8200, 32768, 32769, 1 << 20, 20 << 20};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        size_t n = lengths[i];
        unsigned char *a = malloc(n + 1), *b = calloc(1, n + 1);
        for (size_t at = 0; at < n; at++) a[at] = at * 13 + rank + i;
        CHECK(!ep->tagged->recv(ep, b, n, NULL, 1 - rank, 70 + i, 0, b));
        CHECK(!ep->tagged->senddata(ep, a, n, NULL, 1000 + i, 1 - rank, 70 + i, a));
        for (int ends = 0; ends < 2; ends++) {
            CHECK(!next(&entry, &source, &over));
            if (entry.context == a) continue;
            CHECK(entry.context == b && entry.len == n && entry.tag == 70 + i);
            CHECK(source == 1u - rank);
            CHECK(entry.data == 1000 + i && entry.flags == (1 << 3 | 1 << 10 | 1 << 17));
        }
        for (size_t at = 0; at < n; at++) CHECK(b[at] == (unsigned char)(at * 13 + 1 - rank + i));
        free(a);
        free(b);
    }
    /* A look that finds nothing, a cancel, a truncation, and a message to oneself. */
    struct msg look = {.addr = ANY, .tag = 5, .context = &look};
    CHECK(!ep->tagged->recvmsg(ep, &look, PEEK));
    CHECK(next(&entry, &source, &over) == ENOMSG_ && entry.context == &look);
    char text[100];
    /* The peer may have sent the next message already, so this one has another tag. */
    CHECK(!ep->tagged->recv(ep, text, 4, NULL, ANY, 60, 0, text));
    CHECK(!ep->ops->cancel(ep, text));
    CHECK(next(&entry, &source, &over) == ECANCELED_);
    CHECK(!ep->tagged->recv(ep, text, 4, NULL, ANY, 6, 0, text));
    CHECK(!ep->tagged->inject(ep, "too long", 9, 1 - rank, 6));
    CHECK(next(&entry, &source, &over) == ETRUNC && over == 5 && !memcmp(text, "too ", 4));
    /* Memory at no address. */
    CHECK(ep->tagged->inject(ep, NULL, 4, rank, 7) == -22);
    CHECK(ep->tagged->senddata(ep, NULL, 9000, NULL, 0, 1 - rank, 7, NULL) == -22);
    CHECK(!ep->tagged->inject(ep, "own", 4, rank, 7));
    CHECK(!ep->tagged->recv(ep, text, 4, NULL, rank, 7, 0, text));
    CHECK(!next(&entry, &source, &over) && source == (uint64_t)rank && !strcmp(text, "own"));
    /* Looks only, until the message is there. */
    CHECK(!ep->tagged->inject(ep, "look", 5, 1 - rank, 9));
    look.tag = 9;
    int found;
    do {
        CHECK(!ep->tagged->recvmsg(ep, &look, PEEK));
        found = next(&entry, &source, &over);
        CHECK(!found || found == ENOMSG_);
    } while (found);
    CHECK(entry.len == 5 && source == 1u - rank);
    CHECK(!ep->tagged->recv(ep, text, 5, NULL, ANY, 9, 0, text) && !next(&entry, &source, &over));
    /* The limits of accesses and messages that are copied, and of atomic operations. */
    size_t limit, bytes = sizeof limit;
    CHECK(!ep->ops->getopt(ep, 0, 16, &limit, &bytes) && limit == 4096 && bytes == sizeof limit);
    CHECK(!ep->ops->getopt(ep, 0, 15, &limit, &bytes) && limit == 2048);
    CHECK(ep->ops->getopt(ep, 0, 99, &limit, &bytes) == -38);
    /* More than there are slots, before a receive is posted. */
    for (int i = 0; i < 5000; i++) {
        ssize_t sent;
        while ((sent = ep->tagged->inject(ep, &i, sizeof i, 1 - rank, 8)) == -EAGAIN_)
            ;
        CHECK(!sent);
    }
    for (int i = 0; i < 5000; i++) {
        int got = -1;
        CHECK(!ep->tagged->recv(ep, &got, sizeof got, NULL, ANY, 8, 0, &got));
        CHECK(!next(&entry, &source, &over) && got == i);
    }
    access_regions(domain, ep, 1 - rank);
    /* What the machine has counted. */
    if (!rank && argc > 6) CHECK(!system(argv[6]));
    CHECK(!ep->fid.ops->close(&ep->fid) && !cq->fid.ops->close(&cq->fid));
    CHECK(!av->fid.ops->close(&av->fid) && !domain->fid.ops->close(&domain->fid));
    CHECK(!fabric->fid.ops->close(&fabric->fid));
    puts("good");
    return 0;
}

/* Collectives between processes: a segment of shared memory that the ranks of a communicator meet in. */
#ifndef STANDIN_HCCL_H
#define STANDIN_HCCL_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#define MAX_RANKS 16
#define SEAT_BYTES (256u << 10)
#define RING_BYTES (64u << 10)
#define NAME_BYTES 128

/* hccl_types.h of the torch_npu wheel. */
enum {
    HCCL_OK = 0,
    HCCL_E_PARA = 1,
    HCCL_E_MEMORY = 3,
    HCCL_E_NOT_FOUND = 6,
    HCCL_E_UNAVAIL = 7,
    HCCL_E_TIMEOUT = 9,
    HCCL_E_REMOTE = 21,
};
enum { HCCL_SUM = 0, HCCL_PROD = 1, HCCL_MAX = 2, HCCL_MIN = 3 };
enum { OP_ALL_REDUCE = 1, OP_BROADCAST, OP_REDUCE, OP_ALL_GATHER, OP_REDUCE_SCATTER, OP_SCATTER, OP_BARRIER };

/* What every rank must agree on before any data moves. */
struct signature {
    uint64_t count;
    uint32_t operation, type, reduction, root;
};

struct seat {
    int32_t pid, device, has_left;
    uint32_t step; /* how many meetings of all ranks this one has come to */
    struct signature signature;
    char data[SEAT_BYTES];
};

/* From one rank to one other: bytes in order, a header before each message. */
struct ring {
    uint64_t written, taken;
    char data[RING_BYTES];
};

struct segment {
    uint32_t num_ranks;
    uint32_t joined;
    uint32_t changes; /* a futex: whoever changes anything counts it up and wakes the others */
    uint32_t pad;
    struct seat seats[]; /* num_ranks; then num_ranks x num_ranks rings */
};

struct communicator {
    struct segment *segment; /* NULL once destroyed */
    size_t size;
    pthread_mutex_t lock; /* one operation at a time */
    uint32_t rank, num_ranks, step;
    int device, closing;
    int exec_timeout_s;
    int64_t charged;
    int broken;      /* the code that tasks fail with since the first failure */
    int async_error; /* what HcclGetCommAsyncError tells */
    char failure[512];
    char name[NAME_BYTES];
};

size_t standin_segment_size(uint32_t num_ranks);
struct ring *standin_ring(struct communicator *comm, uint32_t from, uint32_t to);
void standin_change(struct segment *segment);
/* Wait for a change after `seen`; 0, or the stream's code once a rank in the mask `missing` is lost or time is up. */
int standin_await_change(struct communicator *comm, uint32_t seen, uint64_t missing, double since, int timeout_s);
double standin_now(void);
/* Come to the next meeting of all ranks. */
int standin_meet(struct communicator *comm);
int standin_break(struct communicator *comm, int async_error, int code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

size_t standin_type_size(uint32_t type); /* 0: no such type */
/* target = target (op) source, element by element; 0, or -1 where the type cannot be reduced. */
int standin_reduce(void *target, const void *source, size_t count, uint32_t type, uint32_t reduction);

#endif

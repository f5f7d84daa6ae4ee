/* Meeting in shared memory: waiting with an eye on the others' lives, the own device's and the clock. */
#include "hccl.h"
#include "call.h"
#include "machine.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

size_t standin_segment_size(uint32_t num_ranks)
{
    return sizeof(struct segment) + num_ranks * sizeof(struct seat) + (size_t)num_ranks * num_ranks * sizeof(struct ring);
}

struct ring *standin_ring(struct communicator *comm, uint32_t from, uint32_t to)
{
    struct ring *rings = (struct ring *)(comm->segment->seats + comm->num_ranks);
    return rings + from * comm->num_ranks + to;
}

double standin_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

void standin_change(struct segment *segment)
{
    __atomic_add_fetch(&segment->changes, 1, __ATOMIC_ACQ_REL);
    syscall(SYS_futex, &segment->changes, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

int standin_break(struct communicator *comm, int async_error, int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(comm->failure, sizeof comm->failure, format, arguments);
    va_end(arguments);
    __atomic_store_n(&comm->async_error, async_error, __ATOMIC_RELEASE);
    comm->broken = code;
    return standin_fail(code, "%s", comm->failure);
}

/*
 * The text and code of a peer that is gone, or late, are those of a public log: HCCL_timeout.md in the user guide of
 * torch_npu (EI0002, 507048, "Heartbeat Lost Occurred").
 */
int standin_await_change(struct communicator *comm, uint32_t seen, uint64_t missing, double since, int timeout_s)
{
    struct timespec soon = {0, 20000000};
    syscall(SYS_futex, &comm->segment->changes, FUTEX_WAIT, seen, &soon, NULL, 0);
    int dead = standin_dead(comm->device);
    if (dead)
        return standin_fail(dead, "device %d is dead", comm->device);
    if (comm->closing)
        return standin_break(comm, HCCL_E_UNAVAIL, RT_FFTS_PLUS_TIMEOUT, "communicator %s was destroyed", comm->name);
    double waited = standin_now() - since;
    /* Until the heartbeat is missed, a dead peer looks like a slow one. */
    if (waited * 1000 >= standin_machine()->heartbeat_ms)
        for (uint32_t rank = 0; rank < comm->num_ranks; rank++) {
            struct seat *seat = &comm->segment->seats[rank];
            if (!(missing >> rank & 1) || !seat->pid || (!seat->has_left && standin_alive(seat->pid)))
                continue;
            return standin_break(comm, HCCL_E_REMOTE, RT_FFTS_PLUS_TIMEOUT,
                                 "EI0002: The wait execution of the Notify register times out. Reason: The Notify "
                                 "register has not received the Notify record from remote rank [%u]. there are(is) 1 "
                                 "abnormal device(s): Cluster Exception Location[IP/ID]:[127.0.0.1/%d], "
                                 "ExceptionType:[Heartbeat Lost Occurred], Possible Reason:1. Process has exited",
                                 rank, seat->device);
        }
    if (waited >= timeout_s)
        return standin_break(comm, HCCL_E_TIMEOUT, RT_FFTS_PLUS_TIMEOUT,
                             "EI0002: The wait execution of the Notify register times out. Reason: The Notify register "
                             "has not received the Notify record from remote rank [unknown] within %d s "
                             "(HCCL_EXEC_TIMEOUT)", timeout_s);
    return ACL_OK;
}

int standin_meet(struct communicator *comm)
{
    double since = standin_now();
    uint32_t own = ++comm->step;
    __atomic_store_n(&comm->segment->seats[comm->rank].step, own, __ATOMIC_RELEASE);
    standin_change(comm->segment);
    for (;;) {
        uint32_t seen = __atomic_load_n(&comm->segment->changes, __ATOMIC_ACQUIRE);
        uint64_t missing = 0;
        for (uint32_t rank = 0; rank < comm->num_ranks; rank++)
            if ((int32_t)(__atomic_load_n(&comm->segment->seats[rank].step, __ATOMIC_ACQUIRE) - own) < 0)
                missing |= 1ull << rank;
        if (!missing)
            return ACL_OK;
        int code = standin_await_change(comm, seen, missing, since, comm->exec_timeout_s);
        if (code)
            return code;
    }
}

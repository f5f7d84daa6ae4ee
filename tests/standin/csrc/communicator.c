/* Making and ending communicators: by root info, by a table of ranks, and out of another communicator. */
#include "hccl.h"
#include "call.h"
#include "machine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define ROOT_INFO_BYTES 4108
#define NOT_SET 0xffffffffu

/* HcclCommConfig, as far as it is read. */
struct config {
    size_t size;
    uint32_t magic, version;
    uint64_t reserved;
    uint32_t buffer_mib, deterministic;
    char name[NAME_BYTES], udi[128];
    uint32_t expansion, traffic_class, service_level, world_rank;
    uint64_t job;
    uint8_t zero_copy;
    int32_t exec_timeout_s;
};

static int seconds_of(const char *variable, int otherwise)
{
    const char *text = getenv(variable);
    int seconds = text ? atoi(text) : 0;
    return seconds > 0 ? seconds : otherwise;
}

static struct segment *map_segment(const char *path, uint32_t num_ranks)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct stat info;
    size_t size = standin_segment_size(num_ranks);
    /* Every rank asks for the same size, so whoever comes first makes room for all. */
    if (fd < 0 || fstat(fd, &info) || ((size_t)info.st_size < size && ftruncate(fd, (off_t)size))) {
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return memory == MAP_FAILED ? NULL : memory;
}

static int take_seat(struct communicator *comm)
{
    struct segment *segment = comm->segment;
    uint32_t expected = 0;
    if (!__atomic_compare_exchange_n(&segment->num_ranks, &expected, comm->num_ranks, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) &&
        expected != comm->num_ranks)
        return standin_fail(HCCL_E_PARA, "EI0004: rank %u says %u ranks, another %u", comm->rank, comm->num_ranks, expected);
    struct seat *seat = &segment->seats[comm->rank];
    seat->device = comm->device;
    int32_t nobody = 0;
    if (!__atomic_compare_exchange_n(&seat->pid, &nobody, getpid(), 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return standin_fail(HCCL_E_PARA, "EI0004: rank %u is taken by process %d", comm->rank, nobody);
    __atomic_add_fetch(&segment->joined, 1, __ATOMIC_ACQ_REL);
    standin_change(segment);
    return HCCL_OK;
}

static int await_all(struct communicator *comm)
{
    double since = standin_now();
    int timeout_s = seconds_of("HCCL_CONNECT_TIMEOUT", 120);
    for (;;) {
        uint32_t seen = __atomic_load_n(&comm->segment->changes, __ATOMIC_ACQUIRE);
        uint32_t joined = __atomic_load_n(&comm->segment->joined, __ATOMIC_ACQUIRE);
        if (joined >= comm->num_ranks)
            break;
        if (standin_now() - since >= timeout_s)
            return standin_fail(HCCL_E_TIMEOUT, "EI0006: Getting socket times out. Reason: %u of %u ranks connected in "
                                                "%d s (HCCL_CONNECT_TIMEOUT)", joined, comm->num_ranks, timeout_s);
        if (standin_await_change(comm, seen, 0, since, timeout_s + 1))
            return HCCL_E_UNAVAIL;
    }
    for (uint32_t rank = 0; rank < comm->num_ranks; rank++)
        if (rank != comm->rank && comm->segment->seats[rank].device == comm->device)
            return standin_fail(HCCL_E_PARA, "EI0004: ranks %u and %u are both on device %d", rank, comm->rank, comm->device);
    return HCCL_OK;
}

static int enter_communicator(const char *meeting, uint32_t num_ranks, uint32_t rank, const struct config *config,
                              void **handle)
{
    if (!num_ranks || num_ranks > MAX_RANKS || rank >= num_ranks)
        return standin_fail(HCCL_E_PARA, "EI0004: rank %u of %u; at most %d", rank, num_ranks, MAX_RANKS);
    if (standin_device() < 0)
        return standin_fail(HCCL_E_PARA, "a communicator needs a device: aclrtSetDevice was not called in this thread");
    char path[4300];
    snprintf(path, sizeof path, "%s/hccl-%s", standin_folder(), meeting);
    struct communicator *comm = calloc(1, sizeof *comm);
    pthread_mutex_init(&comm->lock, NULL);
    comm->rank = rank, comm->num_ranks = num_ranks, comm->device = standin_device();
    comm->exec_timeout_s = seconds_of("HCCL_EXEC_TIMEOUT", 1836);
    uint32_t buffer_mib = (uint32_t)seconds_of("HCCL_BUFFSIZE", 200);
    snprintf(comm->name, sizeof comm->name, "%s", meeting);
    if (config && config->size > offsetof(struct config, name) && config->name[0])
        snprintf(comm->name, sizeof comm->name, "%.127s", config->name);
    if (config && config->size >= 32 && config->buffer_mib != NOT_SET)
        buffer_mib = config->buffer_mib;
    if (config && config->size >= sizeof *config && config->exec_timeout_s > 0)
        comm->exec_timeout_s = config->exec_timeout_s;
    comm->charged = (int64_t)buffer_mib << 21; /* one buffer to send from, one to receive into */
    comm->size = standin_segment_size(num_ranks);
    int code = HCCL_OK;
    if (standin_charge(comm->device, comm->charged))
        code = standin_fail(HCCL_E_MEMORY, "EL0004: no memory for 2 x %u MiB of HCCL_BUFFSIZE on device %d", buffer_mib,
                            comm->device);
    else if (!(comm->segment = map_segment(path, num_ranks)))
        code = standin_fail(HCCL_E_UNAVAIL, "%s: %s", path, strerror(errno));
    else if (!(code = take_seat(comm)) && !(code = await_all(comm)) && rank == 0)
        unlink(path); /* all have it mapped; the name may serve another meeting */
    if (code) {
        if (comm->segment)
            munmap(comm->segment, comm->size);
        if (code != HCCL_E_MEMORY)
            standin_charge(comm->device, -comm->charged);
        free(comm);
        return code;
    }
    *handle = comm;
    return HCCL_OK;
}

int HcclGetRootInfo(char *info)
{
    ENTER();
    uint64_t number;
    if (getrandom(&number, sizeof number, 0) != sizeof number)
        return HCCL_E_UNAVAIL;
    memset(info, 0, ROOT_INFO_BYTES);
    sprintf(info, "root-%016llx", (unsigned long long)number);
    return HCCL_OK;
}

int HcclCommInitRootInfoConfig(uint32_t num_ranks, const char *info, uint32_t rank, const struct config *config, void **comm)
{
    ENTER();
    return strncmp(info, "root-", 5) ? HCCL_E_PARA : enter_communicator(info, num_ranks, rank, config, comm);
}

int HcclCommInitRootInfo(uint32_t num_ranks, const char *info, uint32_t rank, void **comm)
{
    ENTER();
    return strncmp(info, "root-", 5) ? HCCL_E_PARA : enter_communicator(info, num_ranks, rank, NULL, comm);
}

/* A table of ranks (RANK_TABLE_FILE) lists each as {"device_id", "rank_id"}; how many there are is all that is read. */
int HcclCommInitClusterInfoConfig(const char *table, uint32_t rank, const struct config *config, void **comm)
{
    ENTER();
    FILE *file = fopen(table, "re");
    if (!file)
        return standin_fail(HCCL_E_NOT_FOUND, "EI0004: %s: %s", table, strerror(errno));
    char text[65536];
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    uint32_t num_ranks = 0, sum = 2166136261u; /* FNV-1a of the text names the meeting */
    for (const char *at = text; (at = strstr(at, "\"rank_id\"")); at++)
        num_ranks++;
    for (const char *at = text; *at; at++)
        sum = (sum ^ (unsigned char)*at) * 16777619u;
    char meeting[64];
    snprintf(meeting, sizeof meeting, "table-%08x", sum);
    return enter_communicator(meeting, num_ranks, rank, config, comm);
}

int HcclCreateSubCommConfig(void **parent, uint32_t num_ranks, uint32_t *ranks, uint64_t id, uint32_t rank,
                            const struct config *config, void **comm)
{
    ENTER();
    (void)ranks;
    char meeting[200];
    struct communicator *from = *parent;
    snprintf(meeting, sizeof meeting, "sub-%016llx-%d", (unsigned long long)id, from->segment->seats[0].pid);
    return enter_communicator(meeting, num_ranks, rank, config, comm);
}

int HcclCommDestroy(void *handle)
{
    ENTER();
    struct communicator *comm = handle;
    if (!comm || comm->closing)
        return HCCL_OK;
    comm->closing = 1;
    standin_change(comm->segment);
    pthread_mutex_lock(&comm->lock);
    comm->segment->seats[comm->rank].has_left = 1;
    standin_change(comm->segment);
    munmap(comm->segment, comm->size);
    comm->segment = NULL; /* the structure stays: tasks that come late find it closed */
    pthread_mutex_unlock(&comm->lock);
    standin_charge(comm->device, -comm->charged);
    return HCCL_OK;
}

int HcclGetCommName(void *comm, char *name)
{
    ENTER();
    strcpy(name, ((struct communicator *)comm)->name);
    return HCCL_OK;
}

int HcclGetCommAsyncError(void *comm, int *error)
{
    ENTER();
    *error = __atomic_load_n(&((struct communicator *)comm)->async_error, __ATOMIC_ACQUIRE);
    return HCCL_OK;
}

int HcclGetRankId(void *comm, uint32_t *rank)
{
    ENTER();
    *rank = ((struct communicator *)comm)->rank;
    return HCCL_OK;
}

int HcclGetRankSize(void *comm, uint32_t *size)
{
    ENTER();
    *size = ((struct communicator *)comm)->num_ranks;
    return HCCL_OK;
}

int HcclSetConfig(int key, int32_t value)
{
    (void)key, (void)value;
    ENTER();
    return HCCL_OK;
}

/* Fields of HcclCommConfig that are known: up to the time-out (HCCL_COMM_CONFIG_EXEC_TIMEOUT 8). */
uint32_t HcclGetCommConfigCapability(void) { return 9; }

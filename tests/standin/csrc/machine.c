/* The shared machine: mapping, a lock that outlives its owner's death, and each device's memory over all processes. */
#include "machine.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct machine *machine;
static char folder[4096];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t within = PTHREAD_MUTEX_INITIALIZER;

static void refuse(const char *why, const char *path)
{
    fprintf(stderr, "stand-in NPU: %s: STANDIN_NPU_MACHINE=%s; make one with tests/standin/machine.py\n", why, path);
    _exit(96);
}

static void map_machine(void)
{
    const char *path = getenv("STANDIN_NPU_MACHINE");
    if (!path || !*path || strlen(path) >= sizeof folder)
        refuse("no machine", path ? path : "");
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct stat info;
    if (fd < 0 || fstat(fd, &info) || (size_t)info.st_size < sizeof *machine)
        refuse(fd < 0 ? strerror(errno) : "the file is too short", path);
    machine = mmap(NULL, sizeof *machine, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (machine == MAP_FAILED)
        refuse(strerror(errno), path);
    if (machine->magic != MACHINE_MAGIC || machine->size != sizeof *machine)
        refuse("the file has another layout than this library", path);
    strcpy(folder, path);
    char *slash = strrchr(folder, '/');
    if (slash)
        *slash = 0;
    else
        strcpy(folder, ".");
}

struct machine *standin_machine(void)
{
    pthread_once(&once, map_machine);
    return machine;
}

const char *standin_folder(void)
{
    standin_machine();
    return folder;
}

int standin_alive(int32_t pid)
{
    if (kill(pid, 0) && errno == ESRCH)
        return 0;
    /* A zombie answers signals, yet holds no device: the kernel closed its files when it died. */
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0)
        return 0;
    text[got] = 0;
    const char *state = strrchr(text, ')');
    return !(state && state[1] == ' ' && (state[2] == 'Z' || state[2] == 'X'));
}

void standin_lock(void)
{
    struct machine *m = standin_machine();
    pthread_mutex_lock(&within);
    for (int32_t tries = 1;; tries++) {
        int32_t owner = 0;
        if (__atomic_compare_exchange_n(&m->lock, &owner, getpid(), 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return;
        if (tries % 100 == 0 && !standin_alive(owner) &&
            __atomic_compare_exchange_n(&m->lock, &owner, getpid(), 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return;
        usleep(50);
    }
}

void standin_unlock(void)
{
    __atomic_store_n(&machine->lock, 0, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&within);
}

/* With the lock held: this process's slot, or NULL when all are taken by living processes. */
static struct holder *own_slot(struct machine *m)
{
    struct holder *unused = NULL;
    for (int i = 0; i < MAX_HOLDERS; i++) {
        struct holder *slot = &m->holders[i];
        if (slot->pid == getpid())
            return slot;
        if (!unused && (!slot->pid || !standin_alive(slot->pid)))
            unused = slot;
    }
    if (unused) {
        memset(unused, 0, sizeof *unused);
        unused->pid = getpid();
    }
    return unused;
}

static uint64_t used_now(struct machine *m, int device)
{
    uint64_t sum = 0;
    for (int i = 0; i < MAX_HOLDERS; i++)
        if (m->holders[i].pid && m->holders[i].used[device] && standin_alive(m->holders[i].pid))
            sum += m->holders[i].used[device];
    return sum;
}

int standin_charge(int device, int64_t bytes)
{
    struct machine *m = standin_machine();
    standin_lock();
    struct holder *slot = own_slot(m);
    int refused = !slot || (bytes > 0 && used_now(m, device) + (uint64_t)bytes > m->hbm_bytes);
    if (!refused)
        slot->used[device] += (uint64_t)bytes;
    standin_unlock();
    return refused ? -1 : 0;
}

uint64_t standin_used(int device)
{
    standin_lock();
    uint64_t sum = used_now(standin_machine(), device);
    standin_unlock();
    return sum;
}

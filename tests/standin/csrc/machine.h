/* The machine that every process on the stand-in shares: one mapped file, laid out as tests/standin/machine.py says. */
#ifndef STANDIN_MACHINE_H
#define STANDIN_MACHINE_H

#include <stddef.h>
#include <stdint.h>

#define MACHINE_MAGIC 0x4e505531u
#define MAX_DEVICES 16
#define MAX_RULES 32
#define MAX_HOLDERS 64

enum rule_action { RULE_COUNT = 0, RULE_CODE = 1, RULE_HANG = 2, RULE_DELAY = 3 };

/* What happens to calls number `first` .. `first + times - 1` of a function on `device` (-1: on any, or on none). */
struct rule {
    char function[64];
    int32_t device;
    int32_t code; /* RULE_DELAY: microseconds */
    uint32_t action;
    uint32_t first;
    uint32_t times;
    uint32_t calls;
};

/* The memory one process holds on each device. A slot whose process is dead counts for nothing and is taken again. */
struct holder {
    int32_t pid;
    int32_t pad;
    uint64_t used[MAX_DEVICES];
};

struct machine {
    uint32_t magic;
    uint32_t size; /* of this structure; a stale library refuses a machine of another layout */
    uint32_t num_devices;
    uint32_t heartbeat_ms; /* how long collectives take to notice a dead peer */
    uint64_t hbm_bytes;
    char soc[32];
    char cann[32];
    char perturbed[96]; /* read by the child's dispatch only */
    double perturb_factor;
    int32_t perturb_output; /* which of its floating-point results */
    int32_t pad;
    int32_t lock; /* pid of its owner, or 0 */
    int32_t num_rules;
    int32_t dead[MAX_DEVICES]; /* the code that every call on a dead device returns, or 0 */
    struct rule rules[MAX_RULES];
    struct holder holders[MAX_HOLDERS];
};

/* The mapped machine; ends the process with a message when STANDIN_NPU_MACHINE names none. */
struct machine *standin_machine(void);
/* The folder of the machine's file, where communicators meet. */
const char *standin_folder(void);

void standin_lock(void);
void standin_unlock(void);
int standin_alive(int32_t pid);

/* Charge `bytes` (may be negative) of physical `device` to this process; 0, or -1 when the device has not as much. */
int standin_charge(int device, int64_t bytes);
uint64_t standin_used(int device);

#endif

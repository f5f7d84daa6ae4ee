/* Faults on the n-th call of a function, dead devices, and the message of the latest failure. */
#include "call.h"
#include "graph.h"
#include "machine.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Thread_local char latest[1024];

int standin_fail(int code, const char *format, ...)
{
    char reason[768];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    /* A reason may bring its own vendor code (EI0002: ...); the runtime's own failures stand under EE9999. */
    int coded = reason[0] == 'E' && reason[1] && strchr(reason, ':') == reason + 6;
    snprintf(latest, sizeof latest, "%s%s\n        runtime result = %d", coded ? "" : "EE9999: Inner Error!\n        ",
             reason, code);
    return code;
}

const char *aclGetRecentErrMsg(void)
{
    static _Thread_local char handed[sizeof latest];
    memcpy(handed, latest, sizeof latest);
    latest[0] = 0;
    return handed[0] ? handed : NULL;
}

int standin_dead(int device)
{
    return device < 0 ? 0 : __atomic_load_n(&standin_machine()->dead[device], __ATOMIC_ACQUIRE);
}

/* What a process may ask although its device is gone. */
static int needs_no_device(const char *function)
{
    static const char *const names[] = {"aclInit", "aclFinalize", "aclrtGetDeviceCount", "aclrtGetDevice", NULL};
    for (const char *const *name = names; *name; name++)
        if (!strcmp(*name, function))
            return 1;
    /* Releasing is what a process does on its way out; the driver lets it. */
    return strstr(function, "Free") || strstr(function, "Destroy") || strstr(function, "aclsys") == function;
}

/* Whether a rule is for this call: by the function's name, or by `name@capture` while a stream is captured. */
static int names(const char *rule, const char *function)
{
    size_t length = strlen(function);
    if (strncmp(rule, function, length))
        return 0;
    return !rule[length] || (!strcmp(rule + length, "@capture") && __atomic_load_n(&standin_captures, __ATOMIC_ACQUIRE));
}

int standin_enter(const char *function)
{
    struct machine *m = standin_machine();
    if (getenv("STANDIN_NPU_TRACE"))
        fprintf(stderr, "[stand-in NPU] %s\n", function);
    int device = standin_device();
    int dead = standin_dead(device);
    if (dead && !needs_no_device(function))
        return standin_fail(dead, "%s failed: device %d is dead", function, device);
    int num_rules = __atomic_load_n(&m->num_rules, __ATOMIC_ACQUIRE);
    for (int i = 0; i < num_rules; i++) {
        struct rule *rule = &m->rules[i];
        if (!names(rule->function, function) || (rule->device >= 0 && rule->device != device))
            continue;
        uint32_t call = __atomic_add_fetch(&rule->calls, 1, __ATOMIC_ACQ_REL);
        if (rule->action == RULE_COUNT || call < rule->first || call - rule->first >= rule->times)
            continue;
        while (rule->action == RULE_HANG)
            pause();
        if (rule->action == RULE_DELAY) {
            usleep((useconds_t)rule->code);
            continue;
        }
        return standin_fail(rule->code, "%s failed on device %d", function, device);
    }
    return ACL_OK;
}

/* For a function of the vendor's that has no meaning here; the generated rest of the library calls it. */
int standin_absent(const char *function)
{
    int fault = standin_enter(function);
    return fault ? fault : standin_fail(RT_FEATURE_NOT_SUPPORT, "%s has no meaning in the stand-in NPU", function);
}

/* The factor that the machine wants on result `*output` of `operator`, for the arithmetic in the child's Python. */
double standin_perturbation(const char *operator, int *output)
{
    struct machine *m = standin_machine();
    *output = m->perturb_output;
    return m->perturbed[0] && !strncmp(m->perturbed, operator, sizeof m->perturbed) ? m->perturb_factor : 1.0;
}

/* The library's entry points: the system, and what belongs to one device. */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned version; ull counts[11]; unsigned exceeded; } sram_status;
typedef struct { unsigned version, sensor; int value; } temperature;
typedef struct { unsigned version; int value; } margin;
typedef struct { unsigned version; ull total, reserved, free, used; } memory_v2;

#define UINT(name, key) \
    int name(void *d, unsigned *out) { CHECKED(#name, d); return number(find("gpu.%d." key, gpu_of(d)), out); }
#define TEXT(name, key) \
    int name(void *d, char *out, unsigned size) { CHECKED(#name, d); return text(find("gpu.%d." key, gpu_of(d)), out, size); }

/* system */

int nvmlInit_v2(void) {
    int status = described() ? enter("nvmlInit_v2", -1) : DRIVER_NOT_LOADED;
    initialised = !status;
    return status;
}
int nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
int nvmlShutdown(void) { initialised = 0; return SUCCESS; }

const char *nvmlErrorString(int code) {
    switch (code) {
    case 0: return "Success";
    case 1: return "Uninitialized";
    case 2: return "Invalid Argument";
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 6: return "Not Found";
    case 7: return "Insufficient Size";
    case 8: return "Insufficient External Power";
    case 9: return "Driver Not Loaded";
    case 10: return "Timeout";
    case 13: return "Function Not Found";
    case 15: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 18: return "Driver/library version mismatch";
    case 25: return "Argument version mismatch";
    default: return "Unknown Error";
    }
}

#define SYSTEM_TEXT(name, key) \
    int name(char *out, unsigned size) { \
        if (!initialised) return UNINITIALIZED; \
        int status = enter(#name, -1); \
        return status ? status : text(find(key), out, size); \
    }
SYSTEM_TEXT(nvmlSystemGetDriverVersion, "driver")
SYSTEM_TEXT(nvmlSystemGetNVMLVersion, "nvml")

int nvmlSystemGetCudaDriverVersion_v2(int *out) {
    int status = enter("nvmlSystemGetCudaDriverVersion_v2", -1);
    return status ? status : number(find("cuda"), (unsigned *)out);
}

int nvmlSystemGetProcessName(unsigned pid, char *out, unsigned size) {
    const char *name = find("process.%u.name", pid);
    return name ? text(name, out, size) : NOT_FOUND;
}

int nvmlDeviceGetCount_v2(unsigned *out) {
    if (!initialised) return UNINITIALIZED;
    int status = enter("nvmlDeviceGetCount_v2", -1);
    if (status) return status;
    const char *count = find("gpus");
    *out = count ? (unsigned)atoi(count) : 0;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    unsigned count = 0;
    int status = nvmlDeviceGetCount_v2(&count);
    if (status) return status;
    if (index >= count) return INVALID_ARGUMENT;
    status = enter("nvmlDeviceGetHandleByIndex_v2", (int)index);
    *out = (void *)(long)(index + 1);
    return status;
}

/* one device */

TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetSerial, "serial")
TEXT(nvmlDeviceGetVbiosVersion, "vbios")
UINT(nvmlDeviceGetPersistenceMode, "persistence")
UINT(nvmlDeviceGetComputeMode, "compute_mode")
UINT(nvmlDeviceGetEnforcedPowerLimit, "power.limit_mw")
UINT(nvmlDeviceGetPowerManagementDefaultLimit, "power.default_mw")
UINT(nvmlDeviceGetPowerUsage, "power.draw_mw")
UINT(nvmlDeviceGetCurrPcieLinkGeneration, "pcie.generation")
UINT(nvmlDeviceGetMaxPcieLinkGeneration, "pcie.max_generation")
UINT(nvmlDeviceGetGpuMaxPcieLinkGeneration, "pcie.device_generation")
UINT(nvmlDeviceGetCurrPcieLinkWidth, "pcie.width")
UINT(nvmlDeviceGetMaxPcieLinkWidth, "pcie.max_width")
UINT(nvmlDeviceGetPcieReplayCounter, "pcie.replays")
UINT(nvmlDeviceGetNumaNodeId, "memory_numa_node") /* only where the GPU's memory is one */
UINT(nvmlDeviceGetRetiredPagesPendingStatus, "retired.pending")

int nvmlDeviceGetPowerManagementLimitConstraints(void *d, unsigned *low, unsigned *high) {
    CHECKED("nvmlDeviceGetPowerManagementLimitConstraints", d);
    int status = number(find("gpu.%d.power.max_mw", gpu_of(d)), high);
    return status ? status : number(find("gpu.%d.power.min_mw", gpu_of(d)), low);
}

int nvmlDeviceGetCudaComputeCapability(void *d, int *major, int *minor) {
    CHECKED("nvmlDeviceGetCudaComputeCapability", d);
    const char *value = find("gpu.%d.compute_capability", gpu_of(d));
    return value && sscanf(value, "%d.%d", major, minor) == 2 ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetPciInfo_v3(void *d, pci_info *out) {
    CHECKED("nvmlDeviceGetPciInfo_v3", d);
    return pci(find("gpu.%d.bus_id", gpu_of(d)), out);
}

int nvmlDeviceGetMemoryInfo(void *d, ull *out) {
    CHECKED("nvmlDeviceGetMemoryInfo", d);
    const char *total = find("gpu.%d.memory.total", gpu_of(d)), *used = find("gpu.%d.memory.used", gpu_of(d));
    if (!total) return NOT_SUPPORTED;
    out[0] = strtoull(total, NULL, 0);
    out[2] = used ? strtoull(used, NULL, 0) : 0;
    out[1] = out[0] - out[2];
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(void *d, memory_v2 *out) {
    if (out->version != 0x02000028) return VERSION_MISMATCH;
    ull plain[3];
    CHECKED("nvmlDeviceGetMemoryInfo_v2", d);
    int status = nvmlDeviceGetMemoryInfo(d, plain);
    if (status) return status;
    unsigned reserved = 0;
    number(find("gpu.%d.memory.reserved", gpu_of(d)), &reserved);
    out->total = plain[0], out->free = plain[1], out->reserved = reserved;
    out->used = plain[2] - reserved; /* the first version counts them as used */
    return status;
}

int nvmlDeviceGetEccMode(void *d, unsigned *now, unsigned *pending) {
    CHECKED("nvmlDeviceGetEccMode", d);
    int status = number(find("gpu.%d.ecc.mode", gpu_of(d)), now);
    if (!status && number(find("gpu.%d.ecc.pending", gpu_of(d)), pending)) *pending = *now;
    return status;
}

int nvmlDeviceGetTotalEccErrors(void *d, unsigned kind, unsigned counter, ull *out) {
    static const char *kinds[] = {"corrected", "uncorrected"}, *counters[] = {"volatile", "aggregate"};
    CHECKED("nvmlDeviceGetTotalEccErrors", d);
    if (kind > 1 || counter > 1) return INVALID_ARGUMENT;
    const char *value = find("gpu.%d.ecc.%s.%s", gpu_of(d), kinds[kind], counters[counter]);
    if (!value) return NOT_SUPPORTED;
    *out = strtoull(value, NULL, 0);
    return SUCCESS;
}

int nvmlDeviceGetSramEccErrorStatus(void *d, sram_status *out) {
    CHECKED("nvmlDeviceGetSramEccErrorStatus", d);
    if (out->version != 0x1000068) return VERSION_MISMATCH;
    return number(find("gpu.%d.ecc.sram_exceeded", gpu_of(d)), &out->exceeded);
}

int nvmlDeviceGetRemappedRows(void *d, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    CHECKED("nvmlDeviceGetRemappedRows", d);
    const char *value = find("gpu.%d.remapped", gpu_of(d));
    if (!value) return NOT_SUPPORTED;
    return sscanf(value, "%u %u %u %u", corrected, uncorrected, pending, failed) == 4 ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetRetiredPages(void *d, unsigned cause, unsigned *count, ull *addresses) {
    static const char *causes[] = {"single_bit", "double_bit"};
    CHECKED("nvmlDeviceGetRetiredPages", d);
    if (cause > 1) return INVALID_ARGUMENT;
    const char *value = find("gpu.%d.retired.%s", gpu_of(d), causes[cause]);
    if (!value) return NOT_SUPPORTED;
    unsigned pages = (unsigned)atoi(value), room = *count;
    *count = pages;
    if (pages > room) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < pages && addresses; i++) addresses[i] = 0x1000ull * (i + 1);
    return SUCCESS;
}

int nvmlDeviceGetMigMode(void *d, unsigned *now, unsigned *pending) {
    CHECKED("nvmlDeviceGetMigMode", d);
    int status = number(find("gpu.%d.mig", gpu_of(d)), now);
    if (!status) *pending = *now;
    return status;
}

static int clock(void *d, const char *call, const char *kind, unsigned type, unsigned *out) {
    static const char *names[] = {"graphics", "sm", "memory", "video"};
    CHECKED(call, d);
    return type < 4 ? number(find("gpu.%d.%s.%s", gpu_of(d), kind, names[type]), out) : INVALID_ARGUMENT;
}
int nvmlDeviceGetClockInfo(void *d, unsigned type, unsigned *out) { return clock(d, "nvmlDeviceGetClockInfo", "clock", type, out); }
int nvmlDeviceGetMaxClockInfo(void *d, unsigned type, unsigned *out) { return clock(d, "nvmlDeviceGetMaxClockInfo", "max_clock", type, out); }

static int reasons(void *d, const char *call, ull *out) {
    CHECKED(call, d);
    const char *value = find("gpu.%d.clock_events", gpu_of(d));
    if (!value) return NOT_SUPPORTED;
    *out = strtoull(value, NULL, 0);
    return SUCCESS;
}
int nvmlDeviceGetCurrentClocksEventReasons(void *d, ull *out) { return reasons(d, "nvmlDeviceGetCurrentClocksEventReasons", out); }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *d, ull *out) { return reasons(d, "nvmlDeviceGetCurrentClocksThrottleReasons", out); }

int nvmlDeviceGetTemperature(void *d, unsigned sensor, unsigned *out) {
    CHECKED("nvmlDeviceGetTemperature", d);
    return sensor ? INVALID_ARGUMENT : number(find("gpu.%d.temperature", gpu_of(d)), out);
}

int nvmlDeviceGetTemperatureThreshold(void *d, unsigned threshold, unsigned *out) {
    CHECKED("nvmlDeviceGetTemperatureThreshold", d);
    if (threshold > 8) return INVALID_ARGUMENT;
    return number(find("gpu.%d.temperature_threshold.%u", gpu_of(d), threshold), out);
}

int nvmlDeviceGetTemperatureV(void *d, temperature *out) {
    if (out->version != 0x100000C) return VERSION_MISMATCH;
    return nvmlDeviceGetTemperature(d, out->sensor, (unsigned *)&out->value);
}

int nvmlDeviceGetMarginTemperature(void *d, margin *out) {
    CHECKED("nvmlDeviceGetMarginTemperature", d);
    if (out->version != 0x1000008) return VERSION_MISMATCH;
    return number(find("gpu.%d.temperature_margin", gpu_of(d)), (unsigned *)&out->value);
}

int nvmlDeviceGetMemoryAffinity(void *d, unsigned words, unsigned long *out, unsigned scope) {
    CHECKED("nvmlDeviceGetMemoryAffinity", d);
    unsigned node;
    int status = number(find("gpu.%d.numa_node", gpu_of(d)), &node);
    if (status || scope > 1) return status ? status : INVALID_ARGUMENT;
    memset(out, 0, words * sizeof *out);
    if (node >= words * 64) return INSUFFICIENT_SIZE;
    out[node / 64] = 1ul << node % 64;
    return SUCCESS;
}

typedef struct { unsigned pid; ull memory; unsigned instance, compute; } process;

int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *count, process *out) {
    CHECKED("nvmlDeviceGetComputeRunningProcesses_v3", d);
    unsigned room = *count, found = 0;
    const char *value;
    while ((value = find("gpu.%d.process.%u", gpu_of(d), found)) != NULL) {
        if (found < room && out) {
            out[found] = (process){.instance = ~0u, .compute = ~0u};
            sscanf(value, "%u %llu", &out[found].pid, &out[found].memory);
        }
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

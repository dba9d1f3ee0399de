/* The library's entry points: NVLinks, pairs of devices, the fabric, and field values. */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int link(const char *call, void *d, unsigned number_) {
    CHECKED(call, d);
    const char *count = find("gpu.%d.links", gpu_of(d));
    if (!count) return NOT_SUPPORTED;
    return number_ < (unsigned)atoi(count) ? SUCCESS : INVALID_ARGUMENT;
}
#define LINK(name, key) \
    int name(void *d, unsigned l, unsigned *out) { \
        int status = link(#name, d, l); \
        return status ? status : number(find("gpu.%d.link.%u." key, gpu_of(d), l), out); \
    }
LINK(nvmlDeviceGetNvLinkState, "active")
LINK(nvmlDeviceGetNvLinkVersion, "version")
LINK(nvmlDeviceGetNvLinkRemoteDeviceType, "remote_type")

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *d, unsigned l, pci_info *out) {
    int status = link("nvmlDeviceGetNvLinkRemotePciInfo_v2", d, l);
    return status ? status : pci(find("gpu.%d.link.%u.remote_bus_id", gpu_of(d), l), out);
}

int nvmlDeviceGetNvLinkErrorCounter(void *d, unsigned l, unsigned counter, ull *out) {
    static const char *names[] = {"replay", "recovery", "crc", "crc_data"};
    int status = link("nvmlDeviceGetNvLinkErrorCounter", d, l);
    if (status || counter > 3) return status ? status : INVALID_ARGUMENT;
    const char *value = find("gpu.%d.link.%u.counter.%s", gpu_of(d), l, names[counter]);
    if (!value) return NOT_SUPPORTED;
    *out = strtoull(value, NULL, 0);
    return SUCCESS;
}

static const char *of_pair(void *a, void *b, const char *what) {
    int x = gpu_of(a), y = gpu_of(b);
    return find("pair.%d.%d.%s", x < y ? x : y, x < y ? y : x, what);
}

int nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, unsigned *out) {
    CHECKED("nvmlDeviceGetTopologyCommonAncestor", a);
    CHECKED("nvmlDeviceGetTopologyCommonAncestor", b);
    return number(of_pair(a, b, "ancestor"), out);
}

int nvmlDeviceGetP2PStatus(void *a, void *b, unsigned index, unsigned *out) {
    static const char *kinds[] = {"p2p.read", "p2p.write", "p2p.nvlink", "p2p.atomics", "p2p.pci"};
    CHECKED("nvmlDeviceGetP2PStatus", a);
    CHECKED("nvmlDeviceGetP2PStatus", b);
    return index < 5 ? number(of_pair(a, b, kinds[index]), out) : INVALID_ARGUMENT;
}

typedef struct { unsigned char uuid[16]; int status; unsigned clique, state; } fabric;
typedef struct { unsigned version; fabric plain; unsigned health; unsigned char summary; } fabric_v;

/* "state status clique health", and the cluster's UUID as 32 hexadecimal digits. */
static int fabric_of(int gpu, fabric *out, unsigned *health) {
    const char *value = find("gpu.%d.fabric", gpu), *uuid = find("gpu.%d.fabric_uuid", gpu);
    if (!value) return NOT_SUPPORTED;
    memset(out->uuid, 0, sizeof out->uuid);
    for (int i = 0; uuid && i < 16 && sscanf(uuid + 2 * i, "%2hhx", &out->uuid[i]) == 1; i++) {}
    int read = sscanf(value, "%u %d %u %i", &out->state, &out->status, &out->clique, (int *)health);
    return read == 4 ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetGpuFabricInfoV(void *d, fabric_v *out) {
    CHECKED("nvmlDeviceGetGpuFabricInfoV", d);
    unsigned newest = 3; /* the newest structure that this driver knows */
    number(find("fabric_struct"), &newest);
    if (out->version != 0x2000024 && (out->version != 0x3000028 || newest < 3)) return VERSION_MISMATCH;
    int status = fabric_of(gpu_of(d), &out->plain, &out->health);
    if (!status && out->version == 0x3000028) out->summary = (out->health & 0x55) ? 2 : 1;
    return status;
}

int nvmlDeviceGetGpuFabricInfo(void *d, fabric *out) {
    unsigned health;
    CHECKED("nvmlDeviceGetGpuFabricInfo", d);
    return fabric_of(gpu_of(d), out, &health);
}

/* fields */

typedef struct { unsigned id, scope; long long time, latency; unsigned kind; int status; ull value; } field;

static const char *field_of(int gpu, const field *f) {
    const char *value = find("gpu.%d.link.%u.field.%u", gpu, f->scope, f->id);
    switch (f->id) {
    case 90: return find("gpu.%d.link.0.signalling_mbps", gpu);
    case 91: return find("gpu.%d.links", gpu);
    case 161: return find("gpu.%d.link.%u.replay", gpu, f->scope);
    case 162: return find("gpu.%d.link.%u.recovery", gpu, f->scope);
    case 163: return find("gpu.%d.link.%u.crc", gpu, f->scope);
    case 164: return find("gpu.%d.link.%u.signalling_mbps", gpu, f->scope);
    case 165: return find("gpu.%d.link.%u.active", gpu, f->scope);
    case 166: return find("gpu.%d.link.%u.version", gpu, f->scope);
    case 230: return find("gpu.%d.recovery_action", gpu);
    default: return value ? value : find("gpu.%d.field.%u", gpu, f->id);
    }
}

/* Each value has its own return code: "gpu.2.error.field.163 4". */
int nvmlDeviceGetFieldValues(void *d, int count, field *fields) {
    CHECKED("nvmlDeviceGetFieldValues", d);
    for (int i = 0; i < count; i++) {
        const char *value = field_of(gpu_of(d), &fields[i]);
        const char *error = find("gpu.%d.error.field.%u", gpu_of(d), fields[i].id);
        fields[i].status = error ? atoi(error) : value ? SUCCESS : NOT_SUPPORTED;
        fields[i].kind = 3; /* unsigned long long */
        fields[i].value = value ? strtoull(value, NULL, 0) : 0;
    }
    return SUCCESS;
}

/* What the entry points share: a description's text as an answer, and who may ask. */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int initialised;

int text(const char *value, char *buffer, unsigned size) {
    if (!value) return NOT_SUPPORTED;
    if (strlen(value) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(buffer, value);
    return SUCCESS;
}

int device(const char *call, const void *handle) {
    if (!initialised) return UNINITIALIZED;
    if (!handle) return INVALID_ARGUMENT;
    return enter(call, gpu_of(handle));
}

int number(const char *value, unsigned *out) {
    if (!value) return NOT_SUPPORTED;
    *out = (unsigned)strtoul(value, NULL, 0);
    return SUCCESS;
}

int pci(const char *value, pci_info *out) {
    if (!value) return NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    unsigned function = 0;
    sscanf(value, "%x:%x:%x.%x", &out->domain, &out->bus, &out->device, &function);
    snprintf(out->bus_id, sizeof out->bus_id, "%s", value);
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", out->domain & 0xffff, out->bus & 0xff, out->device & 0xff);
    return SUCCESS;
}

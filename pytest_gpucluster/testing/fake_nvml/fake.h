/* A stand-in for NVIDIA's management library. Error codes and structures: nvml.h (NVML 13). */
#ifndef FAKE_NVML_H
#define FAKE_NVML_H

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, VERSION_MISMATCH = 25 };

typedef unsigned long long ull;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_info;

/* Only what carries NVML's names is visible from outside. */
#pragma GCC visibility push(hidden)

extern int initialised;

/* The value of the last line whose key matches, NULL if there is none or it is "-". */
const char *find(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Whether there is a description at all. */
int described(void);

/* What a call must return before it does anything: hangs if the description says so. */
int enter(const char *call, int gpu);

/* The same for a call on a device, which also needs nvmlInit and a handle. */
int device(const char *call, const void *handle);

/* A description's value as the answer; not supported without one. */
int text(const char *value, char *buffer, unsigned size);
int number(const char *value, unsigned *out);
int pci(const char *value, pci_info *out);

#pragma GCC visibility pop

/* Handles are the index plus one, so that NULL stays invalid. */
static inline int gpu_of(const void *device) { return (int)(long)device - 1; }

#define CHECKED(name, handle) do { int status = device(name, handle); if (status) return status; } while (0)

#endif

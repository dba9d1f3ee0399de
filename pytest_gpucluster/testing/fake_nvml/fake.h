/* A stand-in for NVIDIA's management library. Error codes and structures: nvml.h (NVML 13). */
#ifndef FAKE_NVML_H
#define FAKE_NVML_H

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3,
       NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, VERSION_MISMATCH = 25 };

/* The value of the last line whose key matches, NULL if there is none or it is "-". */
const char *find(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* What a call must return before it does anything: hangs if the description says so. */
int enter(const char *call, int gpu);

/* Handles are the index plus one, so that NULL stays invalid. */
static inline int gpu_of(const void *device) { return (int)(long)device - 1; }

#endif

/* The description file: lines "key value", later lines win, "*" stands for any one segment. */
#include "fake.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_LINES 65536

static struct { char *key, *value; } lines[MOST_LINES];
static int line_count = -1;

static void load(void) {
    line_count = 0;
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) {
        fprintf(stderr, "fake NVML: no description at FAKE_NVML=%s\n", path ? path : "");
        return;
    }
    char text[1024];
    while (fgets(text, sizeof text, file) && line_count < MOST_LINES) {
        text[strcspn(text, "\r\n")] = 0;
        char *value = strchr(text, ' ');
        if (text[0] == '#' || !value) continue;
        *value++ = 0;
        lines[line_count].key = strdup(text);
        lines[line_count++].value = strdup(value);
    }
    fclose(file);
}

int described(void) {
    if (line_count < 0) load();
    return line_count > 0;
}

static int matches(const char *pattern, const char *key) {
    while (*pattern && *key) {
        if (pattern[0] == '*' && (pattern[1] == '.' || !pattern[1])) {
            pattern++;
            while (*key && *key != '.') key++;
        } else if (*pattern++ != *key++) {
            return 0;
        }
    }
    return !*pattern && !*key;
}

const char *find(const char *format, ...) {
    char key[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(key, sizeof key, format, arguments);
    va_end(arguments);
    if (line_count < 0) load();
    for (int i = line_count - 1; i >= 0; i--)
        if (matches(lines[i].key, key))
            return strcmp(lines[i].value, "-") ? lines[i].value : NULL;
    return NULL;
}

int enter(const char *call, int gpu) {
    if (find("hang.%s", call) || (gpu >= 0 && find("gpu.%d.hang.%s", gpu, call)))
        for (;;) pause();
    const char *error = gpu >= 0 ? find("gpu.%d.error.%s", gpu, call) : NULL;
    if (!error) error = find("error.%s", call);
    return error ? atoi(error) : SUCCESS;
}

// A program that launches an empty kernel again and again, in some threads, and prints the nanoseconds of one
// launch by the driver's own function, by the one that a program finds, and what the second costs more. Both are
// called in turn, in bursts that the queue of a device can take. With -DDRIVER: a driver that does nothing, so that
// what the agent adds can be seen without a GPU.
//
//     cost THREADS BURSTS
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>

#ifdef DRIVER
int cuInit(unsigned flags) { return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = context; return 0; }
int cuCtxSetCurrent(void *context) { return 0; }
int cuModuleLoadData(void **module, const void *image) { *module = module; return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) { *function = function; return 0; }
int cuStreamCreate(void **stream, unsigned flags) { *stream = stream; return 0; }
int cuCtxSynchronize(void) { return 0; }
int cuStreamSynchronize(void *stream) { return 0; }
__attribute__((noinline)) int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
    unsigned by, unsigned bz, unsigned shared, void *stream, void **arguments, void **extra) {
    __asm__ volatile("");
    return 0;
}
#else
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BURST 256
#define THREADS_MOST 64

typedef int Launch(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

static const char *kernel = ".version 7.0\n.target sm_52\n.address_size 64\n.visible .entry nothing() { ret; }\n";
static void *context, *function;
static long bursts;
// The driver's own function, and the one that a program finds.
static Launch *launch[2];
static int (*set_current)(void *), (*create)(void **, unsigned), (*synchronize)(void *);
static pthread_barrier_t together;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e9 * time.tv_sec + time.tv_nsec;
}

// Looks a function up in the table of a library, where nobody stands in for it.
static void *look_up(void *library, const char *name) {
    struct link_map *map = library;
    const ElfW(Sym) *symbols = NULL;
    const char *names = NULL;
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB) symbols = (const void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_STRTAB) names = (const void *)entry->d_un.d_ptr;
    }
    // The names follow the symbols in every library that a linker has made.
    for (; symbols && (const char *)symbols < names; symbols++)
        if (symbols->st_value && !strcmp(names + symbols->st_name, name)) return (void *)(map->l_addr + symbols->st_value);
    return NULL;
}

static int compare(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static double median(double *values, long count) {
    qsort(values, count, sizeof *values, compare);
    return values[count / 2];
}

// The medians of a thread's bursts.
struct Found { double by[2], more; };

static void *work(void *found) {
    void *stream;
    double *took[2] = {malloc(bursts * sizeof(double)), malloc(bursts * sizeof(double))};
    double *more = malloc(bursts * sizeof(double));
    if (set_current(context) || create(&stream, 1)) exit(3);
    for (long burst = -bursts / 10 - 1; burst < bursts; burst++) {
        double both[2];
        for (int turn = 0; turn < 2; turn++) {
            // Each is first in every second pair.
            int which = turn ^ (burst & 1);
            synchronize(stream);
            pthread_barrier_wait(&together);
            double began = now();
            for (int number = 0; number < BURST; number++)
                if (launch[which](function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL)) exit(3);
            both[which] = (now() - began) / BURST;
        }
        if (burst < 0) continue;
        for (int which = 0; which < 2; which++) took[which][burst] = both[which];
        more[burst] = both[1] - both[0];
    }
    synchronize(stream);
    *(struct Found *)found = (struct Found){{median(took[0], bursts), median(took[1], bursts)}, median(more, bursts)};
    return NULL;
}

int main(int count, char **arguments) {
    int threads = count > 1 ? atoi(arguments[1]) : 1;
    bursts = count > 2 ? atol(arguments[2]) : 2000;
    if (threads < 1 || threads > THREADS_MOST || bursts < 1) { fprintf(stderr, "usage: cost THREADS BURSTS\n"); return 2; }
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *module;
    if (!driver) { fprintf(stderr, "%s\n", dlerror()); return 3; }
    int (*init)(unsigned) = dlsym(driver, "cuInit");
    int (*retain)(void **, int) = dlsym(driver, "cuDevicePrimaryCtxRetain");
    int (*load)(void **, const void *) = dlsym(driver, "cuModuleLoadData");
    int (*get)(void **, void *, const char *) = dlsym(driver, "cuModuleGetFunction");
    set_current = dlsym(driver, "cuCtxSetCurrent");
    create = dlsym(driver, "cuStreamCreate");
    synchronize = dlsym(driver, "cuStreamSynchronize");
    launch[0] = look_up(driver, "cuLaunchKernel");
    launch[1] = dlsym(driver, "cuLaunchKernel");
    if (!launch[0]) { fprintf(stderr, "the driver has no cuLaunchKernel\n"); return 3; }
    int code = init(0);
    if (!code) code = retain(&context, 0);
    if (!code) code = set_current(context);
    if (!code) code = load(&module, kernel);
    if (!code) code = get(&function, module, "nothing");
    if (code) { fprintf(stderr, "the driver answered %d\n", code); return 3; }
    pthread_t all[THREADS_MOST];
    struct Found found[THREADS_MOST], sum = {0};
    pthread_barrier_init(&together, NULL, threads);
    for (int number = 0; number < threads; number++) pthread_create(&all[number], NULL, work, &found[number]);
    for (int number = 0; number < threads; number++) {
        pthread_join(all[number], NULL);
        sum.by[0] += found[number].by[0] / threads;
        sum.by[1] += found[number].by[1] / threads;
        sum.more += found[number].more / threads;
    }
    printf("%.1f ns by the driver, %.1f ns as found%s, %.1f ns more\n", sum.by[0], sum.by[1],
        launch[0] == launch[1] ? " (the same function)" : "", sum.more);
    return 0;
}
#endif

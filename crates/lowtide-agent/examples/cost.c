// A program that launches an empty kernel again and again, in some threads, and prints the nanoseconds of one
// launch. With -DDRIVER: a driver that does nothing, so that what the agent adds can be seen.
//
//     cost THREADS LAUNCHES
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
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const char *kernel = ".version 7.0\n.target sm_52\n.address_size 64\n.visible .entry nothing() { ret; }\n";
static void *context, *function;
static long launches;
static int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static int (*set_current)(void *), (*create)(void **, unsigned), (*synchronize)(void *);
static pthread_barrier_t start;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e9 * time.tv_sec + time.tv_nsec;
}

static void *work(void *took) {
    void *stream;
    if (set_current(context) || create(&stream, 1)) exit(3);
    for (long warm = 0; warm < launches / 10; warm++)
        if (launch(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL)) exit(3);
    synchronize(stream);
    pthread_barrier_wait(&start);
    double began = now();
    for (long number = 0; number < launches; number++)
        if (launch(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL)) exit(3);
    *(double *)took = (now() - began) / launches;
    synchronize(stream);
    return NULL;
}

int main(int count, char **arguments) {
    int threads = count > 1 ? atoi(arguments[1]) : 1;
    launches = count > 2 ? atol(arguments[2]) : 1000000;
    if (threads < 1 || threads > 64 || launches < 1) { fprintf(stderr, "usage: cost THREADS LAUNCHES\n"); return 2; }
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *module;
    if (!driver) { fprintf(stderr, "%s\n", dlerror()); return 3; }
    int (*init)(unsigned) = dlsym(driver, "cuInit");
    int (*retain)(void **, int) = dlsym(driver, "cuDevicePrimaryCtxRetain");
    int (*load)(void **, const void *) = dlsym(driver, "cuModuleLoadData");
    int (*get)(void **, void *, const char *) = dlsym(driver, "cuModuleGetFunction");
    set_current = dlsym(driver, "cuCtxSetCurrent");
    create = dlsym(driver, "cuStreamCreate");
    synchronize = dlsym(driver, "cuStreamSynchronize");
    launch = dlsym(driver, "cuLaunchKernel");
    int code = init(0);
    if (!code) code = retain(&context, 0);
    if (!code) code = set_current(context);
    if (!code) code = load(&module, kernel);
    if (!code) code = get(&function, module, "nothing");
    if (code) { fprintf(stderr, "the driver answered %d\n", code); return 3; }
    pthread_t all[64];
    double took[64], sum = 0;
    pthread_barrier_init(&start, NULL, threads);
    for (int number = 0; number < threads; number++) pthread_create(&all[number], NULL, work, &took[number]);
    for (int number = 0; number < threads; number++) { pthread_join(all[number], NULL); sum += took[number]; }
    printf("%.2f\n", sum / threads);
    return 0;
}
#endif

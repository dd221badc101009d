// A program that nobody changed: it finds the driver in one of the ways seen in the wild, and does what
// it is told on standard input, one line each.
//
//     client ROUTE        ROUTE: dlsym, address (cuGetProcAddress), linked
//
// It answers each line with "ok", a number, or "error CODE".
#define _GNU_SOURCE
#ifdef PLUGIN  // A library, which a client loads.
extern void lowtide_client_touch(void) __attribute__((weak));
__attribute__((constructor)) static void loaded(void) { if (lowtide_client_touch) lowtide_client_touch(); }
#elif defined WAITER  // A driver that waits in a call of the system, where a thread can be cancelled.
#include <dlfcn.h>
#include <unistd.h>
extern volatile int lowtide_client_go;
int cuStreamSynchronize(void *stream) {
    while (!lowtide_client_go) usleep(1000);
    return ((int (*)(void *))dlsym(RTLD_NEXT, "cuStreamSynchronize"))(stream);
}
#elif defined INTERPOSER  // A library whose dlsym does not ask what is loaded behind it.
#include <dlfcn.h>
void *dlsym(void *handle, const char *name) {
    void *libc = dlopen("libc.so.6", RTLD_LAZY), *real = dlvsym(libc, "dlsym", "GLIBC_2.34");
    if (!real) real = dlvsym(dlopen("libdl.so.2", RTLD_LAZY), "dlsym", "GLIBC_2.2.5");
    return ((void *(*)(void *, const char *))real)(handle, name);
}
#elif defined CLOCK  // A library whose clocks are wrong by what the file $SOAK_CLOCK says: of the day, since the start.
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static volatile long *wrong;
__attribute__((constructor)) static void loaded(void) {
    void *found = mmap(NULL, 16, PROT_READ, MAP_SHARED, open(getenv("SOAK_CLOCK"), O_RDONLY | O_CLOEXEC), 0);
    if (found != MAP_FAILED) wrong = found;
}
static long raw(long number, long a, long b, long c, long d, long e, long f) {
    long answer;
    register long r10 asm("r10") = d, r8 asm("r8") = e, r9 asm("r9") = f;
    asm volatile("syscall" : "=a"(answer) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return answer;
}
static long done(long answer) { return answer < 0 && answer > -4096 ? (errno = -answer, -1) : answer; }
int clock_gettime(clockid_t clock, struct timespec *now) {
    long answer = raw(SYS_clock_gettime, clock, (long)now, 0, 0, 0, 0);
    int which = clock == CLOCK_REALTIME ? 0 : clock == CLOCK_MONOTONIC || clock == CLOCK_BOOTTIME ? 1 : 2;
    if (answer == 0 && wrong && which < 2) now->tv_sec += wrong[which];
    return done(answer);
}
// The kernel's clock is right: it gets the moment that is meant.
long syscall(long number, ...) {
    long a[6];
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(rest, long);
    va_end(rest);
    struct timespec until;
    if (number == SYS_futex && (a[1] & 127) == 9 && a[3] && wrong) {
        until = *(struct timespec *)a[3];
        until.tv_sec -= wrong[1];
        if (until.tv_sec < 0) until.tv_sec = 0;
        a[3] = (long)&until;
    }
    return done(raw(number, a[0], a[1], a[2], a[3], a[4], a[5]));
}
#else
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int (*function)();
typedef int (*get_address)(const char *, void **, int, uint64_t, int *);

static void *library;
static get_address get;

#ifdef LINKED
#define DECLARE(name) extern int name();
DECLARE(cuInit) DECLARE(cuDevicePrimaryCtxRetain) DECLARE(cuDevicePrimaryCtxRelease_v2)
DECLARE(cuCtxSetCurrent) DECLARE(cuCtxEnablePeerAccess) DECLARE(cuGreenCtxCreate) DECLARE(cuGreenCtxDestroy) DECLARE(cuCtxCreate_v2) DECLARE(cuMemAlloc_v2) DECLARE(cuMemFree_v2) DECLARE(cuMemcpyHtoD_v2)
DECLARE(cuMemcpyDtoH_v2) DECLARE(cuMemGetInfo_v2) DECLARE(cuDeviceTotalMem_v2) DECLARE(cuMemGetAddressRange_v2)
DECLARE(cuPointerGetAttribute) DECLARE(cuStreamCreate) DECLARE(cuStreamBeginCapture_v2)
DECLARE(cuStreamEndCapture) DECLARE(cuMemsetD8Async) DECLARE(cuStreamSynchronize) DECLARE(cuStreamQuery)
DECLARE(cuGraphInstantiateWithFlags) DECLARE(cuGraphLaunch) DECLARE(cuMemCreate) DECLARE(cuMemRelease)
DECLARE(cuMemAllocAsync) DECLARE(cuMemFreeAsync) DECLARE(cuPointerSetAttribute) DECLARE(cuGraphDestroy) DECLARE(cuGraphExecDestroy) DECLARE(cuStreamDestroy_v2) DECLARE(cuLowtideDoubleOnly)
DECLARE(cuPointerGetAttributes) DECLARE(cuMemAddressReserve) DECLARE(cuMemAddressFree) DECLARE(cuMemMap) DECLARE(cuMemUnmap)
DECLARE(cuMemSetAccess) DECLARE(cuMemGetAccess) DECLARE(cuMemRetainAllocationHandle) DECLARE(cuMemGetAllocationPropertiesFromHandle)
DECLARE(cuMemExportToShareableHandle) DECLARE(cuCtxSynchronize) DECLARE(cuCtxDestroy_v2)
DECLARE(cuMemImportFromShareableHandle) DECLARE(cuIpcGetMemHandle) DECLARE(cuIpcOpenMemHandle_v2) DECLARE(cuIpcCloseMemHandle)
#define FIND(name) ((function)name)
#else
static function find(const char *name) {
    if (get) {
        char plain[64];
        void *found = NULL;
        int status = -1;
        snprintf(plain, sizeof plain, "%s", name);
        char *version = strstr(plain, "_v");
        if (version) *version = 0;
        if (get(plain, &found, 12080, 0, &status) != 0) found = NULL;
        return (function)found;
    }
    return (function)dlsym(library, name);
}
#define FIND(name) find(#name)
#endif

#define CALL(name, ...) (FIND(name) ? FIND(name)(__VA_ARGS__) : -1)

enum { MOST = 64 };
static uint64_t at[MOST];
static size_t bytes[MOST];
static unsigned seeds[MOST];
static void *context, *other, *green;
static uint64_t stream, graph, exec;
static uint64_t handles[MOST];
struct properties { int type, handles, location, id; void *windows; unsigned char flags[8]; };

static void fill(unsigned char *to, size_t count, unsigned seed) {
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1103515245u + 12345u;
        to[i] = seed >> 16;
    }
}

static int write_block(int i, unsigned seed) {
    unsigned char *data = malloc(bytes[i]);
    fill(data, bytes[i], seed);
    seeds[i] = seed;
    int code = CALL(cuMemcpyHtoD_v2, at[i], data, bytes[i]);
    free(data);
    return code;
}

static int check_block(int i) {
    unsigned char *data = malloc(bytes[i]), *expected = malloc(bytes[i]);
    fill(expected, bytes[i], seeds[i]);
    int code = CALL(cuMemcpyDtoH_v2, data, at[i], bytes[i]);
    if (code == 0 && memcmp(data, expected, bytes[i]) != 0) code = -2;
    free(data);
    free(expected);
    return code;
}

// Fills a block with zeros, or checks that it has nothing else.
static int zeros(int i, int checks) {
    unsigned char *data = calloc(bytes[i], 1);
    int code = checks ? CALL(cuMemcpyDtoH_v2, data, at[i], bytes[i]) : CALL(cuMemcpyHtoD_v2, at[i], data, bytes[i]);
    for (size_t b = 0; code == 0 && b < bytes[i]; b++)
        if (data[b]) code = -2;
    free(data);
    return code;
}

static volatile int stop;
static void *work(void *argument) {
    long i = (long)argument, code = 0;
    unsigned seed = 1000 * i + 7;
    CALL(cuCtxSetCurrent, context);
    while (!stop && code == 0) {
        code = write_block(i, seed++);
        if (code == 0) code = check_block(i);
    }
    return (void *)code;
}

static int start(void) {
    int code = CALL(cuInit, 0);
    if (code == 0) code = CALL(cuDevicePrimaryCtxRetain, &context, 0);
    if (code == 0) code = CALL(cuCtxSetCurrent, context);
    return code;
}

static int capture(int i) {
    int code = stream ? 0 : CALL(cuStreamCreate, &stream, 1);
    if (code == 0) code = CALL(cuStreamBeginCapture_v2, stream, 0);
    if (code == 0) code = CALL(cuMemsetD8Async, at[i], 0x5a, bytes[i], stream);
    return code;
}

static int end_capture(void) {
    int code = CALL(cuStreamEndCapture, stream, &graph);
    if (code == 0) code = CALL(cuGraphInstantiateWithFlags, &exec, graph, (uint64_t)0);
    return code;
}

static int replay(int i) {
    int code = CALL(cuGraphLaunch, exec, stream);
    if (code == 0) code = CALL(cuStreamSynchronize, stream);
    unsigned char *data = malloc(bytes[i]);
    if (code == 0) code = CALL(cuMemcpyDtoH_v2, data, at[i], bytes[i]);
    for (size_t b = 0; code == 0 && b < bytes[i]; b++)
        if (data[b] != 0x5a) code = -2;
    free(data);
    return code;
}

// Each thread launches work on a stream of its own and looks at what it left, again and again.
static void *launch(void *argument) {
    long i = (long)argument, code = 0;
    uint64_t own = 0;
    unsigned char *data = malloc(bytes[i]);
    CALL(cuCtxSetCurrent, context);
    code = CALL(cuStreamCreate, &own, 1);
    for (unsigned char value = i; !stop && code == 0; value++) {
        code = CALL(cuMemsetD8Async, at[i], value, bytes[i] / 2, own);
        if (code == 0) code = CALL(cuMemsetD8Async, at[i] + bytes[i] / 2, value ^ 0xff, bytes[i] - bytes[i] / 2, own);
        if (code == 0) code = CALL(cuStreamSynchronize, own);
        if (code == 0) code = CALL(cuMemcpyDtoH_v2, data, at[i], bytes[i]);
        for (size_t b = 0; code == 0 && b < bytes[i]; b++)
            if (data[b] != (b < bytes[i] / 2 ? value : value ^ 0xff)) code = -2;
    }
    free(data);
    return (void *)code;
}

static int create(int i, size_t size, int types, int flags) {
    struct properties how = {1, types, 1, 0, NULL, {flags & 255, flags >> 8}};
    return CALL(cuMemCreate, &handles[i], size, &how, (uint64_t)0);
}

static int grant(int i, int flags) {
    struct { int location, id, flags; } how = {1, 0, flags};
    return CALL(cuMemSetAccess, at[i], bytes[i], &how, (size_t)1);
}

// Each thread makes virtual memory, uses it, and gives it back in one of the orders that programs have.
static void *segment(void *argument) {
    long i = (long)argument, code = 0;
    CALL(cuCtxSetCurrent, context);
    bytes[i] = 4 << 20;
    code = CALL(cuMemAddressReserve, &at[i], bytes[i], (size_t)0, (uint64_t)0, (uint64_t)0);
    for (unsigned turn = 0; !stop && code == 0; turn++) {
        int is_released = turn % 2;
        code = create(i, bytes[i], 0, 0);
        if (code == 0) code = CALL(cuMemMap, at[i], bytes[i], (size_t)0, handles[i], (uint64_t)0);
        if (code == 0 && is_released) code = CALL(cuMemRelease, handles[i]);
        if (code == 0) code = grant(i, 3);
        if (code == 0) code = write_block(i, 1000 * i + turn);
        if (code == 0) code = check_block(i);
        if (code == 0 && turn % 3 == 0) usleep(500);
        if (code == 0 && turn % 3 == 0) code = check_block(i);
        if (code == 0) code = CALL(cuMemUnmap, at[i], bytes[i]);
        if (code == 0 && !is_released) code = CALL(cuMemRelease, handles[i]);
    }
    if (code == 0) code = CALL(cuMemAddressFree, at[i], bytes[i]);
    return (void *)code;
}

// Not the driver's.
int cuOfTheProgram(void) { return 0; }

volatile int lowtide_client_go;
static void *wait_in_thread(void *ignored) { return (void *)(long)CALL(cuStreamSynchronize, (uint64_t)0); }

static void *check_in_thread(void *block) {
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
    CALL(cuCtxSetCurrent, context);
    return (void *)(long)check_block((long)block);
}

// What `open-later` asks for, in a thread.
static struct { unsigned char bytes[64]; } wanted;
static uint64_t opened;
static void *open_in_thread(void *flags) {
    CALL(cuCtxSetCurrent, context);
    return (void *)(long)CALL(cuIpcOpenMemHandle_v2, &opened, wanted, (int)(long)flags);
}

// As the driver does at exit, after all that was registered later: asks for a while what waits in a locked process.
static int ends_slowly;
static void end_slowly(void) {
    if (!ends_slowly) return;
    unsigned long memory[8];
    void *device = NULL;
    ((int (*)(unsigned, void **))dlsym(library, "nvmlDeviceGetHandleByIndex_v2"))(0, &device);
    for (int i = 0; i < 200; i++, usleep(10000)) {
        memory[0] = sizeof memory | 2 << 24;
        ((int (*)(void *, void *))dlsym(library, "nvmlDeviceGetMemoryInfo_v2"))(device, memory);
    }
}

static int in_threads(void *(*work)(void *), int threads, int ms) {
    pthread_t all[MOST];
    long worst = 0;
    stop = 0;
    for (long i = 0; i < threads; i++) pthread_create(&all[i], NULL, work, (void *)i);
    usleep(1000 * ms);
    stop = 1;
    for (int i = 0; i < threads; i++) {
        void *code;
        pthread_join(all[i], &code);
        if (code) worst = (long)code;
    }
    return worst;
}

static int storm(int threads, int ms) { return in_threads(work, threads, ms); }
static int segments(int threads, int ms) { return in_threads(segment, threads, ms); }
static int launches(int threads, int ms) { return in_threads(launch, threads, ms); }

// A library that touches the device while it is loaded calls this.
static int touched;
void lowtide_client_touch(void) { touched = check_block(0); }

int main(int count, char **arguments);
static void *go_on(void *arguments) { exit(main(2, arguments)); }

int main(int count, char **arguments) {
    const char *route = count > 1 ? arguments[1] : "dlsym";
    char line[256];
    pthread_t later;
    atexit(end_slowly);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (strcmp(route, "linked") != 0 && !library) {
        library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        if (!library) { printf("no driver\n"); return 3; }
        if (strcmp(route, "address") == 0) {
            get = (get_address)dlsym(library, "cuGetProcAddress_v2");
            void *again = NULL;  // The runtime asks for it through itself.
            if (!get || get("cuGetProcAddress", &again, 12080, 0, NULL) != 0) { printf("no address\n"); return 3; }
            get = (get_address)again;
        }
    }
    while (fgets(line, sizeof line, stdin)) {
        char word[32] = "";
        unsigned long a = 0, b = 0, c = 0, d = 0;
        int code = -3;
        sscanf(line, "%31s %lu %lu %lu %lu", word, &a, &b, &c, &d);
        if (!strcmp(word, "second")) code = CALL(cuCtxCreate_v2, &other, 0, (int)a);
        // Whether the other context's device may use the memory of the first one, and the first context again.
        if (!strcmp(word, "peer")) code = CALL(cuCtxEnablePeerAccess, context, 0);
        if (!strcmp(word, "first")) code = CALL(cuCtxSetCurrent, context);
        if (!strcmp(word, "other")) code = CALL(cuCtxSetCurrent, other);
        if (!strcmp(word, "green")) code = CALL(cuGreenCtxCreate, &green, &code, 0, 1);
        if (!strcmp(word, "no-green")) code = CALL(cuGreenCtxDestroy, green);
        if (!strcmp(word, "no-primary")) code = CALL(cuCtxDestroy_v2, context);
        if (!strcmp(word, "end-other")) {  // A stream that does not capture.
            uint64_t quiet = 0;
            code = CALL(cuStreamCreate, &quiet, 1) | CALL(cuStreamEndCapture, quiet, &graph);
        }
        if (!strcmp(word, "deaf")) {  // Nobody reads standard error any more.
            int ends[2];
            code = pipe(ends) | dup2(ends[1], 2) != 2 | close(ends[0]) | close(ends[1]);
        }
        if (!strncmp(word, "cancel", 6)) {  // A thread that checks a block, or waits in the driver, is cancelled meanwhile.
            pthread_t thread;
            void *end = NULL;
            pthread_create(&thread, NULL, word[6] ? wait_in_thread : check_in_thread, (void *)a);
            usleep(20000);
            code = pthread_cancel(thread);
            usleep(20000);
            lowtide_client_go = 1;
            code |= pthread_join(thread, &end);
            if (code == 0 && end != PTHREAD_CANCELED) code = (long)end;
        }
        if (!strcmp(word, "exit")) { ends_slowly = 1; exit((int)a); }
        if (!strcmp(word, "leave-main")) {  // The first thread ends, and another one goes on.
            printf("ok\n");
            pthread_create(&later, NULL, go_on, arguments);
            pthread_exit(NULL);
        }
        if (!strcmp(word, "become")) code = setgid(a) | setuid(a);
        if (!strcmp(word, "files")) {  // Opens some, and closes them.
            int all[MOST];
            code = 0;
            for (int i = 0; i < (int)a; i++) if ((all[i] = dup(0)) < 0) code = -7;
            for (int i = 0; i < (int)a; i++) close(all[i]);
        }
        if (!strcmp(word, "close-file")) code = close((int)a);
        if (!strcmp(word, "is-no-file")) code = dup((int)a) < 0 ? 0 : -6;
        if (!strcmp(word, "no-files")) {  // Uses all up but so many.
            int last = 0;
            for (int next; (next = dup(0)) >= 0;) last = next;
            for (code = 0; code < (int)a; code++) close(last - code);
            code = 0;
        }
        if (!strcmp(word, "early")) code = dlsym(dlopen(NULL, RTLD_LAZY), "cuOfTheProgram") == (void *)cuOfTheProgram ? 0 : -5;
        if (!strcmp(word, "no-second")) usleep(1000 * a);
        if (!strcmp(word, "no-second")) code = CALL(cuCtxDestroy_v2, other);
        if (!strcmp(word, "start")) code = start();
        if (!strcmp(word, "alloc")) { bytes[a] = b; code = CALL(cuMemAlloc_v2, &at[a], (size_t)b); }
        // Virtual memory: `create HANDLE BYTES [TYPES [FLAGS]]`, `reserve BLOCK BYTES`, `inside BLOCK RESERVED OFFSET`,
        // `map BLOCK HANDLE`, `grant BLOCK FLAGS`.
        if (!strcmp(word, "create")) code = create(a, b, c, d);
        if (!strcmp(word, "uncreate")) code = CALL(cuMemRelease, handles[a]);
        if (!strcmp(word, "reserve")) { bytes[a] = b; code = CALL(cuMemAddressReserve, &at[a], (size_t)b, (size_t)0, (uint64_t)0, (uint64_t)0); }
        if (!strcmp(word, "unreserve")) {
            code = CALL(cuMemAddressFree, at[a], bytes[a]);
            if (code == 0) at[a] = 0;  // Somebody else may have these addresses from now on.
        }
        if (!strcmp(word, "inside")) { at[a] = at[b] + c; bytes[a] = d; code = 0; }
        if (!strcmp(word, "map")) code = CALL(cuMemMap, at[a], bytes[a], (size_t)0, handles[b], (uint64_t)0);
        if (!strcmp(word, "unmap")) code = CALL(cuMemUnmap, at[a], bytes[a]);
        if (!strcmp(word, "grant")) code = grant(a, b);
        if (!strcmp(word, "grant-to")) {
            struct { int location, id, flags; } how = {1, (int)b, 3};
            code = CALL(cuMemSetAccess, at[a], bytes[a], &how, (size_t)1);
        }
        if (!strcmp(word, "access")) {
            struct { int location, id; } where = {1, 0};
            uint64_t flags = 0;
            code = CALL(cuMemGetAccess, &flags, &where, at[a]);
            if (code == 0) { printf("%lu\n", (unsigned long)flags); continue; }
        }
        if (!strcmp(word, "retain")) {  // Prints whether it is handle B.
            uint64_t handle = 0;
            code = CALL(cuMemRetainAllocationHandle, &handle, at[a] + 5);
            if (code == 0) { printf("%d\n", handle == handles[b]); continue; }
        }
        if (!strcmp(word, "properties")) {
            struct properties how = {0};
            code = CALL(cuMemGetAllocationPropertiesFromHandle, &how, handles[a]);
            if (code == 0) { printf("%d %d %d %d %d\n", how.type, how.handles, how.location, how.id, how.flags[0] + 256 * how.flags[1]); continue; }
        }
        if (!strcmp(word, "export")) {  // Prints a descriptor, which `import HANDLE PID DESCRIPTOR` takes.
            int shared = -1;
            prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
            code = CALL(cuMemExportToShareableHandle, &shared, handles[a], 1, (uint64_t)0);
            if (code == 0) { printf("%d\n", shared); continue; }
        }
        if (!strcmp(word, "import")) {
            int process = syscall(SYS_pidfd_open, (int)b, 0), shared = syscall(SYS_pidfd_getfd, process, (int)c, 0);
            code = shared < 0 ? -6 : CALL(cuMemImportFromShareableHandle, &handles[a], (void *)(long)shared, 1);
            close(process);
            close(shared);
        }
        // Memory of other processes: `handle BLOCK OFFSET`, `open BLOCK BYTES FLAGS HANDLE`, `close BLOCK OFFSET`.
        struct { unsigned char bytes[64]; } shared;
        if (!strcmp(word, "handle")) {
            code = CALL(cuIpcGetMemHandle, &shared, at[a] + b);
            for (int i = 0; code == 0 && i < 64; i++) printf(i < 63 ? "%02x" : "%02x\n", shared.bytes[i]);
            if (code == 0) continue;
        }
        if (!strncmp(word, "open", 4)) {
            char text[129] = "";
            sscanf(line, "%*s %*s %*s %*s %128s", text);
            for (int i = 0; i < 64; i++) sscanf(text + 2 * i, "%2hhx", &shared.bytes[i]);
        }
        if (!strcmp(word, "open-later")) {  // In a thread, for which `opened` waits.
            memcpy(&wanted, &shared, sizeof wanted);
            bytes[a] = b;
            code = pthread_create(&later, NULL, open_in_thread, (void *)c);
        }
        if (!strcmp(word, "opened")) {
            void *end = NULL;
            code = pthread_join(later, &end);
            if (code == 0) code = (long)end;
            at[a] = opened;
        }
        if (!strcmp(word, "open")) {
            uint64_t found = 0;
            code = CALL(cuIpcOpenMemHandle_v2, &found, shared, (int)c);
            if (code == 0) { at[a] = found; bytes[a] = b; }
        }
        if (!strcmp(word, "close")) code = CALL(cuIpcCloseMemHandle, at[a] + b);
        if (!strcmp(word, "seed")) { seeds[a] = b; code = 0; }
        if (!strcmp(word, "leave-child")) {  // One that lives on for a while.
            pid_t child = fork();
            if (child == 0) { close(0); close(1); sleep(600); _exit(0); }
            printf("%d\n", child);
            continue;
        }
        if (!strcmp(word, "free")) code = CALL(cuMemFree_v2, at[a]);
        if (!strcmp(word, "write")) code = write_block(a, b);
        if (!strcmp(word, "zero")) code = zeros(a, 0);
        if (!strcmp(word, "zeros")) code = zeros(a, 1);
        if (!strcmp(word, "same")) { seeds[a] = seeds[b]; code = 0; }  // Block A has what block B had.
        if (!strcmp(word, "check")) code = check_block(a);
        if (!strcmp(word, "capture")) code = capture(a);
        if (!strcmp(word, "end-capture")) code = end_capture();
        if (!strcmp(word, "replay")) code = replay(a);
        if (!strcmp(word, "drop-graph")) code = CALL(cuGraphExecDestroy, exec) | CALL(cuGraphDestroy, graph);
        if (!strcmp(word, "drop-stream")) code = CALL(cuStreamDestroy_v2, stream);
        if (!strcmp(word, "alloc-async")) { bytes[a] = b; code = CALL(cuMemAllocAsync, &at[a], (size_t)b, (uint64_t)0); }
        if (!strcmp(word, "free-async")) code = CALL(cuMemFreeAsync, at[a], (uint64_t)0);
        if (!strcmp(word, "sync-memops")) {
            int on = b;
            code = CALL(cuPointerSetAttribute, &on, 6, at[a]);
        }
        if (!strcmp(word, "load")) {
            line[strcspn(line, "\n")] = 0;
            touched = -4;
            code = dlopen(line + 5, RTLD_NOW | RTLD_LOCAL) ? touched : -5;
        }
        if (!strcmp(word, "load-deep")) {
            line[strcspn(line, "\n")] = 0;
            code = dlopen(line + 10, RTLD_LAZY | RTLD_LOCAL | 8) ? 0 : -5;  // RTLD_DEEPBIND
        }
        if (!strcmp(word, "segments")) code = segments(a, b);
        if (!strcmp(word, "launches")) code = launches(a, b);
        if (!strcmp(word, "fault")) {
            line[strcspn(line, "\n")] = 0;
            code = ((int (*)(const char *))dlsym(library, "lowtide_double_configure"))(line + 6);
        }
        if (!strcmp(word, "clear-faults")) ((void (*)(void))dlsym(library, "lowtide_double_clear_faults"))(), code = 0;
        if (!strcmp(word, "reset-calls")) ((void (*)(void))dlsym(library, "lowtide_double_reset_calls"))(), code = 0;
        if (!strcmp(word, "calls") || !strcmp(word, "struck") || !strcmp(word, "live")) {
            char name[64];
            snprintf(name, sizeof name, "lowtide_double_%s", word);
            printf("%s\n", ((const char *(*)(void))dlsym(library, name))());
            continue;
        }
        if (!strcmp(word, "begin")) code = CALL(cuMemsetD8Async, at[a], 0x5a, bytes[a], (uint64_t)0);
        if (!strcmp(word, "end")) code = CALL(cuCtxSynchronize);
        if (!strcmp(word, "poll")) code = CALL(cuStreamQuery, (uint64_t)0);
        if (!strcmp(word, "storm")) code = storm(a, b);
        if (!strcmp(word, "release")) code = CALL(cuDevicePrimaryCtxRelease_v2, 0);
        if (!strcmp(word, "info")) {
            size_t free_bytes = 0, total = 0;
            code = CALL(cuMemGetInfo_v2, &free_bytes, &total);
            if (code == 0) { printf("%zu\n", total - free_bytes); continue; }
        }
        if (!strcmp(word, "told")) {
            size_t free_bytes = 0, total = 0;
            code = CALL(cuMemGetInfo_v2, &free_bytes, &total);
            if (code == 0) { printf("%zu %zu\n", free_bytes, total); continue; }
        }
        if (!strcmp(word, "total")) {
            size_t total = 0;
            code = CALL(cuDeviceTotalMem_v2, &total, 0);
            if (code == 0) { printf("%zu\n", total); continue; }
        }
        if (!strcmp(word, "range")) {
            uint64_t base = 0;
            size_t size = 0;
            code = CALL(cuMemGetAddressRange_v2, &base, &size, at[a] + b);
            if (code == 0) { printf("%d\n", base == at[a] && size == bytes[a]); continue; }
        }
        if (!strcmp(word, "attribute")) {
            uint64_t value = 0;
            code = CALL(cuPointerGetAttribute, &value, (int)b, at[a] + 5);
            if (code == 0) { printf("%lu\n", (unsigned long)value); continue; }
        }
        if (!strcmp(word, "attributes")) {
            int kinds[2] = {12, (int)b};
            uint64_t values[2] = {0, 0};
            void *places[2] = {&values[0], &values[1]};
            code = CALL(cuPointerGetAttributes, 2u, kinds, places, at[a] + 5);
            if (code == 0) { printf("%lu\n", (unsigned long)values[0]); continue; }
        }
        if (!strcmp(word, "unknown")) {
            uint64_t sum = 0;
            code = CALL(cuLowtideDoubleOnly, 1ul, 2ul, 3ul, 4ul, 5ul, 6ul, 7ul, 8ul, &sum);
            if (code == 0) { printf("%lu\n", (unsigned long)sum); continue; }
        }
        if (!strcmp(word, "fork")) {
            fflush(stdout);
            // With a number: past the C library, which then runs no handlers.
            pid_t child = a ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
            if (child == 0) {
                CALL(cuMemsetD8Async, at[0], 0, (size_t)1, (uint64_t)0);
                _exit(CALL(cuMemGetInfo_v2, NULL, NULL) == -1 ? 1 : 0);
            }
            int status = 0;
            waitpid(child, &status, 0);
            code = status;
        }
        if (!strcmp(word, "probe")) {
            printf("%d\n", dlsym(RTLD_DEFAULT, "cuInit") != NULL);
            continue;
        }
        if (code == 0) printf("ok\n"); else printf("error %d\n", code);
    }
    return 0;
}
#endif

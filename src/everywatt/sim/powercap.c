/* A preload library through which the `energy_uj` files of a simulated machine hold the exact counter at every read.
 *
 * The files exist as a plain tree in the machine's folder. Opening one (by whatever path: it is known by its inode) notes
 * the descriptor, and read() and pread() on it answer from the truth. Paths below /sys/class/powercap lead to the tree,
 * so that programs with a fixed path see the simulated packages, and never the real ones.
 */
#define _GNU_SOURCE
#include "truth.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/syscall.h>

#define API __attribute__((visibility("default")))
#define ZONES 128
#define FILES 256

enum { FINE, UNREADABLE, GARBAGE, NEGATIVE, EMPTY, VANISHED };
static const char *const fault_names[] = {"none", "unreadable", "garbage", "negative", "empty", "vanish"};

typedef struct {
    dev_t dev;
    ino_t ino;
    sim_schedule schedule;
    double quantum_j, wrap_j, start_j, reset_at, fault_at, constant_w;
    int fault, terms;
    sim_device *device[SIM_TERMS];
    double factor[SIM_TERMS];
} zone;

typedef struct {
    int fd; /* its number plus one; 0 is free */
    zone *zone;
    char text[40];
} open_file;

static zone zones[ZONES];
static int zone_count, ready;
static open_file files[FILES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define NEXT(name) \
    static __typeof__(name) *next_; \
    if (!next_) next_ = (__typeof__(name) *)(uintptr_t)dlsym(RTLD_NEXT, #name)

/* ---- the description: `zone FILE PERIOD PHASE QUANTUM WRAP START RESET FAULT FAULT_AT CONSTANT DEVICE:FACTOR,…` ---- */

static int add_terms(zone *z, char *text) {
    char *rest = NULL;
    for (char *term = strtok_r(text, ",", &rest); term; term = strtok_r(NULL, ",", &rest)) {
        char *colon = strrchr(term, ':');
        if (!colon || z->terms == SIM_TERMS) return -1;
        *colon = 0;
        z->device[z->terms] = sim_device_named(term);
        z->factor[z->terms] = strtod(colon + 1, NULL);
        if (!z->device[z->terms]) return -1;
        z->terms++;
    }
    return 0;
}

static int describe(const char *key, const char *value) {
    char file[512], fault[32], terms[2048], path[SIM_PATH];
    struct stat st;
    if (strcmp(key, "zone") != 0) return 0;
    if (zone_count == ZONES) return -1;
    zone *z = &zones[zone_count];
    if (sscanf(value, "%511s %lf %lf %lf %lf %lf %lf %31s %lf %lf %2047s", file, &z->schedule.period,
               &z->schedule.phase, &z->quantum_j, &z->wrap_j, &z->start_j, &z->reset_at, fault, &z->fault_at,
               &z->constant_w, terms) != 11)
        return -1;
    for (int i = 0; i <= VANISHED; i++)
        if (strcmp(fault, fault_names[i]) == 0) z->fault = i;
    snprintf(path, sizeof path, "%.500s/%.500s", sim_folder, file);
    if (syscall(SYS_newfstatat, AT_FDCWD, path, &st, 0) != 0) return 0;
    z->dev = st.st_dev;
    z->ino = st.st_ino;
    zone_count++;
    return add_terms(z, terms);
}

__attribute__((constructor)) static void begin(void) { ready = sim_load(describe) == 0; }

/* ---- the counter ---- */

static double zone_joules(const zone *z, double t) {
    double joules = z->constant_w * t;
    for (int i = 0; i < z->terms; i++) joules += z->factor[i] * sim_joules(z->device[i], t);
    return joules;
}

static int fault_now(const zone *z) { return sim_now() >= z->fault_at ? z->fault : FINE; }

static void counter_text(const zone *z, char *into, size_t size) {
    double t = sim_published(&z->schedule, sim_now());
    double joules = z->start_j + zone_joules(z, t);
    if (z->reset_at > 0 && t >= z->reset_at) joules = zone_joules(z, t) - zone_joules(z, z->reset_at);
    if (joules < 0) joules = 0;
    if (z->quantum_j > 0) joules = floor(joules / z->quantum_j) * z->quantum_j;
    joules = fmod(joules, z->wrap_j);
    switch (fault_now(z)) {
    case GARBAGE: snprintf(into, size, "not a number\n"); break;
    case NEGATIVE: snprintf(into, size, "-5\n"); break;
    case EMPTY: into[0] = 0; break;
    default: snprintf(into, size, "%llu\n", (unsigned long long)(joules * 1e6));
    }
}

/* ---- descriptors ---- */

static zone *zone_of(int fd) {
    struct stat st;
    if (syscall(SYS_fstat, fd, &st) != 0) return NULL;
    for (int i = 0; i < zone_count; i++)
        if (zones[i].ino == st.st_ino && zones[i].dev == st.st_dev) return &zones[i];
    return NULL;
}

static void forget(int fd) {
    for (int i = 0; i < FILES; i++)
        if (files[i].fd == fd + 1) files[i].fd = 0;
}

static int is_counter(const char *path) {
    size_t length = strlen(path);
    return ready && length >= 9 && strcmp(path + length - 9, "energy_uj") == 0;
}

/* Notes a freshly opened counter. Returns the descriptor, or -1 where the fault says so. */
static int note(int fd, const char *path) {
    zone *z = fd >= 0 && is_counter(path) ? zone_of(fd) : NULL;
    if (!z) return fd;
    int fault = fault_now(z);
    if (fault == UNREADABLE || fault == VANISHED) {
        syscall(SYS_close, fd);
        errno = fault == UNREADABLE ? EACCES : ENOENT;
        return -1;
    }
    pthread_mutex_lock(&lock);
    forget(fd);
    for (int i = 0; i < FILES; i++)
        if (!files[i].fd) {
            files[i] = (open_file){fd + 1, z, ""};
            break;
        }
    pthread_mutex_unlock(&lock);
    return fd;
}

static open_file *known(int fd) {
    if (!zone_count) return NULL;
    for (int i = 0; i < FILES; i++)
        if (files[i].fd == fd + 1) {
            if (zone_of(fd) == files[i].zone) return &files[i];
            files[i].fd = 0; /* closed behind our back, and the number is used again */
            return NULL;
        }
    return NULL;
}

static ssize_t answer(open_file *f, void *into, size_t size, off_t at) {
    if (fault_now(f->zone) == VANISHED) {
        errno = ENODEV;
        return -1;
    }
    pthread_mutex_lock(&lock);
    if (at == 0) counter_text(f->zone, f->text, sizeof f->text);
    size_t length = strlen(f->text), n = (size_t)at < length ? length - (size_t)at : 0;
    if (n > size) n = size;
    memcpy(into, f->text + (n ? at : 0), n);
    pthread_mutex_unlock(&lock);
    return (ssize_t)n;
}

API ssize_t read(int fd, void *into, size_t size) {
    open_file *f = known(fd);
    if (!f) {
        NEXT(read);
        return next_(fd, into, size);
    }
    off_t at = lseek(fd, 0, SEEK_CUR);
    ssize_t n = answer(f, into, size, at);
    if (n > 0) lseek(fd, at + n, SEEK_SET);
    return n;
}
API ssize_t pread64(int fd, void *into, size_t size, off64_t at) {
    open_file *f = known(fd);
    if (f) return answer(f, into, size, at);
    NEXT(pread64);
    return next_(fd, into, size, at);
}
API ssize_t pread(int fd, void *into, size_t size, off_t at) { return pread64(fd, into, size, at); }
API ssize_t __read_chk(int fd, void *into, size_t size, size_t room) {
    if (size > room) abort();
    return read(fd, into, size);
}
API ssize_t __pread_chk(int fd, void *into, size_t size, off_t at, size_t room) {
    if (size > room) abort();
    return pread64(fd, into, size, at);
}
API ssize_t __pread64_chk(int fd, void *into, size_t size, off64_t at, size_t room) {
    if (size > room) abort();
    return pread64(fd, into, size, at);
}
/* Copying inside the kernel would take the plain file (cat does so where its output is a file): refuse, and they read. */
API ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t size, unsigned flags) {
    if (known(in)) {
        errno = EXDEV;
        return -1;
    }
    return syscall(SYS_copy_file_range, in, from, out, to, size, flags);
}
API ssize_t sendfile(int out, int in, off_t *from, size_t size) {
    if (known(in)) {
        errno = EINVAL;
        return -1;
    }
    return syscall(SYS_sendfile, out, in, from, size);
}
API ssize_t sendfile64(int out, int in, off64_t *from, size_t size) { return sendfile(out, in, from, size); }
API int close(int fd) {
    if (zone_count) {
        pthread_mutex_lock(&lock);
        forget(fd);
        pthread_mutex_unlock(&lock);
    }
    NEXT(close);
    return next_(fd);
}

/* ---- paths ---- */

static const char *lead(const char *path, char *into) {
    static const char *const roots[] = {"/sys/class/powercap", "/sys/devices/virtual/powercap"};
    if (ready && path && strcmp(path, "/proc/stat") == 0) { /* where power follows CPU time: that of this machine */
        struct stat st;
        if ((size_t)snprintf(into, SIM_PATH, "%s/proc-stat", sim_folder) >= SIM_PATH) return path;
        return syscall(SYS_newfstatat, AT_FDCWD, into, &st, 0) == 0 ? into : path;
    }
    if (!ready || !path || strncmp(path, "/sys/", 5) != 0) return path;
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(roots[i]);
        if (strncmp(path, roots[i], n) != 0 || (path[n] && path[n] != '/')) continue;
        if ((size_t)snprintf(into, SIM_PATH, "%s%s", sim_folder, path) < SIM_PATH) return into;
    }
    return path;
}
#define LEAD(path) \
    char lead_[SIM_PATH]; \
    path = lead(path, lead_)
#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list rest_; \
        va_start(rest_, flags); \
        mode = (mode_t)va_arg(rest_, int); \
        va_end(rest_); \
    }

static int open_at(int folder, const char *path, int flags, mode_t mode) {
    LEAD(path);
    return note((int)syscall(SYS_openat, folder, path, flags, mode), path);
}
API int open(const char *path, int flags, ...) {
    MODE(flags)
    return open_at(AT_FDCWD, path, flags, mode);
}
API int open64(const char *path, int flags, ...) {
    MODE(flags)
    return open_at(AT_FDCWD, path, flags | O_LARGEFILE, mode);
}
API int openat(int folder, const char *path, int flags, ...) {
    MODE(flags)
    return open_at(folder, path, flags, mode);
}
API int openat64(int folder, const char *path, int flags, ...) {
    MODE(flags)
    return open_at(folder, path, flags | O_LARGEFILE, mode);
}
API int __open_2(const char *path, int flags) { return open_at(AT_FDCWD, path, flags, 0); }
API int __open64_2(const char *path, int flags) { return open_at(AT_FDCWD, path, flags | O_LARGEFILE, 0); }
API int __openat_2(int folder, const char *path, int flags) { return open_at(folder, path, flags, 0); }
API int __openat64_2(int folder, const char *path, int flags) { return open_at(folder, path, flags | O_LARGEFILE, 0); }

/* A stream reads behind our back, so it gets what the counter says now. */
static FILE *stream(const char *path, const char *how) {
    zone *z = NULL;
    int fd = open_at(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) return NULL;
    if (!(z = zone_of(fd))) {
        close(fd);
        errno = ENOENT;
        return NULL;
    }
    char text[40];
    counter_text(z, text, sizeof text);
    close(fd);
    fd = memfd_create("energy_uj", MFD_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0) return NULL;
    lseek(fd, 0, SEEK_SET);
    return fdopen(fd, how);
}
static int counted(const char *path, const char *how) {
    struct stat st;
    if (!is_counter(path) || how[0] != 'r' || syscall(SYS_newfstatat, AT_FDCWD, path, &st, 0) != 0) return 0;
    for (int i = 0; i < zone_count; i++)
        if (zones[i].ino == st.st_ino && zones[i].dev == st.st_dev) return 1;
    return 0;
}
API FILE *fopen64(const char *path, const char *how) {
    LEAD(path);
    if (counted(path, how)) return stream(path, how);
    NEXT(fopen64);
    return next_(path, how);
}
API FILE *fopen(const char *path, const char *how) { return fopen64(path, how); }

API DIR *opendir(const char *path) {
    LEAD(path);
    NEXT(opendir);
    return next_(path);
}
API int access(const char *path, int mode) {
    LEAD(path);
    if (mode & R_OK && counted(path, "r")) {
        int fd = open_at(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
        if (fd < 0) return -1;
        close(fd);
    }
    NEXT(access);
    return next_(path, mode);
}
API int faccessat(int folder, const char *path, int mode, int flags) {
    LEAD(path);
    NEXT(faccessat);
    return next_(folder, path, mode, flags);
}
API ssize_t readlink(const char *restrict path, char *restrict into, size_t size) {
    LEAD(path);
    NEXT(readlink);
    return next_(path, into, size);
}
API char *realpath(const char *restrict path, char *restrict into) {
    LEAD(path);
    NEXT(realpath);
    return next_(path, into);
}

static int stat_at(int folder, const char *path, void *into, int flags) {
    LEAD(path);
    return (int)syscall(SYS_newfstatat, folder, path, into, flags);
}
API int stat(const char *restrict path, struct stat *restrict into) { return stat_at(AT_FDCWD, path, into, 0); }
API int stat64(const char *restrict path, struct stat64 *restrict into) { return stat_at(AT_FDCWD, path, into, 0); }
API int lstat(const char *restrict path, struct stat *restrict into) {
    return stat_at(AT_FDCWD, path, into, AT_SYMLINK_NOFOLLOW);
}
API int lstat64(const char *restrict path, struct stat64 *restrict into) {
    return stat_at(AT_FDCWD, path, into, AT_SYMLINK_NOFOLLOW);
}
API int fstatat(int folder, const char *restrict path, struct stat *restrict into, int flags) {
    return stat_at(folder, path, into, flags);
}
API int fstatat64(int folder, const char *restrict path, struct stat64 *restrict into, int flags) {
    return stat_at(folder, path, into, flags);
}
API int __xstat(int version, const char *path, struct stat *into) {
    (void)version;
    return stat_at(AT_FDCWD, path, into, 0);
}
API int __xstat64(int version, const char *path, struct stat64 *into) {
    (void)version;
    return stat_at(AT_FDCWD, path, into, 0);
}
API int __lxstat(int version, const char *path, struct stat *into) {
    (void)version;
    return stat_at(AT_FDCWD, path, into, AT_SYMLINK_NOFOLLOW);
}
API int __lxstat64(int version, const char *path, struct stat64 *into) {
    (void)version;
    return stat_at(AT_FDCWD, path, into, AT_SYMLINK_NOFOLLOW);
}
API int statx(int folder, const char *restrict path, int flags, unsigned mask, struct statx *restrict into) {
    LEAD(path);
    return (int)syscall(SYS_statx, folder, path, flags, mask, into);
}

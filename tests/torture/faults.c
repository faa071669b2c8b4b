/* Faults below every file call of a process, preloaded: the n-th change of the disk below a folder is a kill or an
   error. It sees what Python, Rust and C++ ask of the C library alike; reading is never disturbed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OFF, COUNT, KILL_BEFORE, KILL_AFTER, FAIL_ONCE, FAIL_FROM, SHORT_WRITE };

static atomic_long seen;
static long place;
static int mode, failure;
static char below[4096];

void faults_arm(const char *folder, int how, long number, int error) {
    strncpy(below, folder, sizeof below - 1);
    mode = how, place = number, failure = error, seen = 0;
}

long faults_seen(void) { return seen; }

/* A relative path is below: commands are run in the folder. */
static int is_below(const char *path) { return path && (path[0] != '/' || !strncmp(path, below, strlen(below))); }

static int fd_is_below(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return path[0] == '/' && is_below(path);
}

static int at_is_below(int fd, const char *path) {
    return path && (path[0] == '/' || fd == AT_FDCWD ? is_below(path) : fd_is_below(fd));
}

static void die(void) { kill(getpid(), SIGKILL), pause(); }

/* Whether the call that is about to be made fails; a full disk still lets files be removed and renamed. */
static int fails(int takes_room) {
    if (mode == OFF) return 0;
    long number = atomic_fetch_add(&seen, 1) + 1;
    if (mode == KILL_BEFORE && number == place) die();
    int now = mode == FAIL_ONCE ? number == place : mode == FAIL_FROM && number >= place;
    if (!now || (failure == ENOSPC && !takes_room)) return 0;
    errno = failure;
    return 1;
}

static void done(void) {
    int kept = errno;
    if (mode == KILL_AFTER && seen == place) die();
    errno = kept;
}

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define CALL(name, condition, takes_room, ...) \
    REAL(name); \
    if (mode == OFF || !(condition)) return real(__VA_ARGS__); \
    if (fails(takes_room)) return -1; \
    __typeof__(real(__VA_ARGS__)) result = real(__VA_ARGS__); \
    done(); \
    return result

#define OPENED(flags) ((flags) & (O_CREAT | O_WRONLY | O_RDWR | O_TRUNC))
#define MODE mode_t bits = 0; if (flags & (O_CREAT | O_TMPFILE)) { va_list all; va_start(all, flags); bits = va_arg(all, mode_t); va_end(all); }

int open(const char *path, int flags, ...) { MODE CALL(open, OPENED(flags) && is_below(path), 1, path, flags, bits); }
int open64(const char *path, int flags, ...) { MODE CALL(open64, OPENED(flags) && is_below(path), 1, path, flags, bits); }
int openat(int at, const char *path, int flags, ...) { MODE CALL(openat, OPENED(flags) && at_is_below(at, path), 1, at, path, flags, bits); }
int openat64(int at, const char *path, int flags, ...) { MODE CALL(openat64, OPENED(flags) && at_is_below(at, path), 1, at, path, flags, bits); }
int mkdir(const char *path, mode_t bits) { CALL(mkdir, is_below(path), 1, path, bits); }
int mkdirat(int at, const char *path, mode_t bits) { CALL(mkdirat, at_is_below(at, path), 1, at, path, bits); }
int rename(const char *from, const char *to) { CALL(rename, is_below(to), 0, from, to); }
int renameat(int a, const char *from, int b, const char *to) { CALL(renameat, at_is_below(b, to), 0, a, from, b, to); }
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) { CALL(renameat2, at_is_below(b, to), 0, a, from, b, to, flags); }
int link(const char *from, const char *to) { CALL(link, is_below(to), 1, from, to); }
int linkat(int a, const char *from, int b, const char *to, int flags) { CALL(linkat, at_is_below(b, to), 1, a, from, b, to, flags); }
int unlink(const char *path) { CALL(unlink, is_below(path), 0, path); }
int unlinkat(int at, const char *path, int flags) { CALL(unlinkat, at_is_below(at, path), 0, at, path, flags); }
int rmdir(const char *path) { CALL(rmdir, is_below(path), 0, path); }
int chmod(const char *path, mode_t bits) { CALL(chmod, is_below(path), 0, path, bits); }
int ftruncate(int fd, off_t size) { CALL(ftruncate, fd_is_below(fd), 0, fd, size); }
int ftruncate64(int fd, off64_t size) { CALL(ftruncate64, fd_is_below(fd), 0, fd, size); }
int fsync(int fd) { CALL(fsync, fd_is_below(fd), 1, fd); }
int fdatasync(int fd) { CALL(fdatasync, fd_is_below(fd), 1, fd); }

int posix_fallocate(int fd, off_t from, off_t size) {
    REAL(posix_fallocate);
    if (mode != OFF && fd_is_below(fd) && fails(1)) return failure;
    return real(fd, from, size);
}

/* A write that is killed or cut short leaves half of its bytes. */
static size_t allowed(size_t size) {
    long next = seen + 1;
    int half = next == place && (mode == KILL_AFTER || mode == SHORT_WRITE);
    return half && size > 1 ? size / 2 : size;
}

ssize_t write(int fd, const void *bytes, size_t size) {
    if (mode != OFF && fd_is_below(fd)) size = allowed(size);
    CALL(write, fd_is_below(fd), 1, fd, bytes, size);
}
ssize_t pwrite(int fd, const void *bytes, size_t size, off_t at) {
    if (mode != OFF && fd_is_below(fd)) size = allowed(size);
    CALL(pwrite, fd_is_below(fd), 1, fd, bytes, size, at);
}
ssize_t pwrite64(int fd, const void *bytes, size_t size, off64_t at) {
    if (mode != OFF && fd_is_below(fd)) size = allowed(size);
    CALL(pwrite64, fd_is_below(fd), 1, fd, bytes, size, at);
}
ssize_t writev(int fd, const struct iovec *parts, int count) { CALL(writev, fd_is_below(fd), 1, fd, parts, count); }

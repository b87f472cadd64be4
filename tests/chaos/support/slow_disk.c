/* A disk that takes its time: before every write and every sync, as long as a shared file says, in microseconds.
 *
 *     cc -shared -fPIC -o slow_disk.so slow_disk.c -ldl
 *     SLOW_DISK=delays LD_PRELOAD=./slow_disk.so program
 *
 * The file has two 32-bit numbers in the machine's own order: for a sync, and for a write. They may change at any time.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

static volatile uint32_t *delays;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("SLOW_DISK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, 2 * sizeof(uint32_t), PROT_READ, MAP_SHARED, file, 0);
    if (file >= 0)
        close(file);
    if (mapped != MAP_FAILED)
        delays = mapped;
}

static void wait_for(int which)
{
    if (delays && delays[which])
        usleep(delays[which]);
}

#define SLOW(which, result, name, parameters, arguments)                 \
    result name parameters                                               \
    {                                                                    \
        static result(*real) parameters;                                 \
        if (!real)                                                       \
            real = (result(*) parameters)dlsym(RTLD_NEXT, #name);        \
        wait_for(which);                                                 \
        return real arguments;                                           \
    }

SLOW(0, int, fsync, (int file), (file))
SLOW(0, int, fdatasync, (int file), (file))
SLOW(0, int, sync_file_range, (int file, off64_t at, off64_t size, unsigned flags), (file, at, size, flags))
SLOW(0, int, msync, (void *at, size_t size, int flags), (at, size, flags))
SLOW(1, ssize_t, pwrite, (int file, const void *from, size_t size, off_t at), (file, from, size, at))
SLOW(1, ssize_t, pwrite64, (int file, const void *from, size_t size, off64_t at), (file, from, size, at))
SLOW(1, ssize_t, pwritev, (int file, const struct iovec *from, int count, off_t at), (file, from, count, at))
SLOW(1, ssize_t, pwritev64, (int file, const struct iovec *from, int count, off64_t at), (file, from, count, at))

/* Wall clock that is set off for the processes that preload this library, as chaos_surroundings.py makes it.

   The file named by CHAOS_CLOCK holds eight bytes: by how many seconds, which another process may change at any
   time. The monotonic clock stays as it is. libfaketime can do the same, but up to 0.9.10 Python's time.sleep fails
   under it, unless it fakes the monotonic clock, too.

   Who waits until a time of the wall clock says so to the kernel, whose clock is right: the time is set back. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t none = 0;
static const volatile int64_t *off_s = &none;

/* A time of the wall clock is beyond this one, a time of the monotonic clock, since the start, is not. */
static const time_t wall_s = 1000000000;

__attribute__((constructor)) static void begin(void)
{
    const char *name = getenv("CHAOS_CLOCK");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *seen = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (seen != MAP_FAILED)
        off_s = seen;
    close(file);
}

#define REAL(name) ((__typeof__(&name)) next(#name))

static void *next(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

static long call(long number, long a, long b, long c, long d, long e, long f)
{
    typedef long (*syscall_t)(long, ...);
    static syscall_t real;
    if (!real)
        real = (syscall_t) next("syscall");
    return real(number, a, b, c, d, e, f);
}

static int is_wall(clockid_t clock)
{
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
}

static const struct timespec *until(const struct timespec *at, struct timespec *moved)
{
    if (!at || at->tv_sec < wall_s)
        return at;
    *moved = *at;
    moved->tv_sec -= *off_s;
    return moved;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static __typeof__(&clock_gettime) real;
    if (!real)
        real = REAL(clock_gettime);
    int failed = real(clock, now);
    if (!failed && is_wall(clock))
        now->tv_sec += *off_s;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    static __typeof__(&gettimeofday) real;
    if (!real)
        real = REAL(gettimeofday);
    int failed = real(now, zone);
    if (!failed)
        now->tv_sec += *off_s;
    return failed;
}

time_t time(time_t *at)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *at, struct timespec *left)
{
    static __typeof__(&clock_nanosleep) real;
    struct timespec moved;
    if (!real)
        real = REAL(clock_nanosleep);
    return real(clock, flags, flags & TIMER_ABSTIME && is_wall(clock) ? until(at, &moved) : at, left);
}

#define WAITS(name, arguments, ...)                 \
    int name arguments                              \
    {                                               \
        static __typeof__(&name) real;              \
        struct timespec moved;                      \
        if (!real)                                  \
            real = REAL(name);                      \
        return real(__VA_ARGS__);                   \
    }

WAITS(pthread_cond_timedwait,
      (pthread_cond_t *restrict what, pthread_mutex_t *restrict held, const struct timespec *restrict at),
      what, held, until(at, &moved))
WAITS(pthread_cond_clockwait,
      (pthread_cond_t *restrict what, pthread_mutex_t *restrict held, clockid_t clock,
       const struct timespec *restrict at),
      what, held, clock, until(at, &moved))
WAITS(pthread_mutex_timedlock, (pthread_mutex_t *restrict what, const struct timespec *restrict at),
      what, until(at, &moved))
WAITS(sem_timedwait, (sem_t *restrict what, const struct timespec *restrict at), what, until(at, &moved))
WAITS(sem_clockwait, (sem_t *restrict what, clockid_t clock, const struct timespec *restrict at),
      what, clock, until(at, &moved))

long syscall(long number, ...)
{
    long given[6];
    struct timespec moved;
    va_list all;
    va_start(all, number);
    for (int place = 0; place < 6; place++)
        given[place] = va_arg(all, long);
    va_end(all);
    if (number == SYS_futex && given[1] & FUTEX_CLOCK_REALTIME)
        given[3] = (long) until((const struct timespec *) given[3], &moved);
    return call(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}

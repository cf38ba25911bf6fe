/* Preloaded into a process, it makes the wall clock wrong: by OTHER_TIME_OFFSET_S seconds, and, when
   OTHER_TIME_JUMPS is set, only in every second second. Monotonic clocks stay as they are. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset_s(void) {
    const char *said = getenv("OTHER_TIME_OFFSET_S");
    struct timespec now;
    if (!said) return 0;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return getenv("OTHER_TIME_JUMPS") && now.tv_sec % 2 ? 0 : atol(said);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += offset_s();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *kept) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (kept) *kept = precise.tv_sec;
    return precise.tv_sec;
}

/* Stands in for a CUDA runtime: a wait that spins until a flag is set, as cudaStreamSynchronize does on a GPU whose
   stream has not got to its end, and a loop that computes for a share of the time. Built by the lab, used by it only. */
#include <sched.h>
#include <time.h>

int cudaStreamSynchronize(volatile int *done) {
    while (!*done)
        sched_yield(); /* a whole core, as cudaDeviceScheduleYield: but who has something to do goes first */
    return 0;
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

void compute_for_ever(double share) {
    const double period = 0.1;
    for (;;) {
        double until = now() + share * period;
        while (now() < until)
            ;
        struct timespec rest = {0, (long)(1e9 * (1 - share) * period)};
        nanosleep(&rest, 0);
    }
}

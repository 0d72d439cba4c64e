/* Whether a thread may send without a call of the library, as one of an inline job may. */
#ifndef LEASES_H
#define LEASES_H

#include <sys/syscall.h>
#include <unistd.h>

static int threads_need_no_calls(void)
{
#if defined(__LP64__) && (defined(__x86_64__) || defined(__aarch64__)) && defined(SYS_membarrier)
    return syscall(SYS_membarrier, 0, 0, 0) > 0;
#else
    return 0;
#endif
}

#endif

/* Checks of a test program, which says `static void fail(const char *what, uint64_t got, uint64_t wanted)`. */
#ifndef CHECK_H
#define CHECK_H

#define OK(call) EQUAL((uint64_t)(call), TRIHOP_OK)
#define EQUAL(got, wanted)                                                                                               \
    do {                                                                                                                 \
        uint64_t got_ = (got), wanted_ = (wanted);                                                                       \
        if (got_ != wanted_)                                                                                             \
            fail(#got, got_, wanted_);                                                                                   \
    } while (0)

#endif

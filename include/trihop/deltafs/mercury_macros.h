/*
 * mercury_macros.h: clients of the DeltaFS shuffle include it beside mercury.h.
 *
 * mercury's macros describe and register remote procedure calls. trihop has none, so neither are the macros here: what
 * uses them fails when compiled.
 */
#ifndef TRIHOP_DELTAFS_MERCURY_MACROS_H
#define TRIHOP_DELTAFS_MERCURY_MACROS_H

#include <mercury.h>

#if defined(TRIHOP_DELTAFS_BESIDE_MERCURY) && !defined(MERCURY_MACROS_H) && __has_include_next(<mercury_macros.h>)
#include_next <mercury_macros.h>
#endif

#endif /* TRIHOP_DELTAFS_MERCURY_MACROS_H */

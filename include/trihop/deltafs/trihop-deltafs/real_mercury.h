/*
 * real_mercury.h: whether a real mercury's headers are in use beside these.
 *
 * A program that calls a real mercury for purposes of its own, and the shuffle beside it, tells so
 * in one of these ways:
 *   - a real mercury's folder comes before trihop/deltafs in the search path: <mercury.h> is the
 *     real one everywhere;
 *   - it includes a real mercury's mercury.h before any header of trihop/deltafs;
 *   - it defines TRIHOP_DELTAFS_MERCURY as a real mercury.h to include, with its quotes or angle
 *     brackets.
 * Then these headers take the real types, and declare nothing of mercury themselves. Real classes
 * and contexts may be given to mercury_progressor_init(), which keeps them to hand them back, and
 * does nothing else with them.
 */
#ifndef TRIHOP_DELTAFS_REAL_MERCURY_H
#define TRIHOP_DELTAFS_REAL_MERCURY_H

#if defined(TRIHOP_DELTAFS_MERCURY)
#include TRIHOP_DELTAFS_MERCURY
#endif

#if defined(MERCURY_H) || defined(MERCURY_TYPES_H) || defined(MERCURY_CORE_TYPES_H)
#define TRIHOP_DELTAFS_BESIDE_MERCURY 1
#endif

#endif /* TRIHOP_DELTAFS_REAL_MERCURY_H */

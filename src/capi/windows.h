
// What follows are the calls of single records and items, for streams and conveyors in a form that
// needs no call for most of them: macros that stand in the place of the functions of the same
// names. `(trihop_stream_push)(stream, target, item)` is the function; programs that define
// TRIHOP_NO_INLINE before they include this file have functions alone, as they need who declare or
// replace them, or call them in C functions that are `inline` and not `static`. A program uses none
// of the structs itself.
#ifndef TRIHOP_NO_INLINE

#include <string.h>

#ifdef __cplusplus
#define TRIHOP_IN_HEADER inline
#define TRIHOP_AS(type, value) static_cast<type>(value)
#else
#define TRIHOP_IN_HEADER static inline
#define TRIHOP_AS(type, value) ((type)(value))
#endif

// Without it, compilers warn of copies that are never made.
#ifdef __GNUC__
#define TRIHOP_MAY_HOLD(item, bytes) (__builtin_object_size(item, 0) >= (bytes))
#else
#define TRIHOP_MAY_HOLD(item, bytes) 1
#endif

// A call with an item of this size gets a copy of it: the program's own, of which no call has the
// address, can so stay in a register.
#ifdef __GNUC__
#define TRIHOP_CALL_WITH_COPY(push, handle, target, item, bytes)                                   \
  if (__builtin_object_size(item, 0) == (bytes) && __builtin_object_size(item, 2) == (bytes)) {    \
    uint64_t copy[((bytes) + 7) / 8];                                                              \
    memcpy(copy, item, bytes);                                                                     \
    return push(handle, target, copy);                                                             \
  }
#else
#define TRIHOP_CALL_WITH_COPY(push, handle, target, item, bytes)
#endif
#define TRIHOP_CALL_PUSH(push, handle, target, item)                                               \
  TRIHOP_CALL_WITH_COPY(push, handle, target, item, 4)                                             \
  TRIHOP_CALL_WITH_COPY(push, handle, target, item, 8)                                             \
  TRIHOP_CALL_WITH_COPY(push, handle, target, item, 16)                                            \
  return push(handle, target, item);

// Records or items for one rank that leave together.
typedef struct trihop_open_run_t {
  uint32_t target;
  uint32_t start;
  uint16_t used;
  uint16_t room;
  uint16_t count;
  uint16_t place;
} trihop_open_run_t;

// The runs of a stream, while it takes records or items without a call. Of a threaded job one
// thread has them, until another one recalls them.
typedef struct trihop_push_window_t {
  uint32_t left;
  uint32_t mask;
  trihop_open_run_t *runs;
  unsigned char *memory;
  size_t item_bytes; // of records SIZE_MAX / 2
  size_t holder; // 0: of an inline job, nobody else is there
  uint32_t in_use[64];
  size_t users[64];
  size_t longest; // record
  size_t bytes;   // of records that it took
} trihop_push_window_t;

// Items that have come and can be pulled without a call.
typedef struct trihop_pull_window_t {
  const unsigned char *next;
  const unsigned char *end;
  uint32_t item_bytes;
  uint32_t source;
} trihop_pull_window_t;

// How a stream begins.
typedef struct trihop_stream_windows_t {
  trihop_push_window_t *push;
} trihop_stream_windows_t;

// How a conveyor begins.
typedef struct trihop_conveyor_windows_t {
  trihop_push_window_t *push;
  trihop_pull_window_t pull;
} trihop_conveyor_windows_t;

// Others look how many are left, without using the window.
#ifdef __GNUC__
#define TRIHOP_SET_LEFT(window, value) __atomic_store_n(&(window)->left, value, __ATOMIC_RELAXED)
#else
#define TRIHOP_SET_LEFT(window, value) ((window)->left = (value))
#endif

// So many bytes more of the run for a rank, or NULL, from a window that nobody else uses meanwhile.
TRIHOP_IN_HEADER unsigned char *trihop_take_alone(trihop_push_window_t *window, uint32_t target,
                                                  size_t bytes) {
  trihop_open_run_t *run;
  unsigned char *place;

  if (window->left == 0)
    return NULL;
  run = &window->runs[target & window->mask];
  if (run->target != target || run->used + bytes > run->room || run->count == UINT16_MAX)
    return NULL;
  place = window->memory + run->start + run->used;
  run->used = TRIHOP_AS(uint16_t, run->used + bytes);
  run->count++;
  TRIHOP_SET_LEFT(window, window->left - 1);
  return place;
}

// Whether the window, which nobody else uses meanwhile, took the item.
TRIHOP_IN_HEADER int trihop_push_alone(trihop_push_window_t *window, uint32_t target,
                                       const void *item) {
  unsigned char *place = trihop_take_alone(window, target, window->item_bytes);

  if (place == NULL)
    return 0;
  if (window->item_bytes == 8 && TRIHOP_MAY_HOLD(item, 8))
    memcpy(place, item, 8);
  else if (window->item_bytes == 4 && TRIHOP_MAY_HOLD(item, 4))
    memcpy(place, item, 4);
  else if (window->item_bytes == 16 && TRIHOP_MAY_HOLD(item, 16))
    memcpy(place, item, 16);
  else
    memcpy(place, item, window->item_bytes);
  return 1;
}

// As for an item, for a record: its kind, its length, itself, and zeros up to a multiple of 8.
TRIHOP_IN_HEADER int trihop_send_alone(trihop_push_window_t *window, uint32_t target, uint32_t kind,
                                       const void *bytes, size_t length) {
  size_t padded = (length + 7) & ~TRIHOP_AS(size_t, 7);
  uint32_t header[2];
  unsigned char *place;

  if (window->item_bytes != SIZE_MAX / 2 || length > window->longest)
    return 0;
  place = trihop_take_alone(window, target, sizeof header + padded);
  if (place == NULL)
    return 0;
  header[0] = kind;
  header[1] = TRIHOP_AS(uint32_t, length);
  memcpy(place, header, sizeof header);
  place += sizeof header;
  if (length < padded)
    memset(place + padded - 8, 0, 8);
  if (length > 0)
    memcpy(place, bytes, length);
  window->bytes += length;
  return 1;
}

// The number by which the library knows a thread. Where a program cannot find it out as fast,
// threads push by calls.
#if defined(__GNUC__) && defined(__LP64__) && (defined(__x86_64__) || defined(__aarch64__))
TRIHOP_IN_HEADER size_t trihop_this_thread(void) {
  size_t thread;

#ifdef __x86_64__
  __asm__ volatile("{movq %%fs:0, %0|mov %0, qword ptr fs:0}" : "=r"(thread));
#else
  __asm__ volatile("mrs %0, tpidr_el0" : "=r"(thread));
#endif
  return thread;
}

// Begins to use the window, if this thread has it; what says so until it is set to 0, or NULL.
TRIHOP_IN_HEADER uint32_t *trihop_enter_window(trihop_push_window_t *window) {
  size_t holder = __atomic_load_n(&window->holder, __ATOMIC_RELAXED);
  uint32_t *in_use;

  // The lowest bits say which word this thread has.
  if (holder >> 8 != trihop_this_thread())
    return NULL;
  in_use = &window->in_use[holder % 64];
  __atomic_store_n(in_use, 1, __ATOMIC_RELAXED);
  // An order for the compiler: a thread that recalls the window has a fence on all processors.
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
  if (__atomic_load_n(&window->holder, __ATOMIC_RELAXED) == holder)
    return in_use;
  __atomic_store_n(in_use, 0, __ATOMIC_RELEASE);
  return NULL;
}

// Whether this thread has the window, and it took the item.
TRIHOP_IN_HEADER int trihop_push_by_lease(trihop_push_window_t *window, uint32_t target,
                                          const void *item) {
  uint32_t *in_use = trihop_enter_window(window);
  int taken;

  if (in_use == NULL)
    return 0;
  taken = trihop_push_alone(window, target, item);
  __atomic_store_n(in_use, 0, __ATOMIC_RELEASE);
  return taken;
}

// As for an item, for a record.
TRIHOP_IN_HEADER int trihop_send_by_lease(trihop_push_window_t *window, uint32_t target,
                                          uint32_t kind, const void *bytes, size_t length) {
  uint32_t *in_use = trihop_enter_window(window);
  int taken;

  if (in_use == NULL)
    return 0;
  taken = trihop_send_alone(window, target, kind, bytes, length);
  __atomic_store_n(in_use, 0, __ATOMIC_RELEASE);
  return taken;
}
#else
#define trihop_push_by_lease(window, target, item) 0
#define trihop_send_by_lease(window, target, kind, bytes, length) 0
#endif

// Whether the window took the item.
TRIHOP_IN_HEADER int trihop_push_here(trihop_push_window_t *window, uint32_t target,
                                      const void *item) {
  if (window == NULL || item == NULL)
    return 0;
  if (window->holder == 0)
    return trihop_push_alone(window, target, item);
  return trihop_push_by_lease(window, target, item);
}

// Whether the window took the record. Its header is little-endian, wherever that is.
TRIHOP_IN_HEADER int trihop_send_here(trihop_push_window_t *window, uint32_t target, uint32_t kind,
                                      const void *bytes, size_t length) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  if (window == NULL || (bytes == NULL && length > 0))
    return 0;
  if (window->holder == 0)
    return trihop_send_alone(window, target, kind, bytes, length);
  return trihop_send_by_lease(window, target, kind, bytes, length);
#else
  (void)window, (void)target, (void)kind, (void)bytes, (void)length;
  return 0;
#endif
}

TRIHOP_IN_HEADER int trihop_stream_send_here(const trihop_stream_t *stream, uint32_t target,
                                             uint32_t kind, const void *bytes, size_t length) {
  const void *begin = stream;

  return begin != NULL && trihop_send_here(TRIHOP_AS(const trihop_stream_windows_t *, begin)->push,
                                           target, kind, bytes, length);
}

TRIHOP_IN_HEADER trihop_status_t trihop_stream_send_inline(const trihop_stream_t *stream,
                                                           uint32_t target, uint32_t kind,
                                                           const void *bytes, size_t length) {
  if (trihop_stream_send_here(stream, target, kind, bytes, length))
    return TRIHOP_OK;
  return trihop_stream_send(stream, target, kind, bytes, length);
}

TRIHOP_IN_HEADER trihop_status_t trihop_stream_try_send_inline(const trihop_stream_t *stream,
                                                               uint32_t target, uint32_t kind,
                                                               const void *bytes, size_t length) {
  if (trihop_stream_send_here(stream, target, kind, bytes, length))
    return TRIHOP_OK;
  return trihop_stream_try_send(stream, target, kind, bytes, length);
}

TRIHOP_IN_HEADER int trihop_stream_push_here(const trihop_stream_t *stream, uint32_t target,
                                             const void *item) {
  const void *begin = stream;

  return begin != NULL &&
         trihop_push_here(TRIHOP_AS(const trihop_stream_windows_t *, begin)->push, target, item);
}

TRIHOP_IN_HEADER trihop_status_t trihop_stream_push_inline(const trihop_stream_t *stream,
                                                           uint32_t target, const void *item) {
  if (trihop_stream_push_here(stream, target, item))
    return TRIHOP_OK;
  TRIHOP_CALL_PUSH(trihop_stream_push, stream, target, item)
}

TRIHOP_IN_HEADER trihop_status_t trihop_stream_try_push_inline(const trihop_stream_t *stream,
                                                               uint32_t target, const void *item) {
  if (trihop_stream_push_here(stream, target, item))
    return TRIHOP_OK;
  TRIHOP_CALL_PUSH(trihop_stream_try_push, stream, target, item)
}

TRIHOP_IN_HEADER trihop_status_t trihop_conveyor_push_inline(trihop_conveyor_t *conveyor,
                                                             uint32_t target, const void *item) {
  const void *begin = conveyor;

  if (begin != NULL &&
      trihop_push_here(TRIHOP_AS(const trihop_conveyor_windows_t *, begin)->push, target, item))
    return TRIHOP_OK;
  TRIHOP_CALL_PUSH(trihop_conveyor_push, conveyor, target, item)
}

TRIHOP_IN_HEADER trihop_status_t trihop_conveyor_pull_inline(trihop_conveyor_t *conveyor,
                                                             const void **item, uint32_t *source) {
  void *begin = conveyor;
  trihop_pull_window_t *window;
  const unsigned char *next;

  if (begin == NULL || item == NULL) {
    (void)trihop_conveyor_pull(conveyor, NULL, NULL); // for its text
    return TRIHOP_ERR_INVALID_ARGUMENT;
  }
  window = &TRIHOP_AS(trihop_conveyor_windows_t *, begin)->pull;
  next = window->next;
  if (next == window->end) {
    // The call gets places of its own: those of the caller, which it may so keep in registers, are
    // written by this code alone.
    const void *called_item = NULL;
    uint32_t called_source = 0;
    trihop_status_t status = trihop_conveyor_pull(conveyor, &called_item, &called_source);

    if (status != TRIHOP_OK)
      return status;
    next = TRIHOP_AS(const unsigned char *, called_item);
  }
  // Behind a call it is there already. Written on both ways, a compiler knows it in a loop of pulls,
  // and does not load it back, which takes as long as an item does.
  window->next = next + window->item_bytes;
  *item = next;
  if (source != NULL)
    *source = window->source;
  return TRIHOP_OK;
}

// With any arguments, so that those may have commas in braces.
#define trihop_stream_send(...) trihop_stream_send_inline(__VA_ARGS__)
#define trihop_stream_try_send(...) trihop_stream_try_send_inline(__VA_ARGS__)
#define trihop_stream_push(...) trihop_stream_push_inline(__VA_ARGS__)
#define trihop_stream_try_push(...) trihop_stream_try_push_inline(__VA_ARGS__)
#define trihop_conveyor_push(...) trihop_conveyor_push_inline(__VA_ARGS__)
#define trihop_conveyor_pull(...) trihop_conveyor_pull_inline(__VA_ARGS__)

#endif

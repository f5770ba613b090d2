/*
 * Cache lines and the compiler's picture of what is rare, for the callers' path. Leaf.
 */
#ifndef LIB_CACHE_H
#define LIB_CACHE_H

#define CACHE_LINE 64

/* A function off the path of a plain submit: apart, so that the path saves no registers for it. */
#define CACHE_RARE __attribute__((noinline, cold))

/* Fetches a line for writing that another CPU may have: a store to it would wait, and the next
 * locked instruction for the store. */
static inline void cache_fetch(const void *line)
{
#ifdef __x86_64__
    /* The builtin's is a fetch for reading, unless the compiler is told of a newer CPU; on one that
     * does not know it, it is a hint without effect. */
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)line));
#else
    __builtin_prefetch(line, 1);
#endif
}

#endif

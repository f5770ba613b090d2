/*
 * Concurrency Kit's primitives as compiler builtins, force-included in ThreadSanitizer builds.
 *
 * CK's own are inline assembly, which the sanitizer cannot see: it would report a race on
 * everything that they order. Defining CK_F_PR before <ck_pr.h> makes it leave loads, stores,
 * compare and swap, fetch and add, and fetch and store to this file; the other operations (add,
 * inc, or, bts, ...) it derives from these itself.
 *
 * Loads acquire, stores release, the others do both, because the sanitizer knows no fences: a fence
 * left out between two of them is not found this way. ck_ec32_inc and ck_ec's single-producer
 * paths stay assembly, as do ck_ec's slow paths, which are compiled into the library of CK: use
 * ck_ec32_add, and read again what was waited for. There is no double-width compare and swap.
 */
#ifndef BUILD_AUX_CK_PR_TSAN_H
#define BUILD_AUX_CK_PR_TSAN_H

#define CK_USE_CC_BUILTINS 1
#define CK_F_PR
#define CK_PR_DISABLE_DOUBLE

#include <stdbool.h>
#include <stdint.h>

#include <ck_cc.h>

/* M: what the target points to in the signature, T: the value's type. */
#define CK_PR_TSAN(S, M, T)                                                                        \
    CK_CC_INLINE static T ck_pr_md_load_##S(const M *target)                                       \
    {                                                                                              \
        return __atomic_load_n((T const *)target, __ATOMIC_ACQUIRE);                               \
    }                                                                                              \
    CK_CC_INLINE static void ck_pr_md_store_##S(M *target, T value)                                \
    {                                                                                              \
        __atomic_store_n((T *)target, value, __ATOMIC_RELEASE);                                    \
    }                                                                                              \
    CK_CC_INLINE static T ck_pr_fas_##S(M *target, T value)                                        \
    {                                                                                              \
        return __atomic_exchange_n((T *)target, value, __ATOMIC_ACQ_REL);                          \
    }                                                                                              \
    CK_CC_INLINE static bool ck_pr_cas_##S(M *target, T compare, T set)                            \
    {                                                                                              \
        return __atomic_compare_exchange_n((T *)target, &compare, set, false, __ATOMIC_ACQ_REL,    \
                                           __ATOMIC_ACQUIRE);                                      \
    }                                                                                              \
    CK_CC_INLINE static bool ck_pr_cas_##S##_value(M *target, T compare, T set, M *found)          \
    {                                                                                              \
        bool swapped = __atomic_compare_exchange_n((T *)target, &compare, set, false,              \
                                                   __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);            \
                                                                                                   \
        *(T *)found = compare;                                                                     \
        return swapped;                                                                            \
    }

/* D: what is added, an integer for pointers too. */
#define CK_PR_TSAN_FAA(S, M, D)                                                                    \
    CK_CC_INLINE static D ck_pr_faa_##S(M *target, D delta)                                        \
    {                                                                                              \
        return __atomic_fetch_add((D *)target, delta, __ATOMIC_ACQ_REL);                           \
    }

#define CK_PR_TSAN_INTEGER(S, T) CK_PR_TSAN(S, T, T) CK_PR_TSAN_FAA(S, T, T)

CK_PR_TSAN(ptr, void, void *)
CK_PR_TSAN_FAA(ptr, void, uintptr_t)
CK_PR_TSAN_INTEGER(char, char)
CK_PR_TSAN_INTEGER(int, int)
CK_PR_TSAN_INTEGER(uint, unsigned int)
CK_PR_TSAN_INTEGER(8, uint8_t)
CK_PR_TSAN_INTEGER(16, uint16_t)
CK_PR_TSAN_INTEGER(32, uint32_t)
CK_PR_TSAN_INTEGER(64, uint64_t)

#undef CK_PR_TSAN_INTEGER
#undef CK_PR_TSAN_FAA
#undef CK_PR_TSAN

#define CK_F_PR_LOAD_PTR
#define CK_F_PR_LOAD_CHAR
#define CK_F_PR_LOAD_INT
#define CK_F_PR_LOAD_UINT
#define CK_F_PR_LOAD_8
#define CK_F_PR_LOAD_16
#define CK_F_PR_LOAD_32
#define CK_F_PR_LOAD_64
#define CK_F_PR_STORE_PTR
#define CK_F_PR_STORE_CHAR
#define CK_F_PR_STORE_INT
#define CK_F_PR_STORE_UINT
#define CK_F_PR_STORE_8
#define CK_F_PR_STORE_16
#define CK_F_PR_STORE_32
#define CK_F_PR_STORE_64
#define CK_F_PR_FAS_PTR
#define CK_F_PR_FAS_CHAR
#define CK_F_PR_FAS_INT
#define CK_F_PR_FAS_UINT
#define CK_F_PR_FAS_8
#define CK_F_PR_FAS_16
#define CK_F_PR_FAS_32
#define CK_F_PR_FAS_64
#define CK_F_PR_FAA_PTR
#define CK_F_PR_FAA_CHAR
#define CK_F_PR_FAA_INT
#define CK_F_PR_FAA_UINT
#define CK_F_PR_FAA_8
#define CK_F_PR_FAA_16
#define CK_F_PR_FAA_32
#define CK_F_PR_FAA_64
#define CK_F_PR_CAS_PTR
#define CK_F_PR_CAS_PTR_VALUE
#define CK_F_PR_CAS_CHAR
#define CK_F_PR_CAS_CHAR_VALUE
#define CK_F_PR_CAS_INT
#define CK_F_PR_CAS_INT_VALUE
#define CK_F_PR_CAS_UINT
#define CK_F_PR_CAS_UINT_VALUE
#define CK_F_PR_CAS_8
#define CK_F_PR_CAS_8_VALUE
#define CK_F_PR_CAS_16
#define CK_F_PR_CAS_16_VALUE
#define CK_F_PR_CAS_32
#define CK_F_PR_CAS_32_VALUE
#define CK_F_PR_CAS_64
#define CK_F_PR_CAS_64_VALUE

CK_CC_INLINE static void ck_pr_stall(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* The machine still needs the fences that the sanitizer does not follow. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtsan"
#endif
#define CK_PR_TSAN_FENCE(T)                                                                        \
    CK_CC_INLINE static void ck_pr_fence_strict_##T(void)                                          \
    {                                                                                              \
        __atomic_thread_fence(__ATOMIC_SEQ_CST);                                                   \
    }

CK_PR_TSAN_FENCE(atomic)
CK_PR_TSAN_FENCE(atomic_load)
CK_PR_TSAN_FENCE(atomic_store)
CK_PR_TSAN_FENCE(store_atomic)
CK_PR_TSAN_FENCE(load_atomic)
CK_PR_TSAN_FENCE(load)
CK_PR_TSAN_FENCE(load_store)
CK_PR_TSAN_FENCE(store)
CK_PR_TSAN_FENCE(store_load)
CK_PR_TSAN_FENCE(memory)
CK_PR_TSAN_FENCE(acquire)
CK_PR_TSAN_FENCE(release)
CK_PR_TSAN_FENCE(acqrel)
CK_PR_TSAN_FENCE(lock)
CK_PR_TSAN_FENCE(unlock)

#undef CK_PR_TSAN_FENCE
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#endif

/* For the tests of bad input: one test a refused call. */
#ifndef TESTS_BADINPUT_H
#define TESTS_BADINPUT_H

#include <string.h>

#include "async.h"

#define TICKET_UNSET UINT64_C(0x7777)

/*
 * Expects `call` to be refused with `wanted`, and a sentence that holds `field` and `value` and
 * says NULL for what is NULL, and with no effect: `ticket`, in the caller's scope, stays unset,
 * nothing is submitted to `pipe`.
 */
#define REFUSED(wanted, call, field, value)                                                        \
    do {                                                                                           \
        uint64_t before_ = stats_of(pipe, -1).submitted;                                           \
        enum fp8pipe_status got_ = (call);                                                         \
        const char *said_ = fp8pipe_last_error();                                                  \
        bool named_ = strstr(said_, field) && strstr(said_, value) && !strstr(said_, "(nil)");     \
                                                                                                   \
        if (!ok(got_ == (wanted) && named_ && ticket == TICKET_UNSET &&                            \
                    stats_of(pipe, -1).submitted == before_,                                       \
                "%s is refused for its %s %s", #call, field, value))                               \
            diag("%s: \"%s\", %s", fp8pipe_status_name(got_), said_,                               \
                 ticket == TICKET_UNSET ? "no ticket" : "a ticket was set");                       \
        ticket = TICKET_UNSET;                                                                     \
    } while (0)

/*
 * The same for an op: `good` is a descriptor that would be accepted; `change` spoils `op`, a copy.
 * `submit` is the call, which reads `op`.
 */
#define SPOILED(good, change, submit, field, value)                                                \
    do {                                                                                           \
        op = good;                                                                                 \
        change;                                                                                    \
        REFUSED(FP8PIPE_EINVAL, submit, field, value);                                             \
    } while (0)

/* Every rule of a matrix, on the field `f` of an op; the sentence names it as `name`. SUBMIT is
 * the call. */
#define MATRIX_RULES(good, f, name)                                                                \
    do {                                                                                           \
        SPOILED(good, op.f.rows = -1, SUBMIT, name ".rows", "-1");                                 \
        SPOILED(good, op.f.cols = -3, SUBMIT, "cols", "-3");                                       \
        SPOILED(good, op.f.stride = op.f.cols - 1, SUBMIT, name ".stride", "");                    \
        SPOILED(good, op.f.dtype = (enum fp8pipe_dtype)7, SUBMIT, name ".dtype", "7");             \
        SPOILED(good, op.f.data = NULL, SUBMIT, name ".data", "NULL");                             \
        SPOILED(good, op.f.data = (char *)op.f.data + 1, SUBMIT, name ".data", "");                \
        SPOILED(good, (op.f.rows = INT64_MAX / 2, op.f.stride = INT64_MAX / 2), SUBMIT, name, ""); \
        SPOILED(good, (op.f.rows = INT64_C(1) << 33, op.f.stride = INT64_C(1) << 31), SUBMIT,      \
                name, "");                                                                         \
        SPOILED(good, op.f.reserved = 1, SUBMIT, name ".reserved", "1");                           \
    } while (0)

#define IS_ACCEPTED(call)                                                                          \
    do {                                                                                           \
        is_int(call, FP8PIPE_OK, "%s is accepted as it stands", #call);                            \
        ticket = TICKET_UNSET;                                                                     \
    } while (0)

/* The rules of a struct's size, on an op. `last`: its last field, which an older header lacks. */
#define SIZES(type, good, submit, last)                                                            \
    do {                                                                                           \
        struct {                                                                                   \
            struct type known;                                                                     \
            uint64_t tail[2];                                                                      \
        } longer_;                                                                                 \
                                                                                                   \
        SPOILED(good, op.size = 0, submit, "size", "0");                                           \
        SPOILED(good, op.size = 4, submit, "size", "4");                                           \
        memset(&longer_, 0, sizeof(longer_));                                                      \
        longer_.known = good;                                                                      \
        longer_.known.size = sizeof(longer_);                                                      \
        longer_.tail[1] = 1;                                                                       \
        op_pointer = &longer_.known;                                                               \
        REFUSED(FP8PIPE_EINVAL, submit, "size", "");                                               \
        longer_.tail[1] = 0;                                                                       \
        IS_ACCEPTED(submit);                                                                       \
        longer_.known.size = offsetof(struct type, last);                                          \
        memset((char *)&longer_.known + longer_.known.size, 0xa5,                                  \
               sizeof(longer_) - longer_.known.size);                                              \
        IS_ACCEPTED(submit);                                                                       \
        op_pointer = &op;                                                                          \
    } while (0)

#endif

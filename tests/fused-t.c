/*
 * Guards fp8pipe_tensor_call and fp8pipe_quantize_host: what they fill is what a
 * fp8pipe_tensor_quantize of the same values fills, bit for bit; their functions are run as
 * promised; arguments are copied. Of the host backend; functors on CUDA have a test of their own.
 */
#include <stdlib.h>
#include <string.h>

#include "badinput.h"
#include "fp8pipe_fused.h"

#define BOTH (FP8PIPE_ROWWISE | FP8PIPE_TRANSPOSED)

static struct fp8pipe *pipe;
static struct test_rng rng = {11};

/* ---- The function under test -------------------------------------------------------------- */

struct source {
    int64_t cols;
    float factor;
    int kind;      /* of what the values are */
    int *calls;    /* of fn */
    int64_t *rows; /* of values, in order; checked by the values function itself */
    bool *bad_order;
    enum fp8pipe_status *inside; /* NULL, or what a submit from inside values gives */
};

static float value_of(const struct source *source, int64_t row, int64_t col)
{
    uint32_t bits = (uint32_t)(row * 2654435761u + col * 40503u + 12345u) * 2246822519u;

    switch (source->kind) {
    case 0:
        return ((float)(int32_t)bits * 0x1p-31f) * source->factor;
    case 1: /* all bits: inf and NaN too */
        return test_float_from_bits(bits ^ bits << 13);
    default:
        return bits % 2 ? 0.0f : -0.0f;
    }
}

static void values(void *arg, int64_t row, float *out)
{
    const struct source *source = arg;

    *source->bad_order |= row != (*source->rows)++;
    for (int64_t col = 0; col < source->cols; col++)
        out[col] = value_of(source, row, col);
    if (source->inside != NULL)
        *source->inside = try_host_call(pipe, ON(0), work_nothing, NULL, NULL);
}

static enum fp8pipe_status gives_values(struct fp8pipe_stream *stream,
                                        const struct fp8pipe_quantize_target *target, void *arg)
{
    const struct source *source = arg;

    ++*source->calls;
    return fp8pipe_quantize_host(stream, target, values, arg, sizeof(*source));
}

/* ---- Against fp8pipe_tensor_quantize ------------------------------------------------------ */

struct side {
    struct fp8pipe_scaling *scaling;
    struct fp8pipe_tensor *tensor;
    struct test_matrix sums;
};

static struct side side_make(int64_t cols)
{
    struct fp8pipe_scaling_options options = FP8PIPE_SCALING_OPTIONS_INIT;
    struct side side;

    options.slots = 3;
    options.count_extremes = 1;
    must(fp8pipe_scaling_create(pipe, &options, &side.scaling));
    must(fp8pipe_tensor_create(pipe, &side.tensor));
    side.sums = test_matrix_make(pipe, FP8PIPE_FP32, 1, cols, 0, 0);
    return side;
}

static void side_free(struct side *side)
{
    test_drain(pipe);
    must(fp8pipe_tensor_destroy(side->tensor));
    must(fp8pipe_scaling_destroy(side->scaling));
    test_matrix_free(&side->sums);
}

static bool same_bytes(const void *a, const void *b, size_t bytes)
{
    return (a == NULL) == (b == NULL) && (a == NULL || memcmp(a, b, bytes) == 0);
}

static bool same_fp8(const struct test_fp8 *a, const struct test_fp8 *b)
{
    size_t bytes = (size_t)(a->rows * a->cols);

    return a->rows == b->rows && a->cols == b->cols && a->format == b->format &&
           test_float_bits(a->scale_inv) == test_float_bits(b->scale_inv) &&
           same_bytes(a->rowwise, b->rowwise, bytes) &&
           same_bytes(a->transposed, b->transposed, bytes);
}

static bool same_slot(struct side *a, struct side *b, uint32_t slot)
{
    struct fp8pipe_slot_state x = test_slot(a->scaling, slot), y = test_slot(b->scaling, slot);

    return x.has_scale == y.has_scale && test_float_bits(x.scale) == test_float_bits(y.scale) &&
           test_float_bits(x.amax) == test_float_bits(y.amax) && x.saturated == y.saturated &&
           x.flushed == y.flushed;
}

static bool same_sums(const struct side *a, const struct side *b, int64_t cols)
{
    float *x = test_calloc((size_t)cols, 4), *y = test_calloc((size_t)cols, 4);
    bool same;

    test_matrix_get_raw(&a->sums, x);
    test_matrix_get_raw(&b->sums, y);
    same = true;
    for (int64_t i = 0; i < cols; i++)
        same &= x[i] == y[i] || (x[i] != x[i] && y[i] != y[i]);
    free(x);
    free(y);
    return same;
}

/* One tensor_call and the same values quantized, several steps of both. */
static bool agrees(int64_t rows, int64_t cols, uint32_t copies, uint32_t flags, int kind,
                   uint32_t slot)
{
    struct test_matrix x = test_matrix_make(pipe, FP8PIPE_FP32, rows, cols, 0, 0);
    float *dense = test_calloc((size_t)(rows * cols), 4);
    struct side call = side_make(cols), plain = side_make(cols);
    bool same = true;

    for (int step = 0; step < 4 && same; step++) {
        struct fp8pipe_tensor_call_op op = FP8PIPE_TENSOR_CALL_OP_INIT;
        struct fp8pipe_quantize_op quantize = FP8PIPE_QUANTIZE_OP_INIT;
        int calls = 0;
        int64_t next = 0;
        bool bad_order = false;
        struct source source = {cols, (float)(1 << (3 * step)), kind, &calls, &next, &bad_order,
                                NULL};
        struct test_fp8 a, b;
        fp8pipe_ticket ticket;

        for (int64_t i = 0; i < rows * cols; i++)
            dense[i] = value_of(&source, i / cols, i % cols);
        test_matrix_set_raw(&x, dense);
        op.submit = quantize.submit = test_submit(0, flags, 0, 0);
        op.rows = rows;
        op.cols = cols;
        op.fn = gives_values;
        op.arg = &source;
        op.arg_bytes = sizeof(source);
        op.out = (struct fp8pipe_quantized){
            call.tensor, call.scaling, slot, copies, test_vector(&call.sums), step % 2, 0};
        quantize.x = x.view;
        quantize.scaling = plain.scaling;
        quantize.slot = slot;
        quantize.copies = copies;
        quantize.column_sums = test_vector(&plain.sums);
        quantize.column_sums_accumulate = step % 2;
        must(fp8pipe_tensor_call(pipe, &op, &ticket));
        memset(&source, 0x55, sizeof(source)); /* it was copied */
        must(fp8pipe_tensor_quantize(plain.tensor, &quantize, NULL));
        test_wait(pipe, ticket);
        a = test_tensor_read(pipe, call.tensor);
        b = test_tensor_read(pipe, plain.tensor);
        same = same_fp8(&a, &b) && same_slot(&call, &plain, slot) &&
               same_sums(&call, &plain, cols) && test_matrix_damage(&call.sums) == 0 &&
               calls == (rows > 0 && cols > 0) && next == (calls ? rows : 0) && !bad_order;
        if (!same)
            diag("%lld x %lld, step %d: calls %d, rows %lld%s", (long long)rows, (long long)cols,
                 step, calls, (long long)next, bad_order ? ", out of order" : "");
        test_fp8_free(&a);
        test_fp8_free(&b);
        if (step != 1) {
            test_update(call.scaling);
            test_update(plain.scaling);
        }
    }
    side_free(&call);
    side_free(&plain);
    test_matrix_free(&x);
    free(dense);
    return same;
}

static void against_quantize(enum fp8pipe_mode how)
{
    const char *mode = mode_name(how);
    static const int64_t edges[] = {0, 1, 63, 64, 65, 255, 256, 257, 300};
    bool same = true;

    for (int i = 0; i < 9; i++)
        same &= agrees(edges[i], edges[(i + 4) % 9], BOTH, 0, i % 3, i % 3);
    ok(same, "%s: rows and columns at the edges of tiles, no rows, no columns", mode);
    same = true;
    for (int i = 0; i < 30; i++)
        same &= agrees(test_random_range(&rng, 1, 200), test_random_range(&rng, 1, 600),
                       (uint32_t)test_random_range(&rng, 1, 3), i % 4 == 0 ? FP8PIPE_NO_AMAX : 0,
                       (int)test_random_range(&rng, 0, 2), (uint32_t)test_random_range(&rng, 0, 2));
    ok(same, "%s: random shapes, copies, values; with and without NO_AMAX", mode);
}

/* ---- What functions may do ---------------------------------------------------------------- */

struct probe {
    enum fp8pipe_status first, second, other, in_fn, result;
    struct fp8pipe_stream *stream;
    const struct fp8pipe_quantize_target *target;
    bool gives;
    struct source source;
};

static enum fp8pipe_status probing(struct fp8pipe_stream *stream,
                                   const struct fp8pipe_quantize_target *target, void *arg)
{
    struct probe *probe = arg;
    struct fp8pipe_quantize_target copy = *target;
    struct source *source = &probe->source;

    ++*source->calls;
    probe->stream = stream;
    probe->target = target;
    probe->other = fp8pipe_quantize_host(stream, &copy, values, source, 0);
    probe->in_fn = try_host_call(pipe, ON(0), work_nothing, NULL, NULL);
    if (probe->gives) {
        probe->first = fp8pipe_quantize_host(stream, target, values, source, 0);
        probe->second = fp8pipe_quantize_host(stream, target, values, source, 0);
    }
    return probe->result;
}

static void functions(enum fp8pipe_mode how)
{
    const char *mode = mode_name(how);
    struct side side = side_make(8);
    struct fp8pipe_tensor_call_op op = FP8PIPE_TENSOR_CALL_OP_INIT;
    struct fp8pipe_read_op read = FP8PIPE_READ_OP_INIT;
    struct fp8pipe_tensor_info info = FP8PIPE_TENSOR_INFO_INIT;
    enum fp8pipe_status inside = FP8PIPE_OK, status;
    int calls = 0;
    int64_t next = 0;
    bool bad_order = false;
    struct probe probe = {.gives = true,
                          .result = FP8PIPE_OK,
                          .source = {8, 1.0f, 0, &calls, &next, &bad_order, &inside}};
    fp8pipe_ticket failed, ticket;

    op.submit = ON(0);
    op.rows = 100;
    op.cols = 8;
    op.fn = probing;
    op.arg = &probe;
    op.out.tensor = side.tensor;
    op.out.scaling = side.scaling;
    must(fp8pipe_tensor_call(pipe, &op, &ticket));
    test_wait(pipe, ticket);
    ok(probe.first == FP8PIPE_OK && next == 100 && !bad_order, "%s: values of every row, once",
       mode);
    is_int(probe.second, FP8PIPE_EINVAL, "%s: a target's values are given once", mode);
    is_int(probe.other, FP8PIPE_EINVAL, "%s: and of no other target", mode);
    is_int(probe.in_fn, FP8PIPE_EDEADLK, "%s: fn may not submit", mode);
    is_int(inside, FP8PIPE_EDEADLK, "%s: nor may values", mode);
    is_int(fp8pipe_quantize_host(probe.stream, probe.target, values, &probe.source, 0),
           FP8PIPE_EINVAL, "%s: nobody gives values outside of fn", mode);

    /* No tensor: the values are asked for all the same. */
    next = 0;
    op.out.tensor = NULL;
    op.out.slot = 999; /* not read */
    must(fp8pipe_tensor_call(pipe, &op, &ticket));
    test_wait(pipe, ticket);
    ok(next == 100, "%s: values without a tensor", mode);
    op.out.tensor = side.tensor;
    op.out.slot = 0;

    /* Failure: of fn, of one that gives nothing, of no status: its readers are cancelled. */
    probe.result = FP8PIPE_ENOMEM;
    must(fp8pipe_tensor_call(pipe, &op, &failed));
    status = fp8pipe_tensor_read(side.tensor, &read, &ticket);
    ok(status == FP8PIPE_OK || status == FP8PIPE_ETOOOLD, "%s: a reader is accepted", mode);
    is_int(fp8pipe_wait(pipe, failed, FP8PIPE_DONE, TEST_TIMEOUT_NS), FP8PIPE_ENOMEM,
           "%s: fn's status is the op's", mode);
    is_int(fp8pipe_wait(pipe, ticket, FP8PIPE_DONE, TEST_TIMEOUT_NS), FP8PIPE_ENOMEM,
           "%s: and cancels who reads the tensor", mode);
    calls = 0;
    op.submit = AFTER(1, failed);
    must(fp8pipe_tensor_call(pipe, &op, &ticket));
    is_int(fp8pipe_wait(pipe, ticket, FP8PIPE_DONE, TEST_TIMEOUT_NS), FP8PIPE_ENOMEM,
           "%s: one after a failed op is cancelled", mode);
    is_int(calls, 0, "%s: and its function is not run", mode);
    op.submit = test_submit(0, FP8PIPE_RESUME, 0, 0);
    probe.gives = false;
    probe.result = FP8PIPE_OK;
    must(fp8pipe_tensor_call(pipe, &op, &ticket));
    is_int(fp8pipe_wait(pipe, ticket, FP8PIPE_DONE, TEST_TIMEOUT_NS), FP8PIPE_ECALL,
           "%s: a function that gives no values fails the op", mode);
    probe.result = (enum fp8pipe_status)12345;
    must(fp8pipe_tensor_call(pipe, &op, &ticket));
    is_int(fp8pipe_wait(pipe, ticket, FP8PIPE_DONE, TEST_TIMEOUT_NS), FP8PIPE_ECALL,
           "%s: so does what is no status", mode);
    must(fp8pipe_tensor_info_get(side.tensor, &info));
    ok(info.filled && info.rows == 100 && info.cols == 8, "%s: the tensor has the last's shape",
       mode);
    side_free(&side);
}

/* ---- Arguments in the ring ---------------------------------------------------------------- */

struct seen {
    size_t bytes;
    bool aligned;
    bool same;
};
static struct seen seen;

static bool pattern_holds(const unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != (unsigned char)(i * 7 + 3))
            return false;
    return true;
}

static enum fp8pipe_status looks(struct fp8pipe_stream *stream, void *arg)
{
    (void)stream;
    seen.aligned = (uintptr_t)arg % 8 == 0;
    seen.same = pattern_holds(arg, seen.bytes);
    return FP8PIPE_OK;
}

static enum fp8pipe_status looks_too(struct fp8pipe_stream *stream,
                                     const struct fp8pipe_quantize_target *target, void *arg)
{
    (void)looks(stream, arg);
    return fp8pipe_quantize_host(stream, target, NULL, NULL, 0) == FP8PIPE_EINVAL ? FP8PIPE_ECALL
                                                                                  : FP8PIPE_OK;
}

static void arguments(enum fp8pipe_mode how)
{
    static const size_t sizes[] = {1, 7, 8, 9, 64, 255, FP8PIPE_ARG_MAX};
    const char *mode = mode_name(how);
    bool right = true;

    for (int i = 0; i < 7; i++)
        for (int after = 0; after <= (how == FP8PIPE_ASYNC ? FP8PIPE_AFTER_MAX : 0); after += 4) {
            struct fp8pipe_call_op call = FP8PIPE_CALL_OP_INIT;
            struct fp8pipe_tensor_call_op tensor_call = FP8PIPE_TENSOR_CALL_OP_INIT;
            struct gate gate = GATE_INIT;
            unsigned char bytes[FP8PIPE_ARG_MAX];
            fp8pipe_ticket tickets[FP8PIPE_AFTER_MAX] = {0}, first, second;

            /* Tickets that are not done lengthen the op. */
            for (int k = 0; k < after; k++)
                tickets[k] = submit_host_call(pipe, ON(1), gate_work, &gate);
            for (size_t k = 0; k < sizeof(bytes); k++)
                bytes[k] = (unsigned char)(k * 7 + 3);
            call.submit = ON(0);
            call.submit.after_count = (uint32_t)after;
            memcpy(call.submit.after, tickets, sizeof(tickets));
            call.fn = looks;
            call.arg = bytes;
            call.arg_bytes = sizes[i];
            seen = (struct seen){sizes[i], false, false};
            must(fp8pipe_call(pipe, &call, &first));
            memset(bytes, 0, sizeof(bytes));
            gate_open(&gate);
            test_wait(pipe, first);
            right &= seen.aligned && seen.same;

            for (size_t k = 0; k < sizeof(bytes); k++)
                bytes[k] = (unsigned char)(k * 7 + 3);
            tensor_call.submit = test_submit(0, FP8PIPE_RESUME, 0, 0);
            tensor_call.rows = tensor_call.cols = 1;
            tensor_call.fn = looks_too;
            tensor_call.arg = bytes;
            tensor_call.arg_bytes = sizes[i];
            seen = (struct seen){sizes[i], false, false};
            must(fp8pipe_tensor_call(pipe, &tensor_call, &second));
            memset(bytes, 0, sizeof(bytes));
            right &= fp8pipe_wait(pipe, second, FP8PIPE_DONE, TEST_TIMEOUT_NS) == FP8PIPE_ECALL &&
                     seen.aligned && seen.same;
            call.submit = test_submit(0, FP8PIPE_RESUME, 0, 0);
            must(fp8pipe_call(pipe, &call, &first));
            (void)fp8pipe_wait(pipe, first, FP8PIPE_DONE, TEST_TIMEOUT_NS);
        }
    ok(right, "%s: arguments of 1 to %d bytes are copied, aligned, beside long lists", mode,
       FP8PIPE_ARG_MAX);
}

/* ---- Bad input ---------------------------------------------------------------------------- */

static void bad_input(enum fp8pipe_mode how)
{
    struct fp8pipe *other = async_open(FP8PIPE_BACKEND_HOST, how, 1, 0, NULL);
    struct fp8pipe_tensor_call_op good = FP8PIPE_TENSOR_CALL_OP_INIT, op;
    const struct fp8pipe_tensor_call_op *op_pointer = &op;
    struct fp8pipe_call_op call = FP8PIPE_CALL_OP_INIT;
    struct side side = side_make(8);
    struct fp8pipe_scaling *other_scaling;
    struct fp8pipe_tensor *other_tensor;
    fp8pipe_ticket ticket = TICKET_UNSET;
    int calls = 0;
    int64_t next = 0;
    bool bad_order = false;
    struct source source = {8, 1.0f, 0, &calls, &next, &bad_order, NULL};

    other_scaling = test_scaling(other, 3, 0);
    must(fp8pipe_tensor_create(other, &other_tensor));
    good.submit = ON(0);
    good.rows = 4;
    good.cols = 8;
    good.fn = gives_values;
    good.arg = &source;
    good.arg_bytes = sizeof(source);
    good.out.tensor = side.tensor;
    good.out.scaling = side.scaling;
#define SUBMIT fp8pipe_tensor_call(pipe, op_pointer, &ticket)
    SPOILED(good, op.fn = NULL, SUBMIT, "fn", "NULL");
    SPOILED(good, op.rows = -1, SUBMIT, "rows", "-1");
    SPOILED(good, op.cols = -2, SUBMIT, "cols", "-2");
    SPOILED(good, (op.rows = INT64_C(1) << 40, op.cols = INT64_C(1) << 40), SUBMIT, "rows", "");
    SPOILED(good, op.arg_bytes = FP8PIPE_ARG_MAX + 1, SUBMIT, "arg_bytes", "257");
    SPOILED(good, op.arg = NULL, SUBMIT, "arg", "NULL");
    SPOILED(good, op.out.scaling = NULL, SUBMIT, "out.scaling", "NULL");
    SPOILED(good, op.out.scaling = other_scaling, SUBMIT, "out.scaling", "");
    SPOILED(good, op.out.tensor = other_tensor, SUBMIT, "out.tensor", "");
    SPOILED(good, op.out.slot = 3, SUBMIT, "out.slot", "3");
    SPOILED(good, op.out.copies = 0, SUBMIT, "out.copies", "0");
    SPOILED(good, op.out.copies = 4, SUBMIT, "out.copies", "4");
    SPOILED(good, op.out.reserved = 1, SUBMIT, "out.reserved", "1");
    SPOILED(good, op.out.column_sums_accumulate = 2, SUBMIT, "out.column_sums_accumulate", "2");
    SPOILED(good, (op.out.column_sums = test_vector(&side.sums), op.out.column_sums.count = 7),
            SUBMIT, "out.column_sums.count", "7");
    SPOILED(good,
            (op.out.column_sums = test_vector(&side.sums), op.out.column_sums.dtype = FP8PIPE_BF16),
            SUBMIT, "out.column_sums.dtype", "");
    SPOILED(good, op.submit.lane = 99, SUBMIT, "lane", "99");
    SPOILED(good, op.submit.flags = FP8PIPE_LAST_USE, SUBMIT, "flags", "");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_tensor_call(NULL, &good, &ticket), "pipe", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_tensor_call(pipe, NULL, &ticket), "op", "NULL");
    {
        struct fp8pipe_tensor_info info = FP8PIPE_TENSOR_INFO_INIT;

        must(fp8pipe_tensor_info_get(side.tensor, &info));
        ok(!info.filled && calls == 0, "nothing refused has filled the tensor or run");
    }
    op = good;
    IS_ACCEPTED(SUBMIT);
#undef SUBMIT
    call.fn = call_nothing;
    call.arg_bytes = FP8PIPE_ARG_MAX + 1;
    REFUSED(FP8PIPE_EINVAL, fp8pipe_call(pipe, &call, &ticket), "arg_bytes", "257");
    call.arg_bytes = 1;
    REFUSED(FP8PIPE_EINVAL, fp8pipe_call(pipe, &call, &ticket), "arg", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_quantize_host(NULL, NULL, values, NULL, 0), "stream", "NULL");
    test_drain(pipe);
    side_free(&side);
    must(fp8pipe_tensor_destroy(other_tensor));
    must(fp8pipe_scaling_destroy(other_scaling));
    test_close(other);
}

int main(void)
{
    static void (*const parts[])(enum fp8pipe_mode) = {against_quantize, functions, arguments,
                                                       bad_input};

    for (int mode = FP8PIPE_ASYNC; mode <= FP8PIPE_INLINE; mode++)
        for (int part = 0; part < 4; part++) {
            watchdog("fused", 120);
            pipe = async_open(FP8PIPE_BACKEND_HOST, (enum fp8pipe_mode)mode, 2, 0, NULL);
            parts[part]((enum fp8pipe_mode)mode);
            test_close(pipe);
        }
    return done_testing();
}

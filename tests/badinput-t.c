/* Guards against bad input to pipes, submits, tickets, memory and scalings: a status, a sentence,
 * no effect. */
#include "badinput.h"

#include <math.h>
#include <stdlib.h>

static struct fp8pipe *pipe, *other;
static fp8pipe_ticket ticket = TICKET_UNSET, given, others;
static enum fp8pipe_backend backend;

/* ---- What all ops share ------------------------------------------------------------------- */

static void submit_part(void)
{
    struct fp8pipe_host_call_op good = FP8PIPE_HOST_CALL_OP_INIT, op;
    const struct fp8pipe_host_call_op *op_pointer = &op;
    struct fp8pipe_stats stats = stats_of(pipe, -1);

#define SUBMIT fp8pipe_host_call(pipe, op_pointer, &ticket)
    good.submit.lane = 0;
    good.fn = work_nothing;
    SPOILED(good, op.submit.lane = -2, SUBMIT, "lane", "-2");
    SPOILED(good, op.submit.lane = 2, SUBMIT, "lane", "2");
    SPOILED(good, op.submit.flags = 16, SUBMIT, "flags", "");
    SPOILED(good, op.submit.flags = 1u << 31, SUBMIT, "flags", "");
    SPOILED(good, (op.submit.lane = -1, op.submit.flags = FP8PIPE_RESUME), SUBMIT, "RESUME", "");
    SPOILED(good, op.submit.after_count = 9, SUBMIT, "after_count", "9");
    SPOILED(good, op.submit.reserved = 1, SUBMIT, "reserved", "1");
    SPOILED(good, op.submit.reserved2[1] = 5, SUBMIT, "reserved", "5");
    SPOILED(good, (op.submit.after_count = 1, op.submit.after[0] = others), SUBMIT,
            "submit.after[0] = ", "");
    SPOILED(good, (op.submit.after_count = 2, op.submit.after[1] = given + 100000), SUBMIT,
            "submit.after[1] = ", "");
    SPOILED(good, (op.submit.after_count = 8, op.submit.after[7] = others), SUBMIT,
            "submit.after[7] = ", "");
    SPOILED(good, (op.submit.after_count = 1, op.submit.after[0] = ~(fp8pipe_ticket)0), SUBMIT,
            "submit.after[0] = ", "");
    /* a lane that this pipe does not have */
    SPOILED(good, (op.submit.after_count = 1, op.submit.after[0] = given | UINT64_C(63) << 46),
            SUBMIT, "submit.after[0] = ", "");
    SPOILED(good, op.fn = NULL, SUBMIT, "fn", "NULL");
    if (backend == FP8PIPE_BACKEND_HOST) {
        enum fp8pipe_status status;

        op = good;
        op.submit.event = &op;
        status = SUBMIT;
        ok((status == FP8PIPE_EINVAL || status == FP8PIPE_ENOTSUP) &&
               strstr(fp8pipe_last_error(), "event"),
           "an event is refused on a host pipe (%s)", fp8pipe_status_name(status));
    }
    SIZES(fp8pipe_host_call_op, good, SUBMIT, arg);
    REFUSED(FP8PIPE_EINVAL, fp8pipe_host_call(NULL, &good, &ticket), "pipe", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_host_call(pipe, NULL, &ticket), "op", "NULL");
    test_drain(pipe);
    ok(stats_of(pipe, -1).done == stats_of(pipe, -1).submitted &&
           stats_of(pipe, -1).submitted == stats.submitted + 2 && stats_of(pipe, -1).failed == 0,
       "only what was accepted has been enqueued");
}

static void call_part(void)
{
    struct fp8pipe_call_op good = FP8PIPE_CALL_OP_INIT, op;
    const struct fp8pipe_call_op *op_pointer = &op;

#undef SUBMIT
#define SUBMIT fp8pipe_call(pipe, op_pointer, &ticket)
    good.fn = call_nothing;
    SPOILED(good, op.fn = NULL, SUBMIT, "fn", "NULL");
    SPOILED(good, op.submit.lane = 64, SUBMIT, "lane", "64");
    SIZES(fp8pipe_call_op, good, SUBMIT, arg);
    REFUSED(FP8PIPE_EINVAL, fp8pipe_call(NULL, &good, &ticket), "pipe", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_call(pipe, NULL, &ticket), "op", "NULL");
}

static void copy_part(char *memory)
{
    struct fp8pipe_copy_op good = FP8PIPE_COPY_OP_INIT, op;
    const struct fp8pipe_copy_op *op_pointer = &op;

#undef SUBMIT
#define SUBMIT fp8pipe_copy(pipe, op_pointer, &ticket)
    good.to = memory;
    good.from = memory + 128;
    good.bytes = 64;
    SPOILED(good, op.to = NULL, SUBMIT, "to", "NULL");
    SPOILED(good, op.from = NULL, SUBMIT, "from", "NULL");
    SPOILED(good, op.bytes = 129, SUBMIT, "overlap", "");
    SPOILED(good, op.from = op.to, SUBMIT, "overlap", "");
    SPOILED(good, op.bytes = SIZE_MAX, SUBMIT, "bytes", "18446744073709551615");
    SPOILED(good, op.submit.flags = 32, SUBMIT, "flags", "");
    op = good;
    op.to = NULL;
    op.from = NULL;
    op.bytes = 0;
    IS_ACCEPTED(SUBMIT);
    op = good;
    op.bytes = 128; /* touch, and do not overlap */
    IS_ACCEPTED(SUBMIT);
    REFUSED(FP8PIPE_EINVAL, fp8pipe_copy(NULL, &good, &ticket), "pipe", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_copy(pipe, NULL, &ticket), "op", "NULL");
    test_drain(pipe);
}

/* ---- Tickets ------------------------------------------------------------------------------ */

static void ticket_part(void)
{
    const fp8pipe_ticket bad[] = {others, given + 100000, ~(fp8pipe_ticket)0,
                                  given | UINT64_C(63) << 46};
    struct fp8pipe_state state = FP8PIPE_STATE_INIT, kept;
    char sentence[40] = "unset";

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        kept = state;
        REFUSED(FP8PIPE_EINVAL, fp8pipe_state_get(pipe, bad[i], &state), "ticket", "");
        ok(memcmp(&kept, &state, sizeof(state)) == 0, "and the state is untouched");
        REFUSED(FP8PIPE_EINVAL, fp8pipe_wait(pipe, bad[i], FP8PIPE_DONE, -1), "ticket", "");
        REFUSED(FP8PIPE_EINVAL, fp8pipe_wait(pipe, bad[i], FP8PIPE_ISSUED, 0), "ticket", "");
        REFUSED(FP8PIPE_EINVAL, fp8pipe_error_get(pipe, bad[i], sentence, sizeof(sentence)),
                "ticket", "");
        is_str(sentence, "unset", "and the buffer is untouched");
        REFUSED(FP8PIPE_EINVAL, fp8pipe_defer(pipe, bad[i], FP8PIPE_DONE, answer_take, sentence, 0),
                "ticket", "");
    }
    REFUSED(FP8PIPE_EINVAL, fp8pipe_wait(pipe, given, (enum fp8pipe_mark)0, -1), "mark", "0");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_wait(pipe, given, (enum fp8pipe_mark)3, -1), "mark", "3");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_wait(NULL, given, FP8PIPE_DONE, -1), "pipe", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_drain(NULL, -1), "pipe", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_state_get(NULL, given, &state), "pipe", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_state_get(pipe, given, NULL), "state", "NULL");
    state.size = 0;
    REFUSED(FP8PIPE_EINVAL, fp8pipe_state_get(pipe, given, &state), "size", "0");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_error_get(NULL, given, sentence, 1), "pipe", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_error_get(pipe, given, NULL, 1), "buffer = NULL", "");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_error_get(pipe, given, sentence, 0), "bytes", "0");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_defer(pipe, given, FP8PIPE_DONE, NULL, NULL, 0), "fn", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_defer(pipe, given, (enum fp8pipe_mark)9, answer_take, NULL, 0),
            "mark", "9");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_defer(pipe, given, FP8PIPE_DONE, answer_take, NULL, 2), "flags",
            "");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_defer(NULL, given, FP8PIPE_DONE, answer_take, NULL, 0), "pipe",
            "NULL");
}

static void pipe_part(void)
{
    struct fp8pipe_stats stats = FP8PIPE_STATS_INIT;
    enum fp8pipe_backend got;
    int32_t lanes;

    REFUSED(FP8PIPE_EINVAL, fp8pipe_close(NULL, 0, -1), "pipe", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_close(pipe, 8, -1), "flags", "");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_backend_get(NULL, &got), "pipe", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_backend_get(pipe, NULL), "backend", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_lanes_get(NULL, &lanes), "pipe", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_lanes_get(pipe, NULL), "lanes", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_stats_get(NULL, -1, &stats), "pipe", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_stats_get(pipe, -1, NULL), "stats", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_stats_get(pipe, 2, &stats), "lane", "2");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_stats_get(pipe, -2, &stats), "lane", "-2");
    stats.size = 0;
    REFUSED(FP8PIPE_EINVAL, fp8pipe_stats_get(pipe, -1, &stats), "size", "0");
}

static void memory_part(char *memory)
{
    void *data = memory;
    char buffer[16];

    REFUSED(FP8PIPE_EINVAL, fp8pipe_alloc(NULL, 16, &data), "pipe", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_alloc(pipe, 16, NULL), "data", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_alloc(pipe, SIZE_MAX, &data), "bytes", "18446744073709551615");
    if (!TEST_SANITIZED) /* a sanitizer's allocator ends the program instead */
        REFUSED(FP8PIPE_ENOMEM, fp8pipe_alloc(pipe, SIZE_MAX / 4, &data), "", "");
    ok(data == memory, "and the pointer is untouched");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_free(NULL, memory), "pipe", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_upload(NULL, memory, buffer, 16), "pipe", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_upload(pipe, NULL, buffer, 16), "to", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_upload(pipe, memory, NULL, 16), "from", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_download(NULL, buffer, memory, 16), "pipe", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_download(pipe, NULL, memory, 16), "to", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_download(pipe, buffer, NULL, 16), "from", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_fill(NULL, memory, 0, 16), "pipe", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_fill(pipe, NULL, 0, 16), "data", "NULL");
    is_int(fp8pipe_upload(pipe, NULL, NULL, 0), FP8PIPE_OK, "no bytes need no pointers");
    is_int(fp8pipe_download(pipe, NULL, NULL, 0), FP8PIPE_OK, "neither way");
    is_int(fp8pipe_fill(pipe, NULL, 0, 0), FP8PIPE_OK, "nor to fill");
    is_int(fp8pipe_free(pipe, NULL), FP8PIPE_OK, "free takes NULL");
}

/* ---- Scalings ----------------------------------------------------------------------------- */

static void scaling_part(void)
{
    struct fp8pipe_scaling_options good = FP8PIPE_SCALING_OPTIONS_INIT, op;
    const struct fp8pipe_scaling_options *op_pointer = &op;
    struct fp8pipe_scaling *const untouched = (struct fp8pipe_scaling *)&good;
    struct fp8pipe_scaling *scaling = untouched;
    struct fp8pipe_scaling_op update = FP8PIPE_SCALING_OP_INIT;
    struct fp8pipe_slot_state slot = FP8PIPE_SLOT_STATE_INIT;
    const uint8_t roles[3] = {0, 1, 3};
    uint8_t *buffer;
    size_t bytes = 0;

#undef SUBMIT
#define SUBMIT fp8pipe_scaling_create(pipe, op_pointer, &scaling)
    good.slots = 3;
    SPOILED(good, op.slots = 0, SUBMIT, "slots", "0");
    SPOILED(good, op.slots = 1048577, SUBMIT, "slots", "1048577");
    SPOILED(good, op.history = 0, SUBMIT, "history", "0");
    SPOILED(good, op.history = 65537, SUBMIT, "history", "65537");
    SPOILED(good, op.recipe = (enum fp8pipe_recipe)5, SUBMIT, "recipe", "5");
    SPOILED(good, op.amax = (enum fp8pipe_amax)6, SUBMIT, "amax", "6");
    SPOILED(good, op.margin = 65, SUBMIT, "margin", "65");
    SPOILED(good, op.margin = -65, SUBMIT, "margin", "-65");
    SPOILED(good, op.initial_scale = -1, SUBMIT, "initial_scale", "-1");
    SPOILED(good, op.initial_scale = NAN, SUBMIT, "initial_scale", "nan");
    SPOILED(good, op.initial_scale = INFINITY, SUBMIT, "initial_scale", "inf");
    SPOILED(good, op.initial_scale = 0x1p-127f, SUBMIT, "initial_scale", "5.87747e-39");
    SPOILED(good, op.roles = roles, SUBMIT, "roles", "3");
    SPOILED(good, op.granularity = (enum fp8pipe_granularity)1, SUBMIT, "granularity", "1");
    SPOILED(good, op.source = (enum fp8pipe_scale_source)2, SUBMIT, "source", "2");
    SPOILED(good, op.count_extremes = 2, SUBMIT, "count_extremes", "2");
    SPOILED(good, op.reserved = 4, SUBMIT, "reserved", "4");
    SPOILED(good, op.size = 0, SUBMIT, "size", "0");
    SPOILED(good, op.size = 4, SUBMIT, "size", "4");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_scaling_create(NULL, &good, &scaling), "pipe", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_scaling_create(pipe, NULL, &scaling), "options", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_scaling_create(pipe, &good, NULL), "scaling", "NULL");
    ok(scaling == untouched, "no refused create has set its output");

    must(fp8pipe_scaling_create(pipe, &good, &scaling));
    REFUSED(FP8PIPE_EINVAL, fp8pipe_scaling_slot_get(scaling, 3, &slot), "slot", "3");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_scaling_slot_get(NULL, 0, &slot), "scaling", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_scaling_slot_get(scaling, 0, NULL), "state", "NULL");
    slot.size = 0;
    REFUSED(FP8PIPE_EINVAL, fp8pipe_scaling_slot_get(scaling, 0, &slot), "size", "0");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_scaling_nonfinite_get(scaling, NULL), "flag", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_scaling_update(NULL, &update, &ticket), "scaling", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_scaling_update(scaling, NULL, &ticket), "op", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_scaling_skip(NULL, &update, &ticket), "scaling", "NULL");
    update.skip_if = (const int32_t *)((uintptr_t)64 + 2);
    REFUSED(FP8PIPE_EINVAL, fp8pipe_scaling_update(scaling, &update, &ticket), "skip_if", "0x42");
    update.skip_if = (const int32_t *)(uintptr_t)64;
    REFUSED(FP8PIPE_EINVAL, fp8pipe_scaling_skip(scaling, &update, &ticket), "skip_if", "0x40");
    update.skip_if = NULL;
    update.submit.lane = 2;
    REFUSED(FP8PIPE_EINVAL, fp8pipe_scaling_update(scaling, &update, &ticket), "lane", "2");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_scaling_skip(scaling, &update, &ticket), "lane", "2");
    update.size = 3;
    REFUSED(FP8PIPE_EINVAL, fp8pipe_scaling_skip(scaling, &update, &ticket), "size", "3");
    must(fp8pipe_scaling_state_bytes(scaling, &bytes));
    buffer = test_calloc(bytes, 1);
    REFUSED(FP8PIPE_EINVAL, fp8pipe_scaling_state_bytes(scaling, NULL), "bytes", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_scaling_save(scaling, NULL, bytes), "buffer", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_scaling_save(scaling, buffer, bytes - 1), "bytes", "");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_scaling_save(NULL, buffer, bytes), "scaling", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_scaling_load(scaling, NULL, bytes), "buffer", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_scaling_load(NULL, buffer, bytes), "scaling", "NULL");
    REFUSED(FP8PIPE_ESTATE, fp8pipe_scaling_load(scaling, buffer, bytes), "", "");
    REFUSED(FP8PIPE_ESTATE, fp8pipe_scaling_load(scaling, buffer, bytes - 1), "", "");
    free(buffer);
    must(fp8pipe_scaling_destroy(scaling));
}

/* ---- host_enqueue ------------------------------------------------------------------------- */

struct enqueue {
    enum fp8pipe_status null_stream, null_work, good;
    enum fp8pipe_backend backend;
};

static enum fp8pipe_status enqueues(struct fp8pipe_stream *stream, void *arg)
{
    struct enqueue *enqueue = arg;

    enqueue->backend = fp8pipe_stream_backend(stream);
    enqueue->null_stream = fp8pipe_host_enqueue(NULL, work_nothing, NULL);
    enqueue->null_work = fp8pipe_host_enqueue(stream, NULL, NULL);
    enqueue->good = fp8pipe_host_enqueue(stream, work_nothing, NULL);
    return FP8PIPE_OK;
}

static void enqueue_part(void)
{
    struct enqueue enqueue;

    test_wait(pipe, submit_call(pipe, ON(0), enqueues, &enqueue));
    is_int(enqueue.backend, backend, "a stream knows its backend");
    is_int(enqueue.null_stream, FP8PIPE_EINVAL, "host_enqueue refuses a NULL stream");
    ok(enqueue.null_work == FP8PIPE_EINVAL ||
           (backend == FP8PIPE_BACKEND_CUDA && enqueue.null_work == FP8PIPE_ENOTSUP),
       "and NULL work");
    is_int(enqueue.good, backend == FP8PIPE_BACKEND_HOST ? FP8PIPE_OK : FP8PIPE_ENOTSUP,
           "host_enqueue is for the host backend");
}

static void cases(enum fp8pipe_backend on)
{
    void *memory = NULL;

    watchdog("bad input", 60);
    backend = on;
    for (int mode = FP8PIPE_ASYNC; mode <= FP8PIPE_INLINE; mode++) {
        pipe = async_open(on, (enum fp8pipe_mode)mode, 2, 0, NULL);
        other = async_open(on, (enum fp8pipe_mode)mode, 2, 0, NULL);
        given = submit_host_call(pipe, ON(0), work_nothing, NULL);
        others = submit_host_call(other, ON(0), work_nothing, NULL);
        must(fp8pipe_alloc(pipe, 256, &memory));
        submit_part();
        call_part();
        copy_part(memory);
        ticket_part();
        pipe_part();
        memory_part(memory);
        scaling_part();
        enqueue_part();
        must(fp8pipe_free(pipe, memory));
        test_close(pipe);
        test_close(other);
    }
}

int main(void)
{
    test_each_backend(cases);
    return done_testing();
}

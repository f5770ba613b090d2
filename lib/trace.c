#include "trace.h"

#include <stdlib.h>
#include <string.h>

#include "ec.h"
#include "status.h"

/* A timer this much later than the one that times are counted from takes its place, for the longer
 * the stretch the coarser its measure. */
#define TRACE_STRETCH_NS INT64_C(5000000)

/* Over shorter traces the clocks' difference is lost in the noise of reading them. */
#define TRACE_DRIFT_NS INT64_C(100000000)
#define TRACE_DRIFT_MAX 1e-3

enum fp8pipe_status trace_make(struct trace *trace, struct backend *backend, uint32_t ops)
{
    enum fp8pipe_status status;

    trace->records = calloc(ops, sizeof(*trace->records));
    if (trace->records == NULL) {
        return status_fail(FP8PIPE_ENOMEM, "ops = %u: %zu bytes are not to be had", ops,
                           ops * sizeof(*trace->records));
    }
    trace->room = ops;
    trace->taken = 0;
    status = backend->ops->timer_create(backend, &trace->base);
    if (status == FP8PIPE_OK) {
        status = backend->ops->timer_now(backend, trace->base, &trace->base_ns);
    }
    if (status != FP8PIPE_OK) {
        trace_clear(trace, backend);
    }
    return status;
}

static uint32_t trace_count(const struct trace *trace)
{
    uint64_t taken = ck_pr_load_64(&trace->taken);

    return taken < trace->room ? (uint32_t)taken : trace->room;
}

static void timer_free(struct backend *backend, struct backend_timer *timer)
{
    if (timer != NULL) {
        backend->ops->timer_destroy(backend, timer);
    }
}

void trace_clear(struct trace *trace, struct backend *backend)
{
    uint32_t count = trace->records == NULL ? 0 : trace_count(trace);

    for (uint32_t i = 0; i < count; i++) {
        timer_free(backend, trace->records[i].start);
        timer_free(backend, trace->records[i].end);
    }
    timer_free(backend, trace->base);
    free(trace->records);
    trace->records = NULL;
    trace->base = NULL;
}

/* ---- By launchers -------------------------------------------------------------------------- */

struct trace_record *trace_take(struct trace *trace, const struct op *op, fp8pipe_ticket ticket)
{
    uint64_t at = ck_pr_faa_64(&trace->taken, 1);
    struct trace_record *record;

    if (at >= trace->room) {
        return NULL;
    }
    record = &trace->records[at];
    record->ticket = ticket;
    record->enqueued_ns = op->enqueued_ns;
    record->taken_ns = ec_now_ns();
    memccpy(record->name, op_label(op), '\0', FP8PIPE_NAME_MAX);
    return record;
}

/* NULL when it could not be recorded: then it is nowhere in the stream. */
static struct backend_timer *record_timer(struct backend *backend, struct fp8pipe_stream *stream)
{
    struct backend_timer *timer;

    if (backend->ops->timer_create(backend, &timer) != FP8PIPE_OK) {
        return NULL;
    }
    if (backend->ops->timer_record(backend, timer, stream) != FP8PIPE_OK) {
        backend->ops->timer_destroy(backend, timer);
        return NULL;
    }
    return timer;
}

void trace_start(struct trace_record *record, struct backend *backend,
                 struct fp8pipe_stream *stream)
{
    if (record != NULL) {
        record->start = record_timer(backend, stream);
    }
}

void trace_end(struct trace_record *record, struct backend *backend, struct fp8pipe_stream *stream)
{
    if (record != NULL && record->start != NULL) {
        record->end = record_timer(backend, stream);
    }
}

/* ---- Resolving ------------------------------------------------------------------------------ */

/* Device times of one lane: each is counted from a timer near it. */
struct clock_at {
    struct backend_timer *timer;
    int64_t ns; /* since the trace's base */
};

static bool clock_read(struct backend *backend, struct clock_at *from, struct backend_timer *timer,
                       int64_t *ns)
{
    int64_t elapsed_ns;

    if (backend->ops->timer_elapsed(backend, from->timer, timer, &elapsed_ns) != FP8PIPE_OK) {
        return false;
    }
    *ns = from->ns + elapsed_ns;
    if (elapsed_ns > TRACE_STRETCH_NS) {
        *from = (struct clock_at){timer, *ns};
    }
    return true;
}

/* Host nanoseconds for each of the device's: 1, but for a drift seen over a long trace. */
static double clock_ratio(struct trace *trace, struct backend *backend)
{
    struct backend_timer *last;
    int64_t now_ns, device_ns = 0;
    double ratio = 1.0;

    if (backend->ops->timer_create(backend, &last) != FP8PIPE_OK) {
        return ratio;
    }
    if (backend->ops->timer_now(backend, last, &now_ns) == FP8PIPE_OK &&
        backend->ops->timer_elapsed(backend, trace->base, last, &device_ns) == FP8PIPE_OK &&
        device_ns > TRACE_DRIFT_NS) {
        ratio = (double)(now_ns - trace->base_ns) / (double)device_ns;
    }
    backend->ops->timer_destroy(backend, last);
    return ratio > 1.0 - TRACE_DRIFT_MAX && ratio < 1.0 + TRACE_DRIFT_MAX ? ratio : 1.0;
}

void trace_resolve(struct trace *trace, struct backend *backend, uint32_t lanes)
{
    double ratio = clock_ratio(trace, backend);
    struct clock_at clocks[FP8PIPE_LANES_MAX];
    uint32_t count = trace_count(trace);

    for (uint32_t i = 0; i < lanes; i++) {
        clocks[i] = (struct clock_at){trace->base, 0};
    }
    /* A lane's records stand in the order of its stream. */
    for (uint32_t i = 0; i < count; i++) {
        struct trace_record *record = &trace->records[i];
        struct clock_at *clock = &clocks[ticket_lane(record->ticket)];
        int64_t start_ns, end_ns;

        if (record->end != NULL && clock_read(backend, clock, record->start, &start_ns) &&
            clock_read(backend, clock, record->end, &end_ns)) {
            record->start_ns = trace->base_ns + (int64_t)((double)start_ns * ratio);
            record->end_ns = trace->base_ns + (int64_t)((double)end_ns * ratio);
            record->resolved = 1;
        }
    }
}

/* ---- Writing -------------------------------------------------------------------------------- */

/* Bytes of the UTF-8 character at `text`, 0 if it is none. */
static size_t utf8_bytes(const unsigned char *text)
{
    size_t bytes = text[0] < 0x80 ? 1 : text[0] >> 5 == 6 ? 2 : text[0] >> 4 == 14 ? 3 : 4;
    uint32_t code;

    if (bytes == 1) {
        return 1;
    }
    if (bytes == 4 && text[0] >> 3 != 30) {
        return 0;
    }
    code = text[0] & (0xffu >> (bytes + 1));
    for (size_t i = 1; i < bytes; i++) {
        if (text[i] >> 6 != 2) {
            return 0;
        }
        code = code << 6 | (text[i] & 0x3fu);
    }
    if (code < (bytes == 2   ? 0x80u
                : bytes == 3 ? 0x800u
                             : 0x10000u) ||
        code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
        return 0;
    }
    return bytes;
}

/* A name as a JSON string; bytes that are no UTF-8, as of a name cut within a character, become
 * U+FFFD. */
static void write_string(FILE *file, const char *string)
{
    const unsigned char *text = (const unsigned char *)string;

    fputc('"', file);
    while (*text != '\0') {
        size_t bytes = utf8_bytes(text);

        if (*text == '"' || *text == '\\') {
            fprintf(file, "\\%c", *text);
        } else if (*text < 0x20 || *text == 0x7f) {
            fprintf(file, "\\u%04x", *text);
        } else if (bytes == 0) {
            fputs("\\ufffd", file);
        } else {
            fwrite(text, 1, bytes, file);
        }
        text += bytes == 0 ? 1 : bytes;
    }
    fputc('"', file);
}

/* A time, or a span of time, in microseconds. */
static void write_us(FILE *file, const char *key, int64_t ns)
{
    fprintf(file, ",\"%s\":%lld.%03d", key, (long long)(ns / 1000), (int)(ns % 1000));
}

/* An event up to its time; the caller adds what its kind needs and closes it. */
static void write_event(FILE *file, const struct trace_record *record, const char *kind,
                        const char *category, uint32_t track, int64_t at_ns)
{
    fprintf(file, ",\n{\"ph\":\"%s\",\"cat\":\"%s\",\"pid\":%u,\"tid\":%u,\"name\":", kind,
            category, ticket_pipe(record->ticket), track);
    write_string(file, record->name);
    write_us(file, "ts", at_ns);
}

static void write_args(FILE *file, const struct trace_record *record)
{
    static const char *const outcomes[] = {
        [FP8PIPE_OUTCOME_OK] = "ok",
        [FP8PIPE_OUTCOME_FAILED] = "failed",
        [FP8PIPE_OUTCOME_CANCELLED] = "cancelled",
    };

    fprintf(file, ",\"args\":{\"ticket\":\"%#llx\",\"outcome\":\"%s\"",
            (unsigned long long)record->ticket, outcomes[record->outcome]);
    if (record->outcome != FP8PIPE_OUTCOME_OK) {
        fprintf(file, ",\"status\":\"%s\"",
                fp8pipe_status_name((enum fp8pipe_status)record->status));
    }
}

/* Ops wait in a queue side by side, which spans of one track cannot show: so these are async. */
static void write_queue(FILE *file, const struct trace_record *record, uint32_t track)
{
    char id[40];

    snprintf(id, sizeof(id), ",\"id\":\"%#llx\"", (unsigned long long)record->ticket);
    write_event(file, record, "b", "queue", track, record->enqueued_ns);
    fputs(id, file);
    write_args(file, record);
    fputs("}}", file);
    write_event(file, record, "e", "queue", track, record->taken_ns);
    fprintf(file, "%s}", id);
}

static void write_record(FILE *file, const struct trace_record *record)
{
    uint32_t host = 2 * ticket_lane(record->ticket), device = host + 1;

    if (record->enqueued_ns != 0) {
        write_queue(file, record, host);
    }
    write_event(file, record, "X", "issue", host, record->taken_ns);
    write_us(file, "dur", record->issued_ns - record->taken_ns);
    write_args(file, record);
    write_us(file, "wait_us", record->ready_ns - record->taken_ns);
    fputs("}}", file);
    if (record->resolved) {
        write_event(file, record, "X", "device", device, record->start_ns);
        write_us(file, "dur", record->end_ns - record->start_ns);
        write_args(file, record);
        fputs("}}", file);
        /* An arrow from the one to the other. */
        write_event(file, record, "s", "flow", host, record->taken_ns);
        fprintf(file, ",\"id\":\"%#llx\"}", (unsigned long long)record->ticket);
        write_event(file, record, "f", "flow", device, record->start_ns);
        fprintf(file, ",\"bp\":\"e\",\"id\":\"%#llx\"}", (unsigned long long)record->ticket);
    }
}

/* Names a track, and its place among the others. */
static void write_track(FILE *file, uint32_t pipe, uint32_t track, const char *where)
{
    fprintf(file,
            ",\n{\"ph\":\"M\",\"pid\":%u,\"tid\":%u,\"name\":\"thread_name\","
            "\"args\":{\"name\":\"lane %u %s\"}}",
            pipe, track, track / 2, where);
    fprintf(file,
            ",\n{\"ph\":\"M\",\"pid\":%u,\"tid\":%u,\"name\":\"thread_sort_index\","
            "\"args\":{\"sort_index\":%u}}",
            pipe, track, track);
}

bool trace_write(const struct trace *trace, FILE *file, uint32_t pipe, uint32_t lanes,
                 const char *backend)
{
    uint32_t count = trace_count(trace);

    fprintf(file, "{\"displayTimeUnit\":\"ns\",\"ops\":%u,\"dropped\":%llu,\"traceEvents\":[\n",
            count, (unsigned long long)(ck_pr_load_64(&trace->taken) - count));
    fprintf(file,
            "{\"ph\":\"M\",\"pid\":%u,\"name\":\"process_name\","
            "\"args\":{\"name\":\"fp8pipe %u (%s)\"}}",
            pipe, pipe, backend);
    for (uint32_t i = 0; i < lanes; i++) {
        write_track(file, pipe, 2 * i, "host");
        write_track(file, pipe, 2 * i + 1, "device");
    }
    for (uint32_t i = 0; i < count; i++) {
        write_record(file, &trace->records[i]);
    }
    fputs("\n]}\n", file);
    return fflush(file) == 0 && !ferror(file);
}

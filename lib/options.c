#include "options.h"

#include <string.h>
#include <unistd.h>

#include "status.h"

#define OPTIONS_LANES 2
#define OPTIONS_RING_SLOTS 1024
#define OPTIONS_RING_SLOTS_MIN 32
#define OPTIONS_RING_SLOTS_MAX 65536
#define OPTIONS_DEFERS 4096
#define OPTIONS_SPIN_NS 20000
#define OPTIONS_SPIN_NS_MAX 1000000000
#define OPTIONS_WORKSPACE_BYTES ((size_t)32 << 20)

/* No struct of any version is larger; a size beyond it was never set. */
#define OPTIONS_BYTES_MAX 65536

static enum fp8pipe_status refuse_size(const char *name, size_t size, size_t known)
{
    return status_fail(FP8PIPE_EINVAL,
                       "%s->size = %zu: it is set by the _INIT of the struct, %zu "
                       "bytes here",
                       name, size, known);
}

/* What a newer header added must be unused, that is 0. */
static enum fp8pipe_status check_tail(const char *name, const void *given, size_t size,
                                      size_t known)
{
    const unsigned char *bytes = given;

    if (size > OPTIONS_BYTES_MAX) {
        return refuse_size(name, size, known);
    }
    for (size_t i = known; i < size; i++) {
        if (bytes[i] != 0) {
            return status_fail(FP8PIPE_EINVAL,
                               "%s->size = %zu: byte %zu, beyond the %zu known to "
                               "this library, is not 0",
                               name, size, i, known);
        }
    }
    return FP8PIPE_OK;
}

enum fp8pipe_status options_convert(const char *name, const void *given, const void *defaults,
                                    size_t known, size_t least, void *room, const void **read)
{
    enum fp8pipe_status status;
    size_t size;

    if (given == NULL) {
        return status_fail(FP8PIPE_EINVAL, "%s = NULL: it is needed", name);
    }
    memcpy(&size, given, sizeof(size));
    if (size < least) {
        return refuse_size(name, size, known);
    }
    status = check_tail(name, given, size, known);
    if (status != FP8PIPE_OK) {
        return status;
    }
    memcpy(room, defaults, known);
    memcpy(room, given, size < known ? size : known);
    memcpy(room, &known, sizeof(known));
    *read = room;
    return FP8PIPE_OK;
}

enum fp8pipe_status options_check_out(const char *name, const void *out, size_t known)
{
    size_t size;

    if (out == NULL) {
        return status_fail(FP8PIPE_EINVAL, "%s = NULL: it takes the answer", name);
    }
    memcpy(&size, out, sizeof(size));
    if (size < 2 * sizeof(size)) {
        return refuse_size(name, size, known);
    }
    return check_tail(name, out, size, known);
}

void options_write(void *out, const void *filled, size_t known)
{
    size_t size;

    memcpy(&size, out, sizeof(size));
    memcpy((char *)out + sizeof(size), (const char *)filled + sizeof(size),
           (size < known ? size : known) - sizeof(size));
}

enum fp8pipe_status options_check(const struct fp8pipe_options *given,
                                  struct fp8pipe_options *checked)
{
    static const struct fp8pipe_options defaults = FP8PIPE_OPTIONS_INIT;
    const void *read = &defaults;
    enum fp8pipe_status status = FP8PIPE_OK;

    if (given != NULL) {
        status = options_read("options", given, &defaults, sizeof(defaults),
                              offsetof(struct fp8pipe_options, lanes), checked, &read);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    if (read != checked) {
        memcpy(checked, read, sizeof(*checked));
    }
    if ((unsigned)checked->backend > FP8PIPE_BACKEND_CUDA) {
        return status_fail(FP8PIPE_EINVAL, "backend = %d: it is AUTO, HOST or CUDA",
                           (int)checked->backend);
    }
    if (checked->device < 0) {
        return status_fail(FP8PIPE_EINVAL, "device = %d: it is >= 0", checked->device);
    }
    if ((unsigned)checked->mode > FP8PIPE_INLINE) {
        return status_fail(FP8PIPE_EINVAL, "mode = %d: it is ASYNC or INLINE", (int)checked->mode);
    }
    if (checked->lanes < 0 || checked->lanes > FP8PIPE_LANES_MAX) {
        return status_fail(FP8PIPE_EINVAL, "lanes = %d: there are 1 to %d, 0 for the default",
                           checked->lanes, FP8PIPE_LANES_MAX);
    }
    if (checked->ring_slots != 0 && (checked->ring_slots < OPTIONS_RING_SLOTS_MIN ||
                                     checked->ring_slots > OPTIONS_RING_SLOTS_MAX ||
                                     (checked->ring_slots & (checked->ring_slots - 1)) != 0)) {
        return status_fail(FP8PIPE_EINVAL, "ring_slots = %u: it is a power of two, %d to %d, or 0",
                           checked->ring_slots, OPTIONS_RING_SLOTS_MIN, OPTIONS_RING_SLOTS_MAX);
    }
    if (checked->spin_ns < -1 || checked->spin_ns > OPTIONS_SPIN_NS_MAX) {
        return status_fail(FP8PIPE_EINVAL, "spin_ns = %lld: it is 0 to %d, or -1",
                           (long long)checked->spin_ns, OPTIONS_SPIN_NS_MAX);
    }
    if ((unsigned)checked->log_level > FP8PIPE_LOG_DEBUG) {
        return status_fail(FP8PIPE_EINVAL, "log_level = %d: it is DEFAULT to DEBUG",
                           (int)checked->log_level);
    }
    if ((unsigned)checked->plans > FP8PIPE_PLANS_FIXED) {
        return status_fail(FP8PIPE_EINVAL, "plans = %d: it is REFINED or FIXED",
                           (int)checked->plans);
    }
    if ((unsigned)checked->replays > FP8PIPE_REPLAYS_OFF) {
        return status_fail(FP8PIPE_EINVAL, "replays = %d: it is ON or OFF", (int)checked->replays);
    }
    if ((checked->allocator.alloc == NULL) != (checked->allocator.free == NULL)) {
        return status_fail(FP8PIPE_EINVAL, "allocator.%s = NULL: an allocator has both functions",
                           checked->allocator.alloc == NULL ? "alloc" : "free");
    }
    if (checked->streams != NULL && checked->mode != FP8PIPE_INLINE) {
        return status_fail(FP8PIPE_EINVAL, "streams = %p: the caller's streams are for mode INLINE",
                           (const void *)checked->streams);
    }
    if ((checked->measure_idle & ~1) != 0) {
        return status_fail(FP8PIPE_EINVAL, "measure_idle = %d: it is 0 or 1",
                           checked->measure_idle);
    }
    if (checked->lanes == 0) {
        checked->lanes = OPTIONS_LANES;
    }
    for (int32_t i = 0; checked->affinity != NULL && i < checked->lanes; i++) {
        if (checked->affinity[i] < -1) {
            return status_fail(FP8PIPE_EINVAL, "affinity[%d] = %d: it is a CPU, or -1", i,
                               checked->affinity[i]);
        }
    }
    if (checked->ring_slots == 0) {
        checked->ring_slots = OPTIONS_RING_SLOTS;
    }
    if (checked->defer_limit == 0) {
        checked->defer_limit = OPTIONS_DEFERS;
    }
    if (checked->spin_ns == -1) {
        checked->spin_ns = sysconf(_SC_NPROCESSORS_ONLN) > 1 ? OPTIONS_SPIN_NS : 0;
    }
    if (checked->workspace_bytes == 0) {
        checked->workspace_bytes = OPTIONS_WORKSPACE_BYTES;
    }
    return FP8PIPE_OK;
}

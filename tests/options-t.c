/*
 * Guards structs across versions of the header, shorter and longer than the library's, and the
 * options of a pipe: what they are by default, what is refused.
 */
#include <stddef.h>
#include <string.h>

#include "options.h"
#include "tap.h"

/* A struct as this library knows it; `middle` came with its second version, `last` with its
 * third. */
struct known {
    size_t size;
    int32_t first;
    int32_t second;
    int64_t middle;
    int64_t last;
};

#define LEAST offsetof(struct known, middle)
#define TAIL 24

/* As a newer header has it. */
struct longer {
    struct known known;
    unsigned char tail[TAIL];
};

static const struct known defaults = {sizeof(struct known), 1, 2, 3, 4};

static struct longer given(size_t size)
{
    struct longer given = {.known = {size, 10, 20, 30, 40}};

    return given;
}

static enum fp8pipe_status read_as(const void *given, struct known *room, const void **read)
{
    *read = NULL;
    return options_read("op", given, &defaults, sizeof(defaults), LEAST, room, read);
}

static void reading(void)
{
    struct longer same = given(sizeof(struct known)), copy;
    struct known room = {0};
    const void *read;
    int wrong = 0;

    is_int(read_as(NULL, &room, &read), FP8PIPE_EINVAL, "no struct is refused");
    ok(strstr(fp8pipe_last_error(), "op") != NULL, "by its name: %s", fp8pipe_last_error());
    copy = same;
    is_int(read_as(&same, &room, &read), FP8PIPE_OK, "a struct of this version is taken");
    ok(read == &same && memcmp(&same, &copy, sizeof(same)) == 0, "as it is");
    for (size_t size = LEAST; size < sizeof(struct known); size++) {
        struct longer old = given(size);
        unsigned char wanted[sizeof(struct known)];

        memcpy(wanted, &defaults, sizeof(wanted));
        memcpy(wanted, &old, size);
        memcpy(wanted, &defaults.size, sizeof(defaults.size));
        wrong += read_as(&old, &room, &read) != FP8PIPE_OK || read != &room ||
                 memcmp(&room, wanted, sizeof(wanted)) != 0;
    }
    is_int(wrong, 0, "of a shorter one the rest is as by default, wherever it ends");
    for (size_t size = 0; size < LEAST; size++) {
        struct longer old = given(size);

        wrong += read_as(&old, &room, &read) != FP8PIPE_EINVAL || read != NULL;
    }
    is_int(wrong, 0, "one shorter than the first version is refused");
    ok(strstr(fp8pipe_last_error(), "size") != NULL, "with a sentence: %s", fp8pipe_last_error());
}

static void reading_longer(void)
{
    static struct {
        struct known known;
        unsigned char tail[1 << 17];
    } huge;
    struct longer new = given(sizeof(struct longer));
    const struct known wanted = {sizeof(struct known), 10, 20, 30, 40};
    struct known room = {0};
    const void *read;
    int wrong = 0;

    is_int(read_as(&new, &room, &read), FP8PIPE_OK, "a longer one whose tail is 0 is taken");
    ok(read == &room && memcmp(&room, &wanted, sizeof(room)) == 0, "as far as it is known");
    for (size_t i = 0; i < TAIL; i++) {
        new = given(sizeof(struct longer));
        new.tail[i] = 1;
        wrong += read_as(&new, &room, &read) != FP8PIPE_EINVAL || read != NULL;
    }
    is_int(wrong, 0, "one with anything in its tail is refused");
    new = given(sizeof(struct known) + TAIL - 1);
    new.tail[TAIL - 1] = 1;
    is_int(read_as(&new, &room, &read), FP8PIPE_OK, "what lies behind it is not its tail");
    huge.known.size = sizeof(huge);
    is_int(read_as(&huge, &room, &read), FP8PIPE_EINVAL, "a size that no header has is refused");
}

static void answering(void)
{
    const struct known answer = {sizeof(struct known), 100, 200, 300, 400};
    struct longer out = given(sizeof(struct known)), before;
    int wrong = 0;

    is_int(options_check_out("state", NULL, sizeof(answer)), FP8PIPE_EINVAL,
           "no place to answer to");
    ok(strstr(fp8pipe_last_error(), "state") != NULL, "is refused by name: %s",
       fp8pipe_last_error());
    out = given(0);
    is_int(options_check_out("state", &out, sizeof(answer)), FP8PIPE_EINVAL,
           "so is one without a size");
    for (size_t size = 2 * sizeof(size_t); size <= sizeof(out); size++) {
        unsigned char wanted[sizeof(out)];
        size_t filled = size < sizeof(answer) ? size : sizeof(answer);

        out = given(size);
        memcpy(wanted, &out, sizeof(out));
        memcpy(wanted + sizeof(size), (const char *)&answer + sizeof(size), filled - sizeof(size));
        wrong += options_check_out("state", &out, sizeof(answer)) != FP8PIPE_OK;
        options_write(&out, &answer, sizeof(answer));
        wrong += memcmp(&out, wanted, sizeof(out)) != 0;
    }
    is_int(wrong, 0, "an answer fills what the caller's struct has of it, and keeps its size");
    out = given(sizeof(out));
    out.tail[TAIL - 1] = 1;
    before = out;
    is_int(options_check_out("state", &out, sizeof(answer)), FP8PIPE_EINVAL,
           "one with more than this library can answer is refused");
    ok(memcmp(&out, &before, sizeof(out)) == 0, "and stays as it was");
}

static void of_a_pipe(void)
{
    struct fp8pipe_options options = FP8PIPE_OPTIONS_INIT, checked;
    void *stream = NULL;
    int32_t cpu = -2;

    is_int(options_check(NULL, &checked), FP8PIPE_OK, "a pipe needs no options");
    ok(checked.lanes >= 1 && checked.ring_slots >= 32 && checked.defer_limit > 0 &&
           checked.spin_ns >= 0 && checked.workspace_bytes > 0,
       "they are complete then");
    is_int(checked.size, sizeof(checked), "and of the library's size");
    options.lanes = FP8PIPE_LANES_MAX;
    options.ring_slots = 65536;
    options.spin_ns = 7;
    options.defer_limit = 3;
    options.workspace_bytes = 9;
    ok(options_check(&options, &checked) == FP8PIPE_OK &&
           memcmp(&options, &checked, sizeof(options)) == 0,
       "what is given stays");
    options.size = offsetof(struct fp8pipe_options, ring_slots);
    ok(options_check(&options, &checked) == FP8PIPE_OK && checked.lanes == FP8PIPE_LANES_MAX &&
           checked.ring_slots == 1024 && checked.size == sizeof(checked),
       "older options are completed");

#define REFUSED(field, value)                                                                      \
    do {                                                                                           \
        options = (struct fp8pipe_options)FP8PIPE_OPTIONS_INIT;                                    \
        options.field = value;                                                                     \
        ok(options_check(&options, &checked) == FP8PIPE_EINVAL &&                                  \
               strstr(fp8pipe_last_error(), #field) != NULL,                                       \
           #field " = " #value " is refused: %s", fp8pipe_last_error());                           \
    } while (0)

    REFUSED(size, 0);
    REFUSED(backend, (enum fp8pipe_backend)3);
    REFUSED(device, -1);
    REFUSED(mode, (enum fp8pipe_mode)2);
    REFUSED(lanes, -1);
    REFUSED(lanes, FP8PIPE_LANES_MAX + 1);
    REFUSED(ring_slots, 16);
    REFUSED(ring_slots, 48);
    REFUSED(ring_slots, 131072);
    REFUSED(spin_ns, -2);
    REFUSED(spin_ns, 1000000001);
    REFUSED(replays, (enum fp8pipe_replays)2);
    REFUSED(plans, (enum fp8pipe_plans)2);
    REFUSED(streams, &stream);
    REFUSED(affinity, &cpu);
}

int main(void)
{
    reading();
    reading_longer();
    answering();
    of_a_pipe();
    return done_testing();
}

/* JSON of the examples and benchmarks: every kind of item, byte for byte, where lines begin,
 * what becomes of what was in the file, and what is told of one that takes nothing. */
#include "examples/json.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tap.h"

static void every_kind(struct json *json)
{
    json_object(json, NULL);
    json_text(json, "text", "a \"b\" \\ c\n");
    json_integer(json, "integer", INT64_MIN);
    json_lines(json, 2);
    json_list(json, "list");
    json_lines(json, -1);
    json_list(json, NULL);
    json_list_end(json);
    json_truth(json, NULL, true);
    json_truth(json, NULL, false);
    json_lines(json, 4);
    json_object(json, NULL);
    json_lines(json, 6);
    json_number(json, "number", 1234567890123.0);
    json_fixed(json, "fixed", 3, 2.0 / 3);
    json_lines(json, -1);
    json_number(json, "inf", (double)INFINITY);
    json_fixed(json, "nan", 1, (double)NAN);
    json_object_end(json);
    json_lines(json, 1);
    json_list_end(json);
    json_number(json, "last", 0.1);
    json_lines(json, 0);
    json_object_end(json);
}

static const char want[] = "{\"text\": \"a \\\"b\\\" \\\\ c\", \"integer\": -9223372036854775808,\n"
                           "  \"list\": [[], true, false,\n"
                           "    {\n"
                           "      \"number\": 1.23456789e+12,\n"
                           "      \"fixed\": 0.667, \"inf\": null, \"nan\": null}\n"
                           " ],\n"
                           " \"last\": 0.1\n"
                           "}\n";

/* What lies in a file of a name, of less than 200 bytes. */
static void is_content(const char *path, const char *wanted, const char *test)
{
    char got[200] = "";
    FILE *file = fopen(path, "r");

    if (file == NULL || fread(got, 1, sizeof(got) - 1, file) == 0)
        diag("%s: nothing to be read", path);
    if (file != NULL)
        fclose(file);
    is_str(got, wanted, "%s", test);
}

static void test_emptied(void)
{
    char path[] = "/tmp/json-t.XXXXXX";
    int fd = mkstemp(path), ends[2];
    FILE *file = fd >= 0 ? fdopen(fd, "r+") : NULL;
    struct json json;
    char got[20] = "";

    if (file == NULL || fputs("longer than what comes\n", file) == EOF || fflush(file) != 0)
        bail("%s: %s", path, strerror(errno));
    rewind(file);
    is_content(path, "longer than what comes\n", "a file of an earlier run");
    json = json_to(file);
    json_integer(&json, NULL, 7);
    is_int(json_close(&json), 0, "is written");
    is_content(path, "7\n", "and nothing else is left in it");
    unlink(path);

    if (pipe(ends) != 0 || (file = fdopen(ends[1], "w")) == NULL)
        bail("pipe: %s", strerror(errno));
    json = json_to(file);
    json_integer(&json, NULL, 7);
    is_int(json_close(&json), 0, "what has no size is written too");
    is_int(read(ends[0], got, sizeof(got) - 1), 2, "all of it");
    is_str(got, "7\n", "as it is");
    close(ends[0]);
}

int main(void)
{
    char got[2 * sizeof(want)] = "";
    FILE *file = fmemopen(got, sizeof(got), "w");
    struct json json = json_to(file), none = json_to(NULL);

    if (file == NULL)
        bail("fmemopen: %s", strerror(errno));
    every_kind(&json);
    is_int(json_close(&json), 0, "a file is written");
    is_str(got, want, "as it is asked for");
    every_kind(&none);
    is_int(json_close(&none), 0, "without a file nothing is");

    test_emptied();
    file = fopen("/dev/full", "w");
    if (file == NULL) {
        skip(2, "/dev/full is not there");
        return done_testing();
    }
    json = json_to(file);
    every_kind(&json);
    is_int(json_close(&json), -1, "a full disk is told");
    is_int(errno, ENOSPC, "with its reason");
    return done_testing();
}

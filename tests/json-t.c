/* JSON of the examples and benchmarks: every kind of item, byte for byte, where lines begin, and
 * what is told of a file that takes nothing. */
#include "examples/json.h"

#include <errno.h>
#include <math.h>
#include <string.h>

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

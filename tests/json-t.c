/* JSON of the examples and benchmarks: every kind of item and of text, byte for byte, where lines
 * begin, what becomes of what was in the file, and what is told of one that takes nothing. */
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

#define NO "\xef\xbf\xbd" /* U+FFFD */

/* Bytes of any kind make a text: between letters and at the end, as it is to be written. */
static void test_bytes(void)
{
    static const struct {
        const char *what, *bytes, *wanted;
    } cases[] = {
        {"the least and the largest of two bytes", "\xc2\x80\xdf\xbf", "\xc2\x80\xdf\xbf"},
        {"of three", "\xe0\xa0\x80\xef\xbf\xbf", "\xe0\xa0\x80\xef\xbf\xbf"},
        {"of four", "\xf0\x90\x80\x80\xf4\x8f\xbf\xbf", "\xf0\x90\x80\x80\xf4\x8f\xbf\xbf"},
        {"around the halves of pairs", "\xed\x9f\xbf\xee\x80\x80", "\xed\x9f\xbf\xee\x80\x80"},
        {"Latin-1", "\xe9", NO},
        {"a byte that goes on from none", "\x80\xbf", NO NO},
        {"bytes that are in no text", "\xfe\xff\xf5", NO NO NO},
        {"longer than needed, two bytes", "\xc0\xa2\xc1\xbf", NO NO NO NO},
        {"three", "\xe0\x9f\xbf", NO NO NO},
        {"four", "\xf0\x8f\xbf\xbf", NO NO NO NO},
        {"halves of a pair", "\xed\xa0\x80\xed\xbf\xbf", NO NO NO NO NO NO},
        {"above the largest", "\xf4\x90\x80\x80", NO NO NO NO},
        {"cut by a quote, two bytes", "\xc3\"", NO "\\\""},
        {"three", "\xe2\x82\"", NO NO "\\\""},
        {"four", "\xf0\x9f\x98\"", NO NO NO "\\\""},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char got[100] = "", text[40], wanted[60];
        FILE *file = fmemopen(got, sizeof(got), "w");
        struct json json = json_to(file);

        if (file == NULL)
            bail("fmemopen: %s", strerror(errno));
        snprintf(text, sizeof(text), "a%sb%s", cases[i].bytes, cases[i].bytes);
        snprintf(wanted, sizeof(wanted), "\"a%sb%s\"\n", cases[i].wanted, cases[i].wanted);
        json_text(&json, NULL, text);
        is_int(json_close(&json), 0, "%s", cases[i].what);
        is_str(got, wanted, "what is no character is replaced");
    }
}

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

    test_bytes();
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

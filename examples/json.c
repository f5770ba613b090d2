#include "json.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

struct json json_to(FILE *file)
{
    struct json json = {.file = file, .indent = -1};
    int fd = file != NULL ? fileno(file) : -1;
    struct stat stat;

    if (fd >= 0 && fstat(fd, &stat) == 0 && S_ISREG(stat.st_mode) && ftruncate(fd, 0) != 0) {
        json.failure = errno;
    }
    return json;
}

int json_close(struct json *json)
{
    int failed;

    if (json->file == NULL) {
        return 0;
    }
    putc('\n', json->file);
    failed = ferror(json->file);
    if (fclose(json->file) != 0) {
        return -1;
    }
    if (failed || json->failure != 0) {
        errno = failed ? EIO : json->failure; /* the write's own is long gone */
        return -1;
    }
    return 0;
}

void json_lines(struct json *json, int indent)
{
    json->indent = indent;
}

/* ---- Items --------------------------------------------------------------------------------- */

static void line_begin(const struct json *json)
{
    fprintf(json->file, "\n%*s", json->indent, "");
}

static bool follows(unsigned char byte)
{
    return (byte & 0xc0) == 0x80;
}

/* Bytes of the UTF-8 character that the text begins with; 0: it begins with none. No form that is
 * longer than needed, no half of a UTF-16 pair, nothing above U+10FFFF is one. */
static int character_bytes(const unsigned char *text)
{
    if (text[0] < 0x80) {
        return 1;
    }
    if (text[0] < 0xc2 || text[0] > 0xf4 || !follows(text[1])) {
        return 0;
    }
    if (text[0] < 0xe0) {
        return 2;
    }
    if ((text[0] == 0xe0 && text[1] < 0xa0) || (text[0] == 0xed && text[1] > 0x9f) ||
        (text[0] == 0xf0 && text[1] < 0x90) || (text[0] == 0xf4 && text[1] > 0x8f) ||
        !follows(text[2])) {
        return 0;
    }
    if (text[0] < 0xf0) {
        return 3;
    }
    return follows(text[3]) ? 4 : 0;
}

static void quote(FILE *file, const char *text)
{
    putc('"', file);
    while (*text != '\0') {
        int bytes = character_bytes((const unsigned char *)text);

        if (*text == '"' || *text == '\\') {
            putc('\\', file);
        }
        if (bytes == 0) {
            fputs("\xef\xbf\xbd", file);
            bytes = 1;
        } else if ((unsigned char)*text >= ' ') {
            fwrite(text, 1, (size_t)bytes, file);
        }
        text += bytes;
    }
    putc('"', file);
}

/* What stands before an item's value. False: there is no file. */
static bool item(struct json *json, const char *name)
{
    if (json->file == NULL) {
        return false;
    }
    if (json->behind) {
        putc(',', json->file);
    }
    if (json->indent >= 0) {
        line_begin(json);
    } else if (json->behind) {
        putc(' ', json->file);
    }
    json->behind = true;
    if (name != NULL) {
        quote(json->file, name);
        fputs(": ", json->file);
    }
    return true;
}

static void nest(struct json *json, const char *name, char bracket)
{
    if (item(json, name)) {
        putc(bracket, json->file);
        json->behind = false;
    }
}

static void nest_end(struct json *json, char bracket)
{
    if (json->file == NULL) {
        return;
    }
    if (json->indent >= 0) {
        line_begin(json);
    }
    putc(bracket, json->file);
    json->behind = true;
}

void json_object(struct json *json, const char *name)
{
    nest(json, name, '{');
}

void json_object_end(struct json *json)
{
    nest_end(json, '}');
}

void json_list(struct json *json, const char *name)
{
    nest(json, name, '[');
}

void json_list_end(struct json *json)
{
    nest_end(json, ']');
}

void json_text(struct json *json, const char *name, const char *text)
{
    if (item(json, name)) {
        quote(json->file, text);
    }
}

void json_truth(struct json *json, const char *name, bool value)
{
    if (item(json, name)) {
        fputs(value ? "true" : "false", json->file);
    }
}

void json_integer(struct json *json, const char *name, int64_t value)
{
    if (item(json, name)) {
        fprintf(json->file, "%" PRId64, value);
    }
}

/* Of so many digits, `fixed`: behind the point. */
static void real(struct json *json, const char *name, bool fixed, int digits, double value)
{
    if (!item(json, name)) {
        return;
    }
    if (!isfinite(value)) {
        fputs("null", json->file);
    } else if (fixed) {
        fprintf(json->file, "%.*f", digits, value);
    } else {
        fprintf(json->file, "%.*g", digits, value);
    }
}

void json_number(struct json *json, const char *name, double value)
{
    real(json, name, false, 9, value);
}

void json_fixed(struct json *json, const char *name, int decimals, double value)
{
    real(json, name, true, decimals, value);
}

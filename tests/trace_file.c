#include "trace_file.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "numbers.h"
#include "tap.h"

/* The file's text, to be freed; NULL if there is none. */
static char *slurp(const char *path)
{
    FILE *file = fopen(path, "r");
    struct stat about;
    char *text = NULL;

    if (file && fstat(fileno(file), &about) == 0) {
        text = test_calloc((size_t)about.st_size + 1, 1);
        text[fread(text, 1, (size_t)about.st_size, file)] = '\0';
    }
    if (file)
        fclose(file);
    return text;
}

/* ---- JSON --------------------------------------------------------------------------------- */

static const char *json_value(const char *at);

static const char *blanks(const char *at)
{
    while (at && *at && strchr(" \t\r\n", *at))
        at++;
    return at;
}

static const char *json_string(const char *at)
{
    if (*at++ != '"')
        return NULL;
    while (*at != '"') {
        if ((unsigned char)*at < 0x20)
            return NULL;
        if (*at == '\\') {
            at++;
            if (*at == 'u') {
                for (int i = 1; i <= 4; i++)
                    if (!isxdigit((unsigned char)at[i]))
                        return NULL;
                at += 4;
            } else if (!*at || !strchr("\"\\/bfnrt", *at)) {
                return NULL;
            }
        }
        at++;
    }
    return at + 1;
}

static const char *json_list(const char *at, char close, bool keys)
{
    at = blanks(at + 1);
    if (*at == close)
        return at + 1;
    for (;;) {
        if (keys) {
            at = blanks(json_string(at));
            if (!at || *at++ != ':')
                return NULL;
        }
        at = blanks(json_value(blanks(at)));
        if (!at || (*at != ',' && *at != close))
            return NULL;
        if (*at++ == close)
            return at;
        at = blanks(at);
    }
}

static const char *json_number(const char *at)
{
    char *end;

    if (*at != '-' && !isdigit((unsigned char)*at))
        return NULL;
    strtod(at, &end);
    return end == at ? NULL : end;
}

static const char *json_value(const char *at)
{
    if (*at == '{')
        return json_list(at, '}', true);
    if (*at == '[')
        return json_list(at, ']', false);
    return *at == '"' ? json_string(at) : json_number(at);
}

static bool is_json(const char *text)
{
    const char *end = blanks(json_value(blanks(text)));

    return end && *end == '\0';
}

/* ---- Events ---------------------------------------------------------------------------------- */

/* What follows a key in the line, "" if it is not there. */
static const char *after(const char *line, const char *key)
{
    const char *end = strchr(line, '\n'), *found = strstr(line, key);

    return found && found < end ? found + strlen(key) : "";
}

static void copy_to_quote(char *to, size_t bytes, const char *from)
{
    size_t length = strcspn(from, "\"");

    snprintf(to, bytes, "%.*s", (int)length, from);
}

struct trace_file trace_load(const char *path)
{
    struct trace_file trace = {.text = slurp(path)};

    if (!ok(trace.text && is_json(trace.text), "%s is JSON", strrchr(path, '/') + 1))
        bail("no trace to look at");
    trace.dropped = strtol(after(trace.text, "\"dropped\":"), NULL, 10);
    trace.ops = strtol(after(trace.text, "\"ops\":"), NULL, 10);
    for (const char *line = trace.text; (line = strchr(line, '\n')) != NULL; line++)
        trace.count++;
    trace.events = test_calloc((size_t)trace.count + 1, sizeof(*trace.events));
    trace.count = 0;
    for (const char *line = strchr(trace.text, '\n'); line && line[1] == '{';
         line = strchr(line + 1, '\n')) {
        struct trace_event *event = &trace.events[trace.count++];

        event->kind = *after(line + 1, "\"ph\":\"");
        copy_to_quote(event->category, sizeof(event->category), after(line + 1, "\"cat\":\""));
        event->track = atoi(after(line + 1, "\"tid\":"));
        copy_to_quote(event->name, sizeof(event->name), after(line + 1, "\"name\":\""));
        event->at_us = atof(after(line + 1, "\"ts\":"));
        event->took_us = atof(after(line + 1, "\"dur\":"));
        event->ticket = strtoull(after(line + 1, "\"ticket\":\""), NULL, 16);
        if (event->ticket == 0)
            event->ticket = strtoull(after(line + 1, "\"id\":\""), NULL, 16);
        copy_to_quote(event->outcome, sizeof(event->outcome), after(line + 1, "\"outcome\":\""));
    }
    return trace;
}

void trace_unload(struct trace_file *trace)
{
    free(trace->text);
    free(trace->events);
}

const struct trace_event *trace_find(const struct trace_file *trace, fp8pipe_ticket ticket,
                                     char kind, const char *category)
{
    const struct trace_event *found = NULL;

    for (int i = 0; i < trace->count; i++) {
        const struct trace_event *event = &trace->events[i];

        if (event->ticket == ticket && event->kind == kind && !strcmp(event->category, category)) {
            if (found)
                return NULL;
            found = event;
        }
    }
    return found;
}

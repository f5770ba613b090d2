/*
 * Numbers of the examples and benchmarks, written as JSON one item after the other. What is asked
 * for is what is written: objects and lists are opened and ended by the caller, and where a line
 * begins it says itself. Without a file nothing is written, so that a program asks once.
 */
#ifndef JSON_H
#define JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct json {
    FILE *file;  /* NULL: nothing is written */
    bool behind; /* another item stands before the next, in the same object or list */
    int indent;  /* items and ends begin a line, behind so many blanks; -1: they do not */
    int failure; /* errno of a file that was not to be emptied, or 0 */
};

/* `file` (or NULL), nothing written to it yet, is the writer's until json_close. What a regular one
 * had in it is gone from here on: a program that refuses to run does so before. */
struct json json_to(FILE *file);
/* A last line end. 0, or -1 with errno if not all of it could be written. */
int json_close(struct json *json);

/* Items and ends from here on begin a line each, behind so many blanks; -1: they go on in it. */
void json_lines(struct json *json, int indent);

/* `name`: NULL in a list. */
void json_object(struct json *json, const char *name);
void json_object_end(struct json *json);
void json_list(struct json *json, const char *name);
void json_list_end(struct json *json);
/* Without control bytes; U+FFFD stands for each byte that is not of UTF-8. */
void json_text(struct json *json, const char *name, const char *text);
void json_truth(struct json *json, const char *name, bool value);
void json_integer(struct json *json, const char *name, int64_t value);
/* Of nine digits, or of so many behind the point; null if it is not finite. */
void json_number(struct json *json, const char *name, double value);
void json_fixed(struct json *json, const char *name, int decimals, double value);

#endif

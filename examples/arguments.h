/*
 * Command lines of the examples and benchmarks, from a table of options: `--name VALUE`,
 * `--name=VALUE` and, of flags, `--name`. A refused one is answered with one sentence that names
 * the option, its value and the rule.
 */
#ifndef ARGUMENTS_H
#define ARGUMENTS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum argument_kind {
    ARGUMENT_FLAG,   /* bool: set to true, takes no value */
    ARGUMENT_NUMBER, /* int64_t, from least to most */
    ARGUMENT_REAL,   /* double, above 0, at most 1 */
    ARGUMENT_TEXT,   /* const char *, not empty: argv's own */
    ARGUMENT_OUTPUT, /* FILE *, opened for writing; json_to empties it */
    ARGUMENT_CHOICE, /* an enum: the value of the choice that is named */
    ARGUMENT_SWITCH  /* bool, by the name of a choice */
};

struct argument_choice {
    const char *name;
    int value;
};

struct argument {
    const char *name; /* "--depth"; NULL ends a table */
    enum argument_kind kind;
    size_t offset; /* of the field in what is filled */
    int64_t least;
    int64_t most;
    const struct argument_choice *choices; /* ended by a NULL */
    const char *help;                      /* with the default in brackets */
};

struct argument_program {
    const char *name;
    const char *about; /* what it does, in a sentence */
};

/* Fills the fields of the options that are given. Returns 0, or -1 with a sentence in error. */
int arguments_parse(const struct argument *known, int argc, char **argv, void *fields, char *error,
                    size_t error_bytes);

/* For a main with nothing else to refuse: a command line that is refused ends the program with
 * status 2, `--help`, a flag of the table, with arguments_help and status 0. */
void arguments_take(const struct argument_program *program, const struct argument *known, int argc,
                    char **argv, void *fields);

/* How the program is called, what it does, and a line for each option. */
void arguments_help(FILE *file, const struct argument_program *program,
                    const struct argument *known);

#endif

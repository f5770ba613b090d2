#include "arguments.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ERROR_BYTES 512

static int set_number(const struct argument *argument, const char *value, int64_t *number,
                      char *error, size_t error_bytes)
{
    char *end;
    long long parsed;

    errno = 0;
    parsed = strtoll(value, &end, 10);
    if (errno != 0 || end == value || *end != '\0' || parsed < argument->least ||
        parsed > argument->most) {
        snprintf(error, error_bytes, "%s is '%s', but must be a whole number from %lld to %lld",
                 argument->name, value, (long long)argument->least, (long long)argument->most);
        return -1;
    }
    *number = parsed;
    return 0;
}

static int set_real(const struct argument *argument, const char *value, double *number, char *error,
                    size_t error_bytes)
{
    char *end;
    double parsed = strtod(value, &end);

    if (end == value || *end != '\0' || !(parsed > 0.0 && parsed <= 1.0)) {
        snprintf(error, error_bytes, "%s is '%s', but must be a number above 0, at most 1",
                 argument->name, value);
        return -1;
    }
    *number = parsed;
    return 0;
}

static int set_text(const struct argument *argument, const char *value, const char **text,
                    char *error, size_t error_bytes)
{
    if (value[0] == '\0') {
        snprintf(error, error_bytes, "%s is '', but must not be empty", argument->name);
        return -1;
    }
    *text = value;
    return 0;
}

/* What is in the file stays: the program may yet refuse to run. */
static int set_output(const struct argument *argument, const char *value, FILE **file, char *error,
                      size_t error_bytes)
{
    int fd = open(value, O_WRONLY | O_CREAT, 0666);
    FILE *opened = fd >= 0 ? fdopen(fd, "w") : NULL;

    if (!opened) {
        snprintf(error, error_bytes, "%s is '%s', which cannot be written: %s", argument->name,
                 value, strerror(errno));
        if (fd >= 0) {
            close(fd);
        }
        return -1;
    }
    *file = opened;
    return 0;
}

static int set_choice(const struct argument *argument, const char *value, void *field, char *error,
                      size_t error_bytes)
{
    size_t used;

    for (const struct argument_choice *choice = argument->choices; choice->name; choice++) {
        if (strcmp(value, choice->name) != 0) {
            continue;
        }
        if (argument->kind == ARGUMENT_SWITCH) {
            *(bool *)field = choice->value;
        } else {
            *(int *)field = choice->value;
        }
        return 0;
    }
    used = (size_t)snprintf(error, error_bytes, "%s is '%s', but must be one of", argument->name,
                            value);
    for (const struct argument_choice *choice = argument->choices;
         choice->name && used < error_bytes; choice++) {
        used += (size_t)snprintf(error + used, error_bytes - used, " %s", choice->name);
    }
    return -1;
}

static int set(const struct argument *argument, const char *value, void *field, char *error,
               size_t error_bytes)
{
    switch (argument->kind) {
    case ARGUMENT_NUMBER:
        return set_number(argument, value, field, error, error_bytes);
    case ARGUMENT_REAL:
        return set_real(argument, value, field, error, error_bytes);
    case ARGUMENT_TEXT:
        return set_text(argument, value, field, error, error_bytes);
    case ARGUMENT_OUTPUT:
        return set_output(argument, value, field, error, error_bytes);
    case ARGUMENT_CHOICE:
    case ARGUMENT_SWITCH:
        return set_choice(argument, value, field, error, error_bytes);
    case ARGUMENT_FLAG:
        break;
    }
    *(bool *)field = true;
    return 0;
}

static const struct argument *find(const struct argument *known, const char *name, size_t length)
{
    while (known->name &&
           !(strlen(known->name) == length && memcmp(known->name, name, length) == 0)) {
        known++;
    }
    return known->name ? known : NULL;
}

int arguments_parse(const struct argument *known, int argc, char **argv, void *fields, char *error,
                    size_t error_bytes)
{
    for (int i = 1; i < argc; i++) {
        size_t length = strcspn(argv[i], "=");
        const char *value = argv[i][length] == '=' ? argv[i] + length + 1 : NULL;
        const struct argument *argument = find(known, argv[i], length);

        if (!argument) {
            snprintf(error, error_bytes, "%.*s is not an option; --help lists them", (int)length,
                     argv[i]);
            return -1;
        }
        if (argument->kind == ARGUMENT_FLAG && value) {
            snprintf(error, error_bytes, "%s is '%s', but takes no value", argument->name, value);
            return -1;
        }
        if (argument->kind != ARGUMENT_FLAG && !value) {
            if (++i == argc) {
                snprintf(error, error_bytes, "%s is the last argument, but needs a value",
                         argument->name);
                return -1;
            }
            value = argv[i];
        }
        if (set(argument, value, (char *)fields + argument->offset, error, error_bytes) != 0) {
            return -1;
        }
    }
    return 0;
}

void arguments_help(FILE *file, const struct argument_program *program,
                    const struct argument *known)
{
    int width = 0;

    fprintf(file, "usage: %s [OPTION [VALUE]]...\n%s\n\n", program->name, program->about);
    for (const struct argument *argument = known; argument->name; argument++) {
        int length = (int)strlen(argument->name);

        width = length > width ? length : width;
    }
    for (const struct argument *argument = known; argument->name; argument++) {
        fprintf(file, "  %-*s %s\n", width, argument->name, argument->help);
    }
}

void arguments_take(const struct argument_program *program, const struct argument *known, int argc,
                    char **argv, void *fields)
{
    const struct argument *help = find(known, "--help", strlen("--help"));
    char error[ERROR_BYTES];

    if (arguments_parse(known, argc, argv, fields, error, sizeof(error)) != 0) {
        fprintf(stderr, "%s: %s\n", program->name, error);
        exit(2);
    }
    if (help && *(const bool *)((const char *)fields + help->offset)) {
        arguments_help(stdout, program, known);
        exit(0);
    }
}

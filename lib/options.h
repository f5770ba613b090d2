/*
 * Structs with a size in front, across versions of the header. Leaf.
 */
#ifndef LIB_OPTIONS_H
#define LIB_OPTIONS_H

#include <stddef.h>
#include <string.h>

#include "fp8pipe.h"

/* options_read of a struct of another size, or of NULL. */
enum fp8pipe_status options_convert(const char *name, const void *given, const void *defaults,
                                    size_t known, size_t least, void *room, const void **read);

/*
 * Gives a struct of the size known here for one that the caller compiled: `given` itself if it has
 * that size; else `room`, filled with the defaults and overwritten by what was given. A struct
 * shorter than `least` bytes, or longer with a tail that is not zero, is EINVAL.
 * name: of the struct's argument, for the sentence.
 */
static inline enum fp8pipe_status options_read(const char *name, const void *given,
                                               const void *defaults, size_t known, size_t least,
                                               void *room, const void **read)
{
    size_t size;

    if (given != NULL) {
        memcpy(&size, given, sizeof(size));
        if (size == known) {
            *read = given;
            return FP8PIPE_OK;
        }
    }
    return options_convert(name, given, defaults, known, least, room, read);
}

/* Whether a struct that a call fills in has a size that this library can fill in. */
enum fp8pipe_status options_check_out(const char *name, const void *out, size_t known);

/* Fills in a struct of options_check_out, as much as the caller's has of it; keeps its size. */
void options_write(void *out, const void *filled, size_t known);

/* The checked and completed options of a pipe. */
enum fp8pipe_status options_check(const struct fp8pipe_options *options,
                                  struct fp8pipe_options *checked);

#endif

/*
 * Blocking moves of device state to the host and back, through page-locked memory: an op that
 * copies between the two, and the wait for it. For entry points, outside of pipe_enter.
 */
#ifndef LIB_MOVE_H
#define LIB_MOVE_H

#include <stddef.h>

#include "fp8pipe.h"

struct move {
    size_t bytes;
    /* Enqueues the op that moves the image; writes the image first, if it goes to the device. */
    enum fp8pipe_status (*submit)(void *arg, void *image, fp8pipe_ticket *ticket);
    /* Reads the image once the op is done. NULL: nothing comes back. */
    void (*take)(void *arg, const void *image);
};

/* EDEADLK inside functions and defers. */
enum fp8pipe_status move_run(struct fp8pipe *pipe, const struct move *move, void *arg);

#endif

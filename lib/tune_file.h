/*
 * Owns the files of tuned GEMM plans: text, one section for each card and version of the library
 * that runs the GEMMs, and a checksum over all of it in the last line, so that a file with any byte
 * changed, missing or added is known for damaged.
 *
 *     fp8pipe tune file 1
 *     card LIBRARY_VERSION CAPABILITY MULTIPROCESSORS DEVICE NAME
 *     plan KEY ALGORITHM                  both in hexadecimal, as many as there are
 *     end CHECKSUM
 *
 * A file is replaced by renaming a complete one over it, under a lock on FILE.lock: readers see the
 * old or the new one, and no writer's plans are lost, however many processes write at once. Knows
 * nothing of what keys and algorithms are, nor of CUDA. Any thread.
 */
#ifndef LIB_TUNE_FILE_H
#define LIB_TUNE_FILE_H

#include <stdbool.h>

#include "tune_table.h"

/*
 * Adds a file's plans for the card to the table. ESTATE: it is damaged, of another format, or no
 * such file at all; ENOTSUP: it has none for this card and library; EINVAL: it cannot be read, or
 * is not there; ENOMEM. The sentence says what of it.
 */
enum fp8pipe_status tune_file_read(const char *path, const struct tune_card *card,
                                   struct tune_table *table);

/* Whether a write could begin: makes FILE.lock. EINVAL. */
enum fp8pipe_status tune_file_check(const char *path);

/*
 * Writes the table's plans for the card, merged with what the file has: other sections stay, so do
 * this section's plans of other keys. A damaged file is replaced, and *damaged set. Waits for the
 * lock for 30 seconds at most.
 * EINVAL: it cannot be written; ESTATE: what is there is no tune file, or of another format, and is
 * left alone; ETIMEDOUT; ENOMEM.
 */
enum fp8pipe_status tune_file_write(const char *path, const struct tune_card *card,
                                    const struct tune_table *table, bool *damaged);

#endif

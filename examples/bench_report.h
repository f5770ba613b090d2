/*
 * What dit_bench prints and writes. No time is told of a run that was not finite.
 */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include <stdio.h>

#include "bench_options.h"
#include "bench_run.h"

void bench_report_print(FILE *file, const struct bench_options *options,
                        const struct bench_result *result);

/* One object with a list of rows, one row: the run. 0, or -1 if the file could not be written. */
int bench_report_json(const char *path, int argc, char **argv, const struct bench_options *options,
                      const struct bench_result *result);

/* 0, or -1 if the path cannot be written; what is there stays. */
int bench_report_path_check(const char *path);

#endif

/*
 * Reads the file of a trace back, for tests: checks that it is JSON, and finds its events, each of
 * which is a line. Bails out where there is nothing to look at.
 */
#ifndef TESTS_TRACE_FILE_H
#define TESTS_TRACE_FILE_H

#include "fp8pipe.h"

struct trace_event {
    char kind; /* "ph" */
    char category[8];
    int track; /* "tid" */
    char name[64];
    double at_us;
    double took_us;
    unsigned long long ticket;
    char outcome[12];
};

struct trace_file {
    char *text;
    struct trace_event *events;
    int count;
    long dropped;
    long ops;
};

/* One test: that the file is JSON. */
struct trace_file trace_load(const char *path);
void trace_unload(struct trace_file *trace);

/* The one event of a kind ("ph") and category that a ticket has, NULL if it has none, or more. */
const struct trace_event *trace_find(const struct trace_file *trace, fp8pipe_ticket ticket,
                                     char kind, const char *category);

#endif

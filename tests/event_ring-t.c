/*
 * Guards the done mark: however many of a lane's ops have finished, a look finds them all and no
 * other, with few queries, and an error ends it.
 */
#include <string.h>

#include "async.h"
#include "event_ring.h"

#define SLOTS 2048
#define OPS 400

/* A backend whose events are numbered, of which those below `finished` have passed. */
struct counter {
    struct backend backend;
    uintptr_t made;
    uintptr_t finished;
    bool broken;
    int queries;
};

static enum fp8pipe_status make(struct backend *backend, struct backend_event **event)
{
    struct counter *counter = (struct counter *)(void *)backend;

    *event = (struct backend_event *)++counter->made; /* NOLINT */
    return FP8PIPE_OK;
}

static void end(struct backend *backend, struct backend_event *event)
{
    (void)backend, (void)event;
}

static enum fp8pipe_status query(struct backend *backend, struct backend_event *event, bool *done)
{
    struct counter *counter = (struct counter *)(void *)backend;

    counter->queries++;
    *done = (uintptr_t)event < counter->finished;
    return counter->broken ? FP8PIPE_EDEVICE : FP8PIPE_OK;
}

static const struct backend_ops ops = {
    .name = "numbers",
    .event_create = make,
    .event_destroy = end,
    .event_query = query,
};

struct lane_of {
    struct counter counter;
    struct log log;
    struct fault fault;
    struct port port;
    struct event_ring ring;
    uint64_t positions[OPS + 1]; /* of the ops, then the end of the last */
};

/* OPS issued ops of 1 to 5 slots; op i has the event 2 + i. */
static void lane_make(struct lane_of *lane)
{
    const uint64_t entry[RING_ENTRY_BYTES_MAX / sizeof(uint64_t)] = {0};
    struct test_rng rng = {3};
    uint64_t position = 0;

    memset(lane, 0, sizeof(*lane));
    lane->counter.backend.ops = &ops;
    log_init(&lane->log, FP8PIPE_LOG_NONE, NULL, NULL);
    fault_init(&lane->fault, &lane->log, &lane->port, 1);
    must(port_init(&lane->port, SLOTS, 0, 0));
    must(event_ring_init(&lane->ring, &lane->counter.backend, &lane->port, &lane->fault, SLOTS));
    for (int i = 0; i < OPS; i++) {
        uint32_t slots = (uint32_t)test_random_range(&rng, 1, 5);

        if (ring_claim(&lane->port.ring, slots, &position) != RING_CLAIMED)
            bail("no room in the ring");
        lane->positions[i] = position;
        must(event_ring_prepare(&lane->ring, position, slots));
        ring_publish(&lane->port.ring, position, entry, slots * RING_SLOT_BYTES - 8);
        ring_advance(&lane->port.ring, slots);
        lane->positions[i + 1] = position + slots;
    }
}

static void lane_free(struct lane_of *lane)
{
    event_ring_free(&lane->ring);
    port_retire(&lane->port);
}

static void finds_all(void)
{
    struct lane_of lane;
    int wrong = 0, most = 0;

    for (uintptr_t finished = 0; finished <= OPS; finished++) {
        lane_make(&lane);
        lane.counter.finished = 2 + finished;
        event_ring_reap(&lane.ring);
        wrong +=
            port_done(&lane.port) != lane.positions[finished] || lane.ring.done_ops != finished;
        most = lane.counter.queries > most ? lane.counter.queries : most;
        lane_free(&lane);
    }
    is_int(wrong, 0, "a look finds what has finished, however much that is");
    ok(most <= 20, "with few queries (%d for up to %d ops)", most, OPS);
}

/* Looks at random times, as more and more finishes. */
static void goes_on(void)
{
    struct test_rng rng = {8};
    struct lane_of lane;
    uintptr_t finished = 0;
    int wrong = 0;

    lane_make(&lane);
    while (finished < OPS) {
        finished += (uintptr_t)test_random_range(&rng, 0, 40);
        finished = finished < OPS ? finished : OPS;
        lane.counter.finished = 2 + finished;
        event_ring_reap(&lane.ring);
        wrong +=
            port_done(&lane.port) != lane.positions[finished] || lane.ring.done_ops != finished;
    }
    is_int(wrong, 0, "so does each look of a row of them");
    lane.counter.queries = 0;
    event_ring_reap(&lane.ring);
    is_int(lane.counter.queries, 0, "and nothing is asked once all is done");
    lane_free(&lane);
}

static void ends(void)
{
    struct lane_of lane;

    lane_make(&lane);
    lane.counter.finished = 2 + 7;
    event_ring_reap(&lane.ring);
    lane.counter.broken = true;
    event_ring_reap(&lane.ring);
    is_int(port_done(&lane.port), lane.positions[7], "an error leaves the mark where it was");
    ok(fault_status(&lane.fault) == FP8PIPE_EDEVICE, "and raises the fault");
    lane.counter.queries = 0;
    event_ring_reap(&lane.ring);
    is_int(lane.counter.queries, 0, "after which nobody asks");
    lane_free(&lane);
}

int main(void)
{
    watchdog("events", 60);
    finds_all();
    goes_on();
    ends();
    return done_testing();
}

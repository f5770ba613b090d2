/*
 * Guards who may give a filling's memory back: the last hold, the last use of each lane however
 * submits overtake each other, and how far these uses are.
 */
#include <string.h>

#include "async.h"
#include "tensor.h"

#define LANES 3
#define SLOTS 64

/* ---- Lanes without launchers, and a backend that only takes notes ------------------------- */

#define NOTES_MAX 8

struct notes {
    struct backend backend;
    int count;
    char note[NOTES_MAX]; /* 'w': a stream waits for an event, 'f': memory is freed */
    const void *what[NOTES_MAX];
    int allocs;
    int allocs_left;
};

static void take_note(struct backend *backend, char note, const void *what)
{
    struct notes *notes = (struct notes *)(void *)backend;

    if (notes->count == NOTES_MAX)
        bail("more than %d calls of the backend", NOTES_MAX);
    notes->note[notes->count] = note;
    notes->what[notes->count++] = what;
}

static enum fp8pipe_status note_event(struct backend *backend, struct backend_event **event)
{
    static char events[LANES * SLOTS + LANES];
    static size_t made;

    (void)backend;
    *event = (struct backend_event *)(void *)&events[made++ % sizeof(events)];
    return FP8PIPE_OK;
}

static void note_event_end(struct backend *backend, struct backend_event *event)
{
    (void)backend, (void)event;
}

static enum fp8pipe_status note_wait(struct backend *backend, struct fp8pipe_stream *stream,
                                     struct backend_event *event)
{
    (void)stream;
    take_note(backend, 'w', event);
    return FP8PIPE_OK;
}

/* Memory for whoever asks, while allocs_left says that it is to be had. */
static unsigned char note_memory[4][64];

static enum fp8pipe_status note_alloc(struct backend *backend, struct fp8pipe_stream *stream,
                                      size_t bytes, void **data)
{
    struct notes *notes = (struct notes *)(void *)backend;

    (void)stream, (void)bytes;
    if (notes->allocs == notes->allocs_left)
        return FP8PIPE_ENOMEM;
    *data = note_memory[notes->allocs++];
    return FP8PIPE_OK;
}

static void note_free(struct backend *backend, struct fp8pipe_stream *stream, void *data,
                      size_t bytes)
{
    (void)stream, (void)bytes;
    take_note(backend, 'f', data);
}

static const struct backend_ops note_ops = {
    .name = "notes",
    .event_create = note_event,
    .event_destroy = note_event_end,
    .stream_wait = note_wait,
    .alloc = note_alloc,
    .free = note_free,
};

struct lanes {
    struct notes notes;
    struct fault fault;
    struct port ports[LANES];
    struct event_ring rings[LANES];
    struct filling_pool pool;
    struct issue issue; /* of the op at position 3 of lane 0 */
};

static void lanes_make(struct lanes *lanes)
{
    memset(lanes, 0, sizeof(*lanes));
    lanes->notes.backend.ops = &note_ops;
    fault_init(&lanes->fault, NULL, lanes->ports, LANES);
    for (uint32_t i = 0; i < LANES; i++) {
        must(port_init(&lanes->ports[i], SLOTS, 0, 0));
        must(event_ring_init(&lanes->rings[i], &lanes->notes.backend, &lanes->ports[i],
                             &lanes->fault, SLOTS));
        for (uint64_t position = 0; position < SLOTS; position++)
            must(event_ring_prepare(&lanes->rings[i], position, 1));
    }
    filling_pool_init(&lanes->pool, LANES);
    lanes->issue = (struct issue){
        .backend = &lanes->notes.backend, .lanes = LANES, .position = 3, .rings = lanes->rings};
}

static void lanes_free(struct lanes *lanes)
{
    filling_pool_free(&lanes->pool);
    for (uint32_t i = 0; i < LANES; i++) {
        event_ring_free(&lanes->rings[i]);
        port_retire(&lanes->ports[i]);
    }
}

static struct filling *filling_make(struct lanes *lanes)
{
    struct filling *filling = filling_get(&lanes->pool, false);

    if (filling == NULL)
        bail("no filling");
    return filling;
}

/* As if the lane's ops at positions below these were issued, and done. */
static void lane_at(struct lanes *lanes, uint32_t lane, uint64_t issued, uint64_t done)
{
    struct ring *ring = &lanes->ports[lane].ring;
    const uint64_t entry = 0;
    uint64_t position;

    while (ring_tail(ring) < issued) {
        if (ring_claim(ring, 1, &position) != RING_CLAIMED)
            bail("no room in a ring");
        ring_publish(ring, position, &entry, sizeof(entry));
        ring_advance(ring, 1);
    }
    port_done_set(&lanes->ports[lane], done);
}

/* ---- Holds and uses ----------------------------------------------------------------------- */

static void holds(void)
{
    struct filling *filling;
    struct lanes lanes;

    lanes_make(&lanes);
    filling = filling_make(&lanes);
    filling_hold(filling);
    filling_hold(filling);
    ok(!filling_drop(filling) && !filling_drop(filling),
       "a drop that leaves a hold is not the last");
    ok(filling_drop(filling), "the drop of the last hold is");
    filling_put(filling);
    ok(filling_make(&lanes) == filling && filling->holders == 1,
       "the pool hands the filling out again, with one hold");
    filling_put(filling);
    lanes_free(&lanes);
}

/* Submits claim positions in one order, and may come to mark their uses in another. */
static void last_uses(void)
{
    struct filling *filling;
    struct lanes lanes;

    lanes_make(&lanes);
    filling = filling_make(&lanes);
    filling_use(filling, 0, 7);
    is_int(filling->last[0], 8, "a lane's last use is kept");
    filling_use(filling, 0, 3);
    is_int(filling->last[0], 8, "one holder: an earlier use does not lower it");
    filling_use(filling, 0, 9);
    is_int(filling->last[0], 10, "one holder: a later use raises it");
    filling_hold(filling);
    filling_use(filling, 0, 4);
    is_int(filling->last[0], 10, "two holders: an earlier use does not lower it");
    filling_use(filling, 0, 11);
    is_int(filling->last[0], 12, "two holders: a later use raises it");
    ok(filling->last[1] == 0 && filling->last[2] == 0, "lanes are apart");
    filling_put(filling);
    lanes_free(&lanes);
}

#define USERS 4
#define USES 2000

struct user {
    struct filling *filling;
    uint64_t first;
};

/* Uses with a hold of its own, which it drops: the last one's uses are plain stores. */
static void *uses_often(void *arg)
{
    struct user *user = arg;

    for (uint64_t i = USES; i-- > 0;)
        filling_use(user->filling, 0, user->first + i * USERS);
    filling_drop(user->filling);
    return NULL;
}

static void uses_at_once(void)
{
    struct user users[USERS];
    pthread_t threads[USERS];
    struct filling *filling;
    struct lanes lanes;
    int wrong = 0;

    lanes_make(&lanes);
    for (int round = 0; round < 20; round++) {
        filling = filling_make(&lanes);
        for (int i = 1; i < USERS; i++)
            filling_hold(filling);
        for (uint64_t i = 0; i < USERS; i++) {
            users[i] = (struct user){filling, i};
            threads[i] = test_thread(uses_often, &users[i]);
        }
        for (int i = 0; i < USERS; i++)
            test_join(threads[i]);
        wrong += filling->last[0] != USERS * USES;
        filling_put(filling);
    }
    is_int(wrong, 0, "of threads that use and let go of a filling the last position is kept");
    lanes_free(&lanes);
}

/* ---- How far the uses are ----------------------------------------------------------------- */

static void own_lane(void)
{
    struct filling *filling;
    struct lanes lanes;

    lanes_make(&lanes);
    filling = filling_make(&lanes);
    is_int(filling_uses(filling, &lanes.issue), FILLING_DONE, "never used: done");
    lane_at(&lanes, 0, 3, 0);
    filling_use(filling, 0, 2);
    is_int(filling_uses(filling, &lanes.issue), FILLING_DONE,
           "a use before the op in its own lane needs no wait");
    filling_use(filling, 0, 3);
    is_int(filling_uses(filling, &lanes.issue), FILLING_DONE, "nor does the op's own");
    filling_use(filling, 0, 6);
    is_int(filling_uses(filling, &lanes.issue), FILLING_QUEUED,
           "a later use in the own lane is still to be issued");
    lane_at(&lanes, 0, 6, 4);
    is_int(filling_uses(filling, &lanes.issue), FILLING_QUEUED, "until the launcher is past it");
    lane_at(&lanes, 0, 7, 4);
    is_int(filling_uses(filling, &lanes.issue), FILLING_ISSUED, "then it is issued");
    lane_at(&lanes, 0, 7, 7);
    is_int(filling_uses(filling, &lanes.issue), FILLING_DONE, "and at last done");
    filling_put(filling);
    lanes_free(&lanes);
}

static void other_lanes(void)
{
    struct filling *filling;
    struct lanes lanes;

    lanes_make(&lanes);
    filling = filling_make(&lanes);
    filling_use(filling, 1, 1);
    filling_use(filling, 2, 4);
    is_int(filling_uses(filling, &lanes.issue), FILLING_QUEUED, "other lanes: both are queued");
    lane_at(&lanes, 1, 2, 2);
    is_int(filling_uses(filling, &lanes.issue), FILLING_QUEUED, "one is done, one still queued");
    lane_at(&lanes, 2, 5, 4);
    is_int(filling_uses(filling, &lanes.issue), FILLING_ISSUED, "that one is issued");
    lane_at(&lanes, 2, 5, 5);
    is_int(filling_uses(filling, &lanes.issue), FILLING_DONE, "and done");

    lanes.issue.lane = ISSUE_NO_LANE;
    lanes.issue.position = 0;
    filling_use(filling, 0, 0);
    is_int(filling_uses(filling, &lanes.issue), FILLING_QUEUED,
           "outside of the lanes every use counts, the first one too");
    lane_at(&lanes, 0, 1, 1);
    is_int(filling_uses(filling, &lanes.issue), FILLING_DONE, "until it is done");
    filling_put(filling);
    lanes_free(&lanes);
}

static void release(void)
{
    unsigned char memory[2];
    struct filling *filling;
    struct notes *notes;
    struct lanes lanes;

    lanes_make(&lanes);
    notes = &lanes.notes;
    filling = filling_make(&lanes);
    filling_use(filling, 0, 2);
    filling_use(filling, 1, 5);
    filling_use(filling, 2, 8);
    filling->block[0].data = &memory[0];
    filling->block[1].data = &memory[1];
    lane_at(&lanes, 0, 4, 0);
    lane_at(&lanes, 1, 6, 6);
    lane_at(&lanes, 2, 9, 3);
    ok(filling_drop(filling), "nothing holds it");
    filling_release(filling, &lanes.issue);
    is_int(notes->count, 3, "one wait and two frees");
    ok(notes->note[0] == 'w' && notes->what[0] == lanes.rings[2].events[8],
       "first a wait for the use that is not done, of another lane");
    ok(notes->note[1] == 'f' && notes->note[2] == 'f' && notes->what[1] == &memory[0] &&
           notes->what[2] == &memory[1],
       "then both blocks are freed");
    ok(filling_make(&lanes) == filling, "and the filling is back in its pool");
    filling_put(filling);
    lanes_free(&lanes);
}

/* ---- Parts -------------------------------------------------------------------------------- */

static struct filling *parted_make(struct lanes *lanes)
{
    struct filling *filling = filling_get(&lanes->pool, true);

    if (filling == NULL)
        bail("no filling");
    filling_shape(filling, 16, 32, FP8PIPE_E4M3, true, true);
    return filling;
}

static void parts(void)
{
    struct filling *filling, *part;
    struct notes *notes;
    struct lanes lanes;

    lanes_make(&lanes);
    notes = &lanes.notes;
    notes->allocs_left = 2;
    filling = parted_make(&lanes);
    part = filling->part;
    ok(part != NULL && part != filling && part->holders == 1, "a part has a hold of its own");
    must(filling_alloc(filling, &lanes.issue));
    ok(filling->block[0].data == note_memory[0] && part->block[0].data == note_memory[1] &&
           filling->block[0].bytes == 256 + 32 * 16 && part->block[0].bytes == 16 * 32,
       "its memory are the row-wise bytes, the filling's the others");
    ok(filling->row == note_memory[1] && (void *)filling->scale_inv == note_memory[0] &&
           filling->transposed_data == note_memory[0] + 256,
       "the filling says where all are");
    filling_use(filling, 0, 9);
    filling_use(part, 0, 2);
    lane_at(&lanes, 0, 4, 0);
    ok(filling_drop(part), "nothing holds the part");
    is_int(filling_uses(part, &lanes.issue), FILLING_DONE, "a later use of the rest is none of it");
    is_int(filling_uses(filling, &lanes.issue), FILLING_QUEUED, "the rest is still used");
    filling_release(part, &lanes.issue);
    ok(notes->count == 1 && notes->what[0] == note_memory[1], "the row-wise bytes alone are freed");
    lane_at(&lanes, 0, 10, 10);
    ok(filling_drop(filling), "nothing holds the rest");
    filling_release(filling, &lanes.issue);
    ok(notes->count == 2 && notes->what[1] == note_memory[0], "then the rest is");
    ok(filling_make(&lanes) == filling && filling->part == NULL && filling_make(&lanes) == part,
       "both are back in the pool");
    filling_put(filling);
    filling_undo(part);

    filling = parted_make(&lanes);
    part = filling->part;
    notes->allocs = 0;
    notes->allocs_left = 1;
    notes->count = 0;
    is_int(filling_alloc(filling, &lanes.issue), FP8PIPE_ENOMEM, "memory for one of them only");
    filling_drop(part);
    filling_release(part, &lanes.issue);
    filling_drop(filling);
    filling_release(filling, &lanes.issue);
    ok(notes->count == 1 && notes->what[0] == note_memory[0], "is given back all the same");
    filling = parted_make(&lanes);
    part = filling->part;
    filling_undo(filling);
    ok(filling_make(&lanes) == filling && filling_make(&lanes) == part, "undo gives both back");
    filling_put(filling);
    filling_put(part);
    lanes_free(&lanes);
}

int main(void)
{
    watchdog("fillings", 60);
    holds();
    last_uses();
    uses_at_once();
    own_lane();
    other_lanes();
    release();
    parts();
    return done_testing();
}

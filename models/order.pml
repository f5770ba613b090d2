/*
 * The order that the library adds by itself (lib/submit.c, lib/lane.c): submits of several threads on
 * two lanes, each op a user or a writer of one or both of two objects.
 *
 * Properties: every run ends with all threads at their ends and both launchers idle, so the edges
 * make no cycle; a writer is issued after all users and writers that were bound before it, a user
 * after all writers.
 *
 * Each thread takes the words of its op's objects in order, claims, binds and commits, publishes and
 * drops the words; on a full ring it drops them and waits. In ASYNC each lane has a launcher; with
 * INLINE the submitting thread issues, holding its lane's mutex from before the claim.
 *
 * Faults to put in: APART (claims before it takes the words), UNORDERED (takes the words in any
 * order), NO_USERS (writers wait for the last writer only).
 */
#define THREADS 3
#define OPS 4 /* one each, and one more for thread 0 */
#define LANES 2
#define SLOTS 2
#define OBJECTS 2

#define NONE 0
#define USE 1
#define WRITE 2

/* An object: its word, and position + 1 of its last writer and of each lane's last user since. */
typedef object {
    bool word;
    byte writer[LANES]; /* 0, but for the lane of the last one */
    byte user[LANES];
    byte users_bound;
    byte writers_bound;
    byte users_issued;
    byte writers_issued
};
object objects[OBJECTS];

/* An op in its lane. `after`: how far the other lane must be issued. The rest is for the property. */
typedef op {
    bool published;
    byte after;
    byte kind[OBJECTS];
    byte users[OBJECTS];
    byte writers[OBJECTS]
};
typedef lane {
    byte head;
    byte tail;
    bool mutex;
    op ops[SLOTS]
};
lane lanes[LANES];

#define THIS lanes[to].ops[position % SLOTS]
#define OLDEST lanes[at].ops[lanes[at].tail % SLOTS]

inline need(ticket)
{
    if
    :: ticket > THIS.after -> THIS.after = ticket
    :: else
    fi
}

/* bind and commit, for one object; tickets of the op's own lane are dropped */
inline bind(o, how)
{
    THIS.kind[o] = how;
    THIS.users[o] = objects[o].users_bound;
    THIS.writers[o] = objects[o].writers_bound;
    if
    :: how == USE ->
        need(objects[o].writer[1 - to]);
        objects[o].user[to] = position + 1;
        objects[o].users_bound++
    :: how == WRITE ->
        need(objects[o].writer[1 - to]);
#ifndef NO_USERS
        need(objects[o].user[1 - to]);
#endif
        objects[o].writer[to] = position + 1;
        objects[o].writer[1 - to] = 0;
        objects[o].user[0] = 0;
        objects[o].user[1] = 0;
        objects[o].writers_bound++
    :: else
    fi
}

/* The property, and the counts down to 0 once they say nothing more. */
inline issued(at, o)
{
    if
    :: OLDEST.kind[o] == USE ->
        assert(objects[o].writers_issued == OLDEST.writers[o]);
        objects[o].users_issued++
    :: OLDEST.kind[o] == WRITE ->
        assert(objects[o].writers_issued == OLDEST.writers[o]);
        assert(objects[o].users_issued == OLDEST.users[o]);
        objects[o].writers_issued++
    :: else
    fi;
    OLDEST.kind[o] = NONE;
    OLDEST.users[o] = 0;
    OLDEST.writers[o] = 0;
    if
    :: objects[o].users_issued == objects[o].users_bound &&
       objects[o].writers_issued == objects[o].writers_bound ->
        objects[o].users_issued = 0;
        objects[o].users_bound = 0;
        objects[o].writers_issued = 0;
        objects[o].writers_bound = 0
    :: else
    fi
}

/* What a lane does with its oldest op, which is published. */
inline issue(at)
{
    lanes[1 - at].tail >= OLDEST.after;
    d_step {
        issued(at, 0);
        issued(at, 1);
        OLDEST.after = 0;
        OLDEST.published = false;
        lanes[at].tail++
    }
}

inline lock(o, how)
{
    if
    :: how != NONE -> atomic { !objects[o].word -> objects[o].word = true }
    :: else
    fi
}

inline unlock()
{
    objects[0].word = objects[0].word && first == NONE;
    objects[1].word = objects[1].word && second == NONE
}

proctype submitter(byte ops)
{
    byte first, second, to, position;
    bool backwards, claimed;

    do
    :: ops == 0 -> break
    :: else ->
        atomic {
            if
            :: to = 0
            :: ops == 1 -> to = 1 /* the lanes are alike: thread 0 begins on lane 0 */
            fi;
            if
            :: first = USE; second = NONE
            :: first = WRITE; second = NONE
            :: first = USE; second = WRITE
            fi;
#ifdef UNORDERED
            if
            :: backwards = true
            :: backwards = false
            fi
#endif
        }
#ifdef INLINE
        atomic { !lanes[to].mutex -> lanes[to].mutex = true }
#endif
again:
#ifdef APART
        atomic {
            lanes[to].head - lanes[to].tail < SLOTS ->
            position = lanes[to].head;
            lanes[to].head++
        }
#endif
        if
        :: backwards -> lock(1, second); lock(0, first)
        :: else -> lock(0, first); lock(1, second)
        fi;
#ifndef APART
        atomic {
            claimed = lanes[to].head - lanes[to].tail < SLOTS;
            if
            :: claimed -> position = lanes[to].head; lanes[to].head++
            :: else
            fi
        }
        if
        :: !claimed ->
            d_step { unlock() }
            lanes[to].head - lanes[to].tail < SLOTS;
            goto again
        :: else
        fi;
#endif
        /* One step: nobody else may look at the objects, nor the launcher at the op, before its end. */
        d_step {
            bind(0, first);
            bind(1, second);
            THIS.published = true;
            unlock()
        }
#ifdef INLINE
        issue(to);
        lanes[to].mutex = false;
#endif
        ops--;
        /* States that differ in nothing else are one. */
        d_step {
            first = 0;
            second = 0;
            to = 0;
            position = 0;
            claimed = false;
            backwards = false
        }
    od
}

#ifndef INLINE
proctype launcher(byte at)
{
    do
    :: lanes[at].tail < OPS ->
end_idle:
        OLDEST.published;
        issue(at)
    :: else -> break
    od
}
#endif

init
{
    atomic {
        run submitter(2);
        run submitter(1);
        run submitter(1);
#ifndef INLINE
        run launcher(0);
        run launcher(1)
#endif
    }
}

/*
 * Closing a pipe while others use it (lib/pipe.c, lib/submit.c, lib/lane.c, lib/ring.c).
 *
 * Properties: nobody touches the crew or a ring's slots after they are freed; whoever is refused or
 * let in, everybody gets to his end, the closer too.
 *
 * One lane has a launcher (ASYNC), the other is issued by its submitters (INLINE). All that counts
 * here is a locked instruction or has a full barrier behind it, so that memory is in order.
 *
 * Faults to put in: NO_SECOND_CHECK (pipe_enter looks at the state only before it counts itself),
 * NO_INLINE_LOCK (close does not take the lane's mutex), NO_JOIN (close frees when all is issued,
 * without waiting for the launcher's end), NO_WAKE (pipe_leave does not wake close).
 */
#ifndef USERS
#define USERS 2
#endif
#ifndef SUBMITTERS
#define SUBMITTERS 1 /* of each lane */
#endif
#ifndef CLOSERS
#define CLOSERS 2
#endif

#define ASYNC 0
#define INLINE 1
#define SLOTS SUBMITTERS

mtype = { OPEN, CLOSING, CLOSED };
mtype state = OPEN;

/* What is freed; the rest is the shell, which stays. */
bool crew_freed;
bool slots_freed;

byte users;
byte idle; /* event count */

typedef port {
    bool closed; /* with the head one word */
    byte head;
    byte tail;
    bool published[SLOTS];
    bool mutex
};
port ports[2];
bool launcher_ended;

#define TOUCH_CREW assert(!crew_freed)
#define TOUCH_SLOTS assert(!slots_freed)

/* pipe_enter .. pipe_leave */
proctype user()
{
    if
    :: state != OPEN -> goto refused
    :: else
    fi;
    users++;
#ifndef NO_SECOND_CHECK
    if
    :: state != OPEN -> goto leave
    :: else
    fi;
#endif
    TOUCH_CREW;
    TOUCH_CREW;
leave:
    users--;
#ifndef NO_WAKE
    if
    :: state != OPEN -> idle++
    :: else
    fi;
#endif
refused:
    skip
}

/* ring_claim and ring_publish; the rings have room for all */
inline claim_and_publish(p)
{
    atomic {
        claimed = !ports[p].closed;
        if
        :: claimed -> position = ports[p].head; ports[p].head++
        :: else
        fi
    }
    if
    :: claimed ->
        TOUCH_SLOTS;
        d_step { TOUCH_SLOTS; ports[p].published[position] = true }
    :: else
    fi
}

/* lane.c's issue_op: the crew is touched after the slots are given back, too. */
inline issue(p)
{
    TOUCH_CREW;
    TOUCH_SLOTS;
    ports[p].tail++;
    TOUCH_CREW
}

proctype submitter()
{
    byte position;
    bool claimed;

    claim_and_publish(ASYNC)
}

proctype launcher()
{
    do
    :: ports[ASYNC].closed && ports[ASYNC].head == ports[ASYNC].tail -> break
    :: ports[ASYNC].head > ports[ASYNC].tail && ports[ASYNC].published[ports[ASYNC].tail] ->
        issue(ASYNC)
    od;
    TOUCH_CREW;
    launcher_ended = true
}

proctype inline_submitter()
{
    byte position;
    bool claimed;

    atomic { !ports[INLINE].mutex -> ports[INLINE].mutex = true }
    if
    :: ports[INLINE].closed
    :: else ->
        TOUCH_CREW;
        claim_and_publish(INLINE);
        if
        :: claimed -> issue(INLINE)
        :: else
        fi;
        TOUCH_CREW
    fi;
    ports[INLINE].mutex = false
}

proctype closer()
{
    byte seen;
    bool mine;

    atomic {
        mine = state == OPEN;
        if
        :: mine -> state = CLOSING
        :: else
        fi
    }
    if
    :: !mine -> goto refused
    :: else
    fi;
    ports[ASYNC].closed = true;
    ports[INLINE].closed = true;
    /* wind_down */
    TOUCH_CREW;
    ports[ASYNC].tail == ports[ASYNC].head;
#ifndef NO_INLINE_LOCK
    atomic { !ports[INLINE].mutex -> ports[INLINE].mutex = true }
    ports[INLINE].mutex = false;
    assert(ports[INLINE].tail == ports[INLINE].head);
#endif
    ports[INLINE].tail == ports[INLINE].head;
    do
    :: seen = idle;
        if
        :: users == 0 -> break
        :: else -> idle != seen
        fi
    od;
#ifndef NO_JOIN
    launcher_ended;
#endif
    crew_freed = true;
    slots_freed = true;
    state = CLOSED;
refused:
    skip
}

init
{
    byte i;

    atomic {
        for (i : 1 .. USERS) { run user() }
        for (i : 1 .. SUBMITTERS) {
            run submitter();
            run inline_submitter()
        }
        run launcher();
        for (i : 1 .. CLOSERS) { run closer() }
        i = 0
    }
}

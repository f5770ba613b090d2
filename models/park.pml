/*
 * Parking and waking at a ring (lib/ring.c, lib/ec.c), under total store order.
 *
 * Property: no launcher sleeps for ever while an entry is published, no producer while there is room:
 * every run ends with all producers and the consumer at their ends. The slow re-check of ec_await is
 * left out, so that only wake-ups end a sleep.
 *
 * Plain stores go through a first-in first-out buffer for each process; `stores` empties them whenever
 * it likes. Locked instructions and full barriers wait until their process's buffer is empty. No
 * process loads what it has itself in its buffer, so loads need not look there.
 *
 * Faults to put in: NO_PRODUCER_FENCE, NO_CONSUMER_FENCE.
 */
#define PRODUCERS 2
#define EACH 2 /* entries of a producer */
#define SLOTS 2
#define TOTAL (PRODUCERS * EACH)
#define CONSUMER PRODUCERS /* its number */
#define PROCESSES (PRODUCERS + 1)

/* Addresses: the sequence numbers of the slots, then these. */
#define PARKED SLOTS
#define TAIL (SLOTS + 1)
byte memory[SLOTS + 2];
byte head; /* only ever changed by locked instructions */

chan buffer[PROCESSES] = [2] of { byte, byte };

/* The two event counts, a word of count and flag each, and who sleeps on their futexes. */
#define FILLED 0
#define CONSUMED 1
typedef event_count {
    byte count;
    bool flagged;
    bool asleep[PROCESSES]
};
event_count ec[2];

#define BARRIER empty(buffer[me])
#define STORE(address, value) buffer[me]!address,value
/* A locked exchange; with the fault a plain store. */
#define EXCHANGE(address, value) atomic { BARRIER -> memory[address] = value }

active proctype stores()
{
    byte address, value;

end:
    do
    :: atomic { buffer[0]?address,value -> memory[address] = value }
    :: atomic { buffer[1]?address,value -> memory[address] = value }
    :: atomic { buffer[CONSUMER]?address,value -> memory[address] = value }
    od
}

/* ec_wake: a locked increment, then, if somebody flagged the word, the flag down and all awake. */
inline ec_wake(e)
{
    atomic { BARRIER -> flagged = ec[e].flagged; ec[e].count++ }
    if
    :: flagged ->
        atomic { BARRIER -> ec[e].flagged = false }
        d_step {
            ec[e].asleep[0] = false;
            ec[e].asleep[1] = false;
            ec[e].asleep[CONSUMER] = false
        }
    :: else
    fi
}

/* ec_sleep without a deadline: returns when the count is not `value` any more, or by chance. */
inline ec_sleep(e)
{
    do
    :: ec[e].count != value -> break
    :: else ->
        /* The compare and swap fails if the word is flagged already or has a new count. */
        atomic {
            BARRIER ->
            if
            :: ec[e].count == value -> ec[e].flagged = true
            :: else -> break
            fi
        }
        if
        :: !(ec[e].count == value && ec[e].flagged) -> break
        :: else
        fi;
        /* The kernel looks at the word and puts to sleep in one step. */
        atomic {
            if
            :: ec[e].count == value && ec[e].flagged -> ec[e].asleep[me] = true
            :: else
            fi
        }
        !ec[e].asleep[me]
    od
}

proctype producer(byte me)
{
    byte published, position, value;
    bool flagged;

    do
    :: published == EACH -> break
    :: else ->
        /* ring_claim */
        position = head;
        if
        :: position - memory[TAIL] < SLOTS ->
            if
            :: atomic { BARRIER && head == position -> head++ }
            :: atomic { BARRIER && head != position -> goto again }
            fi
        :: else ->
            /* ring_wait_room */
            do
            :: value = ec[CONSUMED].count;
                position = head;
                if
                :: position - memory[TAIL] < SLOTS -> break
                :: else -> ec_sleep(CONSUMED)
                fi
            od;
            goto again
        fi;
        /* ring_publish */
        assert(memory[position % SLOTS] == 0 || memory[position % SLOTS] == position + 1 - SLOTS);
#ifdef NO_PRODUCER_FENCE
        STORE(position % SLOTS, position + 1);
#else
        EXCHANGE(position % SLOTS, position + 1);
#endif
        if
        :: memory[PARKED] != 0 -> ec_wake(FILLED)
        :: else
        fi;
        published++;
again:
        skip
    od
}

proctype consumer(byte me)
{
    byte tail, value;
    bool flagged;

    do
    :: tail == TOTAL -> break
    :: else ->
        if
        :: memory[tail % SLOTS] == tail + 1 ->
            /* ring_advance */
            tail++;
            STORE(TAIL, tail);
            ec_wake(CONSUMED)
        :: else ->
            /* ring_wait_entry */
#ifdef NO_CONSUMER_FENCE
            STORE(PARKED, 1);
#else
            EXCHANGE(PARKED, 1);
#endif
            do
            :: value = ec[FILLED].count;
                if
                :: memory[tail % SLOTS] == tail + 1 -> break
                :: else -> ec_sleep(FILLED)
                fi
            od;
            STORE(PARKED, 0)
        fi
    od
}

init
{
    atomic {
        run producer(0);
        run producer(1);
        run consumer(CONSUMER)
    }
}

/*
 * Claim positions of one lane in one slot: two transactions enqueue, one claims and raises the floor,
 * a tick raises the base and lowers the floor. See core/position.sql.
 *
 * Each d_step is one statement with its snapshot. A number is drawn and inserted in two steps, as
 * by pgq_enqueue; "newest" stands for the row of pgq.floor with the highest n.
 */
// fault: NUMBER_FIRST an enqueue draws its number before its transaction id
// fault: MARK_LATE a claim reads the mark after it has drawn the id of its row
// fault: BASE_LIKE_FLOOR the base does not wait for old transactions
// fault: NEVER_LOWERED ticks do not lower the floor

#define OPEN 1      /* inserted, not committed */
#define READY 2
#define TAKEN 3     /* a claim that is not committed: still ready in snapshots */
#define LAST 2

byte number, xid, job[LAST + 1];
bool runs[10];      /* by transaction id */
hidden byte n, first;      /* for counting */
byte newest, floor, base, mark, mark_xid;
byte left = 3;
bool is_over;

/* The first job after a position that a snapshot shows. */
inline find_first(after, found) {
    found = LAST + 1; n = LAST;
    do
    :: n > after -> if :: job[n] == READY || job[n] == TAKEN -> found = n :: else fi; n--
    :: else -> break
    od
}

/* Whether a transaction below an id is running, those below p_old excepted. */
inline decide(until, p_old, answer) {
    answer = true; n = p_old;
    do
    :: n < until -> answer = answer && !runs[n]; n++
    :: else -> break
    od
}

active [2] proctype Enqueue() {
    byte mine, own;
#ifdef NUMBER_FIRST
    d_step { number++; own = number }
#endif
    d_step { xid++; mine = xid; runs[mine] = true }     /* and the lock on the slot */
#ifndef NUMBER_FIRST
    d_step { number++; own = number }
#endif
    job[own] = OPEN;
    if
    :: d_step { job[own] = READY; runs[mine] = false }
    :: d_step { job[own] = 0; runs[mine] = false }
    fi;
    left--
}

active proctype Claim() {
    byte taken, mine, seen, old, new_floor, new_base;
    bool is_decided;
    d_step {                                            /* for update skip locked */
        taken = 0; n = floor + 1;
        do
        :: n <= LAST && taken == 0 -> if :: job[n] == READY -> taken = n :: else fi; n++
        :: else -> break
        od;
        if :: taken > 0 -> job[taken] = TAKEN :: else fi
    }
    if :: old = 0 :: old = mark_xid fi;                 /* which transactions count as old */
#ifndef MARK_LATE
    seen = number;
#endif
    d_step {
        decide(mark_xid, old, is_decided);
        find_first(floor, first);
        new_floor = (first - 1 < mark -> first - 1 : mark);
        new_floor = (new_floor < floor -> floor : new_floor);
        new_base = base;
        xid++; mine = xid; runs[mine] = true
    }
#ifdef MARK_LATE
    seen = number;
#endif
    if
    :: d_step {
           if
           :: is_decided && mine > newest ->
              newest = mine; mark_xid = mine; mark = seen; floor = new_floor; base = new_base
           :: else
           fi;
           if :: taken > 0 -> job[taken] = 0 :: else fi; /* claimed, and completed */
           runs[mine] = false
       }
    :: d_step { if :: taken > 0 -> job[taken] = READY :: else fi; runs[mine] = false }
    fi;
    left--
}

inline tick() {
    /* Who writes to the slot, as the lock table tells. Claims are no matter: they add no job. */
    d_step { s_floor = floor; s_base = base; s_mark = mark; s_xid = mark_xid; decide(s_xid, 0, for_base) }
    if :: old = 0 :: old = s_xid fi;
#ifdef BASE_LIKE_FLOOR
    d_step { decide(s_xid, old, for_base) }
#endif
    d_step { find_first(s_base, live); free = (live <= s_floor -> live : LAST + 1) }
    seen = number;
    d_step {
        decide(s_xid, old, for_floor);
        find_first(s_floor, first);
        if
        :: for_base && live - 1 > s_base -> base = (live - 1 < s_mark -> live - 1 : s_mark)
        :: else -> base = s_base
        fi;
        base = (base < s_base -> s_base : base);
        floor = s_floor;
        if
        :: for_floor && first - 1 > floor && s_mark > floor ->
           floor = (first - 1 < s_mark -> first - 1 : s_mark)
        :: else
        fi;
        floor = (base > floor -> base : floor);
#ifndef NEVER_LOWERED
        floor = (free - 1 < floor -> free - 1 : floor);
#endif
        xid++; newest = xid;
        if
        :: for_floor && for_base -> mark = seen; mark_xid = xid
        :: else -> mark = s_mark; mark_xid = s_xid
        fi
    }
}

active proctype Tick() {
    byte s_floor, s_base, s_mark, s_xid, old, live, free, seen;
    bool for_floor, for_base;
    tick();
    left == 0;
    tick();
    is_over = true
}

/* Nothing is lost below a base, and what was overlooked is found by a tick. */
#define BEHIND(n) (job[n] == 0 || n > base)
ltl base_is_sound { [] (BEHIND(1) && BEHIND(2)) }
#define FOUND(n) (job[n] != READY || n > floor)
ltl all_are_found { [] (is_over -> FOUND(1) && FOUND(2)) }

/*
 * Slot 0 is cleaned: a tick announces slot 1 as its successor, moves the job, and truncates slot 0.
 * Meanwhile one session claims the job and completes it with its receipt, another claims and raises
 * the floor of the slot that is filled. See core/clean.sql and core/settle.sql.
 *
 * The job has number 1. A floor of 2 in slot 1 stands for a higher number that was claimed there.
 */
// fault: ONE_LOOK a receipt is looked for in the slot of its token only
// fault: ONE_SNAPSHOT all slots are looked at in one snapshot, and the job moves meanwhile
// fault: FLOOR_WHILE_FILLING claims raise the floor of the slot that is being filled
// fault: TWO_COMMITS the job is deleted in one transaction and inserted in the next

#define NOWHERE 2

byte place = 0;          /* the slot in which new snapshots show the job */
bool is_locked;          /* by an open transaction: a claim, a completion or the move */
bool is_leased, is_done, was_refused, was_truncated, is_over;
byte floor;              /* of slot 1 */
bool is_filling;
byte left = 2;

/* Deletes the job if a snapshot shows it in a slot; waits for who has it locked, and looks again. */
inline look(slot) {
    if
    :: !found ->
       if
       :: place == slot ->
          if
          :: atomic { place == slot && !is_locked -> is_locked = true; found = true }
          :: place != slot                              /* it was moved while this waited */
          fi
       :: else
       fi
    :: else
    fi
}

active proctype Consumer() {
    bool found;
    byte slot, seen;
    /* a claim: slot 0 first, then slot 1, if the ring names it; each with a snapshot of its own */
    do
    :: slot = 0;
       do
       :: atomic {
              place == slot && !is_locked && !(slot == 1 && floor >= 1) ->
              is_locked = true
          };
          d_step { is_leased = true; is_locked = false };
          seen = slot;                                  /* the token names it */
          goto complete
       :: slot == 0 -> slot = 1
       :: slot == 1 -> break
       od
    :: is_over -> goto out                              /* nothing more will change */
    od;
complete:
#ifdef ONE_SNAPSHOT
    seen = place;
    look(seen);
#else
    look(seen);
#ifndef ONE_LOOK
    look(0); look(1); look(0); look(1);
#endif
#endif
    if
    :: found -> d_step { is_done = true; place = NOWHERE; is_locked = false }
    :: else -> was_refused = true
    fi;
out:
    skip
}

active proctype Raiser() {
    /* The floor passes what the snapshot does not show in the slot. */
#ifdef FLOOR_WHILE_FILLING
    if :: place != 1 -> floor = 2 :: else fi;
#else
    d_step { if :: !is_filling && was_truncated && place != 1 -> floor = 2 :: else fi }
#endif
    left--
}

active proctype Tick() {
    bool is_mine, is_empty;
    is_filling = true;
    /* skip locked: until the job could be moved, or has ended */
    do
    :: place == NOWHERE -> break
    :: atomic { place == 0 && !is_locked -> is_locked = true; is_mine = true };
#ifdef TWO_COMMITS
       d_step { place = NOWHERE; is_locked = false };
       if :: !is_done -> place = 1 :: else fi;
#else
       d_step { place = 1; is_locked = false };
#endif
       break
    od;
    is_filling = false;
    is_empty = (place != 0);
    if :: is_empty -> was_truncated = true :: else fi;
    left--;
    left == 0;
    is_over = true
}

ltl no_receipt_is_lost { [] !was_refused }
ltl all_are_found { [] (is_over && !is_leased && place == 1 -> floor == 0) }

/*
 * A slot is truncated while two transactions enqueue into it and two claim from it.
 *
 * Each step is one statement. A writer holds ROW EXCLUSIVE until its commit, and others see what it
 * did from then on. TRUNCATE needs ACCESS EXCLUSIVE, asked for with NOWAIT.
 */
// fault: LOOK_BEFORE_LOCK the slot is empty in a snapshot taken before the lock
// fault: NO_ROW_LOCK two claims take the same row

byte writers, enqueued, rows, held, done;
bool is_exclusive;

inline begin_write() { atomic { !is_exclusive -> writers++ } }
inline look() { is_empty = (rows == 0) }

active [2] proctype Enqueue() {
    begin_write();
    if
    :: d_step { rows++; enqueued++; writers-- }         /* commit */
    :: writers--                                        /* rollback */
    fi
}

active [2] proctype Claim() {
    begin_write();
    if
#ifdef NO_ROW_LOCK
    :: rows > 0 -> held++
#else
    :: d_step { rows > held -> held++ }                 /* for update skip locked */
#endif
        if
        :: d_step { held--; rows--; done++ }            /* the job is deleted, commit */
        :: held--                                       /* rollback */
        fi
    :: else
    fi
    writers--
}

active proctype Tick() {
    bool is_empty, is_locked;
#ifdef LOOK_BEFORE_LOCK
    look();
#endif
    atomic { is_locked = (writers == 0); is_exclusive = is_locked }
#ifndef LOOK_BEFORE_LOCK
    look();
#endif
    if
    :: is_locked && is_empty -> rows = 0                /* truncate */
    :: else
    fi
    is_exclusive = false
}

ltl nothing_lost { [] (rows + done == enqueued) }
ltl one_lease { [] (held <= rows) }

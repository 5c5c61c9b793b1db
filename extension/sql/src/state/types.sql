/*
 * The internal schema and the public row type.
 */

create schema pgq;
revoke all on schema pgq from public;
comment on schema pgq is 'Tables and helpers of the extension pgq; not an interface.';

create type @extschema@.pgq_job as (
    id bigint,
    token bigint,
    queue text,
    priority integer,
    state text,
    attempt integer,
    max_attempts integer,
    payload jsonb,
    headers jsonb,
    group_key text,
    dedupe_key text,
    worker text,
    enqueued_at timestamptz,
    run_at timestamptz,
    claimed_at timestamptz,
    lease_expires_at timestamptz,
    last_error text,
    cancel_requested boolean,
    checkpoint jsonb
);
comment on type @extschema@.pgq_job is
'A job as its consumer sees it.

* id, token: the receipt. Heartbeat, complete, fail and release take it.
* attempt: how many attempts count towards max_attempts, this one included.
* checkpoint: the last one that a heartbeat of this attempt, or of an earlier one, has left.
* All times are the server''s.';

create type pgq.renewal as (
    id bigint,
    token bigint,
    lease_expires_at timestamptz,
    cancel_requested boolean
);
comment on type pgq.renewal is 'For pgq._renew: a receipt that was good, and its new expiry.';

create type pgq.target as (
    queue_id integer,
    lane bigint,
    slot smallint,
    parked smallint,
    run_at timestamptz,
    is_bounded boolean,
    is_awaited boolean
);
comment on type pgq.target is 'For enqueue: where jobs go. run_at is null for now.';

create type pgq.picked as (
    payloads jsonb[],
    dedupe_keys text[],
    group_keys text[],
    ordinals bigint[]
);
comment on type pgq.picked is
'For pgq._pick_free: what is to be added, and where it stands in the input.';

create type pgq.awaited as (
    open bigint[],
    is_hopeless boolean
);
comment on type pgq.awaited is
'For enqueue: the jobs to wait for, or null, and whether one is dead.

Those that have not completed.';

/*
 * The internal schema and the public row type.
 */

create schema pgq;
revoke all on schema pgq from public;
comment on schema pgq is 'tables and helpers of the extension pgq; not an interface';

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
'A job as its consumer sees it. (id, token) is the receipt: heartbeat, complete, fail and '
'release take it. checkpoint: what the last heartbeat with one left, of this attempt or an '
'earlier one. attempt counts the tries so far, this one included, towards max_attempts. All '
'times are the server''s.';

/*
 * Retention is by whole partitions: bucket says in which window of time its rows expire, for one of
 * five classes of retention (see pgq._archive_bucket); a window that has passed is truncated.
 */
create table pgq.archive (
    id bigint not null,
    enqueued_at timestamptz not null,
    finished_at timestamptz not null,
    expires_at timestamptz not null,
    run_at timestamptz,
    claimed_at timestamptz,
    token bigint,
    bucket smallint not null,
    priority smallint not null,
    attempt integer not null,
    max_attempts integer,
    state text not null,
    queue text not null,
    worker text,
    payload jsonb not null,
    headers jsonb,
    last_error text,
    dedupe_key text collate "C",
    group_key text collate "C",
    checkpoint jsonb,
    result jsonb,
    history jsonb
) partition by list (bucket);
comment on table pgq.archive is 'Finished jobs, until they expire.';
create index archive_id_idx on pgq.archive (id);
create index archive_dead_idx on pgq.archive (queue, id) where state = 'dead';
create index archive_dedupe_idx on pgq.archive (queue, dedupe_key)
    where state = 'completed' and dedupe_key is not null;

-- Upgrades leave out what has this name: see extension/upgrade.py.
do $archive$
begin
    for v_bucket in 0 .. 39 loop
        execute format(
            'create table pgq.archive_%1$s partition of pgq.archive for values in (%1$s)', v_bucket
        );
        execute format('alter table pgq.archive_%s replica identity full', v_bucket);
    end loop;
end
$archive$;

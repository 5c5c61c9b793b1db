/*
 * 0.1.0 to 0.2.0: nearly every table has another shape. All are locked, the old schema makes room,
 * the new one is made as by an installation, and the rows are copied. The archive moves as it is,
 * with one more column.
 *
 * Jobs go to one slot of the ring and one parked slot, in the order of their ids. A receipt finds
 * its job in any slot of the ring. Heads of groups come first in their lines: their place is 0.
 */

--@ lock
alter schema pgq rename to pgq_0_1;
create schema pgq;
do $move$
declare
    v_do text;
begin
    for v_do in
        select format('alter table %s set schema pgq', c.oid::regclass)
          from pg_class c
         where c.relnamespace = 'pgq_0_1'::regnamespace and c.relname like 'archive%'
           and c.relkind in ('r', 'p')
    loop
        execute v_do;
    end loop;
end
$move$;
alter table pgq.archive add column history jsonb, drop constraint archive_state_check;
--@ install but archive

delete from pgq.queue;
delete from pgq.lane;
insert into pgq.queue (
    id, name, max_attempts, backoff_base, backoff_factor, backoff_max, keep_completed, keep_dead,
    dedupe_for, group_concurrency, group_on_dead, max_active, rate_limit, rate_interval, rate_burst,
    priority_ageing, max_ready, max_payload, paused, created_at, sample
) overriding system value
select q.id, q.name, q.max_attempts, q.backoff_base, q.backoff_factor, q.backoff_max,
       q.keep_completed, q.keep_dead, q.dedupe_for, q.group_concurrency, q.group_on_dead,
       q.max_active, q.rate_limit, q.rate_interval, q.rate_burst, q.priority_ageing, q.max_ready,
       q.max_payload, q.paused, q.created_at, q.sample
  from pgq_0_1.queue q;
insert into pgq.lane (id, queue_id, priority, queue, is_bounded, awaited_until)
select pgq._lane_of(l.queue_id, l.priority), l.queue_id, l.priority, l.queue, bool_or(l.is_bounded),
       max(l.awaited_until)
  from pgq_0_1.lane l group by l.queue_id, l.priority, l.queue;

insert into pgq.job (
    id, pos, enqueued_at, lane, slot, attempt, max_attempts, run_at, start_by, due, token,
    claimed_at, lease_expires_at, lease_ms, pid, worker, is_awaited, cancel_requested, group_id,
    place, is_head, head_place, payload, headers, last_error, dedupe_key, dedupe_queue_id,
    group_key, checkpoint
)
select j.id, case when not r.is_parked then j.id end, j.enqueued_at,
       pgq._lane_of(l.queue_id, l.priority), case when r.is_parked then 4 else 0 end, j.attempt,
       j.max_attempts, j.run_at, j.start_by,
       case when r.is_parked and s.state = 'scheduled' then pgq._us(j.run_at) end, a.token,
       a.claimed_at, a.lease_expires_at, a.lease_ms, a.pid, a.worker, j.is_awaited,
       a.cancel_requested, g.id,
       case when r.is_parked then case
           when g.id is null then null
           when s.state <> 'waiting' then 0
           -- One that came late has the place of the head behind which it stands.
           else 2 * coalesce(j.wait, j.id) + (j.wait <> j.id is true)::integer
       end end,
       case when r.is_parked and g.id is not null and s.state <> 'waiting' then true end,
       case when g.id is not null and s.state <> 'waiting' then 0 end, j.payload, j.headers,
       j.last_error, j.dedupe_key, case when r.is_parked or g.id is null then j.dedupe_queue_id end,
       j.group_key, j.checkpoint
  from pgq_0_1.job j
  join pgq_0_1.lane l on l.id = j.lane
 cross join lateral (
           -- An infinite lease: it has been prepared, and its group waits for a tick.
           select case when j.wait is not null then 'waiting'
                       when j.token is not null then 'active'
                       when j.lease_expires_at = 'infinity' then 'waiting'
                       when j.run_at > pgq._now() then 'scheduled'
                       else 'ready' end as state
       ) s
 cross join lateral (
           select case when j.group_id is not null
                       then (pgq._group_ids(l.queue_id, array[j.group_key]))[1] end as id
       ) g
 cross join lateral (
           select true as is_parked where g.id is not null or s.state in ('scheduled', 'waiting')
           union all
           select false where s.state in ('active', 'ready')
       ) r
  left join lateral (select j.*) a on s.state = 'active' and not r.is_parked
 order by j.id;
-- Dead jobs that block their groups; the archive may have lost them.
insert into pgq.job (
    id, enqueued_at, lane, slot, attempt, max_attempts, run_at, group_id, place, is_head,
    is_blocked, head_place, payload, headers, last_error, dedupe_key, group_key, checkpoint
)
select b.job_id, coalesce(a.enqueued_at, pgq._now()),
       pgq._lane_of(b.queue_id, coalesce(a.priority, 0)), 4, coalesce(a.attempt, 0),
       a.max_attempts, a.run_at, (pgq._group_ids(b.queue_id, array[k.key]))[1], 0, true, true, 0,
       coalesce(a.payload, 'null'), a.headers, a.last_error, a.dedupe_key, k.key, a.checkpoint
  from pgq_0_1.group_block b
  left join pgq.archive a on a.id = b.job_id and a.state = 'dead',
       lateral (
           select coalesce(a.group_key, (
               select j.group_key from pgq_0_1.job j where j.group_id = b.group_id limit 1
           )) as key
       ) k
 where k.key is not null;

-- Leases behind jobs that are ready: ticks would not look so far.
insert into pgq.hint (kind, key)
select 'l', j.id
  from pgq.job_0 j
  join (select i.lane, min(i.pos) as pos from pgq.job_0 i where i.token is null group by i.lane) r
    on r.lane = j.lane and r.pos < j.pos
 where j.token is not null;
insert into pgq.hint (kind, key)
select distinct "char" 'g', n.group_id
  from pgq_0_1.group_hint h
  join pgq_0_1.job j on j.group_id = h.group_id
  join pgq.job_4 n on n.id = j.id;
insert into pgq.hint (kind, key)
select case w.lane when 0 then 'e' else 'w' end, w.job_id from pgq_0_1.waiter_hint w;
insert into pgq.dependency (on_id, job_id, lane, on_dead)
select d.on_id, d.job_id, pgq._lane_of(l.queue_id, l.priority), d.on_dead
  from pgq_0_1.dependency d join pgq_0_1.lane l on l.id = d.lane;

insert into pgq.permit select p.* from pgq_0_1.permit p;
insert into pgq.hold (slot, queue_id, permit, token, id)
select distinct 0, h.queue_id, h.permit, h.token, h.id
  from pgq_0_1.hold h join pgq.job_0 j on j.id = h.id and j.token = h.token;
insert into pgq.start select s.* from pgq_0_1.start s;
insert into pgq.privilege select p.* from pgq_0_1.privilege p;
insert into pgq.schedule select s.* from pgq_0_1.schedule s;
insert into pgq.stat select s.* from pgq_0_1.stat s;
--@ each stat
insert into pgq.stat_{slot} select s.* from pgq_0_1.stat_{slot} s;
--@ end

select setval(s.new, pg_sequence_last_value(s.old))
  from (values (regclass 'pgq.queue_id_seq', regclass 'pgq_0_1.queue_id_seq'),
               ('pgq.number', 'pgq_0_1.job_id'), ('pgq.token', 'pgq_0_1.token'),
               ('pgq.stat_n', 'pgq_0_1.stat_n'), ('pgq.stat_seen', 'pgq_0_1.stat_seen'),
               ('pgq.last_tick', 'pgq_0_1.last_tick')) s (new, old)
 where pg_sequence_last_value(s.old) is not null;

-- One kind after the other, not with "cascade": it fails if others have built upon them.
do $drop$
declare
    v_owner constant name := current_user;
    v_do text;
begin
    for v_do in
        select format('%s %s', d.what, d.names)
          from (
                   -- Or it would remember to dump them.
                   select 0, 'alter extension pgq drop '
                             || case c.relkind when 'S' then 'sequence' else 'table' end,
                          c.oid::regclass::text
                     from pg_extension e join pg_class c on c.oid = any (e.extconfig)
                    where e.extname = 'pgq' and c.relnamespace = 'pgq_0_1'::regnamespace
                   union all
                   select 1, 'drop trigger', format('%I on %s', t.tgname, t.tgrelid::regclass)
                     from pg_trigger t join pg_class c on c.oid = t.tgrelid
                    where c.relnamespace = 'pgq_0_1'::regnamespace and not t.tgisinternal
                   union all
                   select k.place, 'drop ' || k.kind, string_agg(c.oid::regclass::text, ', ')
                     from pg_class c
                     join (values ('v'::"char", 2, 'view'), ('r', 4, 'table'), ('p', 4, 'table'),
                                  ('S', 4, 'sequence'), ('c', 4, 'type')) k (relkind, place, kind)
                    using (relkind)
                    where c.relnamespace = 'pgq_0_1'::regnamespace and not c.relispartition
                      and c.relname <> 'queue_id_seq'
                    group by k.place, k.kind
                   union all
                   select 3, 'drop function', string_agg(p.oid::regprocedure::text, ', ')
                     from pg_proc p where p.pronamespace = 'pgq_0_1'::regnamespace
               ) d (place, what, names)
         order by d.place
    loop
        -- After pg_upgrade the extension belongs to the superuser who has run that.
        if v_do like 'alter extension %' then
            perform set_config('role', current_setting('pgq.updater'), true);
            execute v_do;
            perform set_config('role', v_owner, true);
        else
            execute v_do;
        end if;
    end loop;
end
$drop$;
drop schema pgq_0_1;

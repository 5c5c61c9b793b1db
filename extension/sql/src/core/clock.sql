/*
 * A clock that has been set back: what was counted from the time that it showed before lies too far
 * ahead, and would stand still until then. Whether the clock was wrong before or is wrong now
 * nobody can tell, and nothing depends on it.
 *
 * A tick knows it by the time of the last tick, and mends the times. So does the next one, as jobs
 * were parked by that time until then, and after that one a minute for ten minutes: a call that
 * began before may be open still. What somebody asked for (run_at, expires_at) stays.
 */

create function pgq._bring_schedules(p_after timestamptz, p_back boolean)
returns void
language plpgsql
as $$
declare
    v_schedule pgq.schedule;
begin
    for v_schedule in
        select s.* from pgq.schedule s
         where not s.paused and (p_back or s.next_at <= p_after) for update skip locked
    loop
        update pgq.schedule s set next_at = n.at
          from (select pgq._next_time_if_any(v_schedule, p_after) as at) n
         where s.name = v_schedule.name and (n.at < s.next_at or not p_back);
    end loop;
end
$$;
comment on function pgq._bring_schedules(timestamptz, boolean) is
'Lets schedules fire at their next times after p_after.

Those that would fire later (p_back), or earlier.';

create function pgq._mend_times(p_now timestamptz)
returns void
language plpgsql
as $$
declare
    v_late constant timestamptz := p_now + interval '1 minute';
    v_ms constant interval := interval '1 millisecond';
begin
    with late as (
        -- Of a job that has come back claimed_at says when: its delay remains.
        select j.slot, j.id,
               case when j.token is null and j.claimed_at > v_late
                    then j.run_at - (j.claimed_at - p_now) else j.run_at end as run_at
          from pgq.job j
         where (j.token is not null and j.lease_expires_at > v_late + j.lease_ms * v_ms)
            or (j.token is null and j.claimed_at > v_late)
            or j.due > pgq._us(j.run_at)
           for update skip locked
    )
    update pgq.job j
       set claimed_at = least(j.claimed_at, p_now),
           run_at = o.run_at,
           lease_expires_at = case when j.token is not null then p_now + j.lease_ms * v_ms end,
           due = case when j.due is not null then pgq._us(greatest(o.run_at, p_now)) end
      from late o
     where j.slot = o.slot and j.id = o.id;
    delete from pgq.start s
     where s.ctid = any (array(
               select o.ctid
                 from pgq.start o join pgq.queue q on q.id = o.queue_id
                where o.moment > pgq._moment(q, v_late)
                  for update of o skip locked
           ));
    perform pgq._bring_schedules(p_now, true);
end
$$;
comment on function pgq._mend_times(timestamptz) is
'Brings back times that lie too far ahead.

Leases last for the timeout of their claim from now on, and retries wait as long as they had to.
Parked jobs whose places are behind their times take new ones. Starts of rate limits that are to
come are not used up. Schedules fire.';

create function pgq._follow_clock(p_now timestamptz)
returns void
language plpgsql
as $$
declare
    v_gate pgq.gate;
    v_last constant timestamptz := timestamptz 'epoch'
        + coalesce(pg_sequence_last_value('pgq.last_tick'), 0) * interval '1 millisecond';
begin
    select g.* into v_gate from pgq.gate g;
    if v_last > p_now + interval '1 minute' and v_last is distinct from v_gate.clock_was then
        update pgq.gate set clock_was = v_last, set_back_at = p_now;
        perform pgq._mend_times(p_now);
        -- The register tells it again until this has committed.
        return;
    end if;
    if v_gate.set_back_at is not null and v_gate.clock_was between v_last and p_now
        and (v_last = v_gate.clock_was or p_now - v_last > interval '1 minute')
    then
        -- It was right before. What lies before clock_was had been done then.
        update pgq.gate set set_back_at = null;
        perform pgq._bring_schedules(v_gate.clock_was, false);
        return;
    elsif v_gate.set_back_at is not null and (
        v_last = v_gate.clock_was
        or (p_now between v_gate.set_back_at and v_gate.set_back_at + interval '10 minutes'
            and date_trunc('minute', v_last) <> date_trunc('minute', p_now))
    ) then
        perform pgq._mend_times(p_now);
    end if;
    -- Not below a base: this tick may bring that down, and be rolled back. See pgq._due.
    perform setval('pgq.last_tick', greatest(pgq._ms(p_now), (
                select max(b.mark) / 1000
                  from generate_series(4, 5) s (slot), lateral (
                           select f.mark from pgq.floor f
                            where f.slot = s.slot and f.lane = 0
                            order by f.n desc limit 1
                       ) b
            )));
end
$$;
comment on function pgq._follow_clock(timestamptz) is
'Mends the times in a tick, if the clock was set back by more than a minute.

It notes when this tick ran, and compares with the last one.';

/*
 * How many jobs of a queue complete and fail, for its last minute and hour. Of completions only
 * those are counted that go to the archive.
 *
 * A call that completes jobs adds a row, always while few do, and one of pgq.queue.sample calls
 * otherwise, which then stands for so many. Each tick fits that number to some 60 rows a second.
 * Each failure adds a row.
 * Three tables are written by turns, a minute each, so that the oldest can be summed up and
 * truncated.
 */

create function pgq._count_ends(p_lane bigint, p_completed bigint, p_failed bigint)
returns void
language plpgsql
as $$
declare
    v_now constant timestamptz := pgq._now();
begin
    case extract(epoch from v_now)::bigint / 60 % 3
    --@ each stat
    when {slot} then
        insert into pgq.stat_{slot} (n, queue_id, at, completed, failed)
        values (
            nextval('pgq.stat_n'), pgq._queue_of(p_lane), v_now, p_completed, p_failed
        );
    --@ end
    end case;
end
$$;
comment on function pgq._count_ends(bigint, bigint, bigint) is 'Notes ends of jobs.';

create function pgq._fit_samples()
returns void
language plpgsql
as $$
declare
    v_seen constant bigint := coalesce(pg_sequence_last_value('pgq.stat_seen'), 0);
    v_last constant bigint := coalesce(pg_sequence_last_value('pgq.stat_n'), 0);
begin
    update pgq.queue q
       set sample = f.sample
      from (
               select o.id, o.sample as before,
                      case when c.rows > 60 then least(o.sample * c.rows / 30, 1000000)
                           when coalesce(c.rows, 0) < 8 then o.sample / 2
                           else o.sample end::integer as sample
                 from pgq.queue o
                 left join (
                         select s.queue_id, count(*) as rows
                           from (
                                    --@ each stat
                                    select r.queue_id from pgq.stat_{slot} r
                                     where r.n > v_seen and r.completed > 0
                                    union all
                                    --@ end
                                    select null where false
                                ) s
                          group by s.queue_id
                      ) c on c.queue_id = o.id
                where o.sample > 1 or c.rows > 60
               offset 0
           ) f,
           lateral (
               select i.id from pgq.queue i
                where i.id = f.id and f.sample <> f.before for no key update skip locked
           ) i
     where q.id = i.id;
    perform setval('pgq.stat_seen', greatest(v_last, 1));
end
$$;
comment on function pgq._fit_samples() is
'For ticks: lets about 60 rows a second be written for each queue.';

create function pgq._sum_up(p_now timestamptz)
returns void
language plpgsql
as $$
begin
    -- Not the one of this minute, nor the last one, in which a transaction may be about to write.
    case (extract(epoch from p_now)::bigint / 60 + 1) % 3
    --@ each stat
    when {slot} then
        if pg_relation_size('pgq.stat_{slot}') > 0 then
            lock table pgq.stat_{slot} in access exclusive mode nowait;
            insert into pgq.stat (queue_id, at, completed, failed)
            select s.queue_id, date_trunc('minute', s.at), sum(s.completed), sum(s.failed)
              from pgq.stat_{slot} s group by 1, 2;
            truncate pgq.stat_{slot};
            delete from pgq.stat s where s.at < p_now - interval '61 minutes';
        end if;
    --@ end
    end case;
exception
    when lock_not_available or object_in_use then
        return;
end
$$;
comment on function pgq._sum_up(timestamptz) is
'For ticks: makes the rows of the minute before the last one a row per queue.';

create function pgq._ends(p_now timestamptz)
returns table (
    queue_id integer, completed_last_minute bigint, failed_last_minute bigint,
    completed_last_hour bigint, failed_last_hour bigint
)
language plpgsql
stable
as $$
begin
    return query
    select s.queue_id,
           (sum(s.completed) filter (where s.at > p_now - interval '1 minute'))::bigint,
           (sum(s.failed) filter (where s.at > p_now - interval '1 minute'))::bigint,
           sum(s.completed)::bigint, sum(s.failed)::bigint
      from (
               --@ each stat
               select r.queue_id, r.at, r.completed, r.failed from pgq.stat_{slot} r
                union all
               --@ end
               select r.queue_id, r.at, r.completed, r.failed from pgq.stat r
           ) s
     -- Not what has come before the clock was set back.
     where s.at > p_now - interval '1 hour' and s.at <= p_now
     group by s.queue_id;
end
$$;
comment on function pgq._ends(timestamptz) is
'How many jobs of each queue have completed and how many attempts failed, if any.';

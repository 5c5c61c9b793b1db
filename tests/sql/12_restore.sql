/*
 * A dump that is restored into a new installation, which has the queue "default" already.
 */
begin;
select plan(6);
\ir support/clock.psql

-- As it is when no tick has run yet; the lane of the installation.
alter sequence pgq.last_tick restart;
delete from pgq.lane;
select pgq._add_lane(q.id, 0::smallint) from pgq.queue q where q.name = 'default' \g /dev/null
select q.id as mine, q.id + 1000 as other from pgq.queue q where q.name = 'default' \gset
create temp view found as
select q.id, q.max_attempts, (select array_agg(l.queue_id) from pgq.lane l) as lanes
  from pgq.queue q where q.name = 'default';

-- The same number, the lane first or last.
savepoint s;
insert into pgq.lane (id, queue_id, priority, queue)
values (pgq._lane_of(:mine, 0), :mine, 0, 'default');
select is((select f::text from found f), row(:mine, 20, array[:mine])::text,
          'a lane takes the place of that of the installation');
insert into pgq.queue (id, name, max_attempts)
overriding system value values (:mine, 'default', 3);
select is((select f::text from found f), row(:mine, 3, array[:mine])::text,
          'so does the queue, and keeps a lane that came first');
rollback to s;
insert into pgq.queue (id, name, max_attempts)
overriding system value values (:mine, 'default', 3);
insert into pgq.lane (id, queue_id, priority, queue)
values (pgq._lane_of(:mine, 0), :mine, 0, 'default');
select is((select f::text from found f), row(:mine, 3, array[:mine])::text, 'or comes last');
rollback to s;

-- Another number.
insert into pgq.queue (id, name, max_attempts)
overriding system value values (:other, 'default', 3);
select is((select f::text from found f), row(:other, 3, null::integer[])::text,
          'with another number the lane of the installation goes with its queue');
insert into pgq.lane (id, queue_id, priority, queue)
values (pgq._lane_of(:other, 0), :other, 0, 'default');
select is((select f::text from found f), row(:other, 3, array[:other])::text,
          'and the new one comes');

-- In use.
rollback to s;
select setval('pgq.last_tick', 1) \g /dev/null
select throws_ok(
    format($$ insert into pgq.queue (id, name)
              overriding system value values (%s, 'default') $$, :other),
    '23505', null, 'what is in use stays');

select * from finish();
rollback;

/*
 * How long a session sleeps that listens for some of its queues: one may have another channel now.
 */
select pgq_channel('default') as channel \gset
listen :"channel";
begin;
select plan(3);
\ir support/clock.psql

create function pg_temp.wait_for(p_queues text[]) returns interval language plpgsql as $$
begin
    perform pgq_wake(), set_config('pgq.idle', '', true), pgq_wait(p_queues);
    return pgq_wait(p_queues);
end
$$;
select is(
    pg_temp.wait_for('{default}'), interval '30 s',
    'who listens for its queue sleeps until it hears');
select pgq_create_queue('anew') \g /dev/null
select is(pg_temp.wait_for('{anew}'), interval '1 s', 'who does not looks each second');
select is(pg_temp.wait_for('{default,anew}'), interval '1 s', 'also if it listens for another one');

select * from finish();
rollback;

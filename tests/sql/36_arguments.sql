/*
 * What arguments may not be: too large, too long, of several dimensions, or intervals of both signs.
 */
begin;
select plan(27);
\ir support/clock.psql

-- 64 MB of text each: as it is, and as numbers that take 200 bytes where they are stored.
create table large (long jsonb, numbers jsonb primary key, headers jsonb);
alter table large alter column long set storage external;
insert into large
select to_jsonb(repeat('x', 67108864)), to_jsonb(array_fill(1e131071::numeric, array[512])),
       jsonb_build_object('x', repeat('x', 1048576));
select cmp_ok(pg_column_size(l.numbers), '<', 300, 'a large value can be stored in little space')
  from large l;

create function pg_temp.answer(p_call text) returns text language plpgsql as $$
begin
    execute format('select %s from large l', p_call);
    return 'no error';
exception when others then
    return sqlstate || ' ' || sqlerrm;
end
$$;
select pgq_enqueue('1') \g /dev/null
select id, token from pgq_dequeue() \gset
create temp table attempt (call text, answer text);
insert into attempt values
    ('pgq_enqueue(l.long)', '54000 "payload" is too large'),
    ('pgq_enqueue(l.numbers)', '54000 "payload" is too large'),
    ('pgq_enqueue(''1'', headers => l.headers)', '54000 "headers" is too large'),
    ('pgq_enqueue_many(array[l.long])', '54000 "payloads" is too large'),
    ('pgq_complete(:id, :token, l.long)', '54000 "result" is too large'),
    ('pgq_complete(:ids, :tokens, array[l.long])', '54000 "results" is too large'),
    ('pgq_heartbeat(:id, :token, checkpoint => l.long)', '54000 "checkpoints" is too large'),
    ('pgq_heartbeat(:ids, :tokens, checkpoints => array[l.long])',
        '54000 "checkpoints" is too large'),
    ('pgq_schedule(''s'', ''@daily'', l.long)', '54000 "payload" is too large'),
    ('pgq_schedule(''s'', ''@daily'', headers => l.headers)', '54000 "headers" is too large'),
    ('pgq_dequeue(worker => repeat(''x'', 201))',
        '22023 "worker" must have at most 200 characters, not 201'),
    ('pgq_claim(:id, worker => repeat(''x'', 201))',
        '22023 "worker" must have at most 200 characters, not 201'),
    ('pgq_configure_queue(''default'', description => repeat(''x'', 10001))',
        '22023 "description" must have at most 10000 characters, not 10001'),
    ('pgq_enqueue(''1'', priority => 32768)',
        '22003 "priority" must be between -32768 and 32767, not 32768'),
    ('pgq_enqueue(''1'', priority => -32769)',
        '22003 "priority" must be between -32768 and 32767, not -32769'),
    ('pgq_cancel_all(''default'', max => 0)', '22023 "max" must be at least 1, not 0'),
    ('pgq_enqueue_many(''{1,2}'', dedupe_keys => ''{{a},{b}}'')',
        '22023 "dedupe_keys" must have one dimension, not 2'),
    ('pgq_enqueue_many(''{1,2}'', group_keys => ''{{a},{b}}'')',
        '22023 "group_keys" must have one dimension, not 2'),
    ('pgq_complete(:ids, :tokens, ''{{1}}''::jsonb[])',
        '22023 "results" must have one dimension, not 2'),
    -- A year is 360 days where intervals are compared, and 365.25 where seconds are counted.
    ('pgq_fail(:id, :token, retry_in => ''1 year -361 days'')',
        '22023 "retry_in" must be zero or a positive interval, not 1 year -361 days'),
    ('pgq_fail(:id, :token, retry_in => ''-1 year 361 days'')',
        '22023 "retry_in" must be zero or a positive interval, not -1 years +361 days'),
    ('pgq_dequeue(1, ''1 year -340 days'')',
        '22023 "timeout" must be at most 24 days, not 1 year -340 days'),
    ('pgq_dequeue(1, ''-1 year 388 days'')',
        '22023 "timeout" must be at most 24 days, not -1 years +388 days'),
    ('pgq_heartbeat(:id, :token, ''1 year -340 days'')',
        '22023 "timeout" must be at most 24 days, not 1 year -340 days'),
    ('pgq_heartbeat(:id, :token, ''-1 year 388 days'')',
        '22023 "timeout" must be at most 24 days, not -1 years +388 days');
update attempt
   set call = replace(replace(replace(replace(call, ':ids', format('''{%s}''', :id::bigint)),
              ':tokens', format('''{%s}''', :token::bigint)), ':id', :'id'), ':token', :'token');
select is(pg_temp.answer(call), answer, left(call, 70)) from attempt;
select pgq_watch('large') \g /dev/null
select throws_ok(
    $$ insert into large select '1', l.numbers || '1' from large l $$, '54000',
    '"key" is too large', 'a row with a large key');

select * from finish();
rollback;

/*
 * Which commits are taken for PREPARE TRANSACTION, by what the client has sent.
 */
begin;
select plan(24);

select ok(pgq._is_preparing(q), format('prepares: %s', q))
  from unnest(array[
      'prepare transaction ''x''',
      E'\n\tPREPARE  Transaction ''x'' ',
      'prepare/**/transaction $$x$$',
      E'-- don''t\n/* it''s; */ prepare -- now\n transaction ''it''''s''',
      'begin; select 1; prepare transaction ''x''; select 2',
      'select ''--''; prepare transaction ''x''',
      'select "/*"; prepare transaction ''x''',
      E'select e''\\''; prepare transaction ''x''',
      'select $a$ '' $$ $a$, $$ " $$; prepare transaction ''x''',
      '/* a /* nested */ comment */ prepare transaction ''x''',
      '/* a /* nested '' */ comment */ prepare transaction ''x''',
      'select 1 as a$b$; prepare transaction ''x''; select 1 as a$b$',
      E'select 1; --\rprepare transaction ''x''',
      E'prepare--\rtransaction ''x''',
      E'set standard_conforming_strings = off; select ''\\''''; prepare transaction ''x''',
      -- In doubt.
      'insert into note values (''prepare transaction''); commit',
      E'/* prepare\n transaction */ commit'
  ]) q;
select ok(not pgq._is_preparing(q), format('does not: %s', q))
  from unnest(array[
      null,
      'commit',
      'prepare transaction_of as select 1',
      'insert into note values (''prepare a transaction''); commit',
      'prepare statement as select 1; start transaction',
      'commit prepared ''x'''
  ]) q;
select ok(not pgq._is_preparing(), 'without an argument it looks at the statement of the client');

select * from finish();
rollback;

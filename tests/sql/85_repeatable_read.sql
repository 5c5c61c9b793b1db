/*
 * The functions under REPEATABLE READ.
 */
begin isolation level repeatable read;
\ir support/old_snapshot.psql

/*
 * The functions under SERIALIZABLE.
 */
begin isolation level serializable;
\ir support/old_snapshot.psql

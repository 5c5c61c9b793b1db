/*
 * pgq_version, and the end of the installation: nothing is executable or readable by PUBLIC.
 */

create function @extschema@.pgq_version()
returns text
language sql
immutable
parallel safe
security definer
set search_path = pg_catalog, pg_temp
as $$ select '@pgq_version@'::text $$;
revoke all on function @extschema@.pgq_version() from public;
comment on function @extschema@.pgq_version() is 'Returns the version of the installed extension.';

revoke all on all tables in schema pgq from public;
revoke all on all sequences in schema pgq from public;
revoke all on all functions in schema pgq from public;

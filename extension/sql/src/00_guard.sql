/*
 * Refuses databases in which the installation could not work, before anything is created.
 * Skytools' PgQ also is an extension named pgq with a schema pgq; the two cannot live in one
 * database.
 */

set local search_path = pg_catalog, pg_temp;

do $guard$
begin
    if exists (
        select
          from pg_catalog.pg_class c
         where c.relnamespace = pg_catalog.to_regnamespace('pgq')::oid
           and c.relname in ('tick', 'subscription')
    ) then
        raise exception 'this database holds the PgQ of Skytools, which uses the schema "pgq" too'
            using errcode = 'duplicate_schema',
                  hint = 'Install this extension in another database, or drop PgQ first.';
    end if;
    if pg_catalog.to_regnamespace('pgq') is not null then
        raise exception 'schema "pgq" exists already'
            using errcode = 'duplicate_schema',
                  detail = 'The extension keeps its tables in a schema of that name.',
                  hint = 'Drop or rename that schema; choose another one for the public functions.';
    end if;
end
$guard$;

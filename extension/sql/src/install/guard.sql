/*
 * Refuses databases in which the installation could not work, before anything is created.
 * Skytools' PgQ also is an extension named pgq with a schema pgq; the two cannot live in one
 * database. The server prints the statement that fails: each is short.
 */

do $half$
begin
    if current_setting('pgq.found') = 'tables' then
        raise exception 'pgq is half removed from this database: its functions are gone'
            using errcode = 'object_not_in_prerequisite_state',
                  detail = 'Its tables, with all jobs, are in the schema "pgq".',
                  hint = 'Copy the jobs that you need from pgq.job and pgq.archive. Then run '
                         'pgq-uninstall.sql to remove the rest.';
    elsif current_setting('pgq.found') = 'functions' then
        raise exception 'pgq is half removed from this database: its tables are gone'
            using errcode = 'object_not_in_prerequisite_state',
                  detail = format(
                      'The functions of pgq %s are in the schema %s.',
                      current_setting('pgq.version'), current_setting('pgq.home')),
                  hint = 'Run pgq-uninstall.sql to remove the functions.';
    end if;
end
$half$;

do $guard$
declare
    v_found constant text := current_setting('pgq.found');
begin
    if v_found in ('extension', 'script') then
        raise exception 'pgq % is installed in this database already, %',
                        current_setting('pgq.version'),
                        case v_found when 'script' then 'by script' else 'as an extension' end
            using errcode = 'duplicate_object',
                  detail = format(
                      'Its functions are in the schema %s.', current_setting('pgq.home')),
                  hint = 'To upgrade it: pgq upgrade, or '
                         || case v_found
                                when 'script' then 'the scripts pgq--A--B.sql.'
                                else 'ALTER EXTENSION pgq UPDATE.'
                            end;
    elsif v_found = 'skytools' then
        raise exception 'this database holds the PgQ of Skytools, which uses the schema "pgq" too'
            using errcode = 'duplicate_schema',
                  hint = 'Install this extension in another database.';
    elsif v_found = 'foreign' then
        raise exception 'schema "pgq" exists already'
            using errcode = 'duplicate_schema',
                  detail = 'It is not of this extension, whose tables need a schema of that name.',
                  hint = 'Install this extension in another database.';
    end if;
end
$guard$;

"""Runs plpgsql_check over every PL/pgSQL function of the installed extension."""

import bootstrap
from pgserver import Server, ServerError

# A trigger function is checked once for each table that it is used on. The advice to mark a
# function STABLE or IMMUTABLE is left out: as such it would read with its caller's snapshot, and
# not see what other sessions committed while it waited for a lock. What dynamic SQL returns is not
# known to the checker, which says so. The condition of pgq_watch is SQL of the caller, with whose
# rights the function runs.
FINDINGS = """
select coalesce(string_agg(format('%s: %s: %s%s%s', p.oid::regprocedure,
           c.level, c.message, ' | ' || c.detail, ' | ' || c.query), E'\\n'), '')
from pg_depend d
join pg_extension e on e.oid = d.refobjid and e.extname = 'pgq'
join pg_proc p on p.oid = d.objid
join pg_language l on l.oid = p.prolang and l.lanname = 'plpgsql'
left join pg_trigger t on t.tgfoid = p.oid
cross join lateral plpgsql_check_function_tb(p.oid, coalesce(t.tgrelid, 0),
    fatal_errors => false, extra_warnings => true, performance_warnings => true,
    security_warnings => true) c
where d.refclassid = 'pg_extension'::regclass and d.classid = 'pg_proc'::regclass
    and c.message not like 'routine is marked as VOLATILE, should be %'
    and c.message <> 'cannot determinate a result of dynamic SQL'
    and not (p.proname = 'pgq_watch' and c.level = 'security')
"""

COUNT = """
select count(*)
from pg_depend d
join pg_extension e on e.oid = d.refobjid and e.extname = 'pgq'
join pg_proc p on p.oid = d.objid
join pg_language l on l.oid = p.prolang and l.lanname = 'plpgsql'
where d.refclassid = 'pg_extension'::regclass and d.classid = 'pg_proc'::regclass
"""


def main() -> int:
    """Print the findings; return the exit status."""
    major = bootstrap.plpgsql_check_major()
    try:
        with Server(major, {"fsync": "off"}, ["plpgsql_check"]) as server:
            server.psql("create extension pgq; create extension plpgsql_check")
            server.psql(
                "create table watched (id integer primary key); select pgq_watch('watched')"
            )
            findings = server.psql(FINDINGS)
            count = server.psql(COUNT)
    except ServerError as error:
        print(error)
        return 1
    print(findings or f"plpgsql_check: {count} functions, no finding")
    return 1 if findings or count == "0" else 0


if __name__ == "__main__":
    raise SystemExit(main())

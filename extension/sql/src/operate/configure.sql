/*
 * What pgq_configure_queue and pgq_create_queue do with the settings that they are given.
 */

create function pgq._configure_queue(
    p_id integer,
    max_attempts integer,
    backoff_base interval,
    backoff_factor double precision,
    backoff_max interval,
    keep_completed interval,
    keep_dead interval,
    max_active integer,
    dedupe_for interval,
    group_concurrency integer,
    group_on_dead text,
    rate_limit integer,
    rate_interval interval,
    rate_burst integer,
    priority_ageing interval,
    max_ready integer,
    max_payload integer,
    description text
)
returns boolean
language plpgsql
as $$
declare
    v_old pgq.queue;
    v_new pgq.queue;
begin
    select q.* into v_old from pgq.queue q where q.id = p_id for no key update;
    if not found then
        return false;
    end if;
    v_new := v_old;
    v_new.max_attempts := coalesce(max_attempts, v_old.max_attempts);
    v_new.backoff_base := coalesce(backoff_base, v_old.backoff_base);
    v_new.backoff_factor := coalesce(backoff_factor, v_old.backoff_factor);
    v_new.backoff_max := coalesce(backoff_max, v_old.backoff_max);
    v_new.keep_completed := coalesce(keep_completed, v_old.keep_completed);
    v_new.keep_dead := coalesce(keep_dead, v_old.keep_dead);
    v_new.max_active := coalesce(max_active, v_old.max_active);
    v_new.dedupe_for := coalesce(dedupe_for, v_old.dedupe_for);
    v_new.group_concurrency := coalesce(group_concurrency, v_old.group_concurrency);
    v_new.group_on_dead := coalesce(group_on_dead, v_old.group_on_dead);
    v_new.rate_limit := coalesce(rate_limit, v_old.rate_limit);
    v_new.rate_interval := coalesce(rate_interval, v_old.rate_interval);
    v_new.rate_burst := coalesce(rate_burst, v_old.rate_burst);
    v_new.priority_ageing := coalesce(priority_ageing, v_old.priority_ageing);
    v_new.max_ready := coalesce(max_ready, v_old.max_ready);
    v_new.max_payload := coalesce(max_payload, v_old.max_payload);
    v_new.description := nullif(coalesce(description, v_old.description), '');
    perform pgq._save_settings(v_old, v_new);
    return true;
end
$$;
comment on function pgq._configure_queue(
    integer, integer, interval, double precision, interval, interval, interval, integer, interval,
    integer, text, integer, interval, integer, interval, integer, integer, text
) is
'Changes those settings of a queue that are not null; false: it was dropped; raises 22023.';

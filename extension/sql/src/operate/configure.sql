/*
 * What pgq_configure_queue and pgq_create_queue do with the settings that they are given.
 */

create function pgq._configure_queue(p_new pgq.queue)
returns boolean
language plpgsql
as $$
declare
    v_old pgq.queue;
begin
    select q.* into v_old from pgq.queue q where q.id = p_new.id for no key update;
    if not found then
        return false;
    end if;
    p_new.max_attempts := coalesce(p_new.max_attempts, v_old.max_attempts);
    p_new.backoff_base := coalesce(p_new.backoff_base, v_old.backoff_base);
    p_new.backoff_factor := coalesce(p_new.backoff_factor, v_old.backoff_factor);
    p_new.backoff_max := coalesce(p_new.backoff_max, v_old.backoff_max);
    p_new.keep_completed := coalesce(p_new.keep_completed, v_old.keep_completed);
    p_new.keep_dead := coalesce(p_new.keep_dead, v_old.keep_dead);
    p_new.max_active := coalesce(p_new.max_active, v_old.max_active);
    p_new.dedupe_for := coalesce(p_new.dedupe_for, v_old.dedupe_for);
    p_new.group_concurrency := coalesce(p_new.group_concurrency, v_old.group_concurrency);
    p_new.group_on_dead := coalesce(p_new.group_on_dead, v_old.group_on_dead);
    p_new.rate_limit := coalesce(p_new.rate_limit, v_old.rate_limit);
    p_new.rate_interval := coalesce(p_new.rate_interval, v_old.rate_interval);
    p_new.rate_burst := coalesce(p_new.rate_burst, v_old.rate_burst);
    p_new.priority_ageing := coalesce(p_new.priority_ageing, v_old.priority_ageing);
    p_new.max_ready := coalesce(p_new.max_ready, v_old.max_ready);
    p_new.max_payload := coalesce(p_new.max_payload, v_old.max_payload);
    p_new.description := nullif(coalesce(p_new.description, v_old.description), '');
    perform pgq._check_settings(p_new);
    update pgq.queue q
       set max_attempts = p_new.max_attempts, backoff_base = p_new.backoff_base,
           backoff_factor = p_new.backoff_factor, backoff_max = p_new.backoff_max,
           keep_completed = p_new.keep_completed, keep_dead = p_new.keep_dead,
           dedupe_for = p_new.dedupe_for, group_concurrency = p_new.group_concurrency,
           group_on_dead = p_new.group_on_dead, max_active = p_new.max_active,
           rate_limit = p_new.rate_limit, rate_interval = p_new.rate_interval,
           rate_burst = p_new.rate_burst, priority_ageing = p_new.priority_ageing,
           max_ready = p_new.max_ready, max_payload = p_new.max_payload,
           description = p_new.description
     where q.id = p_new.id;
    update pgq.lane l set is_bounded = q.is_bounded
      from pgq.queue q
     where q.id = p_new.id and l.queue_id = q.id and l.is_bounded <> q.is_bounded;
    perform pgq._save_permits(v_old, p_new), pgq._wake(p_new.id);
    if p_new.group_concurrency > v_old.group_concurrency then
        insert into pgq.hint (kind, key, place) values ('q', p_new.id, 1);
        insert into pgq.chore default values;
    end if;
    return true;
end
$$;
comment on function pgq._configure_queue(pgq.queue) is
'Changes those settings of a queue that are not null, and does what follows.

false: it was dropped. Raises 22023.';

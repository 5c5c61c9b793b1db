/*
 * Who may do what: see core/privilege.sql.
 */

create table pgq.privilege (
    role regrole not null,
    queue_id integer,
    verb text not null,
    constraint privilege_verb_check check (
        verb in ('enqueue', 'consume', 'observe', 'manage', 'usage')
    )
);
create unique index privilege_role_verb_queue_id_idx
    on pgq.privilege (role, verb, coalesce(queue_id, 0));
alter table pgq.privilege replica identity full;
comment on table pgq.privilege is 'What pgq_grant has granted.';
comment on column pgq.privilege.role is
'Its oid, 0 for public. What a role had is not left to another one that gets its name.';
comment on column pgq.privilege.queue_id is 'Null: all queues.';
comment on column pgq.privilege.verb is
'Among them usage: on the schema of the public functions, see pgq._set_grants.';

-- A lease that runs out counts as an attempt. A post that moderators opened and left is not to die
-- of that.
select pgq_create_queue('moderation', max_attempts => 32767);

create table post (
    id bigint generated always as identity primary key,
    body text not null,
    job bigint not null,
    verdict text check (verdict in ('kept', 'removed')),
    moderator text
);

-- A post and its job are one insert; the more reports, the sooner it is looked at.
insert into post (body, job) values
    ('Cheap watches!', pgq_enqueue('{"reports": 3}', 'moderation', priority => 3)),
    ('You are all wrong.', pgq_enqueue('{"reports": 2}', 'moderation', priority => 2)),
    ('Look at my cat.', pgq_enqueue('{"reports": 1}', 'moderation', priority => 1)),
    ('Cheap cats!', pgq_enqueue('{"reports": 1}', 'moderation', priority => 1)),
    ('First!', pgq_enqueue('{"reports": 1}', 'moderation', priority => 1));

/*
 * 0.1.0 to 0.2.0: queues have a description; pgq._regrant runs at a commit.
 */

--@ functions
--@ lock pgq.queue, pgq.chore
alter table pgq.queue add column description text;
alter table pgq.chore add column regrant boolean;

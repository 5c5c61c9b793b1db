select count(*) from pgq.job;

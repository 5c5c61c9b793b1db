select count(*) from textbook.job;

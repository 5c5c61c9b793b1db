select count(*) from pgq.job where worker = 'bench';

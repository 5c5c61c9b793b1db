with completed as (
    delete from textbook.job where status = 'active' returning id
)
select count(*) from completed;

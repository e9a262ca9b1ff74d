-- Forgets terminal rows past their retention, oldest first, in one short step that waits for nobody.
-- $1 retention of completed in µs, $2 of dead, $3 limit, $4 now in µs; null: ours
with clock as materialized (
  select coalesce($4::bigint, (extract(epoch from statement_timestamp()) * 1000000)::bigint) as now
),
pruned as (
  delete from hookclaim_deliveries
  where ctid = any (array(
    select ctid
    from hookclaim_deliveries
    where state in (2, 4)
      and finished_at < (select now from clock) - least($1::bigint, $2::bigint)
      and finished_at < (select now from clock) - case state when 2 then $1::bigint else $2::bigint end
    order by finished_at
    limit $3
    for update skip locked
  ))
  returning 1
)
select count(*) as count
from pruned

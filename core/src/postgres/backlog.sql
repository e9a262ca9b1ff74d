-- Counts what waits and what is leased, reading nothing else. $1 now in µs; null: ours
with clock as materialized (
  select coalesce($1::bigint, (extract(epoch from statement_timestamp()) * 1000000)::bigint) as now
)
select w.waiting, greatest(c.now - w.oldest, 0) as oldest_due, l.leased, l.overdue
from clock c
cross join (
  select count(*) as waiting, min(retry_at) as oldest
  from hookclaim_deliveries
  where state in (0, 3) and request is not null
) w
cross join (
  select count(*) as leased, count(*) filter (where lease_until <= (select now from clock)) as overdue
  from hookclaim_deliveries
  where state = 1 and request is not null
) l

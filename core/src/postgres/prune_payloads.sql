-- Drops payloads that were kept of what is completed, past their retention, oldest first, waiting for nobody.
-- $1 retention in µs, $2 limit, $3 now in µs; null: ours
with clock as materialized (
  select coalesce($3::bigint, (extract(epoch from statement_timestamp()) * 1000000)::bigint) as now
),
dropped as (
  update hookclaim_deliveries set
    request = null,
    payload = null,
    sealed_with = null
  where ctid = any (array(
    select ctid
    from hookclaim_deliveries
    where state = 2 and request is not null and finished_at < (select now from clock) - $1::bigint
    order by finished_at
    limit $2
    for no key update skip locked
  ))
  returning 1
)
select count(*) as count
from dropped

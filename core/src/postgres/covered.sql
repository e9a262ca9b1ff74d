-- Writes down deliveries whose work another delivery under the same business key does.
-- $1 sources, $2 keys, $3 delivery ids, $4 events, $5 actions, $6 now in µs; null: ours
--
-- What is written down already costs a look and no lock. The row is locked against being pruned, so that there is one
-- to refer to; one that is being pruned is passed by, and its covered deliveries are forgotten with it.
insert into hookclaim_covered (received_at, source, key, delivery_id, event, action)
select
  coalesce($6::bigint, (extract(epoch from statement_timestamp()) * 1000000)::bigint),
  r.source, r.key, r.delivery_id, r.event, r.action
from (
  select
    u.source collate "C" as source, u.key collate "C" as key, u.delivery_id collate "C" as delivery_id, u.event, u.action
  from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) as u (source, key, delivery_id, event, action)
  order by 2, 1, 3
  offset 0
) r
cross join lateral (
  select x.delivery_id
  from hookclaim_deliveries x
  where x.source = r.source and x.key = r.key and x.delivery_id <> r.delivery_id
    and not exists (
      select
      from hookclaim_covered c
      where c.source = r.source and c.key = r.key and c.delivery_id = r.delivery_id
    )
  for key share skip locked
) d
on conflict do nothing

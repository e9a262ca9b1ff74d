-- Remembers deliveries whose work another delivery of the same key does.
-- ?1 JSON array of [source, key, delivery id, event, action], ?2 now in µs
insert into hookclaim_covered (received_at, source, key, delivery_id, event, action)
select ?2, d.source, d.key, r.value ->> 2, r.value ->> 3, r.value ->> 4
from json_each(?1) r
cross join hookclaim_deliveries d on d.source = r.value ->> 0 and d.key = r.value ->> 1
where d.delivery_id <> r.value ->> 2
on conflict do nothing

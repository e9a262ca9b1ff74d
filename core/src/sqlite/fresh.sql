-- What just came, unless it is too much. in_turn.sql follows.
--
-- ?1 source, or what the sources begin with if ?2; ?3 now in µs, ?4 whether order is strict, ?5 limit
-- ?6 instant after which it came, ?7 how much is too much
select d.rowid as id, d.*, true as has_payload
from (
  select newest.id, count(*) over () as count
  from (
    select f.rowid as id
    from hookclaim_deliveries f indexed by hookclaim_deliveries_due
    where f.state in (0, 3)
      and f.request is not null
      and f.retry_at > ?6
      and f.retry_at <= ?3
      and iif(?2, substr(f.source, 1, length(?1)) = ?1, f.source = ?1)
      and f.state = 0
      and f.attempts = 0
    order by f.retry_at desc
    limit ?7 + 1
  ) newest
) fresh
cross join hookclaim_deliveries d on d.rowid = fresh.id
where fresh.count <= ?7

-- ?1 now in µs
select waiting.count as waiting, waiting.oldest, leased.count as leased, leased.overdue
from (
  select count(*) as count, min(retry_at) as oldest
  from hookclaim_deliveries indexed by hookclaim_deliveries_due
  where state in (0, 3) and request is not null
) waiting,
(
  select count(*) as count, count(*) filter (where lease_until <= ?1) as overdue
  from hookclaim_deliveries indexed by hookclaim_deliveries_leased
  where state = 1 and request is not null
) leased

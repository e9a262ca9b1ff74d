-- What is due. in_turn.sql follows.
--
-- ?1 source, or what the sources begin with if ?2; ?3 now in µs, ?4 whether order is strict, ?5 limit
select d.rowid as id, d.*, true as has_payload
from hookclaim_deliveries d indexed by hookclaim_deliveries_due
where d.state in (0, 3)
  and d.request is not null
  and d.retry_at <= ?3
  and iif(?2, substr(d.source, 1, length(?1)) = ?1, d.source = ?1)

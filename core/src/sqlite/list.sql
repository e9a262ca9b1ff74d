-- Deliveries, and those that another covers: their state is that of the work.
--
-- ?1 JSON array of states, ?2 source, ?3 event, ?4 delivery id, ?5 since, ?6 until, ?7 error; null: any
-- ?8 to ?11 position of the last one before, null: from the beginning; ?12 limit
select *
from (
  select
    source, key, delivery_id, event, action, ordering_key, state, attempts, fence, claim_token, fingerprint,
    received_at, claimed_at, renewed_at, lease_until, retry_at, finished_at, error_class, last_error,
    request is not null as has_payload, null as covered_by
  from hookclaim_deliveries
  union all
  select
    d.source, d.key, c.delivery_id, c.event, c.action, d.ordering_key, d.state, d.attempts, d.fence, d.claim_token,
    d.fingerprint, c.received_at, d.claimed_at, d.renewed_at, d.lease_until, d.retry_at, d.finished_at, d.error_class,
    d.last_error, d.request is not null, d.delivery_id
  from hookclaim_covered c
  cross join hookclaim_deliveries d on d.key = c.key and d.source = c.source
)
where (?1 is null or state in (select value from json_each(?1)))
  and (?2 is null or source = ?2)
  and (?3 is null or event = ?3)
  and (?4 is null or delivery_id = ?4)
  and (?5 is null or received_at >= ?5)
  and (?6 is null or received_at < ?6)
  and (?7 is null or error_class = lower(?7) or instr(lower(last_error), lower(?7)) > 0)
  and (?8 is null or (received_at, source, key, delivery_id) < (?8, ?9, ?10, ?11))
order by received_at desc, source desc, key desc, delivery_id desc
limit ?12

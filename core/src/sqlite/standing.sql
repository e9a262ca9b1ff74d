-- The rows of these keys. ?1 JSON array of [source, key]
select
  d.source, d.key, d.delivery_id, d.event, d.action, d.ordering_key, d.state, d.attempts, d.fence, d.claim_token,
  d.fingerprint, d.received_at, d.claimed_at, d.renewed_at, d.lease_until, d.retry_at, d.finished_at, d.error_class,
  d.last_error, d.request is not null as has_payload
from json_each(?1) r
cross join hookclaim_deliveries d on d.source = r.value ->> 0 and d.key = r.value ->> 1

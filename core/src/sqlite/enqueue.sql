-- Stores deliveries for workers, each for itself; a row back for each that was stored, or retired for want of attempts.
-- The others are read by standing.sql in the same transaction.
--
-- ?1 JSON array of [source, key, delivery id, event, action, token, fingerprint, ordering key, delay in µs, request,
--   sealed with, offset, length], token and fingerprint in hexadecimal; no (source, key) twice
-- ?2 the payloads, one after the other: each begins at its offset, counted from 1
-- ?3 most attempts, ?4 now in µs, ?5 what an expired lease is called
insert into hookclaim_deliveries as d (
  source, key, delivery_id, event, action, state, attempts, fence, claim_token, fingerprint,
  ordering_key, received_at, retry_at, request, sealed_with, payload
)
select
  r.value ->> 0, r.value ->> 1, r.value ->> 2, r.value ->> 3, r.value ->> 4, 0, 0, 0,
  unhex(r.value ->> 5), unhex(r.value ->> 6),
  r.value ->> 7, ?4, ?4 + (r.value ->> 8), r.value ->> 9, r.value ->> 10,
  -- Of no bytes substr makes null.
  ifnull(substr(?2, r.value ->> 11, r.value ->> 12), x'')
from json_each(?1) r
where true
on conflict (key, source) do update set
  state = iif(d.attempts >= ?3, 4, 0),
  claim_token = iif(d.attempts >= ?3, d.claim_token, excluded.claim_token),
  ordering_key = iif(d.attempts >= ?3, d.ordering_key, excluded.ordering_key),
  renewed_at = null,
  lease_until = null,
  retry_at = iif(d.attempts >= ?3, null, excluded.retry_at),
  finished_at = iif(d.attempts >= ?3, ?4, null),
  error_class = iif(d.state = 1, 'lease_expired', d.error_class),
  last_error = iif(d.state = 1, ?5, d.last_error),
  request = iif(d.attempts >= ?3, null, excluded.request),
  sealed_with = iif(d.attempts >= ?3, null, excluded.sealed_with),
  payload = iif(d.attempts >= ?3, null, excluded.payload)
where d.request is null
  and d.claim_token <> excluded.claim_token
  and (d.state = 3 or d.state = 1 and (d.lease_until <= ?4 or d.renewed_at > ?4 + 1000000))
  and ifnull(
    d.fingerprint = excluded.fingerprint or substr(d.fingerprint, 1, 4) <> substr(excluded.fingerprint, 1, 4),
    true
  )
-- The rest is as it was asked for.
returning source, key, state, fence, attempts, error_class

-- Claims, each for itself; a row back for each that was won, or retired for want of attempts. The others are read by
-- standing.sql in the same transaction.
--
-- ?1 JSON array of [source, key, delivery id, event, action, token, fingerprint], the last two in hexadecimal; no
-- (source, key) twice
-- ?2 lease in µs, ?3 most attempts, ?4 whether failed ones are taken before they are due, ?5 now in µs
-- ?6 what an expired lease is called
insert into hookclaim_deliveries as d (
  source, key, delivery_id, event, action, state, attempts, fence, claim_token, fingerprint,
  received_at, claimed_at, renewed_at, lease_until
)
select
  r.value ->> 0, r.value ->> 1, r.value ->> 2, r.value ->> 3, r.value ->> 4, 1, 1, 1,
  unhex(r.value ->> 5), unhex(r.value ->> 6),
  ?5, ?5, ?5, ?5 + ?2
from json_each(?1) r
where true
on conflict (key, source) do update set
  state = iif(d.attempts >= ?3, 4, 1),
  claim_token = iif(d.attempts >= ?3, d.claim_token, excluded.claim_token),
  fence = d.fence + (d.attempts < ?3),
  claimed_at = iif(d.attempts >= ?3, d.claimed_at, ?5),
  renewed_at = iif(d.attempts >= ?3, null, ?5),
  lease_until = iif(d.attempts >= ?3, null, excluded.lease_until),
  retry_at = null,
  finished_at = iif(d.attempts >= ?3, ?5, null),
  error_class = iif(d.state = 1, 'lease_expired', d.error_class),
  last_error = iif(d.state = 1, ?6, d.last_error),
  attempts = d.attempts + (d.attempts < ?3)
where case
    when d.state = 1
      then d.claim_token <> excluded.claim_token and (d.lease_until <= ?5 or d.renewed_at > ?5 + 1000000)
    when d.state in (0, 3) then ?4 or d.retry_at <= ?5
    else false
  end
  and ifnull(
    d.fingerprint = excluded.fingerprint or substr(d.fingerprint, 1, 4) <> substr(excluded.fingerprint, 1, 4),
    true
  )
-- The rest is as it was asked for.
returning source, key, state, fence, attempts, error_class

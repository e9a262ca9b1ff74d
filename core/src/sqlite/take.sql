-- Begins the attempts that were found, and retires what has used up its own.
--
-- ?1 JSON array of [id, token in hexadecimal], ?2 now in µs, ?3 lease in µs, ?4 most attempts
-- ?5 what an expired lease is called
update hookclaim_deliveries as d set
  state = iif(d.attempts >= ?4, 4, 1),
  claim_token = iif(d.attempts >= ?4, d.claim_token, t.token),
  fence = d.fence + (d.attempts < ?4),
  claimed_at = iif(d.attempts >= ?4, d.claimed_at, ?2),
  renewed_at = iif(d.attempts >= ?4, null, ?2),
  lease_until = iif(d.attempts >= ?4, null, ?2 + ?3),
  retry_at = null,
  finished_at = iif(d.attempts >= ?4, ?2, null),
  error_class = iif(d.state = 1, 'lease_expired', d.error_class),
  last_error = iif(d.state = 1, ?5, d.last_error),
  attempts = d.attempts + (d.attempts < ?4)
from (select r.value ->> 0 as id, unhex(r.value ->> 1) as token from json_each(?1) r) t
where d.rowid = t.id

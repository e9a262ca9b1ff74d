-- Settles or renews claims, each for itself; a row back for each that was changed.
--
-- ?1 JSON array of [source, key, token in hexadecimal, operation, span, bound, class, message]; no (source, key) twice
--   operation: 1 complete, 2 fail, 3 release, 4 renew
--   span in µs: delay of a failure or release, lease of a renewal
--   bound: most attempts of a failure, longest hold of a renewal in µs, whether a completed one keeps its payload
-- ?2 now in µs
--
-- Materialized: else the planner turns the join around, and reads every row that there is.
with s as materialized (
  select
    x.rowid as id,
    r.value ->> 3 as operation,
    r.value ->> 4 as span,
    r.value ->> 5 as bound,
    r.value ->> 6 as class,
    r.value ->> 7 as message,
    case r.value ->> 3
      when 1 then 2
      when 2 then iif(r.value ->> 6 = 'permanent' or x.attempts >= r.value ->> 5, 4, 3)
      when 3 then 3
      else 1
    end as state
  from json_each(?1) r
  cross join hookclaim_deliveries x
    on x.source = r.value ->> 0
    and x.key = r.value ->> 1
    and x.claim_token = unhex(r.value ->> 2)
    and x.state = 1
)
update hookclaim_deliveries as d set
  state = s.state,
  attempts = iif(s.operation = 3, max(d.attempts - 1, 0), d.attempts),
  renewed_at = iif(s.state = 1, ?2, null),
  lease_until = iif(s.state = 1, min(?2 + s.span, d.claimed_at + s.bound), null),
  retry_at = iif(s.state = 3, ?2 + s.span, null),
  finished_at = iif(s.state in (2, 4), ?2, null),
  error_class = iif(s.operation in (2, 3), s.class, d.error_class),
  last_error = iif(s.operation in (2, 3), s.message, d.last_error),
  request = iif(s.operation = 1 and not s.bound, null, d.request),
  sealed_with = iif(s.operation = 1 and not s.bound, null, d.sealed_with),
  payload = iif(s.operation = 1 and not s.bound, null, d.payload)
from s
where d.rowid = s.id
returning source, key, state, lease_until, retry_at

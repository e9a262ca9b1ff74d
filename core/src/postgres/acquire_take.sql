turns as materialized (
  select tid, ordered, row_number() over () as ord, sum(size) over (rows unbounded preceding) - size as before
  from candidates
),
taken as (
  update hookclaim_deliveries d set
    state = case when d.attempts >= $5::int then 4 else 1 end,
    claim_token = case when d.attempts >= $5::int then d.claim_token else ($6::uuid[])[t.ord::int] end,
    fence = d.fence + (d.attempts < $5::int)::int,
    attempts = d.attempts + (d.attempts < $5::int)::int,
    claimed_at = case when d.attempts >= $5::int then d.claimed_at else s.now end,
    renewed_at = case when d.attempts < $5::int then s.now end,
    lease_until = case when d.attempts < $5::int then s.now + $4::bigint end,
    retry_at = null,
    finished_at = case when d.attempts >= $5::int then s.now end,
    error_class = case when d.state = 1 then 'lease_expired' else d.error_class end,
    last_error = case when d.state = 1 then $8::text else d.last_error end
  from turns t
  cross join summary s
  where d.ctid = t.tid
    -- what one answer carries is bounded, and the first is always carried
    and t.before < 16777216
    -- Whether an order lets one start is known only where nobody else starts one of the same order meanwhile.
    and ($9::boolean or not (select bool_or(ordered) from turns))
  returning
    t.ord, d.source, d.key, d.delivery_id, d.event, d.state, d.claim_token, d.fence, d.attempts, d.lease_until,
    d.retry_at, d.error_class, d.fingerprint, d.received_at, d.sealed_with,
    d.ordering_key is not null as has_order,
    case when d.state = 1 then d.request end as request,
    case when d.state = 1 then d.payload end as payload
)
select
  s.now, s.oldest,
  coalesce((select bool_or(ordered) from turns), false) as ordered,
  coalesce((select bool_or(before >= 16777216) from turns), false) as cut,
  false as found,
  t.*
from summary s
left join taken t on true

-- What was taken under these tokens by a statement whose answer was lost. $1 tokens, $2 now in µs; null: ours
select
  coalesce($2::bigint, (extract(epoch from statement_timestamp()) * 1000000)::bigint) as now,
  null::bigint as oldest, false as ordered, false as cut, true as found,
  array_position($1::uuid[], d.claim_token)::bigint as ord,
  d.source, d.key, d.delivery_id, d.event, d.state, d.claim_token, d.fence, d.attempts, d.lease_until, d.retry_at,
  d.error_class, d.fingerprint, d.received_at, d.sealed_with,
  d.ordering_key is not null as has_order, d.request, d.payload
from hookclaim_deliveries d
where d.state = 1 and d.request is not null and d.claim_token = any ($1::uuid[])

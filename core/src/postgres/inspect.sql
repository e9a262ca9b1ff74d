select
  d.received_at, d.claimed_at, d.renewed_at, d.lease_until, d.retry_at, d.finished_at, d.fence, d.claim_token,
  d.attempts, d.state, d.source, d.key, d.delivery_id, d.event, d.action, d.ordering_key, d.fingerprint, d.error_class,
  d.last_error, d.stored, null::text as covered_by, t.ord
from unnest($1::text[], $2::text[]) with ordinality as t (source, key, ord)
cross join lateral (
  select *, x.request is not null as stored
  from hookclaim_deliveries x
  where x.source = t.source collate "C" and x.key = t.key collate "C"
  offset 0
) d

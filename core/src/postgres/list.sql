-- Deliveries and those that they cover, newest first.
--
-- $1 states, $2 source, $3 event, $4 delivery id, $5 since, $6 until, $7 error; null: any
-- $8 to $11 the last one before: when received, source, key, delivery id; null: none, $12 limit
with listed as (
  select
    d.received_at, d.claimed_at, d.renewed_at, d.lease_until, d.retry_at, d.finished_at, d.fence, d.claim_token,
    d.attempts, d.state, d.source, d.key, d.delivery_id, d.event, d.action, d.ordering_key, d.fingerprint,
    d.error_class, d.last_error, d.request is not null as stored, null::text as covered_by
  from hookclaim_deliveries d
  union all
  select
    c.received_at, d.claimed_at, d.renewed_at, d.lease_until, d.retry_at, d.finished_at, d.fence, d.claim_token,
    d.attempts, d.state, d.source, d.key, c.delivery_id, c.event, c.action, d.ordering_key, d.fingerprint,
    d.error_class, d.last_error, d.request is not null, d.delivery_id
  from hookclaim_covered c
  join hookclaim_deliveries d on d.key = c.key and d.source = c.source
)
select *
from listed
where ($1::smallint[] is null or state = any ($1))
  and ($2::text is null or source = $2)
  and ($3::text is null or event = $3)
  and ($4::text is null or delivery_id = $4)
  and ($5::bigint is null or received_at >= $5)
  and ($6::bigint is null or received_at < $6)
  and (
    $7::text is null
    or error_class = lower($7 collate "C")
    or strpos(lower(last_error collate "C"), lower($7 collate "C")) > 0
  )
  and ($8::bigint is null or (received_at, source, key, delivery_id) < ($8, $9::text, $10::text, $11::text))
order by received_at desc, source desc, key desc, delivery_id desc
limit $12

-- Stores deliveries for workers, each for itself.
--
-- $1 sources, $2 keys, $3 delivery ids, $4 events, $5 actions, $6 tokens, $7 fingerprints: no (source, key) twice
-- $8 ordering keys, $9 names of the keys that sealed the payloads, $10 delays in µs, $11 requests, $12 payloads
-- $13 most attempts, $14 now in µs; null: ours, $15 what an expired lease is called
--
-- It answers as claim.sql does, and waits for whom that waits for. A row that has its payload runs by itself and stays
-- as it is. One that has none, and that failed or whose lease is over, gets it.
--
-- Payloads are read out of their array where they are written, one at a time. As a column of `current` all of them
-- would be copied first.
with clock as materialized (
  select coalesce($14::bigint, (extract(epoch from statement_timestamp()) * 1000000)::bigint) as now
),
current as materialized (
  select
    r.source collate "C" as source,
    r.key collate "C" as key,
    r.delivery_id, r.event, r.action, r.token, r.fingerprint as offered, r.ordering_key, r.sealed_with, r.delay,
    r.ord::int as ord,
    c.now,
    d.state, d.claim_token, d.fence, d.attempts, d.lease_until, d.retry_at, d.error_class, d.fingerprint,
    case
      when d.stored then false
      when d.state = 1
        then d.claim_token <> r.token and (d.lease_until <= c.now or d.renewed_at > c.now + 1000000)
      else coalesce(d.state in (0, 3), false)
    end
    and coalesce(
      d.fingerprint = r.fingerprint or substr(d.fingerprint, 1, 4) <> substr(r.fingerprint, 1, 4),
      true
    ) as claimable
  from unnest(
    $1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::uuid[], $7::bytea[], $8::text[], $9::text[],
    $10::bigint[]
  ) with ordinality
    as r (source, key, delivery_id, event, action, token, fingerprint, ordering_key, sealed_with, delay, ord)
  cross join clock c
  left join lateral (
    select
      x.state, x.claim_token, x.fence, x.attempts, x.lease_until, x.renewed_at, x.retry_at, x.error_class,
      x.fingerprint, x.request is not null as stored
    from hookclaim_deliveries x
    where x.source = r.source collate "C" and x.key = r.key collate "C"
    offset 0
  ) d on true
),
fresh as (
  insert into hookclaim_deliveries (
    source, key, delivery_id, event, action, ordering_key, state, attempts, fence, claim_token, fingerprint,
    received_at, retry_at, request, payload, sealed_with
  )
  select
    s.source, s.key, s.delivery_id, s.event, s.action, s.ordering_key, 0, 0, 0, s.token, s.offered,
    s.now, s.now + s.delay, ($11::text[])[s.ord], ($12::bytea[])[s.ord], s.sealed_with
  -- offset 0: sorted before the payloads are there
  from (
    select *
    from current
    where state is null
    order by key, source
    offset 0
  ) s
  on conflict (key, source) do nothing
  returning claim_token
),
taken as (
  update hookclaim_deliveries d set
    state = case when d.attempts >= $13::int then 4 else 0 end,
    claim_token = case when d.attempts >= $13::int then d.claim_token else l.token end,
    ordering_key = case when d.attempts >= $13::int then d.ordering_key else l.ordering_key end,
    request = case when d.attempts < $13::int then ($11::text[])[l.ord] end,
    payload = case when d.attempts < $13::int then ($12::bytea[])[l.ord] end,
    sealed_with = case when d.attempts < $13::int then l.sealed_with end,
    renewed_at = null,
    lease_until = null,
    retry_at = case when d.attempts < $13::int then l.now + l.delay end,
    finished_at = case when d.attempts >= $13::int then l.now end,
    error_class = case when d.state = 1 then 'lease_expired' else d.error_class end,
    last_error = case when d.state = 1 then $15::text else d.last_error end
  from (
    select c.token, c.ordering_key, c.sealed_with, c.delay, c.ord, c.now, x.ctid as tid
    from current c
    cross join lateral (
      select i.ctid
      from hookclaim_deliveries i
      where i.source = c.source and i.key = c.key
        -- what the snapshot saw may have been taken by a claim meanwhile, or settled, or got its payload
        and i.claim_token = c.claim_token and i.state + 0 = c.state and i.lease_until is not distinct from c.lease_until
        and i.request is null
      for no key update skip locked
    ) x
    where c.claimable and (select count(*) from fresh) >= 0
  ) l
  where d.ctid = l.tid
  returning
    l.token, d.state, d.claim_token, d.fence, d.attempts, d.lease_until, d.retry_at, d.error_class, d.fingerprint, l.now
)
select
  claim_token as token,
  null::smallint as state, null::uuid as claim_token, null::bigint as fence, null::integer as attempts,
  null::bigint as lease_until, null::bigint as retry_at, null::text as error_class, null::bytea as fingerprint,
  null::bigint as now, false as busy
from fresh
union all
select *, false
from taken
union all
select token, state, claim_token, fence, attempts, lease_until, retry_at, error_class, fingerprint, now, claimable
from current
where state is not null and token not in (select token from taken)

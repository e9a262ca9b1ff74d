-- Claims, each for itself.
--
-- $1 sources, $2 keys, $3 delivery ids, $4 events, $5 actions, $6 tokens, $7 fingerprints: no (source, key) twice
-- $8 lease in µs, $9 most attempts, $10 whether failed ones are taken before they are due, $11 now in µs; null: ours
-- $12 what an expired lease is called
--
-- A row back names its request by the request's token. One without a state is a new key that was won. One with a
-- state shows the row as it is after the claim. No row back: a new key for which somebody else was faster by a moment.
-- That one's row began as leased after this statement had begun, so that in progress is a true answer.
--
-- `current` answers from the snapshot whatever stands still: completed, dead, leased, not due. It takes no lock and
-- writes nothing. `fresh` inserts what is absent, and may wait for others who insert the same key, in the order of
-- keys, the same everywhere. `taken` comes after it and waits for nobody: a row that is locked by somebody else is
-- passed by, and is in progress. So nobody waits while somebody who waits for him holds what he wants.
with clock as materialized (
  select coalesce($11::bigint, (extract(epoch from statement_timestamp()) * 1000000)::bigint) as now
),
current as materialized (
  select
    r.source collate "C" as source,
    r.key collate "C" as key,
    r.delivery_id, r.event, r.action, r.token, r.fingerprint as offered,
    c.now,
    d.state, d.claim_token, d.fence, d.attempts, d.lease_until, d.retry_at, d.error_class, d.fingerprint,
    case
      when d.state = 1
        then d.claim_token <> r.token and (d.lease_until <= c.now or d.renewed_at > c.now + 1000000)
      when d.state in (0, 3) then $10::boolean or d.retry_at <= c.now
      else false
    end
    and coalesce(
      d.fingerprint = r.fingerprint or substr(d.fingerprint, 1, 4) <> substr(r.fingerprint, 1, 4),
      true
    ) as claimable
  from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::uuid[], $7::bytea[])
    as r (source, key, delivery_id, event, action, token, fingerprint)
  cross join clock c
  -- offset 0: one look into the primary key per request, never a hash join over the table
  left join lateral (
    select *
    from hookclaim_deliveries x
    where x.source = r.source collate "C" and x.key = r.key collate "C"
    offset 0
  ) d on true
),
fresh as (
  insert into hookclaim_deliveries (
    source, key, delivery_id, event, action, state, attempts, fence, claim_token, fingerprint,
    received_at, claimed_at, renewed_at, lease_until
  )
  select source, key, delivery_id, event, action, 1, 1, 1, token, offered, now, now, now, now + $8::bigint
  from current
  where state is null
  order by key, source
  on conflict (key, source) do nothing
  returning claim_token
),
taken as (
  update hookclaim_deliveries d set
    state = case when d.attempts >= $9::int then 4 else 1 end,
    claim_token = case when d.attempts >= $9::int then d.claim_token else l.token end,
    fence = d.fence + (d.attempts < $9::int)::int,
    attempts = d.attempts + (d.attempts < $9::int)::int,
    claimed_at = case when d.attempts >= $9::int then d.claimed_at else l.now end,
    renewed_at = case when d.attempts < $9::int then l.now end,
    lease_until = case when d.attempts < $9::int then l.now + $8::bigint end,
    retry_at = null,
    finished_at = case when d.attempts >= $9::int then l.now end,
    error_class = case when d.state = 1 then 'lease_expired' else d.error_class end,
    last_error = case when d.state = 1 then $12::text else d.last_error end
  from (
    select c.token, c.now, x.ctid as tid
    from current c
    cross join lateral (
      select i.ctid
      from hookclaim_deliveries i
      where i.source = c.source and i.key = c.key
        -- what the snapshot saw may have been taken by another claim meanwhile, or settled
        and i.claim_token = c.claim_token and i.state + 0 = c.state and i.lease_until is not distinct from c.lease_until
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

-- Claims, each for itself; one row back per request.
--
-- $1 sources, $2 keys, $3 delivery ids, $4 events, $5 actions, $6 tokens, $7 fingerprints: no (source, key) twice
-- $8 lease in µs, $9 most attempts, $10 whether failed ones are taken before they are due, $11 now in µs; null: ours
--
-- `current` answers from the snapshot whatever stands still: completed, dead, leased, not due. It takes no lock and
-- writes nothing. Only what is absent or claimable goes on. A claimable row is locked in passing, at its turn in the
-- order of keys, and never waited for: locked by somebody else means in progress. A race that is lost within the
-- insert ends in an update that changes nothing and shows the row as it is, so that everybody gets a verdict.
-- The winner is known by its token.
with clock as materialized (
  select coalesce($11::bigint, (extract(epoch from statement_timestamp()) * 1000000)::bigint) as now
),
request as materialized (
  select
    t.source collate "C" as source,
    t.key collate "C" as key,
    t.delivery_id, t.event, t.action, t.token, t.fingerprint
  from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::uuid[], $7::bytea[])
    as t (source, key, delivery_id, event, action, token, fingerprint)
),
current as materialized (
  select
    d.source, d.key, d.state, d.claim_token, d.fence, d.attempts, d.lease_until, d.retry_at, d.error_class,
    d.fingerprint,
    case
      when d.state = 1 then d.lease_until <= c.now or d.renewed_at > c.now + 1000000
      when d.state in (0, 3) then $10::boolean or d.retry_at <= c.now
      else false
    end
    and coalesce(
      d.fingerprint = r.fingerprint or substr(d.fingerprint, 1, 4) <> substr(r.fingerprint, 1, 4),
      true
    ) as claimable
  from request r
  cross join clock c
  -- offset 0: one look into the primary key per request, never a hash join over the table
  cross join lateral (
    select *
    from hookclaim_deliveries x
    where x.source = r.source and x.key = r.key
    offset 0
  ) d
),
claimed as (
  insert into hookclaim_deliveries as d (
    source, key, delivery_id, event, action, state, attempts, fence, claim_token, fingerprint,
    received_at, claimed_at, renewed_at, lease_until
  )
  select
    r.source, r.key, r.delivery_id, r.event, r.action, 1, 1, 1, r.token, r.fingerprint,
    c.now, c.now, c.now, c.now + $8::bigint
  from (
    select q.*, k.claimable
    from request q
    left join current k on k.source = q.source and k.key = q.key
    where k.claimable is not false
    order by q.source, q.key
  ) r
  cross join clock c
  left join lateral (
    select true as locked
    from hookclaim_deliveries x
    where r.claimable and x.source = r.source and x.key = r.key
    for no key update skip locked
  ) l on true
  where r.claimable is null or l.locked
  on conflict (source, key) do update set
    (
      state, claim_token, fence, attempts, claimed_at, renewed_at, lease_until, retry_at, finished_at, error_class,
      last_error
    ) = (
      select
        case when not v.ok then d.state when v.spent then 4 else 1 end,
        case when v.won then excluded.claim_token else d.claim_token end,
        d.fence + v.won::int,
        d.attempts + v.won::int,
        case when v.won then excluded.claimed_at else d.claimed_at end,
        case when v.won then excluded.renewed_at when v.spent then null else d.renewed_at end,
        case when v.won then excluded.lease_until when v.spent then null else d.lease_until end,
        case when v.ok then null else d.retry_at end,
        case when v.spent then excluded.claimed_at else d.finished_at end,
        case when v.ok and d.state = 1 then 'lease_expired' else d.error_class end,
        case when v.ok and d.state = 1 then $12::text else d.last_error end
      from (
        select u.ok, u.ok and d.attempts >= $9::int as spent, u.ok and d.attempts < $9::int as won
        from (
          select
            case
              when d.state = 1 then d.lease_until <= excluded.claimed_at or d.renewed_at > excluded.claimed_at + 1000000
              when d.state in (0, 3) then $10::boolean or d.retry_at <= excluded.claimed_at
              else false
            end
            and coalesce(
              d.fingerprint = excluded.fingerprint
                or substr(d.fingerprint, 1, 4) <> substr(excluded.fingerprint, 1, 4),
              true
            ) as ok
        ) u
      ) v
    )
  returning
    d.source, d.key, d.state, d.claim_token, d.fence, d.attempts, d.lease_until, d.retry_at, d.error_class,
    d.fingerprint
)
select a.*, c.now
from (
  select *, false as busy
  from claimed
  union all
  select
    source, key, state, claim_token, fence, attempts, lease_until, retry_at, error_class, fingerprint,
    claimable as busy
  from current
  where (source, key) not in (select source, key from claimed)
) a
cross join clock c

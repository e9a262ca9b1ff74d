-- Settles or renews claims, each for itself; a row back for each that was changed.
--
-- $1 sources, $2 keys, $3 tokens: no (source, key) twice
-- $4 operations: 1 complete, 2 fail, 3 release, 4 renew
-- $5 spans in µs: delay of a failure or release, lease of a renewal
-- $6 bounds: most attempts of a failure, longest hold of a renewal in µs, 1 for a completion that keeps its payload
-- $7 error classes, $8 error messages, $9 now in µs; null: ours
--
-- It never waits while it holds locks, and so cannot be part of a deadlock: a locked row is passed by and not
-- returned. What is not returned is either busy or lost; the caller looks.
with clock as materialized (
  select coalesce($9::bigint, (extract(epoch from statement_timestamp()) * 1000000)::bigint) as now
),
locked as materialized (
  select l.tid, t.ord, t.operation, t.span, t.bound, t.class, t.message
  from unnest($1::text[], $2::text[], $3::uuid[], $4::smallint[], $5::bigint[], $6::bigint[], $7::text[], $8::text[])
    with ordinality as t (source, key, token, operation, span, bound, class, message, ord)
  cross join lateral (
    select x.ctid as tid
    from hookclaim_deliveries x
    where x.source = t.source collate "C" and x.key = t.key collate "C" and x.claim_token = t.token
      -- + 0: keeps the planner off partial indexes, which look tiny to it
      and x.state + 0 = 1
    for no key update skip locked
  ) l
)
update hookclaim_deliveries d set
  (state, attempts, renewed_at, lease_until, retry_at, finished_at, error_class, last_error) = (
    select
      v.state,
      case when l.operation = 3 then greatest(d.attempts - 1, 0) else d.attempts end,
      case when v.state = 1 then c.now end,
      case when v.state = 1 then least(c.now + l.span, d.claimed_at + l.bound) end,
      case when v.state = 3 then c.now + l.span end,
      case when v.state in (2, 4) then c.now end,
      case when l.operation in (2, 3) then l.class else d.error_class end,
      case when l.operation in (2, 3) then l.message else d.last_error end
    from clock c
    cross join (
      select
        case l.operation
          when 1 then 2
          when 2 then case when l.class = 'permanent' or d.attempts >= l.bound then 4 else 3 end
          when 3 then 3
          else 1
        end as state
    ) v
  ),
  request = case when l.operation = 1 and l.bound = 0 then null else d.request end,
  payload = case when l.operation = 1 and l.bound = 0 then null else d.payload end,
  sealed_with = case when l.operation = 1 and l.bound = 0 then null else d.sealed_with end
from locked l
where d.ctid = l.tid
returning l.ord, d.state, d.lease_until, d.retry_at, (select now from clock) as now

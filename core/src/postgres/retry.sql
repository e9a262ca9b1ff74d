-- Lets a delivery run again, and writes down who said so.
-- $1 source, $2 key, $3 token, $4 whether a completed one runs again, $5 actor, $6 reason, $7 now in µs; null: ours
--
-- A row back says how it stood, whether it may, whether this did it or did it before, and whether it has its payload.
-- One that may and was not changed is locked by somebody else, or was changed by him.
with clock as materialized (
  select coalesce($7::bigint, (extract(epoch from statement_timestamp()) * 1000000)::bigint) as now
),
current as materialized (
  select
    x.state, x.claim_token, x.lease_until, x.request is not null as stored,
    case x.state
      when 1 then x.lease_until <= c.now or x.renewed_at > c.now + 1000000
      when 2 then $4::boolean
      else true
    end as may
  from clock c
  cross join hookclaim_deliveries x
  where x.source = $1 and x.key = $2
),
locked as materialized (
  select l.tid, c.state as before
  from current c
  cross join lateral (
    select i.ctid as tid
    from hookclaim_deliveries i
    where i.source = $1 and i.key = $2
      and i.claim_token = c.claim_token and i.state + 0 = c.state and i.lease_until is not distinct from c.lease_until
    for no key update skip locked
  ) l
  where c.may and c.claim_token <> $3::uuid
),
changed as (
  update hookclaim_deliveries d set
    state = case when d.request is null then 3 else 0 end,
    claim_token = $3::uuid,
    attempts = 0,
    renewed_at = null,
    lease_until = null,
    finished_at = null,
    retry_at = c.now
  from locked l
  cross join clock c
  where d.ctid = l.tid
  returning l.before, c.now
),
noted as (
  insert into hookclaim_audit (at, actor, action, reason, source, key)
  select now, $5::text, case before when 2 then 'force' else 'retry' end, $6::text, $1, $2
  from changed
)
select
  c.state, c.may, c.stored,
  c.claim_token = $3::uuid or exists (select from changed) as done
from current c

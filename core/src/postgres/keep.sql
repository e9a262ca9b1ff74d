-- Attaches payloads to claims that are held and have none; a row back for each that got it. It waits for nobody.
-- $1 sources, $2 keys, $3 tokens, $4 names of the keys that sealed, $5 requests, $6 payloads
with locked as materialized (
  select l.tid, t.sealed_with, t.ord::int as ord
  from unnest($1::text[], $2::text[], $3::uuid[], $4::text[])
    with ordinality as t (source, key, token, sealed_with, ord)
  cross join lateral (
    select x.ctid as tid
    from hookclaim_deliveries x
    where x.source = t.source collate "C" and x.key = t.key collate "C" and x.claim_token = t.token
      and x.state + 0 = 1 and x.request is null
    for no key update skip locked
  ) l
)
update hookclaim_deliveries d set
  request = ($5::text[])[l.ord],
  payload = ($6::bytea[])[l.ord],
  sealed_with = l.sealed_with
from locked l
where d.ctid = l.tid
returning l.ord::bigint as ord

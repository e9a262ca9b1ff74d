-- Takes deliveries that are due: those whose lease ran out first, then those that have been due for longest. The other
-- way round a queue that never ends would keep what a killed process left from being taken over at all.
--
-- $1 first source, $2 last source, $3 limit, $4 lease in µs, $5 most attempts, $6 tokens, $7 now in µs; null: ours
-- $8 what an expired lease is called, $9 whether the guard of orders is held, $10 whether orders are strict
-- $11 nothing is due at or before this instant, as far as is known, $12 whether to look for expired leases
--
-- $11 spares the entries of rows that were taken before, which the index keeps for as long as any snapshot is held.
with clock as materialized (
  select coalesce($7::bigint, (extract(epoch from statement_timestamp()) * 1000000)::bigint) as now
),
summary as materialized (
  select
    c.now,
    (
      select x.retry_at
      from hookclaim_deliveries x
      where x.state in (0, 3) and x.request is not null and x.retry_at > $11::bigint
        and x.source >= $1::text and x.source <= $2::text
      order by x.retry_at, x.source, x.key
      limit 1
    ) as oldest
  from clock c
),
expired as materialized (
  select x.ctid as tid, x.ordering_key is not null as ordered, octet_length(x.payload) as size
  from hookclaim_deliveries x
  where $12::boolean and x.state = 1 and x.request is not null
    and (x.lease_until <= (select now from clock) or x.renewed_at > (select now from clock) + 1000000)
    and x.source >= $1::text and x.source <= $2::text
    and (
      x.ordering_key is null
      or not exists (
        select
        from hookclaim_deliveries o
        where o.ordering_key = x.ordering_key and o.source = x.source and o.state in (0, 1, 3)
          and (o.received_at, o.key) < (x.received_at, x.key)
          and o.request is not null
          and (o.state = 1 or $10::boolean or o.retry_at <= (select now from clock))
      )
      and not exists (
        select
        from hookclaim_deliveries o
        where o.ordering_key = x.ordering_key and o.source = x.source and o.state = 1 and o.key <> x.key
          and o.lease_until > (select now from clock) and o.renewed_at <= (select now from clock) + 1000000
      )
    )
  order by x.claimed_at, x.source, x.key
  limit $3::bigint
  for no key update skip locked
),
due as materialized (
  select x.ctid as tid, x.ordering_key is not null as ordered, octet_length(x.payload) as size
  from hookclaim_deliveries x
  where x.state in (0, 3) and x.request is not null
    and x.retry_at > $11::bigint and x.retry_at <= (select now from clock)
    and x.source >= $1::text and x.source <= $2::text
    and (
      x.ordering_key is null
      or not exists (
        select
        from hookclaim_deliveries o
        where o.ordering_key = x.ordering_key and o.source = x.source and o.state in (0, 1, 3)
          and (o.received_at, o.key) < (x.received_at, x.key)
          and o.request is not null
          and (o.state = 1 or $10::boolean or o.retry_at <= (select now from clock))
      )
      and not exists (
        select
        from hookclaim_deliveries o
        where o.ordering_key = x.ordering_key and o.source = x.source and o.state = 1 and o.key <> x.key
          and o.lease_until > (select now from clock) and o.renewed_at <= (select now from clock) + 1000000
      )
    )
  order by x.retry_at, x.source, x.key
  limit greatest($3::bigint - (select count(*) from expired), 0)
  for no key update skip locked
),
candidates as (
  select * from expired
  union all
  select * from due
),

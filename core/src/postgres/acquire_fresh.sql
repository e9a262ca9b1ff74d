-- Takes deliveries that were never tried and have not been due for long, the newest first; none if they are many.
--
-- $1 first source, $2 last source, $3 limit, $4 lease in µs, $5 most attempts, $6 tokens, $7 now in µs; null: ours
-- $8 what an expired lease is called, $9 whether the guard of orders is held, $10 whether orders are strict
-- $11 for how long one is fresh in µs, $12 how many are too many
-- $13 nothing is due at or before this instant, as far as is known
with clock as materialized (
  select coalesce($7::bigint, (extract(epoch from statement_timestamp()) * 1000000)::bigint) as now
),
summary as materialized (
  select now, null::bigint as oldest
  from clock
),
fresh as materialized (
  select x.source, x.key, x.retry_at, x.ordering_key, x.received_at
  from hookclaim_deliveries x
  where x.state in (0, 3) and x.state + 0 = 0 and x.attempts = 0 and x.request is not null
    and x.retry_at > greatest((select now from clock) - $11::bigint, $13::bigint)
    and x.retry_at <= (select now from clock)
    and x.source >= $1::text and x.source <= $2::text
  order by x.retry_at desc, x.source desc, x.key desc
  limit $12::bigint + 1
),
candidates as materialized (
  select l.tid, x.ordering_key is not null as ordered, l.size
  from fresh x
  cross join lateral (
    select i.ctid as tid, octet_length(i.payload) as size
    from hookclaim_deliveries i
    where i.source = x.source and i.key = x.key and i.retry_at + 0 = x.retry_at and i.state + 0 = 0
    for no key update skip locked
  ) l
  where (select count(*) from fresh) <= $12::bigint
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
  limit $3::bigint
),

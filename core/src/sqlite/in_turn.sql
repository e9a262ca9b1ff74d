  -- One that runs keeps those with its ordering key from starting. So does one that arrived earlier and is to be taken
  -- over, is due, or, in strict order, will be.
  and (
    d.ordering_key is null
    or not exists (
      select 1
      from hookclaim_deliveries o indexed by hookclaim_deliveries_order
      where o.ordering_key = d.ordering_key
        and o.source = d.source
        and o.state in (0, 1, 3)
        and o.state = 1
        and iif(
          o.lease_until <= ?3 or o.renewed_at > ?3 + 1000000,
          (o.received_at, o.key) < (d.received_at, d.key) and o.request is not null,
          o.rowid <> d.rowid
        )
    )
    and not exists (
      select 1
      from hookclaim_deliveries o indexed by hookclaim_deliveries_order
      where o.ordering_key = d.ordering_key
        and o.source = d.source
        and o.state in (0, 1, 3)
        and o.state in (0, 3)
        and o.received_at <= d.received_at
        and (o.received_at, o.key) < (d.received_at, d.key)
        and o.request is not null
        and (?4 or o.retry_at <= ?3)
    )
  )

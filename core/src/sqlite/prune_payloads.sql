-- Drops payloads that were kept of completed deliveries, oldest first. ?1 instant before which they are past, ?2 limit
update hookclaim_deliveries set request = null, sealed_with = null, payload = null
where rowid in (
  select rowid
  from hookclaim_deliveries indexed by hookclaim_deliveries_kept
  where state = 2 and request is not null and finished_at < ?1
  order by finished_at
  limit ?2
)

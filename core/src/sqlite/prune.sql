-- Forgets terminal rows past their retention, oldest first.
-- ?1 instant before which completed ones are past, ?2 dead ones, ?3 limit
delete from hookclaim_deliveries
where rowid in (
  select rowid
  from hookclaim_deliveries
  where state in (2, 4)
    and finished_at < max(?1, ?2)
    and finished_at < iif(state = 2, ?1, ?2)
  order by finished_at
  limit ?3
)

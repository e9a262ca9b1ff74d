-- ?1 JSON array of states, ?2 source, ?3 event, ?4 delivery id, ?5 since, ?6 until, ?7 limit; null: any
select *
from hookclaim_deliveries
where (?1 is null or state in (select value from json_each(?1)))
  and (?2 is null or source = ?2)
  and (?3 is null or event = ?3)
  and (?4 is null or delivery_id = ?4)
  and (?5 is null or received_at >= ?5)
  and (?6 is null or received_at < ?6)
order by received_at desc, source desc, key desc
limit ?7

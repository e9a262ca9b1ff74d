-- $1 states, $2 source, $3 event, $4 delivery id, $5 since, $6 until, $7 limit; null: any
select *
from hookclaim_deliveries
where ($1::smallint[] is null or state = any ($1))
  and ($2::text is null or source = $2)
  and ($3::text is null or event = $3)
  and ($4::text is null or delivery_id = $4)
  and ($5::bigint is null or received_at >= $5)
  and ($6::bigint is null or received_at < $6)
order by received_at desc, source desc, key desc
limit $7

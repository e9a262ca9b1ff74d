-- The rows of these keys. ?1 JSON array of [source, key]
select d.*
from json_each(?1) r
cross join hookclaim_deliveries d on d.source = r.value ->> 0 and d.key = r.value ->> 1

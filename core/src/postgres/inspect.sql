select d.*, t.ord
from unnest($1::text[], $2::text[]) with ordinality as t (source, key, ord)
cross join lateral (
  select *
  from hookclaim_deliveries x
  where x.source = t.source collate "C" and x.key = t.key collate "C"
  offset 0
) d

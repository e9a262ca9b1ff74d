-- ?1 source, ?2 key
select request, sealed_with, payload
from hookclaim_deliveries
where source = ?1 and key = ?2 and request is not null

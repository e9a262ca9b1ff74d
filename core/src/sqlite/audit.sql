-- ?1 source, ?2 key
select at, actor, action, reason
from hookclaim_audit
where source = ?1 and key = ?2
order by id

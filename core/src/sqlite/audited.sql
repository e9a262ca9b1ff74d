-- ?1 now in µs, ?2 actor, ?3 action, ?4 reason, ?5 source, ?6 key
insert into hookclaim_audit (at, actor, action, reason, source, key) values (?1, ?2, ?3, ?4, ?5, ?6)

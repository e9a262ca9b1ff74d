-- Completes a claim within the handler's transaction. ?1 source, ?2 key, ?3 token, ?4 now in µs
update hookclaim_deliveries set
  state = 2,
  renewed_at = null,
  lease_until = null,
  finished_at = ifnull(finished_at, ?4)
where source = ?1 and key = ?2 and claim_token = ?3 and state in (1, 2)
returning fence

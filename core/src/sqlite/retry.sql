-- Lets a delivery run again. ?1 source, ?2 key, ?3 state, ?4 token, ?5 when it is due in µs
update hookclaim_deliveries set
  state = ?3,
  claim_token = ?4,
  attempts = 0,
  renewed_at = null,
  lease_until = null,
  finished_at = null,
  retry_at = ?5
where source = ?1 and key = ?2

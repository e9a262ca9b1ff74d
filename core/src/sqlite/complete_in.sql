-- Completes a claim within the handler's transaction.
-- ?1 source, ?2 key, ?3 token, ?4 now in µs, ?5 whether a payload stays
update hookclaim_deliveries set
  state = 2,
  renewed_at = null,
  lease_until = null,
  finished_at = ?4,
  request = iif(?5, request, null),
  sealed_with = iif(?5, sealed_with, null),
  payload = iif(?5, payload, null)
-- One that was completed by the same attempt before is not completed again: what was written with it then would be
-- written twice.
where source = ?1 and key = ?2 and claim_token = ?3 and state = 1
returning fence

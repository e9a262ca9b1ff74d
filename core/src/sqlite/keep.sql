-- Attaches a payload to a claim that is held and has none. A row back if the claim is held.
-- ?1 source, ?2 key, ?3 token, ?4 request, ?5 sealed with, ?6 payload
update hookclaim_deliveries set
  sealed_with = iif(request is null, ?5, sealed_with),
  payload = ifnull(payload, ?6),
  request = ifnull(request, ?4)
where source = ?1 and key = ?2 and claim_token = ?3 and state = 1
returning fence

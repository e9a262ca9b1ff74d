-- Completes a claim within the handler's transaction.
-- $1 source, $2 key, $3 token, $4 now in µs; null: ours, $5 whether its payload stays
update hookclaim_deliveries set
  state = 2,
  renewed_at = null,
  lease_until = null,
  finished_at = coalesce($4::bigint, (extract(epoch from statement_timestamp()) * 1000000)::bigint),
  request = case when $5::boolean then request end,
  payload = case when $5::boolean then payload end,
  sealed_with = case when $5::boolean then sealed_with end
-- One that was completed by the same attempt before is not completed again: what was written with it then would be
-- written twice.
where source = $1 and key = $2 and claim_token = $3 and state + 0 = 1
returning fence

-- Completes a claim within the handler's transaction.
-- $1 source, $2 key, $3 token, $4 now in µs; null: ours, $5 whether its payload stays
update hookclaim_deliveries set
  state = 2,
  renewed_at = null,
  lease_until = null,
  finished_at = coalesce(
    finished_at,
    $4::bigint,
    (extract(epoch from statement_timestamp()) * 1000000)::bigint
  ),
  request = case when $5::boolean or state = 2 then request end,
  payload = case when $5::boolean or state = 2 then payload end,
  sealed_with = case when $5::boolean or state = 2 then sealed_with end
where source = $1 and key = $2 and claim_token = $3 and state + 0 in (1, 2)
returning fence
